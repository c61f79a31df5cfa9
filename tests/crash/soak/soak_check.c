/* The end of a soak round: the whole log, every queue, every life. See soak.h. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "soak.h"

struct census {
    struct arena *arena;
    struct soak_page *page;
    uint64_t next[ARENA_QUEUES];
    uint64_t seen[SOAK_PRODUCERS][SOAK_LIVES_MAX];
    uint64_t messages;
};

static void count_record(struct census *census, const uint8_t *data, const struct shmq_view *view)
{
    struct soak_stamp stamp;
    uint64_t at = view->log_position;
    if (view->sys_flag == SHMQ_SYS_FLAG_ROLLBACK) {
        return; /* a hole; its owner may have died before it could settle the body */
    }
    if (shmq_record_verify(data, view) != SHMQ_OK || !soak_body_is_whole(view->body, view->body_bytes, &stamp) ||
        stamp.producer >= SOAK_PRODUCERS || stamp.life >= SOAK_LIVES_MAX) {
        soak_violation(census->page, "record at %" PRIu64 " is damaged", at);
        return;
    }
    if (view->queue_id >= ARENA_QUEUES || view->queue_offset != census->next[view->queue_id]) {
        soak_violation(census->page, "record at %" PRIu64 ": queue %u offset %" PRIu64, at, view->queue_id,
                       view->queue_offset);
        return;
    }
    census->next[view->queue_id]++;
    if (stamp.number != ++census->seen[stamp.producer][stamp.life]) {
        soak_violation(census->page, "producer %u life %u: message %" PRIu64 " where %" PRIu64 " was due", stamp.producer,
                       stamp.life, stamp.number, census->seen[stamp.producer][stamp.life]);
    }
    /* Its unit, unless its frame was given back. */
    uint8_t bytes[SHMQ_UNIT_BYTES];
    struct shmq_unit unit;
    if (shmq_units_read(&census->arena->store, view->queue_id, view->queue_offset, 1, bytes) == 1) {
        shmq_unit_unpack(bytes, &unit);
        if (unit.log_position != at || unit.record_bytes != view->record_bytes) {
            soak_violation(census->page, "unit %u/%" PRIu64 " does not name its record", view->queue_id,
                           view->queue_offset);
        }
    } else if (view->queue_offset >= atomic_load(&census->arena->store.queues[view->queue_id].persisted)) {
        soak_violation(census->page, "unit %u/%" PRIu64 " is lost", view->queue_id, view->queue_offset);
    }
    census->messages++;
}

static void walk(struct census *census)
{
    uint64_t file_bytes = census->arena->options.file_bytes, end = shmq_load_acquire(&census->arena->store.log->end);
    for (uint64_t at = 0; at < end;) {
        const uint8_t *data = arena_log(census->arena, at);
        uint64_t left = file_bytes - at % file_bytes;
        struct shmq_view view;
        enum shmq_status status = shmq_record_decode(data, left, &view);
        if (status == SHMQ_EMPTY && data[4] != 0) {
            at += left;
            continue;
        }
        if (status != SHMQ_OK || view.log_position != at) {
            soak_violation(census->page, "no record at %" PRIu64 " (status %d)", at, status);
            return;
        }
        count_record(census, data, &view);
        at += view.record_bytes;
    }
}

/* Groups and offset slots: each once, each within its table. */
static void look_at_tables(const struct shmq_store *store, struct soak_page *page)
{
    uint32_t groups = atomic_load(&store->readers->group_count), offsets = atomic_load(&store->readers->offset_count);
    if (groups > store->sizes.group_max || offsets > store->sizes.offset_max) {
        soak_violation(page, "tables hold %u groups and %u offsets", groups, offsets);
        return;
    }
    for (uint32_t one = 0; one < groups; one++) {
        for (uint32_t other = 0; other < one; other++) {
            if (atomic_load(&store->groups[one].state) == 1 && atomic_load(&store->groups[other].state) == 1 &&
                strcmp(store->groups[one].name, store->groups[other].name) == 0) {
                soak_violation(page, "group %s is there twice", store->groups[one].name);
            }
        }
    }
    for (uint32_t one = 0; one < offsets; one++) {
        uint64_t place = atomic_load(&store->offsets[one].place); /* a group's number << 32 | a queue's */
        if ((place >> 32 & store->group_mask) >= groups || (uint32_t)place >= ARENA_QUEUES) {
            soak_violation(page, "offset %u is of group %u, queue %u", one, (uint32_t)(place >> 32), (uint32_t)place);
        }
        for (uint32_t other = 0; other < one; other++) {
            if (place == atomic_load(&store->offsets[other].place)) {
                soak_violation(page, "offsets %u and %u are of one group and queue", other, one);
            }
        }
    }
}

uint64_t soak_check(struct arena *arena, struct soak_page *page, const uint32_t lives[SOAK_PRODUCERS])
{
    struct census *census = calloc(1, sizeof *census);
    ARENA_MUST(census != NULL);
    census->arena = arena;
    census->page = page;
    /* As any next process would: the last death with the lock is repaired here. */
    ARENA_MUST(shmq_lock(&arena->store, shmq_io_posix.monotonic_ns() + UINT64_C(1000000000)) == SHMQ_OK);
    shmq_unlock(&arena->store);
    walk(census);
    for (uint32_t queue = 0; queue < ARENA_QUEUES; queue++) {
        uint64_t offset_max = shmq_load_acquire(&arena->store.queues[queue].offset_max);
        if (offset_max != census->next[queue]) {
            soak_violation(page, "queue %u: offset_max %" PRIu64 ", records up to %" PRIu64, queue, offset_max,
                           census->next[queue]);
        }
    }
    for (uint32_t producer = 0; producer < SOAK_PRODUCERS; producer++) {
        for (uint32_t life = 0; life < lives[producer]; life++) {
            uint64_t acked = atomic_load(&page->lives[producer][life].acked);
            uint64_t wanted = atomic_load(&page->lives[producer][life].wanted);
            uint64_t seen = census->seen[producer][life];
            if (seen != acked && seen != wanted) {
                soak_violation(page, "producer %u life %u: %" PRIu64 " acknowledged, %" PRIu64 " wanted, %" PRIu64 " there",
                               producer, life, acked, wanted, seen);
            }
        }
    }
    uint64_t end = shmq_load_acquire(&arena->store.log->end), durable = shmq_load_acquire(&arena->store.log->durable_end);
    if (durable > end) {
        soak_violation(page, "the durable end %" PRIu64 " is behind the log end %" PRIu64, durable, end);
    }
    look_at_tables(&arena->store, page);
    uint64_t messages = census->messages;
    free(census);
    return messages;
}
