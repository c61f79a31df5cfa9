/* Wake: writers wake one sleeper, and sleepers wake each other. Readers sleep on their own POSIX semaphore (sleep.c).
 *
 *   reader                                        writer, after its commit
 *     state = ASLEEP, in its own life of the slot   fence seq_cst
 *     watched = bits of its queues                  hands = waiters[queue]; none: done, no system call
 *     waiters[queue] |= bit(slot mod 64)            hands = exchange(waiters[queue], 0)     one writer gets them
 *     fence seq_cst                                 the first slot that is ASLEEP on the queue, of those with a hand up:
 *     look again; found: state = AWAKE                  state: ASLEEP -> AWAKE by compare-and-swap
 *     sem_clockwait                                     errand = all slots behind it; post its semaphore
 *     carry out the errand
 *
 * Dekker's handshake: each side stores, fences, loads, so at least one sees the other. A post follows exactly one
 * ASLEEP -> AWAKE change, so the semaphore never runs ahead.
 *
 * A post takes 5 to 25 us, so a writer that posted five hundred would be away for milliseconds. It posts one, and says in
 * that one's slot which others are to be woken: a range of slots. A woken process cuts its range in two and does the same
 * in each half before it looks at its messages. So all are awake after nine steps for five hundred, each slot is looked
 * at once, and ranges only get smaller, so it ends.
 *
 *   slots        0   1   2   3   4   5   6   7            0 is posted with the errand 1–7,
 *                └──▶┬───────┐   └──▶ …                    it posts 1 with 2–4 and 5 with 6–7, …
 *
 * An errand is taken back when both halves have been posted. Killed before, its process leaves it in the slot, and the one
 * that frees the slot carries it out (shmq_client_drop); carried out twice, it wakes a process in vain. One that is stopped
 * with an errand, and a writer that dies between taking the hands and posting, hold the others up no longer than
 * `sleep_ns_max`: then each looks for itself (sleep.c).
 *
 * `watched` is a hint that keeps those asleep who sleep on other queues; with it and the hands, only a slot that shares
 * both its own bit and a queue's bit with another is woken in vain.
 *
 * A broker that appends for its clients wakes the others only (shmq_wake_others): it serves its own waiting pulls itself,
 * and being woken by its own append would make its two threads compete for the GIL. It posts two, one on each side of
 * itself.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <semaphore.h>
#include <stdio.h>

#include "core/log/log.h"

static_assert(SHMQ_CLIENTS_MAX <= UINT64_C(1) << 16, "an errand names slots in 16 bits");

struct range {             /* the slots from `first` to `last` that sleep on `queue` and have a hand up */
    uint32_t queue;        /* SHMQ_NONE: whatever they sleep on */
    uint32_t first, last;
    uint64_t hands;
};

sem_t *shmq_semaphore(struct shmq_store *store, uint32_t slot)
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
    shmq_standard_hold(); /* it opens a file for a moment */
    sem_t *opened = sem_open(name, 0);
    shmq_standard_release();
    if (opened == SEM_FAILED) {
        return NULL;
    }
    /* glibc hands out one address per name, so two threads that race here store the same pointer. */
    atomic_store_explicit(place, opened, memory_order_release);
    return opened;
}

static bool claim_wake_up(struct shmq_client *client)
{
    uint32_t asleep = SHMQ_CLIENT_ASLEEP;
    return atomic_compare_exchange_strong_explicit(&client->state, &asleep, SHMQ_CLIENT_AWAKE, memory_order_acq_rel,
                                                   memory_order_relaxed);
}

static void post(struct shmq_store *store, uint32_t slot)
{
    sem_t *semaphore = shmq_semaphore(store, slot);
    if (semaphore != NULL) {
        sem_post(semaphore);
    }
    atomic_fetch_add_explicit(&store->readers->wakes, 1, memory_order_relaxed);
}

/* False: a late writer has left another errand here, which stays. */
static bool errand_give(struct shmq_client *client, const struct range *rest)
{
    uint64_t none = 0;
    if (atomic_load_explicit(&client->errand, memory_order_relaxed) != none) {
        return false;
    }
    atomic_store_explicit(&client->errand_hands, rest->hands, memory_order_relaxed);
    const uint64_t errand = (uint64_t)rest->queue << 32 | rest->first << 16 | rest->last;
    return atomic_compare_exchange_strong_explicit(&client->errand, &none, errand, memory_order_release,
                                                   memory_order_relaxed);
}

/* Wake the slot and have it wake the rest of the range. False: it does not take the rest. */
static bool wake_with_errand(struct shmq_store *store, uint32_t slot, const struct range *range)
{
    struct shmq_client *client = &store->clients[slot];
    const struct range rest = {.queue = range->queue, .first = slot + 1, .last = range->last, .hands = range->hands};
    if (atomic_load_explicit(&client->state, memory_order_acquire) != SHMQ_CLIENT_ASLEEP ||
        (range->queue != SHMQ_NONE &&
         (atomic_load_explicit(&client->watched, memory_order_relaxed) & shmq_watched_bit(range->queue)) == 0) ||
        !claim_wake_up(client)) {
        return false;
    }
    SHMQ_POINT("wake.promised");
    const bool taken = slot == range->last || errand_give(client, &rest);
    SHMQ_POINT("wake.told");
    post(store, slot);
    return taken;
}

static void wake_range(struct shmq_store *store, const struct range range)
{
    uint32_t slot = range.first;
    while (slot <= range.last) {
        const uint64_t hands = range.hands >> slot % 64;
        if (hands == 0) {
            slot = (slot | 63) + 1;
            continue;
        }
        slot += (uint32_t)__builtin_ctzll(hands);
        if (slot > range.last || wake_with_errand(store, slot, &range)) {
            return;
        }
        slot++;
    }
}

void shmq_errand_run(struct shmq_store *store, uint32_t slot)
{
    struct shmq_client *client = &store->clients[slot];
    const uint64_t errand = atomic_load_explicit(&client->errand, memory_order_acquire);
    if (errand == 0) {
        return;
    }
    struct range half = {.queue = (uint32_t)(errand >> 32), .first = errand >> 16 & 0xffff, .last = errand & 0xffff,
                         .hands = atomic_load_explicit(&client->errand_hands, memory_order_relaxed)};
    const uint32_t last = half.last < store->sizes.client_max ? half.last : store->sizes.client_max - 1;
    if (half.first <= last) {
        half.last = half.first + (last - half.first) / 2;
        wake_range(store, half);
        SHMQ_POINT("wake.half");
        half.first = half.last + 1;
        half.last = last;
        wake_range(store, half);
    }
    atomic_store_explicit(&client->errand, 0, memory_order_release);
    SHMQ_POINT("wake.passed");
}

/* Every slot that has ever been used; false when there is none. */
static bool range_open(const struct shmq_store *store, struct range *range)
{
    const uint32_t high = shmq_client_count(store);
    range->last = high - 1;
    return high != 0;
}

/* `bits_kept` stay up: those of the slot that needs no wake-up, and of others with its bit. */
static __attribute__((noinline)) void wake_hands(struct shmq_store *store, uint32_t queue, uint64_t bits_kept,
                                                 uint32_t slot_kept)
{
    struct range range = {.queue = queue};
    _Atomic uint64_t *waiters = &store->waiters[queue & store->queue_mask];
    range.hands = bits_kept == 0 ? atomic_exchange_explicit(waiters, 0, memory_order_acq_rel)
                                 : atomic_fetch_and_explicit(waiters, bits_kept, memory_order_acq_rel);
    SHMQ_POINT("wake.taken");
    if (!range_open(store, &range)) {
        return;
    }
    if (slot_kept > range.last) {
        wake_range(store, range);
        return;
    }
    const uint32_t last = range.last;
    if (slot_kept > 0) {
        range.last = slot_kept - 1;
        wake_range(store, range);
    }
    range.first = slot_kept + 1;
    range.last = last;
    wake_range(store, range);
}

static inline void wake_slots(struct shmq_store *store, uint32_t queue, uint64_t bits_kept, uint32_t slot_kept)
{
    if (!shmq_queue_is_number(store, queue)) {
        return;
    }
    if (shmq_queue_is_sync(store, queue)) {
        /* Readers are woken when the bytes are durable, not before. */
        shmq_want_durable(store, shmq_load_acquire(&store->log->end));
        return;
    }
    atomic_thread_fence(memory_order_seq_cst); /* pairs with the fence in raise_hands, sleep.c */
    if (atomic_load_explicit(&store->waiters[queue & store->queue_mask], memory_order_relaxed) != 0) {
        wake_hands(store, queue, bits_kept, slot_kept);
    }
}

void shmq_wake(struct shmq_store *store, uint32_t queue)
{
    wake_slots(store, queue, 0, SHMQ_NONE);
}

void shmq_wake_others(struct shmq_store *store, uint32_t queue)
{
    const uint32_t own = shmq_client_slot(shmq_client_own(store));
    wake_slots(store, queue, own == SHMQ_NONE ? 0 : UINT64_C(1) << own % 64, own);
}

void shmq_wake_all(struct shmq_store *store)
{
    struct range range = {.queue = SHMQ_NONE, .hands = UINT64_MAX};
    atomic_thread_fence(memory_order_seq_cst);
    if (range_open(store, &range)) {
        wake_range(store, range);
    }
}

void shmq_wake_slot(struct shmq_store *store, uint32_t slot)
{
    atomic_thread_fence(memory_order_seq_cst);
    if (slot < store->sizes.client_max && claim_wake_up(&store->clients[slot])) {
        post(store, slot);
    }
}
