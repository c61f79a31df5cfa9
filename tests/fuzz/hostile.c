/* Scribbles over shared memory while the core uses it: every answer is allowed, but a crash, a hang or a step outside.
 *
 *   read    a consumer's handle, control and units mapped read-only: units, look-ups, records, the reader's cursors, waiting
 *   write   a producer's handle in a child process: append, batch, claims, frames, tables, flush, and repair after a death
 *   race    the calls of `read` while another thread scribbles without a pause
 *
 *   hostile read|write|race ROUNDS SEED
 *
 * Owner words, places and client slots are scribbled as well, and the calls of members and of clients over TCP are made; both
 * draw from a random stream of their own.
 *
 * All mappings lie between pages that are not mapped, so a step outside is a SIGSEGV, with or without a sanitizer. The mutexes
 * are left alone: the C library follows pointers in a robust mutex, so a process that may write them is trusted (shmq.h says which).
 * After each round the store is put back. Prints one JSON line.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "check.h"
#include "core/read/reader.h"

#define FILE_BYTES (256u << 10)
#define CHILD_ROUNDS 200u
#define ROUND_SECONDS_MAX 20u
#define WAIT_NS UINT64_C(200000)

static struct arena arena;
static struct shmq_store reading;
static uint8_t *snapshot;
static uint64_t *answers; /* how often each status was seen, by children too */
static sem_t *semaphore;

static uint64_t roll(uint64_t *state)
{
    *state += UINT64_C(0x9E3779B97F4A7C15);
    uint64_t value = (*state ^ (*state >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94D049BB133111EB);
    return value ^ (value >> 31);
}

static uint64_t after(uint64_t ns)
{
    return shmq_io_posix.monotonic_ns() + ns;
}

static void note(enum shmq_status status)
{
    answers[(uint32_t)status % 32]++;
}

/* ---- log files between guard pages ------------------------------------------------------------------- */
static void *map_guarded(int fd, uint64_t offset, size_t bytes, bool writable)
{
    return offset == 0 ? arena_map(fd, bytes, writable) : NULL;
}

static int unmap_guarded(void *address, size_t bytes)
{
    arena_unmap(address, bytes);
    return 0;
}

static struct shmq_io guarded_io(void)
{
    struct shmq_io io = shmq_io_posix;
    io.map = map_guarded;
    io.unmap = unmap_guarded;
    return io;
}

/* ---- scribbling --------------------------------------------------------------------------------------- */
static bool is_mutex(size_t at)
{
    const struct shmq_log *log = arena.store.log;
    const pthread_mutex_t *const mutexes[] = {&log->lock, &log->flush_lock, &log->table_lock};
    for (size_t i = 0; i < sizeof mutexes / sizeof mutexes[0]; i++) {
        size_t from = (size_t)((const uint8_t *)mutexes[i] - arena.control);
        if (at + 8 > from && at < from + sizeof(pthread_mutex_t)) {
            return true;
        }
    }
    return false;
}

/* A number that some check might forget: a neighbour of what is there, of a limit, or anything. */
static uint64_t nasty(uint64_t *random, uint64_t old)
{
    static const uint64_t limits[] = {0, 1, 8, 16, 24, 255, 1024, 4096, FILE_BYTES, FILE_BYTES - 4, INT32_MAX, UINT32_MAX,
                                      UINT64_C(1) << 32, INT64_MAX, UINT64_MAX, SHMQ_RECORD_BYTES_MAX};
    uint64_t dice = roll(random);
    switch (dice % 6) {
    case 0:
        return old ^ (UINT64_C(1) << (dice >> 8) % 64);
    case 1:
        return old + (dice >> 8) % 17 - 8;
    case 2:
        return limits[(dice >> 8) % (sizeof limits / sizeof limits[0])];
    case 3:
        return limits[(dice >> 8) % (sizeof limits / sizeof limits[0])] - 1 + (dice >> 16) % 3;
    case 4:
        return roll(random) % (3 * FILE_BYTES);
    default:
        return roll(random);
    }
}

static void scribble_word(uint8_t *at, size_t bytes, uint64_t *random)
{
    uint64_t value = 0;
    memcpy(&value, at, bytes);
    value = nasty(random, value);
    for (size_t i = 0; i < bytes; i++) { /* by bytes and volatile: this is a race on purpose */
        ((volatile uint8_t *)at)[i] = (uint8_t)(value >> (8 * i));
    }
}

static void scribble(uint64_t *random)
{
    uint64_t dice = roll(random);
    size_t bytes = (dice & 1) != 0 ? 4 : 8;
    uint32_t where = dice >> 1 & 15;
    size_t at = where < 6 ? (size_t)((uint8_t *)arena.store.log - arena.control) + roll(random) % sizeof(struct shmq_log) / 8 * 8
                          : 200 + roll(random) % (arena.layout.control_bytes - 208) / 8 * 8;
    if (where < 8) { /* the log state: few words and most checks; or any table, paths and names */
        if (!is_mutex(at)) {
            scribble_word(arena.control + at, bytes, random);
        }
    } else if (where < 10) {
        scribble_word((uint8_t *)&arena.store.queues[roll(random) % ARENA_QUEUES] + roll(random) % 8 * 8, bytes, random);
    } else if (where < 11) {
        scribble_word((uint8_t *)&arena.store.frames[roll(random) % arena.sizes.frame_max] + roll(random) % 2 * 8, bytes,
                      random);
    } else if (where < 12) {
        scribble_word((uint8_t *)&arena.store.frame_buckets[roll(random) % arena.store.frame_bucket_count / 2 * 2], bytes,
                      random);
    } else if (where < 13) {
        scribble_word(arena.units + roll(random) % (8 * SHMQ_FRAME_BYTES / 8) * 8, bytes, random);
    } else if (where < 14) {
        scribble_word(arena.readers + roll(random) % (arena.layout.readers_bytes / 8) * 8, bytes, random);
    } else {
        scribble_word(arena.files[0] + roll(random) % (FILE_BYTES / 4), bytes, random);
    }
}

/* A word as there might be one: of a slot in this or another life, a lock, a slot that is moving. */
static uint64_t owner_like(uint64_t *random, uint64_t old)
{
    const uint64_t dice = roll(random);
    const uint32_t slot = (uint32_t)(dice >> 8) % arena.sizes.client_max;
    switch (dice % 6) {
    case 0:
        return shmq_client_word(&arena.store, slot);
    case 1:
        return (dice >> 32) % 4 << 32 | (slot + 1u);
    case 2:
        return dice >> 32 << 32 | SHMQ_OWNER_LOCK | (uint32_t)(dice >> 16) % 3;
    case 3:
        return SHMQ_OWNER_MOVING;
    case 4:
        return 0;
    default:
        return nasty(random, old);
    }
}

static void scribble_owners(uint64_t *random)
{
    const uint64_t dice = roll(random);
    struct shmq_offset *entry = &arena.store.offsets[(dice >> 8) % 3];
    if (dice % 4 < 2) {
        const uint64_t word = owner_like(random, atomic_load(&entry->owner));
        for (size_t i = 0; i < sizeof word; i++) { /* by bytes and volatile: this is a race on purpose */
            ((volatile uint8_t *)&entry->owner)[i] = (uint8_t)(word >> (8 * i));
        }
    } else if (dice % 4 < 3) { /* what is committed, the place, and the statistics */
        scribble_word((uint8_t *)entry + roll(random) % (sizeof *entry / 8) * 8, 8, random);
    } else { /* state, generation, process, errand */
        struct shmq_client *client = &arena.store.clients[(dice >> 8) % 3];
        scribble_word((uint8_t *)client + roll(random) % (sizeof *client / 4) * 4, 4, random);
    }
}

/* ---- the calls of members and of the broker on their queues ---------------------------------------------- */
static void own(struct shmq_store *store, uint64_t *random)
{
    const uint64_t dice = roll(random);
    struct shmq_offset *entry = &store->offsets[dice % 3];
    const uint64_t place = (dice >> 8) % 8 != 0 ? shmq_offset_place(0, (uint32_t)(dice % 3)) : roll(random);
    const struct shmq_owner_lock lock = {
        .holder = (uint32_t)nasty(random, 7), .now_ms = nasty(random, 1000), .life_ms = nasty(random, 60000)};
    store->client = (dice >> 16) % 4 != 0 ? shmq_client_word(&arena.store, 0) : owner_like(random, store->client);
    const bool is_taken = shmq_owner_take(store, entry, place);
    note(is_taken && shmq_owner_is_own(store, entry, place) ? SHMQ_OK : SHMQ_EMPTY);
    note(shmq_owner_commit(store, entry, place, nasty(random, 5)) ? SHMQ_OK : SHMQ_DETACHED);
    (void)shmq_offset_set(store, entry, place, nasty(random, 5));
    (void)shmq_offset_get(entry, place);
    shmq_owner_leave(store, entry, place);
    const bool is_locked = shmq_owner_lock(store, entry, place, &lock);
    ARENA_MUST(!is_locked || shmq_owner_lock_fits(&lock));
    note(is_locked ? SHMQ_OK : SHMQ_WOULD_BLOCK);
    shmq_owner_show(store, entry, place, roll(random));
    const uint32_t owner = shmq_owner_find(store, entry, place);
    ARENA_MUST(owner == SHMQ_NONE || owner < store->sizes.client_max);
    shmq_owner_unlock(entry, place, (uint32_t)nasty(random, lock.holder));
    if ((dice >> 20) % 4 == 0) {
        shmq_owner_free(entry, place);
    }
    shmq_offset_lose(entry, place, roll(random), roll(random));
    if ((dice >> 24) % 8 == 0) {
        shmq_client_drop(store, (uint32_t)roll(random) % 5);
    }
    shmq_wake_own(store);
}

/* ---- the consumer's calls ------------------------------------------------------------------------------ */
static void read_record(struct shmq_store *store, uint64_t log_position)
{
    struct shmq_mapping *mapping = shmq_mapping_get(store, log_position);
    struct shmq_view view;
    if (mapping == NULL) {
        return;
    }
    const uint8_t *data = mapping->data + (log_position - mapping->base);
    enum shmq_status status = shmq_record_decode(data, mapping->base + mapping->bytes - log_position, &view);
    note(status);
    if (status == SHMQ_OK) {
        size_t bytes;
        note(shmq_record_verify(data, &view));
        (void)shmq_property_find(view.properties, view.properties_bytes, "TAGS", 4, &bytes);
    }
}

static void read_units(struct shmq_store *store, uint64_t *random)
{
    uint8_t units[300 * SHMQ_UNIT_BYTES];
    uint32_t queue = (uint32_t)(roll(random) % 6), count = 1 + (uint32_t)(roll(random) % 300);
    uint64_t first = roll(random) % 2 != 0 ? roll(random) % 400 : nasty(random, 0);
    uint32_t got = shmq_units_read(store, queue, first, count, units);
    ARENA_MUST(got <= count);
    got += shmq_units_read_file(store, queue, first, count, units);
    for (uint32_t i = 0; i < got && i < 4; i++) {
        struct shmq_unit unit;
        shmq_unit_unpack(units + (size_t)i * SHMQ_UNIT_BYTES, &unit);
        read_record(store, unit.log_position);
    }
}

static void look_up(struct shmq_store *store, uint64_t *random)
{
    char name[16];
    snprintf(name, sizeof name, roll(random) % 4 == 0 ? ARENA_TOPIC : "topic%u", (uint32_t)(roll(random) % 4));
    uint32_t topic = shmq_topic_find(store, name, strlen(name));
    uint32_t queue = shmq_topic_queue(store, roll(random) % 2 != 0 ? topic : (uint32_t)roll(random), (uint32_t)(roll(random) % 9));
    ARENA_MUST(queue == SHMQ_NONE || shmq_queue_is_number(store, queue));
    (void)shmq_group_find(store, "group");
    (void)shmq_frame_find(store, (uint32_t)(roll(random) % 6), (uint32_t)(roll(random) % 4));
    read_record(store, nasty(random, shmq_load_acquire(&store->log->end)));
}

static void follow(struct shmq_store *store, uint64_t *random)
{
    struct shmq_reader reader;
    struct shmq_delivery delivery;
    void *context;
    uint64_t offset;
    shmq_reader_init(&reader, store);
    for (uint32_t queue = 0; queue < ARENA_QUEUES; queue++) {
        note(shmq_reader_assign(&reader, queue, queue, roll(random) % 200, shmq_offset_place((uint32_t)(roll(random) % 2), queue), NULL, &context));
    }
    for (uint32_t i = 0; i < 40; i++) {
        enum shmq_status status = shmq_reader_next(&reader, &delivery);
        note(status);
        if (status == SHMQ_OK && roll(random) % 2 != 0) {
            note(shmq_reader_ack(&reader, delivery.cursor, delivery.serial, delivery.queue_offset));
        }
    }
    (void)shmq_reader_lag(&reader);
    note(shmq_reader_search_time(store, (uint32_t)(roll(random) % 5), roll(random) % 3000, &offset));
    shmq_reader_clear(&reader);
}

static void consume(struct shmq_store *store, uint64_t *random)
{
    uint32_t queues[3] = {0, 1, (uint32_t)(roll(random) % 40)};
    uint64_t offsets[3] = {1000, roll(random) % 400, nasty(random, 5)};
    read_units(store, random);
    look_up(store, random);
    follow(store, random);
    note(shmq_wait(store, queues, offsets, 3, (uint32_t)(roll(random) % 20), after(WAIT_NS)));
    note(shmq_wait_durable(store, nasty(random, 100), after(WAIT_NS)));
    (void)shmq_visible_end(store);
    shmq_wake(store, (uint32_t)(roll(random) % 30));
}

/* ---- the producer's calls ------------------------------------------------------------------------------- */
static void produce(struct shmq_store *store, uint64_t *random)
{
    static uint8_t body[40000];
    struct shmq_appended out;
    struct shmq_claim_handle claim;
    uint64_t client;
    uint32_t queue = (uint32_t)(roll(random) % 5), index;
    uint32_t count = 0;
    struct shmq_leaving leaving[4];
    uint64_t until = after(3 * WAIT_NS), durable;
    struct message message = {.id = 5, .queue = queue, .body_bytes = (uint32_t)(roll(random) % 500)};
    struct shmq_spec spec = message_spec(&message, body), specs[3] = {spec, spec, spec};
    const int64_t tags[3] = {1, 2, 3};
    if (roll(random) % 4 == 0) { /* a process died and left an intent */
        arena.store.log->lock.__data.__lock = (int)FUTEX_OWNER_DIED;
        atomic_store(&arena.store.log->intent.kind, (uint32_t)(roll(random) % 5));
    }
    if (roll(random) % 8 == 0) { /* a claim of a process that is alive and slow, or of none */
        arena.store.log->claim.owner_pid = roll(random) % 2 != 0 ? store->self_pid : 0;
        arena.store.log->claim.owner_start = store->self_start;
        arena.store.log->claim.bytes = nasty(random, 300);
        atomic_store(&arena.store.log->claim.state, SHMQ_CLAIM_OPEN);
    }
    note(shmq_append(store, queue, &spec, 1, until, &out));
    note(shmq_append_batch(store, queue, specs, tags, 3, until, &out));
    spec.body_bytes = 20000;
    note(shmq_append(store, queue, &spec, 1, until, &out));
    spec.body_bytes = message.body_bytes;
    if (shmq_claim_open(store, queue, spec.body_bytes, 60, until, &claim) == SHMQ_OK) {
        spec.body = NULL;
        spec.body_crc_raw = 7;
        enum shmq_status status = shmq_claim_commit(store, &claim, &spec, 1, until, &out);
        note(status);
        if (status != SHMQ_OK) {
            shmq_claim_abort(store, &claim);
        }
    }
    (void)shmq_frames_release(store, queue, roll(random) % 3, 2, until);
    note(shmq_topic_put(store, roll(random) % 2 != 0 ? "topic1" : "topic9", 2, 2, 6, 0, 0, &index));
    note(shmq_group_put(store, "group2", &index));
    note(shmq_offset_put(store, 0, queue, &index));
    note(shmq_queues_close(store, until, 4, leaving, &count));
    note(shmq_topic_delete(store, "topic9"));
    note(shmq_topic_free(store, (uint32_t)(roll(random) % 4), 2));
    note(count != 0 ? shmq_queue_free(store, leaving[0].queue) : SHMQ_EMPTY);
    note(shmq_client_put(store, 1, 1, 1, &client));
    shmq_wake(store, queue);
    note(shmq_flush(store, &durable));
    atomic_store(&arena.store.log->read_only, SHMQ_WRITABLE);
}

/* ---- rounds ------------------------------------------------------------------------------------------------ */
static void build(void)
{
    char broker[40];
    uint32_t index;
    snprintf(broker, sizeof broker, "/hostile%d", (int)getpid());
    const struct arena_options options = {
        .file_bytes = FILE_BYTES, .file_count = 3, .frame_max = 16, .frame_ready = 12};
    arena_create(&arena, &options);
    for (uint32_t i = 0; i < 240; i++) {
        uint8_t body[100];
        struct shmq_appended out;
        struct message message = {.id = i, .queue = i % 16 == 0 ? 1 : 0, .body_bytes = i % 100};
        struct shmq_spec spec = message_spec(&message, body);
        ARENA_MUST(shmq_append(&arena.store, message.queue, &spec, 3, after(WAIT_NS * 10000), &out) == SHMQ_OK);
    }
    ARENA_MUST(shmq_topic_put(&arena.store, "topic0", 3, 3, 6, 0, 0, &index) == SHMQ_OK);
    ARENA_MUST(shmq_topic_put(&arena.store, "topic1", 1, 1, 6, 0, 0, &index) == SHMQ_OK);
    ARENA_MUST(shmq_group_put(&arena.store, "group", &index) == SHMQ_OK);
    for (uint32_t queue = 0; queue < 3; queue++) {
        ARENA_MUST(shmq_offset_put(&arena.store, 0, queue, &index) == SHMQ_OK);
    }
    for (uint32_t i = 0; i < 3; i++) {
        uint64_t client;
        ARENA_MUST(shmq_client_put(&arena.store, arena.store.self_pid, arena.store.self_start, 3, &client) == SHMQ_OK);
    }
    semaphore = sem_open(broker, O_CREAT | O_EXCL, 0600, 0); /* gone by name at once: a crash leaves nothing behind */
    ARENA_MUST(semaphore != SEM_FAILED && sem_unlink(broker) == 0);
    snapshot = malloc(arena_snapshot_bytes(&arena) + SHMQ_PAGE_BYTES);
    ARENA_MUST(snapshot != NULL);
    memcpy(snapshot, arena.control, SHMQ_PAGE_BYTES); /* the head, which arena snapshots leave out */
    arena_save(&arena, snapshot + SHMQ_PAGE_BYTES);
}

static void put_back(void)
{
    memcpy(arena.control, snapshot, SHMQ_PAGE_BYTES);
    arena_restore(&arena, snapshot + SHMQ_PAGE_BYTES);
}

static void attach_guarded(struct shmq_store *store, bool writable, struct shmq_io *io)
{
    *io = guarded_io();
    if (writable) {
        arena_attach(&arena, store, true);
    } else {
        arena_attach_reader(&arena, store);
    }
    store->io = io;
    store->client = shmq_client_word(store, 0);
    store->semaphores[0] = semaphore;
}

/* A stream of its own, so that the others draw what they drew without it. */
static uint64_t stream_of_owners(uint64_t seed)
{
    return seed ^ UINT64_C(0x6f776e6572730000);
}

static void hand_over(struct shmq_store *store, uint64_t *random)
{
    for (uint64_t flips = 1 + roll(random) % 6; flips > 0; flips--) {
        scribble_owners(random);
    }
    own(store, random);
}

static void read_rounds(uint64_t rounds, uint64_t random)
{
    uint64_t owners = stream_of_owners(random);
    for (uint64_t round = 0; round < rounds; round++) {
        alarm(ROUND_SECONDS_MAX);
        for (uint64_t flips = 1 + roll(&random) % 8; flips > 0; flips--) {
            scribble(&random);
        }
        hand_over(&reading, &owners);
        consume(&reading, &random);
        put_back();
    }
}

static void write_rounds(uint64_t rounds, uint64_t random)
{
    for (uint64_t round = 0; round < rounds; round += CHILD_ROUNDS) {
        uint64_t seed = roll(&random);
        fflush(stdout);
        pid_t child = fork();
        ARENA_MUST(child >= 0);
        if (child == 0) {
            struct shmq_store store;
            struct shmq_io io;
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            attach_guarded(&store, true, &io);
            uint64_t owners = stream_of_owners(seed);
            for (uint32_t i = 0; i < CHILD_ROUNDS; i++) {
                alarm(ROUND_SECONDS_MAX);
                for (uint64_t flips = 1 + roll(&seed) % 12; flips > 0; flips--) {
                    scribble(&seed);
                }
                hand_over(&store, &owners);
                produce(&store, &seed);
                put_back();
            }
            _exit(0);
        }
        int status;
        ARENA_MUST(waitpid(child, &status, 0) == child);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            printf("{\"mode\": \"write\", \"round\": %" PRIu64 ", \"signal\": %d, \"status\": %d}\n", round,
                   WIFSIGNALED(status) ? WTERMSIG(status) : 0, WIFEXITED(status) ? WEXITSTATUS(status) : 0);
            exit(1);
        }
        put_back();
    }
}

static _Atomic bool racing;

static void *scribbler(void *argument)
{
    uint64_t random = *(uint64_t *)argument, owners = stream_of_owners(random);
    for (uint64_t i = 0; atomic_load_explicit(&racing, memory_order_relaxed); i++) {
        scribble(&random);
        scribble_owners(&owners);
        if (i % 64 == 0) {
            put_back(); /* else soon nothing is left that a call would go on with */
        }
    }
    return NULL;
}

static void race_rounds(uint64_t rounds, uint64_t random)
{
    pthread_t thread;
    uint64_t seed = roll(&random), owners = stream_of_owners(seed);
    atomic_store(&racing, true);
    ARENA_MUST(pthread_create(&thread, NULL, scribbler, &seed) == 0);
    for (uint64_t round = 0; round < rounds; round++) {
        alarm(ROUND_SECONDS_MAX);
        own(&reading, &owners);
        consume(&reading, &random);
    }
    atomic_store(&racing, false);
    pthread_join(thread, NULL);
    put_back();
}

int main(int argc, char **argv)
{
    static struct shmq_io io;
    ARENA_MUST(argc == 4);
    answers = mmap(NULL, SHMQ_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ARENA_MUST(answers != MAP_FAILED);
    uint64_t rounds = strtoull(argv[2], NULL, 10), seed = strtoull(argv[3], NULL, 10);
    build();
    attach_guarded(&reading, false, &io);
    if (strcmp(argv[1], "read") == 0) {
        read_rounds(rounds, seed);
    } else if (strcmp(argv[1], "write") == 0) {
        write_rounds(rounds, seed);
    } else {
        race_rounds(rounds, seed);
    }
    printf("{\"mode\": \"%s\", \"rounds\": %" PRIu64 ", \"answers\": {", argv[1], rounds);
    for (uint32_t status = 0, before = 0; status < 32; status++) {
        if (answers[status] != 0) {
            printf("%s\"%u\": %" PRIu64, before++ == 0 ? "" : ", ", status, answers[status]);
        }
    }
    printf("}}\n");
    free(snapshot);
    arena_destroy(&arena);
    return 0;
}
