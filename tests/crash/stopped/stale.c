/* A process is stopped anywhere in an operation on a queue; meanwhile the queue's topic is deleted, its entry becomes that
 * of a topic with the same name, and the group's offset slot becomes that of the new queue. Then the process goes on.
 *
 *   victim    instruction 1 … n, stopped ……………………………………………… n + 1 … end
 *   others    delete the topic · close, free frames, free entries · the topic anew · messages, an offset, an owner
 *
 * Same name, same queue ids, same offsets, the same entries: only the number of the queue tells them apart. What the others
 * made must be as they left it, and the victim must have read nothing of it. Where the victim is stopped with a lock, the
 * others get their answer at their deadline, and no entry changes hands.
 *
 * "take" finds no owner and takes the queue, which by then is another one without an owner. "take-own" finds its own word
 * there: the queue in its place is another thread's of its process.
 *
 * "find" looks the topic up by its name and writes to the queue it finds, while the topic's entry becomes that of a topic
 * with another name.
 *
 * The operations whose names begin with "group" act for a group. Meanwhile the group is deleted, its entry becomes that of a
 * group with another name, and its offset slot that group's: same queue, same entries, another number of the group.
 *
 * Every instruction is a case: the victim is run again up to the n-th. Prints one JSON line an operation; exit status 1
 * after a violation.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "check.h"
#include "core/read/reader.h"
#include "operations.h"
#include "trace.h"

#define FILE_BYTES (128u << 10)
#define OLD_ID 10u
#define NEW_ID 700u
#define OLD_MESSAGES 5u
#define NEW_MESSAGES 7u
#define NEW_COMMITTED 4u
#define PULLED_BYTES_MAX 4096u
#define OLD_SETTINGS "old"
#define NEW_SETTINGS "new"

enum operation {
    OPERATION_APPEND, OPERATION_APPEND_FRAME, OPERATION_BATCH, OPERATION_TOGETHER, OPERATION_CLAIM, OPERATION_READ,
    OPERATION_FILTERED, OPERATION_ACKNOWLEDGE, OPERATION_PULL, OPERATION_COMMIT, OPERATION_OFFSET_PUT,
    OPERATION_FIND, OPERATION_TAKE, OPERATION_TAKE_OWN, OPERATION_GROUP_TAKE, OPERATION_GROUP_TAKE_OWN,
    OPERATION_GROUP_COMMIT, OPERATION_GROUP_ACKNOWLEDGE, OPERATION_GROUP_OFFSET_PUT, OPERATION_GROUP_FIND,
    OPERATION_GROUP_SET, OPERATION_GROUP_SETTINGS, OPERATION_COUNT,
};
const char *const operation_names[] = {
    "append", "append-frame", "batch", "together", "claim", "read", "filtered", "acknowledge", "pull", "commit",
    "offset-put", "find", "take", "take-own", "group-take", "group-take-own", "group-commit", "group-acknowledge",
    "group-offset-put", "group-find", "group-set", "group-settings",
};

const uint32_t operation_count = OPERATION_COUNT;

struct notes {                  /* what the victim tells; no part of the store */
    _Atomic uint32_t status, done;
    _Atomic uint32_t new_seen;  /* messages of the new queue it was given */
};

struct bed {
    struct arena arena;
    enum operation operation;
    struct notes *notes;
    uint32_t group, slot, queue; /* the victim's */
    uint64_t place;             /* of group and queue */
    uint32_t beside;            /* a queue of a topic that stays */
    struct trace_path path;
    struct verdict verdict;
    uint64_t cases, held;
    bool had;                   /* the victim had taken the queue when it was stopped */
};

static struct {                 /* the victim's private state, made before it is watched */
    struct shmq_store store;
    struct shmq_reader reader;
    struct shmq_delivery delivery;
    struct shmq_claim_handle claim;
    struct shmq_pull pull;
    struct shmq_spec specs[2];
    uint8_t bodies[2][64];
    uint8_t pulled[PULLED_BYTES_MAX];
} victim;

static uint64_t after_ms(uint64_t ms)
{
    return shmq_io_posix.monotonic_ns() + ms * 1000000;
}

static void append(struct shmq_store *store, uint32_t queue, uint32_t id, uint32_t count)
{
    uint8_t body[64];
    struct shmq_appended out;
    for (uint32_t i = 0; i < count; i++) {
        struct message message = {.id = id + i, .queue = 0, .body_bytes = 40, .properties = "TAGS\001red\002"};
        struct shmq_spec spec = message_spec(&message, body);
        ARENA_MUST(shmq_append(store, queue, &spec, shmq_tag_hash("red", 3), after_ms(20000), &out) == SHMQ_OK);
    }
}

/* ---- the store ----------------------------------------------------------------------------------- */
static void bed_open(struct bed *bed, enum operation operation)
{
    const struct arena_options options = {.file_bytes = FILE_BYTES, .file_count = 2, .frame_max = 16, .frame_ready = 16};
    struct shmq_store *store = &bed->arena.store;
    uint32_t topic;
    bed->operation = operation;
    arena_create(&bed->arena, &options);
    store->processors = 1;
    bed->queue = shmq_topic_queue(store, shmq_topic_find(store, ARENA_TOPIC, strlen(ARENA_TOPIC)), 0);
    append(store, bed->queue, OLD_ID, operation == OPERATION_APPEND_FRAME ? SHMQ_FRAME_UNITS : OLD_MESSAGES);
    ARENA_MUST(shmq_group_put(store, "workers", &bed->group) == SHMQ_OK);
    ARENA_MUST(shmq_topic_put(store, "beside", 1, 1, 6, 0, 0, &topic) == SHMQ_OK);
    bed->beside = shmq_topic_queue(store, topic, 0);
    char name[] = "passes0"; /* so that the next topic gets an entry that was used */
    for (uint32_t i = 2; i < store->sizes.topic_max; i++, name[6]++) {
        ARENA_MUST(shmq_topic_put(store, name, 0, 0, 6, 0, 0, &topic) == SHMQ_OK);
    }
    for (name[6] = '1'; name[6] <= '3'; name[6]++) { /* and the next group */
        ARENA_MUST(shmq_group_put(store, name, &topic) == SHMQ_OK);
    }
    ARENA_MUST(shmq_offset_put(store, bed->group, bed->queue, &bed->slot) == SHMQ_OK);
    bed->place = shmq_offset_place(bed->group, bed->queue);
    shmq_raise_durable(store, shmq_load_acquire(&store->log->end));
    atomic_store(&store->log->keeper_beat_ns, shmq_io_posix.monotonic_ns()); /* so that damage would be reported */
    arena_window(&bed->arena, FILE_BYTES);
}

static bool is_of_group(const struct bed *bed)
{
    return bed->operation >= OPERATION_GROUP_TAKE;
}

static bool takes_own(const struct bed *bed)
{
    return bed->operation == OPERATION_TAKE_OWN || bed->operation == OPERATION_GROUP_TAKE_OWN;
}

static bool takes(const struct bed *bed)
{
    return bed->operation == OPERATION_TAKE || bed->operation == OPERATION_GROUP_TAKE || takes_own(bed);
}

static void prepare(void *argument)
{
    struct bed *bed = argument;
    uint64_t client;
    void *old;
    arena_attach(&bed->arena, &victim.store, true);
    victim.store.processors = 1;
    ARENA_MUST(shmq_mapping_get(&victim.store, shmq_load_acquire(&victim.store.log->end)) != NULL);
    ARENA_MUST(shmq_client_put(&victim.store, victim.store.self_pid, victim.store.self_start, 3, &client) == SHMQ_OK);
    shmq_client_use(&victim.store, client);
    atomic_store(&victim.store.offsets[bed->slot].owner, takes(bed) ? 0 : client);
    for (uint32_t i = 0; i < 2; i++) {
        struct message message = {.id = 300 + i, .queue = i, .body_bytes = 40};
        victim.specs[i] = message_spec(&message, victim.bodies[i]);
    }
    shmq_reader_init(&victim.reader, &victim.store);
    ARENA_MUST(shmq_reader_assign(&victim.reader, bed->queue, 0, 0, bed->place, NULL, &old) == SHMQ_OK);
    if (bed->operation == OPERATION_FILTERED) {
        ARENA_MUST(shmq_reader_tag_add(&victim.reader, "blue", 4) == SHMQ_OK);
    }
    if (bed->operation == OPERATION_ACKNOWLEDGE || bed->operation == OPERATION_GROUP_ACKNOWLEDGE) {
        ARENA_MUST(shmq_reader_next(&victim.reader, &victim.delivery) == SHMQ_OK);
    }
    if (bed->operation == OPERATION_CLAIM) {
        ARENA_MUST(shmq_claim_open(&victim.store, bed->queue, 40, 64, after_ms(20000), &victim.claim) == SHMQ_OK);
        victim.specs[0].body_crc_raw = shmq_crc32_copy_raw(UINT32_MAX, victim.claim.body, victim.bodies[0], 40);
        victim.specs[0].body = NULL;
    }
}

/* ---- the operation ------------------------------------------------------------------------------- */
static void see(struct bed *bed, const struct shmq_view *view)
{
    bool is_new = view->flag >= NEW_ID && view->flag < NEW_ID + NEW_MESSAGES;
    atomic_fetch_add(&bed->notes->new_seen, is_new);
}

static enum shmq_status read_all(struct bed *bed)
{
    enum shmq_status status;
    while ((status = shmq_reader_next(&victim.reader, &victim.delivery)) == SHMQ_OK) {
        see(bed, &victim.delivery.view);
        (void)shmq_reader_ack(&victim.reader, victim.delivery.cursor, victim.delivery.serial,
                              victim.delivery.queue_offset);
    }
    return status;
}

static enum shmq_status pull_all(struct bed *bed)
{
    struct shmq_pull *pull = &victim.pull;
    pull->queue = bed->queue;
    pull->count_max = 32;
    pull->bytes_max = PULLED_BYTES_MAX;
    pull->scan_max = 32;
    pull->verify = true;
    enum shmq_status status = shmq_pull_plan(&victim.store, pull);
    uint64_t bytes = status == SHMQ_OK ? shmq_pull_copy(pull, victim.pulled) : 0;
    struct shmq_view view;
    for (uint64_t at = 0; at < bytes && shmq_record_decode(victim.pulled + at, bytes - at, &view) == SHMQ_OK;
         at += view.record_bytes) {
        see(bed, &view);
    }
    shmq_pull_release(pull);
    return status;
}

static enum shmq_status act_store(struct bed *bed)
{
    struct shmq_store *store = &victim.store;
    struct shmq_appended out[2];
    const int64_t tags[2] = {0, 0};
    const struct shmq_entry entries[2] = {{.queue = bed->beside, .spec = victim.specs[1]},
                                          {.queue = bed->queue, .spec = victim.specs[0]}};
    switch (bed->operation) {
    case OPERATION_BATCH:
        victim.specs[1].queue_id = 0;
        return shmq_append_batch(store, bed->queue, victim.specs, tags, 2, after_ms(20000), out);
    case OPERATION_TOGETHER:
        return shmq_append_together(store, entries, 2, UINT64_MAX, after_ms(20000), out);
    case OPERATION_CLAIM: {
        enum shmq_status status =
            shmq_claim_commit(store, &victim.claim, &victim.specs[0], 0, after_ms(20000), out);
        shmq_claim_abort(store, &victim.claim);
        return status;
    }
    default:
        return shmq_append(store, bed->queue, &victim.specs[0], 0, after_ms(20000), out);
    }
}

/* Under its name, as a bridge finds it. */
static enum shmq_status commit_found(struct bed *bed)
{
    const uint32_t group = shmq_group_find(&victim.store, "workers");
    const uint32_t slot = group == SHMQ_NONE ? SHMQ_NONE : shmq_offset_find(&victim.store, group, bed->queue);
    return slot != SHMQ_NONE && shmq_offset_commit(&victim.store.offsets[slot], shmq_offset_place(group, bed->queue), 2)
               ? SHMQ_OK
               : SHMQ_NO_TOPIC;
}

static enum shmq_status read_settings(struct bed *bed)
{
    char text[SHMQ_GROUP_SETTINGS_BYTES_MAX];
    const uint32_t bytes = shmq_group_settings(&victim.store, bed->group, text);
    atomic_fetch_add(&bed->notes->new_seen, bytes != 0 && memcmp(text, NEW_SETTINGS, bytes) == 0);
    return SHMQ_OK;
}

static enum shmq_status act(struct bed *bed)
{
    struct shmq_store *store = &victim.store;
    struct shmq_appended out;
    uint32_t slot;
    switch (bed->operation) {
    case OPERATION_READ:
    case OPERATION_FILTERED:
        return read_all(bed);
    case OPERATION_ACKNOWLEDGE:
    case OPERATION_GROUP_ACKNOWLEDGE:
        return shmq_reader_ack(&victim.reader, 0, victim.delivery.serial, 0);
    case OPERATION_PULL:
        return pull_all(bed);
    case OPERATION_COMMIT:
    case OPERATION_GROUP_COMMIT:
        return shmq_offset_commit(&store->offsets[bed->slot], bed->place, 2) ? SHMQ_OK : SHMQ_NO_QUEUE;
    case OPERATION_GROUP_FIND:
        return commit_found(bed);
    case OPERATION_GROUP_SET:
        return shmq_group_set(store, bed->group, OLD_SETTINGS, sizeof OLD_SETTINGS - 1);
    case OPERATION_GROUP_SETTINGS:
        return read_settings(bed);
    case OPERATION_OFFSET_PUT:
    case OPERATION_GROUP_OFFSET_PUT:
        return shmq_offset_put(store, bed->group, bed->queue, &slot);
    case OPERATION_FIND:
        slot = shmq_topic_queue(store, shmq_topic_find(store, ARENA_TOPIC, strlen(ARENA_TOPIC)), 0);
        return slot == SHMQ_NONE ? SHMQ_NO_TOPIC : shmq_append(store, slot, &victim.specs[0], 0, after_ms(20000), &out);
    case OPERATION_TAKE:
    case OPERATION_TAKE_OWN:
    case OPERATION_GROUP_TAKE:
    case OPERATION_GROUP_TAKE_OWN:
        return shmq_owner_take(store, &store->offsets[bed->slot], bed->place) ? SHMQ_OK : SHMQ_NO_QUEUE;
    default:
        return act_store(bed);
    }
}

static void start(void *argument)
{
    struct bed *bed = argument;
    atomic_store(&bed->notes->status, (uint32_t)act(bed));
    atomic_store(&bed->notes->done, 1);
}

/* ---- the others ---------------------------------------------------------------------------------- */
static bool is_locked(const pthread_mutex_t *mutex)
{
    return mutex->__data.__lock != 0;
}

struct anew { uint32_t group, queues[ARENA_QUEUES], slot, messages; uint64_t place, end, owner; };

/* What the slot's next place begins with. The hardest case: the victim's own process reads there too; for a taker, the word
 * is as it was. */
static void begin_anew(struct bed *bed, struct anew *anew)
{
    struct shmq_store *store = &bed->arena.store;
    anew->place = shmq_offset_place(anew->group, anew->queues[0]);
    ARENA_MUST(shmq_offset_put(store, anew->group, anew->queues[0], &anew->slot) == SHMQ_OK && anew->slot == bed->slot);
    ARENA_MUST(shmq_offset_commit(&store->offsets[anew->slot], anew->place, NEW_COMMITTED));
    anew->owner = takes(bed) && !takes_own(bed) ? 0 : shmq_client_word(store, 0);
    atomic_store(&store->offsets[anew->slot].owner, anew->owner);
    shmq_raise_durable(store, shmq_load_acquire(&store->log->end));
    anew->end = shmq_load_acquire(&store->log->end);
}

static bool make_group_anew(struct bed *bed, struct anew *anew)
{
    struct shmq_store *store = &bed->arena.store;
    if (is_locked(&store->log->table_lock)) {
        return false;
    }
    ARENA_MUST(shmq_group_delete(store, "workers") == SHMQ_OK);
    ARENA_MUST(shmq_group_put(store, "shifts", &anew->group) == SHMQ_OK);
    ARENA_MUST((anew->group & store->group_mask) == (bed->group & store->group_mask) && anew->group != bed->group);
    ARENA_MUST(shmq_group_set(store, anew->group, NEW_SETTINGS, sizeof NEW_SETTINGS - 1) == SHMQ_OK);
    for (uint32_t id = 0; id < ARENA_QUEUES; id++) {
        anew->queues[id] = bed->queue + id;
    }
    anew->messages = OLD_MESSAGES;
    begin_anew(bed, anew);
    return true;
}

/* False: the victim stands in the way, and nothing changed hands. */
static bool make_anew(struct bed *bed, struct anew *anew)
{
    struct shmq_store *store = &bed->arena.store;
    struct shmq_leaving leaving[ARENA_QUEUES];
    uint32_t topic, count = 0;
    if (is_locked(&store->log->table_lock) || is_locked(&store->log->lock)) {
        ARENA_MUST(is_locked(&store->log->table_lock) || shmq_topic_delete(store, ARENA_TOPIC) == SHMQ_OK);
        if (is_locked(&store->log->lock) && !is_locked(&store->log->table_lock) &&
            (shmq_queues_close(store, 1, ARENA_QUEUES, leaving, &count) == SHMQ_OK || count != 0)) {
            verdict_add(&bed->verdict, 9, "queues are closed under a lock that is held");
        }
        return false;
    }
    ARENA_MUST(shmq_topic_delete(store, ARENA_TOPIC) == SHMQ_OK);
    ARENA_MUST(shmq_queues_close(store, after_ms(20000), ARENA_QUEUES, leaving, &count) == SHMQ_OK);
    ARENA_MUST(count == ARENA_QUEUES);
    for (uint32_t i = 0; i < count; i++) {
        ARENA_MUST(shmq_frames_release(store, leaving[i].queue, 0, 4, after_ms(20000)) != SHMQ_NONE);
        ARENA_MUST(shmq_queue_free(store, leaving[i].queue) == SHMQ_OK);
    }
    if (bed->operation == OPERATION_FIND) {
        ARENA_MUST(shmq_topic_free(store, 0, atomic_load(&store->topics[0].version)) == SHMQ_OK);
        ARENA_MUST(shmq_topic_put(store, "omega", ARENA_QUEUES, ARENA_QUEUES, 6, 0, 0, &topic) == SHMQ_OK);
        ARENA_MUST(topic != 0 && (topic & store->topic_mask) == 0);
    } else {
        ARENA_MUST(shmq_topic_put(store, ARENA_TOPIC, ARENA_QUEUES, ARENA_QUEUES, 6, 0, 0, &topic) == SHMQ_OK);
    }
    for (uint32_t id = 0; id < ARENA_QUEUES; id++) {
        anew->queues[id] = shmq_topic_queue(store, topic, id);
        ARENA_MUST(shmq_queue_place(store, anew->queues[id]) == shmq_queue_place(store, bed->queue + id));
        ARENA_MUST(anew->queues[id] != bed->queue + id);
    }
    /* An append would evict the open claim, and its owner would learn from that alone that it came too late. */
    anew->messages = bed->operation == OPERATION_CLAIM ? 0 : NEW_MESSAGES;
    append(store, anew->queues[0], NEW_ID, anew->messages);
    anew->group = bed->group;
    begin_anew(bed, anew);
    return true;
}

static void check_anew(struct bed *bed, const struct anew *anew, uint64_t at)
{
    struct shmq_store *store = &bed->arena.store;
    const struct shmq_offset *slot = &store->offsets[anew->slot];
    struct verdict *verdict = &bed->verdict;
    uint8_t raw[SHMQ_UNIT_BYTES * NEW_MESSAGES];
    char text[SHMQ_GROUP_SETTINGS_BYTES_MAX];
    if (atomic_load(&bed->notes->new_seen) != 0) {
        verdict_add(verdict, 3, "stopped at %" PRIu64 ": was given what is the new queue's, or group's", at);
    }
    if (is_of_group(bed) && (shmq_group_settings(store, anew->group, text) != sizeof NEW_SETTINGS - 1 ||
                             memcmp(text, NEW_SETTINGS, sizeof NEW_SETTINGS - 1) != 0)) {
        verdict_add(verdict, 5, "stopped at %" PRIu64 ": the new group's settings changed", at);
    }
    /* A taker gives back what it took; a thread that has a word of its own cannot tell it from that of another. */
    const bool gives_back = takes_own(bed) && bed->had;
    if (takes(bed) && !bed->had && atomic_load(&bed->notes->status) == SHMQ_OK) {
        verdict_add(verdict, 8, "stopped at %" PRIu64 ": took a queue that is no more", at);
    }
    if (atomic_load(&slot->committed) != NEW_COMMITTED || (!gives_back && atomic_load(&slot->owner) != anew->owner) ||
        atomic_load(&slot->place) != anew->place) {
        verdict_add(verdict, 5, "stopped at %" PRIu64 ": the new queue's, or group's, offset is %" PRIu64, at,
                    atomic_load(&slot->committed));
    }
    if (shmq_load_acquire(&store->log->end) != anew->end) {
        verdict_add(verdict, 2, "stopped at %" PRIu64 ": something was stored", at);
    }
    for (uint32_t id = 0; id < ARENA_QUEUES; id++) {
        const struct shmq_queue *entry = shmq_queue_entry(store, anew->queues[id]);
        if (entry == NULL || atomic_load(&entry->offset_max) != (id == 0 ? anew->messages : 0)) {
            verdict_add(verdict, 5, "stopped at %" PRIu64 ": queue %u is not as it was made", at, id);
        }
    }
    if (shmq_units_read(store, anew->queues[0], 0, NEW_MESSAGES, raw) != anew->messages) {
        verdict_add(verdict, 4, "stopped at %" PRIu64 ": units of the new queue are missing", at);
    }
    if (atomic_load(&store->damages->reported) != 0) {
        verdict_add(verdict, 4, "stopped at %" PRIu64 ": damage was reported where there is none", at);
    }
}

/* ---- the cases ----------------------------------------------------------------------------------- */
static void run_case(struct bed *bed, uint64_t at)
{
    struct anew anew;
    memset(bed->notes, 0, sizeof *bed->notes);
    pid_t child = trace_spawn(prepare, start, bed);
    if (!trace_run_along(child, &bed->path, at)) {
        trace_end(child, true);
        return;
    }
    bed->had = atomic_load(&bed->arena.store.offsets[bed->slot].owner) != 0;
    bool changed = is_of_group(bed) ? make_group_anew(bed, &anew) : make_anew(bed, &anew);
    bed->cases++;
    bed->held += !changed;
    trace_end(child, false);
    if (atomic_load(&bed->notes->done) == 0) {
        verdict_add(&bed->verdict, 10, "stopped at %" PRIu64 ": it did not come to its end", at);
    } else if (changed) {
        check_anew(bed, &anew, at);
    }
}

uint64_t operation_run(uint32_t operation, uint64_t stride, uint64_t seed)
{
    static struct bed bed;
    memset(&bed, 0, sizeof bed);
    bed.notes = mmap(NULL, SHMQ_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ARENA_MUST(bed.notes != MAP_FAILED);
    bed_open(&bed, (enum operation)operation);
    uint8_t *origin = malloc(arena_snapshot_bytes(&bed.arena));
    ARENA_MUST(origin != NULL);
    arena_save(&bed.arena, origin);
    trace_record(trace_spawn(prepare, start, &bed), &bed.notes->done, &bed.path);
    for (uint64_t at = seed % stride; at < bed.path.count; at += stride) {
        arena_restore(&bed.arena, origin);
        run_case(&bed, at);
    }
    printf("{\"operation\": \"%s\", \"instructions\": %" PRIu64 ", \"cases\": %" PRIu64 ", \"held\": %" PRIu64
           ", \"violations\": %" PRIu64 ", \"first\": \"%s\"}\n",
           operation_names[operation], bed.path.count, bed.cases, bed.held, bed.verdict.violations, bed.verdict.first);
    fflush(stdout);
    free(bed.path.addresses);
    free(origin);
    munmap(bed.notes, SHMQ_PAGE_BYTES);
    arena_destroy(&bed.arena);
    return bed.verdict.violations;
}
