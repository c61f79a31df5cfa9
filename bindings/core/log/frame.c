/* ConsumeQueue units in memory: frames of 204 units, found through a hash of (queue, ordinal).
 *
 *   frame   unit 204*ordinal … unit 204*ordinal + 203 of one queue; a unit's 20 bytes: shmq.h
 *
 * Frames of one sparse segment instead of a segment for each queue: 10,000 topics of 8 queues as one mapped object each
 * would exceed vm.max_map_count and cost an inode each. This way memory follows the queues in use, and a frame that is
 * persisted and old goes back to the free list.
 *
 * Writers hold the append lock. Readers hold nothing: they copy units out of a frame and believe the copy only if the
 * frame's tag still names their (queue, ordinal) afterwards. A frame that leaves the directory loses its tag before it
 * can be taken again, so a stale copy never passes that check.
 *
 * Repair of a half-done change, from the intent:
 *   FRAME_TAKE   bucket head is the frame     linked: finish moving the free list or the bump
 *                otherwise                    not linked: put the free-list link back, clear the tag
 *   FRAME_FREE   still in its chain           nothing happened
 *                not in its chain             unlinked: finish putting it on the free list
 */
#include <string.h>

#include "core/log/log.h"

#define SHMQ_FRAMES_STEP 256u /* unit frames reserved at once by a writer that finds none; the keeper is rung below it */
#define CHAIN_MAX 4096 /* a longer walk means a damaged directory, not a long chain */

static uint32_t bucket_of(const struct shmq_store *store, uint64_t tag)
{
    return shmq_hash64(tag) & (store->frame_bucket_count - 1);
}

uint32_t shmq_frame_find(const struct shmq_store *store, uint32_t queue, uint32_t ordinal)
{
    uint64_t tag = shmq_frame_tag(queue, ordinal);
    for (int attempt = 0; attempt < 64; attempt++) {
        uint32_t version = atomic_load_explicit(&store->log->frame_version, memory_order_acquire);
        uint32_t link = atomic_load_explicit(&store->frame_buckets[bucket_of(store, tag)], memory_order_acquire);
        for (int step = 0; link != 0 && link <= store->sizes.frame_max && step < CHAIN_MAX; step++) {
            if (atomic_load_explicit(&store->frames[link - 1].tag, memory_order_acquire) == tag) {
                return link - 1;
            }
            link = atomic_load_explicit(&store->frames[link - 1].next, memory_order_acquire);
        }
        /* A frame that left while we walked may have led us into another chain: only a quiet walk proves absence. */
        if (atomic_load_explicit(&store->log->frame_version, memory_order_acquire) == version) {
            return SHMQ_NONE;
        }
    }
    return SHMQ_NONE;
}

enum shmq_status shmq_frame_take(struct shmq_store *store, uint32_t queue, uint32_t ordinal, uint32_t *out)
{
    struct shmq_log *log = store->log;
    uint64_t tag = shmq_frame_tag(queue, ordinal);
    uint32_t link = log->frame_free;
    bool from_free_list = link != 0 && link <= store->sizes.frame_max;
    uint32_t frame = from_free_list ? link - 1 : log->frame_bump;
    uint32_t ready = atomic_load_explicit(&log->frame_ready, memory_order_acquire);
    if (frame >= ready || frame >= store->sizes.frame_max) {
        return SHMQ_UNITS_FULL;
    }
    struct shmq_frame *entry = &store->frames[frame];
    uint32_t bucket = bucket_of(store, tag);
    struct shmq_intent *intent = shmq_intent_open(store);
    intent->frame = frame;
    intent->bucket = bucket;
    intent->frame_next = from_free_list ? atomic_load_explicit(&entry->next, memory_order_relaxed) : 0;
    intent->from_free_list = from_free_list;
    shmq_intent_set(intent, SHMQ_INTENT_FRAME_TAKE);
    SHMQ_POINT("frame.take.intent");
    atomic_store_explicit(&entry->tag, tag, memory_order_release);
    uint32_t head = atomic_load_explicit(&store->frame_buckets[bucket], memory_order_relaxed);
    atomic_store_explicit(&entry->next, head, memory_order_release);
    SHMQ_POINT("frame.take.link");
    atomic_store_explicit(&store->frame_buckets[bucket], frame + 1, memory_order_release);
    SHMQ_POINT("frame.take.linked");
    if (from_free_list) {
        log->frame_free = intent->frame_next;
    } else {
        log->frame_bump = frame + 1;
    }
    shmq_intent_clear(store);
    if (!from_free_list && ready - frame < SHMQ_FRAMES_STEP) {
        shmq_ring_keeper(store); /* once in 204 units at the most */
    }
    *out = frame;
    return SHMQ_OK;
}

/* The link word that points at `frame` in its chain, or NULL. Lock held. */
static _Atomic uint32_t *link_to(struct shmq_store *store, uint32_t bucket, uint32_t frame)
{
    _Atomic uint32_t *word = &store->frame_buckets[bucket & (store->frame_bucket_count - 1)];
    for (int step = 0; step < CHAIN_MAX; step++) {
        uint32_t link = atomic_load_explicit(word, memory_order_relaxed);
        if (link == frame + 1) {
            return word;
        }
        if (link == 0 || link > store->sizes.frame_max) {
            return NULL;
        }
        word = &store->frames[link - 1].next;
    }
    return NULL;
}

static void to_free_list(struct shmq_store *store, uint32_t frame)
{
    struct shmq_log *log = store->log;
    struct shmq_frame *entry = &store->frames[frame];
    atomic_store_explicit(&entry->tag, 0, memory_order_release);
    SHMQ_POINT("frame.free.untagged");
    if (log->frame_free != frame + 1) {
        atomic_store_explicit(&entry->next, log->frame_free, memory_order_release);
        SHMQ_POINT("frame.free.listed");
        log->frame_free = frame + 1;
    }
    atomic_fetch_add_explicit(&log->frame_version, 1, memory_order_release);
}

void shmq_frame_repair(struct shmq_store *store, uint32_t kind)
{
    struct shmq_log *log = store->log;
    uint32_t frame = log->intent.frame;
    uint32_t bucket = log->intent.bucket & (store->frame_bucket_count - 1);
    if (frame >= store->sizes.frame_max) {
        return;
    }
    if (kind == SHMQ_INTENT_FRAME_FREE) {
        if (link_to(store, bucket, frame) == NULL) {
            to_free_list(store, frame);
        }
        return;
    }
    bool linked = atomic_load_explicit(&store->frame_buckets[bucket], memory_order_relaxed) == frame + 1;
    SHMQ_POINT("repair.frame");
    if (linked && log->intent.from_free_list) {
        log->frame_free = log->intent.frame_next;
    } else if (linked) {
        log->frame_bump = frame + 1;
    } else {
        atomic_store_explicit(&store->frames[frame].tag, 0, memory_order_release);
        atomic_store_explicit(&store->frames[frame].next, log->intent.frame_next, memory_order_release);
    }
}

enum shmq_status shmq_frames_ensure(struct shmq_store *store, uint32_t queue, uint64_t queue_offset, uint32_t count)
{
    uint64_t last = (queue_offset + count - 1) / SHMQ_FRAME_UNITS;
    if (last > UINT32_MAX) {
        return SHMQ_UNITS_FULL;
    }
    struct shmq_queue *entry = shmq_queue_place(store, queue);
    for (uint64_t ordinal = queue_offset / SHMQ_FRAME_UNITS; ordinal <= last; ordinal++) {
        uint32_t hint = atomic_load_explicit(&entry->frame_last, memory_order_relaxed);
        uint64_t tag = shmq_frame_tag(queue, (uint32_t)ordinal);
        if (hint < store->sizes.frame_max &&
            atomic_load_explicit(&store->frames[hint].tag, memory_order_relaxed) == tag) {
            continue;
        }
        uint32_t frame = shmq_frame_find(store, queue, (uint32_t)ordinal);
        if (frame == SHMQ_NONE) {
            enum shmq_status status = shmq_frame_take(store, queue, (uint32_t)ordinal, &frame);
            if (status != SHMQ_OK) {
                return status;
            }
        }
        atomic_store_explicit(&entry->frame_last, frame, memory_order_relaxed);
    }
    return SHMQ_OK;
}

bool shmq_unit_write(struct shmq_store *store, uint32_t queue, uint64_t queue_offset, const struct shmq_unit *unit)
{
    uint32_t ordinal = (uint32_t)(queue_offset / SHMQ_FRAME_UNITS);
    uint32_t frame = atomic_load_explicit(&shmq_queue_place(store, queue)->frame_last, memory_order_relaxed);
    if (frame >= store->sizes.frame_max ||
        atomic_load_explicit(&store->frames[frame].tag, memory_order_relaxed) != shmq_frame_tag(queue, ordinal)) {
        frame = shmq_frame_find(store, queue, ordinal);
        if (frame == SHMQ_NONE) {
            return false;
        }
    }
    shmq_unit_pack(shmq_unit_place(store, frame, queue_offset), unit);
    return true;
}

enum shmq_status shmq_frames_grow(struct shmq_store *store, uint32_t frames)
{
    /* Reserving memory twice is harmless and needs no lock; the word only ever rises. */
    uint32_t ready = atomic_load_explicit(&store->log->frame_ready, memory_order_acquire);
    if (!store->writable || ready >= store->sizes.frame_max) {
        return SHMQ_UNITS_FULL;
    }
    uint32_t target = frames > store->sizes.frame_max - ready ? store->sizes.frame_max : ready + frames;
    if (store->growable) {
        int rc = store->io->allocate(store->units_fd, (uint64_t)ready * SHMQ_FRAME_BYTES,
                                     (uint64_t)(target - ready) * SHMQ_FRAME_BYTES);
        if (rc != 0) {
            errno = rc;
            return SHMQ_UNITS_FULL;
        }
    }
    while (ready < target && !atomic_compare_exchange_weak_explicit(&store->log->frame_ready, &ready, target,
                                                                    memory_order_acq_rel, memory_order_acquire)) {
    }
    return SHMQ_OK;
}

enum shmq_status shmq_frames_grow_once(struct shmq_store *store, enum shmq_status status, bool *grown)
{
    if (status != SHMQ_UNITS_FULL || *grown) {
        return status;
    }
    *grown = true;
    return shmq_frames_grow(store, SHMQ_FRAMES_STEP);
}

static void frame_free(struct shmq_store *store, uint32_t frame, uint32_t bucket)
{
    _Atomic uint32_t *word = link_to(store, bucket, frame);
    if (word == NULL) {
        return;
    }
    struct shmq_intent *intent = shmq_intent_open(store);
    intent->frame = frame;
    intent->bucket = bucket;
    shmq_intent_set(intent, SHMQ_INTENT_FRAME_FREE);
    atomic_fetch_add_explicit(&store->log->frame_version, 1, memory_order_release);
    SHMQ_POINT("frame.free.unlink");
    atomic_store_explicit(word, atomic_load_explicit(&store->frames[frame].next, memory_order_relaxed),
                          memory_order_release);
    SHMQ_POINT("frame.free.unlinked");
    to_free_list(store, frame);
    shmq_intent_clear(store);
}

/* Below which offset the units of a queue need no frame: persisted, or of a queue that is leaving. */
static uint64_t units_spared(const struct shmq_store *store, uint32_t queue)
{
    const struct shmq_queue *entry = shmq_queue_entry(store, queue);
    if (entry != NULL) {
        return atomic_load_explicit(&entry->persisted, memory_order_acquire);
    }
    return atomic_load_explicit(&shmq_queue_place(store, queue)->leaving, memory_order_acquire) == queue + 1 ? UINT64_MAX
                                                                                                           : 0;
}

uint32_t shmq_frames_release(struct shmq_store *store, uint32_t queue, uint64_t ordinal_first, uint32_t count,
                             uint64_t deadline_ns)
{
    uint32_t released = 0;
    if (!shmq_queue_is_number(store, queue) || shmq_lock(store, deadline_ns) != SHMQ_OK) {
        return SHMQ_NONE;
    }
    const uint64_t persisted = units_spared(store, queue);
    for (uint64_t ordinal = ordinal_first; ordinal < ordinal_first + count && ordinal <= UINT32_MAX; ordinal++) {
        if ((ordinal + 1) * SHMQ_FRAME_UNITS > persisted) {
            break;
        }
        uint32_t frame = shmq_frame_find(store, queue, (uint32_t)ordinal);
        if (frame != SHMQ_NONE) {
            frame_free(store, frame, bucket_of(store, shmq_frame_tag(queue, (uint32_t)ordinal)));
            released++;
        }
    }
    shmq_unlock(store);
    return released;
}

uint32_t shmq_units_read(struct shmq_store *store, uint32_t queue, uint64_t first, uint32_t count, uint8_t *out)
{
    const struct shmq_queue *entry = shmq_queue_entry(store, queue);
    if (entry == NULL) {
        return 0;
    }
    uint64_t end = shmq_load_acquire(&entry->offset_max);
    uint32_t copied = 0;
    while (copied < count && first + copied < end && first + copied < (uint64_t)UINT32_MAX * SHMQ_FRAME_UNITS) {
        uint64_t offset = first + copied;
        uint32_t ordinal = (uint32_t)(offset / SHMQ_FRAME_UNITS);
        uint32_t take = SHMQ_FRAME_UNITS - (uint32_t)(offset % SHMQ_FRAME_UNITS);
        take = take < count - copied ? take : count - copied;
        take = take < end - offset ? take : (uint32_t)(end - offset);
        uint32_t frame = shmq_frame_find(store, queue, ordinal);
        if (frame == SHMQ_NONE) {
            break;
        }
        memcpy(out + (size_t)copied * SHMQ_UNIT_BYTES, shmq_unit_place(store, frame, offset),
               (size_t)take * SHMQ_UNIT_BYTES);
        /* The copy counts only if the frame was still ours after it; pairs with the release in to_free_list. */
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&store->frames[frame].tag, memory_order_relaxed) != shmq_frame_tag(queue, ordinal)) {
            break;
        }
        copied += take;
    }
    return copied; /* the tags say that they were units of this queue, whichever queue lives in its entry by now */
}

enum shmq_status shmq_units_restore(struct shmq_store *store, uint32_t queue, uint64_t first, uint32_t count,
                                    const uint8_t *units)
{
    struct shmq_queue *entry = shmq_queue_entry(store, queue);
    if (entry == NULL || count == 0) {
        return SHMQ_BAD_ARGUMENT;
    }
    for (uint32_t i = 0; i < count; i++) {
        enum shmq_status status;
        bool grown = false;
        while ((status = shmq_frames_ensure(store, queue, first + i, 1)) != SHMQ_OK) {
            status = shmq_frames_grow_once(store, status, &grown);
            if (status != SHMQ_OK) {
                return status;
            }
        }
        struct shmq_unit unit;
        shmq_unit_unpack(units + (size_t)i * SHMQ_UNIT_BYTES, &unit);
        if (!shmq_unit_write(store, queue, first + i, &unit)) {
            return SHMQ_CORRUPT;
        }
    }
    if (atomic_load_explicit(&entry->offset_max, memory_order_relaxed) < first + count) {
        atomic_store_explicit(&entry->offset_max, first + count, memory_order_release);
    }
    return SHMQ_OK;
}
