/* The repair: what the next holder of the append lock does for one that died in the section.
 *
 *   intent     found                              repair
 *   APPEND     end >= position + bytes            committed: raise the queue's offset_max
 *              end <  position + bytes            nothing happened
 *   TOGETHER   the same, for each of its queues   the same
 *   FRAME_*    see frame.c
 *   claim      OPEN below end                     its record is committed: free the claim
 *
 * Redo only, nothing is rolled back, and all of it may be done twice: an offset_max is only ever raised. What is read here
 * lies in memory that a damaged process may have written, so every number is judged before it is used.
 */
#include "core/log/log.h"

static void offset_raise(struct shmq_store *store, uint32_t queue, uint64_t next)
{
    struct shmq_queue *entry = shmq_queue_entry(store, queue);
    if (entry != NULL && atomic_load_explicit(&entry->offset_max, memory_order_relaxed) < next) {
        SHMQ_POINT("repair.publish");
        atomic_store_explicit(&entry->offset_max, next, memory_order_release);
    }
}

static void repair_append(struct shmq_store *store, uint32_t kind)
{
    const struct shmq_intent *intent = &store->log->intent;
    if (atomic_load_explicit(&store->log->end, memory_order_relaxed) < intent->log_position + intent->record_bytes) {
        return; /* not committed: nothing happened */
    }
    if (kind == SHMQ_INTENT_APPEND) {
        offset_raise(store, intent->queue, intent->queue_offset + intent->count);
        return;
    }
    const uint32_t count = intent->count < SHMQ_TOGETHER_MAX ? intent->count : SHMQ_TOGETHER_MAX;
    for (uint32_t i = 0; i < count; i++) {
        offset_raise(store, intent->each[i].queue, intent->each[i].queue_offset + 1);
    }
}

void shmq_repair(struct shmq_store *store)
{
    uint32_t kind = atomic_load_explicit(&store->log->intent.kind, memory_order_acquire);
    SHMQ_POINT("repair.begin");
    if (kind == SHMQ_INTENT_APPEND || kind == SHMQ_INTENT_TOGETHER) {
        repair_append(store, kind);
    } else if (kind != SHMQ_INTENT_NONE) {
        shmq_frame_repair(store, kind);
    }
    SHMQ_POINT("repair.claim");
    shmq_claim_repair(store);
    shmq_intent_clear(store);
    SHMQ_POINT("repair.end");
}
