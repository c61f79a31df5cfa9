/* What the files of the core share and nobody else may see: futex calls, deadlines, the pause instruction. */
#ifndef SHMQ_INTERNAL_H
#define SHMQ_INTERNAL_H

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shmq.h"

#define SHMQ_PAGE_BYTES 4096u
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

/* Sleep while *word == expected, until an absolute CLOCK_MONOTONIC time. Spurious returns are allowed. */
static inline int shmq_futex_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t deadline_ns)
{
    struct timespec until = shmq_timespec(deadline_ns);
    return (int)syscall(SYS_futex, word, FUTEX_WAIT_BITSET, expected, &until, NULL, FUTEX_BITSET_MATCH_ANY);
}

static inline void shmq_futex_wake(_Atomic uint32_t *word, int count)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE, count, NULL, NULL, 0);
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

/* lookup.c: entries below `count` only; SHMQ_NONE when there is none */
bool shmq_lookups_open(struct shmq_store *store);
void shmq_lookups_close(struct shmq_store *store);
uint32_t shmq_lookup_group(const struct shmq_store *store, const char *name, bool live_only, uint32_t count);
uint32_t shmq_lookup_offset(const struct shmq_store *store, uint32_t group, uint32_t queue, uint32_t count);
/* An entry below the count has another name now. */
void shmq_lookup_renamed(const struct shmq_store *store, uint32_t group);

/* append.c: shared with claim.c */
struct shmq_place { struct shmq_mapping *mapping; uint64_t log_position; };
#define SHMQ_MAP_FIRST 100 /* inside shmq_enter: the file at place->log_position has to be mapped, without the lock */
enum shmq_status shmq_writable_check(const struct shmq_store *store, uint32_t queue);
/* Take the lock with room for `bytes` at a mapped place, frames for `count` units and no open claim in the way. */
enum shmq_status shmq_enter(struct shmq_store *store, uint32_t queue, uint32_t bytes, uint32_t count,
                            uint64_t deadline_ns, struct shmq_place *place);
uint64_t shmq_now_ms_cached(struct shmq_store *store); /* wall clock, at most a quarter of a millisecond old */
/* together.c, lock held: finish what an intent of several queues says */
void shmq_together_publish(struct shmq_store *store);
/* What the unit says: the hash as it is, or the due time of a delay. */
static inline int64_t shmq_unit_code(int64_t tag_hash, uint64_t store_ms)
{
    return tag_hash < SHMQ_UNIT_DELAY_BASE + SHMQ_UNIT_DELAY_MS_MAX
               ? (int64_t)(store_ms + ((uint64_t)tag_hash - (uint64_t)SHMQ_UNIT_DELAY_BASE))
               : tag_hash;
}
uint64_t shmq_store_time(struct shmq_store *store, uint64_t now_ms); /* lock held: never decreases along the log */
/* The redo note; lock held, before the first byte of the record becomes final. */
void shmq_intend(struct shmq_store *store, uint32_t queue, uint64_t log_position, uint64_t bytes, uint64_t queue_offset,
                 uint32_t count);
/* False when no frame is there, which only a scribbled directory explains: shmq_frames_ensure ran under the same lock. */
bool shmq_unit_write(struct shmq_store *store, uint32_t queue, uint64_t queue_offset, const struct shmq_unit *unit);
/* Before a record with properties that ends at `end` is published: whoever sees it published sees this. Lock held. A
 * writer killed in between has promised too little, which only costs the index a look. */
static inline void shmq_describe(struct shmq_store *store, uint64_t end)
{
    atomic_store_explicit(&store->log->described_end, end, memory_order_relaxed);
}
/* Take the note back: nothing was committed. Lock held. */
void shmq_intend_nothing(struct shmq_store *store);
/* Zero behind the record, move the log end (the commit point), raise offset_max, clear the note. Lock held. */
void shmq_publish(struct shmq_store *store, uint32_t queue, const struct shmq_place *place, uint64_t bytes,
                  uint64_t queue_offset, uint32_t count);
/* frame.c; lock held */
uint32_t shmq_frame_find(const struct shmq_store *store, uint32_t queue, uint32_t ordinal);
enum shmq_status shmq_frame_take(struct shmq_store *store, uint32_t queue, uint32_t ordinal, uint32_t *frame);
/* Frames for `count` units from `queue_offset` on; SHMQ_UNITS_FULL when no memory is reserved for one. */
enum shmq_status shmq_frames_ensure(struct shmq_store *store, uint32_t queue, uint64_t queue_offset, uint32_t count);
void shmq_frame_repair(struct shmq_store *store, uint32_t kind);
/* claim.c */
/* Append a long record: copied outside the lock, under a claim. */
enum shmq_status shmq_append_claimed(struct shmq_store *store, uint32_t queue, const struct shmq_spec *spec,
                                     int64_t tag_hash, uint64_t deadline_ns, struct shmq_appended *out);
enum shmq_status shmq_claim_wait(struct shmq_store *store, uint64_t deadline_ns); /* lock not held */
void shmq_claim_repair(struct shmq_store *store);                                  /* lock held */
/* lock.c */
/* True only with proof: no such process, it has ended, or the pid belongs to one that started later. */
bool shmq_process_died(uint32_t pid, uint64_t start);
int shmq_robust_lock(const struct shmq_store *store, pthread_mutex_t *mutex, uint64_t deadline_ns, bool *owner_died);
/* table.c */
void shmq_table_repair(struct shmq_store *store);
enum shmq_status shmq_table_enter(struct shmq_store *store); /* take the table lock; repairs after a dead holder */
enum shmq_status shmq_table_leave(struct shmq_store *store, enum shmq_status status); /* returns `status` */
/* crc.c: shmq_tag_hash of a text whose beginning has the hash given */
uint32_t shmq_java_hash(uint32_t hash, const char *utf8, size_t bytes);
/* mapping.c */
struct shmq_mapping *shmq_mapping_cached(const struct shmq_store *store, uint64_t log_position);
void shmq_mapping_populate(struct shmq_mapping *mapping, uint64_t log_position, uint64_t bytes);

#endif
