/* Sleep and wake at their named points, where chance seldom leads.
 *
 *   wait.looked    the sleeper has looked and found nothing, its hand is not up: a message comes now
 *   wait.raised    its hand is up, it has not looked again: a message comes now
 *                  (each for the thread that waits on the semaphore, and for one that sleeps behind it)
 *   wake.taken     the writer has taken the waiter bits and is killed
 *   wake.promised  the writer has said that it will post and is killed
 *
 * The first two must end the wait at once, the last two after one slice. Prints one JSON line a case, exit status 1 when a
 * message was not noticed before the deadline.
 *
 *   wake_points WATCHDOG_MS
 */
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "check.h"

#ifndef SHMQ_TEST_POINTS
#error "compile with -DSHMQ_TEST_POINTS"
#endif

#define SLOT 0u
#define SLICE_NS UINT64_C(50000000)

static struct arena arena;
static struct shmq_store waiting, writing;
static uint64_t watchdog_ns;
static _Thread_local const char *armed; /* the point this thread acts on, once */
static bool die_there;
static _Atomic uint32_t failures;

static uint64_t after(uint64_t ns)
{
    return shmq_io_posix.monotonic_ns() + ns;
}

static void append_and_wake(uint32_t queue)
{
    uint8_t body[16];
    struct message message = {.id = 1, .queue = queue, .body_bytes = sizeof body};
    struct shmq_spec spec = message_spec(&message, body);
    struct shmq_appended out;
    ARENA_MUST(shmq_append(&writing, queue, &spec, 1, after(watchdog_ns), &out) == SHMQ_OK);
    shmq_wake(&writing, queue);
}

void shmq_test_point(const char *name)
{
    if (armed == NULL || strcmp(name, armed) != 0) {
        return;
    }
    armed = NULL;
    if (die_there) {
        raise(SIGKILL);
    }
    append_and_wake(0);
}

static void tell(const char *name, const char *who, bool noticed)
{
    printf("{\"case\": \"%s\", \"who\": \"%s\", \"noticed\": %s}\n", name, who, noticed ? "true" : "false");
    fflush(stdout);
    atomic_fetch_add(&failures, !noticed);
}

/* Wait on queue 0 for what the point appends. */
static bool wait_with(const char *point)
{
    uint32_t queue = 0;
    uint64_t offset = shmq_load_acquire(&waiting.queues[0].offset_max);
    armed = point;
    enum shmq_status status = shmq_wait(&waiting, &queue, &offset, 1, 0, after(watchdog_ns));
    bool passed = armed == NULL;
    armed = NULL;
    return passed && status == SHMQ_OK;
}

static void message_for_the_leader(const char *point)
{
    tell(point, "leader", wait_with(point));
}

static void *lead(void *argument)
{
    uint32_t queue = 3; /* nothing comes here but a nudge at the end */
    uint64_t offset = 0;
    (void)argument;
    (void)shmq_wait(&waiting, &queue, &offset, 1, 0, after(2 * watchdog_ns));
    return NULL;
}

static void await_asleep(void)
{
    uint64_t until = after(watchdog_ns);
    while (atomic_load(&waiting.clients[SLOT].state) != SHMQ_CLIENT_ASLEEP && shmq_io_posix.monotonic_ns() < until) {
        sched_yield();
    }
}

static void message_for_a_follower(const char *point)
{
    pthread_t leader;
    ARENA_MUST(pthread_create(&leader, NULL, lead, NULL) == 0);
    await_asleep();
    bool noticed = wait_with(point);
    shmq_wake_own(&waiting);
    pthread_join(leader, NULL);
    tell(point, "follower", noticed);
}

static void writer_dies_at(const char *point)
{
    int status;
    uint32_t queue = 0;
    uint64_t offset = shmq_load_acquire(&waiting.queues[0].offset_max), until = after(watchdog_ns);
    fflush(stdout);
    pid_t writer = fork();
    ARENA_MUST(writer >= 0);
    if (writer == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        arena_attach(&arena, &writing, true);
        await_asleep();
        armed = point;
        die_there = true;
        append_and_wake(0);
        _exit(0);
    }
    while (shmq_load_acquire(&waiting.queues[0].offset_max) == offset && shmq_io_posix.monotonic_ns() < until) {
        (void)shmq_wait(&waiting, &queue, &offset, 1, 0, after(SLICE_NS));
    }
    ARENA_MUST(waitpid(writer, &status, 0) == writer);
    bool died = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    tell(point, "sleeper of a dead writer", died && shmq_load_acquire(&waiting.queues[0].offset_max) > offset);
    /* The next message comes through as if nothing had happened. */
    tell(point, "the next message", wait_with("wait.raised"));
}

int main(int argc, char **argv)
{
    char broker[40], name[200];
    uint64_t client;
    watchdog_ns = (argc > 1 ? strtoull(argv[1], NULL, 10) : 5000) * UINT64_C(1000000);
    snprintf(broker, sizeof broker, "points%d", (int)getpid());
    const struct arena_options options = {
        .file_bytes = 1 << 20, .file_count = 2, .frame_max = 64, .frame_ready = 64, .broker_name = broker};
    arena_create(&arena, &options);
    arena_attach(&arena, &writing, true);
    arena_attach_reader(&arena, &waiting);
    ARENA_MUST(shmq_client_put(&writing, writing.self_pid, writing.self_start, 3, &client) == SHMQ_OK);
    ARENA_MUST(shmq_client_slot(client) == SLOT);
    waiting.client = client;
    snprintf(name, sizeof name, "/shmq.%s.%016" PRIx64 ".w%u", broker, arena.store.head->generation, SLOT);
    ARENA_MUST(sem_open(name, O_CREAT | O_EXCL, 0600, 0) != SEM_FAILED);
    message_for_the_leader("wait.looked");
    message_for_the_leader("wait.raised");
    message_for_a_follower("wait.looked");
    message_for_a_follower("wait.raised");
    writer_dies_at("wake.taken");
    writer_dies_at("wake.promised");
    sem_unlink(name);
    arena_destroy(&arena);
    return atomic_load(&failures) == 0 ? 0 : 1;
}
