/* The state of the log for all processes: its words, how far it may be read, and the keeper's bell.
 *
 *   retired      this generation of segments was given up: attach again
 *   read_only    why no record is taken; a failed flush, lost files and a poisoned section are final, other
 *                reasons may pass
 *   leased       records are taken until a time only (standing.c)
 *   standing     once no other reason is left, this one is: FOLLOWER or FENCED (standing.c)
 *   rule         what a message has to be before it is visible: in the log; with synchronous flush on the disk, for
 *                nothing is shown that a power cut could take; with synchronous replication confirmed (confirm.c), for
 *                nothing is shown that the loss of this host could take. A topic may have another flush than its broker:
 *                asynchronous is the log end, synchronous whatever the broker calls safe. is_sync and
 *                shmq_safe_word are the only places that say so
 *   keeper_bell  a futex word the keeper's flush thread sleeps on, with two things it is rung for:
 *                keeper_errands  grows when files or frames run low, or a reader found damage
 *                flush_wanted    rises to the position that a waiter wants on the disk
 *
 * shipper_bell is a bell of the same kind, for the process that ships the log to replicas that senders wait for.
 *
 * The bell is Dekker's handshake with the keeper: it sets `keeper_asleep` and looks at both, a writer changes one of them
 * and looks at `keeper_asleep`. So a keeper that is syncing costs a writer no system call, and no waiter is forgotten. A
 * writer that is killed in between leaves a keeper asleep for as long as its sleep takes, until the next one rings.
 *
 * A keeper that has not beaten for longer than the caller's patience is taken for dead or stopped; the caller then does
 * the work itself, or says that it is not done.
 */
#include "core/log/log.h"

void shmq_set_read_only(struct shmq_store *store, uint32_t word)
{
    struct shmq_log *log = store->log;
    uint32_t now = atomic_load_explicit(&log->read_only, memory_order_acquire);
    if (word == SHMQ_WRITABLE) {
        word = atomic_load_explicit(&log->standing, memory_order_acquire);
    }
    if (word == SHMQ_WRITABLE && atomic_load_explicit(&log->lacks_replicas, memory_order_seq_cst) != 0) {
        word = SHMQ_READ_ONLY_FEW_REPLICAS;
    }
    do {
        /* Only recovery makes these good; room on the disk, or a holder that goes on, does not. A flush may have failed
         * because its file was lost: that says more. */
        const bool says_more = now == SHMQ_READ_ONLY_FLUSH_FAILED && word == SHMQ_READ_ONLY_FILES_LOST;
        if ((shmq_is_flush_over(now) || now == SHMQ_READ_ONLY_POISONED) && !says_more) {
            return;
        }
    } while (!atomic_compare_exchange_weak_explicit(&log->read_only, &now, word, memory_order_acq_rel,
                                                    memory_order_acquire));
    atomic_fetch_add_explicit(&log->durable_sequence, 1, memory_order_release);
    shmq_futex_wake(&log->durable_sequence, INT32_MAX);
    atomic_fetch_add_explicit(&log->confirmed_sequence, 1, memory_order_release);
    shmq_futex_wake(&log->confirmed_sequence, INT32_MAX);
}

void shmq_set_allocated_end(struct shmq_store *store, uint64_t position)
{
    atomic_store_explicit(&store->log->allocated_end, position, memory_order_release);
}

void shmq_set_log_begin(struct shmq_store *store, uint64_t position)
{
    atomic_store_explicit(&store->log->begin, position, memory_order_release);
}

void shmq_set_log_end(struct shmq_store *store, uint64_t position)
{
    struct shmq_log *log = store->log;
    /* What was recovered counts as confirmed, so that what was read before the restart is not missed now; an elected
     * broker knows less, see below. */
    atomic_store_explicit(&log->durable_end, position, memory_order_release);
    atomic_store_explicit(&log->confirmed_end, position, memory_order_release);
    atomic_store_explicit(&log->in_sync_end, position, memory_order_release);
    atomic_store_explicit(&log->end, position, memory_order_release);
}

void shmq_set_confirmed_end(struct shmq_store *store, uint64_t position)
{
    struct shmq_log *log = store->log;
    const uint64_t end = shmq_load_acquire(&log->end);
    const uint64_t confirmed = position < end ? position : end;
    atomic_store_explicit(&log->in_sync_end, confirmed, memory_order_release);
    atomic_store_explicit(&log->confirmed_end, confirmed, memory_order_release);
}

/* The one place that says what a message of a queue has to be before it is visible: in the log, or safe. */
static inline bool is_sync(const struct shmq_store *store, uint32_t queue)
{
    const uint32_t mode = atomic_load_explicit(&shmq_queue_place(store, queue)->flush, memory_order_relaxed);
    return mode == SHMQ_FLUSH_AS_BROKER ? store->head->ack_rule != SHMQ_ACK_END : mode == SHMQ_FLUSH_SYNC;
}

static inline uint64_t end_of(const struct shmq_store *store, bool sync)
{
    return shmq_load_acquire(sync ? shmq_safe_word(store) : &store->log->end);
}

enum shmq_ack_rule shmq_queue_rule(const struct shmq_store *store, uint32_t queue)
{
    return !is_sync(store, queue) ? SHMQ_ACK_END : shmq_is_confirmed(store) ? SHMQ_ACK_CONFIRMED : SHMQ_ACK_DURABLE;
}

uint64_t shmq_visible_end(const struct shmq_store *store)
{
    return end_of(store, store->head->ack_rule != SHMQ_ACK_END);
}

uint64_t shmq_safe_end(const struct shmq_store *store)
{
    return shmq_load_acquire(shmq_safe_word(store));
}

bool shmq_queue_is_sync(const struct shmq_store *store, uint32_t queue)
{
    return is_sync(store, queue);
}

uint64_t shmq_queue_visible_end(const struct shmq_store *store, uint32_t queue)
{
    return end_of(store, is_sync(store, queue));
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

static void ring_shipper(struct shmq_log *log)
{
    atomic_thread_fence(memory_order_seq_cst); /* the log end was moved before */
    if (atomic_load_explicit(&log->shipper_asleep, memory_order_relaxed) != 0) {
        atomic_fetch_add_explicit(&log->shipper_bell, 1, memory_order_seq_cst);
        shmq_futex_wake(&log->shipper_bell, 1);
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

static inline void want(struct shmq_store *store, uint64_t position)
{
    _Atomic uint64_t *wanted = &store->log->flush_wanted;
    uint64_t seen = atomic_load_explicit(wanted, memory_order_seq_cst);
    while (seen < position && !atomic_compare_exchange_weak_explicit(wanted, &seen, position, memory_order_seq_cst,
                                                                     memory_order_seq_cst)) {
    }
    ring(store->log); /* also where the wish was there: who had it may have been killed before it rang */
}

static __attribute__((noinline)) void want_confirmed(struct shmq_store *store, uint64_t position)
{
    ring_shipper(store->log); /* first: its slave's flush is what takes longest */
    want(store, position);
}

void shmq_want_durable(struct shmq_store *store, uint64_t position)
{
    if (!store->writable) {
        return;
    }
    if (shmq_is_confirmed(store)) {
        want_confirmed(store, position);
        return;
    }
    want(store, position);
}

enum shmq_status shmq_ship_wait(struct shmq_store *store, uint64_t position, uint64_t deadline_ns)
{
    struct shmq_log *log = store->log;
    const uint32_t bell = atomic_load_explicit(&log->shipper_bell, memory_order_seq_cst);
    atomic_store_explicit(&log->shipper_asleep, 1, memory_order_seq_cst);
    atomic_thread_fence(memory_order_seq_cst); /* pairs with the fence in ring_shipper */
    if (shmq_load_acquire(&log->end) < position) {
        (void)shmq_futex_wait(&log->shipper_bell, bell, deadline_ns);
    }
    atomic_store_explicit(&log->shipper_asleep, 0, memory_order_seq_cst);
    return shmq_load_acquire(&log->end) < position ? SHMQ_TIMED_OUT : SHMQ_OK;
}
