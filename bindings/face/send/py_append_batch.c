/* Producer.append_batch and append_encoded_batch: many records into one queue, with shared hosts, times and flags.
 *
 * Both are a source of records that is walked once, to judge every one of them; then one append stores all, or none. What
 * the specs point at (bodies, texts that had to be put together) is held until they are stored.
 */
#include <string.h>

#include "face/send/py_send.h"

struct text { const char *data; size_t bytes; };

struct append_batch {
    PyProducer *producer;
    struct append_call call;
    PyObject *answers;          /* list */
    PyObject *kept;             /* list of texts the specs point at */
    PyObject *records;          /* tuple of (body, properties, flag), or NULL: */
    struct body_buffer encoded; /* the body of SEND_BATCH_MESSAGE */
    struct text extra;          /* behind the properties of each */
    Py_ssize_t index;           /* the walk: the next record, */
    size_t at;                  /* and where it starts in `encoded` */
    struct batch_part part;     /* what was walked so far */
};

static PyObject *refuse(struct append_batch *batch, enum shmq_status status, const char *reason)
{
    return core_raise(batch->producer->state, status, "record %zd of the batch: %s", batch->index, reason);
}

/* ---- the next record, its property text not yet looked at ------------------------------------------- */
static bool next_of_tuple(struct append_batch *batch, struct shmq_spec *spec)
{
    PyObject *record = PyTuple_GET_ITEM(batch->records, batch->index);
    if (!PyTuple_CheckExact(record) || PyTuple_GET_SIZE(record) != 3 || !PyBytes_CheckExact(PyTuple_GET_ITEM(record, 0)) ||
        !PyBytes_CheckExact(PyTuple_GET_ITEM(record, 1)) || !PyLong_CheckExact(PyTuple_GET_ITEM(record, 2))) {
        PyErr_Format(PyExc_TypeError, "record %zd of the batch must be a tuple (body: bytes, properties: bytes, flag: int)",
                     batch->index);
        return false;
    }
    PyObject *body = PyTuple_GET_ITEM(record, 0), *properties = PyTuple_GET_ITEM(record, 1);
    int overflow;
    long long flag = PyLong_AsLongLongAndOverflow(PyTuple_GET_ITEM(record, 2), &overflow);
    if (overflow || flag < INT32_MIN || flag > UINT32_MAX) {
        return refuse(batch, SHMQ_BAD_ARGUMENT, "its flag has more than 32 bits"), false;
    }
    if (PyBytes_GET_SIZE(body) > SHMQ_BODY_BYTES_MAX || PyBytes_GET_SIZE(properties) > SHMQ_PROPERTIES_BYTES_MAX) {
        return refuse(batch, SHMQ_TOO_LARGE, "its body or its properties are longer than a record holds"), false;
    }
    spec->flag = (uint32_t)flag;
    spec->body = PyBytes_AS_STRING(body);
    spec->body_bytes = (uint32_t)PyBytes_GET_SIZE(body);
    spec->properties = PyBytes_AS_STRING(properties);
    spec->properties_bytes = (uint32_t)PyBytes_GET_SIZE(properties);
    return true;
}

static bool next_of_encoded(struct append_batch *batch, struct shmq_spec *spec)
{
    struct shmq_batch_record record;
    if (shmq_batch_next(batch->encoded.data, batch->encoded.bytes, &batch->at, &record) != SHMQ_OK) {
        return refuse(batch, SHMQ_BAD_ARGUMENT, record.reason), false;
    }
    spec->flag = record.flag;
    spec->body = record.body;
    spec->body_bytes = record.body_bytes;
    spec->properties = record.properties;
    spec->properties_bytes = record.properties_bytes;
    return true;
}

static bool at_end(const struct append_batch *batch)
{
    return batch->records ? batch->index == PyTuple_GET_SIZE(batch->records) : batch->at == batch->encoded.bytes;
}

/* ---- its property text ------------------------------------------------------------------------------ */
/* Put the record's own text and the batch's together where they are not one already. */
static bool text_join(struct append_batch *batch, bool has_crc, struct shmq_spec *spec)
{
    const size_t own = spec->properties_bytes, extra = batch->extra.bytes;
    if (!has_crc && !extra) {
        return true;
    }
    if (own + extra > SHMQ_PROPERTIES_BYTES_MAX) {
        return refuse(batch, SHMQ_TOO_LARGE, "its properties are longer than a record holds"), false;
    }
    PyObject *joined = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(own + 1 + extra));
    if (!joined || PyList_Append(batch->kept, joined) < 0) {
        Py_XDECREF(joined);
        return false;
    }
    Py_DECREF(joined); /* the list has it */
    char *text = PyBytes_AS_STRING(joined);
    size_t bytes = shmq_text_copy(text, spec->properties, own);
    if (bytes && extra && text[bytes - 1] != '\x02') {
        text[bytes++] = '\x02';
    }
    memcpy(text + bytes, batch->extra.data, extra);
    spec->properties = text;
    spec->properties_bytes = (uint32_t)(bytes + extra);
    return true;
}

/* The next record as a spec, its size and what its unit says; false with an exception. */
static bool record_next(struct append_batch *batch, struct shmq_spec *spec, uint32_t *bytes, int64_t *tag_hash)
{
    struct shmq_text_facts facts;
    *spec = batch->call.base;
    if (!(batch->records ? next_of_tuple(batch, spec) : next_of_encoded(batch, spec))) {
        return false;
    }
    shmq_text_look(spec->properties, spec->properties_bytes, &facts);
    if (!text_join(batch, facts.crc_bytes != 0, spec)) {
        return false;
    }
    if (batch->extra.bytes) { /* a tag there counts for all, and the own one may have been copied */
        shmq_text_look(spec->properties, spec->properties_bytes, &facts);
    }
    *tag_hash = text_tag_hash(&batch->call, &facts);
    *bytes = shmq_record_bytes(spec);
    if (!*bytes) {
        return refuse(batch, SHMQ_TOO_LARGE, "it is longer than a record may be"), false;
    }
    batch->index++;
    return true;
}

/* ---- the walk, and what comes of it ---------------------------------------------------------------- */
static bool batch_fill(struct append_batch *batch)
{
    struct core_state *state = batch->producer->state;
    struct batch_part *part = &batch->part;
    const uint32_t bytes_max = shmq_batch_bytes_max(&batch->producer->store->core);
    if (!shmq_is_queued(batch->call.base.sys_flag)) {
        core_raise(state, SHMQ_BAD_ARGUMENT, "a batch is no part of a transaction: sys_flag %u",
                   batch->call.base.sys_flag);
        return false;
    }
    while (!at_end(batch)) {
        uint32_t bytes;
        int64_t tag_hash;
        if ((part->count == part->room && !part_reserve(part, part->room ? 2 * part->room : 16)) ||
            !record_next(batch, &part->specs[part->count], &bytes, &tag_hash)) {
            return false;
        }
        if (bytes > bytes_max - part->bytes) {
            core_raise(state, SHMQ_TOO_LARGE, "a batch stores at most %u bytes at once, less than one log file of %llu; "
                       "record %zd is beyond", bytes_max,
                       (unsigned long long)batch->producer->store->core.sizes.file_bytes, batch->index - 1);
            return false;
        }
        part_add(part, bytes, tag_hash);
    }
    if (!part->count) {
        core_raise(state, SHMQ_BAD_ARGUMENT, "the batch holds no record");
    }
    return part->count > 0;
}

static bool batch_answers(struct append_batch *batch, struct shmq_appended appended)
{
    for (uint32_t i = 0; i < batch->part.count; i++) {
        appended.end = appended.log_position + shmq_record_bytes(&batch->part.specs[i]); /* a batch lies in one piece */
        PyObject *answer = appended_tuple(&appended);
        if (!answer) {
            return false;
        }
        PyList_SET_ITEM(batch->answers, i, answer);
        appended.queue_offset++;
        appended.log_position = appended.end;
    }
    return true;
}

static PyObject *batch_store(struct append_batch *batch)
{
    struct shmq_appended appended;
    struct call *call = &batch->call.call;
    batch->kept = PyList_New(0);
    bool ok = batch->kept && batch_fill(batch);
    batch->answers = ok ? PyList_New(batch->part.count) : NULL;
    ok = batch->answers && store_check(batch->producer->store) && /* another thread may have closed it */
         part_append(batch->producer, call, &batch->part, &appended) == SHMQ_OK &&
         producer_published(batch->producer, call, &appended, batch->part.count, appended.end, false) &&
         batch_answers(batch, appended);
    PyObject *answers = ok ? Py_NewRef(batch->answers) : NULL;
    Py_XDECREF(batch->answers);
    Py_XDECREF(batch->kept);
    return answers;
}

static struct append_batch *batch_new(PyProducer *self)
{
    struct append_batch *batch = PyMem_Calloc(1, sizeof *batch);
    if (!batch) {
        PyErr_NoMemory();
        return NULL;
    }
    batch->producer = self;
    return batch;
}

static void batch_free(struct append_batch *batch)
{
    if (batch) {
        part_free(&batch->part);
    }
    PyMem_Free(batch);
}

/* ---- the methods ------------------------------------------------------------------------------------ */
#define SHARED_NAMES                                                                                                   \
    (1u << APPEND_TOPIC | 1u << APPEND_QUEUE_ID | 1u << APPEND_SYS_FLAG | 1u << APPEND_BORN | 1u << APPEND_BORN_HOST | \
     1u << APPEND_RECONSUME | 1u << APPEND_PREPARED | 1u << APPEND_TAG_CODE | 1u << APPEND_TIMEOUT)

static const enum append_name batch_positions[] = {APPEND_TOPIC, APPEND_QUEUE_ID, APPEND_RECORDS};
static const struct append_form batch_form = {
    .method = "append_batch",
    .positions = batch_positions,
    .position_count = 3,
    .needed = 1u << APPEND_TOPIC | 1u << APPEND_QUEUE_ID | 1u << APPEND_RECORDS,
    .allowed = SHARED_NAMES | 1u << APPEND_RECORDS,
};
static const enum append_name encoded_positions[] = {APPEND_TOPIC, APPEND_QUEUE_ID, APPEND_BATCH_BODY};
static const struct append_form encoded_form = {
    .method = "append_encoded_batch",
    .positions = encoded_positions,
    .position_count = 3,
    .needed = 1u << APPEND_TOPIC | 1u << APPEND_QUEUE_ID | 1u << APPEND_BATCH_BODY,
    .allowed = SHARED_NAMES | 1u << APPEND_BATCH_BODY | 1u << APPEND_EXTRA,
};

PyObject *producer_append_batch(PyProducer *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *values[APPEND_COUNT], *answers = NULL;
    struct append_batch *batch = batch_new(self);
    if (batch && append_call_open(self, &batch_form, args, nargs, kwnames, values, &batch->call)) {
        /* Tuples all the way down: another thread may change a list while we wait without the GIL. */
        batch->records = PySequence_Tuple(values[APPEND_RECORDS]);
        /* Making the tuple may have run code that closed the store. */
        answers = batch->records && store_check(self->store) ? batch_store(batch) : NULL;
        Py_XDECREF(batch->records);
    }
    batch_free(batch);
    return answers;
}

static bool extra_open(PyObject *value, struct text *extra, PyObject **clean)
{
    if (!value) {
        return true;
    }
    if (!PyBytes_CheckExact(value)) {
        PyErr_Format(PyExc_TypeError, "properties_extra must be bytes, not %.100s", Py_TYPE(value)->tp_name);
        return false;
    }
    *clean = PyBytes_FromStringAndSize(NULL, PyBytes_GET_SIZE(value));
    if (!*clean) {
        return false;
    }
    extra->data = PyBytes_AS_STRING(*clean);
    extra->bytes = shmq_text_copy(PyBytes_AS_STRING(*clean), PyBytes_AS_STRING(value), (size_t)PyBytes_GET_SIZE(value));
    return true;
}

PyObject *producer_append_encoded_batch(PyProducer *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *values[APPEND_COUNT], *clean = NULL, *answers = NULL;
    struct append_batch *batch = batch_new(self);
    if (!batch || !append_call_open(self, &encoded_form, args, nargs, kwnames, values, &batch->call) ||
        !extra_open(values[APPEND_EXTRA], &batch->extra, &clean) ||
        !body_open(self->state, values[APPEND_BATCH_BODY], &batch->encoded)) {
        goto done;
    }
    if (batch->encoded.held && !batch->encoded.buffer.readonly) {
        PyErr_SetString(PyExc_TypeError, "batch_body must be read-only: it is copied without the GIL");
    } else {
        answers = batch_store(batch);
    }
    body_close(&batch->encoded);
done:
    Py_XDECREF(clean);
    batch_free(batch);
    return answers;
}
