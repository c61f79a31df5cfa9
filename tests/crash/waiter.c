/* A lock that is free without a wake-up: what is left when a woken waiter is killed before it takes the mutex.
 *
 *   holder           A              word = A | WAITERS, B and C asleep
 *   unlock           wakes B        word = 0
 *   D takes it       at once        word = D              the bit is gone; B would set it again …
 *   B is killed      …but never does                      the kernel sees an owner, and leaves the word alone
 *   D unlocks        none is woken: C sleeps beside a free lock
 *
 * The state is made by hand: C waits, the bit is taken out of the word, the lock is given back. C must get it long before
 * its deadline. Prints one JSON line a lock; exit status 1 when one slept on.
 */
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "check.h"

#define DEADLINE_NS UINT64_C(20000000000)
#define SLEEP_MS_MAX 4000u /* far above one slice, and below every deadline */

static struct arena arena;

static uint64_t after(uint64_t ns)
{
    return shmq_io_posix.monotonic_ns() + ns;
}

enum lock { LOCK_APPEND, LOCK_TABLE, LOCK_FLUSH };

static pthread_mutex_t *mutex_of(enum lock lock)
{
    struct shmq_log *log = arena.store.log;
    return lock == LOCK_APPEND ? &log->lock : lock == LOCK_TABLE ? &log->table_lock : &log->flush_lock;
}

static enum shmq_status wait_for(enum lock lock)
{
    uint8_t body[20];
    uint32_t index;
    struct shmq_store store;
    struct shmq_appended out;
    struct message message = {.id = 1, .body_bytes = sizeof body};
    struct shmq_spec spec = message_spec(&message, body);
    arena_attach(&arena, &store, true);
    switch (lock) {
    case LOCK_APPEND:
        return shmq_append(&store, 0, &spec, 1, after(DEADLINE_NS), &out);
    case LOCK_TABLE:
        return shmq_group_put(&store, "group", &index);
    default:
        return shmq_flush(&store, NULL);
    }
}

static uint32_t run_lock(enum lock lock, const char *name)
{
    const struct arena_options options = {.file_bytes = 1 << 20, .file_count = 1, .frame_max = 16, .frame_ready = 16};
    int status;
    fflush(stdout);
    arena_create(&arena, &options);
    _Atomic uint32_t *word = (_Atomic uint32_t *)&mutex_of(lock)->__data.__lock;
    ARENA_MUST(pthread_mutex_lock(mutex_of(lock)) == 0);
    pid_t waiter = fork();
    ARENA_MUST(waiter >= 0);
    if (waiter == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(wait_for(lock));
    }
    uint64_t until = after(DEADLINE_NS), freed;
    while ((atomic_load(word) & FUTEX_WAITERS) == 0 && shmq_io_posix.monotonic_ns() < until) {
        sched_yield();
    }
    atomic_fetch_and(word, ~FUTEX_WAITERS);
    ARENA_MUST(pthread_mutex_unlock(mutex_of(lock)) == 0);
    freed = shmq_io_posix.monotonic_ns();
    ARENA_MUST(waitpid(waiter, &status, 0) == waiter);
    uint64_t slept_ms = (shmq_io_posix.monotonic_ns() - freed) / 1000000;
    bool good = WIFEXITED(status) && WEXITSTATUS(status) == SHMQ_OK && slept_ms < SLEEP_MS_MAX;
    printf("{\"lock\": \"%s\", \"status\": %d, \"slept_ms\": %llu, \"good\": %s}\n", name, WEXITSTATUS(status),
           (unsigned long long)slept_ms, good ? "true" : "false");
    arena_destroy(&arena);
    return !good;
}

int main(void)
{
    uint32_t bad = run_lock(LOCK_APPEND, "append") + run_lock(LOCK_TABLE, "table") + run_lock(LOCK_FLUSH, "flush");
    return bad == 0 ? 0 : 1;
}
