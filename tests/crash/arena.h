/* A small store for crash tests: three memfd segments, a few short log files in a private directory, and snapshots.
 *
 * Owns creating, attaching, saving, comparing and restoring one store. It does not know what a test does to it. A
 * snapshot holds every shared byte that an operation may change, so putting it back is the same as never having run.
 */
#ifndef SHMQ_TEST_ARENA_H
#define SHMQ_TEST_ARENA_H

#include <stdio.h>

#include "core/segments/segments.h"

#define ARENA_FILES_MAX 8u
#define ARENA_TOPIC "alpha"
#define ARENA_QUEUES 4u
#define ARENA_GARBAGE 0xA5 /* what an earlier victim left behind the log end */

struct arena_options {
    uint64_t file_bytes;
    uint32_t file_count;
    uint32_t frame_max;
    uint32_t frame_ready;
    uint32_t topic_max, queue_max; /* 0: 8 and 24 */
    bool flush_sync;
    bool confirmed;          /* the rule is SHMQ_ACK_CONFIRMED */
    const char *broker_name; /* NULL: "arena" */
    uint64_t generation;     /* 0: 1 */
};

struct arena {
    struct arena_options options;
    struct shmq_sizes sizes;
    struct shmq_layout layout;
    int control_fd, units_fd, readers_fd;
    uint8_t *control, *units, *readers;
    uint8_t *files[ARENA_FILES_MAX];
    char directory[256];
    uint64_t window_from, window_until; /* log bytes that are compared, saved and put back */
    uint32_t window_frames;             /* unit frames, likewise */
    struct shmq_store store;            /* of the process that built it */
};

/* Map so that a byte before the first or after the last page is not mapped: any step outside ends the process. */
#define ARENA_GUARD_BYTES (UINT64_C(1) << 20)
void *arena_map(int fd, uint64_t bytes, bool writable);
void arena_unmap(void *address, uint64_t bytes);
/* Build the store with one topic of ARENA_QUEUES queues. Ends the process with a message when the host refuses. */
void arena_create(struct arena *arena, const struct arena_options *options);
void arena_destroy(struct arena *arena);
/* Attach this process once more, with its own identity (after a fork). */
void arena_attach(struct arena *arena, struct shmq_store *store, bool writable);
/* Attach as a consumer does: control and units mapped read-only, so that any store into them ends the process. */
void arena_attach_reader(struct arena *arena, struct shmq_store *store);
/* Log byte at a position, through this process's own mapping of the files. */
uint8_t *arena_log(const struct arena *arena, uint64_t log_position);
/* Overwrite everything between the log end and the end of its file, but for the zero size behind the last record. */
void arena_litter(struct arena *arena);
/* Say which log bytes snapshots hold: from the log end on, `bytes` long (clipped to the files). */
void arena_window(struct arena *arena, uint64_t bytes);

size_t arena_snapshot_bytes(const struct arena *arena);
void arena_save(const struct arena *arena, uint8_t *snapshot);
void arena_restore(struct arena *arena, const uint8_t *snapshot);
bool arena_differs(const struct arena *arena, const uint8_t *snapshot);
bool arena_control_differs(const struct arena *arena, const uint8_t *snapshot); /* without log, units and readers */

/* Do to the shared words what the kernel and the process table do when `pid` is killed: mark its robust mutexes, and
 * let its claim name a process that no longer exists. */
void arena_bury(struct arena *arena, pid_t pid);

/* Fail the whole program: the test bed itself is broken, which is not a finding. */
_Noreturn void arena_die(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define ARENA_MUST(condition) \
    ((condition) ? (void)0 : arena_die("%s:%d: %s (errno %d)", __FILE__, __LINE__, #condition, errno))

#endif
