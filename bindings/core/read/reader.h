/* Cursors over queues with acknowledgement windows: what a consumer knows between two messages.
 *
 * Queues are known by index, records by unit, offsets by slot; which queues are ours the caller decides. Not thread-safe:
 * the caller serialises (the Python face does so with the GIL).
 *
 *      committed          next             offset_max
 *          |  in flight    |  not delivered  |
 *   -------+--+--+--+--+---+--+--+--+--+--+--+
 *          0  1  1  0  1        units[] holds up to 64 of these
 *          ^ bits of the window: 1 is acknowledged
 *
 * (1) committed <= next; every offset in [committed, next) was delivered, filtered out or stepped over.
 * (2) The bit of `committed` itself is never set: committed is the longest acknowledged prefix.
 * (3) A delivered record is the one its unit names, of this queue, and its CRC holds unless the reader trusts its log.
 * (4) An offset slot is written only while its owner word is ours.
 */
#ifndef SHMQ_READER_H
#define SHMQ_READER_H

#include "core/filter/filter.h"
#include "shmq.h"

#define SHMQ_READER_UNITS 64u
/* Queue ids from here on are those of a group's retry topic: nothing is filtered out there, and a message shows the topic
 * it was sent to, and this id, so that it is not taken for one of that topic's own queue. */
#define SHMQ_RETRY_QUEUE_BASE (UINT32_C(1) << 30)
#define SHMQ_WINDOW_BITS_MAX (UINT64_C(1) << 26) /* 8 MiB: 67 million messages behind an unacknowledged one */

/* ---- match.c ---- */
struct shmq_queue_name { const char *topic; uint32_t topic_bytes; uint32_t queue_id; }; /* what its records say of it */
void shmq_queue_name(const struct shmq_store *store, uint32_t queue, struct shmq_queue_name *out);
enum shmq_match {
    SHMQ_MATCH = 0,
    SHMQ_MISMATCH = 1,         /* unit and record disagree: one of them is bad, or the record is not there yet */
    SHMQ_DAMAGED = 2,          /* they agree, and the CRC does not hold */
};
/* Whether the record at a unit's place is the one it names; `view` is set when it decodes. */
enum shmq_match shmq_unit_match(const struct shmq_mapping *mapping, const struct shmq_unit *unit, uint64_t queue_offset,
                                const struct shmq_queue_name *name, bool verify, struct shmq_view *view);
/* The record that starts at a log position below `end`, of that size unless 0. SHMQ_GONE: outside the log. SHMQ_EMPTY: none starts
 * there, or it is not there yet. SHMQ_CORRUPT: it is damaged, and reported. SHMQ_SYSTEM: errno says why no file is mapped. */
enum shmq_status shmq_record_at(struct shmq_store *store, uint64_t log_position, uint64_t record_bytes, uint64_t end,
                                bool verify, struct shmq_mapping **mapping, struct shmq_view *view);

/* ---- damage.c ---- */
bool shmq_unit_is_durable(const struct shmq_store *store, const struct shmq_unit *unit);
bool shmq_unit_is_stored(const struct shmq_store *store, const struct shmq_unit *unit); /* inside the log of now */
/* Returns the ticket; 0: no room, or nothing may be written. */
uint64_t shmq_damage_report(struct shmq_store *store, enum shmq_damage_kind kind, uint32_t queue, uint64_t queue_offset,
                            const struct shmq_unit *unit);
/* What to do about a unit that is NULL or does not match. SHMQ_WOULD_BLOCK: look at it again in a while. SHMQ_EMPTY: the
 * queue is no more. SHMQ_CORRUPT: damage, reported: go on behind it. */
enum shmq_status shmq_damage_judge(struct shmq_store *store, uint32_t queue, uint64_t queue_offset,
                                   const struct shmq_unit *unit, enum shmq_match match);
#define SHMQ_LOOK_AGAIN_NS UINT64_C(20000000) /* that while */

struct shmq_cursor {
    bool live;
    bool paused;
    bool sought;               /* to where it is, and nothing was read since: what is not there was asked for */
    bool doubts;               /* the unit at `next` cannot be handed out, and it may still be mended */
    bool unsaved;              /* `committed` moved past filtered messages and is not in the offset slot yet */
    uint32_t queue;
    uint32_t queue_id;
    uint32_t slot;             /* offset slot, or SHMQ_NONE */
    uint64_t place;            /* what the slot is for while it is ours */
    uint64_t serial;           /* of this assignment; a message of an older one no longer moves `committed` */
    uint64_t next;
    uint64_t committed;
    uint64_t missed;           /* offsets below `next` that cleaning took before we came to them, not reported yet */
    uint64_t *bits;            /* ring, bit (offset mod bit_count) */
    uint64_t bit_count;        /* power of two, 0 before the first acknowledgement out of order */
    uint32_t unit_at;
    uint32_t unit_count;
    struct shmq_unit units[SHMQ_READER_UNITS];
    struct shmq_queue_name name; /* since the units were copied */
    void *context;             /* the caller's */
};

struct shmq_reader_tag { int64_t hash; char *text; size_t bytes; };

struct shmq_reader {
    struct shmq_store *store;
    struct shmq_cursor **cursors; /* entries are reused, never moved: a message knows its cursor by index and serial */
    uint32_t cursor_count;
    uint32_t cursor_capacity;
    uint32_t turn;             /* the cursor that delivers now */
    struct shmq_reader_tag *tags;
    uint32_t tag_count;
    uint64_t tag_bits;         /* bit (hash mod 64) of each tag */
    bool verify;               /* look at the CRC of each record */
    const struct shmq_filter *filter; /* or NULL; the caller's */
    struct shmq_mapping *mapping; /* held: the file of the last record */
    uint64_t serial;
    uint64_t arrival_ns;       /* smoothed time a wait lasted until something came */
};

struct shmq_delivery {
    struct shmq_view view;
    struct shmq_mapping *mapping; /* borrowed from the reader until its next call; hold it to keep `view` */
    uint32_t cursor;
    uint32_t queue;
    uint64_t serial;
    uint64_t queue_offset;     /* set for SHMQ_CORRUPT as well, like the two below */
    uint64_t log_position;
    uint32_t record_bytes;
};

void shmq_reader_init(struct shmq_reader *reader, struct shmq_store *store);
void shmq_reader_clear(struct shmq_reader *reader); /* frees everything but the cursors' contexts */
/* Deliver only records with one of the tags added. SHMQ_SYSTEM: no memory. */
enum shmq_status shmq_reader_tag_add(struct shmq_reader *reader, const char *tag, size_t bytes);
/* Read `queue` from `offset`, for the group of an offset place or, with SHMQ_NO_PLACE, for none; *context_old is what a
 * former assignment of the queue held. SHMQ_BAD_ARGUMENT: no such queue, or no slot was made for the place. */
#define SHMQ_NO_PLACE UINT64_MAX
enum shmq_status shmq_reader_assign(struct shmq_reader *reader, uint32_t queue, uint32_t queue_id, uint64_t offset,
                                    uint64_t place, void *context, void **context_old);
struct shmq_cursor *shmq_reader_find(struct shmq_reader *reader, uint32_t queue); /* NULL: not assigned */
/* Whether a unit's hash can be some tag's: it has 32 bits, and their sign in the upper half of the unit's 64. */
static inline bool shmq_tag_hash_is_possible(int64_t hash)
{
    return hash == (int32_t)hash;
}
static inline bool shmq_cursor_retries(const struct shmq_cursor *cursor)
{
    return cursor->queue_id >= SHMQ_RETRY_QUEUE_BASE;
}
/* Let a message that was kept in a retry topic show the topic it was sent to. */
void shmq_view_show_origin(struct shmq_view *view);
void shmq_reader_revoke(struct shmq_reader *reader, struct shmq_cursor *cursor);
void shmq_reader_seek(struct shmq_reader *reader, struct shmq_cursor *cursor, uint64_t offset);
/* SHMQ_EMPTY: nothing visible. SHMQ_WOULD_BLOCK: many were filtered out, call again. SHMQ_CORRUPT: *out says where, and it
 * was stepped over (record_bytes 0: the units of queue_offset are nowhere; without any keeper nothing was stepped over).
 * SHMQ_GONE: cleaning took `log_position` messages from queue_offset on before this group had come to them, and is
 * reported once.
 * SHMQ_SYSTEM: errno says why a file could not be mapped, nothing was stepped over. */
enum shmq_status shmq_reader_next(struct shmq_reader *reader, struct shmq_delivery *out);
/* Settle one offset; of no effect when that assignment is over. SHMQ_TABLE_FULL or SHMQ_SYSTEM: the window could not
 * grow, the offset stays unacknowledged. */
enum shmq_status shmq_reader_ack(struct shmq_reader *reader, uint32_t cursor, uint64_t serial, uint64_t queue_offset);
/* cursor.c, for reader.c: pass offsets by and note it as unsaved; pass everything below `offset` by, for it exists no
 * more; write `committed` to the offset slot. */
void shmq_cursor_skip(struct shmq_cursor *cursor, uint64_t offset, uint32_t count);
void shmq_cursor_save(struct shmq_reader *reader, struct shmq_cursor *cursor);
void shmq_cursor_jump(struct shmq_reader *reader, struct shmq_cursor *cursor, uint64_t offset);
/* Show how far we were handed messages, for the metrics. */
void shmq_cursor_show(const struct shmq_reader *reader, const struct shmq_cursor *cursor);
/* Whether some queue has to be looked at again after SHMQ_LOOK_AGAIN_NS, whatever arrives. */
bool shmq_reader_doubts(const struct shmq_reader *reader);
/* Queues and offsets to wait for; returns how many (at most cursor_count). */
uint32_t shmq_reader_wait_list(const struct shmq_reader *reader, uint32_t *queues, uint64_t *offsets);
/* How long spinning before sleep pays, from the waits seen so far; and one more wait for that figure. */
uint32_t shmq_reader_spin_us(const struct shmq_reader *reader, uint32_t spin_us_max);
void shmq_reader_waited(struct shmq_reader *reader, uint64_t nanoseconds);
/* Messages not acknowledged where an offset slot keeps progress, not delivered where none does. */
uint64_t shmq_reader_lag(const struct shmq_reader *reader);
/* First queue offset whose record was stored at or after store_ms, as far as whole records say. */
enum shmq_status shmq_reader_search_time(struct shmq_store *store, uint32_t queue, uint64_t store_ms, uint64_t *offset);

/* ---- pull.c: many records of one queue at once, for the clients of a broker ---- */
#define SHMQ_PULL_MAX 1024u
struct shmq_span { const uint8_t *data; uint64_t bytes; struct shmq_mapping *mapping; bool holds; };
struct shmq_pull {
    uint32_t queue;
    uint64_t offset;           /* the first one wanted */
    uint32_t count_max;
    uint64_t bytes_max;        /* the first record goes even if it is longer */
    uint32_t scan_max;         /* units looked at */
    const int64_t *tags;       /* hashes; NULL: all */
    uint32_t tag_count;
    const struct shmq_filter *filter; /* NULL: all */
    bool trimmed;              /* copied without the record CRC */
    bool verify;               /* look at the CRC of each record */
    struct shmq_queue_name name;
    uint64_t next_offset;      /* behind what was looked at; of the first left when `offset` is below it */
    uint32_t count;
    uint64_t bytes;            /* in the log */
    uint64_t log_position;     /* of SHMQ_CORRUPT and SHMQ_SYSTEM at next_offset; UINT64_MAX: its unit is nowhere */
    uint32_t span_count;
    struct shmq_span spans[SHMQ_PULL_MAX];
};
/* Choose records; SHMQ_CORRUPT: the first one looked at is damaged, which is reported; SHMQ_OK and nothing, not even a step
 * forward: nothing is visible there, or the keeper is asked about it. Their files stay mapped until shmq_pull_release, which must follow whatever the status is. */
enum shmq_status shmq_pull_plan(struct shmq_store *store, struct shmq_pull *pull);
/* Copy the records; returns their bytes, pull->bytes at most. Needs no store. */
uint64_t shmq_pull_copy(const struct shmq_pull *pull, uint8_t *out);
void shmq_pull_release(struct shmq_pull *pull);

/* The entry may be reused at any time: call shmq_queue_lives after reading. */
static inline uint64_t shmq_queue_first(const struct shmq_store *store, uint32_t queue)
{
    return atomic_load_explicit(&shmq_queue_place(store, queue)->offset_min, memory_order_acquire);
}

#endif
