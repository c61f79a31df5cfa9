/* Opening a broker's segments by path, for programs in C; the Python face maps descriptors that shmq.shm has checked.
 *
 * Nothing but the permissions of the three files says who may use them: they are the broker's, as its instance.json names
 * them. SysV segments have no paths and are not opened here.
 */
#include <fcntl.h>
#include <stdlib.h>

#include "core/segments/segments.h"

#define SHMQ_TEXT(number) #number
#define SHMQ_VERSION_TEXT(major, minor, patch) SHMQ_TEXT(major) "." SHMQ_TEXT(minor) "." SHMQ_TEXT(patch)

const char *shmq_version(void)
{
    return SHMQ_VERSION_TEXT(SHMQ_VERSION_MAJOR, SHMQ_VERSION_MINOR, SHMQ_VERSION_PATCH);
}

struct shmq_store *shmq_store_open(const char *const paths[3], bool writable, enum shmq_status *status)
{
    const struct shmq_io *io = &shmq_io_posix;
    struct shmq_store *store = calloc(1, sizeof *store);
    void *maps[3] = {NULL};
    uint64_t bytes[3] = {0};
    int units_fd = -1, reason = 0;
    *status = store != NULL ? SHMQ_OK : SHMQ_SYSTEM;
    for (int i = 0; i < 3 && *status == SHMQ_OK; i++) {
        const bool write = writable || i == 2; /* all may write waiter bits and offsets */
        int fd = io->open(AT_FDCWD, paths[i], write ? O_RDWR : O_RDONLY);
        if (fd < 0 || io->file_bytes(fd, &bytes[i]) != 0 || (maps[i] = io->map(fd, 0, bytes[i], write)) == NULL) {
            *status = SHMQ_SYSTEM;
            reason = errno;
        }
        if (i == 1 && writable && *status == SHMQ_OK) {
            units_fd = fd; /* the segment is sparse: unit memory is reserved through it */
        } else if (fd >= 0) {
            io->close(fd);
        }
    }
    if (*status == SHMQ_OK) {
        *status = shmq_store_attach(store, maps[0], bytes[0], maps[1], bytes[1], maps[2], bytes[2], writable, units_fd,
                                    io);
    }
    if (*status == SHMQ_OK) {
        return store;
    }
    for (int i = 0; i < 3; i++) {
        if (maps[i] != NULL) {
            io->unmap(maps[i], bytes[i]);
        }
    }
    if (units_fd >= 0) {
        io->close(units_fd);
    }
    free(store);
    errno = reason;
    return NULL;
}

void shmq_store_close(struct shmq_store *store)
{
    const struct shmq_io *io = store->io;
    shmq_store_detach(store);
    io->unmap(store->control_map, store->control_bytes);
    io->unmap(store->units_map, store->units_bytes);
    io->unmap(store->readers_map, store->readers_bytes);
    if (store->units_fd >= 0) {
        io->close(store->units_fd);
    }
    free(store);
}
