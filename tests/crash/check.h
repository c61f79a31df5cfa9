/* What must hold in a store after a process was killed: the checker of every crash test.
 *
 * Owns the test messages (recognised by their id) and the invariants. It does not know how the killing was done.
 *
 *   reader's view   no lock taken, nothing repaired yet: what a consumer may see at that very moment
 *   heir's view     another process appends twice (and so repairs), then everything is counted
 *
 * Invariants, numbered in the reports:
 *   1 bytes below the old log end never change *            6 acknowledged operations are there
 *   2 the log walks record by record from 0 to its end      7 an operation is there completely or not at all
 *   3 per queue the offsets follow each other, once each    8 frames: each used one found once, the rest free once
 *   4 a unit names its record, which ends below the end     9 no intent, no claim, no lock is left behind
 *   5 offset_max never falls, nor runs past its records    10 the next append works, and the one after it
 *   12 the described end lies behind every record with      11 zeros follow the last record
 *      properties
 *
 *   * but for the body of a hole, which is not read.
 */
#ifndef SHMQ_TEST_CHECK_H
#define SHMQ_TEST_CHECK_H

#include "arena.h"

#define CHECK_PARTIES_MAX 4u
#define CHECK_HEIR_ID 9000u

struct message {                /* one test message; everything else follows from it */
    uint32_t id;                /* stored as RocketMQ's flag */
    uint32_t queue;
    uint32_t body_bytes;
    const char *properties;     /* NULL: none */
};
/* Fill a spec; the body is written to `body`, which has message->body_bytes. */
struct shmq_spec message_spec(const struct message *message, uint8_t *body);
int64_t message_tag(const struct message *message);

struct party {                  /* messages that appear together or not at all: `first` and the count - 1 ids after it */
    struct message first;
    uint32_t count;
    bool acked;                 /* the caller knows that they are stored */
    bool across;                /* the messages after the first are for the queues after its own */
    bool one_by_one;            /* separate appends: any number of them may be there, in order */
};

struct ledger {                 /* the store before the operation, and what may have been added since */
    uint64_t end;
    uint8_t *prefix;            /* copy of [0, end) */
    uint64_t offset_max[ARENA_QUEUES];
    uint64_t kept_from[ARENA_QUEUES];   /* units below it may be gone from memory: they were released on purpose */
    uint64_t begins_at[ARENA_QUEUES];   /* a queue without messages may begin here, as its master's does; 0: at 0 */
    uint32_t party_count;
    struct party parties[CHECK_PARTIES_MAX];
    bool holes_allowed;         /* an eviction may leave a record that belongs to no queue */
    uint32_t replicated_id;     /* the message that came from a master: its unit says the hash of its tag; 0 none */
    uint64_t hole_from, hole_until;     /* body of a hole below `end`; its owner zeroes it when it comes back */
};
/* Take the store as it is now for "before"; parties and permissions stay. A zeroed ledger is a closed one. */
void ledger_open(struct ledger *ledger, const struct arena *arena);
void ledger_close(struct ledger *ledger);

struct verdict {
    uint64_t violations;
    uint32_t numbers;           /* bit n: invariant n was broken */
    char first[300];
};
extern uint32_t check_ignored;  /* bit n: do not report invariant n; to see what else a mutant breaks */
void verdict_add(struct verdict *verdict, uint32_t invariant, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* No lock is taken; any instant of any operation must pass. */
void check_reader(struct arena *arena, const struct ledger *ledger, struct verdict *verdict);
/* No other process is inside an operation. */
void check_quiet(struct arena *arena, const struct ledger *ledger, struct verdict *verdict);
/* Append twice as another process would, then check_quiet. The ledger gets the two appends as a party. */
void check_heir(struct arena *arena, struct ledger *ledger, struct verdict *verdict);

#endif
