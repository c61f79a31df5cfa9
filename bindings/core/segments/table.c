/* Topics and their queues, and the lock of every table: tables that grow entry by entry.
 *
 * Changes are made under table_lock; look-ups take no lock. An entry is complete before the count that makes it
 * readable is raised, so a change that was cut short by a kill leaves at most an unused entry behind. The topic hash is
 * derived from the entries and rebuilt after the holder of the lock died. Which queues a topic has, its extents say; the
 * entries of queues are queue.c's.
 *
 *   topic   EMPTY -> LIVE -> DELETED -> LIVE …     a name keeps its entry; a new life gets new queues
 */
#include <string.h>

#include "core/internal.h"

#define TABLE_LOCK_NS UINT64_C(5000000000)

static uint32_t hash_name(const char *name, size_t bytes)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ (uint8_t)name[i]) * UINT64_C(0x100000001b3);
    }
    return shmq_hash64(hash);
}

static uint32_t topic_count(const struct shmq_store *store)
{
    uint32_t count = atomic_load_explicit(&store->log->topic_count, memory_order_acquire);
    return count < store->sizes.topic_max ? count : store->sizes.topic_max;
}

/* Entry of that name in any state, or SHMQ_NONE. */
static uint32_t topic_entry(const struct shmq_store *store, const char *name, size_t bytes)
{
    uint32_t mask = store->topic_bucket_count - 1;
    uint32_t at = hash_name(name, bytes) & mask;
    for (uint32_t step = 0; step <= mask; step++, at = (at + 1) & mask) {
        uint32_t link = __atomic_load_n(&store->topic_buckets[at], __ATOMIC_ACQUIRE);
        if (link == 0 || link > store->sizes.topic_max) {
            return SHMQ_NONE;
        }
        const struct shmq_topic *topic = &store->topics[link - 1];
        if (topic->name_bytes == bytes && bytes < sizeof topic->name && memcmp(topic->name, name, bytes) == 0) {
            return link - 1;
        }
    }
    return SHMQ_NONE;
}

static void topic_link(struct shmq_store *store, uint32_t index)
{
    const struct shmq_topic *topic = &store->topics[index];
    uint32_t mask = store->topic_bucket_count - 1;
    uint32_t bytes = topic->name_bytes;
    if (bytes > SHMQ_TOPIC_BYTES_MAX) {
        return;
    }
    uint32_t at = hash_name(topic->name, bytes) & mask;
    /* Twice as many buckets as entries, so an empty one comes; the bound is for a scribbled table. */
    for (uint32_t step = 0; step < mask; step++, at = (at + 1) & mask) {
        if (store->topic_buckets[at] == 0 || store->topic_buckets[at] == index + 1) {
            break;
        }
    }
    __atomic_store_n(&store->topic_buckets[at], index + 1, __ATOMIC_RELEASE);
}

void shmq_table_repair(struct shmq_store *store)
{
    for (uint32_t i = 0; i < topic_count(store); i++) {
        topic_link(store, i);
    }
    shmq_queues_repair(store);
}

enum shmq_status shmq_table_enter(struct shmq_store *store)
{
    bool owner_died = false;
    if (!store->writable) {
        return SHMQ_READ_ONLY; /* the lock itself lies in a segment that readers map read-only */
    }
    int rc = shmq_robust_lock(store, &store->log->table_lock, store->io->monotonic_ns() + TABLE_LOCK_NS, &owner_died);
    if (rc != 0) {
        errno = rc;
        return rc == ETIMEDOUT ? SHMQ_BROKER_BUSY : SHMQ_SYSTEM;
    }
    if (owner_died) {
        shmq_table_repair(store);
        pthread_mutex_consistent(&store->log->table_lock);
    }
    return SHMQ_OK;
}

enum shmq_status shmq_table_leave(struct shmq_store *store, enum shmq_status status)
{
    atomic_fetch_add_explicit(&store->log->table_version, 1, memory_order_release);
    shmq_table_exit(store);
    return status;
}

void shmq_table_exit(struct shmq_store *store)
{
    pthread_mutex_unlock(&store->log->table_lock);
}

uint32_t shmq_topic_find(const struct shmq_store *store, const char *name, size_t bytes)
{
    uint32_t index = topic_entry(store, name, bytes);
    if (index == SHMQ_NONE || index >= topic_count(store) ||
        atomic_load_explicit(&store->topics[index].state, memory_order_acquire) != SHMQ_TOPIC_LIVE) {
        return SHMQ_NONE;
    }
    return index;
}

/* Both halves of an extent at once: a look-up that saw a new count beside an old first queue would hand out the queue
 * of another topic. */
typedef uint64_t __attribute__((may_alias)) extent_word;
static_assert(sizeof(struct shmq_extent) == sizeof(extent_word) && offsetof(struct shmq_topic, extents) % 8 == 0 &&
                  sizeof(struct shmq_topic) % 8 == 0,
              "an extent is one aligned word");

static struct shmq_extent extent_load(const struct shmq_extent *place)
{
    uint64_t word = __atomic_load_n((const extent_word *)place, __ATOMIC_ACQUIRE);
    struct shmq_extent extent;
    memcpy(&extent, &word, sizeof extent);
    return extent;
}

static void extent_store(struct shmq_extent *place, struct shmq_extent extent)
{
    uint64_t word;
    memcpy(&word, &extent, sizeof word);
    __atomic_store_n((extent_word *)place, word, __ATOMIC_RELEASE);
}

uint32_t shmq_topic_queue(const struct shmq_store *store, uint32_t topic, uint32_t queue_id)
{
    if (topic >= topic_count(store)) {
        return SHMQ_NONE;
    }
    for (int i = 0; i < SHMQ_TOPIC_EXTENTS; i++) {
        struct shmq_extent extent = extent_load(&store->topics[topic].extents[i]);
        if (queue_id < extent.count) {
            uint32_t queue = extent.first_queue + queue_id;
            return (queue & store->queue_mask) < store->sizes.queue_max ? queue : SHMQ_NONE;
        }
        queue_id -= extent.count;
    }
    return SHMQ_NONE;
}

/* Give `topic` queues up to `wanted`; counts from zero when `fresh`. */
static enum shmq_status queues_add(struct shmq_store *store, uint32_t index, uint32_t wanted, bool fresh)
{
    struct shmq_topic *topic = &store->topics[index];
    struct shmq_extent extents[SHMQ_TOPIC_EXTENTS] = {{0, 0}};
    if (!fresh) {
        memcpy(extents, topic->extents, sizeof extents);
    }
    uint32_t have = 0, place = 0;
    for (; place < SHMQ_TOPIC_EXTENTS && extents[place].count != 0; place++) {
        have += extents[place].count;
    }
    if (wanted > have) {
        enum shmq_status status = shmq_queues_take(store, index, have, wanted - have, extents + place,
                                                   SHMQ_TOPIC_EXTENTS - place);
        if (status != SHMQ_OK) {
            return status;
        }
    }
    for (uint32_t i = 0; i < SHMQ_TOPIC_EXTENTS; i++) {
        extent_store(&topic->extents[i], extents[i]);
    }
    return SHMQ_OK;
}

/* Also into each queue, where those find it who write or read there. */
static void flush_write(struct shmq_store *store, uint32_t index, uint32_t mode)
{
    struct shmq_topic *topic = &store->topics[index];
    topic->flush = (uint16_t)mode;
    if (mode == SHMQ_FLUSH_SYNC) {
        atomic_store_explicit(&store->log->has_sync_topics, 1, memory_order_release);
    }
    for (uint32_t id = 0, queue; (queue = shmq_topic_queue(store, index, id)) != SHMQ_NONE; id++) {
        struct shmq_queue *entry = shmq_queue_entry(store, queue);
        if (entry != NULL) {
            atomic_store_explicit(&entry->flush, mode, memory_order_release);
        }
    }
}

enum shmq_status shmq_topic_set_flush(struct shmq_store *store, uint32_t index, uint32_t mode)
{
    if (index >= topic_count(store) || mode > SHMQ_FLUSH_SYNC) {
        return SHMQ_BAD_ARGUMENT;
    }
    enum shmq_status status = shmq_table_enter(store);
    if (status != SHMQ_OK) {
        return status;
    }
    flush_write(store, index, mode);
    atomic_fetch_add_explicit(&store->topics[index].version, 1, memory_order_release);
    return shmq_table_leave(store, SHMQ_OK);
}

static enum shmq_status topic_write(struct shmq_store *store, uint32_t index, uint32_t read_queues,
                                    uint32_t write_queues, uint32_t perm, uint32_t flags, uint32_t kind)
{
    struct shmq_topic *topic = &store->topics[index];
    bool fresh = atomic_load_explicit(&topic->state, memory_order_relaxed) != SHMQ_TOPIC_LIVE;
    enum shmq_status status = queues_add(store, index, read_queues > write_queues ? read_queues : write_queues, fresh);
    if (status != SHMQ_OK) {
        return status;
    }
    if (fresh) {
        topic->born_position = shmq_load_acquire(&store->log->end);
    }
    topic->read_queues = read_queues;
    topic->write_queues = write_queues;
    topic->perm = perm;
    topic->flags = flags;
    topic->kind = (uint16_t)kind;
    flush_write(store, index, fresh ? SHMQ_FLUSH_AS_BROKER : topic->flush);
    atomic_fetch_add_explicit(&topic->version, 1, memory_order_release);
    atomic_store_explicit(&topic->state, SHMQ_TOPIC_LIVE, memory_order_release);
    return SHMQ_OK;
}

enum shmq_status shmq_topic_put(struct shmq_store *store, const char *name, uint32_t read_queues, uint32_t write_queues,
                                uint32_t perm, uint32_t flags, uint32_t kind, uint32_t *out)
{
    size_t bytes = strlen(name);
    if (bytes == 0 || bytes > SHMQ_TOPIC_BYTES_MAX) {
        return SHMQ_BAD_ARGUMENT;
    }
    enum shmq_status status = shmq_table_enter(store);
    if (status != SHMQ_OK) {
        return status;
    }
    uint32_t index = topic_entry(store, name, bytes);
    bool known = index != SHMQ_NONE;
    if (!known) {
        index = topic_count(store);
        if (index >= store->sizes.topic_max) {
            return shmq_table_leave(store, SHMQ_TABLE_FULL);
        }
        memset(store->topics[index].name, 0, sizeof store->topics[index].name);
        memcpy(store->topics[index].name, name, bytes);
        store->topics[index].name_bytes = (uint32_t)bytes;
        /* A put that died before it counted the entry may have left it LIVE, with its queues. */
        atomic_store_explicit(&store->topics[index].state, SHMQ_TOPIC_EMPTY, memory_order_release);
    }
    status = topic_write(store, index, read_queues, write_queues, perm, flags, kind);
    if (status == SHMQ_OK && !known) {
        SHMQ_POINT("topic.written");
        atomic_store_explicit(&store->log->topic_count, index + 1, memory_order_release);
        SHMQ_POINT("topic.counted");
        topic_link(store, index);
    }
    *out = index;
    return shmq_table_leave(store, status);
}

enum shmq_status shmq_topic_delete(struct shmq_store *store, const char *name)
{
    enum shmq_status status = shmq_table_enter(store);
    if (status != SHMQ_OK) {
        return status;
    }
    uint32_t index = shmq_topic_find(store, name, strlen(name));
    if (index != SHMQ_NONE) {
        atomic_store_explicit(&store->topics[index].state, SHMQ_TOPIC_DELETED, memory_order_release);
        atomic_fetch_add_explicit(&store->topics[index].version, 1, memory_order_release);
    }
    status = shmq_table_leave(store, index == SHMQ_NONE ? SHMQ_NO_TOPIC : SHMQ_OK);
    shmq_ring_keeper(store); /* it frees the queues */
    return status;
}
