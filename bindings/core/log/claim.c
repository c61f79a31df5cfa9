/* The claim: two-phase append for long records and for bodies that a user writes in place.
 *
 *   open     lock · claim {owner, position, bytes} · state = OPEN · unlock        log end does not move
 *   write    the owner fills the body, no lock held
 *   commit   lock · still ours? · header and tail · intent · end = position + bytes · state = FREE · unlock
 *   abort    lock · still ours? · state = FREE · unlock
 *
 * There is one claim, not a table of them: the log end cannot pass an open claim, so whoever comes second waits for the
 * first whatever the table holds; one word keeps repair and proof small.
 *
 * Nobody waits for long. A waiter that finds the owner dead (pid and start time) frees the claim: a dead process stores
 * nothing. An owner that lives but needs more than SHMQ_CLAIM_PATIENCE_NS is evicted: the region becomes a hole, a
 * complete record that belongs to no queue (sysFlag rollback, topic SHMQ_HOLE_TOPIC), and the log goes on behind it. The
 * owner may still write into the hole's body, which nobody reads; its commit answers SHMQ_EVICTED and the body is
 * copied to a new place. Memory a living process may write into is never handed out again.
 *
 * The body of a record with an IPv6 host lies 12 bytes further on: its claim is opened for a body that much longer, which
 * keeps the hole's tail behind everything the owner may write.
 */
#include <string.h>

#include "core/internal.h"

#define WAIT_SLICE_NS UINT64_C(1000000)
#define SPIN_PAUSES 400
/* A hole without its body: the 88 bytes before it, the topic with its length, the CRC property with its length. */
#define HOLE_OVERHEAD (SHMQ_RECORD_BODY_AT + 1 + (uint32_t)sizeof SHMQ_HOLE_TOPIC - 1 + 2 + SHMQ_RECORD_CRC_BYTES)

static bool claim_is_ours(const struct shmq_store *store, const struct shmq_claim_handle *handle)
{
    struct shmq_claim *claim = &store->log->claim;
    return atomic_load_explicit(&claim->state, memory_order_acquire) == SHMQ_CLAIM_OPEN &&
           claim->serial == handle->serial && claim->owner_pid == store->self_pid &&
           claim->owner_start == store->self_start;
}

static void claim_free(struct shmq_store *store)
{
    atomic_store_explicit(&store->log->claim.state, SHMQ_CLAIM_FREE, memory_order_release);
}

static void claim_wake(struct shmq_store *store)
{
    shmq_futex_wake(&store->log->claim.state, INT32_MAX);
}

void shmq_claim_repair(struct shmq_store *store)
{
    struct shmq_claim *claim = &store->log->claim;
    if (atomic_load_explicit(&claim->state, memory_order_acquire) == SHMQ_CLAIM_OPEN &&
        claim->log_position < atomic_load_explicit(&store->log->end, memory_order_relaxed)) {
        claim_free(store);
        claim_wake(store);
    }
}

enum shmq_status shmq_claim_open(struct shmq_store *store, uint32_t queue, uint32_t body_bytes_max,
                                 uint32_t tail_bytes_max, uint64_t deadline_ns, struct shmq_claim_handle *handle)
{
    enum shmq_status status = shmq_writable_check(store, queue);
    if (status != SHMQ_OK) {
        return status;
    }
    if (body_bytes_max > SHMQ_BODY_BYTES_MAX || tail_bytes_max > SHMQ_RECORD_BYTES_MAX - SHMQ_BODY_BYTES_MAX - 256) {
        return SHMQ_TOO_LARGE;
    }
    /* Should it come to a hole: its tail has to lie behind every byte the owner may still write. */
    uint32_t bytes = SHMQ_RECORD_BODY_AT + body_bytes_max + tail_bytes_max;
    bytes = bytes < HOLE_OVERHEAD + body_bytes_max ? HOLE_OVERHEAD + body_bytes_max : bytes;
    struct shmq_place place;
    status = shmq_enter(store, queue, bytes, 0, deadline_ns, &place);
    if (status != SHMQ_OK) {
        return status;
    }
    struct shmq_claim *claim = &store->log->claim;
    /* Atomic only because waiters look at these three without the lock, to see whether it is worth taking. */
    __atomic_store_n(&claim->owner_pid, store->self_pid, __ATOMIC_RELAXED);
    __atomic_store_n(&claim->owner_start, store->self_start, __ATOMIC_RELAXED);
    claim->serial++;
    claim->log_position = place.log_position;
    claim->bytes = bytes;
    __atomic_store_n(&claim->opened_ns, store->io->monotonic_ns(), __ATOMIC_RELAXED);
    store->log->claims++;
    SHMQ_POINT("claim.filled");
    atomic_store_explicit(&claim->state, SHMQ_CLAIM_OPEN, memory_order_release);
    SHMQ_POINT("claim.open");
    handle->serial = claim->serial;
    handle->log_position = place.log_position;
    handle->bytes = bytes;
    handle->queue = queue;
    handle->body_bytes_max = body_bytes_max;
    handle->tail_bytes_max = tail_bytes_max;
    handle->mapping = shmq_mapping_hold(place.mapping);
    handle->body = place.mapping->data + (place.log_position - place.mapping->base) + SHMQ_RECORD_BODY_AT;
    shmq_unlock(store);
    return SHMQ_OK;
}

static enum shmq_status commit_locked(struct shmq_store *store, struct shmq_claim_handle *handle,
                                      const struct shmq_spec *spec, int64_t tag_hash, uint64_t now_ms,
                                      struct shmq_appended *out)
{
    uint8_t *record = handle->body - SHMQ_RECORD_BODY_AT;
    struct shmq_place place = {.mapping = handle->mapping, .log_position = handle->log_position};
    const uint32_t units = shmq_is_queued(spec->sys_flag);
    uint64_t next = atomic_load_explicit(&store->queues[handle->queue].offset_max, memory_order_relaxed);
    uint64_t store_ms = shmq_store_time(store, now_ms);
    struct shmq_spec final = *spec;
    final.born_ms = spec->born_ms == 0 ? store_ms : spec->born_ms;
    struct shmq_patch patch;
    /* Only under the lock: until here an evictor may write the header of a hole at the same place. */
    shmq_record_encode(record, &final, &patch);
    shmq_record_patch(record, &patch, units != 0 ? next : 0, handle->log_position, store_ms);
    shmq_intend(store, handle->queue, handle->log_position, patch.record_bytes, next, units);
    struct shmq_unit unit = {.log_position = handle->log_position,
                             .record_bytes = patch.record_bytes,
                             .tag_hash = shmq_unit_code(tag_hash, store_ms)};
    if (units != 0 && !shmq_unit_write(store, handle->queue, next, &unit)) {
        shmq_intend_nothing(store);
        return SHMQ_CORRUPT;
    }
    SHMQ_POINT("claim.commit");
    if (patch.described) {
        shmq_describe(store, handle->log_position + patch.record_bytes);
    }
    shmq_publish(store, handle->queue, &place, patch.record_bytes, next, units);
    SHMQ_POINT("claim.committed");
    claim_free(store);
    out->queue_offset = units != 0 ? next : 0;
    out->log_position = handle->log_position;
    out->end = handle->log_position + patch.record_bytes;
    out->store_ms = store_ms;
    return SHMQ_OK;
}

enum shmq_status shmq_claim_commit(struct shmq_store *store, struct shmq_claim_handle *handle,
                                   const struct shmq_spec *spec, int64_t tag_hash, uint64_t deadline_ns,
                                   struct shmq_appended *out)
{
    enum shmq_status status = shmq_writable_check(store, handle->queue);
    if (status != SHMQ_OK) {
        return status;
    }
    if (spec->body != NULL || spec->body_bytes > handle->body_bytes_max || shmq_record_bytes(spec) - 1 >= handle->bytes) {
        return SHMQ_TOO_LARGE;
    }
    uint64_t now_ms = store->io->wall_ms();
    for (bool grown = false;; grown = true) {
        status = shmq_lock(store, deadline_ns);
        if (status != SHMQ_OK) {
            return status;
        }
        if (!claim_is_ours(store, handle)) {
            shmq_unlock(store);
            return SHMQ_EVICTED;
        }
        uint64_t next = atomic_load_explicit(&store->queues[handle->queue].offset_max, memory_order_relaxed);
        status = shmq_writable_check(store, handle->queue); /* as in shmq_enter */
        if (status == SHMQ_OK && shmq_is_queued(spec->sys_flag)) {
            status = shmq_frames_ensure(store, handle->queue, next, 1);
        }
        if (status == SHMQ_OK) {
            status = commit_locked(store, handle, spec, tag_hash, now_ms, out);
        }
        shmq_unlock(store);
        if (status != SHMQ_UNITS_FULL || grown || shmq_frames_grow(store, 256) != SHMQ_OK) {
            break;
        }
    }
    if (status == SHMQ_OK) {
        claim_wake(store);
        shmq_mapping_release(handle->mapping);
        handle->mapping = NULL;
    }
    return status;
}

void shmq_claim_abort(struct shmq_store *store, struct shmq_claim_handle *handle)
{
    if (handle->mapping == NULL) {
        return;
    }
    /* The claim is ours alone to free, so waiting here cannot be shortened by giving up. */
    uint64_t deadline_ns = store->io->monotonic_ns() + UINT64_C(10000000000);
    if (shmq_lock(store, deadline_ns) == SHMQ_OK) {
        if (claim_is_ours(store, handle)) {
            claim_free(store);
            SHMQ_POINT("claim.aborted");
        } else {
            /* Evicted: what we wrote lies in a hole whose body CRC speaks of zeros. Make it true. */
            uint8_t *record = handle->body - SHMQ_RECORD_BODY_AT;
            struct shmq_view view;
            if (shmq_record_decode(record, handle->bytes, &view) == SHMQ_OK &&
                view.log_position == handle->log_position && view.sys_flag == SHMQ_SYS_FLAG_ROLLBACK) {
                memset(handle->body, 0, view.body_bytes);
            }
        }
        shmq_unlock(store);
        claim_wake(store);
    }
    shmq_mapping_release(handle->mapping);
    handle->mapping = NULL;
}

enum shmq_status shmq_append_claimed(struct shmq_store *store, uint32_t queue, const struct shmq_spec *spec,
                                     int64_t tag_hash, uint64_t deadline_ns, struct shmq_appended *out)
{
    uint32_t record = shmq_record_bytes(spec), longer = shmq_record_body_at(spec) - SHMQ_RECORD_BODY_AT;
    struct shmq_spec in_place = *spec;
    for (;;) {
        struct shmq_claim_handle claim;
        enum shmq_status status = shmq_claim_open(store, queue, spec->body_bytes + longer,
                                                  record - SHMQ_RECORD_BODY_AT - longer - spec->body_bytes,
                                                  deadline_ns, &claim);
        if (status != SHMQ_OK) {
            return status;
        }
        in_place.body = NULL;
        in_place.body_crc_raw = shmq_crc32_copy_raw(UINT32_MAX, claim.body + longer, spec->body,
                                                    spec->body_bytes);
        status = shmq_claim_commit(store, &claim, &in_place, tag_hash, deadline_ns, out);
        if (status == SHMQ_OK) {
            return SHMQ_OK;
        }
        shmq_claim_abort(store, &claim);
        if (status != SHMQ_EVICTED) {
            return status;
        }
        if (store->io->monotonic_ns() >= deadline_ns) {
            return deadline_ns == 0 ? SHMQ_WOULD_BLOCK : SHMQ_BROKER_BUSY;
        }
    }
}

/* Lock held: turn the region of a living but slow owner into a hole and let the log go on behind it. */
static enum shmq_status evict(struct shmq_store *store)
{
    struct shmq_claim *claim = &store->log->claim;
    uint64_t position = claim->log_position, bytes = claim->bytes;
    struct shmq_mapping *mapping = shmq_mapping_cached(store, position);
    if (mapping == NULL) {
        return (enum shmq_status)SHMQ_MAP_FIRST;
    }
    uint64_t room = mapping->base + mapping->bytes - position;
    struct shmq_spec hole = {.topic = SHMQ_HOLE_TOPIC, .topic_bytes = sizeof SHMQ_HOLE_TOPIC - 1,
                             .sys_flag = SHMQ_SYS_FLAG_ROLLBACK, .born_ms = shmq_store_time(store, 0)};
    if (position != atomic_load_explicit(&store->log->end, memory_order_relaxed) || bytes < HOLE_OVERHEAD ||
        bytes > SHMQ_RECORD_BYTES_MAX || bytes + SHMQ_RECORD_BLANK_BYTES > room) {
        return SHMQ_CORRUPT; /* somebody scribbled on the claim; the keeper reports it */
    }
    hole.body_bytes = (uint32_t)bytes - HOLE_OVERHEAD;
    /* A body as long as the owner's may become is enough; what the owner never writes to can be used again. */
    hole.body_bytes = hole.body_bytes < SHMQ_BODY_BYTES_MAX ? hole.body_bytes : SHMQ_BODY_BYTES_MAX;
    hole.body_crc_raw = shmq_crc32_multiply(UINT32_MAX, shmq_crc32_shift(hole.body_bytes));
    memcpy(hole.store_host, store->head->store_host, sizeof hole.store_host);
    memcpy(hole.born_host, store->head->store_host, sizeof hole.born_host);
    uint8_t *record = mapping->data + (position - mapping->base);
    struct shmq_patch patch;
    shmq_record_encode(record, &hole, &patch);
    shmq_record_patch(record, &patch, 0, position, store->log->store_ms_last);
    memset(record + patch.record_bytes, 0, SHMQ_RECORD_BLANK_BYTES);
    SHMQ_POINT("evict.hole");
    atomic_store_explicit(&store->log->end, position + patch.record_bytes, memory_order_release);
    SHMQ_POINT("evict.committed");
    store->log->claims_evicted++;
    claim_free(store);
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
                claim_free(store);
                SHMQ_POINT("claim.orphan");
            } else if (store->io->monotonic_ns() - claim->opened_ns > SHMQ_CLAIM_PATIENCE_NS) {
                status = evict(store);
            }
        }
        shmq_unlock(store);
        if ((int)status != SHMQ_MAP_FIRST) {
            claim_wake(store);
            return status;
        }
        if (shmq_mapping_get(store, position) == NULL) {
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
        if (now >= deadline_ns) {
            atomic_fetch_add_explicit(&store->log->busy, 1, memory_order_relaxed);
            return SHMQ_BROKER_BUSY;
        }
        uint64_t until = now + WAIT_SLICE_NS < deadline_ns ? now + WAIT_SLICE_NS : deadline_ns;
        shmq_futex_wait(&claim->state, SHMQ_CLAIM_OPEN, until);
        if (atomic_load_explicit(&claim->state, memory_order_acquire) == SHMQ_CLAIM_OPEN && claim_may_end(store)) {
            enum shmq_status status = claim_end(store, deadline_ns);
            if (status != SHMQ_OK) {
                return status;
            }
        }
    }
    return SHMQ_OK;
}
