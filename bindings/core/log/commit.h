/* The commit: the one way records become part of the log. Append lock held, room found (room.c).
 *
 *   check the place · intent
 *   copy · patch queueOffset, physicalOffset, storeTimestamp and CRC of each record · write its unit
 *                                a replica's record comes with all four: one record, patches NULL
 *   zero 8 bytes behind          a scan after a power cut stops at a size of zero
 *   end = position + bytes       the commit point of all records, one release store
 *   offset_max of each queue     consumers see it from here; of several queues one may be raised before the other
 *   clear the intent
 *
 * Killed before the commit store: nothing happened, the bytes behind the end are written over. Killed after it: the next
 * lock holder raises offset_max from the intent (repair.c). There is no third case; tests/crash kills an appender at every
 * instruction.
 *
 * Before anything is stored, and again before the end moves, the numbers are checked against each other. These checks
 * stay in release builds: a caller's mistake or a scribbled word is answered with SHMQ_CORRUPT, not written to the file.
 *
 * It is one function in a header because it is compiled twice: into shmq_append for one record of one queue, which nearly
 * every commit is, and in commit.c for any number. Knowing the numbers saves a tenth of an append's instructions. The
 * commit is passed by value for the same reason: a store through a pointer into the log could otherwise be to one of its
 * fields, and each would be loaded again.
 */
#ifndef SHMQ_COMMIT_H
#define SHMQ_COMMIT_H

#include <string.h>

#include "core/log/log.h"

static inline uint64_t shmq_store_time(struct shmq_store *store, uint64_t now_ms)
{
    if (now_ms > store->log->store_ms_last) {
        store->log->store_ms_last = now_ms;
    }
    return store->log->store_ms_last;
}

/* What the unit says: the hash as it is, or the due time of a delay. */
static inline int64_t shmq_unit_code(int64_t tag_hash, uint64_t store_ms)
{
    return tag_hash < SHMQ_UNIT_DELAY_BASE + SHMQ_UNIT_DELAY_MS_MAX
               ? (int64_t)(store_ms + ((uint64_t)tag_hash - (uint64_t)SHMQ_UNIT_DELAY_BASE))
               : tag_hash;
}

/* A record that belongs to no queue may come without the number of one: then there is no entry to look at. */
static inline __attribute__((always_inline)) uint64_t
shmq_queue_next(const struct shmq_store *store, const struct shmq_commit commit, const uint32_t queue)
{
    return commit.units != 0
               ? atomic_load_explicit(&shmq_queue_place(store, queue)->offset_max, memory_order_relaxed)
               : 0;
}

static inline __attribute__((always_inline)) void
shmq_intend(struct shmq_store *store, const struct shmq_commit commit, const uint32_t queue_count)
{
    struct shmq_intent *intent = shmq_intent_open(store);
    if (queue_count == 1) {
        const uint32_t queue = commit.queues[0];
        intent->queue = queue;
        intent->queue_offset = shmq_queue_next(store, commit, queue);
        intent->count = commit.units;
    } else {
        intent->count = queue_count;
        for (uint32_t q = 0; q < queue_count; q++) {
            const uint32_t queue = commit.queues[q];
            intent->each[q].queue = queue;
            intent->each[q].queue_offset = shmq_queue_next(store, commit, queue);
        }
    }
    intent->log_position = commit.log_position;
    intent->record_bytes = commit.bytes;
    shmq_intent_set(intent, queue_count == 1 ? SHMQ_INTENT_APPEND : SHMQ_INTENT_TOGETHER);
    SHMQ_POINT("append.intent");
}

static inline bool shmq_end_move_inline(struct shmq_log *log, const struct shmq_mapping *mapping, uint64_t end)
{
    const uint64_t at = end - mapping->base;
    if (end <= atomic_load_explicit(&log->end, memory_order_relaxed) ||
        at > mapping->bytes - SHMQ_RECORD_BLANK_BYTES) {
        return false; /* the end only rises, and leaves room for a BLANK in its file */
    }
    memset(mapping->data + at, 0, SHMQ_RECORD_BLANK_BYTES);
    SHMQ_POINT("append.copied");
    atomic_store_explicit(&log->end, end, memory_order_release);
    SHMQ_POINT("append.committed");
    return true;
}

static inline __attribute__((always_inline)) enum shmq_status
shmq_commit_inline(struct shmq_store *store, const struct shmq_commit commit, const uint32_t queue_count,
                   const uint32_t count, const bool is_finished, struct shmq_appended *out)
{
    struct shmq_log *log = store->log;
    const struct shmq_mapping *mapping = commit.mapping;
    const uint64_t position = commit.log_position, store_ms = shmq_store_time(store, commit.now_ms);
    if (position != atomic_load_explicit(&log->end, memory_order_relaxed)) {
        return SHMQ_CORRUPT; /* room was found somewhere else: the log would get a hole or lose a record */
    }
    uint8_t *records = mapping->data + (position - mapping->base);
    shmq_intend(store, commit, queue_count);
    if (commit.data != NULL) {
        /* Patched in place: a copy's wide loads would wait for the narrow stores of a patch just before it. */
        memcpy(records, commit.data, commit.bytes);
    }
    bool complete = true, described = is_finished && commit.described;
    uint32_t at = 0;
    const struct shmq_patch *patch = commit.patches;
    const int64_t *tag_hash = commit.tag_hashes;
    for (uint32_t q = 0; q < queue_count; q++) {
        const uint32_t queue = commit.queues[q];
        const uint64_t first = shmq_queue_next(store, commit, queue);
        out[q].queue_offset = first;
        out[q].log_position = position + at;
        out[q].store_ms = store_ms;
        for (uint32_t i = 0; i < count; i++, tag_hash++) {
            struct shmq_unit unit = {.log_position = position + at, .record_bytes = commit.bytes, .tag_hash = *tag_hash};
            if (!is_finished) {
                unit.record_bytes = patch->record_bytes;
                unit.tag_hash = shmq_unit_code(*tag_hash, store_ms);
                shmq_record_patch(records + at, patch, first + i, unit.log_position, store_ms);
                described |= patch->described;
                patch++;
            }
            at += unit.record_bytes;
            complete &= commit.units == 0 || shmq_unit_write(store, queue, first + i, &unit);
        }
        out[q].end = position + at;
    }
    if (described) {
        /* A reader that sees a record with properties published sees this. A writer killed before the commit has promised
         * too little, which only costs the index a look. */
        atomic_store_explicit(&log->described_end, position + at, memory_order_relaxed);
    }
    if (!complete || at != commit.bytes || !shmq_end_move_inline(log, mapping, position + at)) {
        shmq_intent_clear(store);
        return SHMQ_CORRUPT; /* a record without a frame for its unit, or not the records that were laid out */
    }
    for (uint32_t q = 0; q < queue_count; q++) {
        struct shmq_queue *queue = shmq_queue_place(store, commit.queues[q]);
        if (commit.units != 0) {
            atomic_store_explicit(&queue->offset_max, out[q].queue_offset + commit.units, memory_order_release);
        }
        SHMQ_POINT("append.published");
        if (commit.units != 0 || commit.queues[q] != SHMQ_NONE) {
            queue->bytes += out[q].end - out[q].log_position;
        }
    }
    log->deaths_in_a_row = 0;
    log->appended += (uint64_t)commit.units * queue_count;
    log->appended_bytes += at;
    shmq_intent_clear(store);
    return SHMQ_OK;
}

#endif
