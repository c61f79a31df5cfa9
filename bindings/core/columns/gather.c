/* Gather: from ConsumeQueue units to columns. Units choose, records are read only where a column or a condition needs
 * them, and readers never lock (see reader.c).
 *
 *   units of [next, end), 256 at a time    from memory, else from their file
 *     tag hash                             judged on the unit
 *     record                               decoded in the mapped file: topic, TAGS, store time, CRC on demand
 *     row                                  each wanted field copied once
 *
 * A file that retention unlinks meanwhile stays mapped, whole and unchanged, as long as this call looks at it. Nothing
 * in it is believed that does not name the position and the offset its unit named.
 */
#include <errno.h>
#include <string.h>

#include "core/columns/columns.h"

#define CHUNK_UNITS 256u
#define PREFETCH_AHEAD 6u
#define PREFETCH_NEAR_BYTES 128u
#define PREFETCH_BYTES 4608u

struct walk {
    struct shmq_store *store;
    struct shmq_gather *gather;
    struct shmq_columns *columns;
    struct shmq_mapping *mapping; /* held */
    struct shmq_queue_name name;
    bool reads_record;
};

/* ---- conditions ------------------------------------------------------------------------------------------ */
static bool hash_wanted(const struct shmq_gather *gather, int64_t hash)
{
    for (uint32_t i = 0; i < gather->tag_count; i++) {
        if (gather->tags[i].hash == hash) {
            return true;
        }
    }
    return gather->tag_count == 0 || !shmq_tag_hash_is_possible(hash);
}

static bool tag_wanted(const struct shmq_gather *gather, const struct shmq_view *view)
{
    size_t bytes = 0;
    const char *tag = NULL;
    if (gather->tag_count) {
        tag = shmq_property_find(view->properties, view->properties_bytes, "TAGS", 4, &bytes);
    }
    for (uint32_t i = 0; tag && i < gather->tag_count; i++) {
        if (gather->tags[i].bytes == bytes && !memcmp(gather->tags[i].text, tag, bytes)) {
            return true;
        }
    }
    return gather->tag_count == 0;
}

static bool time_wanted(const struct shmq_gather *gather, uint64_t store_ms)
{
    return store_ms >= gather->ms_begin && store_ms < gather->ms_end;
}

static bool has_room(const struct shmq_gather *gather, const struct shmq_columns *columns, uint32_t record_bytes)
{
    return columns->rows < gather->rows_max &&
           (gather->bytes == 0 || gather->bytes + record_bytes <= gather->bytes_max);
}

/* ---- records ----------------------------------------------------------------------------------------------- */
static struct shmq_mapping *mapping_of(struct walk *walk, uint64_t log_position)
{
    if (walk->mapping && log_position - walk->mapping->base < walk->mapping->bytes) {
        return walk->mapping;
    }
    struct shmq_mapping *mapping = shmq_mapping_get(walk->store, log_position);
    if (mapping) {
        if (walk->mapping) {
            shmq_mapping_release(walk->mapping);
        }
        walk->mapping = shmq_mapping_hold(mapping);
    }
    return mapping;
}

static enum shmq_status not_mapped(struct walk *walk, uint64_t log_position)
{
    int reason = errno;
    uint64_t begin = atomic_load_explicit(&walk->store->log->begin, memory_order_acquire);
    bool gone = log_position < begin || walk->gather->next < shmq_queue_first(walk->store, walk->gather->queue);
    errno = reason;
    return gone ? SHMQ_GONE : SHMQ_SYSTEM;
}

/* What is decoded (head and tail) goes into the nearest cache, the body, which is copied, into the second: the nearest
 * allows a core few misses at a time, and everything else waits for them. 1 KiB bodies: 220 to 175 ns a message. */
__attribute__((always_inline)) /* gcc drops a call that only prefetches before it would inline it */
static inline void record_prefetch(const struct shmq_mapping *mapping, const struct shmq_unit *unit)
{
    uint64_t at = unit->log_position - mapping->base, bytes = unit->record_bytes;
    if (at >= mapping->bytes || bytes - 1 >= mapping->bytes - at) {
        return;
    }
    const uint8_t *data = mapping->data + at;
    uint64_t line = 0;
    __builtin_prefetch(data + bytes - 1);
    if (bytes > PREFETCH_NEAR_BYTES) {
        __builtin_prefetch(data + bytes - 1 - SHMQ_CACHE_LINE_BYTES);
    }
    for (; line < bytes && line < PREFETCH_NEAR_BYTES; line += SHMQ_CACHE_LINE_BYTES) {
        __builtin_prefetch(data + line);
    }
    for (; line < bytes && line < PREFETCH_BYTES; line += SHMQ_CACHE_LINE_BYTES) {
        __builtin_prefetch(data + line, 0, 2);
    }
}

/* A job that gets damage may be run again, so it does not wait for the keeper here. */
static enum shmq_status damaged(const struct walk *walk, const struct shmq_unit *unit, enum shmq_match match)
{
    const struct shmq_gather *gather = walk->gather;
    if (!shmq_queue_lives(walk->store, gather->queue)) {
        return SHMQ_NO_TOPIC;
    }
    if (shmq_unit_is_stored(walk->store, unit) && !shmq_unit_is_durable(walk->store, unit)) {
        return SHMQ_WOULD_BLOCK;
    }
    (void)shmq_damage_report(walk->store, match == SHMQ_DAMAGED ? SHMQ_DAMAGE_RECORD : SHMQ_DAMAGE_UNIT, gather->queue,
                             gather->next, unit);
    return SHMQ_CORRUPT;
}

/* A record that fits its unit: wanted or not. SHMQ_EMPTY: not wanted. */
static enum shmq_status record_read(struct walk *walk, const struct shmq_unit *unit, struct shmq_view *view)
{
    struct shmq_gather *gather = walk->gather;
    gather->log_position = unit->log_position;
    struct shmq_mapping *mapping = mapping_of(walk, unit->log_position);
    if (!mapping) {
        return not_mapped(walk, unit->log_position);
    }
    shmq_mapping_populate_read(mapping, unit->log_position, unit->record_bytes);
    enum shmq_match match = shmq_unit_match(mapping, unit, gather->next, &walk->name, gather->verify, view);
    if (match != SHMQ_MATCH) {
        return damaged(walk, unit, match);
    }
    return tag_wanted(gather, view) && time_wanted(gather, view->store_ms) ? SHMQ_OK : SHMQ_EMPTY;
}

/* The first record of a batch is like the rest of it, as far as is known. */
static void batch_expect(const struct walk *walk, const struct shmq_unit *unit)
{
    const struct shmq_gather *gather = walk->gather;
    uint64_t left = gather->end - gather->next;
    uint64_t rows = left < gather->rows_max ? left : gather->rows_max;
    uint64_t bytes = rows * unit->record_bytes;
    shmq_columns_expect(walk->columns, rows, bytes < gather->bytes_max ? bytes : gather->bytes_max);
}

/* ---- units --------------------------------------------------------------------------------------------------- */
/* One unit. SHMQ_OK: done with it, whether taken or not; SHMQ_EMPTY: the batch ends before it. */
static enum shmq_status unit_take(struct walk *walk, const struct shmq_unit *unit)
{
    struct shmq_gather *gather = walk->gather;
    struct shmq_view view;
    if (!hash_wanted(gather, unit->tag_hash)) {
        return SHMQ_OK;
    }
    if (!has_room(gather, walk->columns, unit->record_bytes)) {
        return SHMQ_EMPTY;
    }
    if (walk->reads_record) {
        enum shmq_status status = record_read(walk, unit, &view);
        if (status != SHMQ_OK) {
            return status == SHMQ_EMPTY ? SHMQ_OK : status == SHMQ_WOULD_BLOCK ? SHMQ_EMPTY : status;
        }
    }
    if (walk->columns->rows == 0) {
        batch_expect(walk, unit);
    }
    gather->bytes += unit->record_bytes;
    return shmq_columns_add(walk->columns, unit, gather->queue_id, gather->next, walk->reads_record ? &view : NULL);
}

/* The next units that are visible, 0 with the reason when there are none. */
static uint32_t units_next(struct walk *walk, uint32_t wanted, struct shmq_unit *units, enum shmq_status *status)
{
    struct shmq_gather *gather = walk->gather;
    uint8_t raw[CHUNK_UNITS * SHMQ_UNIT_BYTES];
    uint64_t visible = shmq_queue_visible_end(walk->store, walk->gather->queue);
    uint32_t count = shmq_units_stored(walk->store, gather->queue, gather->next, wanted, raw);
    if (!count) {
        gather->log_position = UINT64_MAX;
        const uint64_t first = shmq_queue_first(walk->store, gather->queue);
        *status = gather->next < first ? SHMQ_GONE : SHMQ_CORRUPT;
        *status = shmq_queue_lives(walk->store, gather->queue) ? *status : SHMQ_NO_TOPIC;
    }
    count = count < wanted ? count : wanted;
    for (uint32_t i = 0; i < count; i++) {
        shmq_unit_unpack(raw + (size_t)i * SHMQ_UNIT_BYTES, &units[i]);
        if (units[i].log_position >= visible || units[i].record_bytes > visible - units[i].log_position) {
            gather->log_position = units[i].log_position;
            *status = shmq_unit_is_stored(walk->store, &units[i]) ? SHMQ_EMPTY : damaged(walk, &units[i], SHMQ_MISMATCH);
            return i;
        }
    }
    return count;
}

static enum shmq_status chunk_take(struct walk *walk, const struct shmq_unit *units, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t ahead = i + PREFETCH_AHEAD;
        if (walk->mapping && ahead < count && hash_wanted(walk->gather, units[ahead].tag_hash)) {
            record_prefetch(walk->mapping, &units[ahead]);
        }
        enum shmq_status status = unit_take(walk, &units[i]);
        if (status != SHMQ_OK) {
            return status;
        }
        walk->gather->next++;
    }
    return SHMQ_OK;
}

static enum shmq_status range_take(struct walk *walk)
{
    struct shmq_gather *gather = walk->gather;
    struct shmq_unit units[CHUNK_UNITS];
    uint32_t left = gather->scan_max;
    while (gather->next < gather->end && left > 0) {
        const struct shmq_queue *entry = shmq_queue_place(walk->store, gather->queue);
        uint64_t top = atomic_load_explicit(&entry->offset_max, memory_order_acquire);
        uint64_t first = shmq_queue_first(walk->store, gather->queue);
        if (!shmq_queue_lives(walk->store, gather->queue)) {
            return SHMQ_NO_TOPIC; /* it was deleted, perhaps made anew */
        }
        if (gather->next >= top) {
            return SHMQ_EMPTY;
        }
        if (gather->next < first) {
            return SHMQ_GONE;
        }
        uint64_t most = (gather->end < top ? gather->end : top) - gather->next;
        most = most < CHUNK_UNITS ? most : CHUNK_UNITS;
        enum shmq_status status = SHMQ_OK;
        uint32_t count = units_next(walk, most < left ? (uint32_t)most : left, units, &status);
        left -= count;
        uint64_t before = gather->next;
        enum shmq_status taken = chunk_take(walk, units, count);
        if (taken != SHMQ_OK || gather->next == before) {
            return taken != SHMQ_OK ? taken : status;
        }
    }
    return SHMQ_OK;
}

enum shmq_status shmq_gather(struct shmq_store *store, struct shmq_gather *gather, struct shmq_columns *columns)
{
    if (!shmq_queue_is_number(store, gather->queue)) {
        return SHMQ_NO_QUEUE;
    }
    uint64_t first = gather->next;
    struct walk walk = {
        .store = store,
        .gather = gather,
        .columns = columns,
        .reads_record = columns->needs_record || gather->tag_count || gather->verify_all || gather->ms_begin ||
                        gather->ms_end != UINT64_MAX,
    };
    gather->bytes = 0;
    shmq_queue_name(store, gather->queue, &walk.name);
    const struct shmq_slice *topic = &columns->topic;
    if (!shmq_queue_lives(store, gather->queue) || walk.name.topic_bytes != topic->bytes || memcmp(walk.name.topic, topic->data, topic->bytes) != 0) {
        return SHMQ_NO_TOPIC;
    }
    enum shmq_status status = range_take(&walk);
    if (walk.mapping) {
        shmq_mapping_release(walk.mapping);
    }
    /* The next batch, which begins there, reports what stopped this one. No memory leaves half a row. */
    bool half = status == SHMQ_SYSTEM && errno == ENOMEM;
    return gather->next > first && !half ? SHMQ_OK : status;
}

/* ---- records in memory --------------------------------------------------------------------------------------- */
/* Records that came over TCP are of the queue, the topic and the offsets that were asked for, in order. */
static bool in_range(const struct shmq_gather *gather, const struct shmq_columns *columns, const struct shmq_view *view)
{
    const struct shmq_slice *topic = &columns->topic;
    return view->queue_id == gather->queue_id && view->queue_offset >= gather->next &&
           view->queue_offset < gather->end && view->topic_bytes == topic->bytes &&
           !memcmp(view->topic, topic->data, topic->bytes);
}

enum shmq_status shmq_gather_bytes(const uint8_t *data, size_t bytes, struct shmq_gather *gather,
                                   struct shmq_columns *columns, size_t *consumed)
{
    gather->bytes = 0;
    *consumed = 0;
    while (*consumed < bytes) {
        struct shmq_view view;
        enum shmq_status status = shmq_record_decode(data + *consumed, bytes - *consumed, &view);
        if (status != SHMQ_OK) {
            return status == SHMQ_EMPTY ? SHMQ_OK : status; /* the BLANK at the end of a file */
        }
        gather->log_position = view.log_position;
        if (gather->end && !in_range(gather, columns, &view)) {
            return SHMQ_CORRUPT;
        }
        if (!has_room(gather, columns, view.record_bytes)) {
            return SHMQ_OK;
        }
        size_t tag_bytes;
        const char *tag = shmq_property_find(view.properties, view.properties_bytes, "TAGS", 4, &tag_bytes);
        struct shmq_unit unit = {.log_position = view.log_position,
                                 .record_bytes = view.record_bytes,
                                 .tag_hash = tag && tag_bytes ? shmq_tag_hash(tag, tag_bytes) : 0};
        if (tag_wanted(gather, &view) && time_wanted(gather, view.store_ms)) {
            if (gather->verify && shmq_record_check(data + *consumed, &view) != SHMQ_OK) {
                return SHMQ_CORRUPT;
            }
            gather->bytes += view.record_bytes;
            status = shmq_columns_add(columns, &unit, view.queue_id, view.queue_offset, &view);
            if (status != SHMQ_OK) {
                return status;
            }
        }
        *consumed += view.record_bytes;
        gather->next = view.queue_offset + 1;
    }
    return SHMQ_OK;
}

/* ---- how far a queue is visible --------------------------------------------------------------------------------- */
uint64_t shmq_queue_visible(struct shmq_store *store, uint32_t queue)
{
    uint64_t high = atomic_load_explicit(&shmq_queue_place(store, queue)->offset_max, memory_order_acquire);
    uint64_t low = shmq_queue_first(store, queue), visible = shmq_queue_visible_end(store, queue);
    if (!shmq_queue_lives(store, queue)) {
        return 0;
    }
    if (!shmq_queue_is_sync(store, queue)) {
        return high; /* a unit below offset_max names a record below the log end */
    }
    while (low < high) { /* positions grow along a queue */
        uint64_t middle = low + (high - low) / 2;
        uint8_t raw[SHMQ_UNIT_BYTES];
        struct shmq_unit unit;
        if (!shmq_units_stored(store, queue, middle, 1, raw)) {
            return low;
        }
        shmq_unit_unpack(raw, &unit);
        if ((unit.log_position < visible && unit.record_bytes <= visible - unit.log_position) ||
            !shmq_unit_is_stored(store, &unit)) { /* a bad one is for its reader to see */
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}
