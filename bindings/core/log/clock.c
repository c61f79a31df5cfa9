/* The broker's clock: what stamps records, and what says of a message that it is due, late or old.
 *
 * It is the host's wall clock, unless a test sets it. One word in the head says so to every process that has attached:
 *
 *   bit 63 clear   so many ms ahead of the host's; 0 of every broker that is no test's
 *   bit 63 set     it stands at so many ms since the epoch, and only shmq_clock_advance moves it
 *
 * What waits for another process goes by the host's monotonic clock, whatever this one shows.
 *
 * An append and an acknowledgement look at the clock every quarter of a millisecond: reading it costs as much as copying a
 * record, a fifth of an append. One that stands is looked at each time.
 */
#include "core/log/log.h"

/* A quarter of a millisecond at 2 GHz, less on faster clocks: how old a cached clock may be. SHMQ_STAMP_AGE_MS holds as
 * long as a counter makes 500 million ticks a second. */
#define CLOCK_TICKS_MAX UINT64_C(500000)

static uint64_t time_of(const struct shmq_store *store, uint64_t word)
{
    return word & SHMQ_CLOCK_STANDS ? word & ~SHMQ_CLOCK_STANDS : store->io->wall_ms() + word;
}

uint64_t shmq_clock_ms(const struct shmq_store *store)
{
    return time_of(store, atomic_load_explicit(&store->head->clock, memory_order_relaxed));
}

/* The cycle counter only judges how old the cached time is; it is never converted. */
uint64_t shmq_now_ms_cached(struct shmq_store *store)
{
#if defined(__x86_64__)
    uint64_t ticks = __builtin_ia32_rdtsc();
    if (ticks - store->clock_ticks >= CLOCK_TICKS_MAX) {
        const uint64_t word = atomic_load_explicit(&store->head->clock, memory_order_relaxed);
        store->clock_ms = time_of(store, word);
        store->clock_ticks = word & SHMQ_CLOCK_STANDS ? 0 : ticks;
    }
    return store->clock_ms;
#else
    return shmq_clock_ms(store);
#endif
}

/* seq_cst: a process that hears of the move afterwards, over a socket or a bell, finds the clock moved. */
void shmq_clock_advance(struct shmq_store *store, uint64_t milliseconds)
{
    atomic_fetch_add_explicit(&store->head->clock, milliseconds, memory_order_seq_cst);
}
