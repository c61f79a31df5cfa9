/* Readers of bytes that come from outside, each with what has to hold of whatever it accepts.
 *
 * A function is given a buffer that ends where the input ends, so that the sanitizers see a step outside. It returns
 * whether the input was accepted, and aborts when what was accepted cannot be.
 */
#ifndef SHMQ_TEST_READERS_H
#define SHMQ_TEST_READERS_H

#include <stdio.h>
#include <stdlib.h>

#include "shmq.h"

#define MUST(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                            \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

bool frame_is_read(const uint8_t *data, size_t bytes);      /* a frame that asks for sends; its answer is written */
bool batch_is_read(const uint8_t *data, size_t bytes);      /* the body of a batch */
bool record_is_read(const uint8_t *data, size_t bytes);     /* a stored record */
bool record_is_written(const uint8_t *data, size_t bytes);  /* the parts of a record: encoded, it reads back */
bool properties_are_read(const uint8_t *data, size_t bytes);
bool units_are_read(const uint8_t *data, size_t bytes);
bool index_is_read(const uint8_t *data, size_t bytes);      /* an index file */

/* What a fuzzer calls: the first byte chooses the reader. Returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

#endif
