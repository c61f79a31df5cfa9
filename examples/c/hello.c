/* hello TOPIC TEXT CONTROL UNITS READERS: append one message to queue 0 of a topic, then print the whole queue.
 *
 *   cc -std=c11 hello.c $(python -m shmq.bindings.config --cflags --libs) -o hello
 *   ./hello orders "hello from C" $(python -m shmq.bindings.config --segments RUNTIME_DIRECTORY)
 *
 * The topic exists already; `shmq topic create orders` makes it. docs/reference/c.md has the rest.
 */
#include <shmq.h>

#include <inttypes.h>
#include <stdio.h>

static int failed(const char *what, enum shmq_status status)
{
    fprintf(stderr, "%s: status %d\n", what, (int)status);
    return 1;
}

static enum shmq_status append(struct shmq_store *store, uint32_t queue, const char *topic, const char *text)
{
    struct shmq_appended appended;
    struct shmq_spec spec = {.topic = topic,
                             .topic_bytes = (uint32_t)strlen(topic),
                             .body = text,
                             .body_bytes = (uint32_t)strlen(text)};
    memcpy(spec.store_host, store->head->store_host, sizeof spec.store_host);
    memcpy(spec.born_host, store->head->store_host, sizeof spec.store_host);
    uint64_t deadline_ns = store->io->monotonic_ns() + UINT64_C(3000000000);
    enum shmq_status status = shmq_append(store, queue, &spec, 0, deadline_ns, &appended);
    if (status == SHMQ_OK) {
        shmq_wake(store, queue); /* consumers that sleep on the queue */
        printf("appended offset %" PRIu64 " at %" PRIu64 "\n", appended.queue_offset, appended.log_position);
    }
    return status;
}

static enum shmq_status print_queue(struct shmq_store *store, uint32_t queue)
{
    uint64_t offset = atomic_load(&store->queues[queue].offset_min), end = atomic_load(&store->queues[queue].offset_max);
    for (; offset < end; offset++) {
        uint8_t bytes[SHMQ_UNIT_BYTES];
        struct shmq_unit unit;
        struct shmq_view view;
        if (shmq_units_stored(store, queue, offset, 1, bytes) != 1) {
            return SHMQ_GONE;
        }
        shmq_unit_unpack(bytes, &unit);
        struct shmq_mapping *mapping = shmq_mapping_get(store, unit.log_position);
        if (mapping == NULL || unit.log_position >= shmq_visible_end(store)) {
            return SHMQ_GONE;
        }
        uint64_t at = unit.log_position - mapping->base;
        enum shmq_status status = shmq_record_decode(mapping->data + at, mapping->bytes - at, &view);
        if (status != SHMQ_OK) {
            return status;
        }
        printf("%" PRIu64 " %.*s\n", offset, (int)view.body_bytes, (const char *)view.body);
    }
    return SHMQ_OK;
}

int main(int argc, char **argv)
{
    enum shmq_status status;
    if (argc != 6) {
        fprintf(stderr, "usage: hello TOPIC TEXT CONTROL UNITS READERS\n");
        return 2;
    }
    printf("libshmq %s\n", shmq_version());
    struct shmq_store *store = shmq_store_open((const char *const *)argv + 3, true, &status);
    if (store == NULL) {
        return failed("opening the segments", status);
    }
    uint32_t topic = shmq_topic_find(store, argv[1], strlen(argv[1]));
    uint32_t queue = topic == SHMQ_NONE ? SHMQ_NONE : shmq_topic_queue(store, topic, 0);
    if (queue == SHMQ_NONE) {
        return failed("finding the topic", SHMQ_NO_TOPIC);
    }
    status = append(store, queue, argv[1], argv[2]);
    status = status == SHMQ_OK ? print_queue(store, queue) : status;
    shmq_store_close(store);
    return status == SHMQ_OK ? 0 : failed("appending and reading", status);
}
