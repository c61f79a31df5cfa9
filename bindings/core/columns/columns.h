/* Records as columns: one buffer a column, in the layout Apache Arrow uses, so that they are handed over as they are.
 *
 * Bodies are copied once, from the mapped file into the buffer that Arrow's C data interface hands over. Views without
 * any copy are refused by Spark, and an object for each message costs ten times as much. Batches are of 2 MiB, so that
 * they are still in a cache when they are sent on.
 *
 *   integer   values                                                  i, l
 *   time      microseconds since the epoch, values                    tsu:UTC
 *   text      int32 offsets · bytes, valid UTF-8 whatever was stored  u      body: the same, any bytes   z
 *   map       int32 offsets · names (text) · values (text)            +m
 *   nulls     a bitmap beside them, only where a column has any
 *
 * (1) Every column has `rows` values after each record, or the call failed and the columns are only fit to be cleared;
 *     those that say the same in every row (broker, and a topic that was given) get theirs when they are handed over.
 * (2) No offset passes INT32_MAX: what would fails as if there were no memory. Callers bound a batch long before.
 * (3) A record that is taken decoded without contradiction and names the position and offset its unit names.
 */
#ifndef SHMQ_COLUMNS_H
#define SHMQ_COLUMNS_H

#include <string.h>

#include "core/read/reader.h"
#include "shmq.h"

/* The order is the one users see; columns.c has the table of their names and types. */
enum shmq_column {
    SHMQ_COLUMN_TOPIC, SHMQ_COLUMN_BROKER, SHMQ_COLUMN_QUEUE_ID, SHMQ_COLUMN_QUEUE_OFFSET, SHMQ_COLUMN_LOG_POSITION,
    SHMQ_COLUMN_STORE_SIZE, SHMQ_COLUMN_MSG_ID, SHMQ_COLUMN_UNIQ_KEY, SHMQ_COLUMN_KEYS, SHMQ_COLUMN_TAGS,
    SHMQ_COLUMN_TAGS_CODE, SHMQ_COLUMN_BODY, SHMQ_COLUMN_BODY_CRC, SHMQ_COLUMN_PROPERTIES, SHMQ_COLUMN_FLAG,
    SHMQ_COLUMN_SYS_FLAG, SHMQ_COLUMN_BORN_TIME, SHMQ_COLUMN_STORE_TIME, SHMQ_COLUMN_BORN_HOST,
    SHMQ_COLUMN_STORE_HOST, SHMQ_COLUMN_RECONSUME_TIMES, SHMQ_COLUMN_PREPARED_POSITION, SHMQ_COLUMN_COUNT,
};
enum shmq_column_kind { SHMQ_KIND_INT, SHMQ_KIND_LONG, SHMQ_KIND_TIME, SHMQ_KIND_TEXT, SHMQ_KIND_BYTES, SHMQ_KIND_MAP };
struct shmq_column_type { const char *name; enum shmq_column_kind kind; bool needs_record; };
extern const struct shmq_column_type shmq_column_types[SHMQ_COLUMN_COUNT];

#define SHMQ_COLUMN_ROWS_MAX 65536u
#define SHMQ_COLUMN_BATCH_BYTES_MAX (UINT64_C(256) << 20) /* of records; three times that still fits in an int32 */

struct shmq_slice { const char *data; size_t bytes; };
struct shmq_bytes { uint8_t *data; size_t bytes, capacity; };
struct shmq_array {
    struct shmq_bytes nulls;   /* bit 0: null; empty as long as none is */
    struct shmq_bytes fixed;   /* values or offsets */
    struct shmq_bytes bytes;   /* what the offsets point into */
    uint32_t rows, null_count;
};
#define SHMQ_HOST_TEXT_MAX 64u /* "[address]:port" */
struct shmq_host_text { uint8_t host[SHMQ_HOST_BYTES_V6]; uint32_t host_bytes, text_bytes; char text[SHMQ_HOST_TEXT_MAX]; };
struct shmq_packed_body { uint32_t row; uint32_t sys_flag; };
struct shmq_columns {
    uint8_t order[SHMQ_COLUMN_COUNT];
    uint32_t order_count;
    bool needs_record;
    struct shmq_slice topic, broker; /* borrowed; without a topic, the record's own */
    bool needs_properties;
    struct shmq_slice uniq_key, keys, tags; /* of the row that is being added; no data where it has none */
    struct shmq_host_text born_host, store_host; /* of the row before: most rows have the same */
    uint32_t rows;
    struct shmq_array arrays[SHMQ_COLUMN_COUNT]; /* by enum shmq_column */
    struct shmq_array map_names, map_values;
    struct shmq_bytes packed;  /* struct shmq_packed_body: bodies that are stored compressed */
};
/* `order` holds each column once at most. */
enum shmq_status shmq_columns_init(struct shmq_columns *columns, const uint8_t *order, uint32_t count);
void shmq_columns_clear(struct shmq_columns *columns);
/* The expected size: growing in steps would copy it and touch new pages each time. */
void shmq_columns_expect(struct shmq_columns *columns, uint64_t rows, uint64_t record_bytes);
/* Fill the columns that say the same in every row. false: no memory. */
bool shmq_columns_finish(struct shmq_columns *columns);
/* Add one row; `view` may be NULL where !needs_record. SHMQ_SYSTEM: no memory. */
enum shmq_status shmq_columns_add(struct shmq_columns *columns, const struct shmq_unit *unit, uint32_t queue_id,
                                  uint64_t queue_offset, const struct shmq_view *view);

/* ---- arrays, column_array.c ---------------------------------------------------------------------------- */
void shmq_bytes_expect(struct shmq_bytes *out, size_t bytes); /* in one block, if there is one; never fails */
bool shmq_bytes_put(struct shmq_bytes *out, const void *data, size_t bytes);
bool shmq_array_int_slow(struct shmq_array *array, uint32_t value);
bool shmq_array_long_slow(struct shmq_array *array, uint64_t value);
bool shmq_array_bytes(struct shmq_array *array, const void *data, size_t bytes);
bool shmq_array_text(struct shmq_array *array, const char *data, size_t bytes); /* invalid UTF-8 becomes U+FFFD */
bool shmq_array_null(struct shmq_array *array, size_t value_bytes);
bool shmq_array_offset(struct shmq_array *array, uint32_t end); /* of a map: where its entries end */
void shmq_array_clear(struct shmq_array *array);
/* Nearly every value: there is room, and no null yet. A call for each of them would cost more than the value. */
static inline bool shmq_array_int(struct shmq_array *array, uint32_t value)
{
    if (array->null_count || array->fixed.capacity - array->fixed.bytes < sizeof value) {
        return shmq_array_int_slow(array, value);
    }
    memcpy(array->fixed.data + array->fixed.bytes, &value, sizeof value);
    array->fixed.bytes += sizeof value;
    array->rows++;
    return true;
}
static inline bool shmq_array_long(struct shmq_array *array, uint64_t value)
{
    if (array->null_count || array->fixed.capacity - array->fixed.bytes < sizeof value) {
        return shmq_array_long_slow(array, value);
    }
    memcpy(array->fixed.data + array->fixed.bytes, &value, sizeof value);
    array->fixed.bytes += sizeof value;
    array->rows++;
    return true;
}

/* ---- reading, gather.c ---------------------------------------------------------------------------------- */
struct shmq_gather {
    uint32_t queue, queue_id;
    uint64_t next, end;        /* queue offsets; `next` moves over what was looked at */
    uint32_t rows_max;         /* of `columns`, those it has included */
    uint64_t bytes_max;        /* of records; the first goes even if it is longer */
    uint32_t scan_max;         /* units looked at */
    const struct shmq_reader_tag *tags; /* any of them, or all records where tag_count is 0 */
    uint32_t tag_count;
    uint64_t ms_begin, ms_end; /* store time: begin <= t < end */
    bool verify;               /* the CRC of each record that is read */
    bool verify_all;           /* and of those whose units alone would do */
    uint64_t bytes;            /* out: of the records taken */
    uint64_t log_position;     /* out: of SHMQ_CORRUPT, UINT64_MAX when the unit itself is nowhere */
};
/* Add the records of [next, end) that are wanted, until a limit. Statuses other than OK come only where nothing was
 * looked at: SHMQ_GONE below what retention has left, SHMQ_EMPTY beyond what is visible, SHMQ_NO_TOPIC when the queue
 * belongs to another topic now, SHMQ_CORRUPT, SHMQ_SYSTEM. */
enum shmq_status shmq_gather(struct shmq_store *store, struct shmq_gather *gather, struct shmq_columns *columns);
/* The same from records back to back in memory, whatever queue they are of; `consumed` says how far it came, `next`
 * becomes the offset behind the last one looked at. A BLANK is an end. */
enum shmq_status shmq_gather_bytes(const uint8_t *data, size_t bytes, struct shmq_gather *gather,
                                   struct shmq_columns *columns, size_t *consumed);
/* First queue offset that is not visible yet: with sync flush it is behind offset_max. */
uint64_t shmq_queue_visible(struct shmq_store *store, uint32_t queue);

/* ---- handing over, arrow.c: the Arrow C data interface ------------------------------------------------- */
struct ArrowSchema {
    const char *format, *name, *metadata;
    int64_t flags, n_children;
    struct ArrowSchema **children;
    struct ArrowSchema *dictionary;
    void (*release)(struct ArrowSchema *);
    void *private_data;
};
struct ArrowArray {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};
/* A struct of the columns, all nullable. SHMQ_SYSTEM: no memory. */
enum shmq_status shmq_arrow_schema(const uint8_t *order, uint32_t count, struct ArrowSchema *out);
/* Moves the buffers out of `columns`, which is empty afterwards. */
enum shmq_status shmq_arrow_array(struct shmq_columns *columns, struct ArrowArray *out);

#endif
