/* Two-phase append: for long records, and for bodies that a user writes in place.
 *
 *   open     lock · claim {owner, position, bytes} · state = OPEN · unlock        log end does not move
 *   write    the owner fills the body, no lock held
 *   commit   lock · still ours? · header and tail · commit.c · state = FREE · unlock
 *   abort    lock · still ours? · state = FREE · unlock
 *
 * What others do with a claim whose owner is slow or dead: claim.c.
 *
 * The body of a record with an IPv6 host lies 12 bytes further on: its claim is opened for a body that much longer, which
 * keeps the hole's tail behind everything the owner may write.
 */
#include "core/log/commit.h"

static bool is_ours(const struct shmq_store *store, const struct shmq_claim_handle *handle)
{
    struct shmq_claim *claim = &store->log->claim;
    return atomic_load_explicit(&claim->state, memory_order_acquire) == SHMQ_CLAIM_OPEN &&
           claim->serial == handle->serial && claim->owner_pid == store->self_pid &&
           claim->owner_start == store->self_start;
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
    bytes = bytes < SHMQ_HOLE_OVERHEAD + body_bytes_max ? SHMQ_HOLE_OVERHEAD + body_bytes_max : bytes;
    struct shmq_commit room = {.queues = &queue, .queue_count = 1, .bytes = bytes};
    status = shmq_room_enter(store, &room, deadline_ns);
    if (status != SHMQ_OK) {
        return status;
    }
    struct shmq_claim *claim = &store->log->claim;
    /* Atomic only because waiters look at these three without the lock, to see whether it is worth taking. */
    __atomic_store_n(&claim->owner_pid, store->self_pid, __ATOMIC_RELAXED);
    __atomic_store_n(&claim->owner_start, store->self_start, __ATOMIC_RELAXED);
    claim->serial++;
    claim->log_position = room.log_position;
    claim->bytes = bytes;
    __atomic_store_n(&claim->opened_ns, store->io->monotonic_ns(), __ATOMIC_RELAXED);
    store->log->claims++;
    SHMQ_POINT("claim.filled");
    atomic_store_explicit(&claim->state, SHMQ_CLAIM_OPEN, memory_order_release);
    SHMQ_POINT("claim.open");
    handle->serial = claim->serial;
    handle->log_position = room.log_position;
    handle->bytes = bytes;
    handle->queue = queue;
    handle->body_bytes_max = body_bytes_max;
    handle->tail_bytes_max = tail_bytes_max;
    handle->mapping = shmq_mapping_hold(room.mapping);
    handle->body = room.mapping->data + (room.log_position - room.mapping->base) + SHMQ_RECORD_BODY_AT;
    shmq_unlock(store);
    return SHMQ_OK;
}

/* Lock held, the claim is ours: the body lies where it stays, so only what is around it is written. */
static enum shmq_status commit_locked(struct shmq_store *store, struct shmq_claim_handle *handle,
                                      const struct shmq_spec *spec, struct shmq_commit *commit,
                                      struct shmq_appended *out)
{
    struct shmq_patch patch;
    commit->patches = &patch;
    commit->bytes = shmq_record_bytes(spec);
    /* Only under the lock: until here an evictor may write the header of a hole at the same place. */
    shmq_record_lay(handle->body - SHMQ_RECORD_BODY_AT, spec, commit->bytes, shmq_store_time(store, commit->now_ms),
                    &patch);
    SHMQ_POINT("claim.commit");
    enum shmq_status status = shmq_commit(store, commit, out);
    if (status == SHMQ_OK) {
        SHMQ_POINT("claim.committed");
        shmq_claim_free(store);
    }
    return status;
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
    struct shmq_commit commit = {.queues = &handle->queue,
                                 .queue_count = 1,
                                 .count = 1,
                                 .units = shmq_is_queued(spec->sys_flag),
                                 .tag_hashes = &tag_hash,
                                 .now_ms = shmq_clock_ms(store),
                                 .mapping = handle->mapping,
                                 .log_position = handle->log_position};
    for (bool grown = false;;) {
        status = shmq_lock(store, deadline_ns);
        if (status != SHMQ_OK) {
            return status;
        }
        if (!is_ours(store, handle)) {
            shmq_unlock(store);
            return SHMQ_EVICTED;
        }
        status = shmq_writable_check(store, handle->queue); /* as in room.c */
        status = status != SHMQ_OK ? status : shmq_room_frames(store, &commit);
        status = status != SHMQ_OK ? status : commit_locked(store, handle, spec, &commit, out);
        shmq_unlock(store);
        if (status == SHMQ_OK) {
            break;
        }
        status = shmq_frames_grow_once(store, status, &grown);
        if (status != SHMQ_OK) {
            return status;
        }
    }
    shmq_claim_wake(store);
    shmq_mapping_release(handle->mapping);
    handle->mapping = NULL;
    return shmq_receipt(store);
}

void shmq_claim_abort(struct shmq_store *store, struct shmq_claim_handle *handle)
{
    if (handle->mapping == NULL) {
        return;
    }
    /* The claim is ours alone to free, so waiting here cannot be shortened by giving up. */
    uint64_t deadline_ns = store->io->monotonic_ns() + UINT64_C(10000000000);
    if (shmq_lock(store, deadline_ns) == SHMQ_OK) {
        if (is_ours(store, handle)) {
            shmq_claim_free(store);
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
        shmq_claim_wake(store);
    }
    shmq_mapping_release(handle->mapping);
    handle->mapping = NULL;
}

/* Copy into the claim and return the body's CRC register. */
uint32_t shmq_claim_fill(uint8_t *to, const struct shmq_spec *spec)
{
    if (!spec->body_changes) {
        return shmq_crc32_copy_raw(UINT32_MAX, to, spec->body, spec->body_bytes);
    }
    memcpy(to, spec->body, spec->body_bytes); /* the CRC of what arrived, whatever the source does meanwhile */
    return shmq_crc32_raw(UINT32_MAX, to, spec->body_bytes);
}

enum shmq_status shmq_append_long(struct shmq_store *store, uint32_t queue, const struct shmq_spec *spec,
                                  int64_t tag_hash, uint64_t deadline_ns, const struct shmq_claim_steps *steps,
                                  void *context, struct shmq_appended *out)
{
    const uint32_t record = shmq_record_bytes(spec), longer = shmq_record_body_at(spec) - SHMQ_RECORD_BODY_AT;
    const uint32_t body_bytes = spec->body_bytes + longer;
    if (record == 0) {
        return SHMQ_TOO_LARGE;
    }
    struct shmq_spec in_place = *spec;
    in_place.body = NULL;
    for (;;) {
        struct shmq_claim_handle claim;
        enum shmq_status status = steps->open(context, queue, body_bytes, record - SHMQ_RECORD_BODY_AT - body_bytes,
                                              deadline_ns, &claim);
        if (status != SHMQ_OK) {
            return status;
        }
        in_place.body_crc_raw = steps->fill(claim.body + longer, spec);
        status = steps->commit(context, &claim, &in_place, tag_hash, deadline_ns, out);
        if (status == SHMQ_OK) {
            return SHMQ_OK;
        }
        steps->abort(context, &claim);
        if (status != SHMQ_EVICTED) {
            return status;
        }
        if (store->io->monotonic_ns() >= deadline_ns) { /* too slow for the others' patience, again and again */
            return deadline_ns == 0 ? SHMQ_WOULD_BLOCK : SHMQ_BROKER_BUSY;
        }
    }
}

static enum shmq_status step_open(void *store, uint32_t queue, uint32_t body_bytes_max, uint32_t tail_bytes_max,
                                  uint64_t deadline_ns, struct shmq_claim_handle *claim)
{
    return shmq_claim_open(store, queue, body_bytes_max, tail_bytes_max, deadline_ns, claim);
}

static enum shmq_status step_commit(void *store, struct shmq_claim_handle *claim, const struct shmq_spec *spec,
                                    int64_t tag_hash, uint64_t deadline_ns, struct shmq_appended *out)
{
    return shmq_claim_commit(store, claim, spec, tag_hash, deadline_ns, out);
}

static void step_abort(void *store, struct shmq_claim_handle *claim)
{
    shmq_claim_abort(store, claim);
}

const struct shmq_claim_steps shmq_claim_steps_plain = {
    .open = step_open, .fill = shmq_claim_fill, .commit = step_commit, .abort = step_abort};
