/* Claim owners that live though they do not look like it: their memory must never be handed to another process.
 *
 *   first thread ended     /proc calls the process a zombie while its second thread writes the body
 *   no descriptor left     a second owner cannot open /proc at all
 *   hidden by /proc        another user's process under hidepid=2 (needs root)
 *   dead                   the counter-example: it is gone, so its memory is free at once
 *
 * A living owner's claim may only be ended by a hole. Prints one JSON line a case; exit status 1: a wrong end, 77: the last
 * case could not be made on this host.
 */
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "check.h"

#define OWNER_UID 61234
#define OTHER_UID 61235

static struct arena arena;
static _Atomic uint32_t *opened;
static uint32_t wrong;

static uint64_t after(uint64_t ns)
{
    return shmq_io_posix.monotonic_ns() + ns;
}

static void open_claim(void)
{
    struct shmq_store store;
    struct shmq_claim_handle claim;
    arena_attach(&arena, &store, true);
    ARENA_MUST(shmq_claim_open(&store, 2, 1000, 64, after(20000000000), &claim) == SHMQ_OK);
    atomic_store(opened, 1);
}

static void *hold(void *argument)
{
    (void)argument;
    for (;;) {
        pause();
    }
    return NULL;
}

/* The groups too: hidepid spares the group 0. */
static void become(uid_t uid)
{
    ARENA_MUST(uid == 0 || (setgroups(0, NULL) == 0 && setgid(uid) == 0 && setuid(uid) == 0));
}

enum owner { OWNER_PLAIN, OWNER_THREAD, OWNER_OTHER_USER, OWNER_DEAD };

static pid_t start_owner(enum owner kind)
{
    atomic_store(opened, 0);
    pid_t owner = fork();
    ARENA_MUST(owner >= 0);
    if (owner == 0) {
        pthread_t thread;
        become(kind == OWNER_OTHER_USER ? OWNER_UID : 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        open_claim();
        if (kind == OWNER_DEAD) {
            _exit(0);
        }
        ARENA_MUST(pthread_create(&thread, NULL, hold, NULL) == 0);
        if (kind == OWNER_THREAD) {
            pthread_exit(NULL);
        }
        hold(NULL);
    }
    while (atomic_load(opened) == 0) {
        sched_yield();
    }
    return owner;
}

/* Until /proc shows what the case is about. */
static void await_zombie(pid_t owner)
{
    char path[40], text[200];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)owner);
    for (uint64_t until = after(5000000000); shmq_io_posix.monotonic_ns() < until; sched_yield()) {
        int fd = open(path, O_RDONLY);
        ssize_t got = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
        close(fd);
        text[got > 0 ? got : 0] = 0;
        if (strstr(text, ") Z ") != NULL) {
            return;
        }
    }
    arena_die("the first thread did not end");
}

/* Append in a child, as root or as another user, with no descriptor left if the case wants it. */
static void append_beside(bool no_descriptor, uid_t uid)
{
    int status;
    fflush(stdout);
    pid_t child = fork();
    ARENA_MUST(child >= 0);
    if (child == 0) {
        uint8_t body[50];
        struct shmq_store store;
        struct shmq_appended out;
        struct message message = {.id = 1, .queue = 1, .body_bytes = sizeof body};
        struct shmq_spec spec = message_spec(&message, body);
        const struct rlimit none = {0, 0};
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        become(uid);
        arena_attach(&arena, &store, true);
        ARENA_MUST(shmq_mapping_get(&store, 0) != NULL);
        ARENA_MUST(!no_descriptor || setrlimit(RLIMIT_NOFILE, &none) == 0);
        _exit(shmq_append(&store, 1, &spec, 1, after(20000000000), &out) == SHMQ_OK ? 0 : 1);
    }
    ARENA_MUST(waitpid(child, &status, 0) == child);
    wrong += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

static void run_case(const char *name, enum owner kind, bool no_descriptor, uid_t uid)
{
    int status;
    const struct arena_options options = {.file_bytes = 1 << 20, .file_count = 1, .frame_max = 16, .frame_ready = 16};
    arena_create(&arena, &options);
    if (kind == OWNER_OTHER_USER) { /* both users reach the log through its directories */
        char path[400];
        const char *root = getenv("SHMQ_ARENA_ROOT");
        ARENA_MUST(root == NULL || chmod(root, 0755) == 0);
        ARENA_MUST(chmod(arena.directory, 0755) == 0);
        snprintf(path, sizeof path, "%s/commitlog", arena.directory);
        ARENA_MUST(chmod(path, 0755) == 0);
        snprintf(path, sizeof path, "%s/commitlog/%020d", arena.directory, 0);
        ARENA_MUST(chmod(path, 0666) == 0);
    }
    pid_t owner = start_owner(kind);
    if (kind == OWNER_THREAD) {
        await_zombie(owner);
    } else if (kind == OWNER_DEAD) {
        ARENA_MUST(waitpid(owner, &status, 0) == owner);
    }
    append_beside(no_descriptor, uid);
    uint64_t evicted = arena.store.log->claims_evicted;
    bool good = evicted == (kind == OWNER_DEAD ? 0 : 1);
    wrong += !good;
    printf("{\"case\": \"%s\", \"evicted\": %llu, \"good\": %s}\n", name, (unsigned long long)evicted, good ? "true" : "false");
    if (kind != OWNER_DEAD) {
        kill(owner, SIGKILL);
        ARENA_MUST(waitpid(owner, &status, 0) == owner);
    }
    arena_destroy(&arena);
}

/* The mount is seen by this process and its children only. */
static bool hide_processes(void)
{
    return geteuid() == 0 && unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("proc", "/proc", "proc", 0, "hidepid=2") == 0;
}

int main(void)
{
    opened = mmap(NULL, SHMQ_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ARENA_MUST(opened != MAP_FAILED);
    run_case("dead", OWNER_DEAD, false, 0);
    run_case("first thread ended", OWNER_THREAD, false, 0);
    run_case("no descriptor left", OWNER_PLAIN, true, 0);
    bool hidden = hide_processes();
    if (hidden) {
        run_case("hidden by /proc", OWNER_OTHER_USER, false, OTHER_UID);
    }
    return wrong != 0 ? 1 : hidden ? 0 : 77;
}
