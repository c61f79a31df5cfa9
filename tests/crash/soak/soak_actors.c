/* The processes of the soak that get killed. See soak.h. */
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "soak.h"

/* Long, so that a busy machine fails none; the supervisor says which slept for too long. */
#define DEADLINE_NS UINT64_C(60000000000)
#define BATCH_MAX 24u
#define PRODUCER_PAUSE_US 100u /* the log lasts for more kills: without a pause there is a kill for every 7,000 messages */

uint64_t soak_random(uint64_t *state)
{
    *state += UINT64_C(0x9E3779B97F4A7C15);
    uint64_t value = *state;
    value = (value ^ (value >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94D049BB133111EB);
    return value ^ (value >> 31);
}

void soak_violation(struct soak_page *page, const char *format, ...)
{
    if (atomic_fetch_add(&page->violations, 1) == 0) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(page->first, sizeof page->first, format, arguments);
        va_end(arguments);
    }
}

void soak_body(uint8_t *body, uint32_t body_bytes, const struct soak_stamp *stamp)
{
    memcpy(body, stamp, sizeof *stamp);
    memset(body + sizeof *stamp, (int)(stamp->number * 7 + stamp->producer), body_bytes - sizeof *stamp);
}

bool soak_body_is_whole(const uint8_t *body, uint32_t body_bytes, struct soak_stamp *stamp)
{
    if (body_bytes < sizeof *stamp) {
        return false;
    }
    memcpy(stamp, body, sizeof *stamp);
    uint8_t filler = (uint8_t)(stamp->number * 7 + stamp->producer);
    return body_bytes == sizeof *stamp ||
           (body[sizeof *stamp] == filler &&
            memcmp(body + sizeof *stamp, body + sizeof *stamp + 1, body_bytes - sizeof *stamp - 1) == 0);
}

/* ---- producer ----------------------------------------------------------------------------------- */
struct producer {
    const struct soak_role *role;
    struct soak_life *life;
    struct shmq_store store;
    struct shmq_appended last; /* where what was appended last ends */
    uint64_t random, number;
};

static struct shmq_spec spec_of(struct producer *producer, uint8_t *body, uint32_t body_bytes, uint32_t queue)
{
    struct soak_stamp stamp = {producer->role->index, producer->role->life, ++producer->number};
    soak_body(body, body_bytes, &stamp);
    return (struct shmq_spec){.body = body, .body_bytes = body_bytes, .topic = ARENA_TOPIC,
                              .topic_bytes = sizeof ARENA_TOPIC - 1, .queue_id = queue, .properties = "TAGS\001a\002",
                              .properties_bytes = 7};
}

static uint64_t deadline(void)
{
    return shmq_io_posix.monotonic_ns() + DEADLINE_NS;
}

static enum shmq_status produce_one(struct producer *producer, uint32_t queue, uint32_t body_bytes)
{
    static uint8_t body[SOAK_BODY_MAX];
    struct shmq_spec spec = spec_of(producer, body, body_bytes, queue);
    atomic_store(&producer->life->wanted, producer->number);
    return shmq_append(&producer->store, queue, &spec, 1, deadline(), &producer->last);
}

static enum shmq_status produce_batch(struct producer *producer, uint32_t queue, uint32_t count)
{
    static uint8_t bodies[BATCH_MAX][200];
    struct shmq_spec specs[BATCH_MAX];
    int64_t tags[BATCH_MAX] = {0};
    for (uint32_t i = 0; i < count; i++) {
        specs[i] = spec_of(producer, bodies[i], 16 + (uint32_t)(soak_random(&producer->random) % 180), queue);
    }
    atomic_store(&producer->life->wanted, producer->number);
    return shmq_append_batch(&producer->store, queue, specs, tags, count, deadline(), &producer->last);
}

/* As a transaction ends: a record in each of some queues, all or none. */
static enum shmq_status produce_together(struct producer *producer, uint32_t queue, uint32_t count)
{
    static uint8_t bodies[ARENA_QUEUES][300];
    struct shmq_entry entries[ARENA_QUEUES];
    struct shmq_appended out[ARENA_QUEUES];
    for (uint32_t i = 0; i < count; i++) {
        uint32_t body_bytes = 16 + (uint32_t)(soak_random(&producer->random) % 280), other = (queue + i) % ARENA_QUEUES;
        entries[i] = (struct shmq_entry){.queue = other, .spec = spec_of(producer, bodies[i], body_bytes, other)};
    }
    atomic_store(&producer->life->wanted, producer->number);
    enum shmq_status status = shmq_append_together(&producer->store, entries, count, UINT64_MAX, deadline(), out);
    producer->last = status == SHMQ_OK ? out[count - 1] : producer->last;
    return status;
}

/* How a claim goes on after it was opened. */
enum pace { PACE_COMMIT, PACE_ABORT, PACE_TOO_SLOW };

static enum shmq_status produce_claim(struct producer *producer, uint32_t queue, uint32_t body_bytes, enum pace pace)
{
    static uint8_t body[SOAK_BODY_MAX];
    struct shmq_claim_handle claim;
    enum shmq_status status = shmq_claim_open(&producer->store, queue, body_bytes, 100, deadline(), &claim);
    if (status != SHMQ_OK) {
        return status;
    }
    if (pace == PACE_ABORT) {
        memset(claim.body, 0xEE, body_bytes);
        shmq_claim_abort(&producer->store, &claim);
        return SHMQ_OK;
    }
    struct shmq_spec spec = spec_of(producer, body, body_bytes, queue);
    atomic_store(&producer->life->wanted, producer->number);
    spec.body = NULL;
    spec.body_crc_raw = shmq_crc32_copy_raw(UINT32_MAX, claim.body, body, body_bytes);
    if (pace == PACE_TOO_SLOW) {
        usleep(SHMQ_CLAIM_PATIENCE_NS / 1000 * 3 / 2);
    }
    status = shmq_claim_commit(&producer->store, &claim, &spec, 1, deadline(), &producer->last);
    if (status == SHMQ_EVICTED) {
        atomic_fetch_add(&producer->role->page->evicted, 1);
        spec.body = claim.body;
        status = shmq_append(&producer->store, queue, &spec, 1, deadline(), &producer->last);
        shmq_claim_abort(&producer->store, &claim);
    }
    return status;
}

void soak_produce(const struct soak_role *role)
{
    static struct producer producer;
    producer.role = role;
    producer.life = &role->page->lives[role->index][role->life];
    producer.random = role->seed;
    arena_attach(role->arena, &producer.store, true);
    for (;;) {
        uint64_t dice = soak_random(&producer.random);
        uint32_t queue = (uint32_t)(dice >> 40) % ARENA_QUEUES, kind = (uint32_t)(dice % 1000);
        uint32_t size = (uint32_t)(dice >> 20) % 4000;
        enum pace pace = (dice >> 52) % 200 == 0 ? PACE_TOO_SLOW : kind % 4 == 0 ? PACE_ABORT : PACE_COMMIT;
        enum shmq_status status = kind < 740   ? produce_one(&producer, queue, 16 + size % 300)
                                  : kind < 880 ? produce_batch(&producer, queue, 1 + size % BATCH_MAX)
                                  : kind < 940 ? produce_together(&producer, queue, 2 + size % (ARENA_QUEUES - 1))
                                  : kind < 985 ? produce_claim(&producer, queue, 16 + size, pace)
                                               : produce_one(&producer, queue, (16u << 10) + size * 5);
        if (status == SHMQ_LOG_FULL) {
            atomic_store(&producer.life->wanted, atomic_load(&producer.life->acked));
            return;
        }
        if (status != SHMQ_OK) {
            soak_violation(role->page, "producer %u: status %d", role->index, status);
            return;
        }
        atomic_store(&producer.life->acked, producer.number);
        if ((dice >> 32) % 8 == 1) {
            usleep((useconds_t)(dice >> 44) % PRODUCER_PAUSE_US);
        }
        if ((dice >> 32) % 64 == 0) {
            status = shmq_wait_durable(&producer.store, producer.last.end, deadline());
            if (status != SHMQ_OK) {
                soak_violation(role->page, "producer %u waits for the disk: status %d", role->index, status);
                return;
            }
        }
    }
}

/* ---- reader ------------------------------------------------------------------------------------- */
static bool read_some(struct shmq_store *store, const struct soak_role *role, uint32_t queue, uint64_t *next)
{
    uint8_t units[64 * SHMQ_UNIT_BYTES];
    uint32_t got = shmq_units_read(store, queue, *next, 64, units);
    for (uint32_t i = 0; i < got; i++) {
        struct shmq_unit unit;
        struct shmq_view view;
        struct soak_stamp stamp;
        shmq_unit_unpack(units + (size_t)i * SHMQ_UNIT_BYTES, &unit);
        const struct shmq_mapping *mapping = shmq_mapping_get(store, unit.log_position);
        const uint8_t *data = mapping == NULL ? NULL : mapping->data + (unit.log_position - mapping->base);
        if (mapping == NULL || unit.log_position + unit.record_bytes > shmq_load_acquire(&store->log->end) ||
            shmq_record_decode(data, mapping->base + mapping->bytes - unit.log_position, &view) != SHMQ_OK ||
            shmq_record_verify(data, &view) != SHMQ_OK || view.queue_offset != *next + i || view.queue_id != queue ||
            view.record_bytes != unit.record_bytes || !soak_body_is_whole(view.body, view.body_bytes, &stamp)) {
            soak_violation(role->page, "reader: queue %u offset %" PRIu64 " at %" PRIu64, queue, *next + i,
                           unit.log_position);
            return false;
        }
    }
    *next += got;
    atomic_store(&role->page->read_to[role->index][queue], *next);
    return got > 0;
}

void soak_read(const struct soak_role *role)
{
    struct shmq_store store;
    uint64_t next[ARENA_QUEUES];
    arena_attach_reader(role->arena, &store);
    for (uint32_t queue = 0; queue < ARENA_QUEUES; queue++) {
        next[queue] = atomic_load(&role->page->read_to[role->index][queue]);
    }
    while (atomic_load(&role->page->violations) == 0) {
        bool news = false;
        for (uint32_t queue = 0; queue < ARENA_QUEUES; queue++) {
            news |= read_some(&store, role, queue, &next[queue]);
        }
        if (!news) {
            usleep(200); /* nothing to follow: leave the processors to the producers */
        }
    }
}

/* ---- keeper ------------------------------------------------------------------------------------- */
static void release_frames(struct shmq_store *store, struct soak_page *page)
{
    for (uint32_t queue = 0; queue < ARENA_QUEUES; queue++) {
        uint64_t passed = UINT64_MAX;
        for (uint32_t reader = 0; reader < SOAK_READERS; reader++) {
            uint64_t at = atomic_load(&page->read_to[reader][queue]);
            passed = at < passed ? at : passed;
        }
        uint64_t last = atomic_load(&store->queues[queue].persisted);
        if (passed >= last + SHMQ_FRAME_UNITS) {
            atomic_store(&store->queues[queue].persisted, passed);
            atomic_fetch_add(&page->released,
                             shmq_frames_release(store, queue, last / SHMQ_FRAME_UNITS,
                                                 (uint32_t)((passed - last) / SHMQ_FRAME_UNITS + 1), deadline()));
        }
    }
}

/* Groups, offset slots and client slots come and go under the table lock; now and then the log is flushed. */
static void change_tables(struct shmq_store *store, struct soak_page *page, uint64_t dice)
{
    const char name[] = {(char)('a' + (dice >> 8) % 12), 0}; /* more than there is room for */
    uint32_t group, slot;
    uint64_t durable_end, client;
    enum shmq_status status = SHMQ_OK;
    switch (dice % 8) {
    case 0:
        status = shmq_group_delete(store, name);
        break;
    case 1:
        status = shmq_client_put(store, store->self_pid, store->self_start, 3, &client);
        shmq_client_drop(store, (uint32_t)(dice >> 16) % store->sizes.client_max); /* also those of the dead */
        break;
    case 2:
        status = shmq_flush(store, &durable_end);
        break;
    default:
        status = shmq_group_put(store, name, &group);
        if (status == SHMQ_OK) {
            status = shmq_offset_put(store, group, (uint32_t)(dice >> 16) % ARENA_QUEUES, &slot);
        }
    }
    if (status != SHMQ_OK && status != SHMQ_TABLE_FULL && status != SHMQ_NO_TOPIC && status != SHMQ_EMPTY) {
        soak_violation(page, "keeper: status %d of change %u", status, (uint32_t)(dice % 8));
    }
    atomic_fetch_add(&page->changes, 1);
}

void soak_keep(const struct soak_role *role)
{
    struct shmq_store store;
    uint64_t random = role->seed;
    arena_attach(role->arena, &store, true);
    while (atomic_load(&role->page->violations) == 0) {
        release_frames(&store, role->page);
        change_tables(&store, role->page, soak_random(&random));
        usleep((useconds_t)(soak_random(&random) % 300));
    }
}
