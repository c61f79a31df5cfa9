/* Sleep and wake across processes and threads: no wake-up is lost.
 *
 *   ping-pong     two processes, each sleeps until the other has appended
 *   crowd         four threads of one process, each on its own queue behind one client slot; four writers
 *   shared bit    two client slots with the same bit of the waiter bitmap, woken by each append
 *   wave          seventy processes asleep on one queue: the writer posts one, they wake each other
 *   dead errand   the posted one is killed before it wakes the others; the process that frees its slot does it
 *   stopped       the posted one is stopped: the others look for themselves after their slice
 *   dead writer   a writer that died between taking the bits and posting costs the sleeper its slice, no more
 *   nudge         shmq_wake_own ends a wait that has no news
 *   sync flush    a sleeper comes back when the bytes are durable, not before
 *
 * Every wait has a deadline of watchdog_ns, which only a lost wake-up reaches. Prints one JSON line a scenario; exit status 1
 * when a wake-up was lost.
 *
 *   wake ROUNDS [WATCHDOG_MS]
 */
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "check.h"

#define STEP_NS_MAX UINT64_C(50000000)
#define SLICE_NS UINT64_C(50000000)
#define CROWD 4u
#define WAVE 70u

struct board {                  /* shared by the processes of a scenario */
    _Atomic uint64_t reached[WAVE];
    _Atomic uint64_t lost;
    _Atomic uint64_t slices;
    _Atomic uint32_t stop;
};

static struct arena arena;
static struct board *board;
static uint64_t rounds, watchdog_ns, sleep_ns_max = UINT64_MAX;

static uint64_t after(uint64_t ns)
{
    return shmq_io_posix.monotonic_ns() + ns;
}

static void semaphore_name(char name[200], uint32_t slot)
{
    snprintf(name, 200, "/shmq.%s.%016" PRIx64 ".w%u", arena.store.head->broker_name, arena.store.head->generation, slot);
}

/* Slots as the broker hands them out; slots that a scenario does not use are never asleep. */
static void open_world(bool flush_sync)
{
    static uint64_t generation;
    char broker[40], name[200];
    snprintf(broker, sizeof broker, "wake%d", (int)getpid());
    const struct arena_options options = {.file_bytes = 16u << 20, .file_count = 4, .frame_max = 4096, .frame_ready = 4096,
                                          .flush_sync = flush_sync, .broker_name = broker, .generation = ++generation};
    arena_create(&arena, &options);
    for (uint32_t i = 0; i < WAVE; i++) {
        uint64_t client;
        ARENA_MUST(shmq_client_put(&arena.store, arena.store.self_pid, arena.store.self_start, 3, &client) == SHMQ_OK);
        semaphore_name(name, shmq_client_slot(client));
        sem_t *semaphore = sem_open(name, O_CREAT | O_EXCL, 0600, 0);
        ARENA_MUST(shmq_client_slot(client) == i && semaphore != SEM_FAILED);
        sem_close(semaphore);
    }
    memset(board, 0, sizeof *board);
}

static uint64_t close_world(const char *scenario)
{
    char name[200];
    printf("{\"scenario\": \"%s\", \"lost\": %" PRIu64 ", \"wakes\": %" PRIu64 ", \"slices\": %" PRIu64 "}\n", scenario,
           atomic_load(&board->lost), atomic_load(&arena.store.readers->wakes), atomic_load(&board->slices));
    fflush(stdout);
    for (uint32_t slot = 0; slot < WAVE; slot++) {
        semaphore_name(name, slot);
        sem_unlink(name);
    }
    uint64_t lost = atomic_load(&board->lost);
    arena_destroy(&arena);
    return lost;
}

static void append_and_wake(struct shmq_store *store, uint32_t queue)
{
    uint8_t body[16];
    struct message message = {.id = 1, .queue = queue, .body_bytes = sizeof body};
    struct shmq_spec spec = message_spec(&message, body);
    struct shmq_appended out;
    ARENA_MUST(shmq_append(store, queue, &spec, message_tag(&message), after(watchdog_ns), &out) == SHMQ_OK);
    shmq_wake(store, queue);
}

/* Sleep until the queue holds more than `offset` messages. */
static bool await(struct shmq_store *store, uint32_t queue, uint64_t offset)
{
    while (shmq_load_acquire(&store->queues[queue].offset_max) <= offset) {
        /* Time ran out beside a message: no writer woke us for it. Without one, it is the other side that is slow. */
        if (shmq_wait(store, &queue, &offset, 1, 0, after(watchdog_ns)) == SHMQ_TIMED_OUT &&
            shmq_load_acquire(&store->queues[queue].offset_max) > offset) {
            atomic_fetch_add(&board->lost, 1);
            return false;
        }
        if (atomic_load(&board->lost) != 0) {
            return false;
        }
    }
    return true;
}

/* Poll a number that another process raises. A machine that stands still counts for one step. */
static bool await_number(const _Atomic uint64_t *number, uint64_t wanted)
{
    uint64_t waited_ns = 0, now = shmq_io_posix.monotonic_ns();
    while (atomic_load(number) < wanted) {
        uint64_t before = now;
        now = shmq_io_posix.monotonic_ns();
        waited_ns += now - before < STEP_NS_MAX ? now - before : STEP_NS_MAX;
        if (waited_ns > 2 * watchdog_ns || atomic_load(&board->lost) != 0) {
            atomic_fetch_add(&board->lost, 1);
            return false;
        }
        sched_yield();
    }
    return true;
}

static pid_t start(void (*role)(uint32_t), uint32_t index)
{
    pid_t child = fork();
    ARENA_MUST(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        role(index);
        _exit(0);
    }
    return child;
}

static void join(pid_t child)
{
    int status;
    ARENA_MUST(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* ---- ping-pong ---------------------------------------------------------------------------------- */
static void play(uint32_t side)
{
    struct shmq_store store;
    arena_attach(&arena, &store, true);
    store.client = shmq_client_word(&store, side);
    for (uint64_t round = 0; round < rounds; round++) {
        if (side == 0) {
            append_and_wake(&store, 0);
        }
        if (!await(&store, 1 - side, round)) {
            return;
        }
        if (side == 1) {
            append_and_wake(&store, 1);
        }
    }
}

static uint64_t ping_pong(void)
{
    open_world(false);
    pid_t players[2] = {start(play, 0), start(play, 1)};
    join(players[0]);
    join(players[1]);
    return close_world("ping-pong");
}

/* ---- crowd -------------------------------------------------------------------------------------- */
static struct shmq_store crowd_store;

static void *watch(void *argument)
{
    uint32_t queue = (uint32_t)(uintptr_t)argument;
    for (uint64_t seen = 0; seen < rounds; seen++) {
        if (!await(&crowd_store, queue, seen)) {
            break;
        }
        atomic_store(&board->reached[queue], seen + 1);
    }
    return NULL;
}

static void crowd_process(uint32_t slot)
{
    pthread_t threads[CROWD];
    arena_attach_reader(&arena, &crowd_store);
    crowd_store.client = shmq_client_word(&crowd_store, slot);
    for (uint32_t i = 0; i < CROWD; i++) {
        ARENA_MUST(pthread_create(&threads[i], NULL, watch, (void *)(uintptr_t)i) == 0);
    }
    for (uint32_t i = 0; i < CROWD; i++) {
        pthread_join(threads[i], NULL);
    }
}

static void feed(uint32_t queue)
{
    struct shmq_store store;
    arena_attach(&arena, &store, true);
    for (uint64_t round = 0; round < rounds; round++) {
        append_and_wake(&store, queue);
        if (!await_number(&board->reached[queue], round + 1)) {
            return;
        }
    }
}

static uint64_t crowd(void)
{
    open_world(false);
    pid_t watchers = start(crowd_process, 5), writers[CROWD];
    for (uint32_t i = 0; i < CROWD; i++) {
        writers[i] = start(feed, i);
    }
    for (uint32_t i = 0; i < CROWD; i++) {
        join(writers[i]);
    }
    join(watchers);
    return close_world("crowd");
}

/* ---- one waiter bit, two slots ------------------------------------------------------------------- */
static void follow(uint32_t slot)
{
    struct shmq_store store;
    arena_attach_reader(&arena, &store);
    store.client = shmq_client_word(&store, slot);
    store.sleep_ns_max = sleep_ns_max;
    for (uint64_t seen = 0; seen < rounds && await(&store, 0, seen); seen++) {
        atomic_store(&board->reached[slot], seen + 1);
    }
}

static uint64_t shared_bit(void)
{
    open_world(false);
    pid_t one = start(follow, 0), two = start(follow, 64);
    for (uint64_t round = 0; round < rounds; round++) {
        append_and_wake(&arena.store, 0);
        if (!await_number(&board->reached[0], round + 1) || !await_number(&board->reached[64], round + 1)) {
            break;
        }
    }
    join(one);
    join(two);
    return close_world("shared bit");
}

/* ---- a wave, and what can happen to those that pass it on ----------------------------------------- */
static void await_asleep(uint32_t slot)
{
    uint64_t until = after(watchdog_ns);
    while (atomic_load(&arena.store.clients[slot].state) != SHMQ_CLIENT_ASLEEP && shmq_io_posix.monotonic_ns() < until) {
        sched_yield();
    }
}

static bool await_all(uint32_t from, uint64_t wanted)
{
    for (uint32_t slot = from; slot < WAVE; slot++) {
        if (!await_number(&board->reached[slot], wanted)) {
            return false;
        }
    }
    return true;
}

static void await_all_asleep(void)
{
    for (uint32_t slot = 0; slot < WAVE; slot++) {
        await_asleep(slot);
    }
}

static uint64_t wave(void)
{
    pid_t followers[WAVE];
    const uint64_t rounds_before = rounds;
    open_world(false);
    rounds = rounds / 40 * 4;
    for (uint32_t slot = 0; slot < WAVE; slot++) {
        followers[slot] = start(follow, slot);
    }
    for (uint64_t round = 0; round < rounds; round++) {
        if (round % 4 == 0) { /* else some are still on their way from the message before */
            await_all_asleep();
        }
        append_and_wake(&arena.store, 0);
        if (round % 4 == 3 && !await_all(0, round + 1)) {
            break;
        }
    }
    for (uint32_t slot = 0; slot < WAVE; slot++) {
        join(followers[slot]);
    }
    rounds = rounds_before;
    return close_world("wave");
}

/* The first of them takes no more part; the others come through, by their own looks or without them. */
static uint64_t broken_wave(const char *scenario, int signal, uint64_t look_again_ns)
{
    pid_t followers[WAVE];
    const uint64_t rounds_before = rounds;
    int status;
    open_world(false);
    rounds = 1;
    sleep_ns_max = look_again_ns;
    for (uint32_t slot = 0; slot < WAVE; slot++) {
        followers[slot] = start(follow, slot);
    }
    await_all_asleep();
    kill(followers[0], signal);
    ARENA_MUST(waitpid(followers[0], &status, WUNTRACED) == followers[0]);
    append_and_wake(&arena.store, 0);
    if (sleep_ns_max == UINT64_MAX && atomic_load(&arena.store.readers->wakes) > 1) {
        atomic_fetch_add(&board->lost, 1); /* the writer has posted more than one itself */
    }
    if (signal == SIGKILL) {
        shmq_client_drop(&arena.store, 0);
    }
    (void)await_all(1, 1);
    if (signal != SIGKILL) {
        kill(followers[0], SIGCONT);
        join(followers[0]);
    }
    for (uint32_t slot = 1; slot < WAVE; slot++) {
        join(followers[slot]);
    }
    rounds = rounds_before;
    sleep_ns_max = UINT64_MAX;
    return close_world(scenario);
}

/* ---- a writer that died on its way to the semaphore --------------------------------------------- */
static void sleep_in_slices(uint32_t slot)
{
    struct shmq_store store;
    uint32_t queue = 0;
    arena_attach_reader(&arena, &store);
    store.client = shmq_client_word(&store, slot);
    for (uint64_t seen = 0; atomic_load(&board->stop) == 0;) {
        (void)shmq_wait(&store, &queue, &seen, 1, 0, after(SLICE_NS));
        atomic_fetch_add(&board->slices, 1);
        uint64_t offset_max = shmq_load_acquire(&store.queues[0].offset_max);
        if (offset_max > seen) {
            seen = offset_max;
            atomic_store(&board->reached[0], seen);
        }
    }
}

static uint64_t dead_writer(void)
{
    open_world(false);
    struct shmq_store *store = &arena.store;
    pid_t sleeper = start(sleep_in_slices, 3);
    uint8_t body[16];
    struct message message = {.id = 1, .body_bytes = sizeof body};
    struct shmq_spec spec = message_spec(&message, body);
    struct shmq_appended out;
    for (uint64_t round = 0; round < 9; round++) {
        uint64_t until = after(watchdog_ns);
        while (atomic_load(&store->clients[3].state) != SHMQ_CLIENT_ASLEEP && shmq_io_posix.monotonic_ns() < until) {
            sched_yield();
        }
        uint64_t slices = atomic_load(&board->slices);
        ARENA_MUST(shmq_append(store, 0, &spec, 1, after(watchdog_ns), &out) == SHMQ_OK);
        if (round % 3 >= 1) { /* it died after it had taken the bits … */
            atomic_exchange(&store->waiters[0], 0);
        }
        if (round % 3 == 2) { /* … or after it had promised to post */
            uint32_t asleep = SHMQ_CLIENT_ASLEEP;
            atomic_compare_exchange_strong(&store->clients[3].state, &asleep, SHMQ_CLIENT_AWAKE);
        }
        /* A slice that was about to end may have looked just before the append; the one after it must not. */
        if (!await_number(&board->reached[0], round + 1) || atomic_load(&board->slices) > slices + 3) {
            atomic_fetch_add(&board->lost, 1);
        }
    }
    atomic_store(&board->stop, 1);
    join(sleeper);
    return close_world("dead writer");
}

/* ---- nudge and sync flush ------------------------------------------------------------------------ */
static void *wait_for_nudge(void *argument)
{
    struct shmq_store *store = argument;
    uint32_t queue = 2;
    uint64_t offset = 0;
    for (uint64_t i = 0; i < rounds / 10; i++) {
        if (shmq_wait(store, &queue, &offset, 1, 0, after(watchdog_ns)) != SHMQ_OK) {
            atomic_fetch_add(&board->lost, 1);
            break;
        }
        atomic_fetch_add(&board->reached[0], 1);
    }
    return NULL;
}

static uint64_t nudge(void)
{
    pthread_t thread;
    struct shmq_store store;
    open_world(false);
    arena_attach(&arena, &store, false);
    store.client = shmq_client_word(&store, 7);
    ARENA_MUST(pthread_create(&thread, NULL, wait_for_nudge, &store) == 0);
    uint64_t until = after(watchdog_ns);
    while (atomic_load(&board->reached[0]) < rounds / 10 && shmq_io_posix.monotonic_ns() < until) {
        shmq_wake_own(&store);
        sched_yield();
    }
    pthread_join(thread, NULL);
    shmq_store_detach(&store);
    return close_world("nudge");
}

static void follow_durable(uint32_t slot)
{
    struct shmq_store store;
    uint32_t queue = 0;
    arena_attach_reader(&arena, &store);
    store.client = shmq_client_word(&store, slot);
    for (uint64_t seen = 0; seen < rounds / 100; seen++) {
        if (shmq_wait(&store, &queue, &seen, 1, 0, after(watchdog_ns)) == SHMQ_TIMED_OUT) {
            atomic_fetch_add(&board->lost, 1);
            return;
        }
        uint64_t wanted = atomic_load(&board->reached[1]);
        if (shmq_visible_end(&store) < wanted) {
            seen--; /* woken for another reason: its message is not durable yet */
            continue;
        }
        atomic_store(&board->reached[0], seen + 1);
    }
}

static uint64_t sync_flush(void)
{
    open_world(true);
    pid_t sleeper = start(follow_durable, 9);
    for (uint64_t round = 0; round < rounds / 100; round++) {
        uint64_t durable;
        append_and_wake(&arena.store, 0);
        atomic_store(&board->reached[1], shmq_load_acquire(&arena.store.log->end));
        ARENA_MUST(shmq_flush(&arena.store, &durable) == SHMQ_OK);
        if (!await_number(&board->reached[0], round + 1)) {
            break;
        }
    }
    join(sleeper);
    return close_world("sync flush");
}

int main(int argc, char **argv)
{
    rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 2000;
    watchdog_ns = (argc > 2 ? strtoull(argv[2], NULL, 10) : 5000) * 1000000u;
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ARENA_MUST(board != MAP_FAILED);
    uint64_t lost = ping_pong() + crowd() + shared_bit() + wave() +
                    broken_wave("dead errand", SIGKILL, UINT64_MAX) + broken_wave("stopped", SIGSTOP, SLICE_NS) + dead_writer() + nudge() + sync_flush();
    return lost == 0 ? 0 : 1;
}
