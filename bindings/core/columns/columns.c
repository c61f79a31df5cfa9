/* The columns of messages: names, types, and which field of a record goes where. columns.h has the rules. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/columns/columns.h"

#define SYS_FLAG_COMPRESSED 1u
_Static_assert(SHMQ_HOST_TEXT_MAX >= INET6_ADDRSTRLEN + sizeof "[]:65535", "any host fits");
#define TIME_MS_MAX UINT64_C(253402300799999) /* the last millisecond of the year 9999, where Spark's calendar ends */

const struct shmq_column_type shmq_column_types[SHMQ_COLUMN_COUNT] = {
    [SHMQ_COLUMN_TOPIC] = {"topic", SHMQ_KIND_TEXT, false},
    [SHMQ_COLUMN_BROKER] = {"broker", SHMQ_KIND_TEXT, false},
    [SHMQ_COLUMN_QUEUE_ID] = {"queue_id", SHMQ_KIND_INT, false},
    [SHMQ_COLUMN_QUEUE_OFFSET] = {"queue_offset", SHMQ_KIND_LONG, false},
    [SHMQ_COLUMN_LOG_POSITION] = {"commitlog_offset", SHMQ_KIND_LONG, false},
    [SHMQ_COLUMN_STORE_SIZE] = {"store_size", SHMQ_KIND_INT, false},
    [SHMQ_COLUMN_MSG_ID] = {"msg_id", SHMQ_KIND_TEXT, true},
    [SHMQ_COLUMN_UNIQ_KEY] = {"uniq_key", SHMQ_KIND_TEXT, true},
    [SHMQ_COLUMN_KEYS] = {"keys", SHMQ_KIND_TEXT, true},
    [SHMQ_COLUMN_TAGS] = {"tags", SHMQ_KIND_TEXT, true},
    [SHMQ_COLUMN_TAGS_CODE] = {"tags_code", SHMQ_KIND_LONG, false},
    [SHMQ_COLUMN_BODY] = {"body", SHMQ_KIND_BYTES, true},
    [SHMQ_COLUMN_BODY_CRC] = {"body_crc", SHMQ_KIND_INT, true},
    [SHMQ_COLUMN_PROPERTIES] = {"properties", SHMQ_KIND_MAP, true},
    [SHMQ_COLUMN_FLAG] = {"flag", SHMQ_KIND_INT, true},
    [SHMQ_COLUMN_SYS_FLAG] = {"sys_flag", SHMQ_KIND_INT, true},
    [SHMQ_COLUMN_BORN_TIME] = {"born_timestamp", SHMQ_KIND_TIME, true},
    [SHMQ_COLUMN_STORE_TIME] = {"store_timestamp", SHMQ_KIND_TIME, true},
    [SHMQ_COLUMN_BORN_HOST] = {"born_host", SHMQ_KIND_TEXT, true},
    [SHMQ_COLUMN_STORE_HOST] = {"store_host", SHMQ_KIND_TEXT, true},
    [SHMQ_COLUMN_RECONSUME_TIMES] = {"reconsume_times", SHMQ_KIND_INT, true},
    [SHMQ_COLUMN_PREPARED_POSITION] = {"prepared_txn_offset", SHMQ_KIND_LONG, true},
};

enum shmq_status shmq_columns_init(struct shmq_columns *columns, const uint8_t *order, uint32_t count)
{
    bool seen[SHMQ_COLUMN_COUNT] = {false};
    memset(columns, 0, sizeof *columns);
    for (uint32_t i = 0; i < count; i++) {
        if (i == SHMQ_COLUMN_COUNT || order[i] >= SHMQ_COLUMN_COUNT || seen[order[i]]) {
            return SHMQ_BAD_ARGUMENT;
        }
        seen[order[i]] = true;
        columns->order[i] = order[i];
        columns->needs_properties = columns->needs_properties || order[i] == SHMQ_COLUMN_UNIQ_KEY ||
                                    order[i] == SHMQ_COLUMN_KEYS || order[i] == SHMQ_COLUMN_TAGS;
        columns->needs_record = columns->needs_record || shmq_column_types[order[i]].needs_record;
    }
    columns->order_count = count;
    return SHMQ_OK;
}

void shmq_columns_expect(struct shmq_columns *columns, uint64_t rows, uint64_t record_bytes)
{
    for (uint32_t i = 0; i < columns->order_count; i++) {
        struct shmq_array *array = &columns->arrays[columns->order[i]];
        enum shmq_column_kind kind = shmq_column_types[columns->order[i]].kind;
        bool wide = kind == SHMQ_KIND_LONG || kind == SHMQ_KIND_TIME;
        shmq_bytes_expect(&array->fixed, (rows + 1) * (wide ? sizeof(uint64_t) : sizeof(uint32_t)));
        if (columns->order[i] == SHMQ_COLUMN_BODY) {
            shmq_bytes_expect(&array->bytes, record_bytes);
        }
    }
}

void shmq_columns_clear(struct shmq_columns *columns)
{
    for (uint32_t i = 0; i < SHMQ_COLUMN_COUNT; i++) {
        shmq_array_clear(&columns->arrays[i]);
    }
    shmq_array_clear(&columns->map_names);
    shmq_array_clear(&columns->map_values);
    struct shmq_array packed = {.bytes = columns->packed};
    shmq_array_clear(&packed);
    columns->packed = (struct shmq_bytes){0};
    columns->rows = 0;
}

/* ---- fields -------------------------------------------------------------------------------------------- */
static bool put_time(struct shmq_array *array, uint64_t ms)
{
    return ms <= TIME_MS_MAX ? shmq_array_long(array, ms * 1000) : shmq_array_null(array, sizeof ms);
}

static bool put_property(struct shmq_array *array, const struct shmq_slice *value)
{
    return value->data ? shmq_array_text(array, value->data, value->bytes) : shmq_array_null(array, 0);
}

/* Whether `pair` is the name, a separator and at least one byte; the value then. */
static bool value_of(const char *pair, size_t bytes, const char *name, size_t name_bytes, struct shmq_slice *out)
{
    if (bytes <= name_bytes + 1 || pair[name_bytes] != SHMQ_NAME_END || memcmp(pair, name, name_bytes) != 0) {
        return false;
    }
    *out = (struct shmq_slice){.data = pair + name_bytes + 1, .bytes = bytes - name_bytes - 1};
    return true;
}

/* The three that have columns of their own, in one pass; a later pair replaces an earlier one. */
static void properties_look(struct shmq_columns *columns, const struct shmq_view *view)
{
    const char *at = view->properties, *end = at + view->properties_bytes;
    columns->uniq_key = columns->keys = columns->tags = (struct shmq_slice){0};
    while (at < end) {
        const char *stop = memchr(at, SHMQ_VALUE_END, (size_t)(end - at));
        stop = stop ? stop : end;
        size_t bytes = (size_t)(stop - at);
        (void)(value_of(at, bytes, "UNIQ_KEY", 8, &columns->uniq_key) ||
               value_of(at, bytes, "KEYS", 4, &columns->keys) || value_of(at, bytes, "TAGS", 4, &columns->tags));
        at = stop + 1;
    }
}

static bool put_host(struct shmq_array *array, const uint8_t *host, uint32_t host_bytes, struct shmq_host_text *last)
{
    if (host_bytes != last->host_bytes || memcmp(host, last->host, host_bytes) != 0) {
        char address[INET6_ADDRSTRLEN];
        bool v6 = host_bytes == SHMQ_HOST_BYTES_V6;
        uint32_t port;
        memcpy(&port, host + host_bytes - sizeof port, sizeof port);
        if (inet_ntop(v6 ? AF_INET6 : AF_INET, host, address, sizeof address) == NULL) {
            return shmq_array_null(array, 0);
        }
        last->text_bytes = (uint32_t)snprintf(last->text, sizeof last->text, v6 ? "[%s]:%u" : "%s:%u", address,
                                              ntohl(port) & 0xFFFFu);
        memcpy(last->host, host, host_bytes);
        last->host_bytes = host_bytes;
    }
    return shmq_array_bytes(array, last->text, last->text_bytes);
}

static bool put_message_id(struct shmq_array *array, const struct shmq_view *view)
{
    char text[SHMQ_MESSAGE_ID_BYTES_MAX];
    return shmq_array_bytes(array, text,
                            shmq_message_id(text, view->store_host, view->store_host_bytes, view->log_position));
}

static bool put_body(struct shmq_columns *columns, const struct shmq_view *view)
{
    struct shmq_packed_body packed = {.row = columns->rows, .sys_flag = view->sys_flag};
    if (view->sys_flag & SYS_FLAG_COMPRESSED && !shmq_bytes_put(&columns->packed, &packed, sizeof packed)) {
        return false;
    }
    return shmq_array_bytes(&columns->arrays[SHMQ_COLUMN_BODY], view->body, view->body_bytes);
}

static bool put_topic(struct shmq_columns *columns, const struct shmq_view *view)
{
    if (columns->topic.data != NULL) {
        return true; /* the same in every row: shmq_columns_finish */
    }
    return view != NULL && shmq_array_text(&columns->arrays[SHMQ_COLUMN_TOPIC], view->topic, view->topic_bytes);
}

static bool repeat(struct shmq_array *array, const struct shmq_slice *text, uint32_t rows)
{
    if (rows == 0 || array->rows == rows) {
        return true;
    }
    if (!shmq_array_text(array, text->data, text->bytes)) {
        return false;
    }
    size_t bytes = array->bytes.bytes; /* as valid UTF-8 */
    shmq_bytes_expect(&array->fixed, ((size_t)rows + 1) * sizeof(int32_t));
    shmq_bytes_expect(&array->bytes, bytes * rows);
    if (array->bytes.capacity < bytes * rows) {
        return false; /* its first value would move under the copies */
    }
    while (array->rows < rows) {
        if (!shmq_array_bytes(array, array->bytes.data, bytes)) {
            return false;
        }
    }
    return true;
}

bool shmq_columns_finish(struct shmq_columns *columns)
{
    bool ok = true;
    for (uint32_t i = 0; ok && i < columns->order_count; i++) {
        if (columns->order[i] == SHMQ_COLUMN_BROKER) {
            ok = repeat(&columns->arrays[SHMQ_COLUMN_BROKER], &columns->broker, columns->rows);
        } else if (columns->order[i] == SHMQ_COLUMN_TOPIC && columns->topic.data != NULL) {
            ok = repeat(&columns->arrays[SHMQ_COLUMN_TOPIC], &columns->topic, columns->rows);
        }
    }
    return ok;
}

/* ---- the map of properties ----------------------------------------------------------------------------- */
struct pair { struct shmq_slice name, value; };

/* The pair at *at, which moves on; false at the end. A piece without a name has name.bytes 0. */
static bool pair_next(const char **at, const char *end, struct pair *out)
{
    if (*at >= end) {
        return false;
    }
    const char *stop = memchr(*at, SHMQ_VALUE_END, (size_t)(end - *at));
    stop = stop ? stop : end; /* RocketMQ 4.9 leaves the last separator out */
    const char *name_end = memchr(*at, SHMQ_NAME_END, (size_t)(stop - *at));
    *out = (struct pair){.name = {.data = *at, .bytes = name_end ? (size_t)(name_end - *at) : 0}};
    if (name_end) {
        out->value = (struct shmq_slice){.data = name_end + 1, .bytes = (size_t)(stop - name_end - 1)};
    }
    *at = stop + 1;
    return true;
}

static bool same(const struct shmq_slice *text, const char *data, size_t bytes)
{
    return text->bytes == bytes && !memcmp(text->data, data, bytes);
}

/* A later pair replaces an earlier one; the keys of a map are distinct. */
static bool comes_again(const char *at, const char *end, const struct shmq_slice *name)
{
    struct pair later;
    while (pair_next(&at, end, &later)) {
        if (same(&later.name, name->data, name->bytes)) {
            return true;
        }
    }
    return false;
}

static bool put_properties(struct shmq_columns *columns, const struct shmq_view *view)
{
    const char *at = view->properties, *end = view->properties + view->properties_bytes;
    struct pair pair;
    while (pair_next(&at, end, &pair)) {
        if (!pair.name.bytes || same(&pair.name, SHMQ_CRC_NAME, sizeof SHMQ_CRC_NAME - 1) || comes_again(at, end, &pair.name)) {
            continue;
        }
        if (!shmq_array_text(&columns->map_names, pair.name.data, pair.name.bytes) ||
            !shmq_array_text(&columns->map_values, pair.value.data, pair.value.bytes)) {
            return false;
        }
    }
    return shmq_array_offset(&columns->arrays[SHMQ_COLUMN_PROPERTIES], columns->map_names.rows);
}

/* ---- one row --------------------------------------------------------------------------------------------- */
static bool put_record_field(struct shmq_columns *columns, enum shmq_column column, const struct shmq_view *view)
{
    struct shmq_array *array = &columns->arrays[column];
    switch (column) {
    case SHMQ_COLUMN_MSG_ID: return put_message_id(array, view);
    case SHMQ_COLUMN_UNIQ_KEY: return put_property(array, &columns->uniq_key);
    case SHMQ_COLUMN_KEYS: return put_property(array, &columns->keys);
    case SHMQ_COLUMN_TAGS: return put_property(array, &columns->tags);
    case SHMQ_COLUMN_BODY: return put_body(columns, view);
    case SHMQ_COLUMN_BODY_CRC: return shmq_array_int(array, view->body_crc);
    case SHMQ_COLUMN_PROPERTIES: return put_properties(columns, view);
    case SHMQ_COLUMN_FLAG: return shmq_array_int(array, view->flag);
    case SHMQ_COLUMN_SYS_FLAG: return shmq_array_int(array, view->sys_flag);
    case SHMQ_COLUMN_BORN_TIME: return put_time(array, view->born_ms);
    case SHMQ_COLUMN_STORE_TIME: return put_time(array, view->store_ms);
    case SHMQ_COLUMN_BORN_HOST: return put_host(array, view->born_host, view->born_host_bytes, &columns->born_host);
    case SHMQ_COLUMN_STORE_HOST: return put_host(array, view->store_host, view->store_host_bytes, &columns->store_host);
    case SHMQ_COLUMN_RECONSUME_TIMES: return shmq_array_int(array, view->reconsume_times);
    case SHMQ_COLUMN_PREPARED_POSITION: return shmq_array_long(array, view->prepared_position);
    default: return false;
    }
}

enum shmq_status shmq_columns_add(struct shmq_columns *columns, const struct shmq_unit *unit, uint32_t queue_id,
                                  uint64_t queue_offset, const struct shmq_view *view)
{
    bool ok = true;
    errno = ENOMEM;
    if (columns->needs_properties && view) {
        properties_look(columns, view);
    }
    for (uint32_t i = 0; ok && i < columns->order_count; i++) {
        enum shmq_column column = columns->order[i];
        struct shmq_array *array = &columns->arrays[column];
        switch (column) {
        case SHMQ_COLUMN_TOPIC: ok = put_topic(columns, view); break;
        case SHMQ_COLUMN_BROKER: break; /* the same in every row: shmq_columns_finish */
        case SHMQ_COLUMN_QUEUE_ID: ok = shmq_array_int(array, queue_id); break;
        case SHMQ_COLUMN_QUEUE_OFFSET: ok = shmq_array_long(array, queue_offset); break;
        case SHMQ_COLUMN_LOG_POSITION: ok = shmq_array_long(array, unit->log_position); break;
        case SHMQ_COLUMN_STORE_SIZE: ok = shmq_array_int(array, unit->record_bytes); break;
        case SHMQ_COLUMN_TAGS_CODE: ok = shmq_array_long(array, (uint64_t)unit->tag_hash); break;
        default: ok = view != NULL && put_record_field(columns, column, view);
        }
    }
    if (!ok) {
        return SHMQ_SYSTEM;
    }
    columns->rows++;
    return SHMQ_OK;
}
