/* Cursors and acknowledgement windows; reader.h has the picture and the rules.
 *
 * Readers never lock. A unit below offset_max is complete (pairs with the writer's release store), so units are copied
 * in batches of up to 64 and the hot path touches only the copy and the record itself.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/read/reader.h"

#define PREFETCH_AHEAD 6u
#define PREFETCH_BYTES 512u
#define STEPS_MAX 16384u /* filtered in a row, some milliseconds, before the caller may look at signals */
#define SEARCH_STEPS_MAX 1024u /* damaged records in a row that a search by time steps over */

static const char retry_prefix[] = "%RETRY%";

/* ---- life ------------------------------------------------------------------------------------------ */
void shmq_reader_init(struct shmq_reader *reader, struct shmq_store *store)
{
    memset(reader, 0, sizeof *reader);
    reader->store = store;
    reader->verify = true;
}

void shmq_reader_clear(struct shmq_reader *reader)
{
    for (uint32_t i = 0; i < reader->cursor_count; i++) {
        free(reader->cursors[i]->bits);
        free(reader->cursors[i]);
    }
    free(reader->cursors);
    for (uint32_t i = 0; i < reader->tag_count; i++) {
        free(reader->tags[i].text);
    }
    free(reader->tags);
    if (reader->mapping) {
        shmq_mapping_release(reader->mapping);
    }
    *reader = (struct shmq_reader){.store = reader->store, .verify = reader->verify}; /* which may be unmapped by now */
}

enum shmq_status shmq_reader_tag_add(struct shmq_reader *reader, const char *tag, size_t bytes)
{
    char *text = malloc(bytes ? bytes : 1);
    struct shmq_reader_tag *tags = realloc(reader->tags, (reader->tag_count + 1) * sizeof *tags);
    if (tags) {
        reader->tags = tags;
    }
    if (!text || !tags) {
        free(text);
        return SHMQ_SYSTEM;
    }
    memcpy(text, tag, bytes);
    int64_t hash = shmq_tag_hash(tag, bytes);
    tags[reader->tag_count++] = (struct shmq_reader_tag){.hash = hash, .text = text, .bytes = bytes};
    reader->tag_bits |= UINT64_C(1) << ((uint64_t)hash % 64);
    return SHMQ_OK;
}

/* ---- delivery -------------------------------------------------------------------------------------- */
/* The unit at `next`, NULL when it is nowhere, cannot be handed out. SHMQ_CORRUPT: stepped over; SHMQ_WOULD_BLOCK: this
 * queue has to wait. */
static enum shmq_status cursor_doubt(struct shmq_reader *reader, struct shmq_cursor *cursor,
                                     const struct shmq_unit *unit, enum shmq_match match, struct shmq_delivery *out)
{
    const struct shmq_unit found = unit ? *unit : (struct shmq_unit){.log_position = UINT64_MAX};
    const uint64_t offset = cursor->next;
    enum shmq_status status = shmq_damage_judge(reader->store, cursor->queue, offset, unit, match);
    if (status != SHMQ_CORRUPT) {
        cursor->doubts = status == SHMQ_WOULD_BLOCK;
        cursor->unit_at = cursor->unit_count = 0;
        return status;
    }
    *out = (struct shmq_delivery){.queue = cursor->queue, .cursor = reader->turn, .queue_offset = offset,
                                  .log_position = found.log_position, .record_bytes = found.record_bytes};
    if (!unit && atomic_load_explicit(&reader->store->log->keeper_beat_ns, memory_order_relaxed) == 0) {
        return status; /* no keeper can rebuild it, and the log may well have the record */
    }
    cursor->unit_at += cursor->unit_at < cursor->unit_count;
    cursor->next++;
    shmq_cursor_skip(cursor, offset, 1);
    shmq_cursor_save(reader, cursor); /* the next owner must not report it again */
    return status;
}

static bool is_behind(const struct shmq_unit *unit, uint64_t end)
{
    return unit->log_position > end || unit->record_bytes > end - unit->log_position;
}

static enum shmq_status cursor_fill(struct shmq_reader *reader, struct shmq_cursor *cursor, struct shmq_delivery *out)
{
    struct shmq_store *store = reader->store;
    const struct shmq_queue *queue = shmq_queue_entry(store, cursor->queue);
    uint8_t raw[SHMQ_READER_UNITS * SHMQ_UNIT_BYTES];
    uint64_t end = queue ? atomic_load_explicit(&queue->offset_max, memory_order_acquire) : 0;
    cursor->doubts = false;
    if (cursor->next >= end) {
        return SHMQ_EMPTY;
    }
    const uint64_t first = shmq_queue_first(store, cursor->queue);
    if (cursor->next < first && shmq_queue_lives(store, cursor->queue)) {
        shmq_cursor_jump(reader, cursor, first);
    }
    if (cursor->next >= end) {
        return SHMQ_EMPTY;
    }
    uint32_t wanted = end - cursor->next < SHMQ_READER_UNITS ? (uint32_t)(end - cursor->next) : SHMQ_READER_UNITS;
    uint32_t count = shmq_units_stored(store, cursor->queue, cursor->next, wanted, raw);
    if (!count) {
        const uint64_t left = shmq_queue_first(store, cursor->queue);
        if (cursor->next >= left || !shmq_queue_lives(store, cursor->queue)) {
            return cursor_doubt(reader, cursor, NULL, SHMQ_MISMATCH, out);
        }
        shmq_cursor_jump(reader, cursor, left); /* retention was faster than we */
        return SHMQ_GONE;
    }
    if (count > wanted) {
        count = wanted;
    }
    for (uint32_t i = 0; i < count; i++) {
        shmq_unit_unpack(raw + i * SHMQ_UNIT_BYTES, &cursor->units[i]);
    }
    uint64_t visible = shmq_queue_visible_end(store, cursor->queue);
    while (count && is_behind(&cursor->units[count - 1], visible)) {
        count--; /* positions grow along a queue, so the hidden ones are the last ones */
    }
    cursor->unit_at = 0;
    cursor->unit_count = count;
    cursor->sought = cursor->sought && count == 0;
    shmq_queue_name(store, cursor->queue, &cursor->name);
    if (!shmq_queue_lives(store, cursor->queue)) { /* the name, or how far it is visible, may be another queue's */
        cursor->unit_count = 0;
        return SHMQ_EMPTY;
    }
    if (!count && !shmq_unit_is_stored(store, &cursor->units[0])) { /* no record was ever there */
        return cursor_doubt(reader, cursor, &cursor->units[0], SHMQ_MISMATCH, out);
    }
    return count ? SHMQ_OK : SHMQ_EMPTY;
}

static inline bool hash_wanted(const struct shmq_reader *reader, int64_t hash)
{
    if (!shmq_tag_hash_is_possible(hash)) {
        return true; /* the unit is damaged, and the record itself says which tag it has */
    }
    if (!(reader->tag_bits >> ((uint64_t)hash % 64) & 1)) {
        return false;
    }
    for (uint32_t i = 0; i < reader->tag_count; i++) {
        if (reader->tags[i].hash == hash) {
            return true;
        }
    }
    return false;
}

static bool tag_wanted(const struct shmq_reader *reader, const struct shmq_view *view)
{
    size_t bytes = 0;
    const char *tag = shmq_property_find(view->properties, view->properties_bytes, "TAGS", 4, &bytes);
    for (uint32_t i = 0; tag && i < reader->tag_count; i++) {
        if (reader->tags[i].bytes == bytes && !memcmp(reader->tags[i].text, tag, bytes)) {
            return true;
        }
    }
    return false;
}

static struct shmq_mapping *mapping_of(struct shmq_reader *reader, uint64_t log_position)
{
    struct shmq_mapping *mapping = reader->mapping;
    if (mapping && log_position - mapping->base < mapping->bytes) {
        return mapping;
    }
    mapping = shmq_mapping_get(reader->store, log_position);
    if (!mapping) {
        return NULL;
    }
    if (reader->mapping) {
        shmq_mapping_release(reader->mapping);
    }
    reader->mapping = shmq_mapping_hold(mapping);
    return mapping;
}

void shmq_view_show_origin(struct shmq_view *view)
{
    size_t bytes = 0, prefix_bytes = sizeof retry_prefix - 1;
    if (view->topic_bytes <= prefix_bytes || memcmp(view->topic, retry_prefix, prefix_bytes) != 0) {
        return;
    }
    const char *origin = shmq_property_find(view->properties, view->properties_bytes, "RETRY_TOPIC", 11, &bytes);
    if (origin && bytes && bytes <= SHMQ_TOPIC_BYTES_MAX) {
        view->topic = origin;
        view->topic_bytes = (uint32_t)bytes;
    }
}

/* Records of one queue lie apart in the log, so the processor does not guess the next one. Telling it took reading a
 * backlog of 256-byte bodies from 155 to 90 ns a message: header and tail for decoding, some lines between for the
 * body. */
__attribute__((always_inline)) /* gcc drops a call that only prefetches before it would inline it */
static inline void
record_prefetch(const struct shmq_cursor *cursor, const struct shmq_mapping *mapping)
{
    uint32_t ahead = cursor->unit_at + PREFETCH_AHEAD;
    if (ahead >= cursor->unit_count) {
        return;
    }
    uint64_t at = cursor->units[ahead].log_position - mapping->base;
    uint64_t bytes = cursor->units[ahead].record_bytes;
    if (at >= mapping->bytes || bytes - 1 >= mapping->bytes - at) {
        return;
    }
    const uint8_t *data = mapping->data + at;
    __builtin_prefetch(data + bytes - 1);
    for (uint64_t line = 0; line < bytes && line < PREFETCH_BYTES; line += SHMQ_CACHE_LINE_BYTES) {
        __builtin_prefetch(data + line);
    }
}

/* How many of the buffered units, from the next one on, have none of the tags. */
static uint32_t run_unwanted(const struct shmq_reader *reader, const struct shmq_cursor *cursor)
{
    uint32_t at = cursor->unit_at;
    if (shmq_cursor_retries(cursor)) {
        return 0;
    }
    while (reader->tag_count && at < cursor->unit_count && !hash_wanted(reader, cursor->units[at].tag_hash)) {
        at++;
    }
    return at - cursor->unit_at;
}

static bool wanted(const struct shmq_reader *reader, const struct shmq_view *view)
{
    if (reader->tag_count && !tag_wanted(reader, view)) {
        return false;
    }
    return !reader->filter ||
           shmq_filter_run(reader->filter, view->properties, view->properties_bytes) == SHMQ_TRUE;
}

/* One buffered unit: SHMQ_EMPTY when it was filtered out, with those behind it that its units already exclude. */
static enum shmq_status cursor_deliver(struct shmq_reader *reader, struct shmq_cursor *cursor,
                                       struct shmq_delivery *out)
{
    const struct shmq_unit *unit = &cursor->units[cursor->unit_at];
    uint64_t offset = cursor->next;
    uint32_t unwanted = run_unwanted(reader, cursor);
    if (unwanted) {
        cursor->unit_at += unwanted;
        cursor->next += unwanted;
        shmq_cursor_skip(cursor, offset, unwanted);
        return SHMQ_EMPTY;
    }
    struct shmq_mapping *mapping = mapping_of(reader, unit->log_position);
    if (!mapping) {
        int reason = errno;
        uint64_t first = shmq_queue_first(reader->store, cursor->queue);
        if (offset < first && shmq_queue_lives(reader->store, cursor->queue)) {
            shmq_cursor_jump(reader, cursor, first);
            return SHMQ_EMPTY;
        }
        if (!shmq_unit_is_stored(reader->store, unit)) {
            return cursor_doubt(reader, cursor, unit, SHMQ_MISMATCH, out);
        }
        errno = reason;
        return SHMQ_SYSTEM;
    }
    record_prefetch(cursor, mapping);
    shmq_mapping_populate_read(mapping, unit->log_position, unit->record_bytes);
    enum shmq_match match = shmq_unit_match(mapping, unit, offset, &cursor->name, reader->verify, &out->view);
    if (match != SHMQ_MATCH) {
        return cursor_doubt(reader, cursor, unit, match, out);
    }
    out->queue = cursor->queue;
    out->queue_offset = offset;
    out->log_position = unit->log_position;
    out->record_bytes = unit->record_bytes;
    cursor->unit_at++;
    cursor->next++;
    if (!shmq_cursor_retries(cursor) && !wanted(reader, &out->view)) {
        shmq_cursor_skip(cursor, offset, 1);
        return SHMQ_EMPTY;
    }
    shmq_cursor_show(reader, cursor);
    if (shmq_cursor_retries(cursor)) {
        shmq_view_show_origin(&out->view);
        out->view.queue_id = cursor->queue_id;
    }
    out->mapping = mapping;
    out->cursor = reader->turn;
    out->serial = cursor->serial;
    return SHMQ_OK;
}

/* One buffer's worth from each cursor, then the next: none starves behind a busy queue, or behind a broken one. True
 * when the buffer was used up, so that this cursor may have more. */
static bool turn_end(struct shmq_reader *reader, struct shmq_cursor *cursor)
{
    bool used_up = cursor->unit_count && cursor->unit_at >= cursor->unit_count;
    if (cursor->unsaved) {
        shmq_cursor_save(reader, cursor);
    }
    if (used_up) {
        cursor->unit_at = cursor->unit_count = 0;
    }
    reader->turn++;
    return used_up;
}

/* What the cursor whose turn it is has: SHMQ_EMPTY when its turn is over, SHMQ_GONE to look at it again. */
static enum shmq_status cursor_step(struct shmq_reader *reader, struct shmq_cursor *cursor, struct shmq_delivery *out)
{
    if (!cursor->live || cursor->paused) {
        return SHMQ_EMPTY;
    }
    if (cursor->unit_at < cursor->unit_count) {
        enum shmq_status status = cursor_deliver(reader, cursor, out);
        if (status == SHMQ_WOULD_BLOCK) {
            return SHMQ_EMPTY;
        }
        return status == SHMQ_EMPTY ? SHMQ_GONE : status;
    }
    if (cursor->unit_count) {
        return SHMQ_EMPTY; /* its buffer is used up */
    }
    enum shmq_status status = cursor_fill(reader, cursor, out);
    if (status == SHMQ_WOULD_BLOCK) {
        return SHMQ_EMPTY;
    }
    return status == SHMQ_OK ? SHMQ_GONE : status;
}

/* A file that retention has deleted keeps its blocks on the disk for as long as a process maps it. */
static void mapping_drop(struct shmq_reader *reader)
{
    struct shmq_mapping *mapping = reader->mapping;
    uint64_t begin = atomic_load_explicit(&reader->store->log->begin, memory_order_relaxed);
    if (mapping && mapping->base + mapping->bytes <= begin) {
        shmq_mapping_release(mapping);
        reader->mapping = NULL;
    }
}

enum shmq_status shmq_reader_next(struct shmq_reader *reader, struct shmq_delivery *out)
{
    uint32_t empty = 0;
    for (uint32_t steps = 0; empty < reader->cursor_count; steps++) {
        if (steps == STEPS_MAX) {
            return SHMQ_WOULD_BLOCK;
        }
        if (reader->turn >= reader->cursor_count) {
            reader->turn = 0;
        }
        struct shmq_cursor *cursor = reader->cursors[reader->turn];
        enum shmq_status status = cursor_step(reader, cursor, out);
        if (status == SHMQ_OK) {
            return status;
        }
        if (cursor->missed) {
            *out = (struct shmq_delivery){.queue = cursor->queue, .queue_offset = cursor->next - cursor->missed,
                                          .log_position = cursor->missed};
            cursor->missed = 0;
            return SHMQ_GONE;
        }
        if (status == SHMQ_GONE) {
            continue;
        }
        empty = turn_end(reader, cursor) ? 0 : empty + 1;
        if (status != SHMQ_EMPTY) {
            return status;
        }
    }
    mapping_drop(reader);
    return SHMQ_EMPTY;
}

/* ---- search ---------------------------------------------------------------------------------------- */
/* Store time of one record. SHMQ_EMPTY: it is damaged, or its unit is. */
static enum shmq_status store_ms_of(struct shmq_store *store, uint32_t queue, uint64_t offset, uint64_t *store_ms)
{
    uint8_t raw[SHMQ_UNIT_BYTES];
    struct shmq_unit unit;
    struct shmq_view view;
    struct shmq_queue_name name;
    if (!shmq_units_stored(store, queue, offset, 1, raw)) {
        return SHMQ_EMPTY;
    }
    shmq_unit_unpack(raw, &unit);
    if (!shmq_unit_is_stored(store, &unit)) {
        return offset < shmq_queue_first(store, queue) ? SHMQ_GONE : SHMQ_EMPTY;
    }
    struct shmq_mapping *mapping = shmq_mapping_get(store, unit.log_position);
    if (!mapping) {
        return errno == ENOENT ? SHMQ_GONE : SHMQ_SYSTEM;
    }
    shmq_queue_name(store, queue, &name);
    if (shmq_unit_match(mapping, &unit, offset, &name, !store->head->trusts_reads, &view) != SHMQ_MATCH) {
        return SHMQ_EMPTY;
    }
    *store_ms = view.store_ms;
    return SHMQ_OK;
}

enum shmq_status shmq_reader_search_time(struct shmq_store *store, uint32_t queue, uint64_t store_ms, uint64_t *offset)
{
    const struct shmq_queue *entry = shmq_queue_entry(store, queue);
    if (!entry) {
        return SHMQ_NO_QUEUE;
    }
    uint64_t high = atomic_load_explicit(&entry->offset_max, memory_order_acquire);
    uint64_t low = atomic_load_explicit(&entry->offset_min, memory_order_acquire);
    while (low < high) {
        uint64_t middle = low + (high - low) / 2, at = middle, found_ms = 0;
        enum shmq_status status = SHMQ_EMPTY;
        while (at < high && at - middle < SEARCH_STEPS_MAX &&
               (status = store_ms_of(store, queue, at, &found_ms)) == SHMQ_EMPTY) {
            at++; /* what is damaged has no time; the next whole one decides */
        }
        if (status != SHMQ_OK && (status != SHMQ_EMPTY || at < high)) {
            return status == SHMQ_EMPTY ? SHMQ_CORRUPT : status;
        }
        if (status == SHMQ_EMPTY || found_ms >= store_ms) {
            high = middle;
        } else {
            low = at + 1;
        }
    }
    *offset = low;
    return shmq_queue_lives(store, queue) ? SHMQ_OK : SHMQ_NO_QUEUE;
}
