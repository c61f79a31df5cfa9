/* A queue changes hands: a process is stopped or killed anywhere in an operation on its owner word, and others want the queue.
 *
 *   victim    instruction 1 … n, stopped …………………………………………………………… n + 1 … end, or killed there
 *   others    (free, where the victim gives the queue up) · a member takes · another takes · a client over TCP locks
 *
 *   operation   the word before        the victim
 *   take        0                      becomes the owner
 *   take-dead   a member that died     becomes the owner in its place
 *   take-over   a lock that is over    becomes the owner in its place
 *   take-live   a living member        is refused
 *   leave       the victim             leaves, while the broker frees
 *   lock        a member that died     locks
 *   renew       its own lock           locks for longer
 *   unlock      its own lock           ends it, while the broker frees
 *   free        a living member        is the broker, and takes the queue away
 *   take-lost   0                      is given nothing: its client slot becomes another member's, who takes the queue
 *   take-back   0                      is given nothing: its client slot is taken back before it is the owner
 *   leave-lost  the victim             leaves the queue to the member that has its client slot by now
 *   commit-lost the victim             moves no offset of that member
 *   wait-lost   0                      leaves state, errand and post to that member, which sleeps
 *
 * Of the victim and the three others at most one may be given the queue, and what it got is taken away by the
 * broker only. Where the victim was killed, exactly one gets it: a member at once, or the client over TCP when a lock is over.
 *
 * Every instruction is a case: the victim is run again up to the n-th. Prints one JSON line an operation; exit status 1
 * after a violation.
 */
#include <inttypes.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "operations.h"
#include "trace.h"

#define NOW_MS UINT64_C(100000000000) /* of the locks: three years, ahead of the clock that a taker looks at */
#define LIFE_MS 60000u
#define VICTIM_SLOT 3u                /* of the clients: behind a dead one and two that live */
#define VICTIM_OFFSET 3u
#define NEWCOMER_OFFSET 5u
#define NEWCOMER_ERRAND UINT64_C(77)  /* any */
#define VICTIM_HOLDER 7u
#define OTHER_HOLDER 8u

enum operation {
    OPERATION_TAKE, OPERATION_TAKE_DEAD, OPERATION_TAKE_OVER, OPERATION_TAKE_LIVE, OPERATION_LEAVE, OPERATION_LOCK,
    OPERATION_RENEW, OPERATION_UNLOCK, OPERATION_FREE, OPERATION_TAKE_LOST, OPERATION_TAKE_BACK, OPERATION_LEAVE_LOST,
    OPERATION_COMMIT_LOST, OPERATION_WAIT_LOST, OPERATION_COUNT,
};
const char *const operation_names[] = {
    "take", "take-dead", "take-over", "take-live", "leave", "lock", "renew", "unlock", "free", "take-lost", "take-back",
    "leave-lost", "commit-lost", "wait-lost",
};

const uint32_t operation_count = OPERATION_COUNT;

struct notes {                  /* what the victim tells; no part of the store */
    _Atomic uint32_t given, done;
    sem_t semaphore;            /* of the victim's client slot */
};

struct bed {
    struct arena arena;
    enum operation operation;
    struct notes *notes;
    uint32_t queue, slot;
    uint64_t place;             /* what the slot is for */
    uint64_t members[2];        /* client words of two others that live */
    uint64_t dead;              /* the word of a process that is no more */
    struct trace_path path;
    struct verdict verdict;
    uint64_t cases, others_won, victim_won;
};

static struct shmq_store victim;

static struct shmq_offset *entry_of(struct bed *bed)
{
    return &bed->arena.store.offsets[bed->slot];
}

/* ---- the store ----------------------------------------------------------------------------------- */
static uint64_t client_of(struct shmq_store *store, uint32_t pid, uint64_t start)
{
    uint64_t client;
    ARENA_MUST(shmq_client_put(store, pid, start, 3, &client) == SHMQ_OK);
    return client;
}

static uint64_t dead_word(struct shmq_store *store)
{
    int status;
    const pid_t child = fork();
    ARENA_MUST(child >= 0);
    if (child == 0) {
        pause();
        _exit(0);
    }
    const uint64_t client = client_of(store, (uint32_t)child, shmq_process_start((uint32_t)child));
    ARENA_MUST(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
    return client;
}

static void bed_open(struct bed *bed, enum operation operation)
{
    const struct arena_options options = {.file_bytes = 128u << 10, .file_count = 2, .frame_max = 16, .frame_ready = 16};
    struct shmq_store *store = &bed->arena.store;
    uint32_t group;
    bed->operation = operation;
    arena_create(&bed->arena, &options);
    bed->queue = shmq_topic_queue(store, shmq_topic_find(store, ARENA_TOPIC, strlen(ARENA_TOPIC)), 0);
    ARENA_MUST(shmq_group_put(store, "workers", &group) == SHMQ_OK);
    ARENA_MUST(shmq_offset_put(store, group, bed->queue, &bed->slot) == SHMQ_OK);
    bed->place = shmq_offset_place(group, bed->queue);
    bed->dead = dead_word(store);
    bed->members[0] = client_of(store, store->self_pid, store->self_start);
    bed->members[1] = client_of(store, store->self_pid, store->self_start);
    arena_window(&bed->arena, 4096);
}

static uint64_t lock_word(uint64_t until_ms)
{
    return until_ms / 64 << 32 | SHMQ_OWNER_LOCK | VICTIM_HOLDER;
}

static void prepare(void *argument)
{
    struct bed *bed = argument;
    arena_attach(&bed->arena, &victim, true);
    const uint64_t own = client_of(&victim, victim.self_pid, victim.self_start), lock = lock_word(NOW_MS + LIFE_MS);
    ARENA_MUST(shmq_client_slot(own) == VICTIM_SLOT);
    victim.processors = 1;
    victim.semaphores[VICTIM_SLOT] = &bed->notes->semaphore;
    shmq_client_use(&victim, own);
    const uint64_t words[OPERATION_COUNT] = {
        [OPERATION_TAKE_DEAD] = bed->dead, [OPERATION_TAKE_OVER] = lock_word(64),
        [OPERATION_TAKE_LIVE] = bed->members[0], [OPERATION_LEAVE] = own,
        [OPERATION_LOCK] = bed->dead, [OPERATION_RENEW] = lock, [OPERATION_UNLOCK] = lock,
        [OPERATION_FREE] = bed->members[0], [OPERATION_LEAVE_LOST] = own, [OPERATION_COMMIT_LOST] = own,
    };
    atomic_store(&victim.offsets[bed->slot].owner, words[bed->operation]);
}

/* ---- who wants the queue ------------------------------------------------------------------------- */
static bool lock(struct shmq_store *store, struct bed *bed, uint32_t holder, uint64_t now_ms)
{
    const struct shmq_owner_lock wish = {.holder = holder, .now_ms = now_ms, .life_ms = LIFE_MS};
    return shmq_owner_lock(store, &store->offsets[bed->slot], bed->place, &wish);
}

static bool act(struct bed *bed)
{
    const uint64_t nothing = 0;
    struct shmq_offset *entry = &victim.offsets[bed->slot];
    switch (bed->operation) {
    case OPERATION_COMMIT_LOST:
        return shmq_owner_commit(&victim, entry, bed->place, VICTIM_OFFSET);
    case OPERATION_WAIT_LOST:
        (void)shmq_wait(&victim, &bed->queue, &nothing, 1, 0, 1);
        return false;
    case OPERATION_LEAVE:
    case OPERATION_LEAVE_LOST:
        shmq_owner_leave(&victim, entry, bed->place);
        return false;
    case OPERATION_LOCK:
        return lock(&victim, bed, VICTIM_HOLDER, NOW_MS);
    case OPERATION_RENEW:
        return lock(&victim, bed, VICTIM_HOLDER, NOW_MS + 1000);
    case OPERATION_UNLOCK:
        shmq_owner_unlock(entry, bed->place, VICTIM_HOLDER);
        return false;
    case OPERATION_FREE:
        shmq_owner_free(entry, bed->place);
        return false;
    default:
        return shmq_owner_take(&victim, entry, bed->place);
    }
}

static void start(void *argument)
{
    struct bed *bed = argument;
    atomic_store(&bed->notes->given, act(bed));
    atomic_store(&bed->notes->done, 1);
}

static bool member_takes(struct bed *bed, uint32_t member)
{
    struct shmq_store *store = &bed->arena.store;
    store->client = bed->members[member];
    return shmq_owner_take(store, entry_of(bed), bed->place);
}

/* How many of the others are given the queue. */
static uint32_t others_want(struct bed *bed, uint64_t now_ms)
{
    const bool first = member_takes(bed, 0);
    return first + member_takes(bed, 1) + lock(&bed->arena.store, bed, OTHER_HOLDER, now_ms);
}

/* ---- the cases ----------------------------------------------------------------------------------- */
static void check_stopped(struct bed *bed, pid_t child, uint64_t at)
{
    struct verdict *verdict = &bed->verdict;
    /* A member that was the owner and "takes" the queue once more is no other. */
    const uint32_t owned = bed->operation == OPERATION_TAKE_LIVE;
    if (bed->operation == OPERATION_LEAVE || bed->operation == OPERATION_UNLOCK) {
        shmq_owner_free(entry_of(bed), bed->place);
    }
    const uint32_t won = others_want(bed, NOW_MS);
    const uint64_t word = atomic_load(&entry_of(bed)->owner);
    trace_end(child, false);
    const uint64_t after = atomic_load(&entry_of(bed)->owner);
    const uint32_t given = atomic_load(&bed->notes->given);
    bed->others_won += won - owned;
    bed->victim_won += given;
    if (atomic_load(&bed->notes->done) == 0) {
        verdict_add(verdict, 10, "stopped at %" PRIu64 ": it did not come to its end", at);
    } else if (won + given > 1) {
        verdict_add(verdict, 10, "stopped at %" PRIu64 ": %u others and the victim (%u) read it", at, won, given);
    } else if (won + given == 0) {
        verdict_add(verdict, 10, "stopped at %" PRIu64 ": it was given to none of them", at);
    } else if (bed->operation == OPERATION_FREE ? after != 0 && (after != word || at == 0) : won == 1 && after != word) {
        verdict_add(verdict, 10, "stopped at %" PRIu64 ": owner %" PRIx64 " became %" PRIx64, at, word, after);
    }
}

/* The victim's slot is taken back; another client of the same slot does what it did. */
static void check_lost(struct bed *bed, pid_t child, uint64_t at)
{
    struct verdict *verdict = &bed->verdict;
    struct shmq_store *store = &bed->arena.store;
    struct shmq_client *slot = &store->clients[VICTIM_SLOT];
    struct shmq_offset *entry = entry_of(bed);
    const uint64_t lost = shmq_client_word(store, VICTIM_SLOT);
    const bool had = atomic_load(&entry->owner) == lost, is_back = bed->operation == OPERATION_TAKE_BACK;
    int posts;
    shmq_client_drop(store, VICTIM_SLOT);
    if (!is_back) {
        store->client = client_of(store, store->self_pid, store->self_start);
        ARENA_MUST(shmq_client_slot(store->client) == VICTIM_SLOT && store->client != lost);
        ARENA_MUST(shmq_owner_take(store, entry, bed->place));
        ARENA_MUST(shmq_owner_commit(store, entry, bed->place, NEWCOMER_OFFSET));
        atomic_store(&slot->state, SHMQ_CLIENT_ASLEEP);
        atomic_store(&slot->errand, NEWCOMER_ERRAND);
        ARENA_MUST(sem_post(&bed->notes->semaphore) == 0);
    }
    trace_end(child, false);
    const uint64_t word = atomic_load(&entry->owner);
    const uint32_t given = atomic_load(&bed->notes->given);
    ARENA_MUST(sem_getvalue(&bed->notes->semaphore, &posts) == 0);
    bed->others_won += !is_back;
    bed->victim_won += given;
    if (atomic_load(&bed->notes->done) == 0) {
        verdict_add(verdict, 10, "stopped at %" PRIu64 ": it did not come to its end", at);
    } else if ((given && !had) || (is_back ? !given && word == lost : word != store->client)) {
        verdict_add(verdict, 10, "stopped at %" PRIu64 ": the victim (%u) made the owner %" PRIx64, at, given, word);
    } else if (!is_back && atomic_load(&entry->committed) != NEWCOMER_OFFSET + 1) {
        verdict_add(verdict, 10, "stopped at %" PRIu64 ": the offset became %" PRIu64, at, atomic_load(&entry->committed));
    } else if (!is_back && (atomic_load(&slot->state) != SHMQ_CLIENT_ASLEEP ||
                            atomic_load(&slot->errand) != NEWCOMER_ERRAND || posts != 1)) {
        verdict_add(verdict, 10, "stopped at %" PRIu64 ": state %u, errand %" PRIu64 ", %d posts", at,
                    atomic_load(&slot->state), atomic_load(&slot->errand), posts);
    }
}

static void check_killed(struct bed *bed, pid_t child, uint64_t at)
{
    trace_end(child, true);
    uint32_t won = others_want(bed, NOW_MS);
    if (won == 0) {
        won = others_want(bed, NOW_MS + 1000 + LIFE_MS + 128); /* the lock of the dead is over */
    }
    if (won != 1) {
        verdict_add(&bed->verdict, 10, "killed at %" PRIu64 ": %u others read it", at, won);
    }
}

static void run_case(struct bed *bed, const uint8_t *origin, uint64_t at, bool kills)
{
    arena_restore(&bed->arena, origin);
    memset(bed->notes, 0, sizeof *bed->notes);
    ARENA_MUST(sem_init(&bed->notes->semaphore, 1, 0) == 0);
    pid_t child = trace_spawn(prepare, start, bed);
    if (!trace_run_along(child, &bed->path, at)) {
        trace_end(child, true);
        return;
    }
    bed->cases++;
    if (kills) {
        check_killed(bed, child, at);
    } else if (bed->operation >= OPERATION_TAKE_LOST) {
        check_lost(bed, child, at);
    } else {
        check_stopped(bed, child, at);
    }
}

uint64_t operation_run(uint32_t operation, uint64_t stride, uint64_t seed)
{
    static struct bed bed;
    memset(&bed, 0, sizeof bed);
    bed.notes = mmap(NULL, SHMQ_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ARENA_MUST(bed.notes != MAP_FAILED);
    bed_open(&bed, (enum operation)operation);
    uint8_t *origin = malloc(arena_snapshot_bytes(&bed.arena));
    ARENA_MUST(origin != NULL);
    arena_save(&bed.arena, origin);
    ARENA_MUST(sem_init(&bed.notes->semaphore, 1, 0) == 0);
    trace_record(trace_spawn(prepare, start, &bed), &bed.notes->done, &bed.path);
    for (uint64_t at = seed % stride; at < bed.path.count; at += stride) {
        run_case(&bed, origin, at, false);
        run_case(&bed, origin, at, true);
    }
    printf("{\"operation\": \"%s\", \"instructions\": %" PRIu64 ", \"cases\": %" PRIu64 ", \"others_won\": %" PRIu64
           ", \"victim_won\": %" PRIu64 ", \"violations\": %" PRIu64 ", \"first\": \"%s\"}\n",
           operation_names[operation], bed.path.count, bed.cases, bed.others_won, bed.victim_won, bed.verdict.violations,
           bed.verdict.first);
    fflush(stdout);
    free(bed.path.addresses);
    free(origin);
    munmap(bed.notes, SHMQ_PAGE_BYTES);
    arena_destroy(&bed.arena);
    return bed.verdict.violations;
}
