/* The polynomial's tables, and the engine that every processor can run: eight bytes a step. */
#include <endian.h>
#include <string.h>

#include "core/record/crc.h"

uint32_t shmq_crc_near[SHMQ_CRC_NEAR], shmq_crc_middle[1024], shmq_crc_far[1024];
static uint32_t slices[8][256]; /* slices[k][b]: byte b followed by k zero bytes */

static inline uint32_t step_byte(uint32_t state, uint8_t byte)
{
    return (state >> 8) ^ slices[0][(state ^ byte) & 0xFF];
}

static inline uint32_t step_word(uint32_t state, uint64_t word)
{
    word ^= state;
    return slices[7][word & 0xFF] ^ slices[6][(word >> 8) & 0xFF] ^ slices[5][(word >> 16) & 0xFF] ^
           slices[4][(word >> 24) & 0xFF] ^ slices[3][(word >> 32) & 0xFF] ^ slices[2][(word >> 40) & 0xFF] ^
           slices[1][(word >> 48) & 0xFF] ^ slices[0][word >> 56];
}

static uint32_t portable_raw(uint32_t state, const uint8_t *data, size_t bytes)
{
    uint64_t word;
    for (; bytes >= sizeof word; data += sizeof word, bytes -= sizeof word) {
        memcpy(&word, data, sizeof word);
        state = step_word(state, le64toh(word));
    }
    while (bytes-- > 0)
        state = step_byte(state, *data++);
    return state;
}

static uint32_t portable_copy_raw(uint32_t state, uint8_t *to, const uint8_t *from, size_t bytes)
{
    uint64_t word;
    for (; bytes >= sizeof word; from += sizeof word, to += sizeof word, bytes -= sizeof word) {
        memcpy(&word, from, sizeof word);
        memcpy(to, &word, sizeof word);
        state = step_word(state, le64toh(word));
    }
    while (bytes-- > 0)
        state = step_byte(state, *to++ = *from++);
    return state;
}

static inline uint32_t times_x(uint32_t value)
{
    return (value >> 1) ^ (SHMQ_CRC_POLYNOMIAL & (0u - (value & 1)));
}

static uint32_t portable_multiply(uint32_t left, uint32_t right)
{
    uint32_t product = 0;
    for (; right != 0; right <<= 1, left = times_x(left))
        product ^= left & (0u - (right >> 31));
    return product;
}

static uint32_t portable_shift(uint64_t zero_bytes)
{
    const struct shmq_crc_factors factors = shmq_crc_factors(zero_bytes);
    return portable_multiply(portable_multiply(factors.near, factors.middle), factors.far);
}

static uint32_t portable_products(const uint64_t words[3], const uint32_t multipliers[3], uint32_t last)
{
    uint32_t sum = 0;
    for (int i = 0; i < 3; i++) {
        /* bits 0..31 of a word are x^63..x^32: 32 bits, that is four zero bytes, above the register */
        uint32_t high = portable_multiply((uint32_t)words[i], shmq_crc_near[4]);
        sum ^= portable_multiply(high ^ (uint32_t)(words[i] >> 32), multipliers[i]);
    }
    return portable_multiply(sum, last);
}

const struct shmq_crc_engine shmq_crc_engine_portable = {
    .name = "portable", .raw = portable_raw, .copy_raw = portable_copy_raw, .shift = portable_shift,
    .multiply = portable_multiply, .products = portable_products,
};

void shmq_crc_portable_prepare(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t state = byte;
        for (int bit = 0; bit < 8; bit++)
            state = times_x(state);
        slices[0][byte] = state;
    }
    for (int slice = 1; slice < 8; slice++)
        for (int byte = 0; byte < 256; byte++)
            slices[slice][byte] = step_byte(slices[slice - 1][byte], 0);
    shmq_crc_near[0] = shmq_crc_middle[0] = shmq_crc_far[0] = SHMQ_CRC_ONE;
    for (uint32_t n = 1; n < SHMQ_CRC_NEAR; n++)
        shmq_crc_near[n] = step_byte(shmq_crc_near[n - 1], 0);
    const uint32_t middle = step_byte(shmq_crc_near[SHMQ_CRC_NEAR - 1], 0);
    for (int k = 1; k < 1024; k++)
        shmq_crc_middle[k] = portable_multiply(shmq_crc_middle[k - 1], middle);
    const uint32_t far = portable_multiply(shmq_crc_middle[1023], middle);
    for (int k = 1; k < 1024; k++)
        shmq_crc_far[k] = portable_multiply(shmq_crc_far[k - 1], far);
}
