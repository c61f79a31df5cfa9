/* Append records of different queues together: all of them are in the log, or none.
 *
 *   encode all, back to back, into a private buffer                                     no lock
 *   lock, with room and a frame for every queue (room.c) · fence · commit (commit.c) · unlock
 *
 * (1) The intent names every queue, so the next writer after a death raises what the victim did not.
 * (2) The records lie back to back in one file. A power cut that keeps a part of them keeps the first ones.
 * (3) The fence is a log position. What a caller does on account of an older record, it does only while that lies at or
 *     above the fence; both are looked at under the lock. So one who raises the fence knows afterwards that nothing
 *     more is done for the records below it, without asking its other writers.
 *
 * A transaction ends by one such append: the real message and the op record that settles its half, so a kill leaves both
 * or neither. RocketMQ writes one after the other. Who may still end a transaction is decided by the fence: the broker
 * raises it over old halves, reads the op records once more, and is alone with what is left. A table of open transactions
 * in shared memory would have needed an owner, a size and a repair of its own.
 */
#include <stdlib.h>

#include "core/log/log.h"

static bool is_fenced(struct shmq_store *store, uint64_t because_of)
{
    return because_of < atomic_load_explicit(&store->log->fence, memory_order_relaxed);
}

/* What the commit needs of each entry, side by side as it takes them. */
struct together {
    uint32_t queues[SHMQ_TOGETHER_MAX];
    int64_t tag_hashes[SHMQ_TOGETHER_MAX];
    struct shmq_patch patches[SHMQ_TOGETHER_MAX];
    uint32_t sizes[SHMQ_TOGETHER_MAX];
    uint32_t bytes;
};

/* Judge every record and add their sizes up. */
static enum shmq_status measure(struct shmq_store *store, const struct shmq_entry *entries, uint32_t count,
                                struct together *all)
{
    if (count == 0 || count > SHMQ_TOGETHER_MAX) {
        return SHMQ_BAD_ARGUMENT;
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct shmq_entry *entry = &entries[i];
        enum shmq_status status = shmq_writable_check(store, entry->queue);
        if (status != SHMQ_OK) {
            return status;
        }
        for (uint32_t k = 0; k < i; k++) {
            if (all->queues[k] == entry->queue) {
                return SHMQ_BAD_ARGUMENT;
            }
        }
        all->sizes[i] = shmq_append_bytes(&entry->spec);
        if (all->sizes[i] == 0) {
            return SHMQ_TOO_LARGE;
        }
        if (!shmq_is_queued(entry->spec.sys_flag)) {
            return SHMQ_BAD_ARGUMENT;
        }
        all->queues[i] = entry->queue;
        all->tag_hashes[i] = entry->tag_hash;
        all->bytes += all->sizes[i]; /* at most SHMQ_TOGETHER_MAX records: far from 32 bits */
    }
    return SHMQ_OK;
}

enum shmq_status shmq_append_together(struct shmq_store *store, const struct shmq_entry *entries, uint32_t count,
                                      uint64_t because_of, uint64_t deadline_ns, struct shmq_appended *out)
{
    struct together all = {.bytes = 0};
    enum shmq_status status = measure(store, entries, count, &all);
    if (status != SHMQ_OK) {
        return status;
    }
    if (is_fenced(store, because_of)) {
        return SHMQ_FENCED; /* it never falls: what is below it now stays there */
    }
    uint8_t *data = all.bytes <= SHMQ_BATCH_BYTES_MAX ? store->scratch : malloc(all.bytes + SHMQ_RECORD_BLANK_BYTES);
    if (data == NULL) {
        return SHMQ_SYSTEM;
    }
    struct shmq_commit commit = {.queues = all.queues,
                                 .queue_count = count,
                                 .count = 1,
                                 .units = 1,
                                 .bytes = all.bytes,
                                 .data = data,
                                 .patches = all.patches,
                                 .tag_hashes = all.tag_hashes,
                                 .now_ms = shmq_now_ms_cached(store)};
    for (uint32_t i = 0, at = 0; i < count; at += all.sizes[i], i++) {
        shmq_record_lay(data + at, &entries[i].spec, all.sizes[i], commit.now_ms, &all.patches[i]);
    }
    status = shmq_room_enter(store, &commit, deadline_ns);
    if (status == SHMQ_OK) {
        status = is_fenced(store, because_of) ? SHMQ_FENCED : shmq_commit(store, &commit, out);
        shmq_unlock(store);
        status = status != SHMQ_OK ? status : shmq_receipt(store);
    }
    if (data != store->scratch) {
        free(data);
    }
    return status;
}

enum shmq_status shmq_fence_raise(struct shmq_store *store, uint64_t log_position, uint64_t deadline_ns)
{
    enum shmq_status status = shmq_lock(store, deadline_ns);
    if (status != SHMQ_OK) {
        return status;
    }
    if (atomic_load_explicit(&store->log->fence, memory_order_relaxed) < log_position) {
        atomic_store_explicit(&store->log->fence, log_position, memory_order_release);
    }
    SHMQ_POINT("fence.raised");
    shmq_unlock(store);
    return SHMQ_OK;
}
