/* Topics and their queues, and the lock of every table: tables that grow entry by entry.
 *
 * Changes are made under table_lock; look-ups take no lock. An entry is complete before the count that makes it
 * readable is raised, so a change that was cut short by a kill leaves at most an unused entry behind. The hash of the names
 * is names.c's. Which queues a topic has, its extents say; the entries of queues are queue.c's.
 *
 *   number  names the entry had before << bits | entry        bits: as many as topic_mask has
 *
 *   topic   EMPTY ──put──▶ LIVE ──delete──▶ DELETED ──keeper: nothing of it is left──▶ EMPTY ──put──▶ LIVE, another number
 *                            ◀──put, the same name──┘         a new life gets new queues, and keeps the number
 *
 * A number is one name's for ever. (1) A process that kept one and was stopped looks behind what it has read whether the
 * number still holds; names, extents and what else an entry says change only after the number. (2) An entry has the
 * name of its queues as long as one of them lives or is leaving, so a reader of a queue may ask for its name. (3) An entry
 * whose last number is given is not used again.
 */
#include <string.h>

#include "core/segments/segments.h"

#define TABLE_LOCK_NS UINT64_C(5000000000)
#define FIND_TRIES 100

/* ---- the lock ---------------------------------------------------------------------------------------- */
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
        shmq_names_repair(store);
        shmq_queues_repair(store);
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

/* ---- look-ups, without the lock ----------------------------------------------------------------------- */
static bool is_live(const struct shmq_topic *topic)
{
    return atomic_load_explicit(&topic->state, memory_order_acquire) == SHMQ_TOPIC_LIVE;
}

uint32_t shmq_topic_find(const struct shmq_store *store, const char *name, size_t bytes)
{
    for (int attempt = 0; attempt < FIND_TRIES; attempt++) {
        const uint32_t index = shmq_name_entry(store, name, bytes);
        if (index == SHMQ_NONE || index >= shmq_topic_count(store)) {
            return SHMQ_NONE;
        }
        /* The name is the number's only if the number is the same before and after. */
        const struct shmq_topic *topic = &store->topics[index];
        const uint32_t number = atomic_load_explicit(&topic->number, memory_order_acquire);
        const bool lives = is_live(topic);
        const bool same = topic->name_bytes == bytes && memcmp(topic->name, name, bytes) == 0;
        if (shmq_topic_holds(store, number) && same) {
            return lives ? number : SHMQ_NONE;
        }
    }
    return SHMQ_NONE; /* it came and went all the time */
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
    const struct shmq_topic *entry = shmq_topic_place(store, topic);
    if (entry == NULL || (topic & store->topic_mask) >= shmq_topic_count(store)) {
        return SHMQ_NONE;
    }
    for (int i = 0; i < SHMQ_TOPIC_EXTENTS; i++) {
        struct shmq_extent extent = extent_load(&entry->extents[i]);
        if (queue_id < extent.count) {
            uint32_t queue = extent.first_queue + queue_id;
            return (queue & store->queue_mask) < store->sizes.queue_max && shmq_topic_holds(store, topic) ? queue : SHMQ_NONE;
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
        const uint32_t number = atomic_load_explicit(&topic->number, memory_order_relaxed);
        enum shmq_status status = shmq_queues_take(store, number, have, wanted - have, extents + place,
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
static void flush_write(struct shmq_store *store, struct shmq_topic *topic, uint32_t mode)
{
    const uint32_t number = atomic_load_explicit(&topic->number, memory_order_relaxed);
    topic->flush = (uint16_t)mode;
    if (mode == SHMQ_FLUSH_SYNC) {
        atomic_store_explicit(&store->log->has_sync_topics, 1, memory_order_release);
    }
    for (uint32_t id = 0, queue; (queue = shmq_topic_queue(store, number, id)) != SHMQ_NONE; id++) {
        struct shmq_queue *entry = shmq_queue_entry(store, queue);
        if (entry != NULL) {
            atomic_store_explicit(&entry->flush, mode, memory_order_release);
        }
    }
}

enum shmq_status shmq_topic_set_flush(struct shmq_store *store, uint32_t topic, uint32_t mode)
{
    if ((topic & store->topic_mask) >= shmq_topic_count(store) || mode > SHMQ_FLUSH_SYNC) {
        return SHMQ_BAD_ARGUMENT;
    }
    enum shmq_status status = shmq_table_enter(store);
    if (status != SHMQ_OK) {
        return status;
    }
    struct shmq_topic *entry = shmq_topic_place(store, topic);
    if (entry == NULL) {
        return shmq_table_leave(store, SHMQ_NO_TOPIC);
    }
    flush_write(store, entry, mode);
    atomic_fetch_add_explicit(&entry->version, 1, memory_order_release);
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
    flush_write(store, topic, fresh ? SHMQ_FLUSH_AS_BROKER : topic->flush);
    atomic_fetch_add_explicit(&topic->version, 1, memory_order_release);
    atomic_store_explicit(&topic->state, SHMQ_TOPIC_LIVE, memory_order_release);
    return SHMQ_OK;
}

/* ---- put, delete, free ------------------------------------------------------------------------------------- */
/* High bits of the number that an entry's next name gets; above all numbers when there is none left. */
static uint64_t next_names(const struct shmq_store *store, uint32_t index)
{
    const uint32_t number = atomic_load_explicit(&store->topics[index].number, memory_order_relaxed);
    return ((uint64_t)number & ~(uint64_t)store->topic_mask) + store->topic_mask + 1;
}

/* An entry for a new name: one that was never used, else one that was freed. */
static uint32_t entry_free(const struct shmq_store *store)
{
    const uint32_t count = shmq_topic_count(store);
    if (count < store->sizes.topic_max) {
        return count;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (!shmq_topic_is_named(store, i) && next_names(store, i) <= (SHMQ_NONE & ~store->topic_mask)) {
            return i;
        }
    }
    return SHMQ_NONE;
}

static void entry_name(struct shmq_store *store, uint32_t index, const char *name, size_t bytes)
{
    struct shmq_topic *topic = &store->topics[index];
    const uint32_t number = index < shmq_topic_count(store) ? (uint32_t)next_names(store, index) | index : index;
    /* A put that died before it counted the entry may have left it LIVE, with its queues. */
    atomic_store_explicit(&topic->state, SHMQ_TOPIC_EMPTY, memory_order_release);
    atomic_store_explicit(&topic->number, number, memory_order_release);
    SHMQ_POINT("topic.numbered");
    atomic_thread_fence(memory_order_release); /* what is written from here on is that number's */
    memset(topic->name, 0, sizeof topic->name);
    memcpy(topic->name, name, bytes);
    topic->name_bytes = (uint32_t)bytes;
    SHMQ_POINT("topic.named");
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
    uint32_t index = shmq_name_entry(store, name, bytes);
    bool known = index != SHMQ_NONE;
    if (!known) {
        index = entry_free(store);
        if (index == SHMQ_NONE) {
            return shmq_table_leave(store, SHMQ_TABLE_FULL);
        }
        entry_name(store, index, name, bytes);
    }
    status = topic_write(store, index, read_queues, write_queues, perm, flags, kind);
    if (status == SHMQ_OK && !known) {
        SHMQ_POINT("topic.written");
        if (index == shmq_topic_count(store)) {
            atomic_store_explicit(&store->log->topic_count, index + 1, memory_order_release);
            SHMQ_POINT("topic.counted");
        }
        shmq_name_link(store, index);
    }
    *out = atomic_load_explicit(&store->topics[index].number, memory_order_relaxed);
    return shmq_table_leave(store, status);
}

enum shmq_status shmq_topic_delete(struct shmq_store *store, const char *name)
{
    enum shmq_status status = shmq_table_enter(store);
    if (status != SHMQ_OK) {
        return status;
    }
    struct shmq_topic *topic = shmq_topic_place(store, shmq_topic_find(store, name, strlen(name)));
    if (topic != NULL) {
        atomic_store_explicit(&topic->state, SHMQ_TOPIC_DELETED, memory_order_release);
        atomic_fetch_add_explicit(&topic->version, 1, memory_order_release);
    }
    status = shmq_table_leave(store, topic == NULL ? SHMQ_NO_TOPIC : SHMQ_OK);
    shmq_ring_keeper(store); /* it frees the queues, and then the entry */
    return status;
}

/* Whether a queue of the last life of an entry is still to be given back. */
static bool has_queues(const struct shmq_store *store, const struct shmq_topic *topic)
{
    for (int i = 0; i < SHMQ_TOPIC_EXTENTS; i++) {
        const struct shmq_extent extent = extent_load(&topic->extents[i]);
        for (uint32_t k = 0; k < extent.count && k < store->sizes.queue_max; k++) {
            const uint32_t queue = extent.first_queue + k;
            if (shmq_queue_is_number(store, queue) &&
                (shmq_queue_entry(store, queue) != NULL ||
                 atomic_load_explicit(&shmq_queue_place(store, queue)->leaving, memory_order_acquire) == queue + 1)) {
                return true;
            }
        }
    }
    return false;
}

enum shmq_status shmq_topic_free(struct shmq_store *store, uint32_t topic, uint32_t version)
{
    enum shmq_status status = shmq_table_enter(store);
    if (status != SHMQ_OK) {
        return status;
    }
    struct shmq_topic *entry = shmq_topic_place(store, topic);
    if (entry == NULL || atomic_load_explicit(&entry->state, memory_order_relaxed) != SHMQ_TOPIC_DELETED ||
        atomic_load_explicit(&entry->version, memory_order_relaxed) != version) {
        status = SHMQ_NO_TOPIC;
    } else if (has_queues(store, entry)) {
        status = SHMQ_WOULD_BLOCK;
    } else {
        atomic_store_explicit(&entry->state, SHMQ_TOPIC_EMPTY, memory_order_release);
        SHMQ_POINT("topic.freed");
        shmq_name_unlink(store, topic & store->topic_mask);
    }
    shmq_table_exit(store);
    return status;
}
