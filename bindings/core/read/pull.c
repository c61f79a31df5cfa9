/* Pull: which records of one queue go out together, judged one by one and not yet copied.
 *
 *   units from `offset` on     not visible yet          the end
 *                              no tag that is wanted    passed over; not if no tag has such a hash
 *                              the filter refuses it    passed over
 *                              record deleted since     passed over, the answer may begin behind it
 *                              it and its record do     the end, or SHMQ_CORRUPT when it is the first looked at;
 *                              not match, or the CRC    only the end while the keeper is asked about it, or as long as
 *                              does not hold            it is not durable (damage.c)
 *
 * Readers never lock: see reader.c. Records that lie back to back in the log make one span.
 */
#include <errno.h>

#include "core/bytes.h"
#include "core/read/reader.h"

#define PREFETCH_AHEAD 4u

static bool wanted(const struct shmq_pull *pull, int64_t tag_hash)
{
    for (uint32_t i = 0; i < pull->tag_count; i++) {
        if (pull->tags[i] == tag_hash) {
            return true;
        }
    }
    /* A hash that no tag has hides nothing: the client compares the tag itself. */
    return pull->tags == NULL || (pull->tag_count > 0 && !shmq_tag_hash_is_possible(tag_hash));
}

/* What is damaged or waits for the keeper ends the answer; it is judged when it is the first of one. */
static enum shmq_status judged(struct shmq_store *store, const struct shmq_pull *pull, const struct shmq_unit *unit,
                               enum shmq_match match)
{
    if (pull->next_offset > pull->offset ||
        shmq_damage_judge(store, pull->queue, pull->next_offset, unit, match) != SHMQ_CORRUPT) {
        return SHMQ_EMPTY;
    }
    return SHMQ_CORRUPT;
}

/* The next units, from memory or else from their file; 0 with *status when there are none to be had. */
static uint32_t units_next(struct shmq_store *store, struct shmq_pull *pull, uint32_t count, uint8_t *raw,
                           enum shmq_status *status)
{
    uint32_t got = shmq_units_stored(store, pull->queue, pull->next_offset, count, raw);
    if (got == 0 && pull->next_offset >= shmq_queue_first(store, pull->queue)) {
        pull->log_position = UINT64_MAX;
        *status = judged(store, pull, NULL, SHMQ_MISMATCH);
    } else if (got == 0) {
        *status = SHMQ_GONE; /* retention was faster than we */
    }
    return got < count ? got : count;
}

static struct shmq_span *span_last(struct shmq_pull *pull)
{
    return pull->span_count == 0 ? NULL : &pull->spans[pull->span_count - 1];
}

static void span_add(struct shmq_pull *pull, struct shmq_mapping *mapping, const struct shmq_unit *unit)
{
    const uint8_t *data = mapping->data + (unit->log_position - mapping->base);
    struct shmq_span *last = span_last(pull);
    pull->count++;
    pull->bytes += unit->record_bytes;
    if (last != NULL && last->data + last->bytes == data) {
        last->bytes += unit->record_bytes;
        return;
    }
    bool same = last != NULL && last->mapping == mapping;
    pull->spans[pull->span_count++] =
        (struct shmq_span){.data = data, .bytes = unit->record_bytes, .mapping = mapping, .holds = !same};
    if (!same) {
        shmq_mapping_hold(mapping);
    }
}

static void record_prefetch(const struct shmq_mapping *mapping, const uint8_t *raw, uint32_t at, uint32_t count)
{
    struct shmq_unit unit;
    if (at >= count) {
        return;
    }
    shmq_unit_unpack(raw + (size_t)at * SHMQ_UNIT_BYTES, &unit);
    if (unit.log_position - mapping->base < mapping->bytes) {
        __builtin_prefetch(mapping->data + (unit.log_position - mapping->base));
    }
}

/* Whether the queue's first record is deleted already: positions grow along a queue, so if it is not, a unit that points
 * below the log's begin is bad. */
static bool begins_below(struct shmq_store *store, uint32_t queue, uint64_t begin)
{
    uint8_t raw[SHMQ_UNIT_BYTES];
    struct shmq_unit unit;
    if (shmq_units_stored(store, queue, shmq_queue_first(store, queue), 1, raw) == 0) {
        return true;
    }
    shmq_unit_unpack(raw, &unit);
    return unit.log_position < begin;
}

/* Look at one unit. SHMQ_OK: taken or passed over; SHMQ_EMPTY: the answer ends before it. */
static enum shmq_status unit_take(struct shmq_store *store, struct shmq_pull *pull, const uint8_t *raw, uint32_t at,
                                  uint32_t count, uint64_t visible)
{
    struct shmq_unit unit;
    struct shmq_view view;
    shmq_unit_unpack(raw + (size_t)at * SHMQ_UNIT_BYTES, &unit);
    if (unit.log_position >= visible || unit.record_bytes > visible - unit.log_position) {
        return shmq_unit_is_stored(store, &unit) ? SHMQ_EMPTY : judged(store, pull, &unit, SHMQ_MISMATCH);
    }
    if (!wanted(pull, unit.tag_hash)) {
        return SHMQ_OK;
    }
    if (pull->count == pull->count_max || (pull->count > 0 && pull->bytes + unit.record_bytes > pull->bytes_max)) {
        return SHMQ_EMPTY;
    }
    pull->log_position = unit.log_position;
    struct shmq_mapping *mapping = shmq_mapping_get(store, unit.log_position);
    if (mapping == NULL) {
        uint64_t begin = atomic_load_explicit(&store->log->begin, memory_order_acquire);
        if (errno != ENOENT || unit.log_position >= begin) {
            return SHMQ_SYSTEM;
        }
        return begins_below(store, pull->queue, begin) ? SHMQ_OK : judged(store, pull, &unit, SHMQ_MISMATCH);
    }
    record_prefetch(mapping, raw, at + PREFETCH_AHEAD, count);
    shmq_mapping_populate_read(mapping, unit.log_position, unit.record_bytes);
    enum shmq_match match = shmq_unit_match(mapping, &unit, pull->next_offset, &pull->name, pull->verify, &view);
    if (match != SHMQ_MATCH) {
        return judged(store, pull, &unit, match);
    }
    if (pull->filter && shmq_filter_run(pull->filter, view.properties, view.properties_bytes) != SHMQ_TRUE) {
        return SHMQ_OK;
    }
    span_add(pull, mapping, &unit);
    return SHMQ_OK;
}

static enum shmq_status plan(struct shmq_store *store, struct shmq_pull *pull, uint64_t end)
{
    uint8_t raw[SHMQ_READER_UNITS * SHMQ_UNIT_BYTES];
    uint64_t visible = shmq_queue_visible_end(store, pull->queue);
    uint32_t left = pull->scan_max;
    while (left > 0 && pull->next_offset < end) {
        enum shmq_status status = SHMQ_OK;
        uint64_t wanted_units = end - pull->next_offset < left ? end - pull->next_offset : left;
        uint32_t count = wanted_units < SHMQ_READER_UNITS ? (uint32_t)wanted_units : SHMQ_READER_UNITS;
        count = units_next(store, pull, count, raw, &status);
        for (uint32_t at = 0; at < count; at++) {
            status = unit_take(store, pull, raw, at, count, visible);
            if (status != SHMQ_OK) {
                return status;
            }
            pull->next_offset++;
        }
        if (count == 0) {
            return status;
        }
        left -= count;
    }
    return SHMQ_EMPTY;
}

enum shmq_status shmq_pull_plan(struct shmq_store *store, struct shmq_pull *pull)
{
    pull->next_offset = pull->offset;
    pull->count = pull->span_count = 0;
    pull->bytes = 0;
    pull->count_max = pull->count_max < SHMQ_PULL_MAX ? pull->count_max : SHMQ_PULL_MAX;
    if (!shmq_queue_is_number(store, pull->queue)) {
        return SHMQ_NO_QUEUE;
    }
    shmq_queue_name(store, pull->queue, &pull->name);
    const struct shmq_queue *entry = shmq_queue_place(store, pull->queue);
    uint64_t end = atomic_load_explicit(&entry->offset_max, memory_order_acquire);
    uint64_t first = shmq_queue_first(store, pull->queue);
    if (!shmq_queue_lives(store, pull->queue)) {
        return SHMQ_OK; /* its topic was deleted: nothing is there, and nothing will come */
    }
    if (pull->next_offset < first) {
        pull->next_offset = first;
        return SHMQ_OK;
    }
    enum shmq_status status = plan(store, pull, end);
    if (status == SHMQ_GONE) {
        first = shmq_queue_first(store, pull->queue);
        first = shmq_queue_lives(store, pull->queue) ? first : 0;
        pull->next_offset = pull->count == 0 && first > pull->next_offset ? first : pull->next_offset;
    }
    /* A fault behind others is reported when it is the first. */
    return pull->next_offset > pull->offset || status == SHMQ_EMPTY || status == SHMQ_GONE ? SHMQ_OK : status;
}

/* A stock broker's records have no CRC of their own, and its clients would take it for a property of the sender's. */
static uint64_t copy_trimmed(const struct shmq_span *span, uint8_t *out)
{
    const uint8_t *from = span->data;
    uint64_t copied = 0, left = span->bytes;
    while (left > 0) {
        uint32_t bytes = shmq_load32(from); /* a record is longer than that */
        bytes = bytes < sizeof bytes || bytes > left ? (uint32_t)left : bytes; /* scribbled on since it was judged */
        memcpy(out + copied, from, bytes);
        copied += shmq_record_trim(out + copied, bytes);
        from += bytes;
        left -= bytes;
    }
    return copied;
}

uint64_t shmq_pull_copy(const struct shmq_pull *pull, uint8_t *out)
{
    uint64_t copied = 0;
    for (uint32_t i = 0; i < pull->span_count; i++) {
        const struct shmq_span *span = &pull->spans[i];
        if (pull->trimmed) {
            copied += copy_trimmed(span, out + copied);
        } else {
            memcpy(out + copied, span->data, span->bytes);
            copied += span->bytes;
        }
    }
    return copied;
}

void shmq_pull_release(struct shmq_pull *pull)
{
    for (uint32_t i = 0; i < pull->span_count; i++) {
        if (pull->spans[i].holds) {
            shmq_mapping_release(pull->spans[i].mapping);
        }
    }
    pull->span_count = 0;
}
