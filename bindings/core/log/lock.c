/* The append lock: take it, give it back, and finish what a dead holder left.
 *
 * A robust process-shared mutex: when its holder dies, the next taker gets EOWNERDEAD, runs shmq_repair and only then
 * marks the mutex consistent. If the repairer dies too, the next one runs the same repair; every step of it is a redo
 * that may be done twice.
 *
 *   intent     found                              repair
 *   APPEND     end >= position + bytes            committed: raise the queue's offset_max
 *              end <  position + bytes            nothing happened
 *   TOGETHER   the same, for each of its queues   the same
 *   FRAME_*    see frame.c
 *   claim      OPEN below end                     its record is committed: free the claim
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/internal.h"

/* Nobody sleeps on a mutex for longer than this. A waiter that is killed after it was woken, while somebody else has
 * taken the mutex already, takes the wake-up of the others with it: the word no longer says that anybody waits, and
 * neither the C library nor the kernel tells them that it is free. */
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

static void repair_append(struct shmq_store *store)
{
    struct shmq_log *log = store->log;
    uint32_t queue = log->intent.queue;
    uint64_t committed = log->intent.log_position + log->intent.record_bytes;
    if (queue >= store->sizes.queue_max || atomic_load_explicit(&log->end, memory_order_relaxed) < committed) {
        return;
    }
    struct shmq_queue *entry = &store->queues[queue];
    uint64_t next = log->intent.queue_offset + log->intent.count;
    if (atomic_load_explicit(&entry->offset_max, memory_order_relaxed) < next) {
        SHMQ_POINT("repair.publish");
        atomic_store_explicit(&entry->offset_max, next, memory_order_release);
    }
}

void shmq_repair(struct shmq_store *store)
{
    uint32_t kind = atomic_load_explicit(&store->log->intent.kind, memory_order_acquire);
    SHMQ_POINT("repair.begin");
    if (kind == SHMQ_INTENT_APPEND) {
        repair_append(store);
    } else if (kind == SHMQ_INTENT_TOGETHER) {
        shmq_together_publish(store);
    } else if (kind != SHMQ_INTENT_NONE) {
        shmq_frame_repair(store, kind);
    }
    SHMQ_POINT("repair.claim");
    shmq_claim_repair(store);
    atomic_store_explicit(&store->log->intent.kind, SHMQ_INTENT_NONE, memory_order_release);
    SHMQ_POINT("repair.end");
}

static void after_owner_death(struct shmq_store *store)
{
    struct shmq_log *log = store->log;
    log->deaths++;
    if (++log->deaths_in_a_row >= SHMQ_DEATHS_MAX) {
        /* Whoever enters dies: a bad page or a bug. Stop feeding it processes. */
        shmq_set_read_only(store, SHMQ_READ_ONLY_POISONED);
    }
    shmq_repair(store);
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
        /* Somebody took the lock from a living owner: only a foreign PID namespace or a stray store can do that.
         * Going on would put two writers into one log. */
        fprintf(stderr, "shmq: the append lock of broker \"%.127s\" was not ours at unlock; stopping this process\n",
                store->head->broker_name);
        abort();
    }
}

void shmq_set_read_only(struct shmq_store *store, uint32_t word)
{
    struct shmq_log *log = store->log;
    uint32_t now = atomic_load_explicit(&log->read_only, memory_order_acquire);
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

/* Start time from /proc, 0 for a process that has ended and was not reaped; false when it cannot be read. */
static bool read_start(uint32_t pid, uint64_t *start)
{
    char path[40], text[1024];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    text[got > 0 ? got : 0] = 0;
    char *field = strrchr(text, ')'); /* the command name may hold anything, also ')' */
    if (field == NULL || field[1] == 0) {
        return false;
    }
    bool ended = field[2] == 'Z' || field[2] == 'X';
    for (int number = 2; number < 20 && field != NULL; number++) {
        field = strchr(field + 1, ' ');
    }
    /* A first thread that has ended is a zombie too, while the others go on. */
    ended = ended && (field == NULL || strtoul(field + 1, NULL, 10) <= 1);
    for (int number = 20; number < 22 && field != NULL; number++) {
        field = strchr(field + 1, ' ');
    }
    *start = ended || field == NULL ? 0 : strtoull(field + 1, NULL, 10);
    return true;
}

uint64_t shmq_process_start(uint32_t pid)
{
    uint64_t start;
    return read_start(pid, &start) ? start : 0;
}

bool shmq_process_died(uint32_t pid, uint64_t start)
{
    uint64_t now;
    if ((int32_t)pid <= 0) {
        return true;
    }
    /* Not to be able to look, for want of a descriptor or because /proc hides it, proves nothing. */
    return read_start(pid, &now) ? now != start : kill((pid_t)pid, 0) != 0 && errno == ESRCH;
}
