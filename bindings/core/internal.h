/* What the files of the core share and others do not see: futex calls, deadlines, the pause instruction. */
#ifndef SHMQ_INTERNAL_H
#define SHMQ_INTERNAL_H

#include <errno.h>
#include <linux/futex.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shmq.h"

#define SHMQ_PAGE_BYTES 4096u
#define SHMQ_FRAMES_STEP 256u /* unit frames reserved at once by a writer that finds none; the keeper is rung below it */
#define SHMQ_SPIN_COUNT 80 /* about 2 us of trylock before blocking; most sections are shorter */

static inline void shmq_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline struct timespec shmq_timespec(uint64_t ns)
{
    struct timespec time = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    return time;
}

/* Sleep while *word == expected, until an absolute CLOCK_MONOTONIC time or a wake-up for one of the bits. Spurious
 * returns are allowed. */
static inline int shmq_futex_wait_bits(_Atomic uint32_t *word, uint32_t expected, uint64_t deadline_ns, uint32_t bits)
{
    struct timespec until = shmq_timespec(deadline_ns);
    return (int)syscall(SYS_futex, word, FUTEX_WAIT_BITSET, expected, &until, NULL, bits);
}

static inline int shmq_futex_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t deadline_ns)
{
    return shmq_futex_wait_bits(word, expected, deadline_ns, FUTEX_BITSET_MATCH_ANY);
}

static inline void shmq_futex_wake(_Atomic uint32_t *word, int count)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE, count, NULL, NULL, 0);
}

static inline void shmq_futex_wake_bits(_Atomic uint32_t *word, uint32_t bits)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE_BITSET, INT32_MAX, NULL, NULL, bits);
}

static inline uint64_t shmq_load_acquire(const _Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_acquire);
}

static inline uint64_t shmq_frame_tag(uint32_t queue, uint32_t ordinal)
{
    return ((uint64_t)(queue + 1u) << 32) | ordinal;
}

static inline uint32_t shmq_hash64(uint64_t value)
{
    value *= UINT64_C(0x9E3779B97F4A7C15);
    return (uint32_t)(value >> 32);
}

/* descriptors.c: what is opened between hold and release lies above 2, as what shmq_open returns does */
void shmq_standard_hold(void);
void shmq_standard_release(void);
int shmq_open(const char *path, int flags); /* O_CLOEXEC */

/* lookup.c: entries below `count` only; SHMQ_NONE when there is none */
bool shmq_lookups_open(struct shmq_store *store);
void shmq_lookups_close(struct shmq_store *store);
bool shmq_lookup_is_group(const struct shmq_store *store, uint32_t index, const char *name); /* lives, and has that name */
uint32_t shmq_lookup_group(const struct shmq_store *store, const char *name, bool live_only, uint32_t count);
uint32_t shmq_lookup_offset(const struct shmq_store *store, uint64_t place, uint32_t count);
/* An entry below the count has another name now. */
void shmq_lookup_renamed(const struct shmq_store *store, uint32_t group);

/* ---- log/: from the bottom up, each file uses only those above it here ---- */
/* state.c */
enum shmq_status shmq_writable_check(struct shmq_store *store, uint32_t queue);
/* standing.c: whether the lease holds; where it does not, the log is fenced from then on */
bool shmq_lease_holds(struct shmq_store *store);
enum shmq_status shmq_receipt_doubted(struct shmq_store *store);
/* Whether a record that was stored may be acknowledged: SHMQ_NOT_MASTER when it may not. */
static inline enum shmq_status shmq_receipt(struct shmq_store *store)
{
    if (__builtin_expect(atomic_load_explicit(&store->log->doubts, memory_order_relaxed) != 0, 0)) {
        return shmq_receipt_doubted(store);
    }
    return SHMQ_OK;
}
/* flush.c: sleep while *shmq_safe_sequence is `sequence`, for a position and until a time */
int shmq_safe_sleep(const struct shmq_store *store, uint64_t position, uint32_t sequence, uint64_t until_ns);
/* Whether nothing more is flushed in these segments: it would be reported for bytes that no restart finds. */
static inline bool shmq_is_flush_over(uint32_t word)
{
    return word == SHMQ_READ_ONLY_FLUSH_FAILED || word == SHMQ_READ_ONLY_FILES_LOST;
}
/* Whether anything of this broker is flushed while a process waits for it. */
static inline bool shmq_has_sync(const struct shmq_store *store)
{
    return store->head->ack_rule != SHMQ_ACK_END || atomic_load_explicit(&store->log->has_sync_topics, memory_order_acquire);
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

/* ---- segments/ ---- */
/* table.c */
static inline uint32_t shmq_topic_count(const struct shmq_store *store)
{
    uint32_t count = atomic_load_explicit(&store->log->topic_count, memory_order_acquire);
    return count < store->sizes.topic_max ? count : store->sizes.topic_max;
}
/* names.c; all but the first under the table lock. The first: the entry that has that name, without the lock a guess. */
uint32_t shmq_name_entry(const struct shmq_store *store, const char *name, size_t bytes);
void shmq_name_link(struct shmq_store *store, uint32_t index);
void shmq_name_unlink(struct shmq_store *store, uint32_t index);
bool shmq_topic_is_named(const struct shmq_store *store, uint32_t index);
void shmq_table_repair(struct shmq_store *store);
/* queue.c: table lock held. Let `wanted` queues of a topic live in free entries, from `queue_id` on; fills extents from
 * the first on. SHMQ_TABLE_FULL: they do not suffice, and nothing is taken. */
enum shmq_status shmq_queues_take(struct shmq_store *store, uint32_t topic, uint32_t queue_id, uint32_t wanted,
                                  struct shmq_extent *extents, uint32_t extent_count);
void shmq_queues_repair(struct shmq_store *store);
/* offset.c: table lock held. Leave nothing of a group's progress, and no owner that could still write to it. */
void shmq_offsets_forget(struct shmq_store *store, uint32_t group);
enum shmq_status shmq_table_enter(struct shmq_store *store); /* take the table lock; repairs after a dead holder */
enum shmq_status shmq_table_leave(struct shmq_store *store, enum shmq_status status); /* returns `status` */
void shmq_table_exit(struct shmq_store *store); /* as shmq_table_leave, no reader has to look again */
/* crc.c: shmq_tag_hash of a text whose beginning has the hash given */
uint32_t shmq_java_hash(uint32_t hash, const char *utf8, size_t bytes);
/* Bytes of a record that may be appended, 0 when it is too large: a record may have a longer topic than a topic table. */
static inline uint32_t shmq_append_bytes(const struct shmq_spec *spec)
{
    return spec->topic_bytes > SHMQ_TOPIC_BYTES_MAX ? 0 : shmq_record_bytes(spec);
}
/* record.c: shmq_record_encode where the size is known already, and when a message without a time of its own was born */
void shmq_record_lay(uint8_t *out, const struct shmq_spec *spec, uint32_t record_bytes, uint64_t now_ms,
                     struct shmq_patch *patch);
/* mapping.c: the file that holds a position, to store into it; the first one only if this process has mapped it so */
struct shmq_mapping *shmq_mapping_cached_writable(const struct shmq_store *store, uint64_t log_position);
struct shmq_mapping *shmq_mapping_get_writable(struct shmq_store *store, uint64_t log_position);
void shmq_mapping_populate(const struct shmq_store *store, struct shmq_mapping *mapping, uint64_t log_position,
                           uint64_t bytes);

#endif
