/* CRC-32 with carry-less multiplication: PCLMULQDQ (128 bits) and VPCLMULQDQ with AVX-512 (512 bits).
 *
 * crc.h has the notation; the register after n bytes M is
 * state * x^(8n) + M * x^32 mod P.
 *
 * Three facts carry everything; `K << 1` divides by x in reflected notation, which undoes the one bit a carry-less
 * product of reflected operands is short of:
 *   clmul(w, K << 1) = w * K        as 96 bits (bit i is x^(95-i)):  "U", what reduce() takes;
 *   clmul(w, K << 1) = w * K * x^32 as 128 bits (bit i is x^(127-i)): what folding adds to later message bytes;
 *   reduce: U = u1 * x^32 + u0; q = floor(u1 * x^32 / P) is the low half of clmul(u1, floor(x^96 / P));
 *           U mod P = u0 + the last 32 bits of q * P. Two products and no mask.
 * A message word that ends d bytes before the end of the message weighs x^(8d + 32) = shift(d + 4), and the state
 * weighs shift(n); all of it is summed as U, so there is one reduction however long the input is.
 *
 * Partial blocks come first, padded with zeros in front: with no state in them leading zeros change nothing.
 */
#include "core/record/crc.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#define NARROW __attribute__((target("sse4.1,pclmul")))
#define WIDE __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi,bmi2,vpclmulqdq,pclmul,sse4.1")))
#define INLINE static inline __attribute__((always_inline))

#define LONG_COPY 8192u /* bytes; see wide_copy_raw */

struct pair {
    uint64_t low, high;   /* multiplier << 1 for the earlier and the later word of 16 bytes */
};

static struct pair reducer;             /* floor(x^96 / P) without its last bit, and P, both reflected */
static struct pair fold_16, fold_64;    /* by one block, by four blocks */
static struct pair finish_16;           /* a last block into U */
static struct pair fold_256[4] __attribute__((aligned(64)));      /* the same pair in each lane */
static struct pair finish_64[4][4] __attribute__((aligned(64)));  /* [block of the last 256 bytes][lane] */

static uint64_t weight(size_t bytes)
{
    return (uint64_t)shmq_crc_near[bytes] << 1;
}

static struct pair fold_weight(size_t bytes) /* x^32 of the weight is in the 128-bit form of the product */
{
    return (struct pair){weight(bytes + 4), weight(bytes - 4)};
}

void shmq_crc_x86_prepare(void)
{
    uint32_t remainder = SHMQ_CRC_ONE; /* long division of x^96 by P; `power` is that of the quotient bit */
    uint64_t quotient = 0;
    for (int power = 95; power >= 1; power--) {
        uint32_t carry = remainder & 1;
        remainder = (remainder >> 1) ^ (SHMQ_CRC_POLYNOMIAL & (0u - carry));
        if (carry && power <= 64)
            quotient |= UINT64_C(1) << (64 - power);
    }
    reducer = (struct pair){quotient, ((uint64_t)SHMQ_CRC_POLYNOMIAL << 1) | 1};
    fold_16 = fold_weight(16);
    fold_64 = fold_weight(64);
    finish_16 = (struct pair){weight(12), weight(4)};
    for (size_t lane = 0; lane < 4; lane++) {
        fold_256[lane] = fold_weight(256);
        for (size_t block = 0; block < 4; block++) {
            size_t behind = (3 - block) * 64 + (3 - lane) * 16;
            finish_64[block][lane] = (struct pair){weight(behind + 12), weight(behind + 4)};
        }
    }
}

/* ---- 128 bits ------------------------------------------------------------------------------------- */
INLINE NARROW __m128i load_pair(const struct pair *pair)
{
    return _mm_loadu_si128((const __m128i *)pair);
}

INLINE NARROW __m128i product(uint64_t word, uint32_t multiplier) /* as U */
{
    return _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)word),
                                _mm_cvtsi64_si128((long long)((uint64_t)multiplier << 1)), 0);
}

INLINE NARROW __m128i reduce_high(__m128i sum) /* the register is bits 64..95 */
{
    const __m128i constants = load_pair(&reducer);
    __m128i quotient = _mm_clmulepi64_si128(sum, constants, 0x00);
    return _mm_xor_si128(sum, _mm_clmulepi64_si128(quotient, constants, 0x10));
}

INLINE NARROW uint32_t reduce(__m128i sum)
{
    return (uint32_t)_mm_extract_epi32(reduce_high(sum), 2);
}

INLINE NARROW uint32_t inline_multiply(uint32_t left, uint32_t right)
{
    return reduce(product(SHMQ_CRC_STATE(left), right));
}

INLINE NARROW uint32_t inline_shift(uint64_t zero_bytes)
{
    if (zero_bytes < SHMQ_CRC_NEAR)
        return shmq_crc_near[zero_bytes];
    const struct shmq_crc_factors factors = shmq_crc_factors(zero_bytes);
    return inline_multiply(inline_multiply(factors.near, factors.middle), factors.far);
}

NARROW static uint32_t narrow_multiply(uint32_t left, uint32_t right)
{
    return inline_multiply(left, right);
}

NARROW static uint32_t narrow_shift(uint64_t zero_bytes)
{
    return inline_shift(zero_bytes);
}

NARROW static uint32_t narrow_products(const uint64_t words[3], const uint32_t multipliers[3], uint32_t last)
{
    __m128i sum = _mm_xor_si128(product(words[0], multipliers[0]), product(words[1], multipliers[1]));
    sum = reduce_high(_mm_xor_si128(sum, product(words[2], multipliers[2])));
    if (last == SHMQ_CRC_ONE)
        return (uint32_t)_mm_extract_epi32(sum, 2);
    __m128i state = _mm_slli_epi64(sum, 32); /* high word: the register as a word, its neighbour shifted out */
    return reduce(_mm_clmulepi64_si128(state, _mm_cvtsi64_si128((long long)((uint64_t)last << 1)), 0x01));
}

INLINE NARROW __m128i fold(__m128i block, __m128i constants)
{
    return _mm_xor_si128(_mm_clmulepi64_si128(block, constants, 0x00), _mm_clmulepi64_si128(block, constants, 0x11));
}

/* 16 bytes from `from`, stored to `to` unless it is NULL. */
INLINE NARROW __m128i take_16(const uint8_t *from, uint8_t *to)
{
    __m128i block = _mm_loadu_si128((const __m128i *)from);
    if (to != NULL)
        _mm_storeu_si128((__m128i *)to, block);
    return block;
}

/* The first `bytes` (1..16) of 16 readable bytes, zeros in front. */
INLINE NARROW __m128i lead_16(const uint8_t *from, uint8_t *to, size_t bytes)
{
    static const uint8_t places[32] = {
        0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80,
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return _mm_shuffle_epi8(take_16(from, to), _mm_loadu_si128((const __m128i *)(places + bytes)));
}

#define NEXT(step) (to == NULL ? NULL : to + at + (step))
INLINE NARROW uint32_t narrow_run(uint32_t state, uint8_t *to, const uint8_t *from, size_t bytes)
{
    if (bytes < 16)
        return to == NULL ? shmq_crc_engine_portable.raw(state, from, bytes)
                          : shmq_crc_engine_portable.copy_raw(state, to, from, bytes);
    const __m128i by_16 = load_pair(&fold_16), by_64 = load_pair(&fold_64);
    size_t at = ((bytes - 1) & 15) + 1;
    __m128i last = lead_16(from, to, at);
    for (; (bytes - at) & 63; at += 16)
        last = _mm_xor_si128(fold(last, by_16), take_16(from + at, NEXT(0)));
    if (at < bytes) {
        __m128i a = _mm_xor_si128(fold(last, by_16), take_16(from + at, NEXT(0)));
        __m128i b = take_16(from + at + 16, NEXT(16)), c = take_16(from + at + 32, NEXT(32));
        __m128i d = take_16(from + at + 48, NEXT(48));
        for (at += 64; at < bytes; at += 64) {
            a = _mm_xor_si128(fold(a, by_64), take_16(from + at, NEXT(0)));
            b = _mm_xor_si128(fold(b, by_64), take_16(from + at + 16, NEXT(16)));
            c = _mm_xor_si128(fold(c, by_64), take_16(from + at + 32, NEXT(32)));
            d = _mm_xor_si128(fold(d, by_64), take_16(from + at + 48, NEXT(48)));
        }
        b = _mm_xor_si128(b, fold(a, by_16));
        c = _mm_xor_si128(c, fold(b, by_16));
        last = _mm_xor_si128(d, fold(c, by_16));
    }
    const __m128i moved_state = product(SHMQ_CRC_STATE(state), inline_shift(bytes));
    return reduce(_mm_xor_si128(fold(last, load_pair(&finish_16)), moved_state));
}
#undef NEXT

NARROW static uint32_t narrow_raw(uint32_t state, const uint8_t *data, size_t bytes)
{
    return narrow_run(state, NULL, data, bytes);
}

NARROW static uint32_t narrow_copy_raw(uint32_t state, uint8_t *to, const uint8_t *from, size_t bytes)
{
    return narrow_run(state, to, from, bytes);
}

const struct shmq_crc_engine shmq_crc_engine_pclmul = {
    .name = "pclmul", .raw = narrow_raw, .copy_raw = narrow_copy_raw, .shift = narrow_shift,
    .multiply = narrow_multiply, .products = narrow_products,
};

/* ---- 512 bits ------------------------------------------------------------------------------------- */
INLINE WIDE __m512i fold_wide(__m512i block, const struct pair constants[4], __m512i more)
{
    const __m512i pairs = _mm512_load_si512(constants);
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(block, pairs, 0x00),
                                     _mm512_clmulepi64_epi128(block, pairs, 0x11), more, 0x96);
}

INLINE WIDE __m512i take_64(const uint8_t *from, uint8_t *to)
{
    __m512i block = _mm512_loadu_si512(from);
    if (to != NULL)
        _mm512_storeu_si512(to, block);
    return block;
}

/* The first `part` (1..64) of `bytes` bytes, zeros in front. */
INLINE WIDE __m512i lead_64(const uint8_t *from, uint8_t *to, size_t part, size_t bytes)
{
    static const uint8_t places[64] __attribute__((aligned(64))) = {
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
        16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
        32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47,
        48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
    __m512i block;
    if (bytes >= 64) {
        block = take_64(from, to);
    } else {
        const __mmask64 present = (UINT64_C(1) << part) - 1;
        block = _mm512_maskz_loadu_epi8(present, from);
        if (to != NULL)
            _mm512_mask_storeu_epi8(to, present, block);
    }
    const __m512i rotated = _mm512_add_epi8(_mm512_load_si512(places), _mm512_set1_epi8((char)part));
    return _mm512_maskz_permutexvar_epi8(UINT64_MAX << (64 - part), rotated, block);
}

INLINE WIDE uint32_t reduce_wide(__m512i sum, uint32_t state, uint32_t shift)
{
    __m256i half = _mm256_xor_si256(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
    __m128i quarter = _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    return reduce(_mm_xor_si128(quarter, product(SHMQ_CRC_STATE(state), shift)));
}

#define NEXT(step) (to == NULL ? NULL : to + (step))
/* Block `index` of the first group of four, of which the last `count` exist and the first of these is `lead`. */
#define BLOCK(index)                                                                                         \
    ((index) < 4 - count    ? zero                                                                           \
     : (index) == 4 - count ? lead                                                                           \
                            : take_64(from + ((index) + count - 5) * 64, NEXT(((index) + count - 5) * 64)))
/* Its successor 256 bytes on; a block that did not exist needs no folding. */
#define FOLDED(index, block)                                                                                 \
    ((index) < 4 - count ? take_64(from + (index) * 64, NEXT((index) * 64))                                  \
                         : fold_wide(block, fold_256, take_64(from + (index) * 64, NEXT((index) * 64))))
/* `lead` and all bytes in [from, end), (count - 1) * 64 + a multiple of 256, as lanes of U; `count` is a constant. */
INLINE WIDE __m512i wide_blocks(const int count, __m512i lead, uint8_t *to, const uint8_t *from, const uint8_t *end)
{
    const __m512i zero = _mm512_setzero_si512();
    __m512i a = BLOCK(0), b = BLOCK(1), c = BLOCK(2), d = BLOCK(3);
    from += (count - 1) * 64;
    to = NEXT((count - 1) * 64);
    if (from == end) {
        __m512i sum = fold_wide(d, finish_64[3], zero);
        sum = count >= 2 ? fold_wide(c, finish_64[2], sum) : sum;
        sum = count >= 3 ? fold_wide(b, finish_64[1], sum) : sum;
        return count >= 4 ? fold_wide(a, finish_64[0], sum) : sum;
    }
    a = FOLDED(0, a), b = FOLDED(1, b), c = FOLDED(2, c), d = FOLDED(3, d);
    for (from += 256, to = NEXT(256); from != end; from += 256, to = NEXT(256)) {
        a = fold_wide(a, fold_256, take_64(from, to));
        b = fold_wide(b, fold_256, take_64(from + 64, NEXT(64)));
        c = fold_wide(c, fold_256, take_64(from + 128, NEXT(128)));
        d = fold_wide(d, fold_256, take_64(from + 192, NEXT(192)));
    }
    a = fold_wide(a, finish_64[0], fold_wide(b, finish_64[1], zero));
    return fold_wide(c, finish_64[2], fold_wide(d, finish_64[3], a));
}

INLINE WIDE uint32_t wide_run(uint32_t state, uint8_t *to, const uint8_t *from, size_t bytes)
{
    if (bytes == 0)
        return state;
    const uint32_t shift = inline_shift(bytes);
    const size_t part = ((bytes - 1) & 63) + 1;
    const uint8_t *end = from + bytes;
    const __m512i lead = lead_64(from, to, part, bytes);
    from += part;
    to = NEXT(part);
    switch (((bytes - part) >> 6) & 3) {
    case 0:
        return reduce_wide(wide_blocks(1, lead, to, from, end), state, shift);
    case 1:
        return reduce_wide(wide_blocks(2, lead, to, from, end), state, shift);
    case 2:
        return reduce_wide(wide_blocks(3, lead, to, from, end), state, shift);
    default:
        return reduce_wide(wide_blocks(4, lead, to, from, end), state, shift);
    }
}
#undef FOLDED
#undef BLOCK
#undef NEXT

WIDE static uint32_t wide_raw(uint32_t state, const uint8_t *data, size_t bytes)
{
    return wide_run(state, NULL, data, bytes);
}

/* Long copies pay for two short runs, which put every other store on a cache line of its own. */
WIDE static uint32_t wide_copy_raw(uint32_t state, uint8_t *to, const uint8_t *from, size_t bytes)
{
    const size_t head = (64 - ((uintptr_t)to & 63)) & 63, tail = (bytes - head) & 63;
    if (bytes < LONG_COPY || head == 0)
        return wide_run(state, to, from, bytes);
    state = wide_run(state, to, from, head);
    state = wide_run(state, to + head, from + head, bytes - head - tail);
    return wide_run(state, to + bytes - tail, from + bytes - tail, tail);
}

const struct shmq_crc_engine shmq_crc_engine_vpclmul = {
    .name = "vpclmul", .raw = wide_raw, .copy_raw = wide_copy_raw, .shift = narrow_shift,
    .multiply = narrow_multiply, .products = narrow_products,
};
#else
typedef int shmq_crc_x86_is_empty; /* ISO C forbids an empty file */
#endif
