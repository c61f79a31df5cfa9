/* Who reads a queue for a group: the owner word of an offset slot. No lock; one word, changed by compare-and-swap.
 *
 *   0                                            no owner
 *   client slot + 1 | slot generation << 32      a local member: its client word (member.c)
 *   SHMQ_OWNER_LOCK | holder | until << 32       a client over TCP that reads in order
 *   SHMQ_OWNER_MOVING                            the slot becomes that of another group or queue (offset.c)
 *
 *   take    no owner, dead or expired ─▶ local member        lock     the same, or the holder's own ─▶ lock until then
 *   leave   its own ─▶ no owner                              unlock   the holder's own ─▶ no owner
 *   free    any but MOVING ─▶ no owner                       show     dead ─▶ no owner
 *
 * A client slot is live while its generation is the one in the word, its state is not FREE and its process (pid and
 * start time) exists. A member presents the word it was given. When its slot was taken back, and perhaps is another
 * process' by now, the word fits no more: the member owns nothing, and nothing is given to it. `holder` is 31 bits of the
 * client, `until` the last tick of 64 ms on the monotonic clock at which the lock holds: 8 years of them fit.
 *
 * (1) Only compare-and-swap gives a queue away, so of two that replace the same dead owner one succeeds. (2) The word of a
 * living owner is replaced by itself and by free only. (3) The broker frees a queue when it sets a group's offset: the
 * member finds out when it next looks, and until then nothing it acknowledges moves the offset. (4) Each function says for
 * which place it acts, a group and a queue. When the slot is for another one, nothing is changed: the place is looked at
 * behind the word, and again behind the swap of a taker, as is the taker's own client slot; it gives back what is not its
 * own. (5) `taken` is the owner's; as statistics it may be wrong for the moment of a handover.
 */
#include "core/segments/segments.h"

enum { LOCK_TICK_MS = 64, NS_PER_MS = 1000000 };

static bool holds(const struct shmq_offset *entry, uint64_t place)
{
    return atomic_load_explicit(&entry->place, memory_order_acquire) == place;
}

static uint64_t owner_load(const struct shmq_offset *entry)
{
    return atomic_load_explicit(&entry->owner, memory_order_acquire);
}

static bool owner_swap(struct shmq_offset *entry, uint64_t *seen, uint64_t word)
{
    /* Acquire: what the former owner did before it left happened before what we read of its progress. */
    return atomic_compare_exchange_strong_explicit(&entry->owner, seen, word, memory_order_acq_rel,
                                                   memory_order_acquire);
}

/* ---- what a word says ------------------------------------------------------------------------------ */
uint32_t shmq_owner_of(const struct shmq_store *store, uint64_t word)
{
    if (!shmq_client_lives(store, word)) {
        return SHMQ_NONE;
    }
    const uint32_t slot = shmq_client_slot(word);
    const uint32_t pid = store->clients[slot].pid;
    const uint64_t start = store->clients[slot].start;
    if (pid == store->self_pid && start == store->self_start) {
        return slot;
    }
    return shmq_process_died(pid, start) ? SHMQ_NONE : slot;
}

uint32_t shmq_owner_find(const struct shmq_store *store, const struct shmq_offset *entry, uint64_t place)
{
    const uint64_t word = owner_load(entry);
    return holds(entry, place) ? shmq_owner_of(store, word) : SHMQ_NONE;
}

bool shmq_owner_is_own(const struct shmq_store *store, const struct shmq_offset *entry, uint64_t place)
{
    const uint64_t own = shmq_client_own(store);
    return own && owner_load(entry) == own && holds(entry, place);
}

static bool is_locked(uint64_t word, uint64_t now_ms)
{
    return ((uint32_t)word & SHMQ_OWNER_LOCK) && word >> 32 >= now_ms / LOCK_TICK_MS;
}

/* ---- changing it ----------------------------------------------------------------------------------- */
/* Put a word where no owner is, a dead or expired one, or, for a lock, one whose low half says that it is the caller's. */
static bool owner_replace(struct shmq_store *store, struct shmq_offset *entry, uint64_t place, uint64_t word,
                          uint64_t now_ms)
{
    if (!holds(entry, place)) {
        return false;
    }
    uint64_t seen = owner_load(entry);
    while (seen != word) {
        const bool is_own = ((uint32_t)seen & SHMQ_OWNER_LOCK) && (uint32_t)seen == (uint32_t)word;
        if (seen == SHMQ_OWNER_MOVING ||
            (!is_own && (is_locked(seen, now_ms) || shmq_owner_of(store, seen) != SHMQ_NONE))) {
            return false;
        }
        if (owner_swap(entry, &seen, word)) {
            SHMQ_POINT("owner.replaced");
            /* It became another place's since we looked: that one is not ours. Or our slot was taken back. */
            if (!holds(entry, place) || (shmq_owner_is_local(word) && !shmq_client_lives(store, word))) {
                (void)owner_swap(entry, &word, 0);
                return false;
            }
            if (!is_own) {
                atomic_store_explicit(&entry->taken, 0, memory_order_relaxed); /* that was the former owner's */
            }
            return true;
        }
    }
    return holds(entry, place); /* ours already, or our word for the next place */
}

bool shmq_owner_take(struct shmq_store *store, struct shmq_offset *entry, uint64_t place)
{
    const uint64_t own = shmq_client_own(store);
    return own && owner_replace(store, entry, place, own, store->io->monotonic_ns() / NS_PER_MS);
}

void shmq_owner_leave(struct shmq_store *store, struct shmq_offset *entry, uint64_t place)
{
    uint64_t own = shmq_client_own(store);
    if (!own || owner_load(entry) != own || !holds(entry, place)) {
        return; /* what we own there, if anything, is another place */
    }
    atomic_store_explicit(&entry->taken, 0, memory_order_relaxed);
    SHMQ_POINT("owner.leaving");
    (void)owner_swap(entry, &own, 0);
}

bool shmq_owner_lock(struct shmq_store *store, struct shmq_offset *entry, uint64_t place,
                     const struct shmq_owner_lock *lock)
{
    if (!shmq_owner_lock_fits(lock)) {
        return false; /* cut to fit, it would be the lock of another holder, or over at once */
    }
    const uint64_t until = (lock->now_ms + lock->life_ms) / LOCK_TICK_MS + 1;
    return owner_replace(store, entry, place, until << 32 | SHMQ_OWNER_LOCK | lock->holder, lock->now_ms);
}

void shmq_owner_unlock(struct shmq_offset *entry, uint64_t place, uint32_t holder)
{
    uint64_t seen = owner_load(entry);
    while (seen != SHMQ_OWNER_MOVING && holder <= SHMQ_OWNER_HOLDER_MAX && holds(entry, place) &&
           (uint32_t)seen == (SHMQ_OWNER_LOCK | holder) && !owner_swap(entry, &seen, 0)) {
    }
}

void shmq_owner_free(struct shmq_offset *entry, uint64_t place)
{
    uint64_t seen = owner_load(entry);
    if (holds(entry, place)) {
        atomic_store_explicit(&entry->taken, 0, memory_order_relaxed);
    }
    while (seen != 0 && seen != SHMQ_OWNER_MOVING && holds(entry, place) && !owner_swap(entry, &seen, 0)) {
    }
}

void shmq_owner_show(struct shmq_store *store, struct shmq_offset *entry, uint64_t place, uint64_t taken)
{
    uint64_t owner = owner_load(entry);
    if (!holds(entry, place)) {
        return;
    }
    bool is_local = shmq_owner_is_local(owner);
    if (is_local && !shmq_client_lives(store, owner)) {
        /* Of a dead owner; while its word stands, what is shown counts as its own. */
        is_local = !owner_swap(entry, &owner, 0);
    }
    if (!is_local) {
        atomic_store_explicit(&entry->taken, taken, memory_order_relaxed);
    }
}
