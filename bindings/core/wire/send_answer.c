/* The other half of a plain send: what is stored of its properties, and the frame that answers it.
 *
 * Knows which properties ask the broker for more than storing. (1) A text is taken only if it reads back as it was
 * written: every pair whole, no name twice. (2) An answer is written in one go or not at all.
 */
#include "core/bytes.h"
#include "core/wire/send_frame.h"

#define PAIRS_MAX 32

struct pair { const char *name; uint32_t name_bytes; uint32_t bytes; };

/* What becomes of a property. */
enum fate { KEPT, DROPPED, ASKED };

static bool is_name(const struct pair *pair, const char *name, uint32_t bytes)
{
    return pair->name_bytes == bytes && memcmp(pair->name, name, bytes) == 0;
}
#define IS(pair, name) is_name(pair, name, sizeof(name) - 1)

static enum fate fate_of(const struct pair *pair)
{
    switch (pair->name[0]) {
    case 'W':
        return IS(pair, "WAIT") ? DROPPED : KEPT;
    case 'C':
        return IS(pair, "CLUSTER") ? DROPPED : KEPT;
    case '_':
        return IS(pair, SHMQ_CRC_NAME) ? DROPPED : KEPT;
    case 'D':
        return IS(pair, "DELAY") ? ASKED : KEPT;
    case 'T':
        return IS(pair, "TRAN_MSG") || (pair->name_bytes > 6 && memcmp(pair->name, "TIMER_", 6) == 0) ? ASKED : KEPT;
    default:
        return KEPT;
    }
}

static bool is_no(const char *value, size_t bytes)
{
    return bytes == strlen("false") && memcmp(value, "false", bytes) == 0;
}

static bool is_repeated(const struct pair *pairs, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (is_name(&pairs[i], pairs[count].name, pairs[count].name_bytes))
            return true;
    }
    return false;
}

enum shmq_status shmq_send_properties(const char *text, uint32_t text_bytes, const char *suffix, uint32_t suffix_bytes,
                                      char *out, uint32_t *bytes, bool *waits)
{
    struct pair pairs[PAIRS_MAX];
    const char *end = text + text_bytes;
    char *to = out;
    *waits = true;
    if (*bytes < text_bytes + 1 + suffix_bytes)
        return SHMQ_EMPTY;
    for (uint32_t count = 0; text < end; count++) {
        const char *stop = memchr(text, SHMQ_VALUE_END, (size_t)(end - text));
        stop = stop == NULL ? end : stop;
        const char *name_end = memchr(text, SHMQ_NAME_END, (size_t)(stop - text));
        if (count == PAIRS_MAX || name_end == NULL || name_end == text || name_end + 1 == stop)
            return SHMQ_EMPTY;
        pairs[count] = (struct pair){text, (uint32_t)(name_end - text), (uint32_t)(stop - text)};
        const enum fate fate = fate_of(&pairs[count]);
        if (fate == ASKED || is_repeated(pairs, count))
            return SHMQ_EMPTY;
        if (fate == KEPT) {
            memcpy(to, text, pairs[count].bytes);
            to += pairs[count].bytes;
            *to++ = SHMQ_VALUE_END;
        } else if (IS(&pairs[count], "WAIT")) {
            *waits = !is_no(name_end + 1, (size_t)(stop - name_end) - 1);
        }
        text = stop + 1;
    }
    memcpy(to, suffix, suffix_bytes);
    *bytes = (uint32_t)(to - out) + suffix_bytes;
    return SHMQ_OK;
}

/* ---- the answer ------------------------------------------------------------------------------------- */
uint8_t *shmq_decimal_write(uint8_t *out, uint64_t value)
{
    uint8_t digits[20];
    uint32_t count = 0;
    do {
        digits[count++] = (uint8_t)('0' + value % 10);
        value /= 10;
    } while (value != 0);
    while (count > 0)
        *out++ = digits[--count];
    return out;
}

static uint8_t *put_message_ids(uint8_t *out, const struct shmq_answer *answer)
{
    static const char digits[] = "0123456789ABCDEF";
    for (uint32_t i = 0; i < answer->count; i++) {
        if (i > 0)
            *out++ = ',';
        memcpy(out, answer->address, answer->address_bytes);
        out += answer->address_bytes;
        for (int shift = 60; shift >= 0; shift -= 4)
            *out++ = (uint8_t)digits[answer->log_positions[i] >> shift & 15];
    }
    return out;
}

static uint8_t *put_text(uint8_t *out, uint32_t kind, const struct shmq_answer *answer)
{
    switch (kind) {
    case SHMQ_PIECE_OPAQUE:
        if (answer->opaque < 0)
            *out++ = '-';
        return shmq_decimal_write(out, (uint64_t)(answer->opaque < 0 ? -(int64_t)answer->opaque : answer->opaque));
    case SHMQ_PIECE_MESSAGE_ID:
        return put_message_ids(out, answer);
    case SHMQ_PIECE_QUEUE_ID:
        return shmq_decimal_write(out, answer->queue_id);
    default:
        return shmq_decimal_write(out, answer->queue_offset);
    }
}

size_t shmq_answer_write(uint8_t *out, size_t room, enum shmq_codec codec, const struct shmq_piece *pieces,
                         uint32_t count, const struct shmq_answer *answer)
{
    uint8_t *at = out + SHMQ_FRAME_PREFIX_BYTES, *length = NULL;
    size_t needed = SHMQ_FRAME_PREFIX_BYTES;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t text = pieces[i].kind & ~(uint32_t)SHMQ_PIECE_SIZED;
        needed += pieces[i].kind == SHMQ_PIECE_LITERAL ? pieces[i].bytes : SHMQ_ANSWER_FIELD_MAX;
        needed += text == SHMQ_PIECE_MESSAGE_ID ? shmq_answer_ids_bytes(answer) : 0;
    }
    if (needed > room)
        return 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct shmq_piece *piece = &pieces[i];
        if (piece->kind == SHMQ_PIECE_LITERAL) {
            memcpy(at, piece->data, piece->bytes);
            at += piece->bytes;
        } else if (piece->kind == SHMQ_PIECE_OPAQUE_32) {
            at = shmq_store32(at, (uint32_t)answer->opaque);
        } else if (piece->kind == SHMQ_PIECE_LENGTH_32) {
            length = at;
            at += 4;
        } else if (piece->kind & SHMQ_PIECE_SIZED) {
            uint8_t *end = put_text(at + 4, piece->kind & ~(uint32_t)SHMQ_PIECE_SIZED, answer);
            shmq_store32(at, (uint32_t)(end - at) - 4);
            at = end;
        } else {
            at = put_text(at, piece->kind, answer);
        }
    }
    if (length != NULL)
        shmq_store32(length, (uint32_t)(at - length) - 4);
    const uint32_t header_bytes = (uint32_t)(at - out) - SHMQ_FRAME_PREFIX_BYTES;
    shmq_store32(shmq_store32(out, header_bytes + 4), (uint32_t)codec << 24 | header_bytes);
    return (size_t)(at - out);
}
