/* The CRC engine behind shmq.h's CRC section: the operations a processor may do its own way.
 *
 * A register is reflected: bit i of a 32-bit value is the coefficient of x^(31-i), bit i of a 64-bit word that of
 * x^(63-i), so eight message bytes read as a little-endian word are already a polynomial. "times" and "+" are over
 * GF(2), modulo P.
 */
#ifndef SHMQ_CRC_H
#define SHMQ_CRC_H

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

/* x^(8n) for n below 4096: one load for most records, of which only the touched lines stay in a cache. */
#define SHMQ_CRC_NEAR 4096u
extern uint32_t shmq_crc_near[SHMQ_CRC_NEAR];
extern uint32_t shmq_crc_middle[1024]; /* x^(8 * k * 2^12) */
extern uint32_t shmq_crc_far[1024];    /* x^(8 * k * 2^22) */

struct shmq_crc_factors {
    uint32_t near, middle, far;
};

/* The three factors of x^(8n). x^(2^32 - 1) is one, so the part of n above 32 bits is added to the part below. */
static inline struct shmq_crc_factors shmq_crc_factors(uint64_t zero_bytes)
{
    while (zero_bytes >> 32)
        zero_bytes = (zero_bytes & UINT32_MAX) + (zero_bytes >> 32);
    return (struct shmq_crc_factors){shmq_crc_near[zero_bytes & (SHMQ_CRC_NEAR - 1)],
                                     shmq_crc_middle[(zero_bytes >> 12) & 1023], shmq_crc_far[zero_bytes >> 22]};
}

extern const struct shmq_crc_engine shmq_crc_engine_portable;
void shmq_crc_portable_prepare(void); /* compute the tables above */

#if defined(__x86_64__)
extern const struct shmq_crc_engine shmq_crc_engine_pclmul;
extern const struct shmq_crc_engine shmq_crc_engine_vpclmul;
/* Compute the folding constants; needs the tables above. */
void shmq_crc_x86_prepare(void);
#endif

#ifdef SHMQ_TEST_POINTS
/* Force one engine by name; -1 when the processor lacks it. */
int shmq_crc32_force(const char *name);
#endif

#endif
