/* The hash of topic names: from a name to an entry of the topic table.
 *
 *   buckets   entry + 1 of a topic that is LIVE or DELETED, 0 is empty, BUCKET_LEFT steps on; open addressing
 *
 * Changes are made under table_lock; look-ups take no lock. (1) A link is a hint: the entry says which name it has, and its
 * number whether it still had it afterwards. (2) Links never move, and one that is taken out leaves a mark, so a look-up
 * finds what is there all the time. (3) A mark before an empty bucket is taken away, else marks would fill the table in
 * time. (4) It is derived from the entries, and mended after the holder of the lock died.
 */
#include <string.h>

#include "core/segments/segments.h"

/* What lies where a link was; no link, for it is above every entry. */
#define BUCKET_LEFT UINT32_MAX

static uint32_t hash_name(const char *name, size_t bytes)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ (uint8_t)name[i]) * UINT64_C(0x100000001b3);
    }
    return shmq_hash64(hash);
}

/* Entry of that name, LIVE or DELETED, or SHMQ_NONE. Without the lock a guess, which the number confirms. */
uint32_t shmq_name_entry(const struct shmq_store *store, const char *name, size_t bytes)
{
    uint32_t mask = store->topic_bucket_count - 1;
    uint32_t at = hash_name(name, bytes) & mask;
    for (uint32_t step = 0; step <= mask; step++, at = (at + 1) & mask) {
        uint32_t link = __atomic_load_n(&store->topic_buckets[at], __ATOMIC_ACQUIRE);
        if (link == 0) {
            return SHMQ_NONE;
        }
        if (link > store->sizes.topic_max) {
            continue; /* BUCKET_LEFT, or scribbled on */
        }
        const struct shmq_topic *topic = &store->topics[link - 1];
        if (topic->name_bytes == bytes && bytes < sizeof topic->name && memcmp(topic->name, name, bytes) == 0) {
            return link - 1;
        }
    }
    return SHMQ_NONE;
}

/* ---- links, under the lock ---------------------------------------------------------------------- */
/* The bucket where a look-up for the name of an entry meets the entry's link; SHMQ_NONE when it meets none. `place` is where
 * a link would go. */
static uint32_t link_find(const struct shmq_store *store, uint32_t index, uint32_t *place)
{
    const struct shmq_topic *topic = &store->topics[index];
    const uint32_t mask = store->topic_bucket_count - 1, bytes = topic->name_bytes;
    uint32_t at = hash_name(topic->name, bytes <= SHMQ_TOPIC_BYTES_MAX ? bytes : 0) & mask;
    *place = SHMQ_NONE;
    for (uint32_t step = 0; step <= mask; step++, at = (at + 1) & mask) {
        const uint32_t link = store->topic_buckets[at];
        if (link == index + 1) {
            return at;
        }
        if ((link == 0 || link == BUCKET_LEFT) && *place == SHMQ_NONE) {
            *place = at;
        }
        if (link == 0) {
            break;
        }
    }
    return SHMQ_NONE;
}

void shmq_name_link(struct shmq_store *store, uint32_t index)
{
    uint32_t place;
    /* Twice as many buckets as entries, so there is a place; a scribbled table may have none. */
    if (link_find(store, index, &place) == SHMQ_NONE && place != SHMQ_NONE) {
        __atomic_store_n(&store->topic_buckets[place], index + 1, __ATOMIC_RELEASE);
    }
}

static void bucket_leave(struct shmq_store *store, uint32_t at)
{
    const uint32_t mask = store->topic_bucket_count - 1;
    __atomic_store_n(&store->topic_buckets[at], BUCKET_LEFT, __ATOMIC_RELEASE);
    /* Before an empty bucket a mark tells nothing: without this, marks would fill the table in time. */
    for (uint32_t step = 0; step < mask && store->topic_buckets[at] == BUCKET_LEFT &&
                            store->topic_buckets[(at + 1) & mask] == 0; step++) {
        __atomic_store_n(&store->topic_buckets[at], 0, __ATOMIC_RELEASE);
        at = (at - 1) & mask;
    }
}

void shmq_name_unlink(struct shmq_store *store, uint32_t index)
{
    uint32_t place;
    const uint32_t at = link_find(store, index, &place);
    if (at != SHMQ_NONE) {
        bucket_leave(store, at);
    }
}

bool shmq_topic_is_named(const struct shmq_store *store, uint32_t index)
{
    return index < shmq_topic_count(store) &&
           atomic_load_explicit(&store->topics[index].state, memory_order_relaxed) != SHMQ_TOPIC_EMPTY;
}

void shmq_names_repair(struct shmq_store *store)
{
    uint32_t place;
    for (uint32_t at = 0; at < store->topic_bucket_count; at++) {
        const uint32_t link = store->topic_buckets[at];
        const bool leads = link <= store->sizes.topic_max && shmq_topic_is_named(store, link - 1) &&
                           link_find(store, link - 1, &place) == at;
        if (link != 0 && !leads) {
            bucket_leave(store, at);
        }
    }
    for (uint32_t i = 0; i < shmq_topic_count(store); i++) {
        if (shmq_topic_is_named(store, i)) {
            shmq_name_link(store, i);
        }
    }
}
