/* What the files of the log share, from the bottom up: each uses only those above it here. */
#ifndef SHMQ_LOG_H
#define SHMQ_LOG_H

#include "core/files/files.h"
#include "core/record/record.h"

/* standing.c */
enum shmq_status shmq_writable_check(struct shmq_store *store, uint32_t queue);
/* Whether the log has no lease, or one that is not over; the clock is looked at. */
bool shmq_lease_lasts(struct shmq_store *store);
enum shmq_status shmq_receipt_doubted(struct shmq_store *store);
/* Whether a record that was stored may be acknowledged: SHMQ_DOUBTED when it may not. */
static inline enum shmq_status shmq_receipt(struct shmq_store *store)
{
    if (__builtin_expect(atomic_load_explicit(&store->log->doubts, memory_order_relaxed) != 0, 0)) {
        return shmq_receipt_doubted(store);
    }
    return SHMQ_OK;
}
/* Whether another broker is the master now: it answers for what is stored here, and nothing here is acknowledged. */
static inline bool shmq_is_replaced(const struct shmq_log *log)
{
    return atomic_load_explicit(&log->standing, memory_order_acquire) == SHMQ_READ_ONLY_FENCED && log->leader[0] != 0;
}
/* flush.c: sleep while *shmq_safe_sequence is `sequence`, for a position and until a time */
int shmq_safe_sleep(const struct shmq_store *store, uint64_t position, uint32_t sequence, uint64_t until_ns);
/* Whether nothing more is flushed in these segments: it would be reported for bytes that no restart finds. */
static inline bool shmq_is_flush_over(uint32_t word)
{
    return word == SHMQ_READ_ONLY_FLUSH_FAILED || word == SHMQ_READ_ONLY_FILES_LOST;
}
static inline bool shmq_is_confirmed(const struct shmq_store *store)
{
    return store->head->ack_rule == SHMQ_ACK_CONFIRMED;
}
/* What shmq_safe_end reads. Where the rule is SHMQ_ACK_CONFIRMED, no queue is content with less but the log end. */
static inline const _Atomic uint64_t *shmq_safe_word(const struct shmq_store *store)
{
    return shmq_is_confirmed(store) ? &store->log->confirmed_end : &store->log->durable_end;
}
/* The futex word that grows with shmq_safe_end. */
static inline _Atomic uint32_t *shmq_safe_sequence(const struct shmq_store *store)
{
    return shmq_is_confirmed(store) ? &store->log->confirmed_sequence : &store->log->durable_sequence;
}
bool shmq_keeper_is_silent(const struct shmq_store *store, uint64_t now_ns, uint64_t patience_ns);
/* confirm.c; flush lock held, and the rule is SHMQ_ACK_CONFIRMED */
void shmq_confirm_flushed(struct shmq_store *store);
/* lock.c */
int shmq_robust_lock(const struct shmq_store *store, pthread_mutex_t *mutex, uint64_t deadline_ns, bool *owner_died);
/* intent.c; lock held: open, write the fields, set; or clear */
struct shmq_intent *shmq_intent_open(struct shmq_store *store);
void shmq_intent_set(struct shmq_intent *intent, enum shmq_intent_kind kind);
void shmq_intent_clear(struct shmq_store *store);
/* frame.c; lock held */
uint32_t shmq_frame_find(const struct shmq_store *store, uint32_t queue, uint32_t ordinal);
enum shmq_status shmq_frame_take(struct shmq_store *store, uint32_t queue, uint32_t ordinal, uint32_t *frame);
/* Frames for `count` units from `queue_offset` on; SHMQ_UNITS_FULL when no memory is reserved for one. */
enum shmq_status shmq_frames_ensure(struct shmq_store *store, uint32_t queue, uint64_t queue_offset, uint32_t count);
void shmq_frame_repair(struct shmq_store *store, uint32_t kind);
/* What was missing may be unit memory: reserve SHMQ_FRAMES_STEP more, once, lock not held. SHMQ_OK: try again. */
enum shmq_status shmq_frames_grow_once(struct shmq_store *store, enum shmq_status status, bool *grown);
/* False when no frame is there, which only a scribbled directory explains: shmq_frames_ensure ran under the same lock. */
bool shmq_unit_write(struct shmq_store *store, uint32_t queue, uint64_t queue_offset, const struct shmq_unit *unit);
static inline uint64_t shmq_frame_tag(uint32_t queue, uint32_t ordinal)
{
    return ((uint64_t)(queue + 1u) << 32) | ordinal;
}
static inline uint8_t *shmq_unit_place(const struct shmq_store *store, uint32_t frame, uint64_t queue_offset)
{
    return store->units + (size_t)frame * SHMQ_FRAME_BYTES + queue_offset % SHMQ_FRAME_UNITS * SHMQ_UNIT_BYTES;
}
/* commit.c, commit.h */
struct shmq_commit {           /* what one commit holds: the same number of records for each queue, back to back */
    const uint32_t *queues;    /* SHMQ_NONE: a replica's record that belongs to no queue */
    uint32_t queue_count;
    uint32_t count;            /* records of each queue; with several queues one */
    uint32_t units;            /* units of each queue: `count`, or 0 for a record that belongs to no queue */
    uint32_t bytes;            /* of all records */
    const uint8_t *data;       /* the encoded records, or NULL when they lie in their place already */
    const struct shmq_patch *patches; /* NULL: one finished record, whose queue offset is the next of its queue */
    bool described;            /* of a finished record: it has properties */
    const int64_t *tag_hashes;
    uint64_t now_ms;
    struct shmq_mapping *mapping; /* the place: set by shmq_room_enter */
    uint64_t log_position;
};
/* Lock held and room found. SHMQ_CORRUPT, and nothing is published: numbers contradict each other. `out` has an entry
 * for each queue: where its first record lies and where its last one ends. */
enum shmq_status shmq_commit(struct shmq_store *store, const struct shmq_commit *commit, struct shmq_appended *out);
/* Lock held: zero behind the last record and move the log end, the commit point. False: that is no place for it. */
bool shmq_end_move(struct shmq_store *store, const struct shmq_mapping *mapping, uint64_t end);
/* claim.c */
/* A hole without its body: the 88 bytes before it, the topic with its length, the CRC property with its length. */
#define SHMQ_HOLE_OVERHEAD \
    (SHMQ_RECORD_BODY_AT + 1 + (uint32_t)sizeof SHMQ_HOLE_TOPIC - 1 + 2 + SHMQ_RECORD_CRC_BYTES)
enum shmq_status shmq_claim_wait(struct shmq_store *store, uint64_t deadline_ns); /* lock not held */
void shmq_claim_free(struct shmq_store *store);                                   /* lock held, like the next */
void shmq_claim_repair(struct shmq_store *store);
void shmq_claim_wake(struct shmq_store *store);
/* repair.c */
void shmq_repair(struct shmq_store *store);
/* room.c */
/* Take the lock with room for `bytes` at a mapped place, frames for all units and no open claim in the way. */
enum shmq_status shmq_room_enter(struct shmq_store *store, struct shmq_commit *commit, uint64_t deadline_ns);
enum shmq_status shmq_room_frames(struct shmq_store *store, const struct shmq_commit *commit); /* lock held */
/* Lock held, and the next file is there: end the file of the log end with a BLANK. */
void shmq_roll(struct shmq_store *store, const struct shmq_mapping *mapping, uint64_t end);
/* clock.c */
uint64_t shmq_now_ms_cached(struct shmq_store *store); /* the broker's clock, at most a quarter of a millisecond old */

/* wake.c */
static inline uint64_t shmq_watched_bit(uint32_t queue)
{
    return UINT64_C(1) << queue % 64;
}
sem_t *shmq_semaphore(struct shmq_store *store, uint32_t slot); /* NULL: it cannot be opened */
void shmq_wake_slot(struct shmq_store *store, uint32_t slot);
/* Wake the slots of this slot's errand; the slot is the caller's, or its process is gone. */
void shmq_errand_run(struct shmq_store *store, uint32_t slot);

#endif
