/* Damage: what happens to a unit whose record cannot be handed out, and the reports about it that the keeper reads.
 *
 *   unit and record match, the CRC does not hold     not durable yet      wait: it is not there yet
 *                                                    durable              reported; damage
 *   they do not match, or there is no unit           durable, or beyond   reported; wait for the keeper, which rebuilds
 *                                                    the log              units from the log; damage if that did not help
 *
 *   reported ──▶ ticket n: fields of each[(n - 1) mod SHMQ_DAMAGE_MAX], then turn = n (release)
 *   keeper   ──▶ each[judged mod SHMQ_DAMAGE_MAX] as long as its turn is judged + 1; then judged + 1 (release)
 *
 * (1) A report is lost only where SHMQ_DAMAGE_MAX of them wait already; a doubt tries again at each look.
 * (2) A writer that dies between ticket and turn blocks nothing: the keeper passes such a report over.
 * (3) Every doubt ends: by a record that matches, by the keeper's judgement, or after SHMQ_REBUILD_PATIENCE_NS. Where no
 *     keeper ever was, and where nothing can be reported, there is no wait.
 */
#include "core/internal.h"
#include "core/read/reader.h"

static bool ends_at_or_below(const struct shmq_unit *unit, uint64_t end)
{
    return unit->log_position <= end && unit->record_bytes <= end - unit->log_position;
}

bool shmq_unit_is_durable(const struct shmq_store *store, const struct shmq_unit *unit)
{
    return ends_at_or_below(unit, shmq_load_acquire(&store->log->durable_end));
}

bool shmq_unit_is_stored(const struct shmq_store *store, const struct shmq_unit *unit)
{
    return unit->log_position >= shmq_load_acquire(&store->log->begin) &&
           ends_at_or_below(unit, shmq_load_acquire(&store->log->end));
}

/* ---- reporting ------------------------------------------------------------------------------------- */
uint64_t shmq_damage_report(struct shmq_store *store, enum shmq_damage_kind kind, uint32_t queue, uint64_t queue_offset,
                            const struct shmq_unit *unit)
{
    struct shmq_damages *damages = store->damages;
    if (store->observing) {
        return 0;
    }
    uint64_t before = atomic_load_explicit(&damages->reported, memory_order_relaxed);
    do {
        if (before - shmq_load_acquire(&damages->judged) >= SHMQ_DAMAGE_MAX) {
            atomic_fetch_add_explicit(&damages->refused, 1, memory_order_relaxed);
            return 0;
        }
    } while (!atomic_compare_exchange_weak_explicit(&damages->reported, &before, before + 1, memory_order_acq_rel,
                                                    memory_order_relaxed));
    struct shmq_damage *entry = &damages->each[before % SHMQ_DAMAGE_MAX];
    atomic_store_explicit(&entry->place, (uint64_t)kind << 32 | queue, memory_order_relaxed);
    atomic_store_explicit(&entry->queue_offset, queue_offset, memory_order_relaxed);
    atomic_store_explicit(&entry->log_position, unit ? unit->log_position : UINT64_MAX, memory_order_relaxed);
    atomic_store_explicit(&entry->record_bytes, unit ? unit->record_bytes : 0, memory_order_relaxed);
    /* Release: a reader that sees the turn sees the fields. */
    atomic_store_explicit(&entry->turn, before + 1, memory_order_release);
    shmq_ring_keeper(store);
    return before + 1;
}

/* ---- the keeper's side ----------------------------------------------------------------------------- */
enum shmq_status shmq_damage_take(struct shmq_store *store, struct shmq_damage_report *out)
{
    struct shmq_damages *damages = store->damages;
    uint64_t judged = shmq_load_acquire(&damages->judged), reported = shmq_load_acquire(&damages->reported);
    if (judged > reported || reported - judged > SHMQ_DAMAGE_MAX) { /* overwritten: begin anew, else no report fits */
        atomic_store_explicit(&damages->judged, reported, memory_order_release);
        return SHMQ_EMPTY;
    }
    if (reported == judged) {
        return SHMQ_EMPTY;
    }
    struct shmq_damage *entry = &damages->each[judged % SHMQ_DAMAGE_MAX];
    if (shmq_load_acquire(&entry->turn) != judged + 1) {
        return SHMQ_WOULD_BLOCK;
    }
    const uint64_t place = atomic_load_explicit(&entry->place, memory_order_relaxed);
    const uint64_t bytes = atomic_load_explicit(&entry->record_bytes, memory_order_relaxed);
    out->kind = place >> 32 == SHMQ_DAMAGE_RECORD ? SHMQ_DAMAGE_RECORD : SHMQ_DAMAGE_UNIT;
    out->queue = shmq_queue_is_number(store, (uint32_t)place) ? (uint32_t)place : SHMQ_NONE;
    out->queue_offset = atomic_load_explicit(&entry->queue_offset, memory_order_relaxed);
    out->log_position = atomic_load_explicit(&entry->log_position, memory_order_relaxed);
    out->record_bytes = bytes <= SHMQ_RECORD_BYTES_MAX ? (uint32_t)bytes : SHMQ_RECORD_BYTES_MAX;
    return SHMQ_OK;
}

void shmq_damage_settle(struct shmq_store *store)
{
    atomic_fetch_add_explicit(&store->damages->judged, 1, memory_order_acq_rel);
}

/* ---- judging --------------------------------------------------------------------------------------- */
/* The doubt about this unit; NULL when so many are open that this one has to wait for the end of another. */
static struct shmq_doubt *doubt_about(struct shmq_store *store, uint32_t queue, uint64_t queue_offset,
                                      const struct shmq_unit *unit, uint64_t now_ns)
{
    const struct shmq_doubt now = {.since_ns = now_ns,
                                   .queue = queue,
                                   .queue_offset = queue_offset,
                                   .log_position = unit ? unit->log_position : UINT64_MAX,
                                   .record_bytes = unit ? unit->record_bytes : 0};
    struct shmq_doubt *free = NULL;
    for (uint32_t i = 0; i < SHMQ_DOUBTS_MAX; i++) {
        struct shmq_doubt *doubt = &store->doubts[i];
        if (doubt->since_ns != 0 && now_ns - doubt->since_ns > 2 * SHMQ_REBUILD_PATIENCE_NS) {
            doubt->since_ns = 0; /* its reader went elsewhere, or the unit is good again */
        }
        if (doubt->since_ns == 0) {
            free = free ? free : doubt;
        } else if (doubt->queue == queue && doubt->queue_offset == queue_offset &&
                   doubt->log_position == now.log_position && doubt->record_bytes == now.record_bytes) {
            return doubt;
        }
    }
    if (free) {
        *free = now;
    }
    return free;
}

static enum shmq_status doubt_look(struct shmq_store *store, struct shmq_doubt *doubt, const struct shmq_unit *unit,
                                   uint64_t now_ns)
{
    if (doubt->judged || now_ns - doubt->since_ns > SHMQ_REBUILD_PATIENCE_NS) {
        doubt->since_ns = 0;
        return SHMQ_CORRUPT;
    }
    if (doubt->ticket == 0) {
        doubt->ticket = shmq_damage_report(store, SHMQ_DAMAGE_UNIT, doubt->queue, doubt->queue_offset, unit);
    } else {
        /* Acquire: the next look at the unit sees what the keeper made of it. */
        const uint64_t judged = shmq_load_acquire(&store->damages->judged);
        doubt->judged = judged >= doubt->ticket;
    }
    return SHMQ_WOULD_BLOCK;
}

enum shmq_status shmq_damage_judge(struct shmq_store *store, uint32_t queue, uint64_t queue_offset,
                                   const struct shmq_unit *unit, enum shmq_match match)
{
    if (!shmq_queue_lives(store, queue)) {
        return SHMQ_EMPTY; /* its topic was deleted while we looked */
    }
    const bool is_stored = unit && shmq_unit_is_stored(store, unit);
    if (is_stored && !shmq_unit_is_durable(store, unit)) {
        return SHMQ_WOULD_BLOCK;
    }
    if (is_stored && match == SHMQ_DAMAGED) {
        (void)shmq_damage_report(store, SHMQ_DAMAGE_RECORD, queue, queue_offset, unit);
        return SHMQ_CORRUPT;
    }
    if (store->observing || shmq_load_acquire(&store->log->keeper_beat_ns) == 0) {
        (void)shmq_damage_report(store, SHMQ_DAMAGE_UNIT, queue, queue_offset, unit);
        return SHMQ_CORRUPT;
    }
    const uint64_t now_ns = store->io->monotonic_ns();
    struct shmq_doubt *doubt = doubt_about(store, queue, queue_offset, unit, now_ns);
    return doubt ? doubt_look(store, doubt, unit, now_ns) : SHMQ_WOULD_BLOCK;
}
