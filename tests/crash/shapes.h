/* The operations that are killed, and the stores they are killed in.
 *
 * Owns the table of shapes: a scene (what the store looks like before), an operation (what the victim does) and what may
 * be found afterwards. It does not know ptrace.
 */
#ifndef SHMQ_TEST_SHAPES_H
#define SHMQ_TEST_SHAPES_H

#include "check.h"

enum operation {
    OPERATION_APPEND,
    OPERATION_BATCH,
    OPERATION_TOGETHER,       /* one record for each of `count` queues, in one commit */
    OPERATION_CLAIM_OPEN,
    OPERATION_CLAIM_COMMIT,   /* the victim opened the claim and wrote the body before it is watched */
    OPERATION_CLAIM_ABORT,
    OPERATION_CLAIM_WHOLE,    /* open, write, commit */
    OPERATION_CLAIM_EVICTED,  /* commit after another process evicted the claim: copy, then settle the hole */
    OPERATION_REPLICATE,      /* the message comes from a master; a BLANK before it where it does not fit */
    OPERATION_RELEASE,
    OPERATION_TOPIC_PUT,
    OPERATION_TOPIC_GROW,
    OPERATION_TOPIC_DELETE,
    OPERATION_GROUP_PUT,
    OPERATION_GROUP_DELETE,
    OPERATION_OFFSET_PUT,
    OPERATION_QUEUES_CLOSE,
    OPERATION_QUEUE_FREE,
    OPERATION_TOPIC_FREE,
    OPERATION_CLIENT_PUT,
    OPERATION_OWNER,          /* a queue of a dead member is taken, left, locked, unlocked, taken, freed */
    OPERATION_QUEUE_PUBLISH,  /* a restored queue, again and again, further each time */
    OPERATION_CONFIRM,        /* no replica is needed; one joins; a flush; it has everything */
    OPERATION_FLUSH,
    OPERATION_WAKE,           /* append and wake two sleeping slots */
    OPERATION_ERRAND,         /* a slot that was woken wakes those of its errand */
    OPERATION_FENCE,          /* raise the fence */
    OPERATION_LEAD,           /* a follower becomes the master */
    OPERATION_FENCE_OFF,      /* a master takes no records any more */
    OPERATION_LOCK,           /* lock and unlock: nothing but repair */
};

enum scene {
    SCENE_PLAIN,              /* a few records */
    SCENE_EMPTY,              /* the very first record of the log */
    SCENE_FILE_START,         /* the log end is the start of the second file */
    SCENE_EXACT,              /* the record fills its file to the last byte that may be used */
    SCENE_ROLL,               /* the record is one byte too long for what is left */
    SCENE_ROLL_BLANK,         /* only the 8 bytes of a BLANK are left */
    SCENE_ROLL_UNMAPPED,      /* as SCENE_ROLL, and the victim has not mapped the next file */
    SCENE_FRAME_EDGE,         /* the next unit needs a new frame, and none was ever given back */
    SCENE_FRAME_CHAIN,        /* as SCENE_FRAME_EDGE, and its hash bucket is in use */
    SCENE_CHAIN_PERSISTED,    /* five full frames of queue 0 and one of queue 1, whose hash chains meet, may be given back */
    SCENE_FRAME_FREE_ONE,     /* as SCENE_FRAME_EDGE, one frame on the free list */
    SCENE_FRAME_FREE_TWO,
    SCENE_FRAME_GROW,         /* as SCENE_FRAME_EDGE, and no memory is reserved for a new frame */
    SCENE_FRAME_PERSISTED,    /* three full frames of queue 0 may be given back */
    SCENE_GROUP_DELETED,      /* all entries of groups have had a name; that of a deleted one, with its offsets, is free */
    SCENE_TOPIC_DELETED,      /* a topic of three queues was deleted */
    SCENE_TOPIC_CLOSED,       /* … and its queues are closed */
    SCENE_TOPIC_FREED,        /* … and free */
    SCENE_TOPIC_EMPTY,        /* … and all entries of topics have had a name; that one's is free */
    SCENE_TOPIC_ANEW,         /* … and another topic has their entries; a group had read the first of them */
    SCENE_CLAIM_DEAD,         /* a process died with an open claim */
    SCENE_CLAIM_SLOW,         /* a living process has an open claim and has had its time */
    SCENE_LEASED,             /* records are taken for a day, which another process has said */
    SCENE_SLEEPERS,           /* two client slots are asleep on queue 0, which share one waiter bit */
    SCENE_ERRAND,             /* slot 0 is to wake the others: all are asleep on queue 0 but slot 4, which is on queue 1 */
};

struct shape {
    const char *name;
    enum operation operation;
    enum scene scene;
    uint32_t body_bytes;
    uint32_t count;           /* of a batch, or frames to release; 0 counts as 1 */
    const char *properties;
    uint32_t queue;
};
extern const struct shape shapes[];
extern const uint32_t shape_count;

#define SHAPE_REPAIRER_ID 5000u
#define SHAPE_EPOCH 2u            /* of the master that OPERATION_LEAD makes */
/* The process after a victim of `shape`: one that locks, or appends, or does the same to the same table. */
struct shape shape_repairer(const struct shape *shape, bool appends);

struct notes {                /* one page between the victim and its watcher; no part of the store */
    _Atomic uint32_t phase;   /* enum phase */
    _Atomic uint32_t status;
    _Atomic uint32_t acked;   /* the operation returned success */
};
enum phase { PHASE_READY = 0, PHASE_RUNNING = 1, PHASE_DONE = 2 };

struct scenery {              /* what a scene leaves for the operation and the checks */
    struct arena arena;
    struct ledger ledger;
    pid_t slow_owner;         /* SCENE_CLAIM_SLOW: a child that holds the claim; 0 otherwise */
};
/* Build the store of a shape; the ledger's first party is the victim's operation. */
void scenery_open(struct scenery *scenery, const struct shape *shape);
void scenery_close(struct scenery *scenery);

#define SHAPE_OFFSET_QUEUE 1u      /* the queue whose slot scenes make, and OPERATION_OWNER hands over */
#define SHAPE_OFFSET_PLACE shmq_offset_place(0, SHAPE_OFFSET_QUEUE)
#define SHAPE_PUBLISHED 8u         /* OPERATION_QUEUE_PUBLISH: its last end; the queue begins 2 before, 1 is not on disk */
/* The queue that OPERATION_QUEUE_PUBLISH restores. */
uint32_t scene_restored_queue(const struct shmq_store *store);
/* The queue whose offset OPERATION_OFFSET_PUT wants. */
uint32_t scene_offset_queue(const struct shmq_store *store, const struct shape *shape);

struct actor {                /* the victim's private state */
    const struct shape *shape;
    struct arena *arena;
    struct notes *notes;
    struct shmq_store store;
    struct message first;
    struct shmq_spec *specs;
    int64_t *tags;
    uint8_t *bodies;
    struct shmq_claim_handle claim;
    uint8_t *shipped;         /* OPERATION_REPLICATE: the record as the master has it */
    uint32_t shipped_bytes;
    uint64_t shipped_position;
};
/* In the victim: attach, map, open a claim if the shape wants one: everything that is not to be watched. */
void actor_prepare(struct actor *actor, const struct shape *shape, struct scenery *scenery, struct notes *notes,
                   const struct message *first);
/* The operation itself; tells its outcome through the notes. */
void actor_act(struct actor *actor);

/* After the heir: what the operation's own tables must look like. */
void check_tables(struct scenery *scenery, const struct shape *shape, bool acked, struct verdict *verdict);
/* Of a shape that changes who is the master, before another process does anything. */
void check_role(struct shmq_store *store, const struct shape *shape, bool acked, struct verdict *verdict);

#endif
