/* Durability: fdatasync, the durable end, and those who wait for it.
 *
 * The holder of flush_lock may flush: the keeper (flusher.c), or a waiting client when the keeper's beat is stale. All
 * appends that arrived before the log end was read ride on one fdatasync (group commit). The first failure is final:
 * the kernel marks failed pages clean, so a second fdatasync would report success for bytes that are not on the disk. Nor
 * is a file flushed that has lost its name: it would be reported for bytes that no restart finds.
 *
 *   flush                                             waiter, its record below the log end
 *     target = log end                                  sequence = durable_sequence; durable_end >= position: done
 *     flush_target = target, flush_round += 1           bit = position <= flush_target ? round : round + 1
 *     fdatasync of the files between                    wants it durable (state.c)
 *     durable_end = target, durable_sequence += 1       sleeps on durable_sequence, with bit (number mod 32)
 *     wakes every bit but that of the next round
 *
 * So one system call wakes those that this flush serves; those that came while it ran sleep on until the next. The bit is a
 * guess that costs a look, not an answer: a waiter looks at durable_end after every wake-up, a round that was begun by
 * a process that died is among those that are woken, and a waiter that picked the bit of a round too late is woken by the
 * one after. No waiter sleeps while durable_sequence has moved on.
 *
 * Where the rule is SHMQ_ACK_CONFIRMED, all but the keeper wait for confirmed_end instead, and sleeps on
 * confirmed_sequence: confirm.c.
 */
#include "core/log/log.h"

#define KEEPER_PATIENCE_NS UINT64_C(500000000)
#define FLUSH_LOCK_NS UINT64_C(30000000000)
#define WAIT_SLICE_NS UINT64_C(50000000)
#define BITS 32u

static uint32_t bit_of(uint32_t round)
{
    return 1u << round % BITS;
}

int shmq_safe_sleep(const struct shmq_store *store, uint64_t position, uint32_t sequence, uint64_t until_ns)
{
    struct shmq_log *log = store->log;
    if (shmq_is_confirmed(store)) { /* reports of replicas come in no rounds */
        return shmq_futex_wait(&log->confirmed_sequence, sequence, until_ns);
    }
    const uint32_t round = atomic_load_explicit(&log->flush_round, memory_order_acquire);
    const uint32_t bit = bit_of(round + (position > shmq_load_acquire(&log->flush_target)));
    return shmq_futex_wait_bits(&log->durable_sequence, sequence, until_ns, bit);
}

static void raise_and_wake(struct shmq_store *store, uint64_t position, uint32_t bits)
{
    struct shmq_log *log = store->log;
    uint64_t seen = shmq_load_acquire(&log->durable_end);
    while (seen < position && !atomic_compare_exchange_weak_explicit(&log->durable_end, &seen, position,
                                                                     memory_order_acq_rel, memory_order_acquire)) {
    }
    atomic_fetch_add_explicit(&log->durable_sequence, 1, memory_order_acq_rel);
    shmq_futex_wake_bits(&log->durable_sequence, bits);
    if (shmq_is_confirmed(store)) {
        shmq_confirm_flushed(store); /* wakes when what is confirmed has risen */
    } else if (shmq_has_sync(store)) {
        shmq_wake_all(store);
    }
}

void shmq_raise_durable(struct shmq_store *store, uint64_t position)
{
    raise_and_wake(store, position, FUTEX_BITSET_MATCH_ANY);
}

static enum shmq_status flush_locked(struct shmq_store *store, uint64_t target)
{
    /* Looked at under the lock: the failure of the holder before us may be a moment old, and the kernel, having
     * reported it once, would let our fdatasync succeed. */
    if (shmq_is_flush_over(atomic_load_explicit(&store->log->read_only, memory_order_acquire))) {
        return SHMQ_READ_ONLY;
    }
    uint64_t from = shmq_load_acquire(&store->log->durable_end);
    const uint32_t round = atomic_load_explicit(&store->log->flush_round, memory_order_relaxed) + 1;
    if (target <= from) {
        return SHMQ_OK;
    }
    /* In this order: a waiter that sees the round sees how far it goes. */
    atomic_store_explicit(&store->log->flush_target, target, memory_order_relaxed);
    atomic_store_explicit(&store->log->flush_round, round, memory_order_release);
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
    raise_and_wake(store, target, ~bit_of(round + 1));
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

/* Nothing came for long, and the disk is not why: the flushing or shipping process may have died before it confirmed. */
static void confirm_as_leader(struct shmq_store *store, uint64_t position)
{
    struct shmq_log *log = store->log;
    if (!shmq_is_confirmed(store) || !store->writable || shmq_load_acquire(&log->durable_end) < position) {
        return;
    }
    const int rc = pthread_mutex_trylock(&log->flush_lock);
    if (rc == EOWNERDEAD) {
        pthread_mutex_consistent(&log->flush_lock);
    }
    if (rc == 0 || rc == EOWNERDEAD) {
        shmq_confirm_flushed(store);
        pthread_mutex_unlock(&log->flush_lock);
    }
}

enum shmq_status shmq_wait_durable(struct shmq_store *store, uint64_t position, uint64_t deadline_ns)
{
    struct shmq_log *log = store->log;
    const _Atomic uint64_t *safe_end = shmq_safe_word(store);
    _Atomic uint32_t *safe_sequence = shmq_safe_sequence(store);
    for (;;) {
        uint32_t sequence = atomic_load_explicit(safe_sequence, memory_order_acquire);
        if (shmq_load_acquire(safe_end) >= position) {
            return shmq_receipt(store);
        }
        if (shmq_is_flush_over(atomic_load_explicit(&log->read_only, memory_order_acquire))) {
            return SHMQ_READ_ONLY;
        }
        if (shmq_is_replaced(log)) {
            return SHMQ_DOUBTED;
        }
        uint64_t now = store->io->monotonic_ns();
        if (now >= deadline_ns) {
            return shmq_load_acquire(&log->durable_end) >= position ? SHMQ_UNCONFIRMED : SHMQ_TIMED_OUT;
        }
        if (shmq_keeper_is_silent(store, now, KEEPER_PATIENCE_NS) && store->writable) {
            enum shmq_status status = flush_as_leader(store);
            if (status != SHMQ_OK) {
                return status;
            }
            if (shmq_load_acquire(safe_end) >= position) {
                return shmq_receipt(store);
            }
        } else {
            shmq_want_durable(store, position);
        }
        uint64_t until = now + WAIT_SLICE_NS < deadline_ns ? now + WAIT_SLICE_NS : deadline_ns;
        if (shmq_safe_sleep(store, position, sequence, until) != 0 && errno == ETIMEDOUT) {
            confirm_as_leader(store, position);
        }
    }
}

enum shmq_status shmq_durable_follow(struct shmq_store *store, uint64_t position, uint64_t deadline_ns)
{
    struct shmq_log *log = store->log;
    for (;;) {
        const uint32_t sequence = atomic_load_explicit(&log->durable_sequence, memory_order_acquire);
        if (shmq_load_acquire(&log->durable_end) > position) {
            return SHMQ_OK;
        }
        if (store->io->monotonic_ns() >= deadline_ns) {
            return SHMQ_TIMED_OUT;
        }
        (void)shmq_futex_wait(&log->durable_sequence, sequence, deadline_ns);
    }
}
