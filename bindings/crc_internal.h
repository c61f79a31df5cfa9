/* The CRC engine behind shmq.h's CRC section: the operations a processor may do its own way.
 *
 * Owns the notation crc.c, crc_x86.c and record.c share. It knows nothing of records.
 *
 * A register is reflected: bit i of a 32-bit value is the coefficient of x^(31-i), bit i of a 64-bit word that of x^(63-i),
 * so eight message bytes read as a little-endian word are already a polynomial. "times" and "+" are over GF(2), mod P.
 */
#ifndef SHMQ_CRC_INTERNAL_H
#define SHMQ_CRC_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

#define SHMQ_CRC_POLYNOMIAL UINT32_C(0xEDB88320)
#define SHMQ_CRC_ONE UINT32_C(0x80000000)  /* x^0: the multiplier for no bytes at all */
#define SHMQ_CRC_STATE(state) ((uint64_t)(state) << 32)  /* a register as a word of the same polynomial */

struct shmq_crc_engine {
    const char *name;
    uint32_t (*raw)(uint32_t state, const uint8_t *data, size_t bytes);
    uint32_t (*copy_raw)(uint32_t state, uint8_t *to, const uint8_t *from, size_t bytes);
    uint32_t (*shift)(uint64_t zero_bytes);
    uint32_t (*multiply)(uint32_t left, uint32_t right);
    /* (words[0] * multipliers[0] + words[1] * multipliers[1] + words[2] * multipliers[2]) * last */
    uint32_t (*products)(const uint64_t words[3], const uint32_t multipliers[3], uint32_t last);
};

/* The engine of this processor; chosen once before main, never changed outside tests. */
extern struct shmq_crc_engine shmq_crc_engine;

/* shmq_crc_powers[l][k] = x^(8 * k * 256^l). The order of x is 2^32 - 1, so level l + 4 equals level l. */
extern uint32_t shmq_crc_powers[4][256];

extern const struct shmq_crc_engine shmq_crc_engine_portable;

#if defined(__x86_64__)
extern const struct shmq_crc_engine shmq_crc_engine_pclmul;
extern const struct shmq_crc_engine shmq_crc_engine_vpclmul;
/* Compute the folding constants; needs shmq_crc_powers. */
void shmq_crc_x86_prepare(void);
#endif

#ifdef SHMQ_TEST_POINTS
/* Force one engine by name; -1 when the processor lacks it. */
int shmq_crc32_force(const char *name);
#endif

#endif
