/* Reading a plain send; send_frame.h says what that is.
 *
 * (1) Every length is judged against what is left before it is used; no byte behind the frame is read.
 * (2) A value is taken only in the one form that needs no interpretation; any doubt is "not mine".
 */
#include "core/bytes.h"
#include "core/wire/send_frame.h"

#define HEADER_MASK 0xFFFFFFu
#define FIELDS_MAX 14          /* a to n */
#define CODE_SEND 10
#define CODE_SEND_V2 310
#define CODE_SEND_BATCH 320
#define FLAG_ONEWAY 2
#define VALUE_BYTES_MAX 32767u
#define TRANSACTION_BITS 12

enum field { GROUP, TOPIC, DEFAULT_TOPIC, DEFAULT_QUEUES, QUEUE_ID, SYS_FLAG, BORN, FLAG, PROPERTIES, RECONSUME, UNIT_MODE,
             MAX_RECONSUME, BATCH, BROKER };
#define MANDATORY (1u << GROUP | 1u << TOPIC | 1u << DEFAULT_TOPIC | 1u << DEFAULT_QUEUES | 1u << QUEUE_ID |            \
                   1u << SYS_FLAG | 1u << BORN | 1u << FLAG)

static const char *const long_names[FIELDS_MAX] = {
    "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp", "flag",
    "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes", "batch", "bname"};

struct value { const char *data; uint32_t bytes; };
struct fields { struct value values[FIELDS_MAX]; uint32_t seen; };

struct cursor { const char *at, *end; };

enum shmq_status shmq_frame_split(const uint8_t *data, size_t bytes, uint32_t frame_bytes_max,
                                  struct shmq_frame_view *out)
{
    if (bytes < SHMQ_FRAME_PREFIX_BYTES)
        return SHMQ_EMPTY;
    const uint32_t counted = shmq_load32(data), packed = shmq_load32(data + 4);
    out->codec = packed >> 24;
    out->header_bytes = packed & HEADER_MASK;
    if (counted > frame_bytes_max || out->codec > SHMQ_CODEC_BINARY || out->header_bytes == 0 ||
        out->header_bytes > SHMQ_FRAME_HEADER_MAX || counted < 4 || counted - 4 < out->header_bytes ||
        bytes - 4 < counted)
        return SHMQ_EMPTY;
    out->header = data + SHMQ_FRAME_PREFIX_BYTES;
    out->body = out->header + out->header_bytes;
    out->body_bytes = counted - 4 - out->header_bytes;
    out->frame_bytes = counted + 4;
    return SHMQ_OK;
}

/* ---- text ------------------------------------------------------------------------------------------- */
static bool is_plain(const char *text, uint32_t bytes) /* printable ASCII: the same in every reading */
{
    for (uint32_t i = 0; i < bytes; i++) {
        if (text[i] < ' ' || text[i] > '~')
            return false;
    }
    return true;
}

/* Bytes of the UTF-8 character at `at`, 0 when there is none: overlong, a surrogate, beyond U+10FFFF, cut off. */
static uint32_t utf8_bytes(const uint8_t *at, size_t left)
{
    if (at[0] < 0x80)
        return 1;
    const uint32_t count = at[0] >= 0xF0 ? 4 : at[0] >= 0xE0 ? 3 : 2;
    if (at[0] < 0xC2 || at[0] > 0xF4 || left < count)
        return 0;
    for (uint32_t i = 1; i < count; i++) {
        if ((at[i] & 0xC0) != 0x80)
            return 0;
    }
    if ((at[0] == 0xE0 && at[1] < 0xA0) || (at[0] == 0xED && at[1] > 0x9F) || (at[0] == 0xF0 && at[1] < 0x90) ||
        (at[0] == 0xF4 && at[1] > 0x8F))
        return 0;
    return count;
}

/* A decimal number, an optional minus before it, nothing else; no more digits than `digits_max`. */
static bool number_of(const struct value *value, uint32_t digits_max, int64_t least, int64_t most, int64_t *out)
{
    const bool negative = value->bytes > 0 && value->data[0] == '-';
    const uint32_t digits = value->bytes - negative;
    int64_t number = 0;
    if (digits == 0 || digits > digits_max)
        return false;
    for (uint32_t i = negative; i < value->bytes; i++) {
        if (value->data[i] < '0' || value->data[i] > '9')
            return false;
        number = number * 10 + (value->data[i] - '0');
    }
    *out = negative ? -number : number;
    return *out >= least && *out <= most;
}

static bool int32_of(const struct value *value, int32_t *out)
{
    int64_t number;
    if (!number_of(value, 10, INT32_MIN, INT32_MAX, &number))
        return false;
    *out = (int32_t)number;
    return true;
}

static bool is(const struct value *value, const char *text)
{
    return value->bytes == strlen(text) && memcmp(value->data, text, value->bytes) == 0;
}

/* ---- JSON ------------------------------------------------------------------------------------------- */
static bool take(struct cursor *in, char c)
{
    if (in->at == in->end || *in->at != c)
        return false;
    in->at++;
    return true;
}

/* A string without escapes, of printable ASCII. */
static bool plain_string(struct cursor *in, struct value *out)
{
    if (!take(in, '"'))
        return false;
    out->data = in->at;
    while (in->at < in->end && *in->at >= ' ' && *in->at <= '~' && *in->at != '"' && *in->at != '\\')
        in->at++;
    out->bytes = (uint32_t)(in->at - out->data);
    return take(in, '"');
}

static bool escape(struct cursor *in, char *out)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (in->at == in->end)
        return false;
    const char name = *in->at++;
    if (name == 'u') {
        if (in->end - in->at < 4 || in->at[0] != '0' || in->at[1] != '0')
            return false; /* beyond Latin: rare enough for the slow path */
        uint32_t code = 0;
        for (int i = 2; i < 4; i++) {
            const char c = in->at[i];
            const int digit = c >= '0' && c <= '9'   ? c - '0'
                              : c >= 'a' && c <= 'f' ? c - 'a' + 10
                              : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                     : -1;
            if (digit < 0)
                return false;
            code = code * 16 + (uint32_t)digit;
        }
        in->at += 4;
        *out = (char)code;
        return code < 0x80;
    }
    const char *found = name == 0 ? NULL : strchr(names, name);
    if (found == NULL)
        return false;
    *out = values[found - names];
    return true;
}

/* A string with escapes, of UTF-8, decoded into `scratch`: never longer than it was. */
static bool any_string(struct cursor *in, char *scratch, struct value *out)
{
    char *to = scratch;
    if (!take(in, '"'))
        return false;
    while (in->at < in->end && *in->at != '"') {
        if (*in->at == '\\') {
            in->at++;
            if (!escape(in, to++))
                return false;
            continue;
        }
        const uint32_t bytes = utf8_bytes((const uint8_t *)in->at, (size_t)(in->end - in->at));
        if (bytes == 0 || (bytes == 1 && (uint8_t)*in->at < ' '))
            return false;
        memcpy(to, in->at, bytes);
        to += bytes;
        in->at += bytes;
    }
    *out = (struct value){scratch, (uint32_t)(to - scratch)};
    return take(in, '"');
}

/* A bare number, true or false, as the text that stands there. */
static bool bare_word(struct cursor *in, struct value *out)
{
    out->data = in->at;
    while (in->at < in->end && ((*in->at >= '0' && *in->at <= '9') || *in->at == '-' || (*in->at >= 'a' && *in->at <= 'z')))
        in->at++;
    out->bytes = (uint32_t)(in->at - out->data);
    if (is(out, "true") || is(out, "false"))
        return true;
    const bool negative = out->bytes > 1 && out->data[0] == '-';
    int64_t number;
    /* JSON knows no leading zeros. */
    return number_of(out, 18, INT64_MIN, INT64_MAX, &number) &&
           (out->data[negative] != '0' || out->bytes == negative + 1u) && !(negative && number == 0);
}

static int field_of(const struct value *name)
{
    if (name->bytes == 1)
        return name->data[0] >= 'a' && name->data[0] <= 'n' ? name->data[0] - 'a' : -1;
    for (int i = 0; i < FIELDS_MAX; i++) {
        if (is(name, long_names[i]))
            return FIELDS_MAX + i;
    }
    return -1;
}

/* Note a field; false when it is unknown or there already. The two sets of names differ by who reads them. */
static struct value *field_place(struct fields fields[2], const struct value *name)
{
    const int field = field_of(name);
    if (field < 0)
        return NULL;
    struct fields *set = &fields[field >= FIELDS_MAX];
    const uint32_t bit = 1u << field % FIELDS_MAX;
    if (set->seen & bit)
        return NULL;
    set->seen |= bit;
    return &set->values[field % FIELDS_MAX];
}

static bool json_fields(struct cursor *in, char *scratch, struct fields fields[2])
{
    if (!take(in, '{'))
        return false;
    while (in->at < in->end) {
        struct value name;
        struct value *place = plain_string(in, &name) ? field_place(fields, &name) : NULL;
        if (place == NULL || !take(in, ':') || in->at == in->end)
            return false;
        const bool properties = place == &fields[0].values[PROPERTIES] || place == &fields[1].values[PROPERTIES];
        const bool ok = *in->at != '"' ? bare_word(in, place)
                        : properties   ? any_string(in, scratch, place)
                                       : plain_string(in, place);
        if (!ok || place->bytes > VALUE_BYTES_MAX)
            return false;
        if (take(in, '}'))
            return true;
        if (!take(in, ','))
            return false;
    }
    return false;
}

enum top { CODE, EXT, TOP_FLAG, LANGUAGE, OPAQUE, SERIALIZE, VERSION, TOP_COUNT };

/* The header's own members; the numbers by name in `numbers`. */
static bool json_header(struct cursor *in, char *scratch, struct fields fields[2], int32_t numbers[TOP_COUNT])
{
    static const char *const names[TOP_COUNT] = {"code", "extFields", "flag", "language", "opaque",
                                                 "serializeTypeCurrentRPC", "version"};
    uint32_t seen = 0;
    struct value name, value;
    if (!take(in, '{'))
        return false;
    do {
        int member = 0;
        if (!plain_string(in, &name) || !take(in, ':'))
            return false;
        while (member < TOP_COUNT && !is(&name, names[member]))
            member++;
        if (member == TOP_COUNT || seen >> member & 1)
            return false;
        seen |= 1u << member;
        const bool ok = member == EXT                                ? json_fields(in, scratch, fields)
                        : member == LANGUAGE || member == SERIALIZE  ? plain_string(in, &value)
                        : bare_word(in, &value)                      ? int32_of(&value, &numbers[member])
                                                                     : false;
        if (!ok)
            return false;
    } while (take(in, ','));
    if (!take(in, '}'))
        return false;
    take(in, '\n'); /* the C++ client's writer ends its lines */
    return in->at == in->end && (seen >> EXT & 1);
}

/* ---- binary ----------------------------------------------------------------------------------------- */
static bool binary_header(struct cursor *in, struct fields fields[2], int32_t numbers[TOP_COUNT])
{
    enum { FIXED = 21, OPAQUE_AT = 5, FLAG_AT = 9, REMARK_AT = 13, EXT_AT = 17 };
    if (in->end - in->at < FIXED || shmq_load32(in->at + REMARK_AT) != 0 || shmq_load32(in->at + EXT_AT) != (size_t)(in->end - in->at) - FIXED)
        return false;
    numbers[CODE] = (int16_t)shmq_load16(in->at);
    numbers[OPAQUE] = (int32_t)shmq_load32(in->at + OPAQUE_AT);
    numbers[TOP_FLAG] = (int32_t)shmq_load32(in->at + FLAG_AT);
    in->at += FIXED;
    while (in->at < in->end) {
        if (in->end - in->at < 2)
            return false;
        const struct value name = {in->at + 2, shmq_load16(in->at)};
        if ((size_t)(in->end - name.data) < (size_t)name.bytes + 4)
            return false;
        struct value *place = field_place(fields, &name);
        const struct value value = {name.data + name.bytes + 4, shmq_load32(name.data + name.bytes)};
        if (place == NULL || value.bytes > VALUE_BYTES_MAX || (size_t)(in->end - value.data) < value.bytes)
            return false;
        *place = value;
        in->at = value.data + value.bytes;
    }
    return true;
}

static bool is_utf8(const struct value *value)
{
    for (uint32_t at = 0, bytes; at < value->bytes; at += bytes) {
        bytes = utf8_bytes((const uint8_t *)value->data + at, value->bytes - at);
        if (bytes == 0)
            return false;
    }
    return true;
}

/* ---- a send ----------------------------------------------------------------------------------------- */
static bool is_false(const struct fields *fields, enum field field)
{
    return !(fields->seen >> field & 1) || is(&fields->values[field], "false") || is(&fields->values[field], "0");
}

static bool send_of(const struct fields *fields, bool batch, struct shmq_send_request *out)
{
    const struct value *values = fields->values;
    int32_t unread;
    if ((fields->seen & MANDATORY) != MANDATORY || !int32_of(&values[DEFAULT_QUEUES], &unread) ||
        !int32_of(&values[QUEUE_ID], &out->queue_id) || !int32_of(&values[SYS_FLAG], &out->sys_flag) ||
        !number_of(&values[BORN], 18, INT64_MIN, INT64_MAX, &out->born_ms) || !int32_of(&values[FLAG], &out->flag))
        return false;
    out->reconsume_times = 0;
    if ((fields->seen >> RECONSUME & 1) && !int32_of(&values[RECONSUME], &out->reconsume_times))
        return false;
    if ((fields->seen >> MAX_RECONSUME & 1) && !int32_of(&values[MAX_RECONSUME], &unread))
        return false;
    if (!(is_false(fields, BATCH) || (batch && is(&values[BATCH], "true"))) || !is_false(fields, UNIT_MODE) || (out->sys_flag & TRANSACTION_BITS) ||
        out->queue_id < 0 || values[TOPIC].bytes == 0)
        return false;
    for (enum field field = GROUP; field < FIELDS_MAX; field++) {
        const bool here = fields->seen >> field & 1;
        if (here && !(field == PROPERTIES ? is_utf8(&values[field]) : is_plain(values[field].data, values[field].bytes)))
            return false;
    }
    out->topic = values[TOPIC].data;
    out->topic_bytes = values[TOPIC].bytes;
    const bool has_properties = fields->seen >> PROPERTIES & 1;
    out->properties = has_properties ? values[PROPERTIES].data : "";
    out->properties_bytes = has_properties ? values[PROPERTIES].bytes : 0;
    return true;
}

enum shmq_status shmq_send_read(const struct shmq_frame_view *frame, char *scratch, struct shmq_send_request *out)
{
    struct cursor in = {(const char *)frame->header, (const char *)frame->header + frame->header_bytes};
    struct fields fields[2] = {{.seen = 0}, {.seen = 0}};
    int32_t numbers[TOP_COUNT] = {0};
    const bool read = frame->codec == SHMQ_CODEC_JSON ? json_header(&in, scratch, fields, numbers)
                                                      : binary_header(&in, fields, numbers);
    if (!read || (numbers[TOP_FLAG] & ~FLAG_ONEWAY) != 0)
        return SHMQ_EMPTY;
    out->batch = numbers[CODE] == CODE_SEND_BATCH;
    const bool is_short = numbers[CODE] == CODE_SEND_V2 || out->batch;
    if (!is_short && numbers[CODE] != CODE_SEND)
        return SHMQ_EMPTY;
    out->opaque = numbers[OPAQUE];
    out->oneway = numbers[TOP_FLAG] != 0;
    /* A field under a name of the other set means nothing to the reader; leave the riddle to it. Only the broker's name
     * has one name for both. */
    if (fields[is_short].seen & ~(1u << BROKER))
        return SHMQ_EMPTY;
    return send_of(&fields[!is_short], out->batch, out) ? SHMQ_OK : SHMQ_EMPTY;
}
