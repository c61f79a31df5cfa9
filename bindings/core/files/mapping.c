/* Mapped CommitLog files of this process: a small cache, reference counts, and page tables filled ahead of the writer.
 *
 * A file is mapped whole and never unmapped while a view of it lives; retention unlinks names, so a mapping stays
 * readable after its file is gone from the directory. Nothing here is shared between processes. Where the file may not be
 * opened for writing, because its file system was mounted read-only after an error, it is mapped for reading only.
 *
 * Files are opened in the directory that the head names by device and inode, and that this process holds from when it
 * attached. A store or a commitlog/ that is moved away stays ours under any name, and what takes its path, a copy of an
 * earlier hour, is ours under none: what one process stored there, no other would find.
 *
 * Processes that run all day (bridge and keeper) drop their page-table entries more than 32 MiB behind the log end once
 * a second: the bytes stay in the file, but the entries count as their memory.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/files/files.h"

/* One madvise in so many bytes: short enough to stay in cache reach, rare enough (one append in thousands) to stay
 * outside the 99.9th percentile. */
#define POPULATE_BYTES (2u << 20)
/* For long records, which would pay for such a call at every second append. */
#define POPULATE_LONG_BYTES (16u << 20)

/* What one open file makes present ahead of the log end. Ahead of a sequence of faults the kernel makes pages in pieces,
 * each larger than the one before, and where the disk reads far ahead they come to 2 MiB; it counts the steps for each
 * open file. Free memory in pieces of 2 MiB is what a virtual machine gives back to its host: each page of them costs a
 * fault there, ten times the price of a page that the machine still has. A file that is opened anew begins with single
 * pages, and a disk that reads 8 MiB ahead has come to pieces of 1 MiB when so much is present. */
#define PIECE_BYTES (UINT64_C(32) << 20)

/* Behind the log end, what shmq_mapping_forget leaves alone: consumers that keep up read there. */
#define KEPT_BYTES (UINT64_C(32) << 20)

struct shmq_mapping *shmq_mapping_hold(struct shmq_mapping *mapping)
{
    atomic_fetch_add_explicit(&mapping->references, 1, memory_order_relaxed);
    return mapping;
}

void shmq_mapping_release(struct shmq_mapping *mapping)
{
    if (atomic_fetch_sub_explicit(&mapping->references, 1, memory_order_acq_rel) == 1) {
        mapping->io->unmap(mapping->data, mapping->bytes);
        mapping->io->close(mapping->fd);
        free(mapping);
    }
}

static bool is_log_directory(const struct shmq_store *store, int fd)
{
    const struct shmq_identity *named = &store->head->log_directory;
    uint64_t device = 0, inode = 0;
    return store->io->identity(fd, &device, &inode) == 0 && device == shmq_load_acquire(&named->device) &&
           inode == shmq_load_acquire(&named->inode);
}

bool shmq_log_directory_hold(struct shmq_store *store)
{
    const bool is_named = shmq_load_acquire(&store->head->log_directory.inode) != 0;
    if (is_named && is_log_directory(store, store->log_directory)) {
        return true;
    }
    char path[1400];
    /* The width is a bound: shared memory may have lost its final zero since it was checked. */
    snprintf(path, sizeof path, "%.1023s/commitlog", store->head->store_path);
    const int fd = store->io->open(AT_FDCWD, path, O_PATH | O_DIRECTORY);
    if (fd >= 0 && is_named && !is_log_directory(store, fd)) {
        store->io->close(fd);
        errno = ESTALE;
        return false;
    }
    if (fd >= 0 && store->log_directory >= 0) {
        store->io->close(store->log_directory);
    }
    store->log_directory = fd >= 0 ? fd : store->log_directory;
    return fd >= 0;
}

bool shmq_set_log_directory(struct shmq_store *store, int directory)
{
    uint64_t device = 0, inode = 0;
    if (store->io->identity(directory, &device, &inode) != 0) {
        return false;
    }
    atomic_store_explicit(&store->head->log_directory.device, device, memory_order_release);
    atomic_store_explicit(&store->head->log_directory.inode, inode, memory_order_release);
    return true;
}

static int open_file(struct shmq_store *store, uint64_t base, bool writable)
{
    char name[24];
    snprintf(name, sizeof name, "%020" PRIu64, base);
    return shmq_log_directory_hold(store) ? store->io->open(store->log_directory, name, writable ? O_RDWR : O_RDONLY) : -1;
}

int shmq_log_file_open(struct shmq_store *store, uint64_t log_position)
{
    return open_file(store, log_position - log_position % store->sizes.file_bytes, false);
}

static struct shmq_mapping *map_file(struct shmq_store *store, uint64_t base, bool writable)
{
    int fd = open_file(store, base, writable);
    if (fd < 0) {
        return NULL;
    }
    uint64_t bytes = 0;
    struct shmq_mapping *mapping = NULL;
    /* A file shorter than promised would answer a store with SIGBUS. */
    if (store->io->file_bytes(fd, &bytes) != 0 || bytes != store->sizes.file_bytes) {
        errno = EUCLEAN;
    } else if ((mapping = calloc(1, sizeof *mapping)) != NULL) {
        mapping->data = store->io->map(fd, 0, bytes, writable);
        mapping->base = base;
        mapping->bytes = bytes;
        mapping->writable = writable;
        mapping->fd = fd;
        mapping->io = store->io;
        atomic_init(&mapping->references, 1);
        if (mapping->data != NULL) {
            return mapping;
        }
        free(mapping);
    }
    int reason = errno;
    store->io->close(fd);
    errno = reason;
    return NULL;
}

static struct shmq_mapping *cached(const struct shmq_store *store, uint64_t log_position)
{
    uint64_t number = log_position / store->sizes.file_bytes;
    struct shmq_mapping *mapping = store->mappings[number % SHMQ_MAPPING_CACHE];
    return mapping != NULL && mapping->base == number * store->sizes.file_bytes ? mapping : NULL;
}

struct shmq_mapping *shmq_mapping_cached_writable(const struct shmq_store *store, uint64_t log_position)
{
    struct shmq_mapping *mapping = cached(store, log_position);
    return mapping != NULL && mapping->writable ? mapping : NULL;
}

/* Takes the place of what the cache has for that file number. */
static struct shmq_mapping *cache(struct shmq_store *store, struct shmq_mapping *mapping)
{
    /* Files that retention has deleted give their blocks back only when no process maps them. */
    uint64_t begin = shmq_load_acquire(&store->log->begin);
    for (size_t i = 0; i < SHMQ_MAPPING_CACHE; i++) {
        if (store->mappings[i] != NULL && store->mappings[i]->base + store->mappings[i]->bytes <= begin) {
            shmq_mapping_release(store->mappings[i]);
            store->mappings[i] = NULL;
        }
    }
    struct shmq_mapping **place = &store->mappings[mapping->base / store->sizes.file_bytes % SHMQ_MAPPING_CACHE];
    if (*place != NULL) {
        shmq_mapping_release(*place);
    }
    *place = mapping;
    return mapping;
}

struct shmq_mapping *shmq_mapping_get(struct shmq_store *store, uint64_t log_position)
{
    const uint64_t base = log_position - log_position % store->sizes.file_bytes;
    struct shmq_mapping *mapping = cached(store, log_position);
    if (mapping == NULL) {
        mapping = map_file(store, base, store->writable);
        if (mapping == NULL && store->writable && errno == EROFS) {
            mapping = map_file(store, base, false);
        }
        mapping = mapping != NULL ? cache(store, mapping) : NULL;
    }
    return mapping;
}

struct shmq_mapping *shmq_mapping_get_writable(struct shmq_store *store, uint64_t log_position)
{
    struct shmq_mapping *mapping = shmq_mapping_cached_writable(store, log_position);
    if (mapping == NULL) {
        mapping = map_file(store, log_position - log_position % store->sizes.file_bytes, true);
        mapping = mapping != NULL ? cache(store, mapping) : NULL;
    }
    return mapping;
}

void shmq_mapping_drop(struct shmq_store *store, uint64_t position)
{
    for (size_t i = 0; i < SHMQ_MAPPING_CACHE; i++) {
        if (store->mappings[i] != NULL && store->mappings[i]->base >= position) {
            shmq_mapping_release(store->mappings[i]);
            store->mappings[i] = NULL;
        }
    }
}

static void populate_write(const struct shmq_store *store, const struct shmq_mapping *mapping, uint64_t from,
                           uint64_t until)
{
    const enum shmq_populate how = shmq_has_sync(store) ? SHMQ_POPULATE_WRITE_SMALL : SHMQ_POPULATE_WRITE;
    (void)mapping->io->populate(mapping->data + from, until - from, how);
}

static void populate_piece(struct shmq_store *store, const struct shmq_mapping *mapping, uint64_t from,
                           uint64_t bytes)
{
    const int fd = open_file(store, mapping->base, true);
    uint8_t *pages = fd < 0 ? NULL : mapping->io->map(fd, from, bytes, true);
    if (pages != NULL) {
        (void)mapping->io->populate(pages, bytes, SHMQ_POPULATE_WRITE);
        mapping->io->unmap(pages, bytes);
    }
    if (fd >= 0) {
        mapping->io->close(fd);
    }
}

void shmq_mapping_make_present(struct shmq_store *store, const struct shmq_mapping *mapping, uint64_t from,
                               uint64_t until)
{
    /* With synchronous flush pages are made one by one, without reading ahead. */
    for (uint64_t at = from; at < until && !shmq_has_sync(store); at += PIECE_BYTES) {
        populate_piece(store, mapping, at, until - at < PIECE_BYTES ? until - at : PIECE_BYTES);
    }
    populate_write(store, mapping, from, until); /* finds them; makes those that the file anew did not */
}

void shmq_mapping_populate(const struct shmq_store *store, struct shmq_mapping *mapping, uint64_t log_position,
                           uint64_t bytes)
{
    uint64_t from = log_position - mapping->base;
    uint64_t until = from + bytes + SHMQ_RECORD_BLANK_BYTES;
    if (until <= mapping->populated || !mapping->writable) {
        return;
    }
    /* The creator of the store reserved the blocks, so this cannot run into a full disk; where the kernel does not
     * know the advice, the first store to each page faults as usual. */
    uint64_t start = (from > mapping->populated ? from : mapping->populated) / SHMQ_PAGE_BYTES * SHMQ_PAGE_BYTES;
    uint64_t end = until + (bytes > SHMQ_LONG_BYTES ? POPULATE_LONG_BYTES : POPULATE_BYTES);
    if (shmq_has_sync(store)) {
        /* What is made ready for a store is dirty: every flush would write it, and take it back from each process that
         * had it made. So nothing ahead, and a record within its page meets one fault (room.c takes it). */
        if (bytes <= SHMQ_PAGE_BYTES) {
            return;
        }
        end = until + SHMQ_PAGE_BYTES - 1;
    }
    end = end > mapping->bytes ? mapping->bytes : end / SHMQ_PAGE_BYTES * SHMQ_PAGE_BYTES;
    if (end > start) {
        populate_write(store, mapping, start, end);
        mapping->populated = end;
    }
}

void shmq_mapping_populate_read(struct shmq_mapping *mapping, uint64_t log_position, uint64_t bytes)
{
    uint64_t from = log_position - mapping->base, until = from + bytes;
    if (bytes <= SHMQ_LONG_BYTES || until <= mapping->populated_read || until > mapping->bytes) {
        return;
    }
    /* One call instead of a fault for each 64 KiB; the bytes are there, only our page table does not know it. */
    uint64_t start = (from > mapping->populated_read ? from : mapping->populated_read) / SHMQ_PAGE_BYTES * SHMQ_PAGE_BYTES;
    (void)mapping->io->populate(mapping->data + start, until - start, SHMQ_POPULATE_READ);
    mapping->populated_read = until;
}

void shmq_mapping_forget(struct shmq_store *store)
{
    uint64_t end = shmq_load_acquire(&store->log->end);
    uint64_t below = end > KEPT_BYTES ? (end - KEPT_BYTES) / SHMQ_PAGE_BYTES * SHMQ_PAGE_BYTES : 0;
    for (size_t i = 0; i < SHMQ_MAPPING_CACHE; i++) {
        struct shmq_mapping *mapping = store->mappings[i];
        if (mapping != NULL && mapping->base < below) {
            uint64_t bytes = below - mapping->base;
            (void)store->io->forget(mapping->data, bytes < mapping->bytes ? bytes : mapping->bytes);
        }
    }
}
