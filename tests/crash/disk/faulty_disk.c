/* A disk that can be slow, full, broken or cut off, put between any process and its files by LD_PRELOAD.
 *
 * One seam serves the C core and Python alike, because both call libc. Files below one directory, the root, are
 * watched; all other calls pass. What the disk would hold after a power cut is kept beside them:
 *
 *     control          one page that tests write and all processes map (struct control)
 *     shadow/INODE     content of a file as of its last sync that succeeded
 *     lost/INODE       one byte a page: 1 where a failed sync lost what had been written (see below)
 *     journal          one line an event, in order:
 *                        set PATH INODE | unset PATH | rename FROM TO INODE | mkdir PATH | rmdir PATH
 *                        sync INODE | syncdir PATH | failed INODE ERRNO
 *
 * A sync that fails leaves the pages clean in the kernel, and what they held never reaches the disk unless it is
 * written again: a later sync answers that all is well. Pages that differ from the shadow at that moment are marked in
 * lost/INODE; pwrite() clears the mark of the pages it touches, a store into a mapping does so when it changed them
 * since (their content of that moment is kept in lost/INODE.content).
 *
 * Every counted call (see `kind`) has a number, the same for the same run; `fail_at` picks one, `fail_after` all from
 * there on. Rules: (1) the lock is robust, because processes are killed while they hold it; (2) the shadow takes what
 * a file held when the sync began, so that nothing counts as durable that was written meanwhile.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096u
#define PATH_BYTES 1024u
#define MAGIC 0x4b534446u

void faulty_disk_attach(void);
void faulty_disk_lock(void);
void faulty_disk_unlock(void);

enum kind { KIND_SYNC, KIND_WRITE, KIND_ALLOCATE, KIND_NAME, KIND_SYNC_DIRECTORY, KIND_OPEN, KIND_READ, KINDS };

struct control {
    _Atomic uint32_t magic;
    uint32_t kinds_failing; /* bit of each kind that `fail_at` counts */
    _Atomic int64_t fail_at; /* the number of the call that fails; 0: none */
    uint32_t fail_errno;
    uint32_t fail_after; /* whether all later ones fail too */
    _Atomic uint64_t failed;
    _Atomic uint64_t counted; /* calls of the failing kinds */
    _Atomic uint64_t calls[KINDS];
    _Atomic uint32_t sync_ms_min;
    _Atomic uint32_t sync_ms_max;
    _Atomic int64_t wall_ms; /* added to the wall clock */
    _Atomic int64_t kill_at; /* the number of the counted call at which its process is killed; 0: none */
    char only[256]; /* faults hit only paths that contain this text */
    pthread_mutex_t mutex;
};

static struct control *control;
static char root[PATH_BYTES], place[PATH_BYTES];
static size_t root_bytes;

#define REAL(name)                                                                                                     \
    ({                                                                                                                 \
        static _Atomic(void *) found_;                                                                                 \
        void *function_ = atomic_load_explicit(&found_, memory_order_relaxed);                                         \
        if (!function_) {                                                                                              \
            function_ = real(#name);                                                                                   \
            atomic_store_explicit(&found_, function_, memory_order_relaxed);                                           \
        }                                                                                                              \
        (__typeof__(&(name)))function_;                                                                                \
    })

static void *real(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) {
        abort();
    }
    return found;
}

/* Called when a process starts under LD_PRELOAD, and by the test process, which loads this file by name. */
__attribute__((constructor)) void faulty_disk_attach(void)
{
    const char *where = getenv("FAULTY_DISK"), *watched = getenv("FAULTY_DISK_ROOT");
    if (control || !where || !watched || strlen(where) >= PATH_BYTES - 64 || strlen(watched) >= PATH_BYTES) {
        return;
    }
    strcpy(place, where);
    strcpy(root, watched);
    root_bytes = strlen(root);
    char path[PATH_BYTES + 64];
    snprintf(path, sizeof path, "%s/control", place);
    int fd = REAL(open)(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        return;
    }
    void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (page == MAP_FAILED) {
        return;
    }
    struct control *found = page;
    uint32_t expected = 0;
    if (atomic_compare_exchange_strong(&found->magic, &expected, 1)) {
        pthread_mutexattr_t attributes;
        pthread_mutexattr_init(&attributes);
        pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
        pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
        pthread_mutex_init(&found->mutex, &attributes);
        atomic_store(&found->magic, MAGIC);
    }
    while (atomic_load(&found->magic) != MAGIC) {
    }
    control = found;
}

/* While a process holds the lock no sync, write or change of a name goes on below the root. */
void faulty_disk_lock(void)
{
    if (pthread_mutex_lock(&control->mutex) == EOWNERDEAD) {
        pthread_mutex_consistent(&control->mutex);
    }
}

void faulty_disk_unlock(void)
{
    pthread_mutex_unlock(&control->mutex);
}

/* The path below the root, or NULL when the file is not watched. */
static const char *watched_path(int directory, const char *path, char *out)
{
    if (!control || !path) {
        return NULL;
    }
    if (path[0] == '/') {
        snprintf(out, PATH_BYTES, "%s", path);
    } else {
        char link[64];
        ssize_t bytes;
        if (directory == AT_FDCWD) {
            bytes = getcwd(out, PATH_BYTES - 1) ? (ssize_t)strlen(out) : -1;
        } else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
            bytes = readlink(link, out, PATH_BYTES - 1);
        }
        if (bytes < 0) {
            return NULL;
        }
        snprintf(out + bytes, PATH_BYTES - (size_t)bytes, "/%s", path);
    }
    return !strncmp(out, root, root_bytes) && (out[root_bytes] == '/' || !out[root_bytes]) ? out + root_bytes : NULL;
}

static const char *watched_fd(int fd, char *out)
{
    char link[64];
    if (!control) {
        return NULL;
    }
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t bytes = readlink(link, out, PATH_BYTES - 1);
    if (bytes <= 0) {
        return NULL;
    }
    out[bytes] = 0;
    return !strncmp(out, root, root_bytes) && (out[root_bytes] == '/' || !out[root_bytes]) ? out + root_bytes : NULL;
}

__attribute__((format(printf, 1, 2))) static void journal(const char *format, ...)
{
    char line[3 * PATH_BYTES], path[PATH_BYTES + 64];
    va_list arguments;
    va_start(arguments, format);
    int bytes = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    snprintf(path, sizeof path, "%s/journal", place);
    int fd = REAL(open)(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0) {
        if (REAL(write)(fd, line, (size_t)bytes) != bytes) {
            abort();
        }
        REAL(close)(fd);
    }
}

/* Count a call; the errno it has to fail with, or 0. */
static int fault(enum kind kind, const char *path)
{
    atomic_fetch_add(&control->calls[kind], 1);
    if (!(control->kinds_failing >> kind & 1u) || (control->only[0] && !strstr(path, control->only))) {
        return 0;
    }
    int64_t number = (int64_t)atomic_fetch_add(&control->counted, 1) + 1;
    if (number == atomic_load(&control->kill_at)) {
        kill(getpid(), SIGKILL);
    }
    int64_t at = atomic_load(&control->fail_at);
    if (!at || (control->fail_after ? number < at : number != at)) {
        return 0;
    }
    atomic_fetch_add(&control->failed, 1);
    return (int)control->fail_errno;
}

struct content {
    uint8_t *bytes;
    size_t size;
};

static struct content content_of(int fd)
{
    struct stat status;
    struct content found = {NULL, 0};
    if (fstat(fd, &status) != 0 || !status.st_size) {
        return found;
    }
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int readable = REAL(open)(link, O_RDONLY | O_CLOEXEC); /* fd may be open for writing only */
    void *mapped = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_SHARED, readable, 0);
    if (mapped == MAP_FAILED) {
        abort();
    }
    REAL(close)(readable);
    found.bytes = mapped;
    found.size = (size_t)status.st_size;
    return found;
}

static struct content content_at(const char *format, ino_t inode)
{
    char path[PATH_BYTES + 64];
    struct content found = {NULL, 0};
    snprintf(path, sizeof path, format, place, (unsigned long)inode);
    int fd = REAL(open)(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        found = content_of(fd);
        REAL(close)(fd);
    }
    return found;
}

static void content_drop(struct content *content)
{
    if (content->bytes) {
        munmap(content->bytes, content->size);
    }
}

static bool page_same(const struct content *left, const struct content *right, size_t at)
{
    static const uint8_t zeros[PAGE];
    size_t one = at < left->size ? left->size - at : 0, other = at < right->size ? right->size - at : 0;
    one = one < PAGE ? one : PAGE;
    other = other < PAGE ? other : PAGE;
    size_t both = one < other ? one : other;
    const uint8_t *longer = one > other ? left->bytes + at : right->bytes + at;
    return !memcmp(left->bytes + at, right->bytes + at, both) &&
           !memcmp(longer + both, zeros, (one > other ? one : other) - both);
}

static int keep_open(const char *format, ino_t inode)
{
    char path[PATH_BYTES + 64];
    snprintf(path, sizeof path, format, place, (unsigned long)inode);
    return REAL(open)(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
}

static void page_put(int fd, const struct content *content, size_t at)
{
    size_t bytes = content->size - at < PAGE ? content->size - at : PAGE;
    if (REAL(pwrite)(fd, content->bytes + at, bytes, (off_t)at) != (ssize_t)bytes) {
        abort();
    }
}

/* Under the lock. What the file holds now is durable, but for the pages that an earlier failure lost. */
static void shadow_take(int fd, ino_t inode)
{
    struct content live = content_of(fd), shadow = content_at("%s/shadow/%lu", inode);
    struct content marks = content_at("%s/lost/%lu", inode), then = content_at("%s/lost/%lu.content", inode);
    int out = keep_open("%s/shadow/%lu", inode);
    if (out < 0 || REAL(ftruncate)(out, (off_t)live.size) != 0) {
        abort();
    }
    for (size_t at = 0; at < live.size; at += PAGE) {
        bool is_lost = at / PAGE < marks.size && marks.bytes[at / PAGE] && page_same(&live, &then, at);
        if (!is_lost && !page_same(&live, &shadow, at)) {
            page_put(out, &live, at);
        }
    }
    REAL(close)(out);
    content_drop(&live);
    content_drop(&shadow);
    content_drop(&marks);
    content_drop(&then);
}

/* Under the lock. What is not in the shadow now never gets there. */
static void pages_lose(int fd, ino_t inode)
{
    struct content live = content_of(fd), shadow = content_at("%s/shadow/%lu", inode);
    int marks = keep_open("%s/lost/%lu", inode), then = keep_open("%s/lost/%lu.content", inode);
    if (marks < 0 || then < 0) {
        abort();
    }
    for (size_t at = 0; at < live.size; at += PAGE) {
        if (!page_same(&live, &shadow, at)) {
            page_put(then, &live, at);
            if (REAL(pwrite)(marks, "\1", 1, (off_t)(at / PAGE)) != 1) {
                abort();
            }
        }
    }
    REAL(close)(marks);
    REAL(close)(then);
    content_drop(&live);
    content_drop(&shadow);
}

static void pages_written(int fd, off_t at, size_t bytes)
{
    struct stat status;
    char path[PATH_BYTES + 64];
    if (!bytes || fstat(fd, &status) != 0) {
        return;
    }
    snprintf(path, sizeof path, "%s/lost/%lu", place, (unsigned long)status.st_ino);
    int marks = REAL(open)(path, O_WRONLY | O_CLOEXEC);
    if (marks < 0) {
        return;
    }
    for (size_t page = (size_t)at / PAGE; page <= ((size_t)at + bytes - 1) / PAGE; page++) {
        if (REAL(pwrite)(marks, "\0", 1, (off_t)page) != 1) {
            abort();
        }
    }
    REAL(close)(marks);
}

/* A new file may get the inode number of one that was removed. */
static void inode_forget(ino_t inode)
{
    static const char *const kept[] = {"%s/shadow/%lu", "%s/lost/%lu", "%s/lost/%lu.content"};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        char path[PATH_BYTES + 64];
        snprintf(path, sizeof path, kept[i], place, (unsigned long)inode);
        REAL(unlinkat)(AT_FDCWD, path, 0);
    }
}

static void delay(void)
{
    uint32_t least = atomic_load(&control->sync_ms_min), most = atomic_load(&control->sync_ms_max);
    if (!most) {
        return;
    }
    struct timespec now;
    REAL(clock_gettime)(CLOCK_MONOTONIC, &now);
    uint32_t ms = most > least ? least + (uint32_t)now.tv_nsec / 1000u % (most - least + 1) : least;
    struct timespec wait = {ms / 1000u, (long)(ms % 1000u) * 1000000L};
    while (nanosleep(&wait, &wait) != 0 && errno == EINTR) {
    }
}

static int disk_sync(int fd, const char *path)
{
    struct stat status;
    if (fstat(fd, &status) != 0) {
        return -1;
    }
    bool is_directory = S_ISDIR(status.st_mode);
    int error = fault(is_directory ? KIND_SYNC_DIRECTORY : KIND_SYNC, path);
    delay();
    faulty_disk_lock();
    if (error) {
        journal("failed %lu %d\n", (unsigned long)status.st_ino, error);
        if (!is_directory) {
            pages_lose(fd, status.st_ino);
        }
    } else if (is_directory) {
        journal("syncdir %s\n", path);
    } else {
        shadow_take(fd, status.st_ino);
        journal("sync %lu\n", (unsigned long)status.st_ino);
    }
    faulty_disk_unlock();
    if (error) {
        errno = error;
        return -1;
    }
    return 0;
}

int fdatasync(int fd)
{
    char buffer[PATH_BYTES];
    const char *path = watched_fd(fd, buffer);
    return path ? disk_sync(fd, path) : REAL(fdatasync)(fd);
}

int fsync(int fd)
{
    char buffer[PATH_BYTES];
    const char *path = watched_fd(fd, buffer);
    return path ? disk_sync(fd, path) : REAL(fsync)(fd);
}

#define FAIL(kind, path)                                                                                               \
    do {                                                                                                               \
        int error_ = fault(kind, path);                                                                                \
        if (error_) {                                                                                                  \
            errno = error_;                                                                                            \
            return -1;                                                                                                 \
        }                                                                                                              \
    } while (0)

static ssize_t disk_pwrite(int fd, const void *data, size_t bytes, off_t at, const char *path)
{
    FAIL(KIND_WRITE, path);
    faulty_disk_lock();
    ssize_t written = REAL(pwrite)(fd, data, bytes, at);
    if (written > 0) {
        pages_written(fd, at, (size_t)written);
    }
    faulty_disk_unlock();
    return written;
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at)
{
    char buffer[PATH_BYTES];
    const char *path = watched_fd(fd, buffer);
    return path ? disk_pwrite(fd, data, bytes, at, path) : REAL(pwrite)(fd, data, bytes, at);
}

ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t at)
{
    return pwrite(fd, data, bytes, (off_t)at);
}

ssize_t write(int fd, const void *data, size_t bytes)
{
    char buffer[PATH_BYTES];
    const char *path = watched_fd(fd, buffer);
    if (!path) {
        return REAL(write)(fd, data, bytes);
    }
    FAIL(KIND_WRITE, path);
    faulty_disk_lock();
    off_t at = lseek(fd, 0, SEEK_CUR);
    ssize_t written = REAL(write)(fd, data, bytes);
    if (written > 0) {
        pages_written(fd, at, (size_t)written);
    }
    faulty_disk_unlock();
    return written;
}

static ssize_t disk_pread(int fd, void *out, size_t bytes, off_t at)
{
    char buffer[PATH_BYTES];
    if (control && control->kinds_failing >> KIND_READ & 1u) {
        const char *path = watched_fd(fd, buffer);
        if (path) {
            FAIL(KIND_READ, path);
        }
    }
    return REAL(pread)(fd, out, bytes, at);
}

ssize_t pread(int fd, void *out, size_t bytes, off_t at)
{
    return disk_pread(fd, out, bytes, at);
}

ssize_t pread64(int fd, void *out, size_t bytes, off64_t at)
{
    return disk_pread(fd, out, bytes, (off_t)at);
}

int posix_fallocate(int fd, off_t at, off_t bytes)
{
    char buffer[PATH_BYTES];
    const char *path = watched_fd(fd, buffer);
    int error = path ? fault(KIND_ALLOCATE, path) : 0;
    return error ? error : REAL(posix_fallocate)(fd, at, bytes);
}

int posix_fallocate64(int fd, off64_t at, off64_t bytes)
{
    return posix_fallocate(fd, (off_t)at, (off_t)bytes);
}

int ftruncate(int fd, off_t bytes)
{
    char buffer[PATH_BYTES];
    const char *path = watched_fd(fd, buffer);
    if (path) {
        FAIL(KIND_ALLOCATE, path);
    }
    return REAL(ftruncate)(fd, bytes);
}

int ftruncate64(int fd, off64_t bytes)
{
    return ftruncate(fd, (off_t)bytes);
}

static int disk_open(int directory, const char *name, int flags, mode_t mode)
{
    char buffer[PATH_BYTES];
    const char *path = watched_path(directory, name, buffer);
    if (!path || !(flags & O_CREAT)) {
        if (path) {
            FAIL(KIND_OPEN, path);
        }
        return REAL(openat)(directory, name, flags, mode);
    }
    FAIL(KIND_NAME, path);
    faulty_disk_lock();
    bool existed = faccessat(directory, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    int fd = REAL(openat)(directory, name, flags, mode);
    struct stat status;
    if (fd >= 0 && !existed && fstat(fd, &status) == 0) {
        inode_forget(status.st_ino);
        journal("set %s %lu\n", path, (unsigned long)status.st_ino);
    }
    faulty_disk_unlock();
    return fd;
}

#define OPEN_MODE(flags, last)                                                                                         \
    mode_t mode = 0;                                                                                                   \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {                                                                           \
        va_list arguments;                                                                                             \
        va_start(arguments, last);                                                                                     \
        mode = va_arg(arguments, mode_t);                                                                              \
        va_end(arguments);                                                                                             \
    }

int open(const char *path, int flags, ...)
{
    OPEN_MODE(flags, flags)
    return disk_open(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    OPEN_MODE(flags, flags)
    return disk_open(AT_FDCWD, path, flags, mode);
}

int openat(int directory, const char *path, int flags, ...)
{
    OPEN_MODE(flags, flags)
    return disk_open(directory, path, flags, mode);
}

int openat64(int directory, const char *path, int flags, ...)
{
    OPEN_MODE(flags, flags)
    return disk_open(directory, path, flags, mode);
}

static int disk_rename(int from_at, const char *from, int to_at, const char *to)
{
    char from_buffer[PATH_BYTES], to_buffer[PATH_BYTES];
    const char *one = watched_path(from_at, from, from_buffer), *other = watched_path(to_at, to, to_buffer);
    if (!one || !other) {
        return REAL(renameat)(from_at, from, to_at, to);
    }
    FAIL(KIND_NAME, other);
    faulty_disk_lock();
    struct stat status;
    int result = REAL(renameat)(from_at, from, to_at, to);
    if (result == 0 && fstatat(to_at, to, &status, AT_SYMLINK_NOFOLLOW) == 0) {
        journal("rename %s %s %lu\n", one, other, (unsigned long)status.st_ino);
    }
    faulty_disk_unlock();
    return result;
}

int rename(const char *from, const char *to)
{
    return disk_rename(AT_FDCWD, from, AT_FDCWD, to);
}

int renameat(int from_at, const char *from, int to_at, const char *to)
{
    return disk_rename(from_at, from, to_at, to);
}

static int disk_link(int from_at, const char *from, int to_at, const char *to, int flags)
{
    char from_buffer[PATH_BYTES], to_buffer[PATH_BYTES];
    const char *one = watched_path(from_at, from, from_buffer), *other = watched_path(to_at, to, to_buffer);
    if (!one || !other) {
        return REAL(linkat)(from_at, from, to_at, to, flags);
    }
    FAIL(KIND_NAME, other);
    faulty_disk_lock();
    struct stat status;
    int result = REAL(linkat)(from_at, from, to_at, to, flags);
    if (result == 0 && fstatat(to_at, to, &status, AT_SYMLINK_NOFOLLOW) == 0) {
        journal("set %s %lu\n", other, (unsigned long)status.st_ino);
    }
    faulty_disk_unlock();
    return result;
}

int link(const char *from, const char *to)
{
    return disk_link(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int linkat(int from_at, const char *from, int to_at, const char *to, int flags)
{
    return disk_link(from_at, from, to_at, to, flags);
}

static int disk_unlink(int directory, const char *name, int flags)
{
    char buffer[PATH_BYTES];
    const char *path = watched_path(directory, name, buffer);
    if (!path) {
        return REAL(unlinkat)(directory, name, flags);
    }
    FAIL(KIND_NAME, path);
    faulty_disk_lock();
    int result = REAL(unlinkat)(directory, name, flags);
    if (result == 0) {
        journal("%s %s\n", flags & AT_REMOVEDIR ? "rmdir" : "unset", path);
    }
    faulty_disk_unlock();
    return result;
}

int unlink(const char *path)
{
    return disk_unlink(AT_FDCWD, path, 0);
}

int unlinkat(int directory, const char *path, int flags)
{
    return disk_unlink(directory, path, flags);
}

int rmdir(const char *path)
{
    return disk_unlink(AT_FDCWD, path, AT_REMOVEDIR);
}

static int disk_mkdir(int directory, const char *name, mode_t mode)
{
    char buffer[PATH_BYTES];
    const char *path = watched_path(directory, name, buffer);
    if (!path) {
        return REAL(mkdirat)(directory, name, mode);
    }
    FAIL(KIND_NAME, path);
    faulty_disk_lock();
    int result = REAL(mkdirat)(directory, name, mode);
    if (result == 0) {
        journal("mkdir %s\n", path);
    }
    faulty_disk_unlock();
    return result;
}

int mkdir(const char *path, mode_t mode)
{
    return disk_mkdir(AT_FDCWD, path, mode);
}

int mkdirat(int directory, const char *path, mode_t mode)
{
    return disk_mkdir(directory, path, mode);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = REAL(clock_gettime)(clock, now);
    if (result == 0 && control && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t ms = atomic_load(&control->wall_ms);
        int64_t ns = now->tv_nsec + ms % 1000 * 1000000;
        now->tv_sec += ms / 1000 + (ns < 0 ? -1 : ns / 1000000000);
        now->tv_nsec = (ns % 1000000000 + 1000000000) % 1000000000;
    }
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    (void)zone;
    struct timespec exact;
    int result = clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return result;
}

time_t time(time_t *out)
{
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (out) {
        *out = exact.tv_sec;
    }
    return exact.tv_sec;
}
