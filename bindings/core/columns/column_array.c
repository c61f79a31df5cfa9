/* Arrays that grow by one value: columns.h has their layout. Text is made valid UTF-8 on its way in. */
#include <stdlib.h>
#include <string.h>

#include "core/columns/columns.h"

#define BYTES_MIN 1024u
#define REPLACEMENT "\xEF\xBF\xBD" /* U+FFFD */

/* ---- buffers ---------------------------------------------------------------------------------------- */
static bool bytes_reserve(struct shmq_bytes *out, size_t more)
{
    size_t wanted = out->bytes + more;
    if (wanted <= out->capacity && out->data != NULL) {
        return true;
    }
    size_t capacity = out->capacity ? out->capacity : BYTES_MIN;
    while (capacity < wanted) {
        capacity *= 2;
    }
    uint8_t *data = realloc(out->data, capacity); /* long blocks are moved by the page table, not copied */
    if (data == NULL) {
        return false;
    }
    out->data = data;
    out->capacity = capacity;
    return true;
}

void shmq_bytes_expect(struct shmq_bytes *out, size_t bytes)
{
    uint8_t *data = bytes > out->capacity ? realloc(out->data, bytes) : NULL;
    if (data != NULL) {
        out->data = data;
        out->capacity = bytes;
    }
}

bool shmq_bytes_put(struct shmq_bytes *out, const void *data, size_t bytes)
{
    if (!bytes_reserve(out, bytes)) {
        return false;
    }
    if (bytes) {
        memcpy(out->data + out->bytes, data, bytes);
    }
    out->bytes += bytes;
    return true;
}

/* ---- nulls ------------------------------------------------------------------------------------------- */
static bool nulls_grow(struct shmq_array *array)
{
    size_t wanted = (size_t)array->rows / 8 + 1;
    while (array->nulls.bytes < wanted) {
        if (!shmq_bytes_put(&array->nulls, "\xFF", 1)) {
            return false;
        }
    }
    return true;
}

/* The row that was just added: with a bitmap it needs its bit, which is 1 until it is cleared. */
static bool row_done(struct shmq_array *array)
{
    bool ok = array->null_count == 0 || nulls_grow(array);
    array->rows++;
    return ok;
}

static bool row_is_null(struct shmq_array *array)
{
    array->null_count++;
    if (!nulls_grow(array)) {
        return false;
    }
    array->nulls.data[array->rows >> 3] &= (uint8_t)~(1u << (array->rows & 7));
    array->rows++;
    return true;
}

/* ---- values ------------------------------------------------------------------------------------------- */
bool shmq_array_int_slow(struct shmq_array *array, uint32_t value)
{
    return shmq_bytes_put(&array->fixed, &value, sizeof value) && row_done(array);
}

bool shmq_array_long_slow(struct shmq_array *array, uint64_t value)
{
    return shmq_bytes_put(&array->fixed, &value, sizeof value) && row_done(array);
}

/* The offsets of n values are n + 1 numbers, the first of them 0. */
static bool offset_put(struct shmq_array *array, uint64_t end)
{
    int32_t number = (int32_t)end;
    static const int32_t zero = 0;
    return end <= INT32_MAX && (array->fixed.bytes || shmq_bytes_put(&array->fixed, &zero, sizeof zero)) &&
           shmq_bytes_put(&array->fixed, &number, sizeof number);
}

bool shmq_array_offset(struct shmq_array *array, uint32_t end)
{
    return offset_put(array, end) && row_done(array);
}

bool shmq_array_bytes(struct shmq_array *array, const void *data, size_t bytes)
{
    struct shmq_bytes *fixed = &array->fixed, *out = &array->bytes;
    if (!array->null_count && fixed->bytes && fixed->capacity - fixed->bytes >= sizeof(int32_t) && bytes &&
        out->capacity - out->bytes >= bytes && out->bytes + bytes <= INT32_MAX) {
        memcpy(out->data + out->bytes, data, bytes);
        out->bytes += bytes;
        int32_t end = (int32_t)out->bytes;
        memcpy(fixed->data + fixed->bytes, &end, sizeof end);
        fixed->bytes += sizeof end;
        array->rows++;
        return true;
    }
    return offset_put(array, array->bytes.bytes + (uint64_t)bytes) && shmq_bytes_put(&array->bytes, data, bytes) &&
           row_done(array);
}

bool shmq_array_null(struct shmq_array *array, size_t value_bytes)
{
    static const uint8_t zeros[8];
    bool ok = value_bytes ? shmq_bytes_put(&array->fixed, zeros, value_bytes) : offset_put(array, array->bytes.bytes);
    return ok && row_is_null(array);
}

/* ---- text ---------------------------------------------------------------------------------------------- */
static size_t ascii_bytes(const char *data, size_t bytes)
{
    size_t at = 0;
    for (uint64_t word; bytes - at >= sizeof word; at += sizeof word) {
        memcpy(&word, data + at, sizeof word);
        if (word & UINT64_C(0x8080808080808080)) {
            break;
        }
    }
    while (at < bytes && (uint8_t)data[at] < 0x80) {
        at++;
    }
    return at;
}

/* Bytes of the character at `text`, or 0 when none is well formed there: no overlong form, surrogate or number beyond
 * U+10FFFF. */
static size_t character_bytes(const uint8_t *text, size_t left)
{
    uint8_t first = text[0];
    size_t count = first < 0x80 ? 1 : first >= 0xC2 && first < 0xE0 ? 2 : (first & 0xF0) == 0xE0 ? 3 : 4;
    if (count == 1) {
        return 1;
    }
    if (first < 0xC2 || first > 0xF4 || left < count) {
        return 0;
    }
    uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    uint8_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    if (text[1] < low || text[1] > high) {
        return 0;
    }
    for (size_t i = 2; i < count; i++) {
        if ((text[i] & 0xC0) != 0x80) {
            return 0;
        }
    }
    return count;
}

static bool text_put(struct shmq_bytes *out, const char *data, size_t bytes)
{
    while (bytes) {
        size_t good = ascii_bytes(data, bytes), step = 0;
        while (good < bytes && (step = character_bytes((const uint8_t *)data + good, bytes - good)) != 0) {
            good += step;
        }
        if (!shmq_bytes_put(out, data, good)) {
            return false;
        }
        if (good < bytes) {
            if (!shmq_bytes_put(out, REPLACEMENT, sizeof REPLACEMENT - 1)) {
                return false;
            }
            good++;
        }
        data += good;
        bytes -= good;
    }
    return true;
}

bool shmq_array_text(struct shmq_array *array, const char *data, size_t bytes)
{
    if (ascii_bytes(data, bytes) == bytes) {
        return shmq_array_bytes(array, data, bytes);
    }
    return text_put(&array->bytes, data, bytes) && offset_put(array, array->bytes.bytes) && row_done(array);
}

void shmq_array_clear(struct shmq_array *array)
{
    free(array->nulls.data);
    free(array->fixed.data);
    free(array->bytes.data);
    memset(array, 0, sizeof *array);
}
