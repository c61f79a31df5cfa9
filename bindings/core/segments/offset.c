/* Offset slots: how far a group has read a queue, and who reads it; under the table lock of table.c where slots are made.
 *
 *   place   number of the group << 32 | number of the queue      a slot is for an entry of the group table and one of the
 *                                                                queue table for good; the numbers say which of the
 *                                                                groups and queues that live there after each other
 *   owner   owner.c; SHMQ_OWNER_MOVING while a slot becomes that of the next group or queue
 *
 *   next place:  owner = SHMQ_OWNER_MOVING · committed = 0 and place = the next, at once · statistics 0 · owner = 0
 *
 * `committed` and `place` are changed by one compare-and-swap of 16 bytes. A process that was stopped between its look at
 * the owner and its store, and wakes when queue or group is deleted and the slot is another's, therefore stores nothing. Nor
 * does a member when the queue was given to another that committed since. Taking a queue is a compare-and-swap of `owner`,
 * after which the taker looks at the place again (owner.c).
 *
 * A put that was killed on its way leaves SHMQ_OWNER_MOVING behind: the queue is not taken, and the next put begins anew.
 */
#include "core/segments/segments.h"

/* ---- the two words --------------------------------------------------------------------------------- */
typedef unsigned __int128 __attribute__((may_alias, aligned(16))) pair;
static_assert(offsetof(struct shmq_offset, committed) % 16 == 0 &&
                  offsetof(struct shmq_offset, place) == offsetof(struct shmq_offset, committed) + 8,
              "both are changed at once");

#if defined(__clang__) && defined(__x86_64__)
__attribute__((target("cx16"), noinline)) /* inlined, it would forget that the processor has the instruction */
#elif defined(__x86_64__)
__attribute__((target("cx16")))
#endif
static bool pair_change(struct shmq_offset *entry, uint64_t committed, uint64_t place, uint64_t committed_new,
                        uint64_t place_new)
{
    return __sync_bool_compare_and_swap((pair *)(void *)&entry->committed, (pair)place << 64 | committed,
                                        (pair)place_new << 64 | committed_new);
}

/* `member`: only while it owns the queue, which is looked at behind `committed`: what the next owner stored stays. */
static bool committed_change(struct shmq_offset *entry, uint64_t place, uint64_t committed,
                             const struct shmq_store *member)
{
    for (;;) {
        const uint64_t now = atomic_load_explicit(&entry->place, memory_order_acquire);
        const uint64_t before = atomic_load_explicit(&entry->committed, memory_order_acquire);
        if (now != place || (member != NULL && !shmq_owner_is_own(member, entry, place))) {
            return false;
        }
        if (pair_change(entry, before, now, committed, now)) {
            return true;
        }
    }
}

bool shmq_offset_commit(struct shmq_offset *entry, uint64_t place, uint64_t committed)
{
    return committed_change(entry, place, committed, NULL);
}

bool shmq_owner_commit(struct shmq_store *store, struct shmq_offset *entry, uint64_t place, uint64_t queue_offset)
{
    if (queue_offset > SHMQ_QUEUE_OFFSET_MAX || !committed_change(entry, place, queue_offset + 1, store)) {
        return false;
    }
    atomic_store_explicit(&entry->updated_ms, shmq_now_ms_cached(store), memory_order_release);
    return true;
}

uint64_t shmq_offset_get(const struct shmq_offset *entry, uint64_t place)
{
    const uint64_t committed = atomic_load_explicit(&entry->committed, memory_order_acquire);
    return atomic_load_explicit(&entry->place, memory_order_acquire) == place ? committed : 0;
}

bool shmq_offset_set(const struct shmq_store *store, struct shmq_offset *entry, uint64_t place, uint64_t queue_offset)
{
    if (queue_offset > SHMQ_QUEUE_OFFSET_MAX || !shmq_offset_commit(entry, place, queue_offset + 1)) {
        return false;
    }
    atomic_store_explicit(&entry->updated_ms, shmq_clock_ms(store), memory_order_release);
    return true;
}

void shmq_offset_lose(struct shmq_offset *entry, uint64_t place, uint64_t count, uint64_t seconds)
{
    if (atomic_load_explicit(&entry->place, memory_order_acquire) != place) {
        return;
    }
    const uint64_t before = atomic_load_explicit(&entry->lost, memory_order_relaxed) >> 32;
    const uint64_t lost = count < UINT32_MAX - before ? before + count : UINT32_MAX;
    /* One word for both numbers, so that no reader joins the count of one cleaning to the time of another. */
    atomic_store_explicit(&entry->lost, lost << 32 | (seconds < UINT32_MAX ? seconds : UINT32_MAX), memory_order_relaxed);
}

static void slot_move(struct shmq_offset *entry, uint64_t place)
{
    atomic_store_explicit(&entry->owner, SHMQ_OWNER_MOVING, memory_order_seq_cst);
    SHMQ_POINT("offset.disowned");
    while (!pair_change(entry, atomic_load_explicit(&entry->committed, memory_order_relaxed),
                        atomic_load_explicit(&entry->place, memory_order_relaxed), 0, place)) {
    }
    SHMQ_POINT("offset.moved");
    atomic_store_explicit(&entry->taken, 0, memory_order_relaxed);
    atomic_store_explicit(&entry->lost, 0, memory_order_relaxed);
    atomic_store_explicit(&entry->updated_ms, 0, memory_order_relaxed);
    atomic_store_explicit(&entry->owner, 0, memory_order_release);
}

/* ---- slots ----------------------------------------------------------------------------------------- */
static bool is_ready(const struct shmq_offset *entry, uint64_t place)
{
    return atomic_load_explicit(&entry->place, memory_order_acquire) == place &&
           atomic_load_explicit(&entry->owner, memory_order_acquire) != SHMQ_OWNER_MOVING;
}

uint32_t shmq_offset_slot(const struct shmq_store *store, uint64_t place)
{
    return shmq_lookup_offset(store, place, shmq_offset_count(store));
}

uint32_t shmq_offset_find(const struct shmq_store *store, uint32_t group, uint32_t queue)
{
    const uint64_t place = shmq_offset_place(group, queue);
    const uint32_t slot = shmq_offset_slot(store, place);
    return slot != SHMQ_NONE && is_ready(&store->offsets[slot], place) ? slot : SHMQ_NONE;
}

/* Table lock held. */
static enum shmq_status slot_put(struct shmq_store *store, uint32_t group, uint32_t queue, uint32_t *out)
{
    const uint64_t place = shmq_offset_place(group, queue);
    const uint32_t count = shmq_offset_count(store), slot = shmq_lookup_offset(store, place, count);
    if (!shmq_group_holds(store, group)) {
        return SHMQ_BAD_ARGUMENT; /* under this lock no group gets another number: this one is over */
    }
    *out = slot;
    if (slot == SHMQ_NONE) {
        if (count >= store->sizes.offset_max) {
            return SHMQ_TABLE_FULL;
        }
        *out = count;
        atomic_store_explicit(&store->offsets[count].place, place, memory_order_relaxed);
        atomic_store_explicit(&store->readers->offset_count, count + 1, memory_order_release);
        return SHMQ_OK;
    }
    if (is_ready(&store->offsets[slot], place)) {
        return SHMQ_OK;
    }
    /* Under this lock no queue begins: what lives there now is the newest, and a slot never goes back to an older one. */
    if (shmq_queue_entry(store, queue) == NULL) {
        return SHMQ_NO_QUEUE;
    }
    slot_move(&store->offsets[slot], place);
    return SHMQ_OK;
}

enum shmq_status shmq_offset_put(struct shmq_store *store, uint32_t group, uint32_t queue, uint32_t *out)
{
    if ((group & store->group_mask) >= shmq_group_count(store) || !shmq_group_holds(store, group) ||
        !shmq_queue_is_number(store, queue)) {
        return SHMQ_BAD_ARGUMENT;
    }
    *out = store->writable ? shmq_offset_find(store, group, queue) : SHMQ_NONE;
    if (*out != SHMQ_NONE) {
        return SHMQ_OK; /* no lock, and no new version of the tables */
    }
    enum shmq_status status = shmq_table_enter(store);
    return status == SHMQ_OK ? shmq_table_leave(store, slot_put(store, group, queue, out)) : status;
}

void shmq_offsets_forget(struct shmq_store *store, uint32_t group)
{
    uint32_t count = shmq_offset_count(store);
    for (uint32_t i = 0; i < count; i++) {
        if (atomic_load_explicit(&store->offsets[i].place, memory_order_relaxed) >> 32 == group) {
            atomic_store_explicit(&store->offsets[i].owner, 0, memory_order_seq_cst);
        }
    }
    /* Only now: a member that looked at its word before it was taken has most probably written by now. */
    for (uint32_t i = 0; i < count; i++) {
        if (atomic_load_explicit(&store->offsets[i].place, memory_order_relaxed) >> 32 == group) {
            atomic_store_explicit(&store->offsets[i].lost, 0, memory_order_relaxed);
            atomic_store_explicit(&store->offsets[i].committed, 0, memory_order_release);
        }
    }
}
