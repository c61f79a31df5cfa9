/* The append lock: take it, give it back, and have what a dead holder left finished first.
 *
 * One lock for the whole log, and the record is copied inside it. Reserving room by fetch-add and copying outside
 * (Aeron's way) is not faster at our record sizes, cannot make the order of a queue the order of the log, and leaves a
 * hole when a writer dies. Long records leave the lock for their copy: see claim.c.
 *
 * A robust process-shared mutex, tried without a system call first: when its holder dies, the next taker gets EOWNERDEAD,
 * runs the repair (repair.c, which the store names, for it stands above this file) and only then marks the mutex
 * consistent. If the repairer dies too, the next one runs the same repair; every step of it may be done twice.
 *
 * The append lock, the flush lock and the table lock are never held together. A caller from Python may hold the GIL while
 * it tries the lock, never while it sleeps on it.
 *
 * How long the lock is held is not written down: the watchdog sees the same thread and the same `lock_count` in two
 * looks. A time stamp would have cost every append.
 */
#include <stdio.h>
#include <stdlib.h>

#include "core/log/log.h"

#define SHMQ_SPIN_COUNT 80 /* about 2 us of trylock before blocking; most sections are shorter */
/* No waiter sleeps on a mutex for longer than this. One that is killed after it was woken, while another has taken the
 * mutex already, takes the wake-up of the others with it: the word no longer says that there are waiters, and neither
 * the C library nor the kernel tells them that it is free. */
#define LOCK_SLICE_NS UINT64_C(10000000)

static int lock_in_slices(const struct shmq_store *store, pthread_mutex_t *mutex, uint64_t deadline_ns)
{
    for (;;) {
        uint64_t slice_ns = store->io->monotonic_ns() + LOCK_SLICE_NS;
        struct timespec until = shmq_timespec(slice_ns < deadline_ns ? slice_ns : deadline_ns);
        int rc = pthread_mutex_clocklock(mutex, CLOCK_MONOTONIC, &until);
        if (rc != ETIMEDOUT || slice_ns >= deadline_ns) {
            return rc;
        }
    }
}

int shmq_robust_lock(const struct shmq_store *store, pthread_mutex_t *mutex, uint64_t deadline_ns, bool *owner_died)
{
    int rc = lock_in_slices(store, mutex, deadline_ns);
    *owner_died = rc == EOWNERDEAD;
    return *owner_died ? 0 : rc;
}

static void after_owner_death(struct shmq_store *store)
{
    struct shmq_log *log = store->log;
    log->deaths++;
    if (++log->deaths_in_a_row >= SHMQ_DEATHS_MAX) {
        /* Every process that enters dies: a bad page or a bug. Stop feeding it processes. */
        shmq_set_read_only(store, SHMQ_READ_ONLY_POISONED);
    }
    store->repair(store);
}

enum shmq_status shmq_lock(struct shmq_store *store, uint64_t deadline_ns)
{
    struct shmq_log *log = store->log;
    if (!store->writable) {
        return SHMQ_READ_ONLY;
    }
    int rc = pthread_mutex_trylock(&log->lock);
    for (int i = 0; rc == EBUSY && i < SHMQ_SPIN_COUNT && store->processors > 1; i++) {
        shmq_pause();
        rc = pthread_mutex_trylock(&log->lock);
    }
    if (rc == EBUSY) {
        if (deadline_ns == 0) {
            return SHMQ_WOULD_BLOCK;
        }
        rc = lock_in_slices(store, &log->lock, deadline_ns);
    }
    if (rc == EOWNERDEAD) {
        after_owner_death(store);
        rc = pthread_mutex_consistent(&log->lock);
    }
    if (rc == ETIMEDOUT) {
        atomic_fetch_add_explicit(&log->busy, 1, memory_order_relaxed);
        return SHMQ_BROKER_BUSY;
    }
    if (rc != 0) {
        errno = rc;
        return SHMQ_SYSTEM;
    }
    log->lock_count++;
    log->holder_pid = store->self_pid;
    return SHMQ_OK;
}

void shmq_unlock(struct shmq_store *store)
{
    if (pthread_mutex_unlock(&store->log->lock) != 0) {
        /* Another process took the lock from a living owner: only a foreign PID namespace or a stray store can do that.
         * Going on would put two writers into one log. */
        fprintf(stderr, "shmq: the append lock of broker \"%.127s\" was not ours at unlock; stopping this process\n",
                store->head->broker_name);
        abort();
    }
}
