/* Kills or stops an operation at each of its named points (SHMQ_POINT), without ptrace: works on any processor.
 *
 *   kill   the victim kills itself at the n-th point it passes; another process repairs and is killed at each of its own
 *          points; a third one finds everything in order
 *   stop   the victim stops itself there; while it holds the append lock others get SHMQ_BROKER_BUSY at their deadline and
 *          SHMQ_WOULD_BLOCK at once, and nothing they did not do changes; after SIGCONT it ends well
 *
 *   points kill|stop [--depth2 N] [shape …]
 *
 * Prints one JSON line a shape, and one with every point that was passed. Exit status 1 after a violation.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "shapes.h"

#ifndef SHMQ_TEST_POINTS
#error "compile with -DSHMQ_TEST_POINTS"
#endif

#define POINTS_MAX 4096u
#define BUSY_NS UINT64_C(20000000)

struct post {                   /* shared with the children */
    struct notes notes;
    uint32_t armed;             /* the point at which `signal` is raised, counted from 0 */
    int signal;
    _Atomic uint32_t seen;
    const char *names[POINTS_MAX]; /* addresses are the same in every fork of this process */
};

struct run {
    const struct shape *shape;
    struct scenery scenery;
    uint8_t *origin, *dead;
    struct verdict verdict;
    uint32_t points, repairer_points, stops_inside;
};

static struct post *victim_post, *repairer_post;
static struct post *own_post; /* in a child: its own */
static const char *passed[256];
static uint32_t passed_count;

void shmq_test_point(const char *name)
{
    if (own_post == NULL || atomic_load(&own_post->notes.phase) != PHASE_RUNNING) {
        return;
    }
    uint32_t number = atomic_fetch_add(&own_post->seen, 1);
    if (number < POINTS_MAX) {
        own_post->names[number] = name;
    }
    if (number == own_post->armed) {
        raise(own_post->signal);
    }
}

static void note_passed(const struct post *post)
{
    uint32_t seen = atomic_load(&post->seen);
    for (uint32_t i = 0; i < seen && i < POINTS_MAX; i++) {
        uint32_t known = 0;
        while (known < passed_count && strcmp(passed[known], post->names[i]) != 0) {
            known++;
        }
        if (known == passed_count && passed_count < sizeof passed / sizeof passed[0]) {
            passed[passed_count++] = post->names[i];
        }
    }
}

/* Returns when the child has ended or stopped itself; its wait status. */
static int run_child(struct run *run, const struct shape *shape, const struct message *first, struct post *post,
                     uint32_t armed, int signal, pid_t *child)
{
    static struct actor actor;
    int status;
    memset(post, 0, sizeof *post);
    post->armed = armed;
    post->signal = signal;
    fflush(stdout);
    *child = fork();
    ARENA_MUST(*child >= 0);
    if (*child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        actor_prepare(&actor, shape, &run->scenery, &post->notes, first);
        raise(SIGSTOP);
        own_post = post;
        actor_act(&actor);
        _exit(0);
    }
    ARENA_MUST(waitpid(*child, &status, WUNTRACED) == *child && WIFSTOPPED(status));
    if (post == victim_post) {
        ledger_open(&run->scenery.ledger, &run->scenery.arena); /* "before" is after its preparation */
    }
    kill(*child, SIGCONT);
    ARENA_MUST(waitpid(*child, &status, WUNTRACED) == *child);
    note_passed(post);
    return status;
}

static void collect(struct run *run, const char *where, uint32_t number, const struct post *post,
                    const struct verdict *verdict)
{
    if (verdict->violations != 0 && run->verdict.violations++ == 0) {
        const char *name = number < POINTS_MAX && post->names[number] != NULL ? post->names[number] : "the end";
        snprintf(run->verdict.first, sizeof run->verdict.first, "%s %s (%u): %.200s", where, name, number,
                 verdict->first);
    }
}

static void check_world(struct run *run, const char *where, uint32_t number, const struct post *post)
{
    struct verdict verdict = {0};
    struct ledger *ledger = &run->scenery.ledger;
    ledger->parties[0].acked = atomic_load(&victim_post->notes.acked) != 0;
    ledger->parties[1].acked = atomic_load(&repairer_post->notes.acked) != 0;
    check_reader(&run->scenery.arena, ledger, &verdict);
    check_role(&run->scenery.arena.store, run->shape, atomic_load(&victim_post->notes.acked) != 0, &verdict);
    check_heir(&run->scenery.arena, ledger, &verdict);
    check_tables(&run->scenery, run->shape, atomic_load(&victim_post->notes.acked) != 0, &verdict);
    collect(run, where, number, post, &verdict);
}

/* The store holds what a dead victim left, and run->dead too. */
static void kill_repairer(struct run *run)
{
    struct shape shape = shape_repairer(run->shape, true);
    struct message first = {.id = SHAPE_REPAIRER_ID, .queue = 0, .body_bytes = shape.body_bytes};
    pid_t child;
    run->scenery.ledger.parties[1] = (struct party){.first = first, .count = shape.operation == OPERATION_APPEND};
    run->scenery.ledger.party_count = 2;
    for (uint32_t armed = 0;; armed++) {
        arena_restore(&run->scenery.arena, run->dead);
        int status = run_child(run, &shape, &first, repairer_post, armed, SIGKILL, &child);
        check_world(run, "repairer killed at", armed, repairer_post);
        if (!WIFSIGNALED(status)) {
            break;
        }
        run->repairer_points++;
    }
    memset(repairer_post, 0, sizeof *repairer_post);
    run->scenery.ledger.party_count = 1;
    arena_restore(&run->scenery.arena, run->dead);
}

static void enumerate_kills(struct run *run, bool repairers)
{
    struct ledger *ledger = &run->scenery.ledger;
    pid_t child;
    for (uint32_t armed = 0;; armed++) {
        arena_restore(&run->scenery.arena, run->origin);
        int status = run_child(run, run->shape, &ledger->parties[0].first, victim_post, armed, SIGKILL, &child);
        ARENA_MUST(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WIFEXITED(status) && WEXITSTATUS(status) == 0);
        arena_save(&run->scenery.arena, run->dead);
        if (repairers && WIFSIGNALED(status)) {
            kill_repairer(run);
        }
        check_world(run, "killed at", armed, victim_post);
        if (!WIFSIGNALED(status)) {
            return;
        }
        run->points++;
    }
}

/* The victim stands still, perhaps with the lock. Others must get an answer, and leave everything alone. */
static void check_standing(struct run *run, uint32_t number, pid_t victim)
{
    uint8_t body[64];
    struct verdict verdict = {0};
    struct shmq_appended out;
    struct shmq_store *store = &run->scenery.arena.store;
    struct message message = {.id = CHECK_HEIR_ID, .queue = 0, .body_bytes = 40};
    struct shmq_spec spec = message_spec(&message, body);
    run->scenery.ledger.parties[0].acked = atomic_load(&victim_post->notes.acked) != 0;
    check_reader(&run->scenery.arena, &run->scenery.ledger, &verdict);
    if (((uint32_t)store->log->lock.__data.__lock & FUTEX_TID_MASK) == (uint32_t)victim) {
        uint64_t end = shmq_load_acquire(&store->log->end);
        run->stops_inside++;
        enum shmq_status now = shmq_append(store, 0, &spec, message_tag(&message), 0, &out);
        enum shmq_status later = shmq_append(store, 0, &spec, message_tag(&message),
                                             shmq_io_posix.monotonic_ns() + BUSY_NS, &out);
        if (now != SHMQ_WOULD_BLOCK || later != SHMQ_BROKER_BUSY || shmq_load_acquire(&store->log->end) != end) {
            verdict_add(&verdict, 10, "beside a stopped holder: status %d at once, %d at the deadline", now, later);
        }
    }
    check_reader(&run->scenery.arena, &run->scenery.ledger, &verdict);
    collect(run, "stopped at", number, victim_post, &verdict);
}

static void enumerate_stops(struct run *run)
{
    pid_t child;
    int status;
    for (uint32_t armed = 0;; armed++) {
        arena_restore(&run->scenery.arena, run->origin);
        status = run_child(run, run->shape, &run->scenery.ledger.parties[0].first, victim_post, armed, SIGSTOP, &child);
        if (WIFSTOPPED(status)) {
            run->points++;
            check_standing(run, armed, child);
            kill(child, SIGCONT);
            ARENA_MUST(waitpid(child, &status, 0) == child);
        } else {
            armed = UINT32_MAX - 1;
        }
        struct verdict verdict = {0};
        if (!WIFEXITED(status) || atomic_load(&victim_post->notes.acked) != 1) {
            verdict_add(&verdict, 6, "after SIGCONT: status %u", atomic_load(&victim_post->notes.status));
            collect(run, "stopped at", armed, victim_post, &verdict);
        }
        check_world(run, "went on from", armed, victim_post);
        if (armed >= UINT32_MAX - 1) {
            return;
        }
    }
}

static uint64_t run_shape(const struct shape *shape, bool stop, bool repairers)
{
    static struct run run;
    memset(&run, 0, sizeof run);
    run.shape = shape;
    scenery_open(&run.scenery, shape);
    size_t bytes = arena_snapshot_bytes(&run.scenery.arena);
    run.origin = malloc(bytes);
    run.dead = malloc(bytes);
    ARENA_MUST(run.origin != NULL && run.dead != NULL);
    arena_save(&run.scenery.arena, run.origin);
    if (stop) {
        enumerate_stops(&run);
    } else {
        enumerate_kills(&run, repairers);
    }
    printf("{\"shape\": \"%s\", \"points\": %u, \"repairer_points\": %u, \"stops_inside\": %u, \"violations\": %llu, "
           "\"first\": \"%s\"}\n",
           shape->name, run.points, run.repairer_points, run.stops_inside, (unsigned long long)run.verdict.violations,
           run.verdict.first);
    ledger_close(&run.scenery.ledger);
    scenery_close(&run.scenery);
    free(run.origin);
    free(run.dead);
    return run.verdict.violations;
}

int main(int argc, char **argv)
{
    ARENA_MUST(argc >= 2);
    bool stop = strcmp(argv[1], "stop") == 0, repairers = argc >= 3 && strcmp(argv[2], "--depth2") == 0;
    uint64_t violations = 0;
    victim_post = mmap(NULL, sizeof *victim_post, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    repairer_post = mmap(NULL, sizeof *repairer_post, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ARENA_MUST(victim_post != MAP_FAILED && repairer_post != MAP_FAILED);
    for (uint32_t s = 0; s < shape_count; s++) {
        bool chosen = argc <= (repairers ? 3 : 2);
        for (int i = 2; i < argc; i++) {
            chosen |= strcmp(argv[i], shapes[s].name) == 0;
        }
        violations += chosen ? run_shape(&shapes[s], stop, repairers) : 0;
    }
    printf("{\"passed\": [");
    for (uint32_t i = 0; i < passed_count; i++) {
        printf("%s\"%s\"", i == 0 ? "" : ", ", passed[i]);
    }
    printf("]}\n");
    return violations == 0 ? 0 : 1;
}
