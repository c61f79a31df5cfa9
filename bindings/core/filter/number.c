/* Numbers in text as Java's Integer.valueOf, Long.valueOf and Double.valueOf read them.
 *
 * The rules: no blank around an integer, blanks around a double; a sign; NaN, Infinity, hexadecimal doubles and
 * the suffixes f and d. Digits are those of ASCII. Nothing is allocated, and no locale but "C" is asked.
 *
 * A double is exact: up to 19 digits with a small power of ten take one multiplication of two exact numbers; anything
 * else goes to strtod_l, after its digits were cut to what can still decide the rounding.
 */
#include "core/filter/filter.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS_KEPT 800 /* a double is decided by 767 digits, and by whether anything but zeros follows them */
#define HEX_KEPT 40
#define EXPONENT_MAX 100000 /* beyond what any digits could bring back into range */

static locale_t plain_locale;

__attribute__((constructor)) static void locale_open(void)
{
    plain_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

bool shmq_text_integer(const uint8_t *text, size_t bytes, int64_t least, int64_t most, int64_t *out)
{
    bool negative = bytes && text[0] == '-';
    size_t at = bytes && (text[0] == '-' || text[0] == '+') ? 1 : 0;
    uint64_t bound = negative ? -(uint64_t)least : (uint64_t)most;
    uint64_t value = 0;
    if (at == bytes) {
        return false;
    }
    for (; at < bytes; at++) {
        uint32_t digit = (uint32_t)text[at] - '0';
        if (digit > 9 || value > (bound - digit) / 10) {
            return false;
        }
        value = value * 10 + digit;
    }
    *out = (int64_t)(negative ? -value : value);
    return true;
}

/* ---- doubles --------------------------------------------------------------------------------------- */
struct number {                /* the digits, with the point taken out */
    char digits[DIGITS_KEPT + 1];
    uint32_t kept;
    uint64_t value;            /* of the first 19 */
    int64_t dropped;           /* digits left out before the point, minus those kept behind it */
    bool any;
    bool rest;                 /* something other than zeros was left out */
};

static int digit_of(uint8_t character, bool hex)
{
    if (character >= '0' && character <= '9') {
        return character - '0';
    }
    uint8_t small = character | 0x20;
    return hex && small >= 'a' && small <= 'f' ? small - 'a' + 10 : -1;
}

static const uint8_t *digits_read(const uint8_t *at, const uint8_t *end, bool hex, struct number *out)
{
    uint32_t most = hex ? HEX_KEPT : DIGITS_KEPT;
    bool behind = false;
    out->kept = 0;
    out->value = 0;
    out->dropped = 0;
    out->any = out->rest = false;
    for (; at < end; at++) {
        int digit = *at == '.' ? -1 : digit_of(*at, hex);
        if (*at == '.' && !behind) {
            behind = true;
            continue;
        }
        if (digit < 0) {
            break;
        }
        out->any = true;
        if (digit == 0 && out->kept == 0) {
            out->dropped -= behind;
        } else if (out->kept < most) {
            out->value = out->kept < 19 ? out->value * 10 + (uint64_t)digit : out->value;
            out->digits[out->kept++] = (char)*at;
            out->dropped -= behind;
        } else {
            out->rest = out->rest || digit != 0;
            out->dropped += !behind;
        }
    }
    return at;
}

/* "e+12" or "p-3" behind the digits; *at stays before it when it is none. False: a letter without a number. */
static bool exponent_read(const uint8_t **at, const uint8_t *end, char letter, int64_t *out)
{
    const uint8_t *here = *at;
    *out = 0;
    if (here == end || (*here | 0x20) != letter) {
        return true;
    }
    here++;
    bool negative = here < end && *here == '-';
    here += here < end && (*here == '-' || *here == '+');
    if (here == end || digit_of(*here, false) < 0) {
        return false;
    }
    for (; here < end && digit_of(*here, false) >= 0; here++) {
        *out = *out < EXPONENT_MAX ? *out * 10 + digit_of(*here, false) : *out;
    }
    *out = negative ? -*out : *out;
    *at = here;
    return true;
}

static int64_t clamp(int64_t value)
{
    return value > EXPONENT_MAX ? EXPONENT_MAX : value < -EXPONENT_MAX ? -EXPONENT_MAX : value;
}

static double slow(struct number *number, bool hex, int64_t exponent)
{
    char text[DIGITS_KEPT + 32];
    char *to = text;
    char tail[24];
    uint32_t count = 0;
    if (hex) {
        *to++ = '0';
        *to++ = 'x';
    }
    memcpy(to, number->digits, number->kept);
    to += number->kept;
    if (number->rest) { /* one digit more, so that the rounding sees it */
        *to++ = '1';
        exponent -= hex ? 4 : 1;
    }
    exponent = clamp(exponent);
    *to++ = hex ? 'p' : 'e';
    if (exponent < 0) {
        *to++ = '-';
        exponent = -exponent;
    }
    do {
        tail[count++] = (char)('0' + exponent % 10);
        exponent /= 10;
    } while (exponent);
    while (count) {
        *to++ = tail[--count];
    }
    *to = '\0';
    return strtod_l(text, NULL, plain_locale);
}

static double decimal(struct number *number, int64_t exponent)
{
    static const double powers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    exponent += number->dropped;
    if (!number->kept) {
        return 0.0;
    }
    if (number->kept <= 19 && number->value <= UINT64_C(1) << 53 && exponent >= -22 && exponent <= 22) {
        double value = (double)number->value;
        return exponent < 0 ? value / powers[-exponent] : value * powers[exponent];
    }
    return slow(number, false, exponent);
}

static bool is_word(const uint8_t *at, const uint8_t *end, const char *word)
{
    size_t bytes = strlen(word);
    return (size_t)(end - at) == bytes && !memcmp(at, word, bytes);
}

static bool digits_value(const uint8_t *at, const uint8_t *end, double *out)
{
    bool hex = end - at > 2 && at[0] == '0' && (at[1] | 0x20) == 'x';
    struct number number;
    int64_t exponent;
    at = digits_read(at + (hex ? 2 : 0), end, hex, &number);
    bool has_letter = at < end && (*at | 0x20) == 'p';
    if (!number.any || (hex && !has_letter) || !exponent_read(&at, end, hex ? 'p' : 'e', &exponent)) {
        return false;
    }
    if (at < end && ((*at | 0x20) == 'f' || (*at | 0x20) == 'd')) {
        at++;
    }
    if (at != end) {
        return false;
    }
    if (hex) {
        *out = number.kept ? slow(&number, true, exponent + 4 * number.dropped) : 0.0;
    } else {
        *out = decimal(&number, exponent);
    }
    return true;
}

bool shmq_text_double(const uint8_t *text, size_t bytes, double *out)
{
    const uint8_t *at = text, *end = text + bytes;
    while (at < end && *at <= ' ') {
        at++;
    }
    while (at < end && end[-1] <= ' ') {
        end--;
    }
    bool negative = at < end && *at == '-';
    at += at < end && (*at == '-' || *at == '+');
    if (is_word(at, end, "NaN")) {
        *out = NAN;
        return true;
    }
    if (is_word(at, end, "Infinity")) {
        *out = INFINITY;
    } else if (!digits_value(at, end, out)) {
        return false;
    }
    *out = negative ? -*out : *out;
    return true;
}
