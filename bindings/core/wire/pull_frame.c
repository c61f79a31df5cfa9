/* The keys of pulls, and the headers of their answers; pull_frame.h says what a key is. */
#include "core/wire/pull_frame.h"

#include "core/bytes.h"

#define DIGITS_MAX 18

static const struct { const char *name; uint32_t bytes; uint64_t most; } numbers[SHMQ_PULL_NUMBERS] = {
    [SHMQ_PULL_OPAQUE] = {"\"opaque\":", 9, INT32_MAX},
    [SHMQ_PULL_OFFSET] = {"\"queueOffset\":\"", 15, INT64_MAX},
    [SHMQ_PULL_COMMIT] = {"\"commitOffset\":\"", 16, INT64_MAX},
};

struct gap { const uint8_t *at; uint32_t bytes, number; };

/* The digits behind the first place that has the name. Java's writer knows no leading zeros, nor does JSON. */
static bool gap_find(const uint8_t *header, uint32_t bytes, uint32_t number, struct gap *out, uint64_t *value)
{
    const uint8_t *end = header + bytes, *at = memmem(header, bytes, numbers[number].name, numbers[number].bytes);
    if (at == NULL) {
        return false;
    }
    at += numbers[number].bytes;
    *out = (struct gap){.at = at, .number = number};
    for (*value = 0; at < end && *at >= '0' && *at <= '9' && out->bytes <= DIGITS_MAX; at++) {
        *value = *value * 10 + (uint64_t)(*at - '0');
        out->bytes++;
    }
    return out->bytes > 0 && out->bytes <= DIGITS_MAX && (out->at[0] != '0' || out->bytes == 1) &&
           *value <= numbers[number].most;
}

static void gap_insert(struct gap *gaps, uint32_t count, struct gap gap)
{
    while (count > 0 && gaps[count - 1].at > gap.at) {
        gaps[count] = gaps[count - 1];
        count--;
    }
    gaps[count] = gap;
}

enum shmq_status shmq_pull_key_read(const uint8_t *header, uint32_t bytes, struct shmq_pull_key *out)
{
    struct gap gaps[SHMQ_PULL_NUMBERS];
    if (bytes > SHMQ_PULL_HEADER_MAX) {
        return SHMQ_EMPTY;
    }
    for (uint32_t number = 0; number < SHMQ_PULL_NUMBERS; number++) {
        struct gap gap;
        if (!gap_find(header, bytes, number, &gap, &out->numbers[number])) {
            return SHMQ_EMPTY;
        }
        gap_insert(gaps, number, gap);
    }
    const uint8_t *from = header;
    uint8_t *to = out->text;
    for (uint32_t i = 0; i < SHMQ_PULL_NUMBERS; i++) {
        const size_t length = (size_t)(gaps[i].at - from);
        memcpy(to, from, length);
        to += length;
        *to++ = (uint8_t)(gaps[i].number + 1); /* no JSON text holds such a byte */
        from = gaps[i].at + gaps[i].bytes;
    }
    const size_t rest = (size_t)(header + bytes - from);
    memcpy(to, from, rest);
    out->bytes = (uint32_t)(to + rest - out->text);
    out->hash = shmq_crc32(out->text, out->bytes);
    return SHMQ_OK;
}

/* ---- the answer ------------------------------------------------------------------------------------- */
size_t shmq_pull_answer_room(const struct shmq_piece *pieces, uint32_t count)
{
    size_t room = SHMQ_FRAME_PREFIX_BYTES;
    for (uint32_t i = 0; i < count; i++) {
        room += pieces[i].kind == SHMQ_PULL_PIECE_LITERAL ? pieces[i].bytes : SHMQ_ANSWER_FIELD_MAX;
    }
    return room;
}

size_t shmq_pull_answer_write(uint8_t *out, const struct shmq_piece *pieces, uint32_t count,
                              const uint64_t values[SHMQ_PULL_PIECES])
{
    uint8_t *at = out + SHMQ_FRAME_PREFIX_BYTES;
    for (uint32_t i = 0; i < count; i++) {
        if (pieces[i].kind == SHMQ_PULL_PIECE_LITERAL) {
            memcpy(at, pieces[i].data, pieces[i].bytes);
            at += pieces[i].bytes;
        } else {
            at = shmq_decimal_write(at, values[pieces[i].kind]);
        }
    }
    return (size_t)(at - out);
}

void shmq_pull_answer_end(uint8_t *out, size_t head_bytes, size_t body_bytes)
{
    const uint32_t header_bytes = (uint32_t)head_bytes - SHMQ_FRAME_PREFIX_BYTES;
    shmq_store32(shmq_store32(out, 4 + header_bytes + (uint32_t)body_bytes),
                 (uint32_t)SHMQ_CODEC_JSON << 24 | header_bytes);
}
