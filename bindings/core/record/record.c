/* RocketMQ's stored message: sizes, encoding, late fields, decoding, verifying.
 *
 * The one place that knows the bytes of a CommitLog record and of the record CRC property. Big-endian; offsets with two
 * IPv4 hosts, an IPv6 host (sysFlag 16 born, 32 store) adds 12:
 *
 *    0 totalSize 4     16 flag 4               40 bornTimestamp 8     72 reconsumeTimes 4
 *    4 magic 4         20 queueOffset 8 *      48 bornHost 4 + 4      76 preparedTransactionOffset 8
 *    8 bodyCRC 4       28 physicalOffset 8 *   56 storeTimestamp 8 *  84 bodyLength 4
 *   12 queueId 4       36 sysFlag 4            64 storeHost 4 + 4     88 body
 *   body, topicLength 1 (V1) or 2 (V2), topic, propertiesLength 2, properties
 *   properties = user text, 0x02 if needed, "__CRC32#" 0x01, ten digits *, 0x02
 *
 *   * late fields: known only under the append lock, filled in by shmq_record_patch.
 *
 * Rules:
 *   (1) the record CRC covers [0, record_bytes - 20); like bodyCRC it is the CRC-32 without its highest bit;
 *   (2) encoding reads the body once and patching never: the register is linear, so the late words are added to it;
 *   (3) decoding judges every length against what is left before it uses it, and reads every field once.
 */
#include "core/bytes.h"
#include "core/record/record.h"
#include "core/record/crc.h"

enum {
    MAGIC_AT = 4,
    BODY_CRC_AT = 8,
    QUEUE_OFFSET_AT = 20,
    LOG_POSITION_AT = 28,
    SYS_FLAG_AT = 36,
    BORN_HOST_AT = 48,
    STORE_MS_AT = 56,
    LATE_END = 64,              /* the patch works on the register after this many bytes, + 12 with an IPv6 host */
    FIXED_BYTES = SHMQ_RECORD_BODY_AT + 1 + 2,
    SYS_FLAG_BORN_V6 = 16,
    SYS_FLAG_STORE_V6 = 32,
    LENGTH_MAX_V1 = 127,        /* Java reads signed numbers */
    LENGTH_MAX_V2 = 32767,
    DIGITS = 10,
};
#define CRC_KEY_BYTES (sizeof SHMQ_CRC_KEY - 1)
#define CRC_MASK 0x7FFFFFFFu
#define START 0xFFFFFFFFu
static_assert(CRC_KEY_BYTES + DIGITS + 1 == SHMQ_RECORD_CRC_BYTES, "the CRC property is 20 bytes");

static inline uint8_t *put_bytes(uint8_t *out, const void *from, size_t bytes)
{
    if (bytes != 0)
        memcpy(out, from, bytes);
    return out + bytes;
}

/* What the CRC sees of a number stored big-endian: its bytes as a little-endian word. */
static inline uint64_t crc_word64(uint64_t value)
{
    return __builtin_bswap64(value);
}

static inline uint32_t crc_word32(uint32_t value)
{
    return __builtin_bswap32(value);
}

/* ---- encode --------------------------------------------------------------------------------------- */
static inline uint32_t topic_length_bytes(const struct shmq_spec *spec)
{
    return spec->topic_bytes > LENGTH_MAX_V1 ? 2 : 1;
}

static inline uint32_t separator_bytes(const struct shmq_spec *spec)
{
    return spec->properties_bytes != 0 && spec->properties[spec->properties_bytes - 1] != 2;
}

uint32_t shmq_record_bytes(const struct shmq_spec *spec)
{
    if (spec->body_bytes > SHMQ_BODY_BYTES_MAX || spec->topic_bytes > LENGTH_MAX_V2 ||
        spec->properties_bytes > SHMQ_PROPERTIES_BYTES_MAX)
        return 0;
    uint32_t properties_bytes = spec->properties_bytes + separator_bytes(spec) + SHMQ_RECORD_CRC_BYTES;
    uint32_t tail_bytes = topic_length_bytes(spec) + spec->topic_bytes + 2 + properties_bytes;
    uint32_t record_bytes = shmq_record_body_at(spec) + spec->body_bytes + tail_bytes;
    return properties_bytes > SHMQ_PROPERTIES_BYTES_MAX || record_bytes > SHMQ_RECORD_BYTES_MAX ? 0 : record_bytes;
}

/* The 88 or 100 bytes before the body, with bodyCRC and the late fields zero. */
static inline void put_head(uint8_t *out, const struct shmq_spec *spec, uint32_t record_bytes, uint64_t born_ms)
{
    out = shmq_store32(out, record_bytes);
    out = shmq_store32(out, spec->topic_bytes > LENGTH_MAX_V1 ? SHMQ_RECORD_MAGIC_V2 : SHMQ_RECORD_MAGIC_V1);
    out = shmq_store32(out, 0);
    out = shmq_store32(out, spec->queue_id);
    out = shmq_store32(out, spec->flag);
    out = shmq_store64(out, 0);
    out = shmq_store64(out, 0);
    const bool born_v6 = spec->born_host_bytes == SHMQ_HOST_BYTES_V6;
    const uint32_t sys_flag = spec->sys_flag & ~(uint32_t)(SYS_FLAG_BORN_V6 | SYS_FLAG_STORE_V6);
    out = shmq_store32(out, sys_flag | (born_v6 ? SYS_FLAG_BORN_V6 : 0)); /* the store host is an IPv4 one */
    out = shmq_store64(out, born_ms);
    out = put_bytes(out, spec->born_host, born_v6 ? SHMQ_HOST_BYTES_V6 : SHMQ_HOST_BYTES);
    out = shmq_store64(out, 0);
    out = put_bytes(out, spec->store_host, SHMQ_HOST_BYTES);
    out = shmq_store32(out, spec->reconsume_times);
    out = shmq_store64(out, spec->prepared_position);
    shmq_store32(out, spec->body_bytes);
}

/* Everything behind the body; returns how many bytes the record CRC covers of it. */
static inline size_t put_tail(uint8_t *tail, const struct shmq_spec *spec)
{
    uint8_t *out = tail;
    if (topic_length_bytes(spec) == 2)
        out = shmq_store16(out, (uint16_t)spec->topic_bytes);
    else
        *out++ = (uint8_t)spec->topic_bytes;
    out = put_bytes(out, spec->topic, spec->topic_bytes);
    const uint32_t separator = separator_bytes(spec);
    out = shmq_store16(out, (uint16_t)(spec->properties_bytes + separator + SHMQ_RECORD_CRC_BYTES));
    out = put_bytes(out, spec->properties, spec->properties_bytes);
    if (separator)
        *out++ = 2;
    memcpy(out, SHMQ_CRC_KEY "0000000000\x02", SHMQ_RECORD_CRC_BYTES);
    return (size_t)(out - tail);
}

void shmq_record_lay(uint8_t *out, const struct shmq_spec *spec, uint32_t record_bytes, uint64_t now_ms,
                     struct shmq_patch *patch)
{
    const uint32_t body_bytes = spec->body_bytes, body_at = shmq_record_body_at(spec);
    uint8_t *body = out + body_at, *tail = body + body_bytes;
    put_head(out, spec, record_bytes, spec->born_ms == 0 ? now_ms : spec->born_ms);
    const size_t tail_bytes = put_tail(tail, spec);
    patch->record_bytes = body_at + body_bytes + (uint32_t)tail_bytes + SHMQ_RECORD_CRC_BYTES; /* what was laid out */
    patch->longer = body_at - SHMQ_RECORD_BODY_AT;
    patch->described = spec->properties_bytes != 0;
    uint32_t body_raw = START;
    if (body_bytes != 0 && spec->body == NULL)
        body_raw = spec->body_crc_raw;
    else if (body_bytes != 0)
        body_raw = shmq_crc_engine.copy_raw(START, body, spec->body, body_bytes);
    const uint32_t body_crc = ~body_raw & CRC_MASK;
    /* Register after the body = body_raw, + what the head left in the register instead of START, + the body CRC that
     * was still zero when the head was read; each followed by the bytes behind it. */
    const uint32_t head_raw = shmq_crc_engine.raw(START, out, body_at);
    const uint64_t words[3] = {SHMQ_CRC_STATE(body_raw), SHMQ_CRC_STATE(head_raw ^ START),
                               SHMQ_CRC_STATE(crc_word32(body_crc))};
    const uint32_t multipliers[3] = {SHMQ_CRC_ONE, shmq_crc_engine.shift(body_bytes),
                                     shmq_crc_engine.shift((uint64_t)body_bytes + body_at - BODY_CRC_AT)};
    const uint32_t before_tail = shmq_crc_engine.products(words, multipliers, SHMQ_CRC_ONE);
    shmq_store32(out + BODY_CRC_AT, body_crc);
    patch->crc_raw = shmq_crc_engine.raw(before_tail, tail, tail_bytes);
    const uint32_t behind_bytes = record_bytes - SHMQ_RECORD_CRC_BYTES - LATE_END - patch->longer;
    const bool is_near = behind_bytes < SHMQ_CRC_NEAR - LATE_END - SHMQ_HOST_LONGER;
    patch->behind_bytes = is_near ? behind_bytes : 0;
    patch->shift = is_near ? SHMQ_CRC_ONE : shmq_crc_engine.shift(behind_bytes);
}

void shmq_record_encode(uint8_t *out, const struct shmq_spec *spec, struct shmq_patch *patch)
{
    const uint32_t record_bytes = shmq_record_bytes(spec);
    *patch = (struct shmq_patch){.record_bytes = 0};
    if (record_bytes != 0)
        shmq_record_lay(out, spec, record_bytes, 0, patch);
}

/* ---- late fields ---------------------------------------------------------------------------------- */
/* Ten decimal digits, least significant first: eight of them by three rounds of splitting in one word. */
static inline void put_digits(uint8_t *out, uint32_t value)
{
    const uint32_t upper = value / 100000000u;
    uint64_t pairs = value % 100000000u;                                     /* 8 digits in 64 bits */
    pairs = (pairs / 10000) << 32 | pairs % 10000;                           /* lower four digits in the low half */
    uint64_t tens = ((pairs * 10486) >> 20) & UINT64_C(0x7F0000007F);        /* /100 of each half, exact below 10000 */
    pairs = (pairs - tens * 100) | tens << 16;                               /* two digits in each 16 bits */
    tens = ((pairs * 103) >> 10) & UINT64_C(0x000F000F000F000F);             /* /10 of each, exact below 100 */
    pairs = (pairs - tens * 10) | tens << 8 | UINT64_C(0x3030303030303030);  /* one digit in each byte, lowest first */
    pairs = htole64(pairs);
    memcpy(out, &pairs, sizeof pairs);
    out[8] = (uint8_t)('0' + upper % 10);
    out[9] = (uint8_t)('0' + upper / 10);
}

/* The number that such digits say; UINT64_MAX when they are none. Reading them costs half of what writing a CRC for
 * comparison does, and needs not wait for the CRC. */
static inline uint64_t read_digits(const uint8_t *digits)
{
    const uint64_t zeros = UINT64_C(0x3030303030303030), high = UINT64_C(0xF0F0F0F0F0F0F0F0);
    const uint32_t eighth = digits[8] - '0', ninth = digits[9] - '0';
    uint64_t word;
    memcpy(&word, digits, sizeof word);
    word = le64toh(word);
    const uint64_t strange = ((word & high) ^ zeros) | (((word + UINT64_C(0x0606060606060606)) & high) ^ zeros);
    if (strange != 0 || eighth > 9 || ninth > 9) {
        return UINT64_MAX;
    }
    word -= zeros;
    word = (word & UINT64_C(0x00FF00FF00FF00FF)) + (word >> 8 & UINT64_C(0x00FF00FF00FF00FF)) * 10;
    word = (word & UINT64_C(0x0000FFFF0000FFFF)) + (word >> 16 & UINT64_C(0x0000FFFF0000FFFF)) * 100;
    word = (word & UINT64_C(0x00000000FFFFFFFF)) + (word >> 32) * 10000;
    return word + (uint64_t)(eighth + ninth * 10) * 100000000u;
}

void shmq_record_patch(uint8_t *record, const struct shmq_patch *patch, uint64_t queue_offset,
                       uint64_t log_position, uint64_t store_ms)
{
    if (patch->record_bytes == 0)
        return;
    shmq_store64(record + QUEUE_OFFSET_AT, queue_offset);
    shmq_store64(record + LOG_POSITION_AT, log_position);
    shmq_store64(record + STORE_MS_AT + patch->longer, store_ms);
    /* A word that ends d bytes before LATE_END (+ longer) weighs x^(8d + 32), the power table's entry d + 4; what is
     * behind it is a second product only where the table does not reach. */
    const uint64_t words[3] = {crc_word64(queue_offset), crc_word64(log_position), crc_word64(store_ms)};
    const uint32_t *weights = shmq_crc_near + patch->behind_bytes;
    const uint32_t multipliers[3] = {weights[LATE_END - QUEUE_OFFSET_AT - 8 + 4 + patch->longer],
                                     weights[LATE_END - LOG_POSITION_AT - 8 + 4 + patch->longer],
                                     weights[LATE_END - STORE_MS_AT - 8 + 4]};
    const uint32_t crc_raw = patch->crc_raw ^ shmq_crc_engine.products(words, multipliers, patch->shift);
    put_digits(record + patch->record_bytes - DIGITS - 1, ~crc_raw & CRC_MASK);
}

/* ---- decode --------------------------------------------------------------------------------------- */
/* The fields before the body; NULL when they do not fit before `end`, else where the body begins. */
static inline const uint8_t *decode_head(const uint8_t *data, const uint8_t *end, struct shmq_view *view)
{
    view->sys_flag = shmq_load32(data + SYS_FLAG_AT);
    view->born_host_bytes = view->sys_flag & SYS_FLAG_BORN_V6 ? SHMQ_HOST_BYTES_V6 : SHMQ_HOST_BYTES;
    view->store_host_bytes = view->sys_flag & SYS_FLAG_STORE_V6 ? SHMQ_HOST_BYTES_V6 : SHMQ_HOST_BYTES;
    const size_t longer = view->born_host_bytes + view->store_host_bytes - 2 * SHMQ_HOST_BYTES;
    if ((size_t)(end - data) < FIXED_BYTES + longer)
        return NULL;
    view->body_crc = shmq_load32(data + BODY_CRC_AT);
    view->queue_id = shmq_load32(data + 12);
    view->flag = shmq_load32(data + 16);
    view->queue_offset = shmq_load64(data + QUEUE_OFFSET_AT);
    view->log_position = shmq_load64(data + LOG_POSITION_AT);
    view->born_ms = shmq_load64(data + 40);
    view->born_host = data + BORN_HOST_AT;
    data = view->born_host + view->born_host_bytes;
    view->store_ms = shmq_load64(data);
    view->store_host = data + 8;
    data = view->store_host + view->store_host_bytes;
    view->reconsume_times = shmq_load32(data);
    view->prepared_position = shmq_load64(data + 4);
    view->body_bytes = shmq_load32(data + 12);
    view->body = data + 16;
    return view->body;
}

/* Body, topic and properties; each length is judged against what is left, and nothing may be left at the end. */
static inline bool decode_rest(const uint8_t *at, const uint8_t *end, struct shmq_view *view)
{
    const size_t length_bytes = view->magic == SHMQ_RECORD_MAGIC_V1 ? 1 : 2;
    if (view->body_bytes > (size_t)(end - at) - length_bytes) /* three bytes are left at least */
        return false;
    at += view->body_bytes;
    view->topic_bytes = length_bytes == 1 ? *at : shmq_load16(at);
    if (view->topic_bytes > (length_bytes == 1 ? LENGTH_MAX_V1 : LENGTH_MAX_V2))
        return false;
    at += length_bytes;
    if ((size_t)(end - at) < view->topic_bytes + sizeof(uint16_t))
        return false;
    view->topic = (const char *)at;
    at += view->topic_bytes;
    view->properties_bytes = shmq_load16(at);
    at += sizeof(uint16_t);
    view->properties = (const char *)at;
    return view->properties_bytes <= SHMQ_PROPERTIES_BYTES_MAX && (size_t)(end - at) == view->properties_bytes;
}

enum shmq_status shmq_record_decode(const uint8_t *data, size_t bytes, struct shmq_view *view)
{
    if (bytes < sizeof(uint32_t))
        return SHMQ_CORRUPT;
    view->record_bytes = shmq_load32(data);
    if (view->record_bytes == 0)
        return SHMQ_EMPTY;
    if (bytes < SHMQ_RECORD_BLANK_BYTES)
        return SHMQ_CORRUPT;
    view->magic = shmq_load32(data + MAGIC_AT);
    if (view->magic == SHMQ_RECORD_MAGIC_BLANK)
        return SHMQ_EMPTY;
    if (view->magic != SHMQ_RECORD_MAGIC_V1 && view->magic != SHMQ_RECORD_MAGIC_V2)
        return SHMQ_CORRUPT;
    if (view->record_bytes > bytes || view->record_bytes > INT32_MAX || view->record_bytes < FIXED_BYTES)
        return SHMQ_CORRUPT;
    const uint8_t *end = data + view->record_bytes;
    const uint8_t *body = decode_head(data, end, view);
    return body != NULL && decode_rest(body, end, view) ? SHMQ_OK : SHMQ_CORRUPT;
}

/* ---- verify --------------------------------------------------------------------------------------- */
/* The digits as a number; anything but ten digits and a final 0x02 is a number no CRC can be. */
static uint64_t parse_digits(const uint8_t *digits)
{
    uint64_t value = 0;
    if (digits[DIGITS] != 2)
        return UINT64_MAX;
    for (int i = DIGITS - 1; i >= 0; i--) {
        if (digits[i] < '0' || digits[i] > '9')
            return UINT64_MAX;
        value = value * 10 + (uint64_t)(digits[i] - '0');
    }
    return value;
}

/* Whether the end of a record is what zeros left of its CRC property, as a lost sector or page leaves it. */
static bool is_rest_of_crc_property(const uint8_t *tail)
{
    size_t at = SHMQ_RECORD_CRC_BYTES;
    while (at > 0 && tail[at - 1] != 0) {
        at--;
    }
    if (at == 0) {
        return false; /* no zero */
    }
    for (; at < CRC_KEY_BYTES; at++) {
        if (tail[at] != (uint8_t)SHMQ_CRC_KEY[at]) {
            return false;
        }
    }
    for (; at < CRC_KEY_BYTES + DIGITS; at++) {
        if (tail[at] < '0' || tail[at] > '9') {
            return false;
        }
    }
    return at == SHMQ_RECORD_CRC_BYTES || tail[at] == 2;
}

/* The last bytes of a record that are nearly the CRC property were that property once: a damaged one must not make the
 * record look like another writer's, of which only the body is checked. */
static bool was_crc_property(const uint8_t *tail)
{
    uint32_t same = tail[SHMQ_RECORD_CRC_BYTES - 1] == 2;
    for (size_t i = 0; i < CRC_KEY_BYTES; i++) {
        same += tail[i] == (uint8_t)SHMQ_CRC_KEY[i];
    }
    return same >= CRC_KEY_BYTES - 2 || is_rest_of_crc_property(tail);
}

enum shmq_status shmq_record_verify(const uint8_t *data, const struct shmq_view *view)
{
    const uint32_t body_raw = shmq_crc_engine.raw(START, view->body, view->body_bytes);
    if ((~body_raw & CRC_MASK) != view->body_crc)
        return SHMQ_CORRUPT;
    if (view->properties_bytes < SHMQ_RECORD_CRC_BYTES)
        return SHMQ_OK;
    const size_t covered = view->record_bytes - SHMQ_RECORD_CRC_BYTES;
    if (memcmp(data + covered, SHMQ_CRC_KEY, CRC_KEY_BYTES) != 0)
        return was_crc_property(data + covered) ? SHMQ_CORRUPT : SHMQ_OK;
    /* The body is not read again: its register, and what the head left instead of START with a body of zeros behind. */
    const uint32_t head_raw = shmq_crc_engine.raw(START, data, (size_t)(view->body - data));
    const uint32_t moved = shmq_crc_engine.multiply(head_raw ^ START, shmq_crc_engine.shift(view->body_bytes));
    const uint8_t *tail = view->body + view->body_bytes;
    const uint32_t raw = shmq_crc_engine.raw(body_raw ^ moved, tail, (size_t)(data + covered - tail));
    return parse_digits(data + covered + CRC_KEY_BYTES) == (~raw & CRC_MASK) ? SHMQ_OK : SHMQ_CORRUPT;
}

enum shmq_status shmq_record_check(const uint8_t *data, const struct shmq_view *view)
{
    const size_t covered = view->record_bytes - SHMQ_RECORD_CRC_BYTES;
    const uint8_t *tail = data + covered;
    const bool has_room = view->properties_bytes >= SHMQ_RECORD_CRC_BYTES;
    if (has_room && memcmp(tail, SHMQ_CRC_KEY, CRC_KEY_BYTES) == 0) {
        const uint8_t *digits = tail + CRC_KEY_BYTES;
        const uint64_t said = read_digits(digits);
        const uint32_t crc = ~shmq_crc_engine.raw(START, data, covered) & CRC_MASK;
        return said == crc && digits[DIGITS] == 2 ? SHMQ_OK : SHMQ_CORRUPT;
    }
    const uint32_t body_raw = shmq_crc_engine.raw(START, view->body, view->body_bytes);
    if ((~body_raw & CRC_MASK) != view->body_crc || (has_room && was_crc_property(tail))) {
        return SHMQ_CORRUPT;
    }
    return SHMQ_OK;
}

uint32_t shmq_record_trim(uint8_t *record, uint32_t bytes)
{
    struct shmq_view view;
    if (shmq_record_decode(record, bytes, &view) != SHMQ_OK || view.record_bytes != bytes ||
        view.properties_bytes < SHMQ_RECORD_CRC_BYTES ||
        memcmp(record + bytes - SHMQ_RECORD_CRC_BYTES, SHMQ_CRC_KEY, CRC_KEY_BYTES) != 0)
        return bytes;
    uint8_t *properties = record + bytes - view.properties_bytes;
    shmq_store32(record, bytes - SHMQ_RECORD_CRC_BYTES);
    shmq_store16(properties - sizeof(uint16_t), (uint16_t)(view.properties_bytes - SHMQ_RECORD_CRC_BYTES));
    return bytes - SHMQ_RECORD_CRC_BYTES;
}

/* ---- properties ----------------------------------------------------------------------------------- */
const char *shmq_property_find(const char *properties, size_t bytes, const char *key, size_t key_bytes,
                               size_t *value_bytes)
{
    const char *found = NULL, *end = properties + bytes;
    *value_bytes = 0;
    while (properties != end) { /* a later pair replaces an earlier one, as in RocketMQ's map */
        const char *stop = memchr(properties, 2, (size_t)(end - properties));
        const char *next = stop == NULL ? end : stop + 1;
        const size_t pair_bytes = (size_t)((stop == NULL ? end : stop) - properties);
        if (pair_bytes > key_bytes + 1 && key_bytes != 0 && properties[key_bytes] == 1 &&
            memcmp(properties, key, key_bytes) == 0) {
            found = properties + key_bytes + 1;
            *value_bytes = pair_bytes - key_bytes - 1;
        }
        properties = next;
    }
    return found;
}

size_t shmq_message_id(char *out, const uint8_t *host, uint32_t host_bytes, uint64_t log_position)
{
    static const char digits[] = "0123456789ABCDEF";
    uint8_t raw[SHMQ_HOST_BYTES_V6 + sizeof log_position];
    const uint32_t bytes = host_bytes == SHMQ_HOST_BYTES_V6 ? SHMQ_HOST_BYTES_V6 : SHMQ_HOST_BYTES;
    memcpy(raw, host, bytes);
    const uint8_t *end = shmq_store64(raw + bytes, log_position);
    for (const uint8_t *at = raw; at < end; at++) {
        *out++ = digits[*at >> 4];
        *out++ = digits[*at & 15];
    }
    return 2 * (size_t)(end - raw);
}
