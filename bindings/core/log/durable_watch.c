/* The thread behind a durable watch.
 *
 * A broker holds the answers of many clients until the disk has their messages, or its replicas have them too. Its loop
 * sleeps on descriptors, the end of what is safe is a word in shared memory: this thread sleeps on the one and writes to the
 * other, once a flush and not once a message. It runs no Python and needs no lock of an interpreter.
 *
 *   wanted = NOT_WANTED   sleeps on `turn`, until a position is wanted
 *   wanted = position     sleeps on the safe end (flush.c); there, or once a flush has failed: NOT_WANTED, descriptor
 *
 * The same for shipping the log to replicas: the thread then sleeps on the shipper's bell (state.c), for the log end. Where
 * no sender waits for replicas no append rings it, as it does not know of them: the thread looks every few milliseconds.
 *
 * One wake-up per request; ask again for the next position.
 */
#include <signal.h>

#include "core/log/log.h"
#include "core/log/durable_watch.h"

#define SLICE_NS UINT64_C(50000000) /* after which the keeper is asked again: who asked may have been killed before */
#define LOOK_NS UINT64_C(10000000)  /* how old a record may become before it is shipped, where no append rings */
#define IDLE_NS UINT64_C(3600000000000)

static bool is_over(const struct shmq_durable_watch *watch, uint64_t position)
{
    const struct shmq_store *store = watch->store;
    if (watch->ships) {
        return shmq_load_acquire(&store->log->end) >= position;
    }
    return shmq_safe_end(store) >= position ||
           shmq_is_flush_over(atomic_load_explicit(&store->log->read_only, memory_order_acquire));
}

static void tell(struct shmq_durable_watch *watch, uint64_t position)
{
    const uint64_t one = 1;
    if (atomic_compare_exchange_strong_explicit(&watch->wanted, &position, SHMQ_NOT_WANTED, memory_order_acq_rel,
                                                memory_order_relaxed)) {
        ssize_t written = write(watch->descriptor, &one, sizeof one); /* full means that a wake-up is pending already */
        (void)written;
    }
}

static void *watch_durable(void *context)
{
    struct shmq_durable_watch *watch = context;
    struct shmq_store *store = watch->store;
    while (!atomic_load_explicit(&watch->stopping, memory_order_acquire)) {
        const uint32_t turn = atomic_load_explicit(&watch->turn, memory_order_acquire);
        const uint64_t position = shmq_load_acquire(&watch->wanted);
        const uint32_t sequence = atomic_load_explicit(shmq_safe_sequence(store), memory_order_acquire);
        const uint64_t now = store->io->monotonic_ns();
        if (position == SHMQ_NOT_WANTED) {
            if (!atomic_load_explicit(&watch->stopping, memory_order_acquire)) {
                (void)shmq_futex_wait(&watch->turn, turn, now + IDLE_NS);
            }
        } else if (is_over(watch, position)) {
            tell(watch, position);
        } else if (watch->ships) {
            (void)shmq_ship_wait(store, position, now + (shmq_is_confirmed(store) ? SLICE_NS : LOOK_NS));
        } else if (shmq_safe_sleep(store, position, sequence, now + SLICE_NS) != 0 && errno == ETIMEDOUT) {
            shmq_want_durable(store, position);
        }
    }
    return NULL;
}

int shmq_durable_watch_start(struct shmq_durable_watch *watch, struct shmq_store *store, int descriptor,
                             bool ships)
{
    sigset_t all, before;
    watch->store = store;
    watch->descriptor = descriptor;
    watch->ships = ships;
    atomic_init(&watch->wanted, SHMQ_NOT_WANTED);
    atomic_init(&watch->turn, 0);
    atomic_init(&watch->stopping, false);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the threads of the program */
    const int rc = pthread_create(&watch->thread, NULL, watch_durable, watch);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

static void next_turn(struct shmq_durable_watch *watch)
{
    atomic_fetch_add_explicit(&watch->turn, 1, memory_order_acq_rel);
    shmq_futex_wake(&watch->turn, 1);
}

void shmq_durable_watch_want(struct shmq_durable_watch *watch, uint64_t position)
{
    if (!watch->ships) {
        shmq_want_durable(watch->store, position);
    }
    if (atomic_exchange_explicit(&watch->wanted, position, memory_order_acq_rel) == SHMQ_NOT_WANTED) {
        next_turn(watch);
    }
}

void shmq_durable_watch_stop(struct shmq_durable_watch *watch)
{
    atomic_store_explicit(&watch->stopping, true, memory_order_release);
    next_turn(watch);
    pthread_join(watch->thread, NULL); /* within SLICE_NS */
}
