/* A program whose victim is stopped at each of its instructions, one operation after another. operations.c has its main. */
#ifndef SHMQ_TEST_OPERATIONS_H
#define SHMQ_TEST_OPERATIONS_H

#include <stdint.h>

extern const char *const operation_names[];
extern const uint32_t operation_count;

/* Every stride-th instruction of one operation from `seed` on; returns the violations. */
uint64_t operation_run(uint32_t operation, uint64_t stride, uint64_t seed);

#endif
