/* Confirmation: how far the log is on the disks of this host and of its replicas in sync (SHMQ_ACK_CONFIRMED).
 *
 *   who flushes, flush lock held                    the process that ships the log
 *     durable_end = what is on the disk               in_sync_end = what is on the disk of each replica
 *     fence seq_cst                                   fence seq_cst
 *     confirmed_end = min(durable_end, in_sync_end)   confirmed_end = min(durable_end, in_sync_end)
 *
 * Each side stores its word, fences and loads the other's, so whichever is second raises confirmed_end. It only rises, by
 * compare-and-swap. A process killed before it leaves the raise to the next flush, the next report of a replica, or the
 * next look of a waiter (flush.c).
 *
 * in_sync_end falls when a replica joins. A flush that had read it before may still confirm more than that replica has,
 * once. So the join waits until the holder of flush_lock at that time has let it go: either the lock is free, or another
 * flush has begun. Taking the lock would not do: a keeper that syncs back to back gets it again before the join is awake.
 * Then what is confirmed is known, and in_sync_end is raised to it: from here on no more is confirmed than every replica
 * in sync says that it has.
 *
 * The number of replicas is stored so that who finds its message confirmed and one replica there can tell that it was
 * counted: before the end when replicas go, behind it when they come.
 */
#include "core/log/log.h"

#define PAUSE_NS 50000 /* between two looks at the flush lock */

static void confirmed_raise(struct shmq_store *store, uint64_t position)
{
    struct shmq_log *log = store->log;
    uint64_t seen = shmq_load_acquire(&log->confirmed_end);
    do {
        if (seen >= position) {
            return;
        }
    } while (!atomic_compare_exchange_weak_explicit(&log->confirmed_end, &seen, position, memory_order_acq_rel,
                                                    memory_order_acquire));
    SHMQ_POINT("confirm.raised");
    atomic_fetch_add_explicit(&log->confirmed_sequence, 1, memory_order_acq_rel);
    shmq_futex_wake(&log->confirmed_sequence, INT32_MAX);
    shmq_wake_all(store);
}

static void confirm(struct shmq_store *store)
{
    atomic_thread_fence(memory_order_seq_cst); /* pairs with the other side's, see above */
    const uint64_t in_sync = shmq_load_acquire(&store->log->in_sync_end);
    const uint64_t durable = shmq_load_acquire(&store->log->durable_end);
    confirmed_raise(store, in_sync < durable ? in_sync : durable);
}

void shmq_confirm_flushed(struct shmq_store *store)
{
    SHMQ_POINT("confirm.flushed");
    confirm(store);
}

/* Whether the process that held the flush lock in flush number `round` has let it go. */
static bool is_passed(struct shmq_log *log, uint32_t round)
{
    if (atomic_load_explicit(&log->flush_round, memory_order_acquire) != round) {
        return true;
    }
    const int rc = pthread_mutex_trylock(&log->flush_lock);
    if (rc == EOWNERDEAD) {
        pthread_mutex_consistent(&log->flush_lock); /* nothing to repair: flush.c */
    }
    if (rc == 0 || rc == EOWNERDEAD) {
        pthread_mutex_unlock(&log->flush_lock);
        return true;
    }
    return false;
}

/* Lower in_sync_end to `end`, or to what is confirmed by then. */
static enum shmq_status in_sync_lower(struct shmq_store *store, uint64_t end, uint64_t deadline_ns)
{
    struct shmq_log *log = store->log;
    const uint64_t before = shmq_load_acquire(&log->in_sync_end);
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    atomic_store_explicit(&log->in_sync_end, end, memory_order_seq_cst);
    SHMQ_POINT("confirm.lowered");
    const uint32_t round = atomic_load_explicit(&log->flush_round, memory_order_seq_cst);
    while (!is_passed(log, round)) {
        if (store->io->monotonic_ns() >= deadline_ns) {
            atomic_store_explicit(&log->in_sync_end, before, memory_order_seq_cst);
            return SHMQ_TIMED_OUT;
        }
        (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
    }
    const uint64_t confirmed = shmq_load_acquire(&log->confirmed_end);
    if (confirmed > end) {
        atomic_store_explicit(&log->in_sync_end, confirmed, memory_order_seq_cst);
    }
    return SHMQ_OK;
}

static void say_whether_replicas_lack(struct shmq_store *store, bool lacks)
{
    struct shmq_log *log = store->log;
    uint32_t from = lacks ? SHMQ_WRITABLE : SHMQ_READ_ONLY_FEW_REPLICAS;
    const uint32_t to = lacks ? SHMQ_READ_ONLY_FEW_REPLICAS : SHMQ_WRITABLE;
    atomic_store_explicit(&log->lacks_replicas, lacks, memory_order_seq_cst);
    /* Any other reason stays; what follows it is said by shmq_set_read_only, or by the next of these calls. */
    (void)atomic_compare_exchange_strong_explicit(&log->read_only, &from, to, memory_order_acq_rel,
                                                  memory_order_acquire);
}

enum shmq_status shmq_confirm(struct shmq_store *store, const struct shmq_in_sync *in_sync, uint64_t deadline_ns,
                              uint64_t *confirmed_end)
{
    struct shmq_log *log = store->log;
    enum shmq_status status = SHMQ_OK;
    if (!store->writable) {
        return SHMQ_READ_ONLY;
    }
    if (!shmq_is_confirmed(store)) {
        return SHMQ_BAD_ARGUMENT;
    }
    if (in_sync->lacks_replicas) {
        say_whether_replicas_lack(store, true);
    }
    if (in_sync->count < atomic_load_explicit(&log->in_sync_count, memory_order_relaxed)) {
        atomic_store_explicit(&log->in_sync_count, in_sync->count, memory_order_seq_cst);
    }
    if (in_sync->end < shmq_load_acquire(&log->in_sync_end)) {
        status = in_sync_lower(store, in_sync->end, deadline_ns);
    } else {
        atomic_store_explicit(&log->in_sync_end, in_sync->end, memory_order_seq_cst);
        SHMQ_POINT("confirm.stored");
    }
    if (status == SHMQ_OK) {
        atomic_store_explicit(&log->in_sync_count, in_sync->count, memory_order_seq_cst);
        confirm(store); /* without the lock: no other process writes in_sync_end, so it does not fall meanwhile */
    }
    if (!in_sync->lacks_replicas) {
        say_whether_replicas_lack(store, false);
    }
    if (confirmed_end != NULL) {
        *confirmed_end = shmq_load_acquire(&log->confirmed_end);
    }
    return status;
}
