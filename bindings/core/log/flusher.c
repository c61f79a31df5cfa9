/* The keeper's flush thread: when it flushes, and when it sleeps.
 *
 *   synchronous broker     whatever was appended is flushed at once
 *   asynchronous broker    what a process waits for is flushed at once, all else every interval_ns
 *
 * While a process waits, flushes follow each other without a pause: appends that come during one ride on the next. Between
 * them lies nothing but a look at a few words; no Python runs and no lock of the interpreter is waited for, which would
 * take milliseconds beside a keeper that writes units. What the keeper counts of flushes is counted here.
 *
 * A flush of a slow disk takes seconds; the beat stands still meanwhile, and waiters see that flush_lock is held.
 */
#include "core/log/log.h"

#define SLEEP_NS_MAX UINT64_C(200000000) /* the beat of a keeper with nothing to do */

static bool is_due(const struct shmq_store *store, const struct shmq_flusher *flusher, uint64_t now_ns)
{
    const struct shmq_log *log = store->log;
    const uint64_t wanted = atomic_load_explicit(&log->flush_wanted, memory_order_seq_cst);
    const uint64_t durable = shmq_load_acquire(&log->durable_end);
    return (wanted > durable || flusher->always || now_ns >= flusher->due_ns) &&
           shmq_load_acquire(&log->end) > durable && /* whatever is wanted: there is no more */
           !shmq_is_flush_over(atomic_load_explicit(&log->read_only, memory_order_relaxed));
}

static bool is_rung(const struct shmq_store *store, const struct shmq_flusher *flusher)
{
    return atomic_load_explicit(&store->log->keeper_errands, memory_order_seq_cst) != flusher->errands_seen;
}

static void count(struct shmq_flusher *flusher, uint64_t took_ns)
{
    uint32_t place = 0;
    while (place < flusher->bound_count && took_ns > flusher->bounds[place]) {
        place++;
    }
    flusher->counts[place]++;
    flusher->counts[flusher->bound_count + 1] += took_ns;
}

static enum shmq_status flush_counted(struct shmq_store *store, struct shmq_flusher *flusher, uint64_t now_ns)
{
    const uint64_t began_ms = shmq_clock_ms(store);
    enum shmq_status status = shmq_flush(store, NULL);
    if (status == SHMQ_OK) {
        const int reason = errno;
        count(flusher, store->io->monotonic_ns() - now_ns);
        flusher->began_ms = began_ms;
        errno = reason;
    }
    return status;
}

/* Sleep until the bell is rung, or a time; false: a signal came. */
static bool sleep_until(struct shmq_store *store, const struct shmq_flusher *flusher, uint64_t until_ns)
{
    struct shmq_log *log = store->log;
    int rc = 0;
    const uint32_t bell = atomic_load_explicit(&log->keeper_bell, memory_order_seq_cst);
    atomic_store_explicit(&log->keeper_asleep, 1, memory_order_seq_cst);
    if (!is_rung(store, flusher) && !is_due(store, flusher, store->io->monotonic_ns())) {
        rc = shmq_futex_wait(&log->keeper_bell, bell, until_ns);
    }
    const int reason = errno;
    atomic_store_explicit(&log->keeper_asleep, 0, memory_order_seq_cst);
    return rc == 0 || reason != EINTR;
}

enum shmq_status shmq_flusher_work(struct shmq_store *store, struct shmq_flusher *flusher, uint64_t until_ns)
{
    for (;;) {
        const uint64_t now = store->io->monotonic_ns();
        if (flusher->due_ns == 0) {
            flusher->due_ns = now + flusher->interval_ns;
        }
        atomic_store_explicit(&store->log->keeper_beat_ns, now, memory_order_release);
        if (is_due(store, flusher, now)) {
            enum shmq_status status = flush_counted(store, flusher, now);
            if (status != SHMQ_OK) {
                return status;
            }
        }
        if (now >= flusher->due_ns) {
            flusher->due_ns = now + flusher->interval_ns;
        }
        if (is_rung(store, flusher) || now >= until_ns) {
            flusher->errands_seen = atomic_load_explicit(&store->log->keeper_errands, memory_order_seq_cst);
            return SHMQ_OK;
        }
        uint64_t until = until_ns < now + SLEEP_NS_MAX ? until_ns : now + SLEEP_NS_MAX;
        until = flusher->always || flusher->due_ns > until ? until : flusher->due_ns;
        if (!is_due(store, flusher, now) && !sleep_until(store, flusher, until)) {
            return SHMQ_OK;
        }
    }
}
