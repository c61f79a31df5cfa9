/* Sleep and wake: readers sleep on their own POSIX semaphore, writers post only where a reader said it sleeps.
 *
 *   reader                                        writer, after its commit
 *     state = ASLEEP                                fence seq_cst
 *     waiters[queue] |= bit(slot mod 64)            bits = waiters[queue]; none: done, no system call
 *     fence seq_cst                                 bits = exchange(waiters[queue], 0)      one writer gets them
 *     look again; found: state = AWAKE              slot ASLEEP -> AWAKE by compare-and-swap: post its semaphore
 *     sem_clockwait
 *
 * Dekker's handshake: each side stores, fences, loads, so at least one sees the other. A post follows exactly one
 * ASLEEP -> AWAKE change made by a writer, so the semaphore never runs ahead. A reader that died leaves at most a stale
 * bit and one wasted post.
 *
 * A broker that appends for its clients wakes the others only (shmq_wake_others): it serves its own waiting pulls itself,
 * and being woken by its own append would make its two threads compete for the GIL.
 *
 * Before it sleeps, a reader spins as long as news may come sooner than a sleep takes, if a processor is idle. 50 us are
 * the limit the library sets: with 20 us a request and its answer just missed each other.
 *
 * Threads of one process share its slot: one of them, the leader, waits on the semaphore, the others on a private
 * condition; a leader that comes back lets them all look again.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>

#include "core/internal.h"

static sem_t *semaphore_of(struct shmq_store *store, uint32_t slot)
{
    if (slot >= store->sizes.client_max) {
        return NULL;
    }
    _Atomic(void *) *place = (_Atomic(void *) *)&store->semaphores[slot];
    void *known = atomic_load_explicit(place, memory_order_acquire);
    if (known != NULL) {
        return known;
    }
    char name[200];
    snprintf(name, sizeof name, "/shmq.%.120s.%016" PRIx64 ".w%u", store->head->broker_name, store->head->generation, slot);
    sem_t *opened = sem_open(name, 0);
    if (opened == SEM_FAILED) {
        return NULL;
    }
    /* glibc hands out one address per name, so two threads that race here store the same pointer. */
    atomic_store_explicit(place, opened, memory_order_release);
    return opened;
}

static void post(struct shmq_store *store, uint32_t slot)
{
    uint32_t asleep = SHMQ_CLIENT_ASLEEP;
    struct shmq_client *client = &store->clients[slot];
    if (!atomic_compare_exchange_strong_explicit(&client->state, &asleep, SHMQ_CLIENT_AWAKE, memory_order_acq_rel,
                                                 memory_order_relaxed)) {
        return;
    }
    SHMQ_POINT("wake.promised");
    sem_t *semaphore = semaphore_of(store, slot);
    if (semaphore != NULL) {
        sem_post(semaphore);
    }
    if (store->writable) {
        atomic_fetch_add_explicit(&store->log->wakes, 1, memory_order_relaxed);
    }
}

static uint32_t client_high(const struct shmq_store *store)
{
    uint32_t high = atomic_load_explicit(&store->readers->client_high, memory_order_acquire);
    return high < store->sizes.client_max ? high : store->sizes.client_max;
}

static void wake_slots(struct shmq_store *store, uint32_t queue, uint64_t bits_kept, uint32_t slot_kept)
{
    if (!shmq_queue_is_number(store, queue)) {
        return;
    }
    _Atomic uint64_t *waiters = &store->waiters[queue & store->queue_mask];
    if (shmq_queue_is_sync(store, queue)) {
        /* Readers are woken when the bytes are durable, not before. */
        shmq_want_durable(store, shmq_load_acquire(&store->log->end));
        return;
    }
    atomic_thread_fence(memory_order_seq_cst); /* pairs with the fence in shmq_wait */
    if (atomic_load_explicit(waiters, memory_order_relaxed) == 0) {
        return;
    }
    uint64_t bits = bits_kept == 0
                        ? atomic_exchange_explicit(waiters, 0, memory_order_acq_rel)
                        : atomic_fetch_and_explicit(waiters, bits_kept, memory_order_acq_rel);
    SHMQ_POINT("wake.taken");
    uint32_t high = client_high(store);
    for (; bits != 0; bits &= bits - 1) {
        for (uint32_t slot = (uint32_t)__builtin_ctzll(bits); slot < high; slot += 64) {
            if (slot != slot_kept) {
                post(store, slot);
            }
        }
    }
}

void shmq_wake(struct shmq_store *store, uint32_t queue)
{
    wake_slots(store, queue, 0, SHMQ_NONE);
}

void shmq_wake_others(struct shmq_store *store, uint32_t queue)
{
    const uint32_t own = store->client_slot;
    wake_slots(store, queue, own == SHMQ_NONE ? 0 : UINT64_C(1) << own % 64, own);
}

void shmq_wake_all(struct shmq_store *store)
{
    uint32_t high = client_high(store);
    atomic_thread_fence(memory_order_seq_cst);
    for (uint32_t slot = 0; slot < high; slot++) {
        post(store, slot);
    }
}

void shmq_wake_client(struct shmq_store *store, uint32_t slot)
{
    atomic_thread_fence(memory_order_seq_cst);
    if (slot < store->sizes.client_max) {
        post(store, slot);
    }
    /* Threads that sleep behind the leader, and a leader that is just going to sleep. */
    pthread_mutex_lock(&store->wait_mutex);
    store->wait_round++;
    pthread_cond_broadcast(&store->wait_turn);
    pthread_mutex_unlock(&store->wait_mutex);
}

void shmq_interrupt(struct shmq_store *store)
{
    /* Counted before anybody is woken: a leader that becomes ASLEEP too late for that post sees the count. */
    atomic_fetch_add_explicit(&store->interrupts, 1, memory_order_seq_cst);
    shmq_wake_client(store, store->client_slot);
}

static bool queues_have_news(struct shmq_store *store, const uint32_t *queues, const uint64_t *offsets, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct shmq_queue *entry = shmq_queue_entry(store, queues[i]);
        if (entry == NULL || shmq_load_acquire(&entry->offset_max) <= offsets[i]) {
            continue;
        }
        if (!shmq_queue_is_sync(store, queues[i])) {
            return true;
        }
        uint8_t bytes[SHMQ_UNIT_BYTES];
        struct shmq_unit unit;
        if (shmq_units_read(store, queues[i], offsets[i], 1, bytes) != 1) {
            return true; /* not in memory any more, so long durable */
        }
        shmq_unit_unpack(bytes, &unit);
        const uint64_t visible = shmq_queue_visible_end(store, queues[i]);
        if ((unit.log_position <= visible && unit.record_bytes <= visible - unit.log_position) ||
            unit.log_position > shmq_load_acquire(&store->log->end)) { /* a bad unit is for its reader to judge */
            return true;
        }
    }
    return false;
}

static bool has_news(struct shmq_store *store, const struct shmq_watch *watch)
{
    if (watch->interruptible &&
        atomic_load_explicit(&store->interrupts, memory_order_acquire) != watch->interrupts_seen) {
        return true;
    }
    return shmq_load_acquire(&store->log->durable_end) >= watch->durable_end ||
           queues_have_news(store, watch->queues, watch->offsets, watch->count);
}

static bool spin_for_news(struct shmq_store *store, const struct shmq_watch *watch, uint32_t spin_us)
{
    if (spin_us == 0 || store->processors < 2) {
        return has_news(store, watch);
    }
    uint64_t until = store->io->monotonic_ns() + (uint64_t)spin_us * 1000u;
    do {
        for (int i = 0; i < 16; i++) {
            if (has_news(store, watch)) {
                return true;
            }
            shmq_pause();
        }
    } while (store->io->monotonic_ns() < until);
    return false;
}

static void raise_hands(struct shmq_store *store, const uint32_t *queues, uint32_t count)
{
    uint64_t bit = UINT64_C(1) << (store->client_slot % 64);
    SHMQ_POINT("wait.looked");
    for (uint32_t i = 0; i < count; i++) {
        if (shmq_queue_is_number(store, queues[i])) {
            atomic_fetch_or_explicit(&store->waiters[queues[i] & store->queue_mask], bit, memory_order_relaxed);
        }
    }
    atomic_thread_fence(memory_order_seq_cst); /* pairs with the fence in shmq_wake */
    SHMQ_POINT("wait.raised");
}

/* The leader's sleep; its state is ASLEEP already. SHMQ_TIMED_OUT only when nobody claimed our wake-up. */
static enum shmq_status sleep_as_leader(struct shmq_store *store, sem_t *semaphore, const struct shmq_watch *watch,
                                        uint64_t deadline_ns)
{
    enum shmq_status status = SHMQ_OK;
    raise_hands(store, watch->queues, watch->count);
    if (!has_news(store, watch)) {
        struct timespec until = shmq_timespec(deadline_ns);
        if (sem_clockwait(semaphore, CLOCK_MONOTONIC, &until) == 0) {
            return SHMQ_OK;
        }
        status = errno == EINTR ? SHMQ_OK : SHMQ_TIMED_OUT; /* a signal: let the caller look at it */
    }
    uint32_t asleep = SHMQ_CLIENT_ASLEEP;
    if (!atomic_compare_exchange_strong_explicit(&store->clients[store->client_slot].state, &asleep, SHMQ_CLIENT_AWAKE,
                                                 memory_order_acq_rel, memory_order_relaxed)) {
        /* Somebody woke us at the same moment; take its post, or the next sleep would end at once. */
        struct timespec soon = shmq_timespec(store->io->monotonic_ns() + 100000000u);
        (void)sem_clockwait(semaphore, CLOCK_MONOTONIC, &soon);
        status = SHMQ_OK;
    }
    return status;
}

/* Another thread of this process waits on the semaphore; sleep until it comes back. wait_mutex held, so the leader
 * is either still ASLEEP, and any writer that takes our bits posts it, or on its way back to us. */
static enum shmq_status sleep_behind_leader(struct shmq_store *store, const struct shmq_watch *watch,
                                            uint64_t deadline_ns)
{
    uint64_t round = store->wait_round;
    struct timespec until = shmq_timespec(deadline_ns);
    raise_hands(store, watch->queues, watch->count);
    if (has_news(store, watch)) {
        return SHMQ_OK;
    }
    while (store->wait_round == round) {
        if (pthread_cond_clockwait(&store->wait_turn, &store->wait_mutex, CLOCK_MONOTONIC, &until) == ETIMEDOUT) {
            return SHMQ_TIMED_OUT;
        }
    }
    return SHMQ_OK;
}

enum shmq_status shmq_wait(struct shmq_store *store, const uint32_t *queues, const uint64_t *offsets, uint32_t count,
                           uint32_t spin_us, uint64_t deadline_ns)
{
    const struct shmq_watch watch = {.queues = queues, .offsets = offsets, .count = count, .durable_end = UINT64_MAX};
    return shmq_wait_for(store, &watch, spin_us, deadline_ns);
}

enum shmq_status shmq_wait_for(struct shmq_store *store, const struct shmq_watch *watch, uint32_t spin_us,
                               uint64_t deadline_ns)
{
    if (spin_for_news(store, watch, spin_us)) {
        return SHMQ_OK;
    }
    if (store->client_slot >= store->sizes.client_max) {
        return SHMQ_BAD_ARGUMENT;
    }
    sem_t *semaphore = semaphore_of(store, store->client_slot);
    if (semaphore == NULL) {
        return SHMQ_SYSTEM;
    }
    pthread_mutex_lock(&store->wait_mutex);
    if (store->wait_leader) {
        enum shmq_status status = sleep_behind_leader(store, watch, deadline_ns);
        pthread_mutex_unlock(&store->wait_mutex);
        return status;
    }
    store->wait_leader = true;
    atomic_store_explicit(&store->clients[store->client_slot].state, SHMQ_CLIENT_ASLEEP, memory_order_seq_cst);
    pthread_mutex_unlock(&store->wait_mutex);
    enum shmq_status status = sleep_as_leader(store, semaphore, watch, deadline_ns);
    pthread_mutex_lock(&store->wait_mutex);
    store->wait_leader = false;
    store->wait_round++;
    pthread_cond_broadcast(&store->wait_turn);
    pthread_mutex_unlock(&store->wait_mutex);
    return status;
}
