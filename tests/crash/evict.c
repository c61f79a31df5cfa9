/* A claim owner that is stopped: others take its claim away, and it finds out when it comes back.
 *
 *   owner   open a claim · write half of the body · SIGSTOP ……………………… write all of it · commit: EVICTED ·
 *           append a copy of what it wrote · abort (settles the hole)
 *   others  append with a deadline below the claim patience: BROKER_BUSY; with a long one: a hole, then their record
 *
 * Variants: every size that changes the shape of the hole, several others at once, an owner that is killed instead of
 * continued, an owner that came back in time. Prints one JSON line a variant, exit status 1 after a violation.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "check.h"

#define FILE_BYTES (16u << 20)
#define OWNER_ID 300u
#define LONG_NS UINT64_C(20000000000) /* a thousand times the patience with a claim; a busy machine is no finding */

struct variant {
    const char *name;
    uint32_t body_bytes, tail_bytes;
    uint32_t others;            /* processes that append at once, besides this one */
    bool owner_dies, in_time;
};

struct outcome {                /* of the owner, shared */
    _Atomic uint32_t opened, commit_status, copy_status, done;
};

static uint64_t after(uint64_t ns)
{
    return shmq_io_posix.monotonic_ns() + ns;
}

static void own(struct arena *arena, const struct variant *variant, struct outcome *outcome)
{
    static uint8_t body[SHMQ_BODY_BYTES_MAX];
    struct shmq_store store;
    struct shmq_claim_handle claim;
    struct shmq_appended out;
    struct message message = {.id = OWNER_ID, .queue = 2, .body_bytes = variant->body_bytes};
    struct shmq_spec spec = message_spec(&message, body);
    arena_attach(arena, &store, true);
    ARENA_MUST(shmq_claim_open(&store, 2, variant->body_bytes, variant->tail_bytes, after(LONG_NS), &claim) == SHMQ_OK);
    atomic_store(&outcome->opened, 1);
    memcpy(claim.body, body, variant->body_bytes / 2);
    raise(SIGSTOP);
    spec.body = NULL;
    spec.body_crc_raw = shmq_crc32_copy_raw(UINT32_MAX, claim.body, body, variant->body_bytes);
    enum shmq_status status = shmq_claim_commit(&store, &claim, &spec, message_tag(&message), after(LONG_NS), &out);
    atomic_store(&outcome->commit_status, (uint32_t)status);
    if (status == SHMQ_EVICTED) {
        spec.body = claim.body;
        status = shmq_append(&store, 2, &spec, message_tag(&message), after(LONG_NS), &out);
        atomic_store(&outcome->copy_status, (uint32_t)status);
        shmq_claim_abort(&store, &claim);
    }
    atomic_store(&outcome->done, 1);
    _exit(0);
}

static void append_as(struct arena *arena, uint32_t id)
{
    uint8_t body[64];
    struct shmq_store store;
    struct shmq_appended out;
    struct message message = {.id = id, .queue = id % ARENA_QUEUES, .body_bytes = 48};
    struct shmq_spec spec = message_spec(&message, body);
    arena_attach(arena, &store, true);
    enum shmq_status status = shmq_append(&store, message.queue, &spec, message_tag(&message), after(LONG_NS), &out);
    _exit(status == SHMQ_OK ? 0 : 1);
}

static pid_t start_owner(struct arena *arena, const struct variant *variant, struct outcome *outcome)
{
    int status;
    pid_t owner = fork();
    ARENA_MUST(owner >= 0);
    if (owner == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        own(arena, variant, outcome);
    }
    ARENA_MUST(waitpid(owner, &status, WUNTRACED) == owner && WIFSTOPPED(status));
    return owner;
}

static void start_others(struct arena *arena, const struct variant *variant, pid_t *pids)
{
    for (uint32_t i = 0; i < variant->others; i++) {
        pids[i] = fork();
        ARENA_MUST(pids[i] >= 0);
        if (pids[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            append_as(arena, 400 + i);
        }
    }
}

static void check_hole(struct arena *arena, const struct variant *variant, uint64_t at, bool settled,
                       struct verdict *verdict)
{
    const uint8_t *data = arena_log(arena, at);
    struct shmq_view view;
    uint64_t left = arena->options.file_bytes - at % arena->options.file_bytes;
    if (shmq_record_decode(data, left, &view) != SHMQ_OK || view.sys_flag != SHMQ_SYS_FLAG_ROLLBACK ||
        view.body_bytes < variant->body_bytes || view.topic_bytes != strlen(SHMQ_HOLE_TOPIC) ||
        memcmp(view.topic, SHMQ_HOLE_TOPIC, view.topic_bytes) != 0) {
        verdict_add(verdict, 2, "no hole around the body of the evicted claim");
        return;
    }
    bool zeros = true;
    for (uint32_t i = 0; i < view.body_bytes; i++) {
        zeros &= view.body[i] == 0;
    }
    if (settled && (!zeros || shmq_record_verify(data, &view) != SHMQ_OK)) {
        verdict_add(verdict, 2, "the hole is not settled");
    }
}

/* This process appends `id`; which status must it get? */
static void append_here(struct arena *arena, uint32_t id, uint64_t deadline_ns, enum shmq_status expected,
                        struct verdict *verdict)
{
    uint8_t body[64];
    struct shmq_appended out;
    struct message message = {.id = id, .queue = 1, .body_bytes = 48};
    struct shmq_spec spec = message_spec(&message, body);
    enum shmq_status status = shmq_append(&arena->store, 1, &spec, message_tag(&message), deadline_ns, &out);
    if (status != expected) {
        verdict_add(verdict, 10, "append of another process: status %d instead of %d", status, expected);
    }
}

/* A clock that never says that the claim's time is over, so that a slow machine changes no outcome. */
static uint64_t patient_until_ns;
static uint64_t patient_ns(void)
{
    uint64_t now = shmq_io_posix.monotonic_ns();
    return now < patient_until_ns ? now : patient_until_ns;
}

static void append_too_early(struct arena *arena, struct verdict *verdict)
{
    struct shmq_io patient = shmq_io_posix;
    patient.monotonic_ns = patient_ns;
    patient_until_ns = arena->store.log->claim.opened_ns + SHMQ_CLAIM_PATIENCE_NS - 1;
    arena->store.io = &patient;
    append_here(arena, 500, 0, SHMQ_WOULD_BLOCK, verdict);
    append_here(arena, 500, patient_until_ns - SHMQ_CLAIM_PATIENCE_NS / 2, SHMQ_BROKER_BUSY, verdict);
    arena->store.io = &shmq_io_posix;
}

static void expect_parties(struct ledger *ledger, const struct variant *variant)
{
    struct message one = {.id = 500, .queue = 1, .body_bytes = 48};
    struct message owner = {.id = OWNER_ID, .queue = 2, .body_bytes = variant->body_bytes};
    ledger->holes_allowed = true;
    ledger->parties[0] = (struct party){.first = one, .count = 1, .acked = true};
    ledger->parties[1] = (struct party){.first = owner, .count = !variant->owner_dies, .acked = !variant->owner_dies};
    ledger->party_count = 2;
}

/* The others' records, each a party of its own by queue: they are checked by count only. */
static void check_others(const struct arena *arena, const struct variant *variant, const uint64_t before[ARENA_QUEUES],
                         struct verdict *verdict)
{
    for (uint32_t i = 0; i < variant->others; i++) {
        uint32_t queue = (400 + i) % ARENA_QUEUES;
        if (shmq_load_acquire(&arena->store.queues[queue].offset_max) <= before[queue]) {
            verdict_add(verdict, 6, "the record of other process %u is missing", i);
        }
    }
}

static void finish(struct arena *arena, const struct variant *variant, pid_t owner, struct outcome *outcome,
                   uint64_t claimed_at, struct verdict *verdict)
{
    int status;
    kill(owner, variant->owner_dies ? SIGKILL : SIGCONT);
    ARENA_MUST(waitpid(owner, &status, 0) == owner);
    if (variant->owner_dies) {
        check_hole(arena, variant, claimed_at, false, verdict);
        return;
    }
    uint32_t expected = variant->in_time ? SHMQ_OK : SHMQ_EVICTED;
    if (atomic_load(&outcome->commit_status) != expected || atomic_load(&outcome->copy_status) != SHMQ_OK ||
        atomic_load(&outcome->done) != 1) {
        verdict_add(verdict, 6, "commit answered %u, the copy %u", atomic_load(&outcome->commit_status),
                    atomic_load(&outcome->copy_status));
    }
    if (!variant->in_time) {
        check_hole(arena, variant, claimed_at, true, verdict);
    }
}

static uint64_t run_variant(const struct variant *variant)
{
    static struct arena arena;
    const struct arena_options options = {.file_bytes = FILE_BYTES, .file_count = 3, .frame_max = 16, .frame_ready = 16};
    struct ledger ledger = {0};
    struct verdict verdict = {0};
    pid_t others[8];
    uint64_t before[ARENA_QUEUES];
    struct outcome *outcome =
        mmap(NULL, SHMQ_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ARENA_MUST(outcome != MAP_FAILED);
    fflush(stdout);
    arena_create(&arena, &options);
    append_here(&arena, 1, after(LONG_NS), SHMQ_OK, &verdict);
    ledger_open(&ledger, &arena);
    memcpy(before, ledger.offset_max, sizeof before);
    expect_parties(&ledger, variant);
    pid_t owner = start_owner(&arena, variant, outcome);
    uint64_t claimed_at = arena.store.log->claim.log_position;
    append_too_early(&arena, &verdict);
    if (variant->in_time) {
        finish(&arena, variant, owner, outcome, claimed_at, &verdict);
        append_here(&arena, 500, after(LONG_NS), SHMQ_OK, &verdict);
    } else {
        start_others(&arena, variant, others);
        append_here(&arena, 500, after(LONG_NS), SHMQ_OK, &verdict);
        for (uint32_t i = 0; i < variant->others; i++) {
            int status;
            ARENA_MUST(waitpid(others[i], &status, 0) == others[i]);
            if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
                verdict_add(&verdict, 10, "another process was not served within its deadline");
            }
        }
        check_others(&arena, variant, before, &verdict);
        check_hole(&arena, variant, claimed_at, false, &verdict);
        finish(&arena, variant, owner, outcome, claimed_at, &verdict);
    }
    if (variant->others == 0) {
        check_reader(&arena, &ledger, &verdict);
        check_heir(&arena, &ledger, &verdict);
    }
    printf("{\"variant\": \"%s\", \"evicted\": %llu, \"violations\": %llu, \"first\": \"%s\"}\n", variant->name,
           (unsigned long long)arena.store.log->claims_evicted, (unsigned long long)verdict.violations, verdict.first);
    ledger_close(&ledger);
    arena_destroy(&arena);
    munmap(outcome, SHMQ_PAGE_BYTES);
    return verdict.violations;
}

int main(void)
{
    static const struct variant variants[] = {
        {"empty body", 0, 30, 0, false, false},
        {"one byte", 1, 30, 0, false, false},
        {"shorter than a hole's tail", 11, 28, 0, false, false},
        {"tail one byte short of a hole's", 500, 39, 0, false, false},
        {"tail of a hole", 500, 40, 0, false, false},
        {"17000 bytes", 17000, 28, 0, false, false},
        {"longest tail", 500, 32897, 0, false, false},
        {"longest body", SHMQ_BODY_BYTES_MAX, 28, 0, false, false},
        {"longest body and tail", SHMQ_BODY_BYTES_MAX, 32897, 0, false, false},
        {"several others", 5000, 64, 4, false, false},
        {"owner killed after eviction", 5000, 64, 0, true, false},
        {"owner back in time", 5000, 64, 0, false, true},
    };
    uint64_t violations = 0;
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        violations += run_variant(&variants[i]);
    }
    return violations == 0 ? 0 : 1;
}
