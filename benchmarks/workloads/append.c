/* append DIRECTORY COUNT BYTES: the cost of one shmq_append call alone, printed as one JSON object in nanoseconds.
 *
 * Encode, CRC, lock, copy, unit and commit are inside the call; so is whatever page-table population the library does. Each call
 * is timed by itself, and the median cost of reading the clock twice is taken off every time.
 */
#include "arena.h"

#define CLOCK_SAMPLES 100001
#define WARM_UP 10000

static uint64_t clock_cost_ns(void) {
    static uint64_t costs[CLOCK_SAMPLES];
    for (size_t i = 0; i < CLOCK_SAMPLES; i++) {
        uint64_t started = arena_now_ns();
        costs[i] = arena_now_ns() - started;
    }
    qsort(costs, CLOCK_SAMPLES, sizeof *costs, arena_order);
    return costs[CLOCK_SAMPLES / 2];
}

static struct shmq_spec specs[ARENA_QUEUES];

static inline void append_one(struct arena *arena, size_t number) {
    uint32_t queue_id = (uint32_t)(number % ARENA_QUEUES);
    struct shmq_appended appended;
    enum shmq_status status = shmq_append(&arena->store, arena->queues[queue_id], &specs[queue_id], 0, 0, &appended);
    arena_check(status == SHMQ_OK, "appending");
}

int main(int argc, char **argv) {
    arena_check(argc == 4, "usage: append DIRECTORY COUNT BYTES;");
    size_t count = strtoul(argv[2], NULL, 10);
    uint32_t bytes = (uint32_t)strtoul(argv[3], NULL, 10);
    static struct arena arena;
    arena_open(&arena, argv[1]);
    uint8_t *body = malloc(bytes);
    uint64_t *times = calloc(count, sizeof *times);
    arena_check(count > 0 && body && times, "allocating");
    memset(body, 0x5a, bytes);
    for (uint32_t id = 0; id < ARENA_QUEUES; id++) specs[id] = arena_spec(body, bytes, id);
    for (size_t i = 0; i < WARM_UP; i++) append_one(&arena, i);
    uint64_t cost = clock_cost_ns();
    for (size_t i = 0; i < count; i++) {
        uint64_t started = arena_now_ns();
        append_one(&arena, i);
        uint64_t took = arena_now_ns() - started;
        times[i] = took > cost ? took - cost : 0;
    }
    uint64_t started = arena_now_ns(); /* the same in one stretch: nothing to subtract */
    for (size_t i = 0; i < count; i++) append_one(&arena, i);
    uint64_t stretch = arena_now_ns() - started;
    arena_check(atomic_load(&arena.store.queues[arena.queues[0]].offset_max) > 0, "finding the records again");
    qsort(times, count, sizeof *times, arena_order);
    printf("{\"p50\": %" PRIu64 ", \"p90\": %" PRIu64 ", \"p99\": %" PRIu64 ", \"p99.9\": %" PRIu64 ", \"max\": %" PRIu64
           ", \"mean\": %.1f, \"clock\": %" PRIu64 "}\n",
           arena_percentile(times, count, 0.5), arena_percentile(times, count, 0.9), arena_percentile(times, count, 0.99),
           arena_percentile(times, count, 0.999), times[count - 1], (double)stretch / (double)count, cost);
    return 0;
}
