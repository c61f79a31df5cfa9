/* The key index over one mapped index file; see index.c for the picture of the file and for who may do what. */
#ifndef SHMQ_INDEX_H
#define SHMQ_INDEX_H

#include "shmq.h"

#define SHMQ_INDEX_HEAD_BYTES 40u
#define SHMQ_INDEX_SLOT_BYTES 4u
#define SHMQ_INDEX_ENTRY_BYTES 20u

struct shmq_index {
    uint8_t *data;             /* NULL: no file is open, and the first key stops the walk */
    uint32_t slot_max;
    uint32_t entry_max;        /* entry numbers are 1 to entry_max - 1 */
    uint32_t entry_room;       /* entries with a lower number have blocks reserved */
    uint32_t next;             /* number of the next entry; what the file's head says, known to its one filler */
    uint64_t last_position;    /* of the record whose keys were stored last, when next > 1 */
};

struct shmq_index_head {
    uint64_t begin_ms, end_ms, begin_position, end_position;
    uint64_t last_position;    /* of the last entry's record; 0 without entries */
    uint32_t slots_used, next;
};

enum shmq_index_stop {
    SHMQ_INDEX_DONE = 0,       /* at `until`, or at the end of the mapped log file */
    SHMQ_INDEX_NO_FILE = 1,    /* the record at `position`, stored at `store_ms`, has keys */
    SHMQ_INDEX_NO_ROOM = 2,    /* the same, and blocks have to be reserved first */
    SHMQ_INDEX_FULL = 3,       /* the same, and a new file is needed */
    SHMQ_INDEX_DAMAGE = 4,     /* no record begins at `position` */
};

struct shmq_follow {
    uint64_t position;         /* where to go on: a record border */
    uint64_t until;            /* stop at the first border at or behind it */
    uint64_t end;              /* no byte from here on is looked at */
    uint64_t store_ms;         /* of the last record with keys */
    uint64_t records, keyed;   /* passed, and of these with keys */
};

/* `next` is the entry to begin with, 0 the newest; after a search the one to go on with, 0 when it came to its end. */
struct shmq_index_search { uint64_t begin_ms, end_ms; uint32_t hash, count_max, steps_max, next; };

uint64_t shmq_index_bytes(uint32_t slot_max, uint32_t entry_max);
/* What the file's head and last entry say; false when that cannot be. */
bool shmq_index_head(const struct shmq_index *index, struct shmq_index_head *head);
uint32_t shmq_index_hash(const char *topic, size_t topic_bytes, const char *key, size_t key_bytes);
/* Put the keys of records from follow->position on into the index; the caller holds `mapping`. */
enum shmq_index_stop shmq_index_follow(struct shmq_index *index, const struct shmq_mapping *mapping,
                                       struct shmq_follow *follow);
/* Log positions of up to `count_max` entries of the hash, the newest first, looking at `steps_max` entries at most. */
uint32_t shmq_index_find(const struct shmq_index *index, struct shmq_index_search *search, uint64_t *positions);

/* Hashes of a record's keys in the order of their entries; returns how many there are, whatever the room. */
uint32_t shmq_index_keys(const struct shmq_view *view, uint32_t *hashes, uint32_t hash_max);

/* The walk of a proof over the entries of a file, the oldest first. It stops in front of an entry that goes on with
 * another one than the newest of its chain, or that names an older record than the one before it. */
#define SHMQ_INDEX_KEY_BYTES 12u /* hash and log position, as an entry begins */
enum shmq_index_walked { SHMQ_INDEX_WALKED = 0, SHMQ_INDEX_BAD_CHAIN = 1, SHMQ_INDEX_BAD_ORDER = 2 };
struct shmq_index_walk {
    uint32_t number, end;      /* entries from `number` on, below `end` */
    uint32_t *newest;          /* of each chain, a word a slot */
    uint64_t until;            /* stop in front of the first entry of a record at or behind it */
    uint64_t log_begin;        /* what names a record below it is in no order any more */
    uint64_t reached;          /* the highest log position so far */
    uint8_t *keys;             /* out */
    uint32_t key_max, key_count;
};
enum shmq_index_walked shmq_index_walk(const struct shmq_index *index, struct shmq_index_walk *walk);

#endif
