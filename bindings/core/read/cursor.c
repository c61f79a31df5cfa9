/* Assignment of queues to cursors and the acknowledgement window of each; reader.h has the picture and the rules. */
#include <stdlib.h>
#include <string.h>

#include "core/read/reader.h"

#define WINDOW_BITS_MIN UINT64_C(256)
#define WAIT_NS_MAX UINT64_C(1000000) /* a longer wait counts as so long */

/* ---- assignment ------------------------------------------------------------------------------------ */
struct shmq_cursor *shmq_reader_find(struct shmq_reader *reader, uint32_t queue)
{
    for (uint32_t i = 0; i < reader->cursor_count; i++) {
        if (reader->cursors[i]->live && reader->cursors[i]->queue == queue) {
            return reader->cursors[i];
        }
    }
    return NULL;
}

static struct shmq_cursor *cursor_vacant(struct shmq_reader *reader)
{
    for (uint32_t i = 0; i < reader->cursor_count; i++) {
        if (!reader->cursors[i]->live) {
            return reader->cursors[i];
        }
    }
    if (reader->cursor_count == reader->cursor_capacity) {
        uint32_t capacity = reader->cursor_capacity ? reader->cursor_capacity * 2 : 8;
        struct shmq_cursor **cursors = realloc(reader->cursors, capacity * sizeof *cursors);
        if (!cursors) {
            return NULL;
        }
        reader->cursors = cursors;
        reader->cursor_capacity = capacity;
    }
    struct shmq_cursor *cursor = calloc(1, sizeof *cursor);
    if (cursor) {
        reader->cursors[reader->cursor_count++] = cursor;
    }
    return cursor;
}

enum shmq_status shmq_reader_assign(struct shmq_reader *reader, uint32_t queue, uint32_t queue_id, uint64_t offset,
                                    uint64_t place, void *context, void **context_old)
{
    struct shmq_store *store = reader->store;
    const uint32_t slot = place == SHMQ_NO_PLACE ? SHMQ_NONE : shmq_offset_slot(store, place);
    *context_old = NULL;
    if (!shmq_queue_is_number(store, queue) ||
        (place != SHMQ_NO_PLACE && (slot == SHMQ_NONE || (uint32_t)place != queue))) {
        return SHMQ_BAD_ARGUMENT;
    }
    struct shmq_cursor *cursor = shmq_reader_find(reader, queue);
    if (!cursor) {
        cursor = cursor_vacant(reader);
    }
    if (!cursor) {
        return SHMQ_SYSTEM;
    }
    *context_old = cursor->context;
    cursor->context = context;
    cursor->live = true;
    cursor->paused = cursor->unsaved = cursor->doubts = false;
    cursor->queue = queue;
    cursor->queue_id = queue_id;
    cursor->slot = slot;
    cursor->place = place;
    shmq_reader_seek(reader, cursor, offset);
    cursor->sought = false; /* it is where the group goes on */
    return SHMQ_OK;
}

void shmq_reader_seek(struct shmq_reader *reader, struct shmq_cursor *cursor, uint64_t offset)
{
    cursor->serial = ++reader->serial;
    cursor->next = cursor->committed = offset;
    cursor->missed = 0;
    cursor->sought = true;
    shmq_cursor_show(reader, cursor);
    cursor->unit_at = cursor->unit_count = 0;
    cursor->doubts = false;
    if (cursor->bits) {
        memset(cursor->bits, 0, cursor->bit_count / 8);
    }
}

void shmq_reader_revoke(struct shmq_reader *reader, struct shmq_cursor *cursor)
{
    cursor->slot = SHMQ_NONE; /* perhaps in a forked child, and the slot is its parent's */
    shmq_reader_seek(reader, cursor, 0);
    free(cursor->bits);
    cursor->bits = NULL;
    cursor->bit_count = 0;
    cursor->context = NULL;
    cursor->live = false;
}

/* ---- the window ------------------------------------------------------------------------------------ */
static struct shmq_offset *entry_owned(const struct shmq_reader *reader, const struct shmq_cursor *cursor)
{
    if (cursor->slot == SHMQ_NONE) {
        return NULL;
    }
    struct shmq_offset *entry = &reader->store->offsets[cursor->slot];
    /* Under our word of now, not of the assignment: after a reconnect the queue is ours under another client slot. */
    return shmq_owner_is_own(reader->store, entry, cursor->place) ? entry : NULL;
}

void shmq_cursor_show(const struct shmq_reader *reader, const struct shmq_cursor *cursor)
{
    struct shmq_offset *entry = entry_owned(reader, cursor);
    if (entry) {
        atomic_store_explicit(&entry->taken, cursor->next, memory_order_relaxed);
    }
}

void shmq_cursor_save(struct shmq_reader *reader, struct shmq_cursor *cursor)
{
    cursor->unsaved = false;
    if (cursor->slot == SHMQ_NONE) {
        return;
    }
    struct shmq_offset *entry = &reader->store->offsets[cursor->slot];
    /* The next owner, who sees the offset, also sees what we did before acknowledging. */
    if (shmq_owner_commit(reader->store, entry, cursor->place, cursor->committed)) {
        atomic_store_explicit(&entry->taken, cursor->next, memory_order_relaxed);
    }
}

static inline bool bit_take(struct shmq_cursor *cursor, uint64_t offset)
{
    uint64_t bit = offset & (cursor->bit_count - 1);
    uint64_t mask = UINT64_C(1) << (bit & 63);
    bool was = cursor->bits[bit >> 6] & mask;
    cursor->bits[bit >> 6] &= ~mask;
    return was;
}

static inline void bit_set(struct shmq_cursor *cursor, uint64_t offset)
{
    uint64_t bit = offset & (cursor->bit_count - 1);
    cursor->bits[bit >> 6] |= UINT64_C(1) << (bit & 63);
}

static enum shmq_status window_grow(struct shmq_cursor *cursor, uint64_t distance)
{
    uint64_t count = cursor->bit_count ? cursor->bit_count : WINDOW_BITS_MIN;
    while (count <= distance && count < SHMQ_WINDOW_BITS_MAX) {
        count *= 2;
    }
    if (count <= distance) {
        return SHMQ_TABLE_FULL;
    }
    struct shmq_cursor grown = {.bits = calloc(count / 64, 8), .bit_count = count};
    if (!grown.bits) {
        return SHMQ_SYSTEM;
    }
    for (uint64_t i = 0; i < cursor->bit_count; i++) {
        if (bit_take(cursor, cursor->committed + i)) {
            bit_set(&grown, cursor->committed + i);
        }
    }
    free(cursor->bits);
    cursor->bits = grown.bits;
    cursor->bit_count = count;
    return SHMQ_OK;
}

/* Moves `committed` when the prefix grew; the slot is stored by the caller. */
static inline enum shmq_status window_settle(struct shmq_cursor *cursor, uint64_t offset)
{
    if (offset == cursor->committed) {
        cursor->committed++;
        if (cursor->bit_count) {
            while (bit_take(cursor, cursor->committed)) {
                cursor->committed++;
            }
        }
        return SHMQ_OK;
    }
    if (offset < cursor->committed) {
        return SHMQ_OK;
    }
    if (offset - cursor->committed >= cursor->bit_count) {
        enum shmq_status status = window_grow(cursor, offset - cursor->committed);
        if (status != SHMQ_OK) {
            return status;
        }
    }
    bit_set(cursor, offset);
    return SHMQ_OK;
}

enum shmq_status shmq_reader_ack(struct shmq_reader *reader, uint32_t index, uint64_t serial, uint64_t queue_offset)
{
    if (index >= reader->cursor_count) {
        return SHMQ_OK;
    }
    struct shmq_cursor *cursor = reader->cursors[index];
    if (cursor->serial != serial || !cursor->live || queue_offset >= cursor->next) {
        return SHMQ_OK; /* revoked or sought away meanwhile: settled, but no longer ours to count */
    }
    uint64_t before = cursor->committed;
    enum shmq_status status = window_settle(cursor, queue_offset);
    if (cursor->committed != before) {
        shmq_cursor_save(reader, cursor);
    }
    return status;
}

/* Nothing below `offset` exists any more, so nothing below it can be delivered again: the window starts there. */
void shmq_cursor_jump(struct shmq_reader *reader, struct shmq_cursor *cursor, uint64_t offset)
{
    for (uint64_t i = 0; i < cursor->bit_count && cursor->committed < offset; i++, cursor->committed++) {
        bit_take(cursor, cursor->committed);
    }
    if (cursor->committed < offset) {
        cursor->committed = offset;
    }
    if (cursor->bit_count) {
        while (bit_take(cursor, cursor->committed)) {
            cursor->committed++;
        }
    }
    if (cursor->next < offset) {
        /* A reader without a slot only looks around, and sees by the offsets what is not there. */
        cursor->missed += cursor->slot != SHMQ_NONE && !cursor->sought ? offset - cursor->next : 0;
        cursor->next = offset;
    }
    cursor->unit_at = cursor->unit_count = 0;
    shmq_cursor_save(reader, cursor);
}

void shmq_cursor_skip(struct shmq_cursor *cursor, uint64_t offset, uint32_t count)
{
    uint64_t before = cursor->committed;
    if (offset == before) { /* nothing is in flight, so no bit is set */
        cursor->committed += count;
        count = 0;
    }
    for (; count; count--, offset++) {
        (void)window_settle(cursor, offset); /* one that cannot grow only means one more look at it after a restart */
    }
    cursor->unsaved = cursor->unsaved || cursor->committed != before;
}

/* ---- waiting, lag ---------------------------------------------------------------------------------- */
uint32_t shmq_reader_wait_list(const struct shmq_reader *reader, uint32_t *queues, uint64_t *offsets)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < reader->cursor_count; i++) {
        const struct shmq_cursor *cursor = reader->cursors[i];
        if (!cursor->live || cursor->paused || cursor->doubts) {
            continue; /* a doubt ends by time */
        }
        queues[count] = cursor->queue;
        offsets[count++] = cursor->next;
    }
    return count;
}

bool shmq_reader_doubts(const struct shmq_reader *reader)
{
    for (uint32_t i = 0; i < reader->cursor_count; i++) {
        const struct shmq_cursor *cursor = reader->cursors[i];
        if (cursor->live && !cursor->paused && cursor->doubts) {
            return true;
        }
    }
    return false;
}

uint32_t shmq_reader_spin_us(const struct shmq_reader *reader, uint32_t spin_us_max)
{
    uint64_t expected_us = reader->arrival_ns / 1000;
    if (expected_us > 4 * (uint64_t)spin_us_max) {
        return 0; /* the wait would outlast any spin, so spinning only burns the processor */
    }
    uint64_t spin_us = 2 * expected_us + 1;
    return spin_us < spin_us_max ? (uint32_t)spin_us : spin_us_max;
}

void shmq_reader_waited(struct shmq_reader *reader, uint64_t nanoseconds)
{
    /* One long pause says little about the next; a dozen short waits after any are enough to spin again. */
    if (nanoseconds > WAIT_NS_MAX) {
        nanoseconds = WAIT_NS_MAX;
    }
    reader->arrival_ns = (reader->arrival_ns * 7 + nanoseconds) / 8;
}

uint64_t shmq_reader_lag(const struct shmq_reader *reader)
{
    uint64_t lag = 0;
    for (uint32_t i = 0; i < reader->cursor_count; i++) {
        const struct shmq_cursor *cursor = reader->cursors[i];
        if (!cursor->live) {
            continue;
        }
        const struct shmq_queue *entry = shmq_queue_entry(reader->store, cursor->queue);
        uint64_t end = entry ? atomic_load_explicit(&entry->offset_max, memory_order_acquire) : 0;
        uint64_t first = shmq_queue_first(reader->store, cursor->queue);
        if (!shmq_queue_lives(reader->store, cursor->queue)) {
            continue;
        }
        uint64_t done = cursor->slot == SHMQ_NONE ? cursor->next : cursor->committed;
        done = done > first ? done : first;
        lag += end > done ? end - done : 0;
    }
    return lag;
}
