/* What the disk and the kernel alone make of synchronous writes: the floor of every figure about them.
 *
 *   disk DIRECTORY one SECONDS            one process: pwrite of the next 4 KiB of a file that was written before, fdatasync
 *   disk DIRECTORY many WAITERS SECONDS   one process does that back to back; WAITERS others draw a number, sleep until a
 *                                         write that began later has been synced, and draw the next
 *
 * One line of JSON: writes a second and their percentiles in nanoseconds, or how many waits a second ended, and by how
 * many syncs. The waiters sleep on one futex word, and all of them are woken after each sync.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, WRITES_MAX = 1 << 20 };
#define FILE_BYTES (UINT64_C(32) << 20)

struct shared {
    _Alignas(64) _Atomic uint64_t drawn;
    _Alignas(64) _Atomic uint64_t synced;
    _Atomic uint32_t turn;
    _Alignas(64) _Atomic uint64_t answered;
    _Atomic bool is_over;
};

static uint64_t times[WRITES_MAX];
static char page[PAGE];

static void check(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "%s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int order(const void *left, const void *right)
{
    const uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

static int file_open(const char *directory)
{
    char path[1200];
    snprintf(path, sizeof path, "%s/bare", directory);
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    check(fd >= 0, path);
    for (uint64_t at = 0; at < FILE_BYTES; at += PAGE) {
        check(pwrite(fd, page, PAGE, (off_t)at) == PAGE, path);
    }
    check(fsync(fd) == 0, path);
    return fd;
}

static void write_synced(int fd, uint64_t number)
{
    memset(page, (int)number, sizeof page);
    check(pwrite(fd, page, PAGE, (off_t)(number * PAGE % FILE_BYTES)) == PAGE, "pwrite");
    check(fdatasync(fd) == 0, "fdatasync");
}

static void run_one(int fd, double seconds)
{
    uint64_t count = 0;
    const uint64_t start = now_ns(), end = start + (uint64_t)(seconds * 1e9);
    for (uint64_t at = start; at < end && count < WRITES_MAX; count++) {
        write_synced(fd, count);
        const uint64_t now = now_ns();
        times[count] = now - at;
        at = now;
    }
    const double spent = (double)(now_ns() - start) / 1e9;
    check(count > 0, "no write ended in time");
    qsort(times, count, sizeof *times, order);
    printf("{\"rate\": %.1f, \"p50\": %" PRIu64 ", \"p99\": %" PRIu64 "}\n", (double)count / spent, times[count / 2],
           times[count - 1 - count / 100]);
}

static void wait_on(struct shared *shared)
{
    uint64_t count = 0;
    while (!atomic_load(&shared->is_over)) {
        const uint64_t number = atomic_fetch_add(&shared->drawn, 1) + 1;
        for (;;) {
            const uint32_t turn = atomic_load(&shared->turn);
            if (atomic_load(&shared->synced) >= number || atomic_load(&shared->is_over)) {
                break;
            }
            (void)syscall(SYS_futex, &shared->turn, FUTEX_WAIT, turn, NULL, NULL, 0);
        }
        count++;
    }
    atomic_fetch_add(&shared->answered, count);
}

static void run_many(int fd, int waiters, double seconds)
{
    struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    check(shared != MAP_FAILED, "mmap");
    for (int i = 0; i < waiters; i++) {
        const pid_t pid = fork();
        check(pid >= 0, "fork");
        if (pid == 0) {
            wait_on(shared);
            _exit(0);
        }
    }
    uint64_t syncs = 0;
    const uint64_t start = now_ns(), end = start + (uint64_t)(seconds * 1e9);
    while (now_ns() < end) {
        const uint64_t target = atomic_load(&shared->drawn);
        if (target > atomic_load(&shared->synced)) {
            write_synced(fd, syncs++);
            atomic_store(&shared->synced, target);
            atomic_fetch_add(&shared->turn, 1);
            (void)syscall(SYS_futex, &shared->turn, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
        }
    }
    atomic_store(&shared->is_over, true);
    const double spent = (double)(now_ns() - start) / 1e9;
    atomic_fetch_add(&shared->turn, 1);
    (void)syscall(SYS_futex, &shared->turn, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    while (wait(NULL) > 0) {
    }
    printf("{\"rate\": %.1f, \"syncs\": %.1f}\n", (double)atomic_load(&shared->answered) / spent, (double)syncs / spent);
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[2], "one") == 0) {
        run_one(file_open(argv[1]), atof(argv[3]));
    } else if (argc == 5 && strcmp(argv[2], "many") == 0) {
        run_many(file_open(argv[1]), atoi(argv[3]), atof(argv[4]));
    } else {
        fprintf(stderr, "usage: %s DIRECTORY one SECONDS | %s DIRECTORY many WAITERS SECONDS\n", argv[0], argv[0]);
        return 2;
    }
    return 0;
}
