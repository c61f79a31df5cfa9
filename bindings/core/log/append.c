/* Append: one record or a batch to one queue of the one log.
 *
 *   encode and CRC into a private buffer                                   no lock
 *   lock · (roll) · (frames) · intent
 *     patch queueOffset, physicalOffset, storeTimestamp, CRC · copy · zero 8 bytes behind · units
 *     end = position + bytes          the commit point, one release store
 *     offset_max += count             consumers see it from here
 *   unlock · wake                                                          no lock
 *
 * Killed before the commit store: nothing happened, the bytes past the end are overwritten. Killed after it: the next
 * lock holder raises offset_max from the intent. The intent is invalidated before its fields change; a variant that
 * left that out corrupted the log at 3 of 953 kill points.
 */
#include <string.h>

#include "core/internal.h"

#define GROW_FRAMES 256u /* step of a writer that finds no unit frame while the keeper is dead or late */
#define KEEPER_SILENT_NS UINT64_C(2000000000)
#define SPACE_POLL_NS UINT64_C(200000)

/* A quarter of a millisecond at 2 GHz, less on faster clocks: how old a cached wall clock may be. SHMQ_STAMP_AGE_MS holds
 * as long as a counter makes 500 million ticks a second. */
#define CLOCK_TICKS_MAX UINT64_C(500000)

/* Milliseconds since the epoch. Reading the clock costs as much as copying a record, so it is read again only when the
 * cycle counter has moved on; the counter only judges age, it is never converted. */
uint64_t shmq_now_ms_cached(struct shmq_store *store)
{
#if defined(__x86_64__)
    uint64_t ticks = __builtin_ia32_rdtsc();
    if (ticks - store->clock_ticks >= CLOCK_TICKS_MAX) {
        store->clock_ms = store->io->wall_ms();
        store->clock_ticks = ticks;
    }
    return store->clock_ms;
#else
    return store->io->wall_ms();
#endif
}

enum shmq_status shmq_writable_check(const struct shmq_store *store, uint32_t queue)
{
    const struct shmq_log *log = store->log;
    if (atomic_load_explicit(&((struct shmq_log *)(uintptr_t)log)->retired, memory_order_relaxed) != 0) {
        return SHMQ_RETIRED;
    }
    if (!store->writable || atomic_load_explicit(&log->read_only, memory_order_relaxed) != SHMQ_WRITABLE) {
        return SHMQ_READ_ONLY;
    }
    return queue < atomic_load_explicit(&log->queue_count, memory_order_relaxed) &&
                   queue < store->sizes.queue_max
               ? SHMQ_OK
               : SHMQ_NO_QUEUE;
}

static void put_blank(uint8_t *out, uint64_t space)
{
    memcpy(out, (uint32_t[2]){__builtin_bswap32((uint32_t)space), __builtin_bswap32(SHMQ_RECORD_MAGIC_BLANK)}, 8);
}

/* Find where the next record goes; writes the BLANK and moves to the next file where this one has no room. */
static enum shmq_status place_find(struct shmq_store *store, uint32_t bytes, struct shmq_place *place)
{
    struct shmq_log *log = store->log;
    uint64_t file_bytes = store->sizes.file_bytes;
    if ((uint64_t)bytes + SHMQ_RECORD_BLANK_BYTES > file_bytes) {
        return SHMQ_TOO_LARGE;
    }
    uint64_t allocated = shmq_load_acquire(&log->allocated_end);
    uint64_t end = atomic_load_explicit(&log->end, memory_order_relaxed);
    for (;;) {
        place->log_position = end;
        if (end >= allocated) {
            return SHMQ_LOG_FULL;
        }
        place->mapping = shmq_mapping_cached(store, end);
        if (place->mapping == NULL) {
            return (enum shmq_status)SHMQ_MAP_FIRST;
        }
        uint64_t file_end = place->mapping->base + file_bytes;
        if (end + bytes + SHMQ_RECORD_BLANK_BYTES <= file_end) {
            return SHMQ_OK;
        }
        if (file_end >= allocated) {
            place->log_position = file_end;
            return SHMQ_LOG_FULL;
        }
        if (file_end - end < SHMQ_RECORD_BLANK_BYTES) {
            return SHMQ_CORRUPT; /* every record leaves room for a BLANK: somebody scribbled on the log end */
        }
        put_blank(place->mapping->data + (end - place->mapping->base), file_end - end);
        SHMQ_POINT("roll.blank");
        atomic_store_explicit(&log->end, file_end, memory_order_release);
        SHMQ_POINT("roll.moved");
        log->rolled++;
        shmq_ring_keeper(store); /* the spare is in use now */
        end = file_end;
    }
}

/* The section could not start; repair what can be repaired without the lock. SHMQ_OK: try again. */
static enum shmq_status unblock(struct shmq_store *store, enum shmq_status status, const struct shmq_place *place,
                                bool *grown)
{
    if ((int)status == SHMQ_MAP_FIRST) {
        return shmq_mapping_get(store, place->log_position) != NULL ? SHMQ_OK : SHMQ_SYSTEM;
    }
    if (status == SHMQ_UNITS_FULL && !*grown) {
        *grown = true;
        return shmq_frames_grow(store, GROW_FRAMES);
    }
    return status;
}

/* The next file is not there yet. A living keeper makes one within milliseconds, so wait for it as one waits for the
 * lock; without a keeper nobody will. */
static enum shmq_status space_wait(struct shmq_store *store, uint64_t log_position, uint64_t deadline_ns)
{
    if (deadline_ns == 0) {
        return SHMQ_WOULD_BLOCK;
    }
    while (shmq_load_acquire(&store->log->allocated_end) <= log_position) {
        shmq_ring_keeper(store);
        uint64_t now = store->io->monotonic_ns();
        uint64_t beat = shmq_load_acquire(&store->log->keeper_beat_ns);
        if (now >= deadline_ns || (now > beat && now - beat > KEEPER_SILENT_NS)) {
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

enum shmq_status shmq_enter(struct shmq_store *store, uint32_t queue, uint32_t bytes, uint32_t count,
                            uint64_t deadline_ns, struct shmq_place *place)
{
    struct shmq_log *log = store->log;
    bool grown = false;
    for (;;) {
        uint64_t end = atomic_load_explicit(&log->end, memory_order_relaxed);
        struct shmq_mapping *mapping = shmq_mapping_cached(store, end);
        if (mapping != NULL) {
            shmq_mapping_populate(mapping, end, bytes); /* page faults belong outside the lock */
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
        /* Once more under the lock: a generation that was retired since must not grow any more. */
        status = shmq_writable_check(store, queue);
        status = status != SHMQ_OK ? status : place_find(store, bytes, place);
        if (status == SHMQ_OK && count > 0) {
            uint64_t next = atomic_load_explicit(&store->queues[queue].offset_max, memory_order_relaxed);
            status = shmq_frames_ensure(store, queue, next, count);
        }
        if (status == SHMQ_OK) {
            return SHMQ_OK;
        }
        shmq_unlock(store);
        status = status == SHMQ_LOG_FULL ? space_wait(store, place->log_position, deadline_ns)
                                         : unblock(store, status, place, &grown);
        if (status != SHMQ_OK) {
            return status;
        }
    }
}

uint64_t shmq_store_time(struct shmq_store *store, uint64_t now_ms)
{
    if (now_ms > store->log->store_ms_last) {
        store->log->store_ms_last = now_ms;
    }
    return store->log->store_ms_last;
}

void shmq_intend(struct shmq_store *store, uint32_t queue, uint64_t log_position, uint64_t bytes, uint64_t queue_offset,
                 uint32_t count)
{
    struct shmq_intent *intent = &store->log->intent;
#ifndef SHMQ_MUTANT_KEEP_INTENT
    atomic_store_explicit(&intent->kind, SHMQ_INTENT_NONE, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
#endif
    intent->queue = queue;
    intent->log_position = log_position;
    intent->record_bytes = bytes;
    intent->queue_offset = queue_offset;
    intent->count = count;
    atomic_store_explicit(&intent->kind, SHMQ_INTENT_APPEND, memory_order_release);
    SHMQ_POINT("append.intent");
}

void shmq_intend_nothing(struct shmq_store *store)
{
    atomic_store_explicit(&store->log->intent.kind, SHMQ_INTENT_NONE, memory_order_release);
}

static void offset_raise(struct shmq_store *store, uint32_t queue, uint64_t next)
{
    atomic_store_explicit(&store->queues[queue].offset_max, next, memory_order_release);
}

void shmq_publish(struct shmq_store *store, uint32_t queue, const struct shmq_place *place, uint64_t bytes,
                  uint64_t queue_offset, uint32_t count)
{
    struct shmq_log *log = store->log;
    uint64_t end = place->log_position + bytes;
    /* A scan after a power cut stops at the zero size behind the last record. */
    memset(place->mapping->data + (end - place->mapping->base), 0, SHMQ_RECORD_BLANK_BYTES);
    SHMQ_POINT("append.copied");
#ifdef SHMQ_MUTANT_OFFSET_FIRST
    offset_raise(store, queue, queue_offset + count);
#endif
#ifndef SHMQ_MUTANT_END_FIRST
    atomic_store_explicit(&log->end, end, memory_order_release);
#endif
    SHMQ_POINT("append.committed");
#ifndef SHMQ_MUTANT_OFFSET_FIRST
    if (count > 0) {
        offset_raise(store, queue, queue_offset + count);
    }
#endif
    SHMQ_POINT("append.published");
    log->deaths_in_a_row = 0;
    log->appended += count;
    log->appended_bytes += bytes;
    store->queues[queue].bytes += bytes;
#ifndef SHMQ_MUTANT_KEEP_INTENT
    shmq_intend_nothing(store);
#endif
}

/* Lock held: number, copy, patch and publish `count` encoded records that lie back to back in store->scratch; `units` is
 * `count`, or 0 when they belong to no queue. */
static enum shmq_status append_locked(struct shmq_store *store, uint32_t queue, const struct shmq_place *place,
                                      const struct shmq_patch *patches, const int64_t *tag_hashes, uint32_t count,
                                      uint32_t units, uint32_t bytes, uint64_t now_ms, struct shmq_appended *out)
{
    uint64_t first = atomic_load_explicit(&store->queues[queue].offset_max, memory_order_relaxed);
    uint64_t store_ms = shmq_store_time(store, now_ms);
    shmq_intend(store, queue, place->log_position, bytes, first, units);
#ifdef SHMQ_MUTANT_END_FIRST
    atomic_store_explicit(&store->log->end, place->log_position + bytes, memory_order_release);
#endif
    /* Patched in place: a copy's wide loads would wait for the narrow stores of a patch just before it. */
    uint8_t *record = place->mapping->data + (place->log_position - place->mapping->base);
    memcpy(record, store->scratch, bytes);
    bool described = false;
    for (uint32_t i = 0, at = 0; i < count; at += patches[i].record_bytes, i++) {
        described |= patches[i].described;
        struct shmq_unit unit = {.log_position = place->log_position + at,
                                 .record_bytes = patches[i].record_bytes,
                                 .tag_hash = shmq_unit_code(tag_hashes[i], store_ms)};
        shmq_record_patch(record + at, &patches[i], units != 0 ? first + i : 0, unit.log_position, store_ms);
        if (units != 0 && !shmq_unit_write(store, queue, first + i, &unit)) {
            shmq_intend_nothing(store);
            return SHMQ_CORRUPT;
        }
    }
    if (described) {
        shmq_describe(store, place->log_position + bytes);
    }
    shmq_publish(store, queue, place, bytes, first, units);
    out->queue_offset = units != 0 ? first : 0;
    out->log_position = place->log_position;
    out->end = place->log_position + bytes;
    out->store_ms = store_ms;
    return SHMQ_OK;
}

static enum shmq_status check_spec(const struct shmq_spec *spec)
{
    return spec->body_bytes > SHMQ_BODY_BYTES_MAX || spec->properties_bytes > SHMQ_PROPERTIES_BYTES_MAX ||
                   spec->topic_bytes > SHMQ_TOPIC_BYTES_MAX
               ? SHMQ_TOO_LARGE
               : SHMQ_OK;
}

/* With many queues in use every word of a queue is a cache miss; asked for before the record is encoded, they arrive
 * while it is. The hint may be stale: it is only an address to look at. */
static void queue_prefetch(const struct shmq_store *store, uint32_t queue)
{
    __builtin_prefetch(&store->queues[queue], 1);
    __builtin_prefetch((const void *)&store->waiters[queue], 0);
}

static void unit_prefetch(const struct shmq_store *store, uint32_t queue)
{
    uint32_t frame = atomic_load_explicit(&store->queues[queue].frame_last, memory_order_relaxed);
    uint64_t next = atomic_load_explicit(&store->queues[queue].offset_max, memory_order_relaxed);
    if (frame < store->sizes.frame_max) {
        __builtin_prefetch(&store->frames[frame], 0);
        const uint8_t *units = store->units + (size_t)frame * SHMQ_FRAME_BYTES;
        __builtin_prefetch(units + next % SHMQ_FRAME_UNITS * SHMQ_UNIT_BYTES, 1);
    }
}

enum shmq_status shmq_append(struct shmq_store *store, uint32_t queue, const struct shmq_spec *spec, int64_t tag_hash,
                             uint64_t deadline_ns, struct shmq_appended *out)
{
    if (!store->writable || queue >= store->sizes.queue_max) {
        return shmq_writable_check(store, queue); /* the rest is judged under the lock */
    }
    enum shmq_status status = check_spec(spec);
    if (status != SHMQ_OK) {
        return status;
    }
    uint32_t bytes = shmq_record_bytes(spec); /* 0 when the parts fit but the whole does not */
    if (bytes == 0) {
        return SHMQ_TOO_LARGE;
    }
    if (bytes > SHMQ_INLINE_BYTES_MAX) {
        return shmq_append_claimed(store, queue, spec, tag_hash, deadline_ns, out);
    }
    queue_prefetch(store, queue);
    uint64_t now_ms = shmq_now_ms_cached(store);
    struct shmq_patch patch;
    if (spec->born_ms == 0) {
        struct shmq_spec born = *spec;
        born.born_ms = now_ms;
        shmq_record_encode(store->scratch, &born, &patch);
    } else {
        shmq_record_encode(store->scratch, spec, &patch);
    }
    unit_prefetch(store, queue);
    const uint32_t units = shmq_is_queued(spec->sys_flag);
    struct shmq_place place;
    status = shmq_enter(store, queue, bytes, units, deadline_ns, &place);
    if (status != SHMQ_OK) {
        return status;
    }
    status = append_locked(store, queue, &place, &patch, &tag_hash, 1, units, bytes, now_ms, out);
    shmq_unlock(store);
    return status;
}

enum shmq_status shmq_append_batch(struct shmq_store *store, uint32_t queue, const struct shmq_spec *specs,
                                   const int64_t *tag_hashes, uint32_t count, uint64_t deadline_ns,
                                   struct shmq_appended *first)
{
    struct shmq_patch patches[SHMQ_BATCH_MAX];
    enum shmq_status status = shmq_writable_check(store, queue);
    if (status != SHMQ_OK || count == 0 || count > SHMQ_BATCH_MAX) {
        return status != SHMQ_OK ? status : SHMQ_BAD_ARGUMENT;
    }
    uint64_t now_ms = shmq_now_ms_cached(store);
    uint32_t bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t record = check_spec(&specs[i]) == SHMQ_OK ? shmq_record_bytes(&specs[i]) : SHMQ_BATCH_BYTES_MAX + 1;
        if (record == 0 || record > SHMQ_BATCH_BYTES_MAX - bytes) {
            return SHMQ_TOO_LARGE;
        }
        if (!shmq_is_queued(specs[i].sys_flag)) {
            return SHMQ_BAD_ARGUMENT;
        }
        struct shmq_spec spec = specs[i];
        spec.born_ms = spec.born_ms == 0 ? now_ms : spec.born_ms;
        shmq_record_encode(store->scratch + bytes, &spec, &patches[i]);
        bytes += record;
    }
    struct shmq_place place;
    status = shmq_enter(store, queue, bytes, count, deadline_ns, &place);
    if (status != SHMQ_OK) {
        return status;
    }
    status = append_locked(store, queue, &place, patches, tag_hashes, count, count, bytes, now_ms, first);
    shmq_unlock(store);
    return status;
}
