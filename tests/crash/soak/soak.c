/* The supervisor of the random-kill soak; soak.h has the picture.
 *
 *   soak [--kills N] [--seed N] [--file-mib N] [--pause-us N]
 *
 * Between two kills lies a random time below the pause. Prints one JSON line; exit status 1 after a violation. A round
 * lasts until the log is nearly full; then all are killed, the log is checked, and a new store is made.
 */
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "soak.h"

#define FILES 8u
#define AIM_LOOKS 200000
#define STEP_NS_MAX UINT64_C(50000000)
#define STUCK_NS UINT64_C(1000000000) /* the promise: others go on within a second */

struct totals {
    uint64_t kills, rounds, messages, deaths, rolled, evictions, released, changes;
    uint64_t *waits_ns;         /* kill -> next commit of any */
    uint64_t wait_count;
};

struct round {
    struct arena arena;
    struct soak_page *page;
    pid_t pids[SOAK_ACTORS];
    uint32_t lives[SOAK_ACTORS];
    uint64_t random;
    struct watched { uint64_t acked, asleep_ns; uint32_t life; } watched[SOAK_PRODUCERS];
    uint64_t watched_ns;
};

static void spawn(struct round *round, uint32_t actor)
{
    struct soak_role role = {.arena = &round->arena, .page = round->page, .index = actor,
                             .life = round->lives[actor]++, .seed = soak_random(&round->random)};
    pid_t child = fork();
    ARENA_MUST(child >= 0);
    if (child != 0) {
        round->pids[actor] = child;
        return;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)nice(10); /* the supervisor has its turn at once */
    if (actor < SOAK_PRODUCERS) {
        soak_produce(&role);
    } else if (actor < SOAK_PRODUCERS + SOAK_READERS) {
        role.index -= SOAK_PRODUCERS;
        soak_read(&role);
    } else {
        soak_keep(&role);
    }
    _exit(0);
}

/* Every other victim holds the append lock at this moment, so that deaths inside are not rare. */
static uint32_t choose_victim(struct round *round)
{
    uint64_t dice = soak_random(&round->random);
    const _Atomic uint32_t *word = (const _Atomic uint32_t *)&round->arena.store.log->lock.__data.__lock;
    for (int look = 0; look < AIM_LOOKS && (dice & 1) != 0; look++) {
        uint32_t holder = atomic_load_explicit(word, memory_order_relaxed) & FUTEX_TID_MASK;
        for (uint32_t actor = 0; actor < SOAK_ACTORS && holder != 0; actor++) {
            if ((uint32_t)round->pids[actor] == holder) {
                return actor;
            }
        }
    }
    return (uint32_t)((dice >> 8) % SOAK_ACTORS);
}

static void kill_actor(struct round *round, uint32_t actor)
{
    int status;
    kill(round->pids[actor], SIGKILL);
    ARENA_MUST(waitpid(round->pids[actor], &status, 0) == round->pids[actor]);
    if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL) {
        soak_violation(round->page, "actor %u died of signal %d", actor, WTERMSIG(status));
    }
}

static bool nearly_full(const struct round *round)
{
    uint64_t all = round->arena.options.file_bytes * FILES;
    return shmq_load_acquire(&round->arena.store.log->end) > all - round->arena.options.file_bytes / 4;
}

/* Which process holds what and which sleeps where, to find out why none goes on. */
static void describe(const struct round *round, uint64_t now_ns)
{
    const struct shmq_log *log = round->arena.store.log;
    fprintf(stderr, "lock word %x, holder noted %u, intent %u; claim state %u of pid %u, open for %" PRIu64 " ms\n",
            (uint32_t)log->lock.__data.__lock, log->holder_pid, atomic_load(&log->intent.kind),
            atomic_load(&log->claim.state), log->claim.owner_pid, (now_ns - log->claim.opened_ns) / 1000000);
    for (uint32_t actor = 0; actor < SOAK_ACTORS; actor++) {
        static const char *const files[] = {"stat", "wchan", "syscall"};
        for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
            char path[64], text[120];
            snprintf(path, sizeof path, "/proc/%d/%s", (int)round->pids[actor], files[i]);
            FILE *file = fopen(path, "r");
            size_t got = file == NULL ? 0 : fread(text, 1, sizeof text - 1, file);
            text[got] = 0;
            fprintf(stderr, "actor %u %s: %s%s", actor, files[i], text, got > 0 && text[got - 1] == '\n' ? "" : "\n");
            if (file != NULL) {
                fclose(file);
            }
        }
    }
}

static char state_of(pid_t pid)
{
    char path[64], text[120] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    size_t got = file == NULL ? 0 : fread(text, 1, sizeof text - 1, file);
    if (file != NULL) {
        fclose(file);
    }
    text[got] = 0;
    const char *end = strrchr(text, ')');
    return end == NULL ? '?' : end[2];
}

/* A busy machine lets none run, which is not what is tested: only sleep counts against the store. */
static bool any_wants_to_run(const struct round *round)
{
    for (uint32_t i = 0; i < SOAK_PRODUCERS; i++) {
        char state = state_of(round->pids[i]);
        if (state == 'R' || state == 'D') {
            return true;
        }
    }
    return false;
}

/* Time that passed while this process itself was not stopped: a paused machine counts for one step. */
static uint64_t patient_step(uint64_t passed_ns)
{
    return passed_ns < STEP_NS_MAX ? passed_ns : STEP_NS_MAX;
}

/* From a kill to the next commit. The log end tells, so it works for a kill of whatever actor. */
static void await_progress(struct round *round, struct totals *totals, uint64_t killed_ns, uint64_t end)
{
    uint64_t now = killed_ns, asleep_ns = 0;
    while (shmq_load_acquire(&round->arena.store.log->end) == end && !nearly_full(round)) {
        uint64_t before = now;
        now = shmq_io_posix.monotonic_ns();
        asleep_ns += any_wants_to_run(round) ? 0 : patient_step(now - before);
        if (asleep_ns > STUCK_NS) {
            describe(round, now);
            soak_violation(round->page, "no process went on within a second of a kill");
            return;
        }
        sched_yield();
    }
    totals->waits_ns[totals->wait_count++] = shmq_io_posix.monotonic_ns() - killed_ns;
}

/* The same for each producer alone: it may not sleep for a second while the others go on. */
static void watch_producers(struct round *round)
{
    uint64_t now = shmq_io_posix.monotonic_ns();
    for (uint32_t i = 0; i < SOAK_PRODUCERS; i++) {
        struct watched *watched = &round->watched[i];
        uint64_t acked = atomic_load(&round->page->lives[i][round->lives[i] - 1].acked);
        if (acked != watched->acked || round->lives[i] != watched->life) {
            *watched = (struct watched){.acked = acked, .life = round->lives[i]};
        } else if (state_of(round->pids[i]) == 'S') {
            watched->asleep_ns += patient_step(now - round->watched_ns);
        }
        if (watched->asleep_ns > STUCK_NS) {
            describe(round, now);
            soak_violation(round->page, "producer %u sleeps on while others go on", i);
        }
    }
    round->watched_ns = now;
}

static void run_round(struct totals *totals, uint64_t kills, uint64_t file_bytes, uint64_t pause_us, uint64_t *random)
{
    static struct round round;
    const struct arena_options options = {
        .file_bytes = file_bytes, .file_count = FILES, .frame_max = 1 << 14, .frame_ready = 1 << 14};
    memset(&round, 0, sizeof round);
    round.random = soak_random(random);
    round.page = mmap(NULL, sizeof *round.page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ARENA_MUST(round.page != MAP_FAILED);
    arena_create(&round.arena, &options);
    fflush(stdout);
    for (uint32_t actor = 0; actor < SOAK_ACTORS; actor++) {
        spawn(&round, actor);
    }
    while (totals->kills < kills && !nearly_full(&round) && atomic_load(&round.page->violations) == 0) {
        usleep((useconds_t)(soak_random(&round.random) % pause_us));
        uint32_t actor = choose_victim(&round);
        if (round.lives[actor] == SOAK_LIVES_MAX) {
            break;
        }
        uint64_t end = shmq_load_acquire(&round.arena.store.log->end), now = shmq_io_posix.monotonic_ns();
        kill_actor(&round, actor);
        totals->kills++;
        await_progress(&round, totals, now, end);
        spawn(&round, actor);
        watch_producers(&round);
    }
    for (uint32_t actor = 0; actor < SOAK_ACTORS; actor++) {
        kill_actor(&round, actor);
    }
    totals->messages += soak_check(&round.arena, round.page, round.lives);
    totals->rounds++;
    totals->deaths += round.arena.store.log->deaths;
    totals->rolled += round.arena.store.log->rolled;
    totals->evictions += round.arena.store.log->claims_evicted;
    totals->released += atomic_load(&round.page->released);
    totals->changes += atomic_load(&round.page->changes);
    uint64_t violations = atomic_load(&round.page->violations);
    if (violations != 0) {
        printf("{\"violations\": %" PRIu64 ", \"first\": \"%s\", \"kills\": %" PRIu64 ", \"round\": %" PRIu64 "}\n",
               violations, round.page->first, totals->kills, totals->rounds);
        exit(1);
    }
    munmap(round.page, sizeof *round.page);
    arena_destroy(&round.arena);
}

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static uint64_t number_of(int argc, char **argv, const char *option, uint64_t otherwise)
{
    for (int i = 1; i + 1 < argc; i++) {
        if (strcmp(argv[i], option) == 0) {
            return strtoull(argv[i + 1], NULL, 10);
        }
    }
    return otherwise;
}

int main(int argc, char **argv)
{
    uint64_t kills = number_of(argc, argv, "--kills", 2000), random = number_of(argc, argv, "--seed", 1);
    uint64_t file_bytes = number_of(argc, argv, "--file-mib", 16) << 20;
    uint64_t pause_us = number_of(argc, argv, "--pause-us", 2000);
    struct totals totals = {.waits_ns = calloc(kills + 1, sizeof(uint64_t))};
    ARENA_MUST(totals.waits_ns != NULL);
    while (totals.kills < kills) {
        run_round(&totals, kills, file_bytes, pause_us, &random);
    }
    qsort(totals.waits_ns, totals.wait_count, sizeof *totals.waits_ns, by_size);
    const uint64_t *w = totals.waits_ns, n = totals.wait_count;
    printf("{\"violations\": 0, \"kills\": %" PRIu64 ", \"rounds\": %" PRIu64 ", \"messages\": %" PRIu64
           ", \"lock_holders_killed\": %" PRIu64 ", \"rolled\": %" PRIu64 ", \"evictions\": %" PRIu64
           ", \"frames_released\": %" PRIu64 ", \"table_changes\": %" PRIu64 ", \"wait_us_p50\": %" PRIu64 ", \"wait_us_p99\": %" PRIu64
           ", \"wait_us_max\": %" PRIu64 "}\n",
           totals.kills, totals.rounds, totals.messages, totals.deaths, totals.rolled, totals.evictions, totals.released,
           totals.changes,
           w[n / 2] / 1000, w[n * 99 / 100] / 1000, w[n - 1] / 1000);
    free(totals.waits_ns);
    return 0;
}
