/* Kills one operation after every machine instruction, and its repairer too (Linux, PTRACE_SINGLESTEP).
 *
 * A child runs the operation; this process steps it instruction by instruction and compares the shared memory after each
 * step. Every new state is "killed here":
 *
 *   simulated   the state is taken as it is, the words that the kernel changes at death are changed (arena_bury), the
 *               invariants are checked by a living process, the state is put back and the stepping goes on. The shared
 *               memory is all that survives a process, so this is the same as killing, and fast enough for every state.
 *   real        the child is run again up to the n-th instruction (a breakpoint at that address, passed as often as the
 *               first run passed it) and gets SIGKILL: proof that arena_bury does what the kernel does.
 *   depth 2     in each state a second child repairs (and appends), is stepped and killed in the same way.
 *
 * Prints one JSON line a shape; exit status 1 when an invariant was broken, 3 when the test bed itself failed.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "shapes.h"
#include "trace.h"

#define SHAPE_SECONDS_MAX 600
#define PASSES_MAX 40u

struct plan {                   /* every n-th state or instruction, 0: none; `seed` shifts where counting starts */
    uint64_t depth2_stride, real_stride, seed;
    uint64_t state_stride;      /* of states that differ in log bytes or units only; the others are all checked */
    uint64_t violations_max;    /* stop the shape early: mutants need no complete list */
    bool repairer_appends;      /* the repairer of depth 2 appends even where lock and unlock would repair */
};

struct figures {
    uint64_t instructions, states, checked, real, repairs, repair_states;
    struct verdict verdict;
};

struct run {
    const struct shape *shape;
    const struct plan *plan;
    struct scenery scenery;
    struct notes *victim_notes, *repairer_notes;
    size_t snapshot_bytes;
    uint8_t *origin, *state, *repair_state;
    uint64_t *addresses;        /* of each instruction of the operation, in the order of execution */
    uint64_t address_max;
    struct figures figures;
};

static struct notes *new_notes(void)
{
    struct notes *notes = mmap(NULL, SHMQ_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ARENA_MUST(notes != MAP_FAILED);
    return notes;
}

/* ---- children ----------------------------------------------------------------------------------- */
struct part_of_child { struct run *run; const struct shape *shape; const struct message *first; struct notes *notes; };
static struct actor actor; /* used in children only */

static void prepare(void *argument)
{
    struct part_of_child *part = argument;
    actor_prepare(&actor, part->shape, &part->run->scenery, part->notes, part->first);
}

static void act(void *argument)
{
    (void)argument;
    actor_act(&actor);
}

static pid_t spawn(struct run *run, const struct shape *shape, const struct message *first, struct notes *notes)
{
    struct part_of_child part = {.run = run, .shape = shape, .first = first, .notes = notes};
    memset(notes, 0, sizeof *notes);
    return trace_spawn(prepare, act, &part);
}

/* One instruction; false when the child ended or got a signal of its own, which is a finding. */
static bool step(struct run *run, pid_t child)
{
    int signal = trace_step(child);
    if (signal != 0) {
        verdict_add(&run->figures.verdict, 10, "the process got signal %d in its operation", signal);
    }
    return signal == 0;
}

static bool step_to_start(struct run *run, pid_t child, const struct notes *notes)
{
    while (atomic_load(&notes->phase) != PHASE_RUNNING) {
        if (!step(run, child)) {
            return false;
        }
    }
    return true;
}

/* ---- checks ------------------------------------------------------------------------------------- */
static void report(struct run *run, const char *where, uint64_t number, const struct verdict *verdict)
{
    struct figures *figures = &run->figures;
    if (verdict->violations == 0) {
        return;
    }
    if (figures->verdict.violations == 0) {
        snprintf(figures->verdict.first, sizeof figures->verdict.first, "%s %" PRIu64 ": %.250s", where, number,
                 verdict->first);
    }
    figures->verdict.violations++;
    figures->verdict.numbers |= verdict->numbers;
}

/* The process `dead` is gone. Leaves the store changed: the caller puts its state back. */
static void check_death(struct run *run, const char *where, uint64_t number)
{
    struct verdict verdict = {0};
    struct scenery *scenery = &run->scenery;
    run->figures.checked++;
    check_role(&scenery->arena.store, run->shape, atomic_load(&run->victim_notes->acked) != 0, &verdict);
    check_heir(&scenery->arena, &scenery->ledger, &verdict);
    check_tables(scenery, run->shape, atomic_load(&run->victim_notes->acked) != 0, &verdict);
    report(run, where, number, &verdict);
}

static void check_instant(struct run *run, const char *where, uint64_t number)
{
    struct verdict verdict = {0};
    check_reader(&run->scenery.arena, &run->scenery.ledger, &verdict);
    report(run, where, number, &verdict);
}

static bool has_enough(const struct run *run)
{
    return run->figures.verdict.violations >= run->plan->violations_max;
}

static void note_acks(struct run *run)
{
    run->scenery.ledger.parties[0].acked = atomic_load(&run->victim_notes->acked) != 0;
    run->scenery.ledger.parties[1].acked = atomic_load(&run->repairer_notes->acked) != 0;
}

/* ---- depth 2 ------------------------------------------------------------------------------------ */
/* run->state holds the state in which the victim dies; the store holds it too, and does again afterwards. */
static void enumerate_repair(struct run *run, pid_t victim, uint64_t number)
{
    struct scenery *scenery = &run->scenery;
    struct shape shape = shape_repairer(run->shape, run->plan->repairer_appends);
    struct message first = {.id = SHAPE_REPAIRER_ID, .queue = 0, .body_bytes = shape.body_bytes};
    arena_bury(&scenery->arena, victim);
    pid_t child = spawn(run, &shape, &first, run->repairer_notes);
    scenery->ledger.parties[1] = (struct party){.first = first, .count = shape.operation == OPERATION_APPEND};
    scenery->ledger.party_count = 2;
    bool alive = step_to_start(run, child, run->repairer_notes);
    arena_save(&scenery->arena, run->repair_state);
    while (alive && atomic_load(&run->repairer_notes->phase) != PHASE_DONE && !has_enough(run)) {
        alive = step(run, child);
        if (!alive || !arena_differs(&scenery->arena, run->repair_state)) {
            continue;
        }
        arena_save(&scenery->arena, run->repair_state);
        run->figures.repair_states++;
        note_acks(run);
        check_instant(run, "repairer alive after state", number);
        arena_bury(&scenery->arena, child);
        check_death(run, "repairer killed after state", number);
        arena_restore(&scenery->arena, run->repair_state);
    }
    trace_end(child, true);
    memset(run->repairer_notes, 0, sizeof *run->repairer_notes);
    scenery->ledger.party_count = 1;
    run->figures.repairs++;
    arena_restore(&scenery->arena, run->state);
}

/* ---- depth 1 ------------------------------------------------------------------------------------ */
static pid_t start_victim(struct run *run)
{
    struct scenery *scenery = &run->scenery;
    arena_restore(&scenery->arena, run->origin);
    pid_t victim = spawn(run, run->shape, &scenery->ledger.parties[0].first, run->victim_notes);
    ledger_open(&scenery->ledger, &scenery->arena);
    ARENA_MUST(step_to_start(run, victim, run->victim_notes));
    return victim;
}

static void examine_state(struct run *run, pid_t victim, bool control)
{
    struct arena *arena = &run->scenery.arena;
    const struct plan *plan = run->plan;
    uint64_t number = ++run->figures.states;
    if (!control && (number + plan->seed) % plan->state_stride != 0) {
        return;
    }
    note_acks(run);
    check_instant(run, "alive in state", number);
    arena_bury(arena, victim);
    check_death(run, "killed in state", number);
    arena_restore(arena, run->state);
    if (plan->depth2_stride != 0 && (number + plan->seed) % plan->depth2_stride == 0 && !has_enough(run)) {
        enumerate_repair(run, victim, number);
    }
}

static void note_address(struct run *run, pid_t victim)
{
    if (run->plan->real_stride != 0) {
        if (run->figures.instructions == run->address_max) {
            run->address_max = run->address_max * 2 + 4096;
            run->addresses = realloc(run->addresses, run->address_max * sizeof *run->addresses);
            ARENA_MUST(run->addresses != NULL);
        }
        run->addresses[run->figures.instructions] = trace_instruction(victim);
    }
    run->figures.instructions++;
}

static void enumerate_states(struct run *run)
{
    struct arena *arena = &run->scenery.arena;
    pid_t victim = start_victim(run);
    bool alive = true;
    arena_save(arena, run->state);
    examine_state(run, victim, true);
    while (alive && atomic_load(&run->victim_notes->phase) != PHASE_DONE && !has_enough(run)) {
        note_address(run, victim);
        alive = step(run, victim);
        if (alive && (arena_differs(arena, run->state))) {
            bool control = arena_control_differs(arena, run->state);
            arena_save(arena, run->state);
            examine_state(run, victim, control);
        }
    }
    bool finished = atomic_load(&run->victim_notes->phase) == PHASE_DONE;
    trace_end(victim, !finished);
    note_acks(run);
    if (finished && atomic_load(&run->victim_notes->status) != SHMQ_OK) {
        verdict_add(&run->figures.verdict, 10, "the operation itself answered %u",
                    atomic_load(&run->victim_notes->status));
    }
    if (finished) {
        check_death(run, "after the end of the operation", 0);
    }
}

static void kill_for_real(struct run *run)
{
    uint64_t stride = run->plan->real_stride;
    for (uint64_t at = run->plan->seed % stride; at < run->figures.instructions && !has_enough(run); at += stride) {
        uint32_t passed = 0;
        for (uint64_t i = 0; i < at; i++) {
            passed += run->addresses[i] == run->addresses[at];
        }
        if (passed > PASSES_MAX) {
            continue; /* inside a long loop, whose first rounds were killed */
        }
        pid_t victim = start_victim(run);
        if (trace_run_to(victim, run->addresses[at], passed)) {
            run->figures.real++;
        }
        trace_end(victim, true);
        note_acks(run);
        check_instant(run, "after a real kill at instruction", at);
        check_death(run, "after a real kill at instruction", at);
    }
}

static void print_figures(const struct run *run)
{
    const struct figures *f = &run->figures;
    char text[sizeof f->verdict.first];
    strcpy(text, f->verdict.first);
    for (char *c = text; *c != 0; c++) {
        *c = *c == '"' || *c == '\\' ? '\'' : *c;
    }
    printf("{\"shape\": \"%s\", \"instructions\": %" PRIu64 ", \"states\": %" PRIu64 ", \"repairs\": %" PRIu64
           ", \"repair_states\": %" PRIu64 ", \"real_kills\": %" PRIu64 ", \"checked\": %" PRIu64
           ", \"violations\": %" PRIu64 ", \"invariants\": %u, \"first\": \"%s\"}\n",
           run->shape->name, f->instructions, f->states, f->repairs, f->repair_states, f->real, f->checked,
           f->verdict.violations, f->verdict.numbers, text);
    fflush(stdout);
}

/* Log bytes the operation may touch: its records, what a roll leaves unused before them, and the appends of the check. */
static uint64_t window_bytes(const struct shape *shape)
{
    uint64_t bytes = (uint64_t)shape->count * (shape->body_bytes + 200) + 4096;
    bool twice = (shape->scene >= SCENE_ROLL && shape->scene <= SCENE_ROLL_UNMAPPED) || shape->scene == SCENE_CLAIM_SLOW ||
                 shape->operation == OPERATION_CLAIM_EVICTED;
    return twice ? 2 * bytes : bytes;
}

static uint64_t run_shape(const struct shape *shape, const struct plan *plan)
{
    static struct run run;
    memset(&run, 0, sizeof run);
    run.shape = shape;
    run.plan = plan;
    run.victim_notes = new_notes();
    run.repairer_notes = new_notes();
    alarm(SHAPE_SECONDS_MAX);
    scenery_open(&run.scenery, shape);
    run.scenery.arena.store.processors = 1;
    arena_window(&run.scenery.arena, window_bytes(shape));
    run.snapshot_bytes = arena_snapshot_bytes(&run.scenery.arena);
    run.origin = malloc(run.snapshot_bytes);
    run.state = malloc(run.snapshot_bytes);
    run.repair_state = malloc(run.snapshot_bytes);
    ARENA_MUST(run.origin != NULL && run.state != NULL && run.repair_state != NULL);
    arena_save(&run.scenery.arena, run.origin);
    enumerate_states(&run);
    if (plan->real_stride != 0) {
        kill_for_real(&run);
    }
    print_figures(&run);
    ledger_close(&run.scenery.ledger);
    scenery_close(&run.scenery);
    free(run.addresses);
    free(run.origin);
    free(run.state);
    free(run.repair_state);
    munmap(run.victim_notes, SHMQ_PAGE_BYTES);
    munmap(run.repairer_notes, SHMQ_PAGE_BYTES);
    return run.figures.verdict.violations;
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

/* step [--states N] [--depth2 N] [--real N] [--seed N] [--enough N] [--appends 1] [--ignore BITS] [shape …] */
int main(int argc, char **argv)
{
    struct plan plan = {.depth2_stride = number_of(argc, argv, "--depth2", 0),
                        .real_stride = number_of(argc, argv, "--real", 0),
                        .state_stride = number_of(argc, argv, "--states", 1),
                        .seed = number_of(argc, argv, "--seed", 0),
                        .violations_max = number_of(argc, argv, "--enough", UINT64_MAX),
                        .repairer_appends = number_of(argc, argv, "--appends", 0) != 0};
    check_ignored = (uint32_t)number_of(argc, argv, "--ignore", 0);
    trace_pin();
    uint64_t violations = 0;
    uint32_t chosen = 0;
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-') {
            i++;
            continue;
        }
        chosen++;
        for (uint32_t s = 0; s < shape_count; s++) {
            violations += strcmp(argv[i], shapes[s].name) == 0 ? run_shape(&shapes[s], &plan) : 0;
        }
    }
    for (uint32_t s = 0; chosen == 0 && s < shape_count; s++) {
        violations += run_shape(&shapes[s], &plan);
    }
    return violations == 0 ? 0 : 1;
}
