/* group TOPIC GROUP CONTROL UNITS READERS: take queue 0 of a topic for a group, and print what the group has not read.
 *
 *   cc -std=c11 group.c $(python -m shmq.bindings.config --cflags --libs) -o group
 *   ./group orders workers $(python -m shmq.bindings.config --segments RUNTIME_DIRECTORY)
 *
 * The group goes on behind what is printed, here and in every other language. While another member that lives owns the
 * queue, nothing is read.
 */
#include <shmq.h>

#include <inttypes.h>
#include <stdio.h>

enum { ROLE = 3 }; /* of client slots: for people who look at them */

static int failed(const char *what, enum shmq_status status)
{
    fprintf(stderr, "%s: status %d\n", what, (int)status);
    return 1;
}

static enum shmq_status print_message(struct shmq_store *store, uint32_t queue, uint64_t offset)
{
    uint8_t bytes[SHMQ_UNIT_BYTES];
    struct shmq_unit unit;
    struct shmq_view view;
    if (shmq_units_stored(store, queue, offset, 1, bytes) != 1) {
        return SHMQ_GONE;
    }
    shmq_unit_unpack(bytes, &unit);
    struct shmq_mapping *mapping = shmq_mapping_get(store, unit.log_position);
    if (mapping == NULL || unit.log_position >= shmq_queue_visible_end(store, queue)) {
        return SHMQ_GONE;
    }
    uint64_t at = unit.log_position - mapping->base;
    enum shmq_status status = shmq_record_decode(mapping->data + at, mapping->bytes - at, &view);
    if (status == SHMQ_OK) {
        printf("%" PRIu64 " %.*s\n", offset, (int)view.body_bytes, (const char *)view.body);
    }
    return status;
}

static enum shmq_status read_queue(struct shmq_store *store, struct shmq_offset *entry, uint64_t place)
{
    const uint32_t queue = (uint32_t)place;
    const struct shmq_queue *stored = shmq_queue_place(store, queue);
    uint64_t committed = shmq_offset_get(entry, place); /* the next offset plus 1, 0: the group never read */
    uint64_t offset = committed ? committed - 1 : atomic_load(&stored->offset_min);
    while (offset < atomic_load(&stored->offset_max)) {
        enum shmq_status status = print_message(store, queue, offset);
        if (status != SHMQ_OK) {
            return status;
        }
        if (!shmq_owner_commit(store, entry, place, ++offset)) {
            return SHMQ_GONE; /* the group's offset was set by the broker, which took the queue away */
        }
    }
    return SHMQ_OK;
}

int main(int argc, char **argv)
{
    enum shmq_status status;
    uint64_t client;
    uint32_t group, slot;
    if (argc != 6) {
        fprintf(stderr, "usage: group TOPIC GROUP CONTROL UNITS READERS\n");
        return 2;
    }
    struct shmq_store *store = shmq_store_open((const char *const *)argv + 3, true, &status);
    if (store == NULL) {
        return failed("opening the segments", status);
    }
    uint32_t topic = shmq_topic_find(store, argv[1], strlen(argv[1]));
    uint32_t queue = topic == SHMQ_NONE ? SHMQ_NONE : shmq_topic_queue(store, topic, 0);
    status = queue == SHMQ_NONE ? SHMQ_NO_TOPIC : shmq_group_put(store, argv[2], &group);
    status = status == SHMQ_OK ? shmq_offset_put(store, group, queue, &slot) : status;
    status = status == SHMQ_OK ? shmq_client_put(store, store->self_pid, store->self_start, ROLE, &client) : status;
    if (status != SHMQ_OK) {
        return failed("joining the group", status);
    }
    shmq_client_use(store, client);
    struct shmq_offset *entry = &store->offsets[slot];
    const uint64_t place = shmq_offset_place(group, queue);
    if (shmq_owner_take(store, entry, place)) {
        status = read_queue(store, entry, place);
        shmq_owner_leave(store, entry, place);
    } else {
        printf("client slot %" PRIu32 " reads the queue\n", shmq_owner_find(store, entry, place));
    }
    shmq_client_drop(store, shmq_client_slot(client));
    shmq_store_close(store);
    return status == SHMQ_OK ? 0 : failed("reading", status);
}
