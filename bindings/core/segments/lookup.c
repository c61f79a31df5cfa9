/* Finding a group by name and an offset slot by group and queue: a hash of this process over tables all share.
 *
 *   buckets   entry index + 1, 0 is empty; open addressing. Entries that others added are linked at the next look-up.
 *
 * (1) A bucket is a hint: the entry itself says whether it is the one, so a scribbled or renamed entry is not found, never
 * mistaken. (2) An offset slot keeps the entries of its group and its queue for good; a group's entry is given to another name
 * only in a full table (member.c), so only there a name that is not linked has to be looked for entry by entry. (3) Without
 * memory for buckets everything is found entry by entry.
 *
 * In shared memory the hash would have to survive every kill; a private one costs nothing where it is not used.
 */
#include <stdlib.h>
#include <string.h>

#include "core/segments/segments.h"

enum { BUCKETS_LEAST = 64 };

struct table { uint32_t *buckets; uint32_t bucket_count, linked, known; };

struct shmq_lookups {
    pthread_mutex_t lock;
    struct table groups, offsets;
    uint64_t probes; /* entries looked at since the store was opened */
};

/* All bits of the value reach the low ones, which choose the bucket. */
static uint32_t mixed(uint64_t value)
{
    value = (value ^ value >> 33) * UINT64_C(0xff51afd7ed558ccd);
    value = (value ^ value >> 33) * UINT64_C(0xc4ceb9fe1a85ec53);
    return (uint32_t)(value ^ value >> 33);
}

static uint32_t hash_name(const char *name, size_t bytes)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ (uint8_t)name[i]) * UINT64_C(0x100000001b3);
    }
    return mixed(hash);
}

static uint32_t hash_slot(const struct shmq_store *store, uint64_t place)
{
    return mixed(place & shmq_offset_place(store->group_mask, store->queue_mask));
}

static uint32_t group_hash(const struct shmq_store *store, uint32_t index)
{
    const struct shmq_group *group = &store->groups[index];
    uint32_t bytes = group->name_bytes;
    return hash_name(group->name, bytes <= SHMQ_GROUP_BYTES_MAX ? bytes : 0);
}

static uint32_t offset_hash(const struct shmq_store *store, uint32_t index)
{
    return hash_slot(store, atomic_load_explicit(&store->offsets[index].place, memory_order_relaxed));
}

typedef uint32_t (*entry_hash)(const struct shmq_store *store, uint32_t index);

static void put(struct table *table, uint32_t hash, uint32_t index)
{
    uint32_t mask = table->bucket_count - 1, at = hash & mask;
    while (table->buckets[at] != 0) {
        at = (at + 1) & mask;
    }
    table->buckets[at] = index + 1;
    table->linked++;
}

/* Link every entry below `count` anew, with room for as many again. */
static bool rebuild(struct table *table, const struct shmq_store *store, entry_hash hash, uint32_t count)
{
    uint64_t wanted = BUCKETS_LEAST;
    while (wanted < (uint64_t)count * 4) {
        wanted *= 2;
    }
    uint32_t *buckets = wanted <= UINT32_MAX ? calloc(wanted, sizeof *buckets) : NULL;
    if (buckets == NULL) {
        return false;
    }
    free(table->buckets);
    *table = (struct table){.buckets = buckets, .bucket_count = (uint32_t)wanted, .known = count};
    for (uint32_t i = 0; i < count; i++) {
        put(table, hash(store, i), i);
    }
    return true;
}

/* Link what was added since the last look; false when there is no memory for it. */
static bool catch_up(struct table *table, const struct shmq_store *store, entry_hash hash, uint32_t count)
{
    if (table->known > count) {
        return rebuild(table, store, hash, count); /* counts only grow; what was linked cannot be trusted */
    }
    while (table->known < count) {
        if ((uint64_t)(table->linked + 1) * 2 > table->bucket_count) {
            return rebuild(table, store, hash, count);
        }
        put(table, hash(store, table->known), table->known);
        table->known++;
    }
    return table->buckets != NULL;
}

/* ---- groups ----------------------------------------------------------------------------------------- */
static bool is_named(const struct shmq_store *store, uint32_t index, const char *name, size_t bytes, bool live_only)
{
    struct shmq_group *group = &store->groups[index];
    bool live = atomic_load_explicit(&group->state, memory_order_acquire) == 1;
    return (live || !live_only) && group->name_bytes == bytes && bytes < sizeof group->name &&
           memcmp(group->name, name, bytes) == 0;
}

bool shmq_lookup_is_group(const struct shmq_store *store, uint32_t index, const char *name)
{
    return is_named(store, index, name, strlen(name), true);
}

static bool is_group(const struct shmq_store *store, uint32_t index, const char *name, size_t bytes, bool live_only)
{
    store->lookups->probes++;
    return is_named(store, index, name, bytes, live_only);
}

static uint32_t group_in(const struct shmq_store *store, const char *name, bool live_only, uint32_t count)
{
    struct table *table = &store->lookups->groups;
    size_t bytes = strlen(name);
    if (count == 0) {
        return SHMQ_NONE;
    }
    if (catch_up(table, store, group_hash, count)) {
        uint32_t mask = table->bucket_count - 1;
        for (uint32_t at = hash_name(name, bytes) & mask; table->buckets[at] != 0; at = (at + 1) & mask) {
            if (is_group(store, table->buckets[at] - 1, name, bytes, live_only)) {
                return table->buckets[at] - 1;
            }
        }
        if (count < store->sizes.group_max) {
            return SHMQ_NONE;
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        if (is_group(store, i, name, bytes, live_only)) {
            return i;
        }
    }
    return SHMQ_NONE;
}

uint32_t shmq_lookup_group(const struct shmq_store *store, const char *name, bool live_only, uint32_t count)
{
    pthread_mutex_lock(&store->lookups->lock);
    uint32_t found = group_in(store, name, live_only, count);
    pthread_mutex_unlock(&store->lookups->lock);
    return found;
}

void shmq_lookup_renamed(const struct shmq_store *store, uint32_t group)
{
    struct table *table = &store->lookups->groups;
    pthread_mutex_lock(&store->lookups->lock);
    if (group < table->known) {
        if ((uint64_t)(table->linked + 1) * 2 > table->bucket_count) {
            (void)rebuild(table, store, group_hash, table->known); /* else it is found entry by entry */
        } else {
            put(table, group_hash(store, group), group);
        }
    }
    pthread_mutex_unlock(&store->lookups->lock);
}

/* ---- offset slots ----------------------------------------------------------------------------------- */
static bool is_slot(const struct shmq_store *store, uint32_t index, uint64_t place)
{
    store->lookups->probes++;
    const uint64_t found = atomic_load_explicit(&store->offsets[index].place, memory_order_relaxed);
    return ((found ^ place) & shmq_offset_place(store->group_mask, store->queue_mask)) == 0;
}

static uint32_t offset_in(const struct shmq_store *store, uint64_t place, uint32_t count)
{
    struct table *table = &store->lookups->offsets;
    if (count == 0) {
        return SHMQ_NONE;
    }
    if (catch_up(table, store, offset_hash, count)) {
        uint32_t mask = table->bucket_count - 1;
        for (uint32_t at = hash_slot(store, place) & mask; table->buckets[at] != 0; at = (at + 1) & mask) {
            if (is_slot(store, table->buckets[at] - 1, place)) {
                return table->buckets[at] - 1;
            }
        }
        return SHMQ_NONE;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (is_slot(store, i, place)) {
            return i;
        }
    }
    return SHMQ_NONE;
}

uint32_t shmq_lookup_offset(const struct shmq_store *store, uint64_t place, uint32_t count)
{
    pthread_mutex_lock(&store->lookups->lock);
    uint32_t found = offset_in(store, place, count);
    pthread_mutex_unlock(&store->lookups->lock);
    return found;
}

/* ---- life ------------------------------------------------------------------------------------------- */
bool shmq_lookups_open(struct shmq_store *store)
{
    store->lookups = calloc(1, sizeof *store->lookups);
    return store->lookups != NULL && pthread_mutex_init(&store->lookups->lock, NULL) == 0;
}

uint64_t shmq_lookup_probes(const struct shmq_store *store)
{
    return store->lookups->probes;
}

void shmq_lookups_close(struct shmq_store *store)
{
    if (store->lookups != NULL) {
        free(store->lookups->groups.buckets);
        free(store->lookups->offsets.buckets);
        pthread_mutex_destroy(&store->lookups->lock);
        free(store->lookups);
        store->lookups = NULL;
    }
}
