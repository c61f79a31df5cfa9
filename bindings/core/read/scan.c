/* The walk over the log: is what lies at a position a whole record, and the units of many records at once.
 *
 * Recovery, repair, the scrubber and `shmq store verify` read the log with it. It goes on as long as all is as it should
 * be, and stops in front of the first thing that is not; what that means is decided by its caller, in Python, record by
 * record.
 *
 *   rows     one for each record that belongs to a queue, in the order of the log: its unit and its store time
 *   runs     rows of one queue whose queue offsets follow each other: what a caller writes to a file with one call
 *   buckets  open addressing by (topic, queue id): the latest run of a queue
 *   watched  records that a caller wants to see one by one: of topics it names, and everything of a transaction
 *
 * Invariants: (1) a record is whole only if every length, both CRCs and the position stored in it hold; (2) the runs of
 * one queue are in the order of the log; (3) nothing behind `end` or behind the part is read.
 */
#include <stdlib.h>

#include "core/bytes.h"
#include "core/files/index.h"
#include "core/internal.h"
#include "core/read/scan.h"

enum shmq_found shmq_record_find(const struct shmq_log_part *part, uint64_t position, uint64_t end,
                                 struct shmq_view *view)
{
    const uint64_t at = position - part->base, room = part->bytes - at;
    const uint8_t *data = part->data + at;
    const enum shmq_status status = shmq_record_decode(data, end - position < room ? end - position : room, view);
    if (status == SHMQ_EMPTY) {
        const bool is_blank = room >= SHMQ_RECORD_BLANK_BYTES &&
                              shmq_load32(data + sizeof(uint32_t)) == SHMQ_RECORD_MAGIC_BLANK;
        return is_blank ? SHMQ_FOUND_BLANK : SHMQ_FOUND_ZERO;
    }
    if (status != SHMQ_OK) {
        return SHMQ_FOUND_BAD_LENGTHS;
    }
    if (view->log_position != position) {
        return SHMQ_FOUND_BAD_POSITION;
    }
    return shmq_record_verify(data, view) == SHMQ_OK ? SHMQ_FOUND_RECORD : SHMQ_FOUND_BAD_CRC;
}

const char *shmq_found_reason(enum shmq_found found)
{
    switch (found) {
    case SHMQ_FOUND_BAD_LENGTHS:
        return "the lengths of the record contradict each other";
    case SHMQ_FOUND_BAD_POSITION:
        return "the record names another position";
    case SHMQ_FOUND_BAD_CRC:
        return "a CRC does not hold";
    case SHMQ_FOUND_BAD_END:
        return "the properties end with a zero byte";
    default:
        return NULL;
    }
}

bool shmq_scan_open(struct shmq_scan *scan)
{
    const size_t rows = scan->gathers ? scan->record_max : 0;
    scan->found = SHMQ_FOUND_RECORD;
    scan->records = scan->row_count = scan->run_count = scan->watched_count = 0;
    scan->record_bytes = scan->store_ms = 0;
    scan->latest = NULL;
    scan->keys = NULL;
    scan->key_count = scan->key_room = 0;
    scan->lacks_memory = false;
    scan->bucket_mask = 15;
    while (scan->bucket_mask < 2 * rows) {
        scan->bucket_mask = 2 * scan->bucket_mask + 1;
    }
    /* Pages that a walk over few queues never touches cost nothing. */
    scan->rows = malloc(rows * sizeof *scan->rows + 1);
    scan->runs = malloc(rows * sizeof *scan->runs + 1);
    scan->watched = malloc(rows * sizeof *scan->watched + 1);
    scan->buckets = calloc((size_t)scan->bucket_mask + 1, sizeof *scan->buckets);
    if (scan->rows != NULL && scan->runs != NULL && scan->watched != NULL && scan->buckets != NULL) {
        return true;
    }
    shmq_scan_close(scan);
    return false;
}

void shmq_scan_close(struct shmq_scan *scan)
{
    free(scan->rows);
    free(scan->runs);
    free(scan->watched);
    free(scan->buckets);
    free(scan->keys);
    scan->keys = NULL;
    scan->rows = NULL;
    scan->runs = scan->latest = NULL;
    scan->watched = NULL;
    scan->buckets = NULL;
}

static inline bool is_of(const struct shmq_scan_run *run, const struct shmq_view *view)
{
    return run->queue_id == view->queue_id && run->topic_bytes == view->topic_bytes &&
           memcmp(run->topic, view->topic, view->topic_bytes) == 0;
}

static uint32_t queue_hash(const struct shmq_view *view)
{
    uint64_t hash = view->queue_id, word;
    size_t at = 0;
    for (; at + sizeof word <= view->topic_bytes; at += sizeof word) {
        memcpy(&word, view->topic + at, sizeof word);
        hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
        hash ^= hash >> 32;
    }
    for (; at < view->topic_bytes; at++) {
        hash = (hash ^ (uint8_t)view->topic[at]) * UINT64_C(0x100000001B3);
    }
    return shmq_hash64(hash);
}

static bool is_named(const struct shmq_scan *scan, const struct shmq_view *view)
{
    for (uint32_t i = 0; i < scan->name_count; i++) {
        if (scan->names[i].bytes == view->topic_bytes &&
            memcmp(scan->names[i].text, view->topic, view->topic_bytes) == 0) {
            return true;
        }
    }
    return false;
}

/* The run that the record belongs to, if it goes on with it, else a new one. */
static struct shmq_scan_run *run_for(struct shmq_scan *scan, const struct shmq_view *view)
{
    struct shmq_scan_run *run = scan->latest;
    uint32_t *bucket = NULL;
    if (run == NULL || !is_of(run, view)) {
        uint32_t at = queue_hash(view) & scan->bucket_mask;
        for (run = NULL; scan->buckets[at] != 0; at = (at + 1) & scan->bucket_mask) {
            run = &scan->runs[scan->buckets[at] - 1];
            if (is_of(run, view)) {
                break;
            }
            run = NULL;
        }
        bucket = &scan->buckets[at];
    }
    if (run != NULL && run->queue_offset + run->count == view->queue_offset) {
        scan->latest = run;
        return run;
    }
    if (bucket == NULL) { /* the latest run does not go on: its bucket gets a new one */
        uint32_t at = queue_hash(view) & scan->bucket_mask;
        while (&scan->runs[scan->buckets[at] - 1] != run) {
            at = (at + 1) & scan->bucket_mask;
        }
        bucket = &scan->buckets[at];
    }
    const bool is_watched = run != NULL ? run->is_watched : is_named(scan, view);
    run = scan->latest = &scan->runs[scan->run_count++];
    *bucket = scan->run_count;
    *run = (struct shmq_scan_run){.topic = view->topic, .topic_bytes = view->topic_bytes, .queue_id = view->queue_id,
                                  .queue_offset = view->queue_offset, .is_watched = is_watched};
    return run;
}

static void gather(struct shmq_scan *scan, const struct shmq_view *view)
{
    bool is_watched = (view->sys_flag & SHMQ_SYS_FLAG_TRANSACTION) != 0;
    if (shmq_is_queued(view->sys_flag)) {
        size_t bytes;
        const char *tag = shmq_property_find(view->properties, view->properties_bytes, "TAGS", 4, &bytes);
        const struct shmq_unit unit = {view->log_position, view->record_bytes,
                                       tag != NULL && bytes != 0 ? shmq_tag_hash(tag, bytes) : 0};
        struct shmq_scan_run *run = run_for(scan, view);
        const uint32_t number = scan->row_count++;
        shmq_unit_pack(scan->rows[number].unit, &unit);
        scan->rows[number].next = 0;
        scan->rows[number].store_ms = view->store_ms;
        if (run->count == 0) {
            run->first = number;
        } else {
            scan->rows[run->last].next = number + 1;
        }
        run->last = number;
        run->count++;
        is_watched |= run->is_watched;
    } else if (!is_watched) {
        is_watched = is_named(scan, view);
    }
    if (is_watched) {
        scan->watched[scan->watched_count++] = (struct shmq_scan_place){view->log_position, view->record_bytes};
    }
}

/* False without memory. */
static bool gather_keys(struct shmq_scan *scan, const struct shmq_view *view)
{
    uint32_t few[8], *hashes = few;
    const uint32_t count = shmq_index_keys(view, few, sizeof few / sizeof *few);
    if (count == 0) {
        return true;
    }
    if (scan->key_room - scan->key_count < count) {
        const size_t room = 2 * scan->key_room + count + 1024;
        uint8_t *keys = realloc(scan->keys, room * SHMQ_INDEX_KEY_BYTES);
        if (keys == NULL) {
            return false;
        }
        scan->keys = keys;
        scan->key_room = room;
    }
    if (count > sizeof few / sizeof *few) {
        hashes = malloc(count * sizeof *hashes);
        if (hashes == NULL) {
            return false;
        }
        shmq_index_keys(view, hashes, count);
    }
    uint8_t *out = scan->keys + scan->key_count * SHMQ_INDEX_KEY_BYTES;
    for (uint32_t i = 0; i < count; i++) {
        out = shmq_store64(shmq_store32(out, hashes[i]), view->log_position);
    }
    scan->key_count += count;
    if (hashes != few) {
        free(hashes);
    }
    return true;
}

void shmq_scan_run(struct shmq_scan *scan, const struct shmq_log_part *part)
{
    struct shmq_view view;
    const uint64_t part_end = part->base + part->bytes;
    scan->found = SHMQ_FOUND_RECORD;
    while (scan->records < scan->record_max && scan->position < scan->end && scan->position < part_end) {
        scan->found = shmq_record_find(part, scan->position, scan->end, &view);
        if (scan->found != SHMQ_FOUND_RECORD) {
            return;
        }
        if (view.properties_bytes != 0 && view.properties[view.properties_bytes - 1] == 0) {
            scan->found = SHMQ_FOUND_BAD_END;
            return;
        }
        if (scan->gathers_keys && !gather_keys(scan, &view)) {
            scan->lacks_memory = true;
            return;
        }
        if (scan->gathers) {
            gather(scan, &view);
        }
        scan->records++;
        scan->record_bytes += view.record_bytes;
        scan->store_ms = view.store_ms;
        scan->position += view.record_bytes;
    }
}
