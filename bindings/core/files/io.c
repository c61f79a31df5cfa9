/* The real I/O vtable: every system call on files, and both clocks. A fault harness puts another table in its place.
 *
 * A file is never opened through a symbolic link: log files and segments have exactly one name. A directory may be one.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "core/files/files.h"

static int posix_open(int directory, const char *path, int flags)
{
    return shmq_open_at(directory, path, (flags & O_DIRECTORY) != 0 ? flags : flags | O_NOFOLLOW);
}

static void *posix_map(int fd, uint64_t offset, size_t bytes, bool writable)
{
    void *address = mmap(NULL, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, (off_t)offset);
    return address == MAP_FAILED ? NULL : address;
}

static int posix_forget(void *address, size_t bytes)
{
    return madvise(address, bytes, MADV_DONTNEED);
}

static int posix_populate(void *address, size_t bytes, enum shmq_populate how)
{
    if (how == SHMQ_POPULATE_READ) {
        return madvise(address, bytes, MADV_POPULATE_READ);
    }
    /* Random reads want no read-ahead, which is what makes the large pieces. */
    const bool small = how == SHMQ_POPULATE_WRITE_SMALL && madvise(address, bytes, MADV_RANDOM) == 0;
    const int rc = madvise(address, bytes, MADV_POPULATE_WRITE);
    if (small) {
        const int reason = errno;
        (void)madvise(address, bytes, MADV_NORMAL);
        errno = reason;
    }
    return rc;
}

static int posix_allocate(int fd, uint64_t offset, uint64_t bytes)
{
    return posix_fallocate(fd, (off_t)offset, (off_t)bytes);
}

static ssize_t posix_read_at(int fd, void *out, size_t bytes, uint64_t offset)
{
    return pread(fd, out, bytes, (off_t)offset);
}

static int posix_file_bytes(int fd, uint64_t *bytes)
{
    struct stat status;
    if (fstat(fd, &status) != 0) {
        return -1;
    }
    *bytes = (uint64_t)status.st_size;
    return 0;
}

static int posix_identity(int fd, uint64_t *device, uint64_t *inode)
{
    struct stat status;
    if (fstat(fd, &status) != 0) {
        return -1;
    }
    *device = (uint64_t)status.st_dev;
    *inode = (uint64_t)status.st_ino;
    return 0;
}

static uint64_t posix_wall_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}

static uint64_t posix_monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t posix_boottime_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

const struct shmq_io shmq_io_posix = {
    .open = posix_open,
    .close = close,
    .map = posix_map,
    .unmap = munmap,
    .populate = posix_populate,
    .forget = posix_forget,
    .allocate = posix_allocate,
    .sync_data = fdatasync,
    .read_at = posix_read_at,
    .file_bytes = posix_file_bytes,
    .identity = posix_identity,
    .wall_ms = posix_wall_ms,
    .monotonic_ns = posix_monotonic_ns,
    .boottime_ns = posix_boottime_ns,
};
