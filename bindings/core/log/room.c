/* Room for records: the append lock together with a place in the log and a frame for every unit.
 *
 *   lock · no open claim in the way · still writable · a place in a mapped file, or the next file · frames
 *
 * What is missing is made without the lock, and everything is looked at again: a file that is not mapped here, unit
 * memory, the next file of the log (the keeper makes it), the end of another's claim.
 *
 * Page faults belong outside the lock: the pages behind the log end are made present before it is taken. The keeper has
 * usually done so already, 16 to 128 MiB ahead; a writer that has to make pages itself pays ten times what finding them
 * costs.
 */
#include "core/bytes.h"
#include "core/log/log.h"

#define KEEPER_PATIENCE_NS UINT64_C(2000000000)
#define SPACE_POLL_NS UINT64_C(200000)

void shmq_roll(struct shmq_store *store, const struct shmq_mapping *mapping, uint64_t end)
{
    struct shmq_log *log = store->log;
    const uint64_t file_end = mapping->base + store->sizes.file_bytes;
    uint8_t *blank = mapping->data + (end - mapping->base);
    shmq_store32(shmq_store32(blank, (uint32_t)(file_end - end)), SHMQ_RECORD_MAGIC_BLANK);
    SHMQ_POINT("roll.blank");
    atomic_store_explicit(&log->end, file_end, memory_order_release);
    SHMQ_POINT("roll.moved");
    log->rolled++;
    shmq_ring_keeper(store); /* the spare is in use now */
}

/* Find where the next records go; writes the BLANK and moves to the next file where this one has no room. SHMQ_SYSTEM:
 * the file at log_position has to be mapped first, without the lock. */
static enum shmq_status place_find(struct shmq_store *store, struct shmq_commit *commit)
{
    struct shmq_log *log = store->log;
    uint64_t file_bytes = store->sizes.file_bytes;
    uint64_t allocated = shmq_load_acquire(&log->allocated_end);
    uint64_t end = atomic_load_explicit(&log->end, memory_order_relaxed);
    for (;;) {
        commit->log_position = end;
        if (end >= allocated) {
            return SHMQ_LOG_FULL;
        }
        struct shmq_mapping *mapping = commit->mapping = shmq_mapping_cached_writable(store, end);
        if (mapping == NULL) {
            return SHMQ_SYSTEM;
        }
        uint64_t file_end = mapping->base + file_bytes;
        if (end + commit->bytes + SHMQ_RECORD_BLANK_BYTES <= file_end) {
            return SHMQ_OK;
        }
        if ((uint64_t)commit->bytes + SHMQ_RECORD_BLANK_BYTES > file_bytes) {
            return SHMQ_TOO_LARGE;
        }
        if (file_end >= allocated) {
            commit->log_position = file_end;
            return SHMQ_LOG_FULL;
        }
        if (file_end - end < SHMQ_RECORD_BLANK_BYTES) {
            return SHMQ_CORRUPT; /* every record leaves room for a BLANK: the log end was overwritten */
        }
        shmq_roll(store, mapping, end);
        end = file_end;
    }
}

static inline enum shmq_status room_frames(struct shmq_store *store, const struct shmq_commit *commit)
{
    uint32_t q = 0;
    enum shmq_status status;
    if (commit->units == 0) {
        return SHMQ_OK;
    }
    do {
        uint64_t next = atomic_load_explicit(&shmq_queue_place(store, commit->queues[q])->offset_max, memory_order_relaxed);
        status = shmq_frames_ensure(store, commit->queues[q], next, commit->units);
    } while (++q < commit->queue_count && status == SHMQ_OK);
    return status;
}

enum shmq_status shmq_room_frames(struct shmq_store *store, const struct shmq_commit *commit)
{
    return room_frames(store, commit);
}

/* The next file is not there yet. A living keeper makes one within milliseconds, so wait for it as for the lock; without
 * a keeper it is never made. */
static enum shmq_status space_wait(struct shmq_store *store, uint64_t log_position, uint64_t deadline_ns)
{
    if (deadline_ns == 0) {
        return SHMQ_WOULD_BLOCK;
    }
    while (shmq_load_acquire(&store->log->allocated_end) <= log_position) {
        shmq_ring_keeper(store);
        uint64_t now = store->io->monotonic_ns();
        if (now >= deadline_ns || shmq_keeper_is_silent(store, now, KEEPER_PATIENCE_NS)) {
            return SHMQ_LOG_FULL;
        }
        if (atomic_load_explicit(&store->log->read_only, memory_order_acquire) != SHMQ_WRITABLE) {
            return SHMQ_READ_ONLY;
        }
        struct timespec pause = shmq_timespec(SPACE_POLL_NS);
        clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
    }
    return SHMQ_OK;
}

enum shmq_status shmq_room_give_back(struct shmq_store *store, uint64_t position)
{
    struct shmq_log *log = store->log;
    enum shmq_status status = shmq_lock(store, 0);
    if (status != SHMQ_OK) {
        return status;
    }
    /* A writer maps a file only after the log end has come to it, and a claim lies in the file of the log end: no other
     * process has mapped what lies behind the file after that one, so its name may be used for another file later. */
    uint64_t end = atomic_load_explicit(&log->end, memory_order_relaxed);
    if (end + store->sizes.file_bytes >= position) {
        shmq_unlock(store);
        return SHMQ_WOULD_BLOCK;
    }
    atomic_store_explicit(&log->allocated_end, position, memory_order_release);
    shmq_unlock(store);
    return SHMQ_OK;
}

/* Make what was missing, lock not held. SHMQ_OK: try again. */
static enum shmq_status room_make(struct shmq_store *store, enum shmq_status missing, const struct shmq_commit *commit,
                                  bool *grown, uint64_t deadline_ns)
{
    if (missing == SHMQ_LOG_FULL) {
        return space_wait(store, commit->log_position, deadline_ns);
    }
    if (missing == SHMQ_SYSTEM) {
        return shmq_mapping_get_writable(store, commit->log_position) != NULL ? SHMQ_OK : SHMQ_SYSTEM;
    }
    return shmq_frames_grow_once(store, missing, grown);
}

/* A flush makes the pages at the log end read-only for every process, and the next store of each faults. Many that were
 * served by one flush would take that fault one after the other, inside the lock; so it is taken before it, for the pages
 * where the record begins and ends. An OR of nothing changes no byte that another process is writing just now. */
static void touch_for_store(const struct shmq_store *store, const struct shmq_mapping *mapping, uint64_t position,
                            uint64_t bytes)
{
    if (shmq_has_sync(store)) {
        const uint64_t first = position - mapping->base, last = first + bytes + SHMQ_RECORD_BLANK_BYTES - 1;
        (void)__atomic_fetch_or(mapping->data + first, 0, __ATOMIC_RELAXED);
        if (last / SHMQ_PAGE_BYTES != first / SHMQ_PAGE_BYTES && last < mapping->bytes) {
            (void)__atomic_fetch_or(mapping->data + last, 0, __ATOMIC_RELAXED);
        }
    }
}

enum shmq_status shmq_room_enter(struct shmq_store *store, struct shmq_commit *commit, uint64_t deadline_ns)
{
    struct shmq_log *log = store->log;
    bool grown = false;
    for (;;) {
        uint64_t end = atomic_load_explicit(&log->end, memory_order_relaxed);
        struct shmq_mapping *mapping = shmq_mapping_cached_writable(store, end);
        if (mapping != NULL) {
            shmq_mapping_populate(store, mapping, end, commit->bytes);
            touch_for_store(store, mapping, end, commit->bytes);
        }
        enum shmq_status status = shmq_lock(store, deadline_ns);
        if (status != SHMQ_OK) {
            return status;
        }
        if (atomic_load_explicit(&log->claim.state, memory_order_acquire) == SHMQ_CLAIM_OPEN) {
            shmq_unlock(store);
            status = deadline_ns == 0 ? SHMQ_WOULD_BLOCK : shmq_claim_wait(store, deadline_ns);
            if (status != SHMQ_OK) {
                return status;
            }
            continue;
        }
        /* Once more under the lock: a generation that was retired since must not grow any more, nor a queue that left. */
        for (uint32_t q = 0; q < commit->queue_count && status == SHMQ_OK; q++) {
            status = shmq_writable_check(store, commit->queues[q]);
        }
        status = status != SHMQ_OK ? status : place_find(store, commit);
        status = status != SHMQ_OK ? status : room_frames(store, commit);
        if (status == SHMQ_OK) {
            return SHMQ_OK;
        }
        shmq_unlock(store);
        status = room_make(store, status, commit, &grown, deadline_ns);
        if (status != SHMQ_OK) {
            return status;
        }
    }
}
