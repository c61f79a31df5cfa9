/* A part of a batch: the records that one append stores, all or none.
 *
 * What one append may store is a batch as a whole for a broker's clients (RocketMQ bounds it by 4 MiB); what users send at
 * once may be more, and becomes several parts. What an earlier part stored stays stored when a later one fails.
 */
#include "face/send/py_send.h"

bool part_reserve(struct batch_part *part, uint32_t room)
{
    if (room <= part->room) {
        return true;
    }
    struct shmq_spec *specs = PyMem_Realloc(part->specs, room * sizeof *specs);
    part->specs = specs ? specs : part->specs;
    int64_t *tag_hashes = PyMem_Realloc(part->tag_hashes, room * sizeof *tag_hashes);
    part->tag_hashes = tag_hashes ? tag_hashes : part->tag_hashes;
    if (!specs || !tag_hashes) {
        PyErr_NoMemory();
        return false;
    }
    part->room = room;
    return true;
}

void part_free(struct batch_part *part)
{
    PyMem_Free(part->specs);
    PyMem_Free(part->tag_hashes);
}

void part_add(struct batch_part *part, uint32_t record_bytes, int64_t tag_hash)
{
    part->tag_hashes[part->count++] = tag_hash;
    part->bytes += record_bytes;
}

enum shmq_status part_append(PyProducer *producer, struct call *call, const struct batch_part *part,
                             struct shmq_appended *first)
{
    PyStore *store = producer->store;
    if (part->count == 1) {
        return producer_append(producer, call, &part->specs[0], true, part->tag_hashes[0], first);
    }
    enum shmq_status status = SHMQ_WOULD_BLOCK;
    if (part->bytes <= SHMQ_BATCH_BYTES_MAX) { /* more takes a while: without the GIL */
        status = shmq_append_batch(&store->core, call->queue, part->specs, part->tag_hashes, part->count, 0, first);
    }
    if (status == SHMQ_WOULD_BLOCK) {
        uint64_t deadline = deadline_after(store, call->timeout);
        ON_LANE(store, status, shmq_append_batch(&lane->core, call->queue, part->specs, part->tag_hashes, part->count,
                                                 deadline, first));
    }
    if (status == SHMQ_OK || status == FACE_ERROR) {
        return status;
    }
    core_raise_append(store->state, &store->core, status, call->route->name, call->queue_id, part->bytes, call->timeout);
    return FACE_ERROR;
}
