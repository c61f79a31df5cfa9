/* Counts the system calls of the hot path in its steady state: one warm-up, then the same operation watched.
 *
 * Prints one JSON line an operation: {"operation": …, "calls": n, "last": number of the last call}.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "shapes.h"
#include "trace.h"

static struct scenery scenery;
static struct actor actor;
static struct notes *notes;

static void warm_up(void *argument)
{
    actor_prepare(&actor, argument, &scenery, notes, &scenery.ledger.parties[0].first);
    actor_act(&actor);
    ARENA_MUST(atomic_load(&notes->acked) == 1);
    atomic_store(&notes->phase, PHASE_READY);
}

static void act(void *argument)
{
    (void)argument;
    actor_act(&actor);
}

/* What a consumer does with a message: units, record, CRC. */
static void read_once(void)
{
    uint8_t bytes[4 * SHMQ_UNIT_BYTES];
    struct shmq_unit unit;
    struct shmq_view view;
    ARENA_MUST(shmq_units_read(&actor.store, 0, 0, 2, bytes) == 2);
    shmq_unit_unpack(bytes, &unit);
    const struct shmq_mapping *mapping = shmq_mapping_get(&actor.store, unit.log_position);
    const uint8_t *data = mapping->data + (unit.log_position - mapping->base);
    ARENA_MUST(shmq_record_decode(data, mapping->base + mapping->bytes - unit.log_position, &view) == SHMQ_OK);
    ARENA_MUST(shmq_record_verify(data, &view) == SHMQ_OK);
}

static void warm_up_reader(void *argument)
{
    warm_up(argument);
    read_once();
}

static void act_reader(void *argument)
{
    (void)argument;
    atomic_store(&notes->phase, PHASE_RUNNING);
    read_once();
    atomic_store(&notes->phase, PHASE_DONE);
}

static void count(const struct shape *shape, void (*before)(void *), void (*start)(void *))
{
    long last = -1;
    memset(notes, 0, sizeof *notes);
    scenery_open(&scenery, shape);
    pid_t child = trace_spawn(before, start, (void *)(uintptr_t)shape);
    uint32_t calls = trace_count_calls(child, &notes->phase, PHASE_RUNNING, &last);
    printf("{\"operation\": \"%s\", \"calls\": %u, \"last\": %ld, \"finished\": %s}\n", shape->name, calls, last,
           atomic_load(&notes->phase) == PHASE_DONE ? "true" : "false");
    ledger_close(&scenery.ledger);
    scenery_close(&scenery);
}

int main(void)
{
    static const struct shape watched[] = {
        {"append-0", OPERATION_APPEND, SCENE_PLAIN, 0, 1, NULL, 0},
        {"append-256", OPERATION_APPEND, SCENE_PLAIN, 256, 1, NULL, 0},
        {"append-4096", OPERATION_APPEND, SCENE_PLAIN, 4096, 1, NULL, 0},
        {"batch-3", OPERATION_BATCH, SCENE_PLAIN, 100, 3, NULL, 0},
        {"append-256-wake-none", OPERATION_WAKE, SCENE_PLAIN, 256, 1, NULL, 0},
        {"append-17000", OPERATION_APPEND, SCENE_PLAIN, 17000, 1, NULL, 0},
        {"claim-whole", OPERATION_CLAIM_WHOLE, SCENE_PLAIN, 500, 1, NULL, 0},
    };
    static const struct shape read = {"read", OPERATION_APPEND, SCENE_PLAIN, 256, 1, NULL, 0};
    notes = mmap(NULL, SHMQ_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ARENA_MUST(notes != MAP_FAILED);
    for (size_t i = 0; i < sizeof watched / sizeof watched[0]; i++) {
        count(&watched[i], warm_up, act);
    }
    count(&read, warm_up_reader, act_reader);
    return 0;
}
