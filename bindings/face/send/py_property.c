/* RocketMQ's property text: `name 0x01 value 0x02 name 0x01 value 0x02 ...`, built from a call's options; py_record.c reads it back.
 *
 * Knows which names the broker itself gives a meaning. (1) No name or value holds 0x01 or 0x02, and none is empty, so
 * the text always reads back as it was written. (2) Room for the record CRC is left within SHMQ_PROPERTIES_BYTES_MAX.
 */
#include <string.h>

#include "face/send/py_send.h"

#define TEXT_BYTES_MAX (SHMQ_PROPERTIES_BYTES_MAX - SHMQ_RECORD_CRC_BYTES - 1)

/* None starts with a small letter, see name_check. A hint of NULL: the broker alone sets it. */
static const struct {
    const char *name;
    const char *hint;
} reserved[] = {
    {"TAGS", "use tag="},
    {"KEYS", "use key= or keys="},
    {"__SHARDINGKEY", "use message_group="},
    {"DELAY", "use the delay arguments of the public send()"},
    {"TIMER_DELIVER_MS", "use the delay arguments of the public send()"},
    {"TIMER_DELAY_SEC", "use the delay arguments of the public send()"},
    {"TIMER_DELAY_MS", "use the delay arguments of the public send()"},
    {"TRAN_MSG", "use transaction()"},
    {"CORRELATION_ID", "use request()"},
    {"REPLY_TO_CLIENT", "use request()"},
    {"TTL", "use request()"},
    {SHMQ_CRC_NAME, NULL},
    {"WAIT", NULL},
    {"BUYER_ID", NULL},
    {"RETRY_TOPIC", NULL},
    {"REAL_TOPIC", NULL},
    {"REAL_QID", NULL},
    {"PGROUP", NULL},
    {"MIN_OFFSET", NULL},
    {"MAX_OFFSET", NULL},
    {"ORIGIN_MESSAGE_ID", NULL},
    {"TRANSFER_FLAG", NULL},
    {"CORRECTION_FLAG", NULL},
    {"MQ2_FLAG", NULL},
    {"RECONSUME_TIME", NULL},
    {"MSG_REGION", NULL},
    {"TRACE_ON", NULL},
    {"UNIQ_KEY", NULL},
    {"EXTEND_UNIQ_INFO", NULL},
    {"MAX_RECONSUME_TIMES", NULL},
    {"CONSUME_START_TIME", NULL},
    {"INNER_NUM", NULL},
    {"INNER_BASE", NULL},
    {"DUP_INFO", NULL},
    {"CHECK_IMMUNITY_TIME_IN_SECONDS", NULL},
    {"TRAN_PREPARED_QUEUE_OFFSET", NULL},
    {"__transactionId__", NULL},
    {"TRANSACTION_CHECK_TIMES", NULL},
    {"INSTANCE_ID", NULL},
    {"ARRIVE_TIME", NULL},
    {"PUSH_REPLY_TIME", NULL},
    {"CLUSTER", NULL},
    {"MSG_TYPE", NULL},
    {"POP_CK", NULL},
    {"POP_CK_OFFSET", NULL},
    {"1ST_POP_TIME", NULL},
    {"REDIRECT", NULL},
    {"INNER_MULTI_DISPATCH", NULL},
    {"INNER_MULTI_QUEUE_OFFSET", NULL},
    {"TRACE_CONTEXT", NULL},
    {"TIMER_ENQUEUE_MS", NULL},
    {"TIMER_DEQUEUE_MS", NULL},
    {"TIMER_ROLL_TIMES", NULL},
    {"TIMER_OUT_MS", NULL},
    {"TIMER_DEL_UNIQKEY", NULL},
    {"TIMER_DELAY_LEVEL", NULL},
    {"TIMER_DEL_MS", NULL},
    {"__BORNHOST", NULL},
    {"BORN_TIMESTAMP", NULL},
    {"DLQ_ORIGIN_TOPIC", NULL},
    {"DLQ_ORIGIN_MESSAGE_ID", NULL},
};

struct piece {
    const char *data;
    size_t bytes;
};

/* ---- building -------------------------------------------------------------------------------------- */
static bool text_room(struct core_state *state, struct property_text *text, size_t bytes)
{
    size_t wanted = text->bytes + bytes;
    if (wanted > TEXT_BYTES_MAX) {
        core_raise(state, SHMQ_TOO_LARGE, "properties of more than %u bytes (tag, keys and separators included)",
                   TEXT_BYTES_MAX);
        return false;
    }
    if (wanted <= text->capacity) {
        return true;
    }
    char *grown = text->data == text->fixed ? PyMem_Malloc(TEXT_BYTES_MAX) : NULL;
    if (!grown) {
        PyErr_NoMemory();
        return false;
    }
    memcpy(grown, text->data, text->bytes);
    text->data = grown;
    text->capacity = TEXT_BYTES_MAX;
    return true;
}

static bool text_put(struct core_state *state, struct property_text *text, const char *data, size_t bytes)
{
    if (!text_room(state, text, bytes)) {
        return false;
    }
    memcpy(text->data + text->bytes, data, bytes);
    text->bytes += bytes;
    return true;
}

static bool text_end(struct core_state *state, struct property_text *text, char end)
{
    return text_put(state, text, &end, 1);
}

static bool piece_of(PyObject *value, const char *what, struct piece *out)
{
    if (!PyUnicode_Check(value)) {
        PyErr_Format(PyExc_TypeError, "%s must be str, not %.100s", what, Py_TYPE(value)->tp_name);
        return false;
    }
    Py_ssize_t bytes;
    out->data = PyUnicode_AsUTF8AndSize(value, &bytes);
    out->bytes = out->data ? (size_t)bytes : 0;
    return out->data != NULL;
}

/* Unicode's control characters: below the blank, 127, and U+0080 to U+009F, which are two bytes of UTF-8. */
static bool is_control(const struct piece *piece, size_t i)
{
    const unsigned char byte = (unsigned char)piece->data[i];
    return byte < ' ' || byte == 127 ||
           (byte == 0xc2 && i + 1 < piece->bytes && (unsigned char)piece->data[i + 1] < 0xa0);
}

static bool piece_check(struct core_state *state, const struct piece *piece, const char *what, bool word)
{
    if (!piece->bytes) {
        core_raise(state, SHMQ_BAD_ARGUMENT, "%s is empty; leave it out instead", what);
        return false;
    }
    for (size_t i = 0; i < piece->bytes; i++) {
        unsigned char byte = (unsigned char)piece->data[i];
        if (byte == SHMQ_NAME_END || byte == SHMQ_VALUE_END || (word && is_control(piece, i))) {
            core_raise(state, SHMQ_BAD_ARGUMENT, "%s '%s' holds the control character 0x%02x at byte %zu", what,
                       piece->data, byte, i);
            return false;
        }
    }
    return true;
}

static bool put_pair(struct core_state *state, struct property_text *text, const char *name, size_t name_bytes,
                     const struct piece *value)
{
    return text_put(state, text, name, name_bytes) && text_end(state, text, SHMQ_NAME_END) &&
           text_put(state, text, value->data, value->bytes) && text_end(state, text, SHMQ_VALUE_END);
}

static bool put_tag(struct core_state *state, PyObject *tag, struct property_text *text, int64_t *tag_hash)
{
    struct piece piece;
    if (!piece_of(tag, "tag", &piece) || !piece_check(state, &piece, "tag", true)) {
        return false;
    }
    if (memchr(piece.data, '|', piece.bytes)) {
        core_raise(state, SHMQ_BAD_ARGUMENT,
                   "tag '%s' holds '|', which separates tags in a subscription; a message has "
                   "one tag",
                   piece.data);
        return false;
    }
    const bool every = piece.bytes == 1 && piece.data[0] == '*';
    if (every || piece.data[0] == ' ' || piece.data[piece.bytes - 1] == ' ') {
        core_raise(state, SHMQ_BAD_ARGUMENT, "tag '%s' %s in a subscription", piece.data,
                   every ? "means every tag" : "has a blank around it, which is no part of a tag");
        return false;
    }
    *tag_hash = shmq_tag_hash(piece.data, piece.bytes);
    return put_pair(state, text, "TAGS", 4, &piece);
}

static bool put_key(struct core_state *state, PyObject *key, struct property_text *text, bool *first)
{
    struct piece piece;
    if (!PyUnicode_Check(key)) { /* what an iterator gave is shown here or never */
        PyErr_Format(PyExc_TypeError, "key is a str, not %.80R (%.100s)", key, Py_TYPE(key)->tp_name);
        return false;
    }
    if (!piece_of(key, "key", &piece) || !piece_check(state, &piece, "key", true)) {
        return false;
    }
    if (memchr(piece.data, ' ', piece.bytes)) {
        core_raise(state, SHMQ_BAD_ARGUMENT,
                   "key '%s' holds a blank, which separates keys; pass keys=[...] for several", piece.data);
        return false;
    }
    bool ok = *first ? text_put(state, text, "KEYS\x01", 5) : text_end(state, text, ' ');
    *first = false;
    return ok && text_put(state, text, piece.data, piece.bytes);
}

/* An iterator is read once, so the error carries what it gave, for the code that explains it. */
static void error_name_given(PyObject *given)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (value && PyObject_SetAttrString(value, "given", given) < 0) {
        PyErr_Clear(); /* the error itself matters more */
    }
    PyErr_Restore(type, value, trace);
}

static bool put_keys(struct core_state *state, PyObject *key, PyObject *keys, struct property_text *text)
{
    bool first = true;
    if (key && !put_key(state, key, text, &first)) {
        return false;
    }
    if (keys && (PyUnicode_Check(keys) || PyBytes_Check(keys))) { /* both can be iterated over, the empty one for nothing */
        core_raise(state, SHMQ_BAD_ARGUMENT, "keys takes several str; did you mean key=?");
        return false;
    }
    if (keys) {
        PyObject *each = PyObject_GetIter(keys), *item;
        if (!each) {
            PyErr_Format(PyExc_TypeError, "keys is a sequence of str, not %.100s; did you mean key=?",
                         Py_TYPE(keys)->tp_name);
            return false;
        }
        while ((item = PyIter_Next(each))) {
            bool ok = put_key(state, item, text, &first);
            if (!ok) {
                error_name_given(item);
            }
            Py_DECREF(item);
            if (!ok) {
                break;
            }
        }
        Py_DECREF(each);
        if (PyErr_Occurred()) {
            return false;
        }
    }
    return first || text_end(state, text, SHMQ_VALUE_END);
}

static bool name_check(struct core_state *state, const struct piece *name)
{
    if (name->data[0] >= 'a') { /* '_' and capitals sort before: most names are done here */
        return true;
    }
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++) {
        if (strlen(reserved[i].name) != name->bytes || memcmp(reserved[i].name, name->data, name->bytes)) {
            continue;
        }
        core_raise(state, SHMQ_BAD_ARGUMENT, "property '%s' belongs to RocketMQ itself; %s", name->data,
                   reserved[i].hint ? reserved[i].hint : "choose another name");
        return false;
    }
    return true;
}

static bool put_property(struct core_state *state, PyObject *name, PyObject *value, struct property_text *text)
{
    struct piece pair[2];
    return piece_of(name, "property name", &pair[0]) && piece_of(value, "property value", &pair[1]) &&
           piece_check(state, &pair[0], "property name", true) &&
           piece_check(state, &pair[1], "property value", false) && name_check(state, &pair[0]) &&
           put_pair(state, text, pair[0].data, pair[0].bytes, &pair[1]);
}

/* Text that is encoded already, of a record that is stored again. */
static bool put_text(struct core_state *state, PyObject *raw, struct property_text *text, int64_t *tag_hash)
{
    const char *data = PyBytes_AS_STRING(raw);
    size_t bytes = (size_t)PyBytes_GET_SIZE(raw);
    struct shmq_text_facts facts;
    shmq_text_look(data, bytes, &facts);
    if (!text_room(state, text, bytes - facts.crc_bytes)) {
        return false;
    }
    if (facts.tag_bytes && tag_hash) {
        *tag_hash = shmq_tag_hash(facts.tag, facts.tag_bytes);
    }
    text->bytes += shmq_text_copy(text->data + text->bytes, data, bytes);
    return !text->bytes || text->data[text->bytes - 1] == SHMQ_VALUE_END || text_end(state, text, SHMQ_VALUE_END);
}

static bool put_properties(const PyProducer *producer, PyObject *properties, struct property_text *text,
                           int64_t *tag_hash)
{
    struct core_state *state = producer->state;
    if (PyBytes_CheckExact(properties) && !producer->special) { /* a producer of our own parts */
        return put_text(state, properties, text, tag_hash);
    }
    PyObject *name, *value;
    Py_ssize_t at = 0;
    if (PyDict_CheckExact(properties)) {
        while (PyDict_Next(properties, &at, &name, &value)) {
            if (!put_property(state, name, value, text)) {
                return false;
            }
        }
        return true;
    }
    if (!PyMapping_Check(properties)) {
        PyErr_Format(PyExc_TypeError, "properties must be a mapping of str to str, not %.100s",
                     Py_TYPE(properties)->tp_name);
        return false;
    }
    PyObject *items = PyMapping_Items(properties);
    for (; items && at < PyList_GET_SIZE(items); at++) {
        PyObject *pair = PyList_GET_ITEM(items, at);
        if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2) {
            PyErr_SetString(PyExc_TypeError, "properties.items() must give pairs");
            break;
        }
        if (!put_property(state, PyTuple_GET_ITEM(pair, 0), PyTuple_GET_ITEM(pair, 1), text)) {
            break;
        }
    }
    Py_XDECREF(items);
    return !PyErr_Occurred();
}

bool property_text_fill(const PyProducer *producer, PyObject *const *values, struct property_text *text,
                        int64_t *tag_hash)
{
    struct core_state *state = producer->state;
    struct piece group;
    *tag_hash = 0;
    /* The tag comes first: a reader that filters looks for it. */
    if (values[CALL_TAG] && !put_tag(state, values[CALL_TAG], text, tag_hash)) {
        return false;
    }
    if ((values[CALL_KEY] || values[CALL_KEYS]) && !put_keys(state, values[CALL_KEY], values[CALL_KEYS], text)) {
        return false;
    }
    if (values[CALL_GROUP] &&
        !(piece_of(values[CALL_GROUP], "message_group", &group) && piece_check(state, &group, "message_group", true) &&
          put_pair(state, text, "__SHARDINGKEY", 13, &group))) {
        return false;
    }
    return !values[CALL_PROPERTIES] ||
           put_properties(producer, values[CALL_PROPERTIES], text, values[CALL_TAG] ? NULL : tag_hash);
}
