/* The claim: room behind the log end that one process fills without the lock. What every other process does with it.
 *
 *   FREE --open--> OPEN --commit · abort--> FREE          by its owner: reserve.c
 *                  OPEN --evict--> FREE                   by a waiter, the owner is slow
 *                  OPEN --free---> FREE                   by a waiter, the owner is dead, or its record is committed
 *
 * There is one claim, not a table of them: the log end cannot pass an open claim, so a second owner would wait for the
 * first whatever the table holds; one word keeps repair and proof small. What a table would have bought, parallel copies
 * of long records, two processors do not pay back.
 *
 * The wait is short, though user code runs while a claim is open. A waiter that finds the owner dead (pid and start
 * time) frees the claim: a dead process stores nothing. An owner that lives but needs more than SHMQ_CLAIM_PATIENCE_NS is
 * evicted: the region becomes a hole, a complete record that belongs to no queue (sysFlag rollback, topic
 * SHMQ_HOLE_TOPIC), so stock RocketMQ steps over it and the log goes on behind it. The owner may still write into the
 * hole's body, which is never read; its commit answers SHMQ_EVICTED and the body is copied to a new place. Memory a living
 * process may write into is never handed out again.
 *
 * Until the evicted owner settles the hole, the hole's body CRC may be wrong. Our recovery accepts that for holes; a stock
 * broker that opened a crash image in that window would stop there.
 */
#include <string.h>

#include "core/log/commit.h"

#define WAIT_SLICE_NS UINT64_C(1000000)
#define SPIN_PAUSES 400

void shmq_claim_free(struct shmq_store *store)
{
    atomic_store_explicit(&store->log->claim.state, SHMQ_CLAIM_FREE, memory_order_release);
}

void shmq_claim_wake(struct shmq_store *store)
{
    shmq_futex_wake(&store->log->claim.state, INT32_MAX);
}

void shmq_claim_repair(struct shmq_store *store)
{
    struct shmq_claim *claim = &store->log->claim;
    if (atomic_load_explicit(&claim->state, memory_order_acquire) == SHMQ_CLAIM_OPEN &&
        claim->log_position < atomic_load_explicit(&store->log->end, memory_order_relaxed)) {
        shmq_claim_free(store);
        shmq_claim_wake(store);
    }
}

/* Lock held: turn the region of a living but slow owner into a hole and let the log go on behind it. SHMQ_SYSTEM: the file
 * it lies in has to be mapped first, without the lock. */
static enum shmq_status evict(struct shmq_store *store)
{
    struct shmq_claim *claim = &store->log->claim;
    uint64_t position = claim->log_position, bytes = claim->bytes;
    struct shmq_mapping *mapping = shmq_mapping_cached_writable(store, position);
    if (mapping == NULL) {
        return SHMQ_SYSTEM;
    }
    uint64_t room = mapping->base + mapping->bytes - position;
    struct shmq_spec hole = {.topic = SHMQ_HOLE_TOPIC, .topic_bytes = sizeof SHMQ_HOLE_TOPIC - 1,
                             .sys_flag = SHMQ_SYS_FLAG_ROLLBACK, .born_ms = shmq_store_time(store, 0)};
    if (position != atomic_load_explicit(&store->log->end, memory_order_relaxed) || bytes < SHMQ_HOLE_OVERHEAD ||
        bytes > SHMQ_RECORD_BYTES_MAX || bytes + SHMQ_RECORD_BLANK_BYTES > room) {
        return SHMQ_CORRUPT; /* the claim was overwritten; the keeper reports it */
    }
    hole.body_bytes = (uint32_t)bytes - SHMQ_HOLE_OVERHEAD;
    /* A body as long as the owner's may become is enough; what the owner never writes to can be used again. */
    hole.body_bytes = hole.body_bytes < SHMQ_BODY_BYTES_MAX ? hole.body_bytes : SHMQ_BODY_BYTES_MAX;
    hole.body_crc_raw = shmq_crc32_multiply(UINT32_MAX, shmq_crc32_shift(hole.body_bytes));
    memcpy(hole.store_host, store->head->store_host, sizeof hole.store_host);
    memcpy(hole.born_host, store->head->store_host, sizeof hole.born_host);
    uint8_t *record = mapping->data + (position - mapping->base);
    struct shmq_patch patch;
    shmq_record_encode(record, &hole, &patch);
    shmq_record_patch(record, &patch, 0, position, store->log->store_ms_last);
    if (!shmq_end_move(store, mapping, position + patch.record_bytes)) {
        return SHMQ_CORRUPT;
    }
    store->log->claims_evicted++;
    shmq_claim_free(store);
    return SHMQ_OK;
}

/* The owner is dead, or has had its time: end the claim. Lock not held. */
static enum shmq_status claim_end(struct shmq_store *store, uint64_t deadline_ns)
{
    struct shmq_claim *claim = &store->log->claim;
    for (;;) {
        enum shmq_status status = shmq_lock(store, deadline_ns);
        if (status != SHMQ_OK) {
            return status;
        }
        uint64_t position = claim->log_position;
        if (atomic_load_explicit(&claim->state, memory_order_acquire) == SHMQ_CLAIM_OPEN) {
            if (shmq_process_died(claim->owner_pid, claim->owner_start)) {
                shmq_claim_free(store);
                SHMQ_POINT("claim.orphan");
            } else if (store->io->monotonic_ns() - claim->opened_ns > SHMQ_CLAIM_PATIENCE_NS) {
                status = evict(store);
            }
        }
        shmq_unlock(store);
        if (status != SHMQ_SYSTEM) {
            shmq_claim_wake(store);
            return status;
        }
        if (shmq_mapping_get_writable(store, position) == NULL) {
            return SHMQ_SYSTEM;
        }
    }
}

/* A guess without the lock, perhaps from the words of two claims; claim_end looks again. */
static bool claim_may_end(const struct shmq_store *store)
{
    const struct shmq_claim *claim = &store->log->claim;
    uint32_t owner_pid = __atomic_load_n(&claim->owner_pid, __ATOMIC_RELAXED);
    return store->io->monotonic_ns() - __atomic_load_n(&claim->opened_ns, __ATOMIC_RELAXED) > SHMQ_CLAIM_PATIENCE_NS ||
           shmq_process_died(owner_pid, __atomic_load_n(&claim->owner_start, __ATOMIC_RELAXED));
}

enum shmq_status shmq_claim_wait(struct shmq_store *store, uint64_t deadline_ns)
{
    struct shmq_claim *claim = &store->log->claim;
    for (int i = 0; i < SPIN_PAUSES && store->processors > 1; i++) {
        if (atomic_load_explicit(&claim->state, memory_order_acquire) != SHMQ_CLAIM_OPEN) {
            return SHMQ_OK;
        }
        shmq_pause();
    }
    while (atomic_load_explicit(&claim->state, memory_order_acquire) == SHMQ_CLAIM_OPEN) {
        uint64_t now = store->io->monotonic_ns();
        if (now < deadline_ns) {
            uint64_t until = now + WAIT_SLICE_NS < deadline_ns ? now + WAIT_SLICE_NS : deadline_ns;
            shmq_futex_wait(&claim->state, SHMQ_CLAIM_OPEN, until);
        }
        /* Also by those who may not wait at all: else a claim whose time is over would stand as long as only they come. */
        if (atomic_load_explicit(&claim->state, memory_order_acquire) == SHMQ_CLAIM_OPEN && claim_may_end(store)) {
            enum shmq_status status = claim_end(store, deadline_ns);
            if (status != SHMQ_OK) {
                return status;
            }
        }
        if (now >= deadline_ns && atomic_load_explicit(&claim->state, memory_order_acquire) == SHMQ_CLAIM_OPEN) {
            atomic_fetch_add_explicit(&store->log->busy, 1, memory_order_relaxed);
            return SHMQ_BROKER_BUSY;
        }
    }
    return SHMQ_OK;
}
