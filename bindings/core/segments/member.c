/* Groups, their settings, and client slots: tables that grow entry by entry, under the table lock of table.c.
 *
 *   group   EMPTY -> LIVE -> EMPTY -> LIVE …       a name keeps its entry, and with it its offset slots
 *   number  names the entry had before << bits | entry        bits: as many as group_mask has; below 2^31
 *   client  FREE -> AWAKE <-> ASLEEP -> FREE       each life of a slot has its own generation; slot and generation are
 *                                                  the client word that its process acts under
 *
 * (1) An entry is given to another name only when the table has no unused one left. A number is one name's for ever: a
 * member that kept the number of a deleted group finds that its offset slots are another's. The number changes before what
 * else the entry says; an entry whose last number is given is not used again. (2) A deleted group's offset slots
 * have no owner and hold nothing; a member that comes too late finds that its queue is not its own any more.
 * (3) The settings of a group are text to this file. The one of two places that `settings_turn` names is complete;
 * the other may be half written by a process that was killed. Reading needs no lock that way, and every bridge and
 * local member sees a change at once. Any local process may write there, so what cannot be is read as the default.
 */
#include <string.h>

#include "core/segments/segments.h"

#define TRIES 100

static uint32_t group_entry(const struct shmq_store *store, const char *name, bool live_only)
{
    return shmq_lookup_group(store, name, live_only, shmq_group_count(store));
}

/* The entry of a group's number, NULL when there is none. */
static struct shmq_group *group_of(const struct shmq_store *store, uint32_t group)
{
    return (group & store->group_mask) < shmq_group_count(store) ? shmq_group_place(store, group) : NULL;
}

uint32_t shmq_group_find(const struct shmq_store *store, const char *name)
{
    for (int attempt = 0; attempt < TRIES; attempt++) {
        const uint32_t index = group_entry(store, name, true);
        if (index == SHMQ_NONE) {
            return SHMQ_NONE;
        }
        /* The name is the number's only if the number is the same before and after. */
        const uint32_t number = atomic_load_explicit(&store->groups[index].number, memory_order_acquire);
        if (shmq_lookup_is_group(store, index, name) && shmq_group_holds(store, number)) {
            return number;
        }
    }
    return SHMQ_NONE; /* it came and went all the time */
}

static void settings_write(struct shmq_group *group, const char *text, uint32_t bytes)
{
    uint32_t turn = atomic_load_explicit(&group->settings_turn, memory_order_relaxed) + 1;
    struct shmq_group_settings *place = &group->settings[turn & 1];
    /* A reader of this place must not believe what it copies from here on. */
    atomic_thread_fence(memory_order_release);
    place->bytes = bytes;
    memcpy(place->text, text, bytes);
    atomic_store_explicit(&group->settings_turn, turn, memory_order_release);
}

/* High bits of the number that an entry's next name gets; above all numbers when there is none left. */
static uint64_t next_names(const struct shmq_store *store, uint32_t index)
{
    const uint32_t number = atomic_load_explicit(&store->groups[index].number, memory_order_relaxed);
    return ((uint64_t)number & ~(uint64_t)store->group_mask) + store->group_mask + 1;
}

/* An entry for a new name: one that was never used, else one that no group uses any more. */
static uint32_t group_free(const struct shmq_store *store)
{
    uint32_t count = shmq_group_count(store);
    if (count < store->sizes.group_max) {
        return count;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (atomic_load_explicit(&store->groups[i].state, memory_order_acquire) == 0 &&
            next_names(store, i) <= ((uint32_t)INT32_MAX & ~store->group_mask)) {
            return i;
        }
    }
    return SHMQ_NONE;
}

static void group_name(struct shmq_store *store, uint32_t index, const char *name, size_t bytes)
{
    struct shmq_group *group = &store->groups[index];
    const uint32_t number = index < shmq_group_count(store) ? (uint32_t)next_names(store, index) | index : index;
    /* A put that died before it counted the entry may have left it LIVE. */
    atomic_store_explicit(&group->state, 0, memory_order_release);
    atomic_store_explicit(&group->number, number, memory_order_release);
    SHMQ_POINT("group.numbered");
    atomic_thread_fence(memory_order_release); /* what is written from here on is that number's */
    settings_write(group, "", 0);
    memset(group->name, 0, sizeof group->name);
    memcpy(group->name, name, bytes);
    group->name_bytes = (uint32_t)bytes;
    SHMQ_POINT("group.named");
}

enum shmq_status shmq_group_put(struct shmq_store *store, const char *name, uint32_t *out)
{
    size_t bytes = strlen(name);
    if (bytes == 0 || bytes > SHMQ_GROUP_BYTES_MAX) {
        return SHMQ_BAD_ARGUMENT;
    }
    /* Most groups are there already: no lock, and no new version of the tables. */
    *out = store->writable ? shmq_group_find(store, name) : SHMQ_NONE;
    if (*out != SHMQ_NONE) {
        return SHMQ_OK;
    }
    enum shmq_status status = shmq_table_enter(store);
    if (status != SHMQ_OK) {
        return status;
    }
    uint32_t index = group_entry(store, name, false);
    if (index == SHMQ_NONE) {
        index = group_free(store);
        if (index == SHMQ_NONE) {
            return shmq_table_leave(store, SHMQ_TABLE_FULL);
        }
        group_name(store, index, name, bytes);
        shmq_lookup_renamed(store, index);
    }
    atomic_store_explicit(&store->groups[index].state, 1, memory_order_release);
    if (index == shmq_group_count(store)) {
        atomic_store_explicit(&store->readers->group_count, index + 1, memory_order_release);
    }
    *out = atomic_load_explicit(&store->groups[index].number, memory_order_relaxed);
    return shmq_table_leave(store, SHMQ_OK);
}

enum shmq_status shmq_group_delete(struct shmq_store *store, const char *name)
{
    enum shmq_status status = shmq_table_enter(store);
    if (status != SHMQ_OK) {
        return status;
    }
    uint32_t index = group_entry(store, name, true);
    if (index == SHMQ_NONE) {
        return shmq_table_leave(store, SHMQ_NO_TOPIC);
    }
    shmq_offsets_forget(store, atomic_load_explicit(&store->groups[index].number, memory_order_relaxed));
    settings_write(&store->groups[index], "", 0);
    atomic_store_explicit(&store->groups[index].state, 0, memory_order_release);
    return shmq_table_leave(store, SHMQ_OK);
}

enum shmq_status shmq_group_set(struct shmq_store *store, uint32_t group, const char *text, uint32_t bytes)
{
    if (group_of(store, group) == NULL || bytes > SHMQ_GROUP_SETTINGS_BYTES_MAX) {
        return SHMQ_BAD_ARGUMENT;
    }
    enum shmq_status status = shmq_table_enter(store);
    if (status != SHMQ_OK) {
        return status;
    }
    struct shmq_group *entry = group_of(store, group);
    if (entry == NULL) {
        return shmq_table_leave(store, SHMQ_BAD_ARGUMENT);
    }
    settings_write(entry, text, bytes);
    return shmq_table_leave(store, SHMQ_OK);
}

uint32_t shmq_group_settings(const struct shmq_store *store, uint32_t group, char *out)
{
    struct shmq_group *entry = group_of(store, group);
    for (int attempt = 0; entry != NULL && attempt < TRIES; attempt++) {
        uint32_t turn = atomic_load_explicit(&entry->settings_turn, memory_order_acquire);
        uint32_t bytes = entry->settings[turn & 1].bytes;
        bytes = bytes < SHMQ_GROUP_SETTINGS_BYTES_MAX ? bytes : SHMQ_GROUP_SETTINGS_BYTES_MAX;
        memcpy(out, entry->settings[turn & 1].text, bytes);
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&entry->settings_turn, memory_order_relaxed) == turn) {
            return shmq_group_holds(store, group) ? bytes : 0;
        }
    }
    return 0;
}

enum shmq_status shmq_client_put(struct shmq_store *store, uint32_t pid, uint64_t start, uint32_t role, uint64_t *out)
{
    enum shmq_status status = shmq_table_enter(store);
    if (status != SHMQ_OK) {
        return status;
    }
    uint32_t slot = 0;
    while (slot < store->sizes.client_max &&
           atomic_load_explicit(&store->clients[slot].state, memory_order_acquire) != SHMQ_CLIENT_FREE) {
        slot++;
    }
    if (slot == store->sizes.client_max) {
        return shmq_table_leave(store, SHMQ_TABLE_FULL);
    }
    struct shmq_client *client = &store->clients[slot];
    client->pid = pid;
    client->start = start;
    client->role = role;
    atomic_store_explicit(&client->watched, 0, memory_order_relaxed);
    atomic_store_explicit(&client->errand, 0, memory_order_relaxed);
    atomic_store_explicit(&client->received, 0, memory_order_relaxed);
    atomic_store_explicit(&client->settled, 0, memory_order_relaxed);
    atomic_store_explicit(&client->sent, 0, memory_order_relaxed);
    atomic_store_explicit(&client->beat_ns, store->io->monotonic_ns(), memory_order_relaxed);
    atomic_fetch_add_explicit(&client->generation, 1, memory_order_relaxed);
    atomic_store_explicit(&client->state, SHMQ_CLIENT_AWAKE, memory_order_release);
    if (slot >= atomic_load_explicit(&store->readers->client_high, memory_order_relaxed)) {
        atomic_store_explicit(&store->readers->client_high, slot + 1, memory_order_release);
    }
    *out = shmq_client_word(store, slot);
    return shmq_table_leave(store, SHMQ_OK);
}

void shmq_client_drop(struct shmq_store *store, uint32_t slot)
{
    if (slot >= store->sizes.client_max) {
        return;
    }
    /* The generation first: from here on the slot owns no queue for any process. */
    atomic_fetch_add_explicit(&store->clients[slot].generation, 1, memory_order_acq_rel);
    /* It gets no errand once it is not asleep; one that it did not get round to is ours now. */
    atomic_store_explicit(&store->clients[slot].state, SHMQ_CLIENT_AWAKE, memory_order_seq_cst);
    shmq_errand_run(store, slot);
    atomic_store_explicit(&store->clients[slot].state, SHMQ_CLIENT_FREE, memory_order_release);
}
