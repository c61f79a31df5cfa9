/* Every descriptor of the core lies above 2, also in a program that was started without descriptor 0, 1 or 2.
 *
 * The kernel gives away the lowest number that is free. A log file that becomes descriptor 1 is written over by the next
 * line that anything in the process prints, and a descriptor that is moved up after it was opened is too late by a moment
 * in which another thread may print. So what is missing of 0 to 2 is occupied while something is opened:
 *
 *   shmq_standard_hold      open(O_PATH) on the free ones of 0, 1, 2: reading and writing them fails with EBADF, as before
 *   open, sem_open, …       gets 3 or more
 *   shmq_standard_release   the last holder closes what is still ours of them
 *
 * A program's own descriptors stay its own: afterwards 0 to 2 are as missing as they were, and what the program has put
 * there meanwhile stays.
 *
 * Invariants:
 *   (1) `ours` names only descriptors that a holder opened; one is closed only while it is still an O_PATH descriptor;
 *   (2) the lock word is the pid of its holder, so a child that was forked while another thread held it takes it over.
 */
#include <fcntl.h>
#include <sched.h>

#include "core/files/files.h"

#define STANDARD_COUNT 3

static _Atomic pid_t locked_by;
static struct {
    pid_t process;
    unsigned holders;
    bool ours[STANDARD_COUNT];
} held;

static void lock(void)
{
    const pid_t self = getpid();
    pid_t seen = 0;
    while (!atomic_compare_exchange_weak_explicit(&locked_by, &seen, self, memory_order_acquire, memory_order_relaxed)) {
        if (seen == self) {
            sched_yield();
            seen = 0;
        }
    }
    if (held.process != self) { /* a child has no other thread; what its parent occupied is open here, too */
        held.process = self;
        held.holders = 0;
    }
}

static void unlock(void)
{
    atomic_store_explicit(&locked_by, 0, memory_order_release);
}

void shmq_standard_hold(void)
{
    const int reason = errno;
    lock();
    held.holders++;
    for (int number = 0; number < STANDARD_COUNT; number++) {
        if (fcntl(number, F_GETFD) < 0) {
            const int fd = open("/dev/null", O_PATH | O_CLOEXEC);
            if (fd >= STANDARD_COUNT) {
                close(fd); /* another thread was faster */
            } else if (fd >= 0) {
                held.ours[fd] = true;
            }
        }
    }
    unlock();
    errno = reason;
}

void shmq_standard_release(void)
{
    const int reason = errno;
    lock();
    if (held.holders > 0 && --held.holders == 0) {
        for (int number = 0; number < STANDARD_COUNT; number++) {
            const int flags = held.ours[number] ? fcntl(number, F_GETFL) : -1;
            if (flags >= 0 && (flags & O_PATH) != 0) {
                close(number);
            }
            held.ours[number] = false;
        }
    }
    unlock();
    errno = reason;
}

int shmq_open_at(int directory, const char *path, int flags)
{
    shmq_standard_hold();
    int fd = openat(directory, path, flags | O_CLOEXEC | O_NONBLOCK); /* a FIFO in the place of a file is waited for otherwise */
    if (fd >= 0 && fd < STANDARD_COUNT) { /* the program closed that number in this very moment */
        const int low = fd;
        fd = fcntl(low, F_DUPFD_CLOEXEC, STANDARD_COUNT);
        const int reason = errno;
        close(low);
        errno = reason;
    }
    shmq_standard_release();
    return fd;
}
