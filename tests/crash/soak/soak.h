/* The random-kill soak: what its processes share outside the store.
 *
 *   supervisor   forks producers, readers and a keeper, kills one of them at a random moment, measures how long the
 *                others need to go on, forks a successor; checks the whole log when it is full
 *   producer     append, batch, joint append, claim, long append, waits for the disk; says before each operation how
 *                far it goes, and after it how far it got. A page of the supervisor's survives the producer,
 *                the store does not vouch for it
 *   reader       follows every queue, verifies each record
 *   keeper       gives back frames that every reader has passed; flushes; makes and removes groups, offset and client
 *                slots under the table lock
 *
 * Message n of a producer's life carries (producer, life, n); a life's messages in the log must be 1 … m once each and in
 * order, with m one of the two numbers the life left behind.
 */
#ifndef SHMQ_TEST_SOAK_H
#define SHMQ_TEST_SOAK_H

#include "arena.h"

#define SOAK_PRODUCERS 4u
#define SOAK_READERS 2u
#define SOAK_KEEPERS 1u
#define SOAK_ACTORS (SOAK_PRODUCERS + SOAK_READERS + SOAK_KEEPERS)
#define SOAK_LIVES_MAX 4096u
#define SOAK_BODY_MAX (40u << 10)

struct soak_stamp {             /* first bytes of each body */
    uint32_t producer, life;
    uint64_t number;
};

struct soak_life {
    _Atomic uint64_t acked;     /* messages the store said it has */
    _Atomic uint64_t wanted;    /* messages it would have after the operation that is under way */
};

struct soak_page {              /* shared by all, outside the store */
    struct soak_life lives[SOAK_PRODUCERS][SOAK_LIVES_MAX];
    _Atomic uint64_t read_to[SOAK_READERS][ARENA_QUEUES];
    _Atomic uint64_t violations;
    _Atomic uint64_t released;
    _Atomic uint64_t evicted;
    _Atomic uint64_t changes;
    char first[200];
};

struct soak_role {
    struct arena *arena;
    struct soak_page *page;
    uint32_t index;             /* among its kind */
    uint32_t life;
    uint64_t seed;
};

/* Note a violation; the first one is kept in words. */
void soak_violation(struct soak_page *page, const char *format, ...) __attribute__((format(printf, 2, 3)));
uint64_t soak_random(uint64_t *state);
/* The bytes behind the stamp follow from it. */
void soak_body(uint8_t *body, uint32_t body_bytes, const struct soak_stamp *stamp);
bool soak_body_is_whole(const uint8_t *body, uint32_t body_bytes, struct soak_stamp *stamp);

/* Run until killed, or until the log is full. */
void soak_produce(const struct soak_role *role);
void soak_read(const struct soak_role *role);
void soak_keep(const struct soak_role *role);
/* No other process is there any more. Returns the number of messages in the log. */
uint64_t soak_check(struct arena *arena, struct soak_page *page, const uint32_t lives[SOAK_PRODUCERS]);

#endif
