/* Sleep: how a reader waits for news. wake.c is the other half and has the handshake.
 *
 *   look · spin · state = ASLEEP · hands up · look again · sleep on the semaphore · carry out the errand · AWAKE
 *
 * Before it sleeps, a reader spins as long as news may come sooner than a sleep takes, if a processor is idle. 50 us are
 * the limit the library sets: with 20 us a request and its answer just missed each other. The sender of the news may
 * wait for this very processor, and the kernel leaves two that take turns where they are for seconds. So a spin yields
 * every few microseconds, or at once if that is what brought news the last time; and once in a while a reader whose news
 * come in turns sleeps, to be put somewhere else. Without this, one run in five of a ping-pong took a whole spin for each
 * half trip.
 *
 * Threads of one process share its slot: one of them, the leader, waits on the semaphore, the others on a private
 * condition; a leader that comes back lets them all look again.
 *
 * The writer that should have woken a sleeper may have been killed or stopped on its way. So a sleeper puts its hands up and
 * looks again after `sleep_ns_max`, 200 ms: that is the longest that another's death or standstill can cost it.
 *
 * A slot that was taken back may be another process' by now. State and generation are one word here, so a sleeper changes
 * the state of its own life of the slot only. Without one its threads wait on the condition, and look every 200 ms until
 * the process is registered again. A post that reaches a sleeper whose slot was taken back is passed on.
 */
#include <sched.h>
#include <semaphore.h>

#include "core/log/log.h"

#define YIELD_NS UINT64_C(4000) /* a peer that is awake, on another processor, has answered long before */
#define TURN_NS 1000u      /* a yield that another process has used takes longer, an unused one a fifth of it */
#define TURNS_MAX 64u
#define POST_PATIENCE_NS UINT64_C(100000000) /* from a changed state to the post that follows it */

/* ---- the state of our slot ------------------------------------------------------------------------- */
typedef uint64_t __attribute__((may_alias, aligned(8))) life; /* generation << 32 | state */

static life *life_of(const struct shmq_store *store, uint64_t client)
{
    return (life *)(void *)&store->clients[shmq_client_slot(client)].state;
}

static uint64_t life_in(uint64_t client, enum shmq_client_state state)
{
    return client >> 32 << 32 | state;
}

static bool is_asleep(const struct shmq_store *store, uint64_t client)
{
    return __atomic_load_n(life_of(store, client), __ATOMIC_ACQUIRE) == life_in(client, SHMQ_CLIENT_ASLEEP);
}

/* False: the slot was taken back. */
static bool fall_asleep(struct shmq_store *store, uint64_t client)
{
    life *const own = life_of(store, client);
    uint64_t seen = __atomic_load_n(own, __ATOMIC_RELAXED);
    while (seen >> 32 == client >> 32) {
        if (__atomic_compare_exchange_n(own, &seen, life_in(client, SHMQ_CLIENT_ASLEEP), false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_RELAXED)) {
            return true;
        }
    }
    return false;
}

static bool wake_up(struct shmq_store *store, uint64_t client)
{
    uint64_t asleep = life_in(client, SHMQ_CLIENT_ASLEEP);
    return __atomic_compare_exchange_n(life_of(store, client), &asleep, life_in(client, SHMQ_CLIENT_AWAKE), false,
                                       __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

/* ---- news ------------------------------------------------------------------------------------------ */
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
    return shmq_safe_end(store) >= watch->safe_end ||
           queues_have_news(store, watch->queues, watch->offsets, watch->count);
}

/* Let run who waits for this processor; true when that brought news. */
static bool take_turns(struct shmq_store *store, const struct shmq_watch *watch)
{
    const uint64_t began = store->io->monotonic_ns();
    sched_yield();
    if (!has_news(store, watch)) {
        return false;
    }
    if (store->io->monotonic_ns() - began >= TURN_NS) { /* else it came from another processor meanwhile */
        atomic_fetch_add_explicit(&store->turns, 1, memory_order_relaxed);
    }
    return true;
}

static bool spin_for_news(struct shmq_store *store, const struct shmq_watch *watch, uint32_t spin_us)
{
    if (has_news(store, watch)) {
        return true;
    }
    if (spin_us == 0 || store->processors < 2) {
        return false;
    }
    const uint32_t turns = atomic_load_explicit(&store->turns, memory_order_relaxed);
    if (turns != 0) {
        if (turns % TURNS_MAX == 0) {
            atomic_fetch_add_explicit(&store->turns, 1, memory_order_relaxed);
            return false; /* go to sleep: the kernel looks for a processor for every process it wakes */
        }
        if (take_turns(store, watch)) {
            return true;
        }
    }
    uint64_t now = store->io->monotonic_ns(), yield_at = now + YIELD_NS;
    const uint64_t until = now + (uint64_t)spin_us * 1000u;
    do {
        for (int i = 0; i < 16; i++) {
            if (has_news(store, watch)) {
                atomic_store_explicit(&store->turns, 0, memory_order_relaxed);
                return true;
            }
            shmq_pause();
        }
        now = store->io->monotonic_ns();
        if (now >= yield_at) {
            if (take_turns(store, watch)) {
                return true;
            }
            yield_at = now + YIELD_NS;
        }
    } while (now < until);
    return false;
}

static uint64_t watched_bits(const uint32_t *queues, uint32_t count)
{
    uint64_t bits = 0;
    for (uint32_t i = 0; i < count; i++) {
        bits |= shmq_watched_bit(queues[i]);
    }
    return bits;
}

/* ---- sleeping -------------------------------------------------------------------------------------- */
static void raise_hands(struct shmq_store *store, uint64_t client, const uint32_t *queues, uint32_t count)
{
    uint64_t bit = UINT64_C(1) << shmq_client_slot(client) % 64;
    SHMQ_POINT("wait.looked");
    for (uint32_t i = 0; i < count; i++) {
        if (shmq_queue_is_number(store, queues[i])) {
            /* Release: who takes the bit sees that we are asleep, and on what. */
            atomic_fetch_or_explicit(&store->waiters[queues[i] & store->queue_mask], bit, memory_order_release);
        }
    }
    atomic_thread_fence(memory_order_seq_cst); /* pairs with the fence in shmq_wake */
    SHMQ_POINT("wait.raised");
}

static uint64_t slice_end(const struct shmq_store *store, uint64_t deadline_ns)
{
    const uint64_t now = store->io->monotonic_ns();
    return deadline_ns > now && deadline_ns - now > store->sleep_ns_max ? now + store->sleep_ns_max : deadline_ns;
}

struct sleeper {           /* the client that the leader was when it fell asleep, and the semaphore of its slot */
    uint64_t client;
    sem_t *semaphore;
};

/* A writer has woken us. Before anything else, wake those on the slot's errand. */
static enum shmq_status woken(struct shmq_store *store, struct sleeper sleeper, bool is_posted)
{
    SHMQ_POINT("wait.woken");
    if (shmq_client_lives(store, sleeper.client)) {
        shmq_errand_run(store, shmq_client_slot(sleeper.client));
    } else if (is_posted) {
        sem_post(sleeper.semaphore); /* it was for the client that has the slot by now */
    }
    return SHMQ_OK;
}

/* Not asleep any more, by our own decision. SHMQ_OK instead of `status` where a writer woke us at the same moment. */
static enum shmq_status rise(struct shmq_store *store, struct sleeper sleeper, enum shmq_status status)
{
    if (wake_up(store, sleeper.client) || !shmq_client_lives(store, sleeper.client)) {
        return status;
    }
    /* Take its post, or the next sleep would end at once; the errand is there when the post is. */
    struct timespec soon = shmq_timespec(store->io->monotonic_ns() + POST_PATIENCE_NS);
    return woken(store, sleeper, sem_clockwait(sleeper.semaphore, CLOCK_MONOTONIC, &soon) == 0);
}

/* The leader's sleep; its state is ASLEEP already. SHMQ_TIMED_OUT only when no writer claimed our wake-up. */
static enum shmq_status sleep_as_leader(struct shmq_store *store, struct sleeper sleeper, const struct shmq_watch *watch,
                                        uint64_t deadline_ns)
{
    for (;;) {
        raise_hands(store, sleeper.client, watch->queues, watch->count);
        if (has_news(store, watch)) {
            return rise(store, sleeper, SHMQ_OK);
        }
        const uint64_t until_ns = slice_end(store, deadline_ns);
        struct timespec until = shmq_timespec(until_ns);
        if (sem_clockwait(sleeper.semaphore, CLOCK_MONOTONIC, &until) == 0) {
            return woken(store, sleeper, true);
        }
        if (errno == EINTR) {
            return rise(store, sleeper, SHMQ_OK); /* a signal: let the caller look at it */
        }
        if (until_ns == deadline_ns) {
            return rise(store, sleeper, SHMQ_TIMED_OUT);
        }
        if (!is_asleep(store, sleeper.client)) {
            return rise(store, sleeper, SHMQ_OK); /* the slot was taken back, or who woke us died before it posted */
        }
    }
}

/* Another thread of this process waits on the semaphore, or none can: our slot was taken back. Sleep until it comes back, or
 * we are registered again. wait_mutex held, so the leader is either still ASLEEP, and any writer that takes our bits posts
 * it, or on its way back to us. */
static enum shmq_status sleep_beside(struct shmq_store *store, uint64_t client, const struct shmq_watch *watch,
                                     uint64_t deadline_ns)
{
    const uint64_t round = store->wait_round;
    if (shmq_client_lives(store, client)) {
        atomic_fetch_or_explicit(&store->clients[shmq_client_slot(client)].watched,
                                 watched_bits(watch->queues, watch->count), memory_order_relaxed);
    }
    for (;;) {
        raise_hands(store, client, watch->queues, watch->count);
        if (has_news(store, watch)) {
            return SHMQ_OK;
        }
        const uint64_t until_ns = slice_end(store, deadline_ns);
        struct timespec until = shmq_timespec(until_ns);
        int rc = 0;
        while (store->wait_round == round && rc != ETIMEDOUT) {
            rc = pthread_cond_clockwait(&store->wait_turn, &store->wait_mutex, CLOCK_MONOTONIC, &until);
        }
        if (store->wait_round != round) {
            return SHMQ_OK;
        }
        if (until_ns == deadline_ns) {
            return SHMQ_TIMED_OUT;
        }
    }
}

void shmq_wake_own(struct shmq_store *store)
{
    shmq_wake_slot(store, shmq_client_slot(shmq_client_own(store)));
    /* Threads that sleep behind the leader, and a leader that is just going to sleep. */
    pthread_mutex_lock(&store->wait_mutex);
    store->wait_round++;
    pthread_cond_broadcast(&store->wait_turn);
    pthread_mutex_unlock(&store->wait_mutex);
}

void shmq_client_use(struct shmq_store *store, uint64_t client)
{
    atomic_store_explicit(&store->client, client, memory_order_release);
    shmq_wake_own(store);
}

void shmq_interrupt(struct shmq_store *store)
{
    /* Counted before a thread is woken: a leader that becomes ASLEEP too late for that post sees the count. */
    atomic_fetch_add_explicit(&store->interrupts, 1, memory_order_seq_cst);
    shmq_wake_own(store);
}

enum shmq_status shmq_wait(struct shmq_store *store, const uint32_t *queues, const uint64_t *offsets, uint32_t count,
                           uint32_t spin_us, uint64_t deadline_ns)
{
    const struct shmq_watch watch = {.queues = queues, .offsets = offsets, .count = count, .safe_end = UINT64_MAX};
    return shmq_wait_for(store, &watch, spin_us, deadline_ns);
}

enum shmq_status shmq_wait_for(struct shmq_store *store, const struct shmq_watch *watch, uint32_t spin_us,
                               uint64_t deadline_ns)
{
    if (spin_for_news(store, watch, spin_us)) {
        return SHMQ_OK;
    }
    struct sleeper sleeper = {.client = atomic_load_explicit(&store->client, memory_order_acquire)};
    if (shmq_client_slot(sleeper.client) >= store->sizes.client_max) {
        return SHMQ_BAD_ARGUMENT;
    }
    sleeper.semaphore = shmq_semaphore(store, shmq_client_slot(sleeper.client));
    if (sleeper.semaphore == NULL) {
        return SHMQ_SYSTEM;
    }
    pthread_mutex_lock(&store->wait_mutex);
    if (store->wait_leader || !fall_asleep(store, sleeper.client)) {
        enum shmq_status status = sleep_beside(store, sleeper.client, watch, deadline_ns);
        pthread_mutex_unlock(&store->wait_mutex);
        return status;
    }
    store->wait_leader = true;
    /* Before a hand is raised: a writer that takes the hand sees on what we sleep. */
    atomic_store_explicit(&store->clients[shmq_client_slot(sleeper.client)].watched,
                          watched_bits(watch->queues, watch->count), memory_order_relaxed);
    pthread_mutex_unlock(&store->wait_mutex);
    enum shmq_status status = sleep_as_leader(store, sleeper, watch, deadline_ns);
    pthread_mutex_lock(&store->wait_mutex);
    store->wait_leader = false;
    store->wait_round++;
    pthread_cond_broadcast(&store->wait_turn);
    pthread_mutex_unlock(&store->wait_mutex);
    return status;
}
