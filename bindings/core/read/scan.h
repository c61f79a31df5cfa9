/* Records of the log by their position, and walks that gather the units of many of them; scan.c has the rules. */
#ifndef SHMQ_SCAN_H
#define SHMQ_SCAN_H

#include "shmq.h"

enum shmq_found {              /* what lies at a position of the log */
    SHMQ_FOUND_RECORD = 0,     /* a whole one: its lengths, its own position and both CRCs hold */
    SHMQ_FOUND_BLANK = 1,      /* what fills the rest of a file */
    SHMQ_FOUND_ZERO = 2,       /* nothing was ever written there */
    SHMQ_FOUND_BAD_LENGTHS = 3,
    SHMQ_FOUND_BAD_POSITION = 4,
    SHMQ_FOUND_BAD_CRC = 5,
    SHMQ_FOUND_BAD_END = 6,    /* the properties end with a zero byte, and so the record CRC was lost; of walks only */
};

struct shmq_log_part {         /* bytes of one log file */
    const uint8_t *data;
    uint64_t base;             /* log position of data[0] */
    uint64_t bytes;
};

struct shmq_scan_name { const char *text; size_t bytes; };

struct shmq_scan_row {         /* one record that belongs to a queue */
    uint8_t unit[SHMQ_UNIT_BYTES];
    uint32_t next;             /* the next row of its run: number + 1, 0 is none */
    uint64_t store_ms;
};

struct shmq_scan_run {         /* records of one queue whose queue offsets follow each other */
    const char *topic;         /* in the log part */
    uint32_t topic_bytes, queue_id;
    uint64_t queue_offset;     /* of the first */
    uint32_t first, last;      /* rows */
    uint32_t count;
    bool is_watched;
};

struct shmq_scan_place { uint64_t log_position; uint32_t record_bytes; };

struct shmq_scan {             /* one walk; what it found holds as long as the log part */
    uint64_t position;         /* given: a record border; then where the walk ended */
    uint64_t end;              /* given: no byte from here on is looked at */
    const struct shmq_scan_name *names; /* given: topics whose records are watched, as those of transactions are */
    uint32_t name_count;
    uint32_t record_max;
    bool gathers;              /* false: records are checked and counted, and that is all */
    bool gathers_keys;         /* of the index, too */
    enum shmq_found found;     /* RECORD: `record_max` or the end was reached; else what no record is, at `position` */
    uint32_t records;
    uint64_t record_bytes;     /* of all */
    uint64_t store_ms;         /* of the last */
    struct shmq_scan_row *rows;
    struct shmq_scan_run *runs, *latest;
    struct shmq_scan_place *watched;
    uint32_t row_count, run_count, watched_count;
    uint8_t *keys;             /* SHMQ_INDEX_KEY_BYTES each, in the order of the log */
    size_t key_count, key_room;
    bool lacks_memory;         /* for keys; the walk ended in front of the record at `position` */
    uint32_t *buckets, bucket_mask; /* the latest run of each queue: number + 1 */
};

enum shmq_found shmq_record_find(const struct shmq_log_part *part, uint64_t position, uint64_t end,
                                 struct shmq_view *view);
/* What a person reads; NULL for what is no damage. */
const char *shmq_found_reason(enum shmq_found found);
/* Room for a walk over up to `record_max` records; false without memory. The given fields are set before and kept. */
bool shmq_scan_open(struct shmq_scan *scan);
void shmq_scan_run(struct shmq_scan *scan, const struct shmq_log_part *part);
void shmq_scan_close(struct shmq_scan *scan);

#endif
