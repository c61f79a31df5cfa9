/* SQL92 filters: a small program that says whether the properties of a message match.
 *
 * shmq/filter parses the SQL and compiles it once; the program runs inside the scan of readers and pulls, so what does
 * not match costs no Python object: 0.2 us for three terms, and nothing is allocated.
 *
 *   byte  0   magic        4   "SQL" and the version of this format
 *         4   name_count   2   distinct properties, at most SHMQ_FILTER_NAMES_MAX
 *         6   depth        2   values the stack holds at most
 *         8   names_bytes  4
 *        12   code_bytes   4
 *        16   names            name_count times: length 2, bytes
 *             code             instructions until the end; little-endian, no padding
 *
 * A program is input, wherever it came from: shmq_filter_load checks all of it once. Afterwards shmq_filter_run reads
 * nothing outside of it, and these hold:
 *
 * (1) Every jump goes forward to the start of an instruction, so a run ends; the work of one run is bounded as well.
 * (2) The stack has the same depth whichever way an instruction is reached, never less than 0 or more than `depth`,
 *     and 1 at the end.
 * (3) A run allocates nothing and changes nothing: one filter may be run by many threads.
 */
#ifndef SHMQ_FILTER_H
#define SHMQ_FILTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHMQ_FILTER_MAGIC UINT32_C(0x014C5153) /* "SQL\x01" */
#define SHMQ_FILTER_HEAD_BYTES 16u
#define SHMQ_FILTER_BYTES_MAX (256u << 10)
#define SHMQ_FILTER_NAMES_MAX 128u
#define SHMQ_FILTER_DEPTH_MAX 128u
#define SHMQ_FILTER_BUCKETS 64u

enum shmq_truth { SHMQ_FALSE, SHMQ_TRUE, SHMQ_UNKNOWN, SHMQ_FAILED }; /* FAILED ends the run: no match */

/* Instructions: what follows the byte, and what happens to the stack of truths. "top" is replaced, others push. */
enum shmq_filter_code {
    SHMQ_FILTER_PUSH = 1,      /* truth 1 */
    SHMQ_FILTER_FAIL,          /* counts as a push */
    SHMQ_FILTER_MISSING,       /* name 2                    whether there is no such property */
    SHMQ_FILTER_BARE,          /* name 2                    a property as a condition: unknown without it, else false */
    SHMQ_FILTER_NUMBER,        /* name 2, relation 1, missing 1, class 1, number 8 */
    SHMQ_FILTER_TEXT,          /* name 2, missing 1, length 2, bytes           equal */
    SHMQ_FILTER_PAIR,          /* name 2, name 2, relation 1 */
    SHMQ_FILTER_IN,            /* name 2, negated 1, count 2, count times: length 2, bytes */
    SHMQ_FILTER_PART,          /* name 2, where 1, negated 1, length 2, bytes */
    SHMQ_FILTER_NOT,           /* top */
    SHMQ_FILTER_AND,           /* pops one, top */
    SHMQ_FILTER_OR,            /* pops one, top */
    SHMQ_FILTER_JUMP_FALSE,    /* position 4 in the code    goes there if top is false */
    SHMQ_FILTER_JUMP_TRUE,     /* position 4 */
    SHMQ_FILTER_EQUAL,         /* pops one, top             truth = truth */
    SHMQ_FILTER_TRUTH_NAME,    /* name 2, top               truth = property */
    SHMQ_FILTER_NAME_TRUTH,    /* name 2, top               property = truth */
    SHMQ_FILTER_MAP,           /* four truths, top          what false, true, unknown become; the fourth is FAILED */
    SHMQ_FILTER_CODES,
};
enum shmq_filter_relation {
    SHMQ_RELATION_EQUAL, SHMQ_RELATION_LESS, SHMQ_RELATION_LESS_EQUAL, SHMQ_RELATION_GREATER,
    SHMQ_RELATION_GREATER_EQUAL, SHMQ_RELATIONS,
};
enum shmq_filter_class { SHMQ_CLASS_INTEGER, SHMQ_CLASS_LONG, SHMQ_CLASS_DOUBLE, SHMQ_CLASSES }; /* Java's */
enum shmq_filter_where { SHMQ_PART_ANYWHERE, SHMQ_PART_START, SHMQ_PART_END, SHMQ_PARTS };

struct shmq_text { const uint8_t *data; uint32_t bytes; }; /* data NULL: no such property */
struct shmq_filter_name { struct shmq_text text; uint8_t next; }; /* in the same bucket, by number + 1 */
struct shmq_filter {
    uint32_t name_count;
    uint32_t code_bytes;
    const uint8_t *code;
    uint8_t buckets[SHMQ_FILTER_BUCKETS]; /* number + 1 of the first name */
    struct shmq_filter_name *names;
};

/* NULL: it is no program, *reason says why; or there is no memory, *reason is NULL. Free with shmq_filter_free. */
struct shmq_filter *shmq_filter_load(const uint8_t *program, size_t bytes, const char **reason);
void shmq_filter_free(struct shmq_filter *filter);
/* What the program says of RocketMQ property text. */
enum shmq_truth shmq_filter_run(const struct shmq_filter *filter, const char *properties, size_t bytes);

static inline uint32_t shmq_filter_bucket(const uint8_t *name, size_t bytes)
{
    return (uint32_t)(name[0] * 7u + name[bytes - 1] * 3u + bytes) % SHMQ_FILTER_BUCKETS;
}

/* ---- number.c: text as Java reads it. False: no such number (Java throws NumberFormatException) ---- */
bool shmq_text_integer(const uint8_t *text, size_t bytes, int64_t least, int64_t most, int64_t *out);
bool shmq_text_double(const uint8_t *text, size_t bytes, double *out);

#endif
