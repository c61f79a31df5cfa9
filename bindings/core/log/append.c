/* Append: one record, or a batch, to one queue.
 *
 *   encode and CRC into a private buffer                                   no lock
 *   lock, with room for it (room.c) · commit (commit.c)
 *   unlock · wake (wake.c, by the caller)                                  no lock
 *
 * The body is read once: the copy into the private buffer, the body's CRC and the record's CRC come from that one pass
 * (record.c). The deadline 0 never blocks, so that a caller from Python keeps the GIL until it has to wait.
 *
 * Store times (clock.c) have millisecond resolution and never decrease along the log.
 */
#include <stdlib.h>

#include "core/log/commit.h"

/* With many queues in use every word of a queue is a cache miss; asked for before the record is encoded, they arrive
 * while it is. The hint may be stale: it is only an address to look at. */
static void queue_prefetch(const struct shmq_store *store, uint32_t index)
{
    __builtin_prefetch(&store->queues[index], 1);
    __builtin_prefetch((const void *)&store->waiters[index], 0);
}

static void unit_prefetch(const struct shmq_store *store, uint32_t index)
{
    uint32_t frame = atomic_load_explicit(&store->queues[index].frame_last, memory_order_relaxed);
    uint64_t next = atomic_load_explicit(&store->queues[index].offset_max, memory_order_relaxed);
    if (frame < store->sizes.frame_max) {
        __builtin_prefetch(&store->frames[frame], 0);
        __builtin_prefetch(shmq_unit_place(store, frame, next), 1);
    }
}

enum shmq_status shmq_append(struct shmq_store *store, uint32_t queue, const struct shmq_spec *spec, int64_t tag_hash,
                             uint64_t deadline_ns, struct shmq_appended *out)
{
    const uint32_t index = queue & store->queue_mask;
    if (!store->writable || index >= store->sizes.queue_max) {
        return shmq_writable_check(store, queue); /* the rest is judged under the lock */
    }
    uint32_t bytes = shmq_append_bytes(spec);
    if (bytes == 0) {
        return SHMQ_TOO_LARGE;
    }
    if (bytes > SHMQ_INLINE_BYTES_MAX) {
        return shmq_append_long(store, queue, spec, tag_hash, deadline_ns, &shmq_claim_steps_plain, store, out);
    }
    queue_prefetch(store, index);
    struct shmq_patch patch;
    struct shmq_commit commit = {.queues = &queue,
                                 .queue_count = 1,
                                 .count = 1,
                                 .units = shmq_is_queued(spec->sys_flag),
                                 .bytes = bytes,
                                 .data = store->scratch,
                                 .patches = &patch,
                                 .tag_hashes = &tag_hash,
                                 .now_ms = shmq_now_ms_cached(store)};
    shmq_record_lay(store->scratch, spec, bytes, commit.now_ms, &patch);
    unit_prefetch(store, index);
    enum shmq_status status = shmq_room_enter(store, &commit, deadline_ns);
    if (status == SHMQ_OK) {
        status = shmq_commit_inline(store, commit, 1, 1, false, out);
        shmq_unlock(store);
        status = status != SHMQ_OK ? status : shmq_receipt(store);
    }
    return status;
}

/* Judge every record and add their sizes up. */
static enum shmq_status batch_measure(const struct shmq_store *store, const struct shmq_spec *specs, uint32_t count,
                                      uint32_t *bytes)
{
    const uint32_t bytes_max = shmq_batch_bytes_max(store);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t record = shmq_append_bytes(&specs[i]);
        if (record == 0 || record > bytes_max - *bytes) {
            return SHMQ_TOO_LARGE;
        }
        if (!shmq_is_queued(specs[i].sys_flag)) {
            return SHMQ_BAD_ARGUMENT;
        }
        *bytes += record;
    }
    return count != 0 ? SHMQ_OK : SHMQ_BAD_ARGUMENT;
}

/* One commit however large it is, so that a death, a full log and a late keeper leave all of a batch or nothing. The copy
 * of 4 MiB takes a millisecond of the lock; a claim would hold others off for as long, because the log end cannot pass it. */
enum shmq_status shmq_append_batch(struct shmq_store *store, uint32_t queue, const struct shmq_spec *specs,
                                   const int64_t *tag_hashes, uint32_t count, uint64_t deadline_ns,
                                   struct shmq_appended *first)
{
    struct shmq_patch few[SHMQ_BATCH_MAX];
    uint32_t bytes = 0;
    enum shmq_status status = shmq_writable_check(store, queue);
    status = status != SHMQ_OK ? status : batch_measure(store, specs, count, &bytes);
    if (status != SHMQ_OK) {
        return status;
    }
    const bool is_large = count > SHMQ_BATCH_MAX || bytes > SHMQ_BATCH_BYTES_MAX;
    struct shmq_patch *patches = is_large ? malloc(sizeof *patches * count) : few;
    uint8_t *data = is_large ? malloc(bytes + SHMQ_RECORD_BLANK_BYTES) : store->scratch;
    if (patches != NULL && data != NULL) {
        struct shmq_commit commit = {.queues = &queue,
                                     .queue_count = 1,
                                     .count = count,
                                     .units = count,
                                     .bytes = bytes,
                                     .data = data,
                                     .patches = patches,
                                     .tag_hashes = tag_hashes,
                                     .now_ms = shmq_now_ms_cached(store)};
        for (uint32_t i = 0, at = 0; i < count; at += patches[i].record_bytes, i++) {
            shmq_record_lay(data + at, &specs[i], shmq_append_bytes(&specs[i]), commit.now_ms, &patches[i]);
        }
        status = shmq_room_enter(store, &commit, deadline_ns);
        if (status == SHMQ_OK) {
            status = shmq_commit(store, &commit, first);
            shmq_unlock(store);
            status = status != SHMQ_OK ? status : shmq_receipt(store);
        }
    } else {
        status = SHMQ_SYSTEM;
    }
    if (is_large) {
        free(patches);
        free(data);
    }
    return status;
}
