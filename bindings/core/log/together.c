/* Append records of different queues together: all of them are in the log, or none.
 *
 *   encode all, back to back, into a private buffer                                     no lock
 *   lock · (roll) · frames of every queue · fence · intent
 *     copy · patch each · zero 8 bytes behind · a unit for each
 *     end = position + bytes          the one commit point of all of them, one release store
 *     offset_max of each queue        a reader may see one queue raised before the other
 *   unlock
 *
 * (1) The intent names every queue, so whoever comes after a death raises what the victim did not. Doing it twice
 *     changes nothing: an offset_max is only ever raised.
 * (2) The records lie back to back in one file. A power cut that keeps a part of them keeps the first ones.
 * (3) The fence is a log position. What a caller does on account of an older record, it does only while that lies at or
 *     above the fence; both are looked at under the lock. So one who raises the fence knows afterwards that nothing
 *     more is done for the records below it, without asking whoever was going to.
 */
#include <stdlib.h>
#include <string.h>

#include "core/internal.h"

#define GROW_FRAMES 256u

struct together { const struct shmq_entry *entries; uint32_t count, bytes; uint8_t *data; };

static bool is_fenced(struct shmq_store *store, uint64_t because_of)
{
    return because_of < atomic_load_explicit(&store->log->fence, memory_order_relaxed);
}

/* Lock held on SHMQ_OK only: a place for all bytes, and a frame for the next unit of every queue. */
static enum shmq_status enter(struct shmq_store *store, const struct together *all, uint64_t deadline_ns,
                              struct shmq_place *place)
{
    for (bool grown = false;; grown = true) {
        enum shmq_status status = shmq_enter(store, all->entries[0].queue, all->bytes, 1, deadline_ns, place);
        if (status != SHMQ_OK) {
            return status;
        }
        for (uint32_t i = 1; status == SHMQ_OK && i < all->count; i++) {
            const uint32_t queue = all->entries[i].queue;
            const uint64_t next = atomic_load_explicit(&store->queues[queue].offset_max, memory_order_relaxed);
            status = shmq_frames_ensure(store, queue, next, 1);
        }
        if (status == SHMQ_OK) {
            return SHMQ_OK;
        }
        shmq_unlock(store);
        if (status != SHMQ_UNITS_FULL || grown) {
            return status;
        }
        status = shmq_frames_grow(store, GROW_FRAMES);
        if (status != SHMQ_OK) {
            return status;
        }
    }
}

static void intend(struct shmq_store *store, const struct together *all, uint64_t log_position)
{
    struct shmq_intent *intent = &store->log->intent;
    atomic_store_explicit(&intent->kind, SHMQ_INTENT_NONE, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    intent->log_position = log_position;
    intent->record_bytes = all->bytes;
    intent->count = all->count;
    for (uint32_t i = 0; i < all->count; i++) {
        const uint32_t queue = all->entries[i].queue;
        intent->each[i].queue = queue;
        intent->each[i].queue_offset = atomic_load_explicit(&store->queues[queue].offset_max, memory_order_relaxed);
    }
    atomic_store_explicit(&intent->kind, SHMQ_INTENT_TOGETHER, memory_order_release);
    SHMQ_POINT("together.intent");
}

/* Raise the queues' offset_max as the intent says. Also the repair, so it believes nothing it reads. */
void shmq_together_publish(struct shmq_store *store)
{
    struct shmq_log *log = store->log;
    const struct shmq_intent *intent = &log->intent;
    if (atomic_load_explicit(&log->end, memory_order_relaxed) < intent->log_position + intent->record_bytes) {
        return; /* not committed: nothing happened */
    }
    const uint32_t count = intent->count < SHMQ_TOGETHER_MAX ? intent->count : SHMQ_TOGETHER_MAX;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t queue = intent->each[i].queue;
        const uint64_t next = intent->each[i].queue_offset + 1;
        if (queue < store->sizes.queue_max &&
            atomic_load_explicit(&store->queues[queue].offset_max, memory_order_relaxed) < next) {
            atomic_store_explicit(&store->queues[queue].offset_max, next, memory_order_release);
            SHMQ_POINT("together.published");
        }
    }
}

static enum shmq_status write_locked(struct shmq_store *store, const struct together *all,
                                     const struct shmq_patch *patches, const struct shmq_place *place, uint64_t now_ms,
                                     struct shmq_appended *out)
{
    struct shmq_log *log = store->log;
    const uint64_t store_ms = shmq_store_time(store, now_ms);
    const uint64_t end = place->log_position + all->bytes;
    uint8_t *record = place->mapping->data + (place->log_position - place->mapping->base);
    bool described = false;
    intend(store, all, place->log_position);
    memcpy(record, all->data, all->bytes);
    for (uint32_t i = 0, at = 0; i < all->count; at += patches[i].record_bytes, i++) {
        const uint32_t queue = all->entries[i].queue;
        out[i] = (struct shmq_appended){.queue_offset = log->intent.each[i].queue_offset,
                                        .log_position = place->log_position + at,
                                        .end = place->log_position + at + patches[i].record_bytes,
                                        .store_ms = store_ms};
        const struct shmq_unit unit = {.log_position = out[i].log_position,
                                       .record_bytes = patches[i].record_bytes,
                                       .tag_hash = shmq_unit_code(all->entries[i].tag_hash, store_ms)};
        shmq_record_patch(record + at, &patches[i], out[i].queue_offset, unit.log_position, store_ms);
        described |= patches[i].described;
        if (!shmq_unit_write(store, queue, out[i].queue_offset, &unit)) {
            shmq_intend_nothing(store);
            return SHMQ_CORRUPT;
        }
    }
    if (described) {
        shmq_describe(store, end);
    }
    memset(record + all->bytes, 0, SHMQ_RECORD_BLANK_BYTES);
    SHMQ_POINT("together.copied");
    atomic_store_explicit(&log->end, end, memory_order_release);
    SHMQ_POINT("together.committed");
    shmq_together_publish(store);
    log->deaths_in_a_row = 0;
    log->appended += all->count;
    log->appended_bytes += all->bytes;
    for (uint32_t i = 0; i < all->count; i++) {
        store->queues[all->entries[i].queue].bytes += patches[i].record_bytes;
    }
    shmq_intend_nothing(store);
    return SHMQ_OK;
}

/* Judge every record and add their sizes up. */
static enum shmq_status measure(const struct shmq_store *store, struct together *all, struct shmq_patch *patches)
{
    if (all->count == 0 || all->count > SHMQ_TOGETHER_MAX) {
        return SHMQ_BAD_ARGUMENT;
    }
    for (uint32_t i = 0; i < all->count; i++) {
        const struct shmq_entry *entry = &all->entries[i];
        enum shmq_status status = shmq_writable_check(store, entry->queue);
        if (status != SHMQ_OK) {
            return status;
        }
        for (uint32_t k = 0; k < i; k++) {
            if (all->entries[k].queue == entry->queue) {
                return SHMQ_BAD_ARGUMENT;
            }
        }
        const struct shmq_spec *spec = &entry->spec;
        const bool fits = spec->body_bytes <= SHMQ_BODY_BYTES_MAX && spec->topic_bytes <= SHMQ_TOPIC_BYTES_MAX &&
                          spec->properties_bytes <= SHMQ_PROPERTIES_BYTES_MAX;
        const uint32_t bytes = fits ? shmq_record_bytes(spec) : 0;
        if (bytes == 0) {
            return SHMQ_TOO_LARGE;
        }
        if (!shmq_is_queued(spec->sys_flag)) {
            return SHMQ_BAD_ARGUMENT;
        }
        patches[i].record_bytes = bytes;
        all->bytes += bytes; /* at most SHMQ_TOGETHER_MAX records: far from 32 bits */
    }
    return SHMQ_OK;
}

enum shmq_status shmq_append_together(struct shmq_store *store, const struct shmq_entry *entries, uint32_t count,
                                      uint64_t because_of, uint64_t deadline_ns, struct shmq_appended *out)
{
    struct shmq_patch patches[SHMQ_TOGETHER_MAX];
    struct together all = {.entries = entries, .count = count};
    struct shmq_place place;
    enum shmq_status status = measure(store, &all, patches);
    if (status != SHMQ_OK) {
        return status;
    }
    if (is_fenced(store, because_of)) {
        return SHMQ_FENCED; /* it never falls: what is below it now stays there */
    }
    all.data = all.bytes <= SHMQ_BATCH_BYTES_MAX ? store->scratch : malloc(all.bytes + SHMQ_RECORD_BLANK_BYTES);
    if (all.data == NULL) {
        return SHMQ_SYSTEM;
    }
    const uint64_t now_ms = shmq_now_ms_cached(store);
    for (uint32_t i = 0, at = 0; i < count; at += patches[i].record_bytes, i++) {
        struct shmq_spec spec = entries[i].spec;
        spec.born_ms = spec.born_ms == 0 ? now_ms : spec.born_ms;
        shmq_record_encode(all.data + at, &spec, &patches[i]);
    }
    status = enter(store, &all, deadline_ns, &place);
    if (status == SHMQ_OK) {
        status = is_fenced(store, because_of) ? SHMQ_FENCED
                                              : write_locked(store, &all, patches, &place, now_ms, out);
        shmq_unlock(store);
    }
    if (all.data != store->scratch) {
        free(all.data);
    }
    return status;
}

enum shmq_status shmq_fence_raise(struct shmq_store *store, uint64_t log_position, uint64_t deadline_ns)
{
    enum shmq_status status = shmq_lock(store, deadline_ns);
    if (status != SHMQ_OK) {
        return status;
    }
    if (atomic_load_explicit(&store->log->fence, memory_order_relaxed) < log_position) {
        atomic_store_explicit(&store->log->fence, log_position, memory_order_release);
    }
    SHMQ_POINT("fence.raised");
    shmq_unlock(store);
    return SHMQ_OK;
}
