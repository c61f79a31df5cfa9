/* A part of a batch: the records that one acquisition of the append lock stores.
 *
 * A part ends before the record that would break SHMQ_BATCH_MAX or SHMQ_BATCH_BYTES_MAX; a record longer than
 * SHMQ_INLINE_BYTES_MAX is a part of its own. What an earlier part stored stays stored when a later one fails.
 */
#include "face/py_core.h"

bool part_takes(const struct batch_part *part, uint32_t record_bytes)
{
    if (part->count == 0) {
        return true;
    }
    return part->count < SHMQ_BATCH_MAX && record_bytes <= SHMQ_INLINE_BYTES_MAX &&
           part->bytes <= SHMQ_BATCH_BYTES_MAX && record_bytes <= SHMQ_BATCH_BYTES_MAX - part->bytes &&
           !(part->count == 1 && part->bytes > SHMQ_INLINE_BYTES_MAX);
}

void part_add(struct batch_part *part, uint32_t record_bytes, int64_t tag_hash)
{
    part->tag_hashes[part->count++] = tag_hash;
    part->bytes += record_bytes;
}

enum shmq_status part_append(PyProducer *producer, struct call *call, const struct batch_part *part, bool constant,
                             struct shmq_appended *first)
{
    PyStore *store = producer->store;
    if (part->count == 1) {
        return producer_append(producer, call, &part->specs[0], constant, part->tag_hashes[0], first);
    }
    enum shmq_status status =
        shmq_append_batch(&store->core, call->queue, part->specs, part->tag_hashes, part->count, 0, first);
    if (status == SHMQ_WOULD_BLOCK) {
        uint64_t deadline = deadline_after(store, call->timeout);
        ON_LANE(store, status, shmq_append_batch(&lane->core, call->queue, part->specs, part->tag_hashes, part->count,
                                                 deadline, first));
    }
    if (status == SHMQ_OK || status == FACE_ERROR) {
        return status;
    }
    core_raise_append(store, status, call->route->name, call->queue_id, part->bytes, call->timeout);
    return FACE_ERROR;
}
