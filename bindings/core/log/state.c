/* The state of the log as everybody sees it: whether it takes records, how far it may be read, and the keeper's bell.
 *
 *   retired      this generation of segments was given up: attach again
 *   read_only    why no record is taken; a failed flush and a poisoned section are final, the other reasons may pass
 *   follows      once no other reason is left, FOLLOWER is: records come from a master only (replicate.c)
 *   visible end  the log end; with synchronous flush the durable end, for nothing is shown that a power cut could take.
 *                A topic may have another flush than its broker: then its queues have that other end
 *   keeper_bell  a futex word the keeper's flush thread sleeps on, with two things it is rung for:
 *                keeper_errands  grows when files or frames run low, or a reader found damage
 *                flush_wanted    rises to the position somebody wants on the disk
 *
 * The bell is Dekker's handshake with the keeper: it sets `keeper_asleep` and looks at both, a writer changes one of them
 * and looks at `keeper_asleep`. So a keeper that is syncing costs a writer no system call, and no waiter is forgotten. A
 * writer that is killed in between leaves a keeper asleep for as long as its sleep takes, until the next one rings.
 *
 * A keeper that has not beaten for longer than the caller's patience is taken for dead or stopped; the caller then does
 * the work itself, or says that nobody will.
 */
#include "core/internal.h"

enum shmq_status shmq_writable_check(const struct shmq_store *store, uint32_t queue)
{
    struct shmq_log *log = store->log;
    if (atomic_load_explicit(&log->retired, memory_order_relaxed) != 0) {
        return SHMQ_RETIRED;
    }
    const uint32_t word = atomic_load_explicit(&log->read_only, memory_order_relaxed);
    if (!store->writable || word != SHMQ_WRITABLE) {
        return store->writable && word == SHMQ_READ_ONLY_FOLLOWER ? SHMQ_NOT_MASTER : SHMQ_READ_ONLY;
    }
    return shmq_queue_entry(store, queue) != NULL ? SHMQ_OK : SHMQ_NO_QUEUE;
}

void shmq_set_read_only(struct shmq_store *store, uint32_t word)
{
    struct shmq_log *log = store->log;
    uint32_t now = atomic_load_explicit(&log->read_only, memory_order_acquire);
    if (word == SHMQ_WRITABLE && atomic_load_explicit(&log->follows, memory_order_acquire) != 0) {
        word = SHMQ_READ_ONLY_FOLLOWER;
    }
    do {
        /* Only recovery makes these good; room on the disk, or a holder that goes on, does not. */
        if (now == SHMQ_READ_ONLY_FLUSH_FAILED || now == SHMQ_READ_ONLY_POISONED) {
            return;
        }
    } while (!atomic_compare_exchange_weak_explicit(&log->read_only, &now, word, memory_order_acq_rel,
                                                    memory_order_acquire));
    atomic_fetch_add_explicit(&log->durable_sequence, 1, memory_order_release);
    shmq_futex_wake(&log->durable_sequence, INT32_MAX);
}

uint64_t shmq_visible_end(const struct shmq_store *store)
{
    return shmq_load_acquire(store->head->flush_sync ? &store->log->durable_end : &store->log->end);
}

bool shmq_queue_is_sync(const struct shmq_store *store, uint32_t queue)
{
    uint32_t mode = atomic_load_explicit(&shmq_queue_place(store, queue)->flush, memory_order_relaxed);
    return mode == SHMQ_FLUSH_AS_BROKER ? store->head->flush_sync != 0 : mode == SHMQ_FLUSH_SYNC;
}

uint64_t shmq_queue_visible_end(const struct shmq_store *store, uint32_t queue)
{
    return shmq_load_acquire(shmq_queue_is_sync(store, queue) ? &store->log->durable_end : &store->log->end);
}

bool shmq_keeper_is_silent(const struct shmq_store *store, uint64_t now_ns, uint64_t patience_ns)
{
    uint64_t beat = shmq_load_acquire(&store->log->keeper_beat_ns);
    return now_ns > beat && now_ns - beat > patience_ns;
}

static void ring(struct shmq_log *log)
{
    if (atomic_load_explicit(&log->keeper_asleep, memory_order_seq_cst) != 0) {
        atomic_fetch_add_explicit(&log->keeper_bell, 1, memory_order_seq_cst);
        shmq_futex_wake(&log->keeper_bell, 1);
    }
}

void shmq_ring_keeper(struct shmq_store *store)
{
    if (!store->writable) {
        return; /* the bell lies in a segment that readers map read-only */
    }
    atomic_fetch_add_explicit(&store->log->keeper_errands, 1, memory_order_seq_cst);
    ring(store->log);
}

void shmq_want_durable(struct shmq_store *store, uint64_t position)
{
    if (!store->writable) {
        return;
    }
    _Atomic uint64_t *wanted = &store->log->flush_wanted;
    uint64_t seen = atomic_load_explicit(wanted, memory_order_seq_cst);
    while (seen < position && !atomic_compare_exchange_weak_explicit(wanted, &seen, position, memory_order_seq_cst,
                                                                     memory_order_seq_cst)) {
    }
    ring(store->log); /* also where the wish was there: who had it may have been killed before it rang */
}
