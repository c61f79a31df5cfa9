/* Entries of the queue table: which queue lives in which, and how they are used again.
 *
 *   number   lives of the entry before this one << bits | entry       bits: as many as queue_mask has
 *
 *   free      life 0       leaving 0         may be taken
 *   lives     life n + 1   leaving 0         a topic has queue n
 *   leaving   life 0       leaving n + 1     its topic has it no more; its frames are being given back
 *
 *   free ──table lock──▶ lives ──append lock──▶ leaving ──frames given back, table lock──▶ free
 *
 * A number is given once, so all that kept one, be it a cursor, a route, a frame's tag, an offset slot or a process that
 * was stopped for an hour, find that it is not what lives there now. (1) Writers look under the append lock, under which
 * lives end: none of them writes for a queue that has left. (2) Readers look behind what they have read, and their units
 * come from frames whose tags have the whole number. (3) The queues of one extent have consecutive numbers: entries side by
 * side, and as many lives as the one of them that had most. (4) An entry whose last number is given stays free of queues.
 *
 * A topic_put that was killed may leave entries alive that no topic has; they leave as those of deleted topics do.
 */
#include "core/segments/segments.h"

static uint32_t used_count(const struct shmq_store *store)
{
    return atomic_load_explicit(&store->log->queue_used, memory_order_relaxed);
}

static bool is_free(const struct shmq_queue *entry)
{
    return atomic_load_explicit(&entry->life, memory_order_acquire) == 0 &&
           atomic_load_explicit(&entry->leaving, memory_order_acquire) == 0;
}

/* ---- taking ---------------------------------------------------------------------------------------- */
/* High bits of the next number of an entry below the count; above all numbers when there is none left. */
static uint64_t next_lives(const struct shmq_store *store, const struct shmq_queue *entry)
{
    const uint64_t step = (uint64_t)store->queue_mask + 1;
    return entry->last == 0 ? 0 : ((entry->last - 1) & ~(uint64_t)store->queue_mask) + step;
}

struct run { uint32_t first, count; uint64_t lives; };

static bool is_planned(const struct shmq_extent *extents, uint32_t extent_count, uint32_t index, uint32_t mask)
{
    for (uint32_t i = 0; i < extent_count; i++) {
        if (index - (extents[i].first_queue & mask) < extents[i].count) {
            return true;
        }
    }
    return false;
}

/* The first run of `wanted` free entries side by side, or else the longest that is shorter. */
static struct run run_find(const struct shmq_store *store, uint32_t wanted, const struct shmq_extent *planned,
                           uint32_t planned_count)
{
    const uint32_t count = shmq_queue_count(store);
    struct run best = {.count = 0}, run = {.count = 0};
    for (uint32_t i = used_count(store) < count ? 0 : count; i < store->sizes.queue_max && run.count < wanted; i++) {
        const bool used_before = i < count;
        const uint64_t lives = used_before ? next_lives(store, &store->queues[i]) : 0;
        if ((used_before && !is_free(&store->queues[i])) || lives > (SHMQ_NONE & ~store->queue_mask) ||
            is_planned(planned, planned_count, i, store->queue_mask)) {
            best = run.count > best.count ? run : best;
            run.count = 0;
            continue;
        }
        run = run.count == 0 ? (struct run){.first = i, .count = 1, .lives = lives}
                             : (struct run){run.first, run.count + 1, lives > run.lives ? lives : run.lives};
    }
    return run.count > best.count ? run : best;
}

/* Let queues live in entries that are free: table lock held. */
static void run_take(struct shmq_store *store, const struct shmq_extent *extent, uint32_t topic, uint32_t queue_id)
{
    const uint32_t first = extent->first_queue & store->queue_mask;
    for (uint32_t i = 0; i < extent->count; i++) {
        struct shmq_queue *entry = &store->queues[first + i];
        entry->last = extent->first_queue + i + 1;
        atomic_store_explicit(&entry->offset_max, 0, memory_order_relaxed);
        atomic_store_explicit(&entry->offset_min, 0, memory_order_relaxed);
        atomic_store_explicit(&entry->persisted, 0, memory_order_relaxed);
        atomic_store_explicit(&entry->frame_last, SHMQ_NONE, memory_order_relaxed);
        atomic_store_explicit(&entry->flush, SHMQ_FLUSH_AS_BROKER, memory_order_relaxed);
        entry->topic = topic;
        entry->queue_id = queue_id + i;
        entry->bytes = 0;
        SHMQ_POINT("queue.filled");
        atomic_store_explicit(&entry->life, extent->first_queue + i + 1, memory_order_release);
    }
    atomic_store_explicit(&store->log->queue_used, used_count(store) + extent->count, memory_order_relaxed);
    if (first + extent->count > shmq_queue_count(store)) {
        atomic_store_explicit(&store->log->queue_count, first + extent->count, memory_order_release);
    }
}

enum shmq_status shmq_queues_take(struct shmq_store *store, uint32_t topic, uint32_t queue_id, uint32_t wanted,
                                  struct shmq_extent *extents, uint32_t extent_count)
{
    uint32_t left = wanted, planned = 0;
    while (left > 0 && planned < extent_count) {
        struct run run = run_find(store, left, extents, planned);
        if (run.count == 0) {
            break;
        }
        extents[planned++] = (struct shmq_extent){.first_queue = (uint32_t)run.lives | run.first, .count = run.count};
        left -= run.count;
    }
    if (left > 0) {
        for (uint32_t i = 0; i < planned; i++) {
            extents[i].count = 0;
        }
        return SHMQ_TABLE_FULL;
    }
    for (uint32_t i = 0; i < planned; i++) {
        run_take(store, &extents[i], topic, queue_id);
        queue_id += extents[i].count;
    }
    return SHMQ_OK;
}

void shmq_queues_repair(struct shmq_store *store)
{
    uint32_t used = 0;
    for (uint32_t i = 0; i < shmq_queue_count(store); i++) {
        used += !is_free(&store->queues[i]);
    }
    atomic_store_explicit(&store->log->queue_used, used, memory_order_relaxed);
}

/* ---- what recovery and the keeper know of a queue -------------------------------------------------- */
enum shmq_status shmq_queue_publish(struct shmq_store *store, uint32_t queue, uint64_t first, uint64_t persisted,
                                    uint64_t end)
{
    struct shmq_queue *entry = shmq_queue_entry(store, queue);
    if (!entry) {
        return SHMQ_NO_QUEUE;
    }
    if (first > end || persisted > end) {
        return SHMQ_BAD_ARGUMENT;
    }
    atomic_store_explicit(&entry->offset_min, first, memory_order_release);
    atomic_store_explicit(&entry->persisted, persisted, memory_order_release);
    SHMQ_POINT("queue.publishing");
    /* Last: a reader that sees the end finds where the queue begins, and its units. */
    atomic_store_explicit(&entry->offset_max, end, memory_order_release);
    return SHMQ_OK;
}

enum shmq_status shmq_queue_set_persisted(struct shmq_store *store, uint32_t queue, uint64_t persisted)
{
    struct shmq_queue *entry = shmq_queue_entry(store, queue);
    if (!entry) {
        return SHMQ_NO_QUEUE;
    }
    atomic_store_explicit(&entry->persisted, persisted, memory_order_release);
    return SHMQ_OK;
}

enum shmq_status shmq_queue_set_offset_min(struct shmq_store *store, uint32_t queue, uint64_t first)
{
    struct shmq_queue *entry = shmq_queue_entry(store, queue);
    if (!entry) {
        return SHMQ_NO_QUEUE;
    }
    if (first > atomic_load_explicit(&entry->offset_max, memory_order_acquire)) {
        return SHMQ_BAD_ARGUMENT;
    }
    atomic_store_explicit(&entry->offset_min, first, memory_order_release);
    return SHMQ_OK;
}
