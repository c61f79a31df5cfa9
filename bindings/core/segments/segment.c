/* The segments as a whole: where each table lies, formatting by the creator, checks on attaching.
 *
 *   control:  head 4096 | log | topics | topic buckets | queues | frames | frame buckets     each part page-aligned
 *   readers:  head 64   | damages | clients | waiters | groups | offsets                     each part 64-byte aligned
 *   units:    frame 0 | frame 1 | …
 *
 * The creator fills everything and stores the magic last; a process that sees the magic sees a finished head. An
 * attaching process believes no size it has not recomputed from the head.
 */
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/segments/segments.h"

struct offsets {
    uint64_t log, topics, topic_buckets, queues, frames, frame_buckets, control_bytes;
    uint64_t damages, clients, waiters, groups, offsets, readers_bytes;
    uint32_t topic_bucket_count, frame_bucket_count;
};

static uint32_t power_of_two(uint32_t least)
{
    uint32_t power = 16;
    while (power < least) {
        power <<= 1;
    }
    return power;
}

static uint64_t advance(uint64_t *at, uint64_t bytes, uint64_t alignment)
{
    uint64_t here = *at;
    *at = (here + bytes + alignment - 1) / alignment * alignment;
    return here;
}

static enum shmq_status compute(const struct shmq_sizes *sizes, struct offsets *out)
{
    const uint32_t limit = 1u << 24; /* keeps every product below far from overflow */
    if (sizes->file_bytes < 16 * SHMQ_PAGE_BYTES || sizes->file_bytes % SHMQ_PAGE_BYTES != 0 ||
        sizes->file_bytes > (UINT64_C(1) << 40) || sizes->topic_max - 1 >= limit || sizes->queue_max - 1 >= limit ||
        sizes->frame_max - 1 >= limit || sizes->client_max - 1 >= SHMQ_CLIENTS_MAX || sizes->group_max - 1 >= limit ||
        sizes->offset_max - 1 >= limit) {
        return SHMQ_BAD_ARGUMENT;
    }
    out->topic_bucket_count = power_of_two(2 * sizes->topic_max);
    out->frame_bucket_count = power_of_two(sizes->frame_max);
    uint64_t at = SHMQ_PAGE_BYTES;
    out->log = advance(&at, sizeof(struct shmq_log), SHMQ_PAGE_BYTES);
    out->topics = advance(&at, sizeof(struct shmq_topic) * (uint64_t)sizes->topic_max, SHMQ_PAGE_BYTES);
    out->topic_buckets = advance(&at, sizeof(uint32_t) * (uint64_t)out->topic_bucket_count, SHMQ_PAGE_BYTES);
    out->queues = advance(&at, sizeof(struct shmq_queue) * (uint64_t)sizes->queue_max, SHMQ_PAGE_BYTES);
    out->frames = advance(&at, sizeof(struct shmq_frame) * (uint64_t)sizes->frame_max, SHMQ_PAGE_BYTES);
    out->frame_buckets = advance(&at, sizeof(uint32_t) * (uint64_t)out->frame_bucket_count, SHMQ_PAGE_BYTES);
    out->control_bytes = at;
    at = sizeof(struct shmq_readers_head);
    out->damages = advance(&at, sizeof(struct shmq_damages), 64);
    out->clients = advance(&at, sizeof(struct shmq_client) * (uint64_t)sizes->client_max, 64);
    out->waiters = advance(&at, sizeof(uint64_t) * (uint64_t)sizes->queue_max, 64);
    out->groups = advance(&at, sizeof(struct shmq_group) * (uint64_t)sizes->group_max, 64);
    out->offsets = advance(&at, sizeof(struct shmq_offset) * (uint64_t)sizes->offset_max, SHMQ_PAGE_BYTES);
    out->readers_bytes = at;
    return SHMQ_OK;
}

enum shmq_status shmq_layout_compute(const struct shmq_sizes *sizes, struct shmq_layout *layout)
{
    struct offsets at;
    enum shmq_status status = compute(sizes, &at);
    if (status == SHMQ_OK) {
        layout->control_bytes = at.control_bytes;
        layout->units_bytes = (uint64_t)sizes->frame_max * SHMQ_FRAME_BYTES;
        layout->readers_bytes = at.readers_bytes;
    }
    return status;
}

static uint64_t pid_namespace(void)
{
    struct stat status;
    return stat("/proc/self/ns/pid", &status) == 0 ? (uint64_t)status.st_ino : 0;
}

static void boot_id(char out[40])
{
    memset(out, 0, 40);
    int fd = shmq_open_at(AT_FDCWD, "/proc/sys/kernel/random/boot_id", O_RDONLY);
    if (fd >= 0) {
        ssize_t got = read(fd, out, 36);
        (void)got;
        close(fd);
    }
}

static int robust_init(pthread_mutex_t *mutex)
{
    pthread_mutexattr_t attributes;
    int rc = pthread_mutexattr_init(&attributes);
    rc = rc != 0 ? rc : pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    rc = rc != 0 ? rc : pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    rc = rc != 0 ? rc : pthread_mutex_init(mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
    return rc;
}

enum shmq_status shmq_store_format(void *control, void *readers, const struct shmq_format_options *options)
{
    struct offsets at;
    enum shmq_status status = compute(&options->sizes, &at);
    if (status != SHMQ_OK || strlen(options->broker_name) >= sizeof(((struct shmq_head *)0)->broker_name) ||
        strlen(options->store_path) >= sizeof(((struct shmq_head *)0)->store_path) ||
        options->frame_ready > options->sizes.frame_max) {
        return SHMQ_BAD_ARGUMENT;
    }
    struct shmq_head *head = control;
    struct shmq_log *log = (struct shmq_log *)((uint8_t *)control + at.log);
    struct shmq_readers_head *readers_head = readers;
    head->abi = SHMQ_ABI;
    head->mutex_bytes = sizeof(pthread_mutex_t);
    head->generation = options->generation;
    head->pid_namespace = pid_namespace();
    head->control_bytes = at.control_bytes;
    head->units_bytes = (uint64_t)options->sizes.frame_max * SHMQ_FRAME_BYTES;
    head->readers_bytes = at.readers_bytes;
    head->sizes = options->sizes;
    head->ack_rule = options->ack_rule;
    head->trusts_reads = options->trusts_reads;
    atomic_store_explicit(&head->clock, options->clock_stands_ms ? SHMQ_CLOCK_STANDS | options->clock_stands_ms : 0,
                          memory_order_relaxed);
    memcpy(head->store_host, options->store_host, sizeof head->store_host);
    snprintf(head->libc, sizeof head->libc, "glibc %s", gnu_get_libc_version());
    boot_id(head->boot_id);
    strcpy(head->broker_name, options->broker_name);
    strcpy(head->store_path, options->store_path);
    if (robust_init(&log->lock) != 0 || robust_init(&log->flush_lock) != 0 || robust_init(&log->table_lock) != 0) {
        return SHMQ_SYSTEM;
    }
    atomic_store_explicit(&log->frame_ready, options->frame_ready, memory_order_relaxed);
    readers_head->generation = options->generation;
    /* release: a process that loads a magic with acquire sees the finished head and log. */
    atomic_store_explicit(&readers_head->magic, SHMQ_MAGIC, memory_order_release);
    atomic_store_explicit(&head->magic, SHMQ_MAGIC, memory_order_release);
    return SHMQ_OK;
}

static enum shmq_status check_head(struct shmq_head *head)
{
    if (atomic_load_explicit(&head->magic, memory_order_acquire) != SHMQ_MAGIC) {
        return SHMQ_CORRUPT;
    }
    if (head->abi != SHMQ_ABI || head->ack_rule > SHMQ_ACK_CONFIRMED || head->mutex_bytes != sizeof(pthread_mutex_t) ||
        strncmp(head->libc, "glibc", 5) != 0) {
        return SHMQ_FOREIGN_ABI;
    }
    /* 0: no /proc to tell by, here or at the creator's; two unknowns are not the same namespace. */
    if (head->pid_namespace == 0 || head->pid_namespace != pid_namespace()) {
        return SHMQ_FOREIGN_NAMESPACE;
    }
    return SHMQ_OK;
}

static void point_at_tables(struct shmq_store *store, uint8_t *control, uint8_t *units, uint8_t *readers,
                            const struct offsets *at)
{
    store->log = (struct shmq_log *)(control + at->log);
    store->topics = (struct shmq_topic *)(control + at->topics);
    store->topic_buckets = (uint32_t *)(control + at->topic_buckets);
    store->queues = (struct shmq_queue *)(control + at->queues);
    store->frames = (struct shmq_frame *)(control + at->frames);
    store->frame_buckets = (_Atomic uint32_t *)(control + at->frame_buckets);
    store->units = units;
    store->readers = (struct shmq_readers_head *)readers;
    store->damages = (struct shmq_damages *)(readers + at->damages);
    store->clients = (struct shmq_client *)(readers + at->clients);
    store->waiters = (_Atomic uint64_t *)(readers + at->waiters);
    store->groups = (struct shmq_group *)(readers + at->groups);
    store->offsets = (struct shmq_offset *)(readers + at->offsets);
    store->topic_bucket_count = at->topic_bucket_count;
    store->frame_bucket_count = at->frame_bucket_count;
}

static enum shmq_status private_parts(struct shmq_store *store)
{
    store->semaphores = calloc(store->sizes.client_max, sizeof(void *));
    store->scratch = store->writable ? malloc(SHMQ_BATCH_BYTES_MAX + SHMQ_PAGE_BYTES) : NULL;
    if (store->semaphores == NULL || (store->writable && store->scratch == NULL) || !shmq_lookups_open(store)) {
        shmq_lookups_close(store);
        free(store->semaphores);
        free(store->scratch);
        return SHMQ_SYSTEM;
    }
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&store->wait_mutex, NULL);
    pthread_cond_init(&store->wait_turn, &attributes);
    pthread_condattr_destroy(&attributes);
    return SHMQ_OK;
}

enum shmq_status shmq_store_attach(struct shmq_store *store, void *control, size_t control_bytes, void *units,
                                   size_t units_bytes, void *readers, size_t readers_bytes, bool writable, int units_fd,
                                   const struct shmq_io *io)
{
    memset(store, 0, sizeof *store);
    struct shmq_head *head = control;
    enum shmq_status status = control_bytes < SHMQ_PAGE_BYTES ? SHMQ_CORRUPT : check_head(head);
    if (status != SHMQ_OK) {
        return status;
    }
    struct offsets at;
    struct shmq_sizes sizes = head->sizes; /* copied once; the shared copy is never read again */
    const struct shmq_readers_head *readers_head = readers;
    if (compute(&sizes, &at) != SHMQ_OK || at.control_bytes != head->control_bytes ||
        at.readers_bytes != head->readers_bytes || at.control_bytes > control_bytes || at.readers_bytes > readers_bytes ||
        (uint64_t)sizes.frame_max * SHMQ_FRAME_BYTES > units_bytes || readers_head->generation != head->generation ||
        memchr(head->store_path, 0, sizeof head->store_path) == NULL ||
        memchr(head->broker_name, 0, sizeof head->broker_name) == NULL) {
        return SHMQ_CORRUPT;
    }
    store->head = head;
    store->sizes = sizes;
    store->writable = writable;
    store->growable = units_fd >= 0;
    store->units_fd = units_fd;
    store->queue_mask = power_of_two(sizes.queue_max + 1) - 1;
    store->topic_mask = power_of_two(sizes.topic_max + 1) - 1;
    store->group_mask = power_of_two(sizes.group_max + 1) - 1;
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    store->processors = processors > 0 ? (uint32_t)processors : 1;
    store->self_pid = (uint32_t)getpid();
    store->self_start = shmq_process_start(store->self_pid);
    if (writable && store->self_start == 0) {
        return SHMQ_SYSTEM; /* /proc cannot be read now: our claims would look like those of the dead */
    }
    store->io = io;
    store->sleep_ns_max = SHMQ_SLEEP_NS;
    store->repair = shmq_repair;
    store->consumequeue_fd = store->log_directory = -1;
    store->control_map = control;
    store->control_bytes = control_bytes;
    store->units_map = units;
    store->units_bytes = units_bytes;
    store->readers_map = readers;
    store->readers_bytes = readers_bytes;
    point_at_tables(store, control, units, readers, &at);
    if ((status = private_parts(store)) == SHMQ_OK) {
        (void)shmq_log_directory_hold(store); /* as long as it has its name; who opens a file asks again */
    }
    return status;
}

void shmq_store_detach(struct shmq_store *store)
{
    for (size_t i = 0; i < SHMQ_MAPPING_CACHE; i++) {
        if (store->mappings[i] != NULL) {
            shmq_mapping_release(store->mappings[i]);
            store->mappings[i] = NULL;
        }
    }
    if (store->consumequeue_fd >= 0) {
        store->io->close(store->consumequeue_fd);
        store->consumequeue_fd = -1;
    }
    if (store->log_directory >= 0) {
        store->io->close(store->log_directory);
        store->log_directory = -1;
    }
    /* Semaphores stay open until the process ends: a writer of another thread may be posting one right now. */
    shmq_lookups_close(store);
    free(store->semaphores);
    free(store->scratch);
    store->semaphores = NULL;
    store->scratch = NULL;
    pthread_cond_destroy(&store->wait_turn);
    pthread_mutex_destroy(&store->wait_mutex);
}
