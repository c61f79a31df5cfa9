/* See arena.h. */
#include "arena.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define OFFSETS (SHMQ_PAGE_BYTES / (uint32_t)sizeof(struct shmq_offset)) /* makes the readers segment end with a page */
#define FRAMES_AHEAD 4u /* more than one operation takes, the appends of the check included */

void arena_die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("test bed: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    _exit(3);
}

void *arena_map(int fd, uint64_t bytes, bool writable)
{
    uint8_t *room = mmap(NULL, bytes + 2 * ARENA_GUARD_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ARENA_MUST(room != MAP_FAILED && bytes % SHMQ_PAGE_BYTES == 0);
    void *address = mmap(room + ARENA_GUARD_BYTES, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ,
                         MAP_SHARED | MAP_FIXED, fd, 0);
    ARENA_MUST(address != MAP_FAILED);
    return address;
}

void arena_unmap(void *address, uint64_t bytes)
{
    munmap((uint8_t *)address - ARENA_GUARD_BYTES, bytes + 2 * ARENA_GUARD_BYTES);
}

static uint8_t *map_segment(int *fd, const char *name, uint64_t bytes)
{
    *fd = memfd_create(name, MFD_CLOEXEC);
    ARENA_MUST(*fd >= 0 && ftruncate(*fd, (off_t)bytes) == 0);
    return arena_map(*fd, bytes, true);
}

static void create_files(struct arena *arena)
{
    char path[320];
    const char *root = getenv("SHMQ_ARENA_ROOT"); /* the caller removes it, also after a crash of ours */
    root = root != NULL ? root : access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    ARENA_MUST((size_t)snprintf(arena->directory, sizeof arena->directory, "%s/shmq-arena-XXXXXX", root) <
               sizeof arena->directory);
    ARENA_MUST(mkdtemp(arena->directory) != NULL);
    snprintf(path, sizeof path, "%s/commitlog", arena->directory);
    ARENA_MUST(mkdir(path, 0700) == 0);
    for (uint32_t i = 0; i < arena->options.file_count; i++) {
        snprintf(path, sizeof path, "%s/commitlog/%020" PRIu64, arena->directory, i * arena->options.file_bytes);
        int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        ARENA_MUST(fd >= 0 && posix_fallocate(fd, 0, (off_t)arena->options.file_bytes) == 0);
        arena->files[i] = arena_map(fd, arena->options.file_bytes, true);
        close(fd);
    }
}

void arena_create(struct arena *arena, const struct arena_options *options)
{
    memset(arena, 0, sizeof *arena);
    arena->options = *options;
    ARENA_MUST(options->file_count <= ARENA_FILES_MAX);
    arena->sizes = (struct shmq_sizes){.file_bytes = options->file_bytes, .topic_max = options->topic_max != 0 ? options->topic_max : 8,
                                       .queue_max = options->queue_max != 0 ? options->queue_max : 24,
                                       .frame_max = options->frame_max, .client_max = 80, .group_max = 4,
                                       .offset_max = OFFSETS};
    create_files(arena);
    ARENA_MUST(shmq_layout_compute(&arena->sizes, &arena->layout) == SHMQ_OK);
    arena->control = map_segment(&arena->control_fd, "control", arena->layout.control_bytes);
    arena->units = map_segment(&arena->units_fd, "units", arena->layout.units_bytes);
    arena->readers = map_segment(&arena->readers_fd, "readers", arena->layout.readers_bytes);
    struct shmq_format_options format = {.sizes = arena->sizes,
                                         .generation = options->generation != 0 ? options->generation : 1,
                                         .ack_rule = options->confirmed    ? SHMQ_ACK_CONFIRMED
                                                     : options->flush_sync ? SHMQ_ACK_DURABLE
                                                                           : SHMQ_ACK_END,
                                         .broker_name = options->broker_name != NULL ? options->broker_name : "arena",
                                         .store_path = arena->directory,
                                         .frame_ready = options->frame_ready};
    ARENA_MUST(shmq_store_format(arena->control, arena->readers, &format) == SHMQ_OK);
    arena_attach(arena, &arena->store, true);
    atomic_store(&arena->store.log->allocated_end, options->file_bytes * options->file_count);
    uint32_t topic;
    ARENA_MUST(shmq_topic_put(&arena->store, ARENA_TOPIC, ARENA_QUEUES, ARENA_QUEUES, 6, 0, 0, &topic) == SHMQ_OK);
    ARENA_MUST(shmq_topic_queue(&arena->store, topic, 0) == 0); /* so queue id and queue index are the same number */
    arena->window_until = options->file_bytes * options->file_count;
    arena->window_frames = options->frame_max;
}

void arena_destroy(struct arena *arena)
{
    char path[320];
    shmq_store_detach(&arena->store);
    for (uint32_t i = 0; i < arena->options.file_count; i++) {
        arena_unmap(arena->files[i], arena->options.file_bytes);
        snprintf(path, sizeof path, "%s/commitlog/%020" PRIu64, arena->directory, i * arena->options.file_bytes);
        unlink(path);
    }
    snprintf(path, sizeof path, "%s/commitlog", arena->directory);
    rmdir(path);
    rmdir(arena->directory);
    arena_unmap(arena->control, arena->layout.control_bytes);
    arena_unmap(arena->units, arena->layout.units_bytes);
    arena_unmap(arena->readers, arena->layout.readers_bytes);
    close(arena->control_fd);
    close(arena->units_fd);
    close(arena->readers_fd);
}

void arena_attach(struct arena *arena, struct shmq_store *store, bool writable)
{
    enum shmq_status status =
        shmq_store_attach(store, arena->control, arena->layout.control_bytes, arena->units, arena->layout.units_bytes,
                          arena->readers, arena->layout.readers_bytes, writable, arena->units_fd, &shmq_io_posix);
    ARENA_MUST(status == SHMQ_OK);
    store->sleep_ns_max = UINT64_MAX; /* no sleeper looks for itself: a lost wake-up stays lost */
}

void arena_attach_reader(struct arena *arena, struct shmq_store *store)
{
    void *control = arena_map(arena->control_fd, arena->layout.control_bytes, false);
    void *units = arena_map(arena->units_fd, arena->layout.units_bytes, false);
    enum shmq_status status =
        shmq_store_attach(store, control, arena->layout.control_bytes, units, arena->layout.units_bytes, arena->readers,
                          arena->layout.readers_bytes, false, -1, &shmq_io_posix);
    ARENA_MUST(status == SHMQ_OK);
    store->sleep_ns_max = UINT64_MAX;
}

uint8_t *arena_log(const struct arena *arena, uint64_t log_position)
{
    return arena->files[log_position / arena->options.file_bytes] + log_position % arena->options.file_bytes;
}

void arena_litter(struct arena *arena)
{
    uint64_t within = shmq_load_acquire(&arena->store.log->end) % arena->options.file_bytes;
    uint8_t *file = arena_log(arena, shmq_load_acquire(&arena->store.log->end)) - within;
    uint64_t from = within == 0 ? 0 : within + SHMQ_RECORD_BLANK_BYTES;
    memset(file + from, ARENA_GARBAGE, arena->options.file_bytes - from);
}

void arena_window(struct arena *arena, uint64_t bytes)
{
    uint64_t all = arena->options.file_bytes * arena->options.file_count;
    arena->window_from = shmq_load_acquire(&arena->store.log->end);
    arena->window_until = bytes > all - arena->window_from ? all : arena->window_from + bytes;
    uint32_t frames = arena->store.log->frame_bump + FRAMES_AHEAD;
    arena->window_frames = frames < arena->sizes.frame_max ? frames : arena->sizes.frame_max;
}

/* ---- snapshots ---------------------------------------------------------------------------------- */
struct part { uint8_t *data; size_t bytes; };

/* The pieces of shared memory a snapshot holds; the immutable head is left out. Returns how many. */
static uint32_t parts_of(const struct arena *arena, struct part parts[ARENA_FILES_MAX + 3])
{
    uint32_t count = 0;
    parts[count++] = (struct part){arena->control + SHMQ_PAGE_BYTES, arena->layout.control_bytes - SHMQ_PAGE_BYTES};
    for (uint64_t at = arena->window_from; at < arena->window_until;) {
        uint64_t next = (at / arena->options.file_bytes + 1) * arena->options.file_bytes;
        next = next < arena->window_until ? next : arena->window_until;
        parts[count++] = (struct part){arena_log(arena, at), next - at};
        at = next;
    }
    parts[count++] = (struct part){arena->readers, arena->layout.readers_bytes};
    parts[count++] = (struct part){arena->units, (size_t)arena->window_frames * SHMQ_FRAME_BYTES};
    return count;
}

size_t arena_snapshot_bytes(const struct arena *arena)
{
    struct part parts[ARENA_FILES_MAX + 3];
    size_t bytes = 0;
    for (uint32_t count = parts_of(arena, parts); count > 0; count--) {
        bytes += parts[count - 1].bytes;
    }
    return bytes;
}

void arena_save(const struct arena *arena, uint8_t *snapshot)
{
    struct part parts[ARENA_FILES_MAX + 3];
    uint32_t count = parts_of(arena, parts);
    for (uint32_t i = 0; i < count; snapshot += parts[i].bytes, i++) {
        memcpy(snapshot, parts[i].data, parts[i].bytes);
    }
}

void arena_restore(struct arena *arena, const uint8_t *snapshot)
{
    struct part parts[ARENA_FILES_MAX + 3];
    uint32_t count = parts_of(arena, parts);
    for (uint32_t i = 0; i < count; snapshot += parts[i].bytes, i++) {
        memcpy(parts[i].data, snapshot, parts[i].bytes);
    }
}

bool arena_differs(const struct arena *arena, const uint8_t *snapshot)
{
    struct part parts[ARENA_FILES_MAX + 3];
    uint32_t count = parts_of(arena, parts);
    for (uint32_t i = 0; i < count; snapshot += parts[i].bytes, i++) {
        if (memcmp(parts[i].data, snapshot, parts[i].bytes) != 0) {
            return true;
        }
    }
    return false;
}

bool arena_control_differs(const struct arena *arena, const uint8_t *snapshot)
{
    struct part parts[ARENA_FILES_MAX + 3];
    parts_of(arena, parts);
    return memcmp(parts[0].data, snapshot, parts[0].bytes) != 0;
}

/* ---- death -------------------------------------------------------------------------------------- */
static void bury_mutex(pthread_mutex_t *mutex, pid_t pid)
{
    /* What the kernel's walk over the robust list does. The pending entry covers the few instructions where the word
     * carries the owner but the list does not, so the word alone decides. */
    _Atomic uint32_t *word = (_Atomic uint32_t *)&mutex->__data.__lock;
    uint32_t value = atomic_load(word);
    if ((value & FUTEX_TID_MASK) == (uint32_t)pid) {
        atomic_store(word, (value & FUTEX_WAITERS) | FUTEX_OWNER_DIED);
    }
}

void arena_bury(struct arena *arena, pid_t pid)
{
    struct shmq_log *log = arena->store.log;
    bury_mutex(&log->lock, pid);
    bury_mutex(&log->flush_lock, pid);
    bury_mutex(&log->table_lock, pid);
    if (log->claim.owner_pid == (uint32_t)pid) {
        log->claim.owner_start += UINT64_C(1) << 40; /* as if the pid had been given to a process that started later */
    }
}
