/* wave DIRECTORY SLEEPERS ROUNDS: what one message costs its writer while so many processes sleep on its queue, and when the
 * last of them is awake. Beside it bare processes with a semaphore each, woken in a tree: process i posts 2i+1 and 2i+2.
 *
 * Rounds of both kinds follow each other, so a slow second of the machine hits both. Before each all are asleep, and have been
 * for a millisecond. Printed as one JSON object, medians in nanoseconds.
 */
#include <semaphore.h>
#include <signal.h>
#include <sys/prctl.h>

#define ARENA_CLIENTS 1024
#include "arena.h"

#define SLEEPERS_MAX 1000u
#define WAIT_NS (UINT64_C(60) * 1000 * 1000 * 1000)
#define SETTLE_NS 1000000
#define LOOK_NS 200000

struct sleeper {
    sem_t bell;             /* of a bare one */
    _Atomic uint32_t ready; /* of a bare one: rounds it waits for */
    _Atomic uint32_t seen;
    uint64_t awake_ns;
};

static struct arena arena;
static struct sleeper *ours, *bare;
static uint32_t sleepers;

static void pause_ns(long ns) {
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

static void sleep_on_the_queue(uint32_t number) {
    uint64_t offset = 0;
    arena_attach(&arena);
    arena.store.client = shmq_client_word(&arena.store, number);
    for (;;) {
        enum shmq_status status =
            shmq_wait(&arena.store, &arena.queues[0], &offset, 1, 0, arena_now_ns() + WAIT_NS);
        arena_check(status == SHMQ_OK, "waiting for a message");
        if (atomic_load(&arena.store.queues[arena.queues[0]].offset_max) > offset) {
            ours[number].awake_ns = arena_now_ns();
            offset++;
            atomic_store(&ours[number].seen, (uint32_t)offset);
        }
    }
}

static void sleep_on_the_bell(uint32_t number) {
    for (uint32_t seen = 1;; seen++) {
        atomic_store(&bare[number].ready, seen);
        while (sem_wait(&bare[number].bell) != 0) {
        }
        for (uint32_t next = 2 * number + 1; next <= 2 * number + 2 && next < sleepers; next++) sem_post(&bare[next].bell);
        bare[number].awake_ns = arena_now_ns();
        atomic_store(&bare[number].seen, seen);
    }
}

static void start(void (*role)(uint32_t), uint32_t number) {
    pid_t child = fork();
    arena_check(child >= 0, "starting a process");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        role(number);
        _exit(0);
    }
}

static void await_asleep(uint32_t round) {
    for (uint32_t i = 0; i < sleepers; i++) {
        while (atomic_load(&arena.store.clients[i].state) != SHMQ_CLIENT_ASLEEP ||
               atomic_load(&bare[i].ready) < round) {
            pause_ns(LOOK_NS);
        }
    }
    pause_ns(SETTLE_NS);
}

static uint64_t last_awake(const struct sleeper *all, uint32_t round) {
    uint64_t last = 0;
    for (uint32_t i = 0; i < sleepers; i++) {
        while (atomic_load(&all[i].seen) < round) pause_ns(LOOK_NS);
        last = all[i].awake_ns > last ? all[i].awake_ns : last;
    }
    return last;
}

static uint64_t median(uint64_t *times, uint32_t count) {
    qsort(times, count, sizeof *times, arena_order);
    return arena_percentile(times, count, 0.5);
}

static void name_of(char name[200], uint32_t slot) {
    snprintf(name, 200, "/shmq.%s.%016" PRIx64 ".w%u", arena.store.head->broker_name, arena.store.head->generation, slot);
}

static void take_slots(void) {
    char name[200];
    uint64_t client;
    for (uint32_t i = 0; i < sleepers; i++) {
        arena_check(shmq_client_put(&arena.store, 1, 1, 3, &client) == SHMQ_OK, "taking a client slot");
        arena_check(shmq_client_slot(client) == i, "the client slots begin at 0");
        name_of(name, i);
        sem_t *semaphore = sem_open(name, O_CREAT | O_EXCL, 0600, 0);
        arena_check(semaphore != SEM_FAILED && sem_close(semaphore) == 0, "making a semaphore");
        arena_check(sem_init(&bare[i].bell, 1, 0) == 0, "making a bell");
    }
}

int main(int argc, char **argv) {
    arena_check(argc == 4, "usage: wave DIRECTORY SLEEPERS ROUNDS;");
    sleepers = (uint32_t)strtoul(argv[2], NULL, 10);
    uint32_t rounds = (uint32_t)strtoul(argv[3], NULL, 10);
    arena_check(sleepers > 0 && sleepers <= SLEEPERS_MAX && rounds > 0, "1 to 1000 sleepers, at least one round;");
    uint64_t *times[4];
    for (int i = 0; i < 4; i++) times[i] = calloc(rounds, sizeof **times);
    ours = arena_segment("ours", sizeof *ours * sleepers, NULL);
    bare = arena_segment("bare", sizeof *bare * sleepers, NULL);
    arena_open(&arena, argv[1]);
    take_slots();
    for (uint32_t i = 0; i < sleepers; i++) {
        start(sleep_on_the_queue, i);
        start(sleep_on_the_bell, i);
    }
    struct shmq_spec spec = arena_spec("hello", 5, 0);
    struct shmq_appended appended;
    for (uint32_t round = 0; round <= rounds; round++) { /* the first opens semaphores, and does not count */
        await_asleep(round + 1);
        uint64_t began = arena_now_ns();
        arena_check(shmq_append(&arena.store, arena.queues[0], &spec, 0, 0, &appended) == SHMQ_OK, "appending");
        shmq_wake(&arena.store, arena.queues[0]);
        uint64_t sent = arena_now_ns() - began;
        uint64_t last = last_awake(ours, round + 1) - began;
        await_asleep(round + 1);
        began = arena_now_ns();
        sem_post(&bare[0].bell);
        uint64_t posted = arena_now_ns() - began;
        uint64_t bare_last = last_awake(bare, round + 1) - began;
        const uint64_t taken[4] = {sent, last, posted, bare_last};
        for (int i = 0; round > 0 && i < 4; i++) times[i][round - 1] = taken[i];
    }
    for (uint32_t i = 0; i < sleepers; i++) {
        char name[200];
        name_of(name, i);
        sem_unlink(name);
    }
    printf("{\"send\": %" PRIu64 ", \"last\": %" PRIu64 ", \"bare_post\": %" PRIu64 ", \"bare_last\": %" PRIu64 "}\n",
           median(times[0], rounds), median(times[1], rounds), median(times[2], rounds), median(times[3], rounds));
    return 0;
}
