/* kill DIRECTORY KILLS: how long after the SIGKILL of the lock's holder the next append succeeds, one JSON object in nanoseconds.
 *
 *   parent                    victim (a new one each time)             waiter
 *   fork victim               append … stops at a test point           |
 *   see it holding            (holds the lock, waits)                  told to append: blocks on the lock
 *   see the waiter asleep
 *   clock, SIGKILL            dies                                     repairs, appends, reads the clock
 *
 * Built with SHMQ_TEST_POINTS. The victims die at every test point that lies inside the lock, in turn; which those are is
 * found out by an append that tries the lock at each point it passes.
 */
#include "arena.h"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define POINTS_MAX 64

struct shared {
    _Atomic uint32_t holding;   /* the victim stands at its point */
    _Atomic uint32_t wanted;    /* appends the waiter has been asked for */
    _Atomic uint32_t done;      /* … and has finished */
    _Atomic uint64_t finished_ns;
};

static struct arena arena;
static struct shared *shared;
static char points[POINTS_MAX][64];
static size_t point_count;
static bool recording;
static const char *deadly;

void shmq_test_point(const char *name) {
    if (recording) {
        bool held = pthread_mutex_trylock(&arena.store.log->lock) == EBUSY;
        if (!held) pthread_mutex_unlock(&arena.store.log->lock);
        for (size_t i = 0; i < point_count; i++)
            if (strcmp(points[i], name) == 0) return;
        if (held && point_count < POINTS_MAX) snprintf(points[point_count++], sizeof points[0], "%s", name);
    }
    if (deadly && strcmp(deadly, name) == 0) {
        atomic_store(&shared->holding, 1);
        for (;;) pause();
    }
}

static void append_one(void) {
    static const uint8_t body[256] = {0x5a};
    struct shmq_spec spec = arena_spec(body, sizeof body, 0);
    struct shmq_appended appended;
    enum shmq_status status =
        shmq_append(&arena.store, arena.queues[0], &spec, 0, arena_now_ns() + ARENA_DEADLINE_NS, &appended);
    arena_check(status == SHMQ_OK, "appending");
}

static pid_t fork_role(void (*role)(void)) {
    pid_t child = fork();
    arena_check(child >= 0, "fork");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        arena_attach(&arena);
        role();
        _exit(0);
    }
    return child;
}

static void wait_role(void) {
    uint32_t served = 0;
    for (;;) {
        if (atomic_load(&shared->wanted) == served) {
            sched_yield();
            continue;
        }
        append_one();
        atomic_store(&shared->finished_ns, arena_now_ns());
        atomic_store(&shared->done, ++served);
    }
}

static void wait_until(_Atomic uint32_t *word, uint32_t value) {
    uint64_t deadline = arena_now_ns() + ARENA_DEADLINE_NS;
    while (atomic_load(word) != value) {
        arena_check(arena_now_ns() < deadline, "waiting for a process");
        sched_yield();
    }
}

/* The waiter has given up spinning and sleeps in the kernel. */
static void wait_until_asleep(pid_t process) {
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/%d/stat", process);
    uint64_t deadline = arena_now_ns() + ARENA_DEADLINE_NS;
    for (;;) {
        FILE *file = fopen(path, "r");
        arena_check(file && fgets(line, sizeof line, file), path);
        fclose(file);
        const char *state = strrchr(line, ')');
        if (state && state[1] == ' ' && state[2] == 'S') return;
        arena_check(arena_now_ns() < deadline, "waiting for the waiter to sleep");
        sched_yield();
    }
}

static uint64_t kill_once(pid_t waiter, uint32_t number) {
    atomic_store(&shared->holding, 0);
    deadly = points[number % point_count];
    pid_t victim = fork_role(append_one);
    deadly = NULL;
    wait_until(&shared->holding, 1);
    atomic_store(&shared->wanted, number + 1);
    wait_until_asleep(waiter);
    uint64_t killed = arena_now_ns();
    kill(victim, SIGKILL);
    waitpid(victim, NULL, 0); /* asleep: a parent that polls holds a processor the victim needs for dying, until a tick */
    wait_until(&shared->done, number + 1);
    return atomic_load(&shared->finished_ns) - killed;
}

int main(int argc, char **argv) {
    arena_check(argc == 3, "usage: kill DIRECTORY KILLS;");
    uint32_t kills = (uint32_t)strtoul(argv[2], NULL, 10);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uint64_t *times = calloc(kills, sizeof *times);
    arena_check(kills > 0 && times && shared != MAP_FAILED, "allocating");
    arena_open(&arena, argv[1]);
    append_one();
    recording = true;
    append_one();
    recording = false;
    arena_check(point_count > 0, "finding a test point inside the lock");
    pid_t waiter = fork_role(wait_role);
    for (uint32_t i = 0; i < kills; i++) times[i] = kill_once(waiter, i);
    kill(waiter, SIGKILL);
    waitpid(waiter, NULL, 0);
    arena_check(arena.store.log->deaths == kills, "counting one dead holder per kill");
    qsort(times, kills, sizeof *times, arena_order);
    printf("{\"p50\": %" PRIu64 ", \"p99\": %" PRIu64 ", \"max\": %" PRIu64 ", \"points\": %zu}\n",
           arena_percentile(times, kills, 0.5), arena_percentile(times, kills, 0.99), times[kills - 1], point_count);
    return 0;
}
