/* See check.h. */
#include "check.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define BODY_MAX (64u << 10)
#define DEADLINE_NS UINT64_C(20000000000) /* a busy machine is no finding */

/* ---- messages ----------------------------------------------------------------------------------- */
static uint8_t body_byte(const struct message *message, uint32_t at)
{
    return (uint8_t)(message->id * 31u + at * 7u + (at >> 8));
}

int64_t message_tag(const struct message *message)
{
    return (int64_t)message->id * 1000003 - 7;
}

struct shmq_spec message_spec(const struct message *message, uint8_t *body)
{
    for (uint32_t i = 0; i < message->body_bytes; i++) {
        body[i] = body_byte(message, i);
    }
    return (struct shmq_spec){.body = body,
                              .body_bytes = message->body_bytes,
                              .topic = ARENA_TOPIC,
                              .topic_bytes = sizeof ARENA_TOPIC - 1,
                              .properties = message->properties,
                              .properties_bytes = message->properties == NULL ? 0 : (uint32_t)strlen(message->properties),
                              .queue_id = message->queue,
                              .flag = message->id,
                              .born_ms = 1000 + message->id};
}

static bool message_matches(const struct message *message, const struct shmq_view *view)
{
    if (view->flag != message->id || view->queue_id != message->queue || view->body_bytes != message->body_bytes ||
        view->born_ms != 1000 + message->id) {
        return false;
    }
    for (uint32_t i = 0; i < view->body_bytes; i++) {
        if (view->body[i] != body_byte(message, i)) {
            return false;
        }
    }
    size_t bytes = message->properties == NULL ? 0 : strlen(message->properties);
    return view->properties_bytes >= bytes && (bytes == 0 || memcmp(view->properties, message->properties, bytes) == 0);
}

/* ---- ledger and verdict -------------------------------------------------------------------------- */
void ledger_open(struct ledger *ledger, const struct arena *arena)
{
    ledger_close(ledger);
    ledger->end = shmq_load_acquire(&arena->store.log->end);
    ledger->prefix = malloc(ledger->end + 1);
    ARENA_MUST(ledger->prefix != NULL);
    for (uint64_t at = 0; at < ledger->end;) {
        uint64_t bytes = arena->options.file_bytes - at % arena->options.file_bytes;
        bytes = bytes < ledger->end - at ? bytes : ledger->end - at;
        memcpy(ledger->prefix + at, arena_log(arena, at), bytes);
        at += bytes;
    }
    for (uint32_t queue = 0; queue < ARENA_QUEUES; queue++) {
        ledger->offset_max[queue] = shmq_load_acquire(&arena->store.queues[queue].offset_max);
    }
    /* The last claim, if it was evicted: its words stay until the next claim. */
    struct shmq_view view;
    uint64_t at = arena->store.log->claim.log_position;
    if (at < ledger->end && shmq_record_decode(arena_log(arena, at), arena->store.log->claim.bytes, &view) == SHMQ_OK &&
        view.sys_flag == SHMQ_SYS_FLAG_ROLLBACK) {
        ledger->hole_from = at + SHMQ_RECORD_BODY_AT;
        ledger->hole_until = ledger->hole_from + view.body_bytes;
    }
}

void ledger_close(struct ledger *ledger)
{
    free(ledger->prefix);
    ledger->prefix = NULL;
}

uint32_t check_ignored;

void verdict_add(struct verdict *verdict, uint32_t invariant, const char *format, ...)
{
    if (check_ignored >> invariant & 1) {
        return;
    }
    if (verdict->violations++ == 0) {
        int used = snprintf(verdict->first, sizeof verdict->first, "[%u] ", invariant);
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(verdict->first + used, sizeof verdict->first - (size_t)used, format, arguments);
        va_end(arguments);
    }
    verdict->numbers |= 1u << invariant;
}

/* ---- the log ------------------------------------------------------------------------------------- */
struct walk {
    uint64_t next[ARENA_QUEUES];            /* queue offset that has to come next */
    uint32_t found[CHECK_PARTIES_MAX];      /* messages of each party seen so far */
    uint32_t holes;
    uint64_t store_ms;
    uint64_t described;                     /* end of the last record with properties */
};

/* Bytes from `at` on that lie in one file and on one side of the hole's body. */
static uint64_t run_of(const struct arena *arena, const struct ledger *ledger, uint64_t at)
{
    uint64_t until = (at / arena->options.file_bytes + 1) * arena->options.file_bytes;
    const uint64_t cuts[] = {ledger->end, ledger->hole_from, ledger->hole_until};
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        until = cuts[i] > at && cuts[i] < until ? cuts[i] : until;
    }
    return until - at;
}

static void check_prefix(const struct arena *arena, const struct ledger *ledger, struct verdict *verdict)
{
    for (uint64_t at = 0; at < ledger->end;) {
        uint64_t bytes = run_of(arena, ledger, at);
        bool hole = at >= ledger->hole_from && at < ledger->hole_until;
        if (!hole && memcmp(arena_log(arena, at), ledger->prefix + at, bytes) != 0) {
            verdict_add(verdict, 1, "committed bytes of the file at %" PRIu64 " changed", at);
        }
        at += bytes;
    }
}

static void check_record(const struct ledger *ledger, struct walk *walk, const struct shmq_view *view,
                         const uint8_t *data, struct verdict *verdict)
{
    uint64_t at = view->log_position;
    if (view->store_ms < walk->store_ms) {
        verdict_add(verdict, 2, "store time falls at %" PRIu64, at);
    }
    walk->store_ms = view->store_ms;
    if (ledger->holes_allowed && view->sys_flag == SHMQ_SYS_FLAG_ROLLBACK) {
        walk->holes++;
        return;
    }
    if (shmq_record_verify(data, view) != SHMQ_OK) {
        verdict_add(verdict, 2, "CRC of the record at %" PRIu64, at);
        return;
    }
    if (view->queue_id >= ARENA_QUEUES || view->queue_offset != walk->next[view->queue_id]) {
        verdict_add(verdict, 3, "record at %" PRIu64 " has queue %u offset %" PRIu64, at, view->queue_id,
                    view->queue_offset);
        return;
    }
    walk->next[view->queue_id]++;
    for (uint32_t i = 0; i < ledger->party_count; i++) {
        struct message expected = ledger->parties[i].first;
        expected.id += walk->found[i];
        expected.queue += ledger->parties[i].across ? walk->found[i] : 0;
        if (walk->found[i] < ledger->parties[i].count && message_matches(&expected, view)) {
            walk->found[i]++;
            return;
        }
    }
    verdict_add(verdict, 7, "the record at %" PRIu64 " (id %u) was never sent", at, view->flag);
}

/* Where the units of a queue begin that have to be there. */
static uint64_t first_offset(const struct arena *arena, const struct ledger *ledger, uint32_t queue)
{
    const uint64_t begins_at = ledger->begins_at[queue];
    const bool has_begun = shmq_load_acquire(&arena->store.queues[queue].offset_max) >= begins_at;
    return begins_at != 0 && has_begun ? begins_at : ledger->kept_from[queue];
}

/* Walk what was added since the ledger was opened; false when the walk cannot go on. */
static bool check_log(const struct arena *arena, const struct ledger *ledger, struct walk *walk, struct verdict *verdict)
{
    uint64_t end = shmq_load_acquire(&arena->store.log->end), file_bytes = arena->options.file_bytes;
    for (uint32_t queue = 0; queue < ARENA_QUEUES; queue++) {
        const uint64_t first = first_offset(arena, ledger, queue);
        walk->next[queue] = first > ledger->offset_max[queue] ? first : ledger->offset_max[queue];
    }
    if (end < ledger->end || end > file_bytes * arena->options.file_count) {
        verdict_add(verdict, 1, "the log end went from %" PRIu64 " to %" PRIu64, ledger->end, end);
        return false;
    }
    for (uint64_t at = ledger->end; at < end;) {
        const uint8_t *data = arena_log(arena, at);
        uint64_t left = file_bytes - at % file_bytes;
        struct shmq_view view;
        enum shmq_status status = shmq_record_decode(data, left, &view);
        uint32_t words[2];
        memcpy(words, data, sizeof words);
        if (status == SHMQ_EMPTY && __builtin_bswap32(words[0]) == left &&
            __builtin_bswap32(words[1]) == SHMQ_RECORD_MAGIC_BLANK) {
            at += left;
            continue;
        }
        if (status != SHMQ_OK || view.log_position != at || at + view.record_bytes > end) {
            verdict_add(verdict, 2, "no record at %" PRIu64 " (status %d), log end %" PRIu64, at, status, end);
            return false;
        }
        check_record(ledger, walk, &view, data, verdict);
        at += view.record_bytes;
        walk->described = view.properties_bytes > SHMQ_RECORD_CRC_BYTES ? at : walk->described;
    }
    const uint64_t described_end = shmq_load_acquire(&arena->store.log->described_end);
    if (described_end < walk->described) {
        verdict_add(verdict, 12, "a record with properties ends at %" PRIu64 ", described are %" PRIu64, walk->described,
                    described_end);
    }
    return true;
}

/* ---- units --------------------------------------------------------------------------------------- */
/* What the unit of a record says: what its writer gave, or, from a master, the hash of its tag. */
static int64_t unit_code(const struct ledger *ledger, const struct shmq_view *view)
{
    if (ledger->replicated_id == 0 || view->flag != ledger->replicated_id || view->log_position < ledger->end) {
        return message_tag(&(struct message){.id = view->flag});
    }
    static const char tags[] = "TAGS\001red\002";
    const bool is_red = view->properties_bytes >= sizeof tags && memcmp(view->properties, tags, sizeof tags - 1) == 0;
    return is_red ? 112785 : 0; /* "red".hashCode() */
}

static void check_unit(const struct arena *arena, const struct ledger *ledger, uint32_t queue, uint64_t offset,
                       const uint8_t *bytes, struct verdict *verdict)
{
    struct shmq_unit unit;
    shmq_unit_unpack(bytes, &unit);
    uint64_t end = shmq_load_acquire(&arena->store.log->end);
    if (unit.log_position >= end || unit.record_bytes > end - unit.log_position) {
        verdict_add(verdict, 4, "unit %u/%" PRIu64 " reaches behind the log end", queue, offset);
        return;
    }
    struct shmq_view view;
    uint64_t left = arena->options.file_bytes - unit.log_position % arena->options.file_bytes;
    if (shmq_record_decode(arena_log(arena, unit.log_position), left, &view) != SHMQ_OK || view.queue_id != queue ||
        view.queue_offset != offset || view.record_bytes != unit.record_bytes ||
        unit.tag_hash != unit_code(ledger, &view)) {
        verdict_add(verdict, 4, "unit %u/%" PRIu64 " does not name its record", queue, offset);
    }
}

static void check_units(struct arena *arena, const struct ledger *ledger, struct verdict *verdict)
{
    static uint8_t bytes[4096 * SHMQ_UNIT_BYTES];
    for (uint32_t queue = 0; queue < ARENA_QUEUES; queue++) {
        uint64_t offset_max = shmq_load_acquire(&arena->store.queues[queue].offset_max);
        uint64_t first = first_offset(arena, ledger, queue);
        if (offset_max < ledger->offset_max[queue] || offset_max > first + 4096) {
            verdict_add(verdict, 5, "offset_max of queue %u is %" PRIu64, queue, offset_max);
            continue;
        }
        uint32_t wanted = (uint32_t)(offset_max - first);
        uint32_t got = shmq_units_read(&arena->store, queue, first, wanted, bytes);
        if (got != wanted) {
            verdict_add(verdict, 4, "queue %u: only %u of %u units are readable", queue, got, wanted);
        }
        for (uint32_t i = 0; i < got; i++) {
            check_unit(arena, ledger, queue, first + i, bytes + (size_t)i * SHMQ_UNIT_BYTES, verdict);
        }
    }
}

/* ---- frames -------------------------------------------------------------------------------------- */
static void check_frames(const struct arena *arena, struct verdict *verdict)
{
    const struct shmq_store *store = &arena->store;
    uint32_t frame_max = store->sizes.frame_max;
    uint8_t seen[256] = {0};
    ARENA_MUST(frame_max <= sizeof seen);
    for (uint32_t bucket = 0; bucket < store->frame_bucket_count; bucket++) {
        uint32_t link = atomic_load(&store->frame_buckets[bucket]);
        for (uint32_t step = 0; link != 0; step++) {
            if (link > frame_max || step > frame_max) {
                verdict_add(verdict, 8, "the chain of bucket %u is broken", bucket);
                return;
            }
            uint64_t tag = atomic_load(&store->frames[link - 1].tag);
            if (tag == 0 || (shmq_hash64(tag) & (store->frame_bucket_count - 1)) != bucket || seen[link - 1]++ != 0) {
                verdict_add(verdict, 8, "frame %u (tag %" PRIx64 ") does not belong to bucket %u", link - 1, tag, bucket);
            }
            link = atomic_load(&store->frames[link - 1].next);
        }
    }
    for (uint32_t link = store->log->frame_free, step = 0; link != 0; step++) {
        if (link > frame_max || step > frame_max || seen[link - 1]++ != 0) {
            verdict_add(verdict, 8, "the free list is broken at frame %u", link - 1);
            return;
        }
        if (atomic_load(&store->frames[link - 1].tag) != 0) {
            verdict_add(verdict, 8, "frame %u is free and has a tag", link - 1);
        }
        link = atomic_load(&store->frames[link - 1].next);
    }
    for (uint32_t frame = 0; frame < frame_max; frame++) {
        if ((seen[frame] == 1) != (frame < store->log->frame_bump)) {
            verdict_add(verdict, 8, "frame %u is %s", frame, seen[frame] ? "in use above the bump" : "lost");
        }
    }
}

/* ---- the three views ------------------------------------------------------------------------------ */
static void check_parties(const struct ledger *ledger, const struct walk *walk, struct verdict *verdict)
{
    for (uint32_t i = 0; i < ledger->party_count; i++) {
        const struct party *party = &ledger->parties[i];
        if (party->acked && walk->found[i] != party->count) {
            verdict_add(verdict, 6, "%u of %u acknowledged messages from id %u on are there", walk->found[i],
                        party->count, party->first.id);
        } else if (!party->one_by_one && walk->found[i] != 0 && walk->found[i] != party->count) {
            verdict_add(verdict, 7, "%u of %u messages of one operation are there", walk->found[i], party->count);
        }
    }
}

void check_reader(struct arena *arena, const struct ledger *ledger, struct verdict *verdict)
{
    struct walk walk = {0};
    check_prefix(arena, ledger, verdict);
    if (!check_log(arena, ledger, &walk, verdict)) {
        return;
    }
    for (uint32_t queue = 0; queue < ARENA_QUEUES; queue++) {
        uint64_t offset_max = shmq_load_acquire(&arena->store.queues[queue].offset_max);
        if (offset_max > walk.next[queue]) {
            verdict_add(verdict, 5, "queue %u shows offset %" PRIu64 " before its record", queue, offset_max - 1);
            return;
        }
    }
    check_units(arena, ledger, verdict);
    check_parties(ledger, &walk, verdict);
}

/* An owner that came back to the end of its operation has settled the hole it left. */
static void check_hole(const struct arena *arena, const struct ledger *ledger, struct verdict *verdict)
{
    if (ledger->hole_until == 0 || !ledger->parties[0].acked) {
        return;
    }
    const uint8_t *data = arena_log(arena, ledger->hole_from - SHMQ_RECORD_BODY_AT);
    struct shmq_view view;
    uint64_t left = arena->options.file_bytes - (ledger->hole_from - SHMQ_RECORD_BODY_AT) % arena->options.file_bytes;
    if (shmq_record_decode(data, left, &view) != SHMQ_OK || shmq_record_verify(data, &view) != SHMQ_OK) {
        verdict_add(verdict, 2, "the hole was not settled");
    }
}

static void check_leftovers(const struct arena *arena, struct verdict *verdict)
{
    const struct shmq_log *log = arena->store.log;
    if (atomic_load(&log->intent.kind) != SHMQ_INTENT_NONE) {
        verdict_add(verdict, 9, "an intent of kind %u is left", atomic_load(&log->intent.kind));
    }
    if (atomic_load(&log->claim.state) == SHMQ_CLAIM_OPEN &&
        shmq_process_start(log->claim.owner_pid) != log->claim.owner_start) {
        verdict_add(verdict, 9, "a dead process owns the claim");
    }
    if (log->lock.__data.__lock != 0) {
        verdict_add(verdict, 9, "the append lock is still taken");
    }
    if (atomic_load(&log->read_only) != atomic_load(&log->standing)) {
        verdict_add(verdict, 9, "the store turned read-only");
    }
}

void check_quiet(struct arena *arena, const struct ledger *ledger, struct verdict *verdict)
{
    struct walk walk = {0};
    check_prefix(arena, ledger, verdict);
    if (!check_log(arena, ledger, &walk, verdict)) {
        return;
    }
    check_parties(ledger, &walk, verdict);
    for (uint32_t queue = 0; queue < ARENA_QUEUES; queue++) {
        uint64_t offset_max = shmq_load_acquire(&arena->store.queues[queue].offset_max);
        if (offset_max != walk.next[queue]) {
            verdict_add(verdict, 5, "queue %u: offset_max %" PRIu64 ", records up to %" PRIu64, queue, offset_max,
                        walk.next[queue]);
            return;
        }
    }
    check_units(arena, ledger, verdict);
    check_hole(arena, ledger, verdict);
    check_frames(arena, verdict);
    check_leftovers(arena, verdict);
    uint64_t end = shmq_load_acquire(&arena->store.log->end), zeros = 0;
    if (end % arena->options.file_bytes != 0 && memcmp(arena_log(arena, end), &zeros, SHMQ_RECORD_BLANK_BYTES) != 0) {
        verdict_add(verdict, 11, "no zeros behind the log end %" PRIu64, end);
    }
}

void check_heir(struct arena *arena, struct ledger *ledger, struct verdict *verdict)
{
    uint8_t body[256];
    struct party *party = &ledger->parties[ledger->party_count++];
    if (atomic_load(&arena->store.log->standing) != SHMQ_WRITABLE) { /* a follower takes appends from here on */
        atomic_store(&arena->store.log->standing, SHMQ_WRITABLE);
        shmq_set_read_only(&arena->store, SHMQ_WRITABLE);
    }
    ARENA_MUST(ledger->party_count <= CHECK_PARTIES_MAX);
    *party = (struct party){.first = {.id = CHECK_HEIR_ID, .queue = 0, .body_bytes = 40}, .count = 2, .acked = true};
    for (uint32_t i = 0; i < party->count; i++) {
        struct message message = party->first;
        message.id += i;
        struct shmq_spec spec = message_spec(&message, body);
        struct shmq_appended out;
        enum shmq_status status = shmq_append(&arena->store, message.queue, &spec, message_tag(&message),
                                              shmq_io_posix.monotonic_ns() + DEADLINE_NS, &out);
        if (status != SHMQ_OK) {
            verdict_add(verdict, 10, "append %u after the death: status %d", i, status);
            break;
        }
    }
    check_quiet(arena, ledger, verdict);
    ledger->party_count--;
}
