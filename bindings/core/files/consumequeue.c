/* Old units: read from the ConsumeQueue files the keeper writes behind the log.
 *
 *   <store>/consumequeue/<topic>/<queue id>/%020d     300,000 units of 20 bytes, named by the byte position of the first
 *
 * A cold path: one open file is kept, every byte read is bounded by what the keeper says is persisted, and a unit of
 * size 0 ends the answer. The keeper ends the lives of a deleted topic's queues before it writes files for the topic's
 * next life, so what a queue that lives reads there is its own.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/files/files.h"

#define FILE_UNITS UINT64_C(300000)

static int file_at(struct shmq_store *store, uint32_t queue, uint64_t number)
{
    const struct shmq_queue *entry = shmq_queue_place(store, queue);
    const struct shmq_topic *topic = shmq_topic_place(store, entry->topic);
    char path[sizeof store->consumequeue_path], name[SHMQ_TOPIC_BYTES_MAX + 1];
    if (topic == NULL || topic->name_bytes > SHMQ_TOPIC_BYTES_MAX) {
        return -1;
    }
    memcpy(name, topic->name, SHMQ_TOPIC_BYTES_MAX);
    name[SHMQ_TOPIC_BYTES_MAX] = 0;
    if (strchr(name, '/') != NULL || name[0] == '.') {
        return -1; /* shared memory is input: no name may leave the directory */
    }
    int bytes = snprintf(path, sizeof path, "%.1023s/consumequeue/%s/%u/%020" PRIu64, store->head->store_path, name,
                         entry->queue_id, number * FILE_UNITS * SHMQ_UNIT_BYTES);
    if (bytes < 0 || (size_t)bytes >= sizeof path) {
        return -1;
    }
    /* The queue's number says whose files have that name now: a topic that was made anew has others of the same name. */
    if (store->consumequeue_fd >= 0 && store->consumequeue_queue == queue &&
        strcmp(path, store->consumequeue_path) == 0) {
        return store->consumequeue_fd;
    }
    int fd = store->io->open(AT_FDCWD, path, O_RDONLY);
    if (fd < 0) {
        return -1;
    }
    if (store->consumequeue_fd >= 0) {
        store->io->close(store->consumequeue_fd);
    }
    store->consumequeue_fd = fd;
    store->consumequeue_queue = queue;
    memcpy(store->consumequeue_path, path, (size_t)bytes + 1);
    return fd;
}

uint32_t shmq_units_read_file(struct shmq_store *store, uint32_t queue, uint64_t first, uint32_t count, uint8_t *out)
{
    const struct shmq_queue *entry = shmq_queue_entry(store, queue);
    if (entry == NULL) {
        return 0;
    }
    uint64_t persisted = shmq_load_acquire(&entry->persisted);
    uint64_t left_in_file = FILE_UNITS - first % FILE_UNITS;
    if (first >= persisted) {
        return 0;
    }
    uint64_t wanted = count < persisted - first ? count : persisted - first;
    wanted = wanted < left_in_file ? wanted : left_in_file;
    int fd = file_at(store, queue, first / FILE_UNITS);
    if (fd < 0) {
        return 0;
    }
    ssize_t got = store->io->read_at(fd, out, wanted * SHMQ_UNIT_BYTES, first % FILE_UNITS * SHMQ_UNIT_BYTES);
    uint32_t units = got > 0 ? (uint32_t)((size_t)got / SHMQ_UNIT_BYTES) : 0;
    if (!shmq_queue_lives(store, queue)) {
        return 0; /* perhaps the file was that of the topic's next life */
    }
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
