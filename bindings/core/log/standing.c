/* Whether this log takes records: who is the master, until when, and what else keeps one out.
 *
 *   standing    WRITABLE ──follow──▶ FOLLOWER       records come by shmq_replicate only; "": none is elected yet
 *               FOLLOWER ──lead────▶ WRITABLE       promoted, in the living segments: who is attached sends from now on
 *               WRITABLE ──fence───▶ FENCED         another broker may be the master; only shmq_lead undoes it
 *               WRITABLE ──lease over──▶ FENCED
 *
 * A fenced log is given up: its records from some place on may not be
 * the new master's. So demotion makes a new generation of segments over a log file with another inode, and a process that
 * was stopped in an append wakes up over memory that is not read any more. Promotion changes one word: what
 * follows a master has no writer but the one who asks for it.
 *
 * The order of a promotion: fence of transactions, epoch, standing, read_only. Killed anywhere before the last one the
 * log takes no records, and the next call does all of it once more.
 *
 * The lease is for a master whom others may replace while it cannot hear them. It is looked at under the append lock, at
 * most a quarter of a millisecond late, and by the clock once more before a record that was stored is acknowledged: a
 * process may have been stopped in between. CLOCK_BOOTTIME also runs while the host sleeps. A broker without a lease pays
 * nothing: `doubts`, which every append looks at, is 0 then.
 */
#include <string.h>

#include "core/log/log.h"

#define LEASE_TICKS_MAX UINT64_C(500000) /* as the clock in append.c */

/* From `standing` to what an append looks at. Any other reason stays; behind it shmq_set_read_only says this one. */
static void read_only_follow(struct shmq_store *store)
{
    const uint32_t word = atomic_load_explicit(&store->log->read_only, memory_order_acquire);
    if (word == SHMQ_WRITABLE || word == SHMQ_READ_ONLY_FEW_REPLICAS) {
        shmq_set_read_only(store, SHMQ_WRITABLE); /* which means `standing` */
    }
}

static void fence(struct shmq_store *store)
{
    uint32_t standing = SHMQ_WRITABLE;
    if (atomic_compare_exchange_strong_explicit(&store->log->standing, &standing, SHMQ_READ_ONLY_FENCED,
                                                memory_order_acq_rel, memory_order_acquire) ||
        standing == SHMQ_READ_ONLY_FENCED) {
        SHMQ_POINT("standing.fenced");
        read_only_follow(store);
    }
}

/* ---- the lease ---------------------------------------------------------------------------------------- */
static bool is_over(struct shmq_store *store)
{
    const uint64_t until = shmq_load_acquire(&store->log->lease_until_ns);
    if (until == 0 || store->io->boottime_ns() < until) {
        return false;
    }
    fence(store);
    return true;
}

static bool lease_holds(struct shmq_store *store)
{
    if (atomic_load_explicit(&store->log->leased, memory_order_acquire) == 0) {
        return true;
    }
#if defined(__x86_64__)
    const uint64_t ticks = __builtin_ia32_rdtsc();
    if (ticks - store->lease_ticks < LEASE_TICKS_MAX) {
        return true;
    }
    if (is_over(store)) {
        return false;
    }
    store->lease_ticks = ticks;
    return true;
#else
    return !is_over(store);
#endif
}

/* Why no record is taken, or that it is. */
static __attribute__((noinline)) enum shmq_status doubted(struct shmq_store *store)
{
    struct shmq_log *log = store->log;
    if (atomic_load_explicit(&log->retired, memory_order_relaxed) != 0) {
        return SHMQ_RETIRED;
    }
    if (!store->writable) {
        return SHMQ_READ_ONLY;
    }
    if (!lease_holds(store)) {
        return SHMQ_NOT_MASTER;
    }
    const uint32_t word = atomic_load_explicit(&log->read_only, memory_order_relaxed);
    /* A log that is no master's says so whatever else is wrong: a slave whose disk is full does not ask for patience. */
    if (atomic_load_explicit(&log->standing, memory_order_relaxed) != SHMQ_WRITABLE || word == SHMQ_READ_ONLY_FOLLOWER ||
        word == SHMQ_READ_ONLY_FENCED) {
        return SHMQ_NOT_MASTER;
    }
    return word == SHMQ_WRITABLE ? SHMQ_OK : SHMQ_READ_ONLY;
}

enum shmq_status shmq_writable_check(struct shmq_store *store, uint32_t queue)
{
    if (!store->writable || atomic_load_explicit(&store->log->doubts, memory_order_relaxed) != 0) {
        const enum shmq_status status = doubted(store);
        if (status != SHMQ_OK) {
            return status;
        }
    }
    return shmq_queue_entry(store, queue) != NULL ? SHMQ_OK : SHMQ_NO_QUEUE;
}

bool shmq_lease_lasts(struct shmq_store *store)
{
    return !store->writable || atomic_load_explicit(&store->log->leased, memory_order_acquire) == 0 || !is_over(store);
}

enum shmq_status shmq_receipt_doubted(struct shmq_store *store)
{
    if (!shmq_lease_lasts(store)) {
        return SHMQ_DOUBTED;
    }
    /* Fenced since it was stored: what the new master has not got is cut off. A full disk is no reason. */
    const uint32_t standing = atomic_load_explicit(&store->log->standing, memory_order_acquire);
    return standing == SHMQ_READ_ONLY_FENCED ? SHMQ_DOUBTED : SHMQ_OK;
}

enum shmq_status shmq_lease(struct shmq_store *store, uint64_t until_ns)
{
    struct shmq_log *log = store->log;
    if (!store->writable) {
        return SHMQ_READ_ONLY;
    }
    atomic_store_explicit(&log->lease_until_ns, until_ns, memory_order_release);
    atomic_store_explicit(&log->leased, until_ns != 0, memory_order_release);
    return SHMQ_OK;
}

/* ---- follow, lead, fence ------------------------------------------------------------------------------ */
static bool is_address(const char *leader)
{
    return strlen(leader) <= SHMQ_LEADER_BYTES_MAX;
}

/* The first byte last: who reads it meanwhile sees no leader, and not a part of one. */
static void leader_set(struct shmq_log *log, const char *leader)
{
    const size_t rest = strlen(leader);
    if (rest != 0) {
        memcpy(log->leader + 1, leader + 1, rest);
    }
    __atomic_store_n(&log->leader[0], leader[0], __ATOMIC_RELEASE);
}

enum shmq_status shmq_follow(struct shmq_store *store, const char *leader, uint64_t deadline_ns)
{
    struct shmq_log *log = store->log;
    if (!is_address(leader)) {
        return SHMQ_BAD_ARGUMENT;
    }
    enum shmq_status status = shmq_lock(store, deadline_ns);
    if (status != SHMQ_OK) {
        return status;
    }
    if (atomic_load_explicit(&log->claim.state, memory_order_acquire) == SHMQ_CLAIM_OPEN) {
        status = SHMQ_BROKER_BUSY; /* its record would come into a log that is a copy */
    } else {
        memcpy(log->leader, leader, strlen(leader) + 1);
        atomic_store_explicit(&log->standing, SHMQ_READ_ONLY_FOLLOWER, memory_order_release);
        read_only_follow(store);
    }
    shmq_unlock(store);
    return status;
}

enum shmq_status shmq_lead(struct shmq_store *store, uint64_t epoch, uint64_t deadline_ns)
{
    struct shmq_log *log = store->log;
    enum shmq_status status = shmq_lock(store, deadline_ns);
    if (status != SHMQ_OK) {
        return status;
    }
    const uint32_t standing = atomic_load_explicit(&log->standing, memory_order_relaxed);
    if (atomic_load_explicit(&log->retired, memory_order_relaxed) != 0) {
        status = SHMQ_RETIRED;
    } else if (epoch < atomic_load_explicit(&log->epoch, memory_order_relaxed)) {
        status = SHMQ_FENCED;
    } else {
        /* Halves of before: their producers were the old master's. The broker that asks them now is alone with that. */
        const uint64_t end = atomic_load_explicit(&log->end, memory_order_relaxed);
        if (standing != SHMQ_WRITABLE && atomic_load_explicit(&log->fence, memory_order_relaxed) < end) {
            atomic_store_explicit(&log->fence, end, memory_order_release);
        }
        SHMQ_POINT("standing.halves");
        atomic_store_explicit(&log->epoch, epoch, memory_order_release);
        SHMQ_POINT("standing.epoch");
        atomic_store_explicit(&log->standing, SHMQ_WRITABLE, memory_order_release);
        SHMQ_POINT("standing.leads");
        leader_set(log, ""); /* or it would count as the successor when this one is fenced */
        const uint32_t word = atomic_load_explicit(&log->read_only, memory_order_acquire);
        if (word == SHMQ_READ_ONLY_FOLLOWER || word == SHMQ_READ_ONLY_FENCED) {
            shmq_set_read_only(store, SHMQ_WRITABLE);
        }
    }
    shmq_unlock(store);
    return status;
}

enum shmq_status shmq_fence_off(struct shmq_store *store, const char *leader, uint64_t deadline_ns)
{
    struct shmq_log *log = store->log;
    if (!store->writable || !is_address(leader)) {
        return store->writable ? SHMQ_BAD_ARGUMENT : SHMQ_READ_ONLY;
    }
    if (atomic_load_explicit(&log->standing, memory_order_acquire) == SHMQ_READ_ONLY_FOLLOWER) {
        return SHMQ_NOT_MASTER; /* it takes no records, and names its master already */
    }
    if (atomic_load_explicit(&log->standing, memory_order_acquire) == SHMQ_WRITABLE || log->leader[0] == 0) {
        leader_set(log, leader); /* not read yet, or fenced before the successor was known */
    }
    fence(store); /* without the lock: its holder may be stopped */
    const enum shmq_status status = shmq_lock(store, deadline_ns);
    if (status == SHMQ_OK) {
        shmq_unlock(store); /* from here on no append is under way that had looked before */
    }
    return status == SHMQ_WOULD_BLOCK ? SHMQ_BROKER_BUSY : status;
}

void shmq_retire(struct shmq_store *store)
{
    atomic_store_explicit(&store->log->retired, 1, memory_order_release);
    shmq_wake_all(store);
}
