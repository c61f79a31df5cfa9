/* A store of our own for the C figures: three memfd segments, one preallocated CommitLog file, no daemon.
 *
 * Owns nothing of the protocol: everything goes through bindings/shmq.h. It stands in for the keeper in one respect: the
 * file exists at full size and its pages are in the page cache before the first append; page-table entries are not.
 */
#ifndef ARENA_H
#define ARENA_H

#include "shmq.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define ARENA_FILE_BYTES (UINT64_C(1) << 30)
#define ARENA_TOPIC "bench"
#define ARENA_QUEUES 8u
#ifndef ARENA_CLIENTS
#define ARENA_CLIENTS 64
#endif
#define ARENA_DEADLINE_NS (UINT64_C(5) * 1000 * 1000 * 1000)

struct arena {
    struct shmq_store store;
    struct shmq_layout layout;
    void *control, *units, *readers;
    int units_fd;
    uint32_t queues[ARENA_QUEUES];
};

static inline void arena_check(bool holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "%s failed (errno %d: %s)\n", what, errno, strerror(errno));
    exit(1);
}

static inline uint64_t arena_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void *arena_segment(const char *name, uint64_t bytes, int *descriptor) {
    int fd = memfd_create(name, MFD_CLOEXEC);
    arena_check(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0, name);
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    arena_check(map != MAP_FAILED, name);
    if (descriptor) *descriptor = fd;
    else close(fd);
    return map;
}

static inline void arena_file(const char *directory) {
    char path[1200];
    snprintf(path, sizeof path, "%s/commitlog", directory);
    arena_check(mkdir(path, 0750) == 0 || errno == EEXIST, "creating the commitlog directory");
    snprintf(path, sizeof path, "%s/commitlog/%020d", directory, 0);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0640);
    arena_check(fd >= 0 && posix_fallocate(fd, 0, (off_t)ARENA_FILE_BYTES) == 0, "allocating the CommitLog file");
    void *map = mmap(NULL, ARENA_FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    arena_check(map != MAP_FAILED, "mapping the CommitLog file");
    arena_check(madvise(map, ARENA_FILE_BYTES, MADV_POPULATE_WRITE) == 0, "populating the CommitLog file");
    munmap(map, ARENA_FILE_BYTES);
    close(fd);
}

/* Another attachment of the calling process to the same memory (after fork, say). */
static inline void arena_attach(struct arena *arena) {
    memset(&arena->store, 0, sizeof arena->store);
    enum shmq_status status = shmq_store_attach(&arena->store, arena->control, arena->layout.control_bytes, arena->units,
                                                arena->layout.units_bytes, arena->readers, arena->layout.readers_bytes,
                                                true, arena->units_fd, &shmq_io_posix);
    arena_check(status == SHMQ_OK, "attaching the store");
}

static inline void arena_open(struct arena *arena, const char *directory) {
    char broker[32]; /* part of the names of semaphores */
    snprintf(broker, sizeof broker, "bench%d", (int)getpid());
    struct shmq_format_options options = {
        .sizes = {.file_bytes = ARENA_FILE_BYTES, .topic_max = 64, .queue_max = 1024, .frame_max = 65536,
                  .client_max = ARENA_CLIENTS, .group_max = 64, .offset_max = 1024},
        .generation = 1, .store_host = {127, 0, 0, 1, 0, 0, 0, 0},
        .broker_name = broker, .store_path = directory, .frame_ready = 65536,
    };
    memset(arena, 0, sizeof *arena);
    arena_check(shmq_layout_compute(&options.sizes, &arena->layout) == SHMQ_OK, "computing the layout");
    arena->control = arena_segment("control", arena->layout.control_bytes, NULL);
    arena->units = arena_segment("units", arena->layout.units_bytes, &arena->units_fd);
    arena->readers = arena_segment("readers", arena->layout.readers_bytes, NULL);
    arena_check(madvise(arena->units, arena->layout.units_bytes, MADV_POPULATE_WRITE) == 0, "populating the units");
    arena_file(directory);
    arena_check(shmq_store_format(arena->control, arena->readers, &options) == SHMQ_OK, "formatting the store");
    arena_attach(arena);
    atomic_store(&arena->store.log->allocated_end, ARENA_FILE_BYTES);
    uint32_t topic = SHMQ_NONE;
    enum shmq_status status =
        shmq_topic_put(&arena->store, ARENA_TOPIC, ARENA_QUEUES, ARENA_QUEUES, 6, 0, 0, &topic);
    arena_check(status == SHMQ_OK, "creating the topic");
    for (uint32_t id = 0; id < ARENA_QUEUES; id++) arena->queues[id] = shmq_topic_queue(&arena->store, topic, id);
}

static inline struct shmq_spec arena_spec(const void *body, uint32_t bytes, uint32_t queue_id) {
    static const char properties[] = "UNIQ_KEY\0017F00000100000000000000000000002A\002WAIT\001true\002";
    return (struct shmq_spec){
        .body = body, .body_bytes = bytes, .topic = ARENA_TOPIC, .topic_bytes = sizeof ARENA_TOPIC - 1,
        .properties = properties, .properties_bytes = sizeof properties - 1, .queue_id = queue_id,
        .born_ms = 1, .born_host = {127, 0, 0, 1, 0, 0, 0, 0}, .store_host = {127, 0, 0, 1, 0, 0, 0, 0},
    };
}

static inline int arena_order(const void *left, const void *right) {
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

/* Nearest rank, as shmq.measurement.measure.percentile. */
static inline uint64_t arena_percentile(const uint64_t *ordered, size_t count, double share) {
    size_t rank = (size_t)(share * (double)count);
    if ((double)rank < share * (double)count) rank++;
    return ordered[rank == 0 ? 0 : rank - 1];
}

#endif
