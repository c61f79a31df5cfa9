/* Durability: fdatasync, the durable end, and those who wait for it.
 *
 * Whoever holds flush_lock may flush: the keeper in its loop, or a waiting client when the keeper's beat is stale. All
 * appends that arrived before the log end was read ride on one fdatasync (group commit). The first failure is final:
 * the kernel marks failed pages clean, so a second fdatasync would report success for bytes that are not on the disk.
 */
#include <string.h>

#include "core/internal.h"

#define KEEPER_PATIENCE_NS UINT64_C(500000000)
#define FLUSH_LOCK_NS UINT64_C(30000000000)
#define WAIT_SLICE_NS UINT64_C(50000000)

void shmq_raise_durable(struct shmq_store *store, uint64_t position)
{
    struct shmq_log *log = store->log;
    uint64_t seen = shmq_load_acquire(&log->durable_end);
    while (seen < position && !atomic_compare_exchange_weak_explicit(&log->durable_end, &seen, position,
                                                                     memory_order_acq_rel, memory_order_acquire)) {
    }
    atomic_fetch_add_explicit(&log->durable_sequence, 1, memory_order_acq_rel);
    shmq_futex_wake(&log->durable_sequence, INT32_MAX);
    if (store->head->flush_sync || atomic_load_explicit(&log->has_sync_topics, memory_order_acquire)) {
        shmq_wake_all(store);
    }
}

static enum shmq_status flush_locked(struct shmq_store *store, uint64_t target)
{
    /* Looked at under the lock: the failure of the holder before us may be a moment old, and the kernel, having
     * reported it once, would let our fdatasync succeed. */
    if (atomic_load_explicit(&store->log->read_only, memory_order_acquire) == SHMQ_READ_ONLY_FLUSH_FAILED) {
        return SHMQ_READ_ONLY;
    }
    uint64_t from = shmq_load_acquire(&store->log->durable_end);
    for (uint64_t at = from; at < target; at = (at / store->sizes.file_bytes + 1) * store->sizes.file_bytes) {
        struct shmq_mapping *mapping = shmq_mapping_get(store, at);
        if (mapping == NULL || store->io->sync_data(mapping->fd) != 0) {
            int reason = errno;
            shmq_set_read_only(store, SHMQ_READ_ONLY_FLUSH_FAILED);
            errno = reason;
            return SHMQ_SYSTEM;
        }
        SHMQ_POINT("flush.synced");
    }
    if (target > from) {
        shmq_raise_durable(store, target);
    }
    return SHMQ_OK;
}

enum shmq_status shmq_flush(struct shmq_store *store, uint64_t *durable_end)
{
    bool owner_died = false;
    if (!store->writable) {
        return SHMQ_READ_ONLY;
    }
    uint64_t deadline_ns = store->io->monotonic_ns() + FLUSH_LOCK_NS;
    int rc = shmq_robust_lock(store, &store->log->flush_lock, deadline_ns, &owner_died);
    if (rc != 0) {
        errno = rc;
        return rc == ETIMEDOUT ? SHMQ_TIMED_OUT : SHMQ_SYSTEM;
    }
    if (owner_died) {
        /* Nothing to repair: durable_end rises only after the sync. */
        pthread_mutex_consistent(&store->log->flush_lock);
    }
    enum shmq_status status = flush_locked(store, shmq_load_acquire(&store->log->end));
    int reason = errno;
    pthread_mutex_unlock(&store->log->flush_lock);
    if (durable_end != NULL) {
        *durable_end = shmq_load_acquire(&store->log->durable_end);
    }
    errno = reason;
    return status;
}

/* The keeper does not flush: do it ourselves unless it, or another client, is inside fdatasync right now. */
static enum shmq_status flush_as_leader(struct shmq_store *store)
{
    int rc = pthread_mutex_trylock(&store->log->flush_lock);
    if (rc == EBUSY) {
        return SHMQ_OK;
    }
    if (rc == EOWNERDEAD) {
        pthread_mutex_consistent(&store->log->flush_lock);
    } else if (rc != 0) {
        errno = rc;
        return SHMQ_SYSTEM;
    }
    enum shmq_status status = flush_locked(store, shmq_load_acquire(&store->log->end));
    pthread_mutex_unlock(&store->log->flush_lock);
    return status;
}

enum shmq_status shmq_wait_durable(struct shmq_store *store, uint64_t position, uint64_t deadline_ns)
{
    struct shmq_log *log = store->log;
    for (;;) {
        uint32_t sequence = atomic_load_explicit(&log->durable_sequence, memory_order_acquire);
        if (shmq_load_acquire(&log->durable_end) >= position) {
            return SHMQ_OK;
        }
        if (atomic_load_explicit(&log->read_only, memory_order_acquire) == SHMQ_READ_ONLY_FLUSH_FAILED) {
            return SHMQ_READ_ONLY;
        }
        uint64_t now = store->io->monotonic_ns();
        if (now >= deadline_ns) {
            return SHMQ_TIMED_OUT;
        }
        if (shmq_keeper_is_silent(store, now, KEEPER_PATIENCE_NS) && store->writable) {
            enum shmq_status status = flush_as_leader(store);
            if (status != SHMQ_OK) {
                return status;
            }
            if (shmq_load_acquire(&log->durable_end) >= position) {
                return SHMQ_OK;
            }
        } else {
            shmq_ring_keeper(store);
        }
        uint64_t until = now + WAIT_SLICE_NS < deadline_ns ? now + WAIT_SLICE_NS : deadline_ns;
        shmq_futex_wait(&log->durable_sequence, sequence, until);
    }
}
