/* What the folders of the core share and others do not see: futex calls, deadlines, the pause instruction.
 *
 * What the files of one folder share stands in its own header, which includes those that it stands on:
 *
 *   internal.h <-- files/files.h, record/record.h <-- log/log.h <-- segments/segments.h
 */
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

static inline uint32_t shmq_hash64(uint64_t value)
{
    value *= UINT64_C(0x9E3779B97F4A7C15);
    return (uint32_t)(value >> 32);
}

/* Whether anything of this broker is flushed while a process waits for it. */
static inline bool shmq_has_sync(const struct shmq_store *store)
{
    return store->head->ack_rule != SHMQ_ACK_END || atomic_load_explicit(&store->log->has_sync_topics, memory_order_acquire);
}

/* How many entries of a table may be read: the count lies in shared memory, so it is no more than the table has. */
static inline uint32_t shmq_entries(const _Atomic uint32_t *count, uint32_t most)
{
    const uint32_t found = atomic_load_explicit(count, memory_order_acquire);
    return found < most ? found : most;
}
static inline uint32_t shmq_topic_count(const struct shmq_store *store)
{
    return shmq_entries(&store->log->topic_count, store->sizes.topic_max);
}
static inline uint32_t shmq_queue_count(const struct shmq_store *store)
{
    return shmq_entries(&store->log->queue_count, store->sizes.queue_max);
}
static inline uint32_t shmq_group_count(const struct shmq_store *store)
{
    return shmq_entries(&store->readers->group_count, store->sizes.group_max);
}
static inline uint32_t shmq_offset_count(const struct shmq_store *store)
{
    return shmq_entries(&store->readers->offset_count, store->sizes.offset_max);
}
static inline uint32_t shmq_client_count(const struct shmq_store *store)
{
    return shmq_entries(&store->readers->client_high, store->sizes.client_max);
}

#endif
