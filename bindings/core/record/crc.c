/* CRC-32 (IEEE 802.3, as zlib computes it) and Java's String.hashCode.
 *
 * Chooses the fastest engine that the processor has.
 *
 * Rules:
 *   (1) every engine gives bit-identical results for every input;
 *   (2) no byte outside [data, data + bytes) is ever used, and none is read that could fault;
 *   (3) raw(s, data) = s * x^(8n) + raw(0, data): whatever is built on linearity may rely on it.
 */
#include "shmq.h"

#include <string.h>

#include "core/record/crc.h"

struct shmq_crc_engine shmq_crc_engine;

/* ---- dispatch, before main -------------------------------------------------------------------------- */
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
    shmq_crc_portable_prepare();
    shmq_crc_engine = shmq_crc_engine_portable;
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
