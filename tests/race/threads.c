/* Every lock-free path of the core beside every writing one, as threads of one process: for ThreadSanitizer.
 *
 * Each thread has its own handle on the same mappings, as the lanes of the Python face do; log files are mapped once for all,
 * so that the sanitizer sees both sides of each byte. Ends with a count of what was done, or with status 1: after so long,
 * and once every kind of thread has done something, for which a busy machine gets a minute more.
 *
 *   threads MILLISECONDS
 */
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <inttypes.h>

#include "check.h"

#define APPENDERS 2u
#define WAITERS 3u
#define MEMBERS 3u
#define TOPICS 4000u
#define WAIT_NS UINT64_C(20000000)
#define DEADLINE_NS UINT64_C(20000000000)
#define LATE_NS UINT64_C(60000000000)

static struct arena arena;
static struct shmq_store wait_store;
static uint64_t end_ns;
static _Atomic uint64_t appended, claimed, units_seen, waits, looked_up, released, owned, wrong;
static _Atomic uint32_t newest_topic;
static uint32_t member_slot; /* the offset slot that members hand to each other */
static uint64_t member_place;
static uint64_t progress;     /* of its owner: a plain word, so the sanitizer sees a second reader */
static _Atomic uint64_t passed[ARENA_QUEUES];

static uint64_t after(uint64_t ns)
{
    return shmq_io_posix.monotonic_ns() + ns;
}

static bool has_seen_all(void)
{
    const _Atomic uint64_t *const counts[] = {&appended, &claimed, &units_seen, &waits, &looked_up, &released, &owned};
    bool seen = true;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        seen &= atomic_load_explicit(counts[i], memory_order_relaxed) != 0;
    }
    return seen;
}

static bool over(void)
{
    const uint64_t now_ns = shmq_io_posix.monotonic_ns();
    return now_ns >= end_ns + LATE_NS || (now_ns >= end_ns && has_seen_all());
}

#ifdef __SANITIZE_THREAD__
/* The sanitizer does not know pthread_mutex_clocklock; the core is compiled to call this in its place. */
int race_clocklock(pthread_mutex_t *mutex, clockid_t clock, const struct timespec *until)
{
    for (;;) {
        struct timespec now;
        int rc = pthread_mutex_trylock(mutex);
        clock_gettime(clock, &now);
        if (rc != EBUSY) {
            return rc;
        }
        if (now.tv_sec > until->tv_sec || (now.tv_sec == until->tv_sec && now.tv_nsec >= until->tv_nsec)) {
            return ETIMEDOUT;
        }
        usleep(50);
    }
}
#endif

/* Relaxed, and no store at all where nothing happened: counting must not order what the core leaves unordered. */
static void count(_Atomic uint64_t *counter, uint64_t amount)
{
    atomic_fetch_add_explicit(counter, amount, memory_order_relaxed);
}

static void fault_if(bool bad)
{
    if (bad) {
        count(&wrong, 1);
    }
}

/* ---- one mapping of each file for all threads --------------------------------------------------------- */
static void *map_once(int fd, uint64_t offset, size_t bytes, bool writable)
{
    char link[64], path[400] = "";
    (void)offset;
    (void)bytes;
    (void)writable;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ARENA_MUST(readlink(link, path, sizeof path - 1) > 20);
    return arena.files[strtoull(strrchr(path, '/') + 1, NULL, 10) / arena.options.file_bytes];
}

static int unmap_never(void *address, size_t bytes)
{
    (void)address;
    (void)bytes;
    return 0;
}

static struct shmq_io shared_io;

static void attach(struct shmq_store *store)
{
    ARENA_MUST(shmq_store_attach(store, arena.control, arena.layout.control_bytes, arena.units, arena.layout.units_bytes,
                                 arena.readers, arena.layout.readers_bytes, true, arena.units_fd, &shared_io) == SHMQ_OK);
}

/* ---- writers ------------------------------------------------------------------------------------------ */
static bool append_some(struct shmq_store *store, uint32_t queue, uint32_t id)
{
    uint8_t bodies[8][64];
    struct shmq_spec specs[8];
    int64_t tags[8];
    struct shmq_appended out;
    for (uint32_t i = 0; i < 8; i++) {
        struct message message = {.id = id, .queue = queue, .body_bytes = 32 + i};
        specs[i] = message_spec(&message, bodies[i]);
        tags[i] = message_tag(&message);
    }
    enum shmq_status status = id % 4 == 0
                                  ? shmq_append_batch(store, queue, specs, tags, 8, after(DEADLINE_NS), &out)
                                  : shmq_append(store, queue, specs, tags[0], after(DEADLINE_NS), &out);
    shmq_wake(store, queue);
    count(&appended, 1);
    fault_if(status != SHMQ_OK && status != SHMQ_LOG_FULL);
    return status == SHMQ_OK;
}

static void *append_thread(void *argument)
{
    struct shmq_store store;
    attach(&store);
    for (uint32_t id = 1; !over() && append_some(&store, ((uint32_t)(uintptr_t)argument + id) % ARENA_QUEUES, id); id++) {
    }
    shmq_store_detach(&store);
    return NULL;
}

static void *claim_thread(void *argument)
{
    struct shmq_store store;
    (void)argument;
    attach(&store);
    for (uint32_t id = 1; !over(); id++) {
        uint8_t body[3000];
        struct shmq_claim_handle claim;
        struct shmq_appended out;
        struct message message = {.id = id, .queue = id % ARENA_QUEUES, .body_bytes = id % 3000};
        struct shmq_spec spec = message_spec(&message, body);
        enum shmq_status status = shmq_claim_open(&store, message.queue, message.body_bytes, 64, after(DEADLINE_NS), &claim);
        if (status != SHMQ_OK) {
            break; /* the log is full */
        }
        spec.body = NULL;
        spec.body_crc_raw = shmq_crc32_copy_raw(UINT32_MAX, claim.body, body, message.body_bytes);
        if (id % 5 == 0 || shmq_claim_commit(&store, &claim, &spec, 1, after(DEADLINE_NS), &out) != SHMQ_OK) {
            shmq_claim_abort(&store, &claim);
        }
        count(&claimed, 1);
        usleep(id % 64 == 0 ? 3000 : 0);
    }
    shmq_store_detach(&store);
    return NULL;
}

/* Gives back frames the reader has passed; no other thread reads units below that. */
static void *keeper_thread(void *argument)
{
    struct shmq_store store;
    uint64_t durable;
    uint32_t round = 0;
    (void)argument;
    attach(&store);
    while (!over()) {
        for (uint32_t queue = 0; queue < ARENA_QUEUES; queue++) {
            uint64_t last = atomic_load(&store.queues[queue].persisted), now = atomic_load(&passed[queue]);
            if (now >= last + 2 * SHMQ_FRAME_UNITS) {
                atomic_store(&store.queues[queue].persisted, now);
                count(&released, shmq_frames_release(&store, queue, last / SHMQ_FRAME_UNITS,
                                                                (uint32_t)((now - last) / SHMQ_FRAME_UNITS),
                                                                after(DEADLINE_NS)));
            }
        }
        atomic_store(&store.log->keeper_beat_ns, shmq_io_posix.monotonic_ns());
        if (round++ % 16 == 0 && shmq_flush(&store, &durable) != SHMQ_OK) {
            fault_if(true);
        }
        usleep(200);
    }
    shmq_store_detach(&store);
    return NULL;
}

static void *table_thread(void *argument)
{
    struct shmq_store store;
    (void)argument;
    attach(&store);
    for (uint32_t round = 0; !over() && round < 4 * TOPICS; round++) {
        char name[32];
        uint64_t client;
        uint32_t topic, group, slot, queues = 1 + round % 4; /* each put adds a queue, in an extent of its own */
        snprintf(name, sizeof name, "topic%u", round / 4);
        fault_if(shmq_topic_put(&store, name, queues, queues, 6, 0, 0, &topic) != SHMQ_OK);
        atomic_store_explicit(&newest_topic, round / 4, memory_order_relaxed);
        if (shmq_group_put(&store, "group", &group) != SHMQ_OK || shmq_offset_put(&store, group, 1, &slot) != SHMQ_OK ||
            shmq_client_put(&store, store.self_pid, store.self_start, 1, &client) != SHMQ_OK) {
            fault_if(true);
            break;
        }
        shmq_client_drop(&store, shmq_client_slot(client));
        usleep(100);
    }
    shmq_store_detach(&store);
    return NULL;
}

/* ---- lock-free ------------------------------------------------------------------------------------------ */
static void *read_thread(void *argument)
{
    struct shmq_store store;
    uint64_t next[ARENA_QUEUES] = {0};
    (void)argument;
    attach(&store);
    while (!over()) {
        for (uint32_t queue = 0; queue < ARENA_QUEUES; queue++) {
            uint8_t units[32 * SHMQ_UNIT_BYTES];
            uint32_t got = shmq_units_read(&store, queue, next[queue], 32, units);
            for (uint32_t i = 0; i < got; i++) {
                struct shmq_unit unit;
                struct shmq_view view;
                shmq_unit_unpack(units + (size_t)i * SHMQ_UNIT_BYTES, &unit);
                const uint8_t *data = arena_log(&arena, unit.log_position);
                uint64_t left = arena.options.file_bytes - unit.log_position % arena.options.file_bytes;
                if (shmq_record_decode(data, left, &view) != SHMQ_OK || shmq_record_verify(data, &view) != SHMQ_OK ||
                    view.queue_offset != next[queue] + i) {
                    fault_if(true);
                }
            }
            next[queue] += got;
            count(&units_seen, got);
            atomic_store(&passed[queue], next[queue]);
        }
    }
    shmq_store_detach(&store);
    return NULL;
}

static void *wait_thread(void *argument)
{
    uint32_t queue = (uint32_t)(uintptr_t)argument;
    while (!over()) {
        uint64_t offset = shmq_load_acquire(&wait_store.queues[queue].offset_max);
        (void)shmq_wait(&wait_store, &queue, &offset, 1, 10, after(WAIT_NS));
        count(&waits, 1);
    }
    return NULL;
}

static void *look_up_thread(void *argument)
{
    struct shmq_store store;
    (void)argument;
    attach(&store);
    for (uint32_t round = 0; !over(); round++) {
        char name[32];
        snprintf(name, sizeof name, "topic%u", atomic_load_explicit(&newest_topic, memory_order_relaxed) + round % 2);
        uint32_t topic = shmq_topic_find(&store, name, strlen(name));
        for (uint32_t id = 0; id < 4 && topic != SHMQ_NONE; id++) {
            /* The first queues belong to another topic: only a torn extent says they are ours. */
            fault_if(shmq_topic_queue(&store, topic, id) < ARENA_QUEUES);
        }
        (void)shmq_group_find(&store, "group");
        (void)shmq_wait_durable(&store, shmq_load_acquire(&store.log->durable_end), after(WAIT_NS));
        count(&looked_up, 1);
    }
    shmq_store_detach(&store);
    return NULL;
}

/* The last member is a client over TCP, which locks. */
static void *member_thread(void *argument)
{
    struct shmq_store store;
    const uint32_t member = (uint32_t)(uintptr_t)argument;
    attach(&store);
    struct shmq_offset *entry = &store.offsets[member_slot];
    uint64_t client;
    fault_if(shmq_client_put(&store, store.self_pid, store.self_start, 3, &client) != SHMQ_OK);
    shmq_client_use(&store, client);
    while (!over()) {
        const struct shmq_owner_lock lock = {
            .holder = member, .now_ms = store.io->monotonic_ns() / 1000000, .life_ms = 600000};
        const bool locks = member == MEMBERS - 1;
        if (!(locks ? shmq_owner_lock(&store, entry, member_place, &lock) : shmq_owner_take(&store, entry, member_place))) {
            usleep(20);
            continue;
        }
        const uint64_t before = progress++;
        fault_if(progress != before + 1 || before != atomic_load_explicit(&owned, memory_order_relaxed));
        atomic_store_explicit(&owned, before + 1, memory_order_relaxed);
        if (locks) {
            shmq_owner_unlock(entry, member_place, member);
        } else {
            shmq_owner_leave(&store, entry, member_place);
        }
    }
    shmq_store_detach(&store);
    return NULL;
}

static void run_all(void)
{
    pthread_t threads[16];
    uint32_t count = 0;
    for (uint32_t i = 0; i < APPENDERS; i++) {
        pthread_create(&threads[count++], NULL, append_thread, (void *)(uintptr_t)i);
    }
    for (uint32_t i = 0; i < WAITERS; i++) {
        pthread_create(&threads[count++], NULL, wait_thread, (void *)(uintptr_t)i);
    }
    for (uint32_t i = 0; i < MEMBERS; i++) {
        pthread_create(&threads[count++], NULL, member_thread, (void *)(uintptr_t)i);
    }
    void *(*const others[])(void *) = {claim_thread, claim_thread, keeper_thread, table_thread, read_thread, look_up_thread};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        pthread_create(&threads[count++], NULL, others[i], NULL);
    }
    for (uint32_t i = 0; i < count; i++) {
        pthread_join(threads[i], NULL);
    }
}

int main(int argc, char **argv)
{
    char broker[40], name[200];
    snprintf(broker, sizeof broker, "threads%d", (int)getpid());
    const struct arena_options options = {.file_bytes = 16u << 20, .file_count = 8, .frame_max = 8192, .frame_ready = 8192,
                                          .topic_max = TOPICS + 8, .queue_max = 4 * TOPICS + 16,
                                          .broker_name = broker};
    arena_create(&arena, &options);
    shared_io = shmq_io_posix;
    shared_io.map = map_once;
    shared_io.unmap = unmap_never;
    attach(&wait_store);
    uint64_t client;
    ARENA_MUST(shmq_client_put(&wait_store, wait_store.self_pid, wait_store.self_start, 3, &client) == SHMQ_OK);
    shmq_client_use(&wait_store, client);
    snprintf(name, sizeof name, "/shmq.%s.%016" PRIx64 ".w%u", broker, arena.store.head->generation,
             shmq_client_slot(client));
    sem_t *semaphore = sem_open(name, O_CREAT | O_EXCL, 0600, 0);
    ARENA_MUST(semaphore != SEM_FAILED);
    uint32_t group;
    ARENA_MUST(shmq_group_put(&arena.store, "members", &group) == SHMQ_OK);
    ARENA_MUST(shmq_offset_put(&arena.store, group, 0, &member_slot) == SHMQ_OK);
    member_place = shmq_offset_place(group, 0);
    end_ns = after((argc > 1 ? strtoull(argv[1], NULL, 10) : 2000) * UINT64_C(1000000));
    run_all();
    sem_unlink(name);
    printf("{\"appended\": %" PRIu64 ", \"claimed\": %" PRIu64 ", \"units_seen\": %" PRIu64 ", \"waits\": %" PRIu64
           ", \"looked_up\": %" PRIu64 ", \"released\": %" PRIu64 ", \"owned\": %" PRIu64
           ", \"wrong\": %" PRIu64 "}\n",
           atomic_load(&appended), atomic_load(&claimed), atomic_load(&units_seen), atomic_load(&waits),
           atomic_load(&looked_up), atomic_load(&released), atomic_load(&owned), atomic_load(&wrong));
    arena_destroy(&arena);
    return atomic_load(&wrong) == 0 ? 0 : 1;
}
