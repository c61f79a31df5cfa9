/* CRC-32 (IEEE 802.3, as zlib computes it) and Java's String.hashCode.
 *
 * The polynomial, its tables, the portable engine, and the choice of the fastest engine the processor has.
 *
 * Rules:
 *   (1) every engine gives bit-identical results for every input;
 *   (2) no byte outside [data, data + bytes) is ever used, and none is read that could fault;
 *   (3) raw(s, data) = s * x^(8n) + raw(0, data): whatever is built on linearity may rely on it.
 */
#include "shmq.h"

#include <endian.h>
#include <string.h>

#include "core/record/crc.h"

uint32_t shmq_crc_near[SHMQ_CRC_NEAR], shmq_crc_middle[1024], shmq_crc_far[1024];
static uint32_t slices[8][256]; /* slices[k][b]: byte b followed by k zero bytes */

/* ---- portable engine ------------------------------------------------------------------------------ */
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

#define PORTABLE_ENGINE                                                                                      \
    {                                                                                                        \
        .name = "portable", .raw = portable_raw, .copy_raw = portable_copy_raw, .shift = portable_shift,     \
        .multiply = portable_multiply, .products = portable_products,                                        \
    }
const struct shmq_crc_engine shmq_crc_engine_portable = PORTABLE_ENGINE;
struct shmq_crc_engine shmq_crc_engine = PORTABLE_ENGINE;

/* ---- tables and dispatch, before main ------------------------------------------------------------- */
static void prepare_tables(void)
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

#if defined(__x86_64__)
static bool has_pclmul(void)
{
    return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
}

static bool has_vpclmul(void)
{
    return has_pclmul() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi") &&
           __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("vpclmulqdq");
}
#endif

__attribute__((constructor)) static void prepare(void)
{
    prepare_tables();
#if defined(__x86_64__)
    __builtin_cpu_init();
    shmq_crc_x86_prepare();
    if (has_vpclmul())
        shmq_crc_engine = shmq_crc_engine_vpclmul;
    else if (has_pclmul())
        shmq_crc_engine = shmq_crc_engine_pclmul;
#endif
}

#ifdef SHMQ_TEST_POINTS
int shmq_crc32_force(const char *name)
{
    if (strcmp(name, "portable") == 0) {
        shmq_crc_engine = shmq_crc_engine_portable;
        return 0;
    }
#if defined(__x86_64__)
    if (strcmp(name, "pclmul") == 0 && has_pclmul()) {
        shmq_crc_engine = shmq_crc_engine_pclmul;
        return 0;
    }
    if (strcmp(name, "vpclmul") == 0 && has_vpclmul()) {
        shmq_crc_engine = shmq_crc_engine_vpclmul;
        return 0;
    }
#endif
    return -1;
}
#endif

/* ---- public --------------------------------------------------------------------------------------- */
uint32_t shmq_crc32(const void *data, size_t bytes)
{
    return ~shmq_crc_engine.raw(0xFFFFFFFFu, data, bytes);
}

uint32_t shmq_crc32_raw(uint32_t state, const void *data, size_t bytes)
{
    return shmq_crc_engine.raw(state, data, bytes);
}

uint32_t shmq_crc32_copy_raw(uint32_t state, void *to, const void *from, size_t bytes)
{
    return shmq_crc_engine.copy_raw(state, to, from, bytes);
}

uint32_t shmq_crc32_shift(uint64_t zero_bytes)
{
    return shmq_crc_engine.shift(zero_bytes);
}

uint32_t shmq_crc32_multiply(uint32_t state, uint32_t multiplier)
{
    return shmq_crc_engine.multiply(state, multiplier);
}

/* ---- tag hash ------------------------------------------------------------------------------------- */
/* Decode one character of well-formed UTF-8 and return its length; a byte that cannot start or finish one is U+FFFD. */
static size_t utf8_decode(const uint8_t *text, size_t bytes, uint32_t *character)
{
    static const uint32_t smallest[5] = {0, 0, 0x80, 0x800, 0x10000};
    const uint8_t first = text[0];
    size_t length = first < 0x80 ? 1 : (first & 0xE0) == 0xC0 ? 2 : (first & 0xF0) == 0xE0 ? 3 : 0;
    if ((first & 0xF8) == 0xF0)
        length = 4;
    *character = 0xFFFD;
    if (length == 0 || length > bytes)
        return 1;
    uint32_t value = length == 1 ? first : first & (0x7Fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xC0) != 0x80)
            return 1;
        value = (value << 6) | (text[i] & 0x3F);
    }
    if (value < smallest[length] || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF))
        return 1;
    *character = value;
    return length;
}

uint32_t shmq_java_hash(uint32_t hash, const char *utf8, size_t bytes)
{
    const uint8_t *text = (const uint8_t *)utf8;
    for (size_t at = 0; at < bytes;) {
        if (text[at] < 0x80) {
            hash = hash * 31 + text[at++];
            continue;
        }
        uint32_t character;
        at += utf8_decode(text + at, bytes - at, &character);
        if (character >= 0x10000) {
            character -= 0x10000;
            hash = hash * 31 + (0xD800 | (character >> 10));
            character = 0xDC00 | (character & 0x3FF);
        }
        hash = hash * 31 + character;
    }
    return hash;
}

int32_t shmq_tag_hash(const char *utf8, size_t bytes)
{
    return (int32_t)shmq_java_hash(0, utf8, bytes);
}
