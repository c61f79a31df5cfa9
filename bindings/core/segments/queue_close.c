/* Queues that leave: what no topic has any more is closed under the append lock, and its entry given back. */
#include "core/segments/segments.h"

/* Table lock held: whether no topic has the queue that lives in an entry. */
static bool is_deserted(const struct shmq_store *store, const struct shmq_queue *entry, uint32_t life)
{
    const struct shmq_topic *topic = shmq_topic_place(store, entry->topic);
    return topic == NULL || shmq_topic_queue(store, entry->topic, entry->queue_id) != life - 1 ||
           atomic_load_explicit(&topic->state, memory_order_acquire) != SHMQ_TOPIC_LIVE;
}

/* Table lock held: the queues that are leaving, and those that have to. */
static uint32_t find_leaving(const struct shmq_store *store, struct shmq_leaving *out, uint32_t count_max)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < shmq_queue_count(store) && found < count_max; i++) {
        const struct shmq_queue *entry = &store->queues[i];
        const uint32_t life = atomic_load_explicit(&entry->life, memory_order_acquire);
        const uint32_t leaving = atomic_load_explicit(&entry->leaving, memory_order_acquire);
        const uint32_t queue = (life != 0 ? life : leaving) - 1;
        if ((queue & store->queue_mask) != i) {
            continue; /* free, or scribbled on: no number of this entry */
        }
        if (life == 0 || is_deserted(store, entry, life)) {
            out[found++] = (struct shmq_leaving){.queue = queue};
        }
    }
    return found;
}

enum shmq_status shmq_queues_close(struct shmq_store *store, uint64_t deadline_ns, uint32_t count_max,
                                   struct shmq_leaving *out, uint32_t *count)
{
    *count = 0;
    enum shmq_status status = shmq_table_enter(store);
    if (status != SHMQ_OK) {
        return status;
    }
    const uint32_t found = find_leaving(store, out, count_max);
    shmq_table_exit(store);
    if (found == 0) {
        return SHMQ_OK;
    }
    status = shmq_lock(store, deadline_ns);
    if (status != SHMQ_OK) {
        return status;
    }
    for (uint32_t i = 0; i < found; i++) {
        struct shmq_queue *entry = &store->queues[out[i].queue & store->queue_mask];
        if (shmq_queue_entry(store, out[i].queue) != NULL) {
            atomic_store_explicit(&entry->leaving, out[i].queue + 1, memory_order_relaxed);
            SHMQ_POINT("queue.leaving");
            atomic_store_explicit(&entry->life, 0, memory_order_release);
            SHMQ_POINT("queue.closed");
        }
        out[i].offset_max = atomic_load_explicit(&entry->offset_max, memory_order_relaxed);
    }
    shmq_unlock(store);
    *count = found;
    return SHMQ_OK;
}

enum shmq_status shmq_queue_free(struct shmq_store *store, uint32_t queue)
{
    const uint32_t index = queue & store->queue_mask;
    if (index >= store->sizes.queue_max) {
        return SHMQ_BAD_ARGUMENT;
    }
    enum shmq_status status = shmq_table_enter(store);
    if (status != SHMQ_OK) {
        return status;
    }
    struct shmq_queue *entry = &store->queues[index];
    if (atomic_load_explicit(&entry->leaving, memory_order_acquire) == queue + 1 &&
        atomic_load_explicit(&entry->life, memory_order_acquire) == 0) {
        atomic_store_explicit(&store->log->queue_used, atomic_load_explicit(&store->log->queue_used, memory_order_relaxed) - 1, memory_order_relaxed);
        SHMQ_POINT("queue.freed");
        atomic_store_explicit(&entry->leaving, 0, memory_order_release);
    }
    shmq_table_exit(store);
    return SHMQ_OK;
}
