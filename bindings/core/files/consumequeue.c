/* Old units: read from the ConsumeQueue files the keeper writes behind the log.
 *
 *   <store>/consumequeue/<topic>/<queue id>/%020d     300,000 units of 20 bytes, named by the byte position of the first
 *
 * A cold path: one open file is kept, every byte read is bounded by what the keeper says is persisted, and a unit of
 * size 0 ends the answer.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/internal.h"

#define FILE_UNITS UINT64_C(300000)

static int file_at(struct shmq_store *store, const struct shmq_queue *queue, uint64_t number)
{
    uint32_t topic = queue->topic;
    char path[sizeof store->consumequeue_path], name[SHMQ_TOPIC_BYTES_MAX + 1];
    if (topic >= store->sizes.topic_max || store->topics[topic].name_bytes > SHMQ_TOPIC_BYTES_MAX) {
        return -1;
    }
    memcpy(name, store->topics[topic].name, SHMQ_TOPIC_BYTES_MAX);
    name[SHMQ_TOPIC_BYTES_MAX] = 0;
    if (strchr(name, '/') != NULL || name[0] == '.') {
        return -1; /* shared memory is input: no name may leave the directory */
    }
    int bytes = snprintf(path, sizeof path, "%.1023s/consumequeue/%s/%u/%020" PRIu64, store->head->store_path, name,
                         queue->queue_id, number * FILE_UNITS * SHMQ_UNIT_BYTES);
    if (bytes < 0 || (size_t)bytes >= sizeof path) {
        return -1;
    }
    if (store->consumequeue_fd >= 0 && strcmp(path, store->consumequeue_path) == 0) {
        return store->consumequeue_fd;
    }
    int fd = store->io->open(path, O_RDONLY);
    if (fd < 0) {
        return -1;
    }
    if (store->consumequeue_fd >= 0) {
        store->io->close(store->consumequeue_fd);
    }
    store->consumequeue_fd = fd;
    memcpy(store->consumequeue_path, path, (size_t)bytes + 1);
    return fd;
}

uint32_t shmq_units_read_file(struct shmq_store *store, uint32_t queue, uint64_t first, uint32_t count, uint8_t *out)
{
    if (queue >= store->sizes.queue_max) {
        return 0;
    }
    const struct shmq_queue *entry = &store->queues[queue];
    uint64_t persisted = shmq_load_acquire(&entry->persisted);
    uint64_t left_in_file = FILE_UNITS - first % FILE_UNITS;
    if (first >= persisted) {
        return 0;
    }
    uint64_t wanted = count < persisted - first ? count : persisted - first;
    wanted = wanted < left_in_file ? wanted : left_in_file;
    int fd = file_at(store, entry, first / FILE_UNITS);
    if (fd < 0) {
        return 0;
    }
    ssize_t got = store->io->read_at(fd, out, wanted * SHMQ_UNIT_BYTES, first % FILE_UNITS * SHMQ_UNIT_BYTES);
    uint32_t units = got > 0 ? (uint32_t)((size_t)got / SHMQ_UNIT_BYTES) : 0;
    for (uint32_t i = 0; i < units; i++) {
        struct shmq_unit unit;
        shmq_unit_unpack(out + (size_t)i * SHMQ_UNIT_BYTES, &unit);
        if (unit.record_bytes == 0) {
            return i;
        }
    }
    return units;
}

uint32_t shmq_units_stored(struct shmq_store *store, uint32_t queue, uint64_t first, uint32_t count, uint8_t *out)
{
    uint32_t units = shmq_units_read(store, queue, first, count, out);
    return units != 0 ? units : shmq_units_read_file(store, queue, first, count, out);
}
