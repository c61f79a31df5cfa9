/* What a message asks of its reader when it is settled. */
#include <errno.h>
#include <string.h>

#include "face/read/py_read.h"

bool reader_check(PyReader *self)
{
    if (self->open && self->store->open) {
        return true;
    }
    if (self->open) {
        return store_raise_closed(self->store);
    }
    core_raise(self->state, SHMQ_BAD_ARGUMENT, "the reader is closed");
    return false;
}

bool reader_acknowledge(PyReader *self, const PyMessage *message)
{
    if (!self->open || !self->store->open) {
        return true; /* the reader is closed; the message is delivered again after a restart */
    }
    enum shmq_status status =
        shmq_reader_ack(&self->core, message->cursor, message->serial, message->view.queue_offset);
    if (status == SHMQ_OK) {
        return true;
    }
    core_raise(self->state, status, "offset %llu cannot be acknowledged: %s",
               (unsigned long long)message->view.queue_offset,
               status == SHMQ_TABLE_FULL ? "too many messages wait behind one that was never acknowledged"
                                         : strerror(errno));
    return false;
}

void reader_count_settled(PyReader *self, int64_t change)
{
    struct shmq_client *client = store_client(self->store);
    if (client) {
        uint64_t count = atomic_load_explicit(&client->settled, memory_order_relaxed) + (uint64_t)change;
        atomic_store_explicit(&client->settled, count, memory_order_relaxed);
    }
}
