/* Columns for Python: batches of records as the two capsules of the Arrow PyCapsule interface.
 *
 * The capsules own what they hold until an importer moves it out. Reading goes on without the GIL, on a lane of the
 * store. pyarrow is not needed here: a program that has it makes an object with `__arrow_c_array__` of them.
 */
#include <errno.h>
#include <string.h>

#include "core/columns/columns.h"
#include "face/store/py_store.h"

#define SCHEMA_CAPSULE "arrow_schema" /* the names are part of the interface */
#define ARRAY_CAPSULE "arrow_array"
#define SCAN_UNITS_MAX (1u << 22) /* some 50 ms, before the caller may look at signals */

typedef unsigned long long u64;

/* ---- capsules ---------------------------------------------------------------------------------------------- */
static void schema_capsule_free(PyObject *capsule)
{
    struct ArrowSchema *schema = PyCapsule_GetPointer(capsule, SCHEMA_CAPSULE);
    if (schema->release) {
        schema->release(schema);
    }
    PyMem_RawFree(schema);
}

static void array_capsule_free(PyObject *capsule)
{
    struct ArrowArray *array = PyCapsule_GetPointer(capsule, ARRAY_CAPSULE);
    if (array->release) {
        array->release(array);
    }
    PyMem_RawFree(array);
}

static PyObject *array_capsule(struct shmq_columns *columns)
{
    struct ArrowArray *array = PyMem_RawCalloc(1, sizeof *array);
    if (!array || shmq_arrow_array(columns, array) != SHMQ_OK) {
        PyMem_RawFree(array);
        return PyErr_NoMemory();
    }
    PyObject *capsule = PyCapsule_New(array, ARRAY_CAPSULE, array_capsule_free);
    if (!capsule) {
        array->release(array);
        PyMem_RawFree(array);
    }
    return capsule;
}

/* ---- arguments --------------------------------------------------------------------------------------------- */
struct wish {                  /* what both ways of reading are asked for; freed by wish_close */
    struct shmq_columns columns;
    struct shmq_gather gather;
    struct shmq_reader tags;   /* only its list of tags is used */
};

static void wish_close(struct wish *wish)
{
    shmq_columns_clear(&wish->columns);
    shmq_reader_clear(&wish->tags);
}

static bool columns_open(struct core_state *state, Py_buffer *order, struct shmq_columns *columns)
{
    enum shmq_status status = shmq_columns_init(columns, order->buf, (uint32_t)order->len);
    if (order->len <= SHMQ_COLUMN_COUNT && status == SHMQ_OK) {
        return true;
    }
    core_raise(state, SHMQ_BAD_ARGUMENT, "columns are numbers below %d, each once at most", SHMQ_COLUMN_COUNT);
    return false;
}

static bool tags_add(struct wish *wish, PyObject *tags)
{
    PyObject *items = tags == Py_None ? NULL : PySequence_Fast(tags, "tags is a sequence of texts, or None");
    if (!items) {
        return tags == Py_None;
    }
    bool ok = true;
    for (Py_ssize_t i = 0; ok && i < PySequence_Fast_GET_SIZE(items); i++) {
        Py_ssize_t bytes;
        const char *tag = PyUnicode_AsUTF8AndSize(PySequence_Fast_GET_ITEM(items, i), &bytes);
        ok = tag && (shmq_reader_tag_add(&wish->tags, tag, (size_t)bytes) == SHMQ_OK || PyErr_NoMemory());
    }
    Py_DECREF(items);
    wish->gather.tags = wish->tags.tags;
    wish->gather.tag_count = wish->tags.tag_count;
    return ok;
}

static bool limits_check(struct core_state *state, struct shmq_gather *gather)
{
    if (gather->rows_max >= 1 && gather->rows_max <= SHMQ_COLUMN_ROWS_MAX &&
        gather->bytes_max <= SHMQ_COLUMN_BATCH_BYTES_MAX) {
        return true;
    }
    core_raise(state, SHMQ_BAD_ARGUMENT, "rows_max is %u (1 to %u), bytes_max %llu (at most %llu)", gather->rows_max,
               SHMQ_COLUMN_ROWS_MAX, (u64)gather->bytes_max, (u64)SHMQ_COLUMN_BATCH_BYTES_MAX);
    return false;
}

/* ---- answers ------------------------------------------------------------------------------------------------ */
static PyObject *packed_list(const struct shmq_columns *columns)
{
    size_t count = columns->packed.bytes / sizeof(struct shmq_packed_body);
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list && i < count; i++) {
        struct shmq_packed_body packed;
        memcpy(&packed, columns->packed.data + i * sizeof packed, sizeof packed);
        PyObject *item = Py_BuildValue("(II)", packed.row, packed.sys_flag);
        if (!item) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, (Py_ssize_t)i, item);
        }
    }
    return list;
}

static PyObject *answer(struct wish *wish, size_t consumed, bool has_consumed)
{
    uint32_t rows = wish->columns.rows;
    PyObject *packed = packed_list(&wish->columns);
    PyObject *capsule = packed ? array_capsule(&wish->columns) : NULL;
    if (!capsule) {
        Py_XDECREF(packed);
        return NULL;
    }
    return has_consumed ? Py_BuildValue("(nKINN)", (Py_ssize_t)consumed, (u64)wish->gather.next, rows, packed, capsule)
                        : Py_BuildValue("(KIKNN)", (u64)wish->gather.next, rows, (u64)wish->gather.bytes, packed,
                                        capsule);
}

static PyObject *gather_raise(struct core_state *state, enum shmq_status status, const struct shmq_gather *gather)
{
    const char *why = status == SHMQ_GONE    ? "retention has deleted it"
                      : status == SHMQ_EMPTY ? "it is not stored, or not visible yet"
                      : status == SHMQ_NO_TOPIC
                          ? "the queue belongs to another topic now: the topic was deleted meanwhile"
                      : status != SHMQ_CORRUPT               ? NULL
                      : gather->log_position == UINT64_MAX ? "its unit is neither in memory nor in ConsumeQueue files"
                                                           : "the bytes are not the record that was stored";
    if (status == SHMQ_SYSTEM && errno == EUCLEAN) { /* mapping.c: it would have been a SIGBUS */
        return core_raise(state, SHMQ_CORRUPT,
                          "queue %u, offset %llu, log position %llu: its log file does not have the size that log "
                          "files have here: it was cut; shmq doctor --deep tells what is left",
                          gather->queue_id, (u64)gather->next, (u64)gather->log_position);
    }
    if (!why) {
        return core_raise_status(state, status, "reading records as columns");
    }
    if (status == SHMQ_CORRUPT && gather->log_position != UINT64_MAX) {
        return core_raise(state, status, "queue %u, offset %llu, log position %llu: %s", gather->queue_id,
                          (u64)gather->next, (u64)gather->log_position, why);
    }
    return core_raise(state, status, "queue %u, offset %llu: %s", gather->queue_id, (u64)gather->next, why);
}

/* ---- from the store ------------------------------------------------------------------------------------------ */
static PyObject *reader_columns(PyStorePart *part, PyObject *args, PyObject *kwargs)
{
    PyStore *self = part->store;
    static char *names[] = {"queue",     "queue_id", "next",     "end",    "columns", "topic", "broker", "rows_max",
                            "bytes_max", "tags",     "ms_begin", "ms_end", "verify",  NULL};
    struct wish wish = {.gather = {.ms_end = UINT64_MAX, .scan_max = SCAN_UNITS_MAX}};
    struct shmq_gather *gather = &wish.gather;
    u64 next, end, bytes_max = 16u << 20, ms_begin = 0, ms_end = UINT64_MAX;
    Py_ssize_t topic_bytes, broker_bytes;
    const char *topic, *broker;
    PyObject *tags = Py_None, *verify = Py_None, *result = NULL;
    Py_buffer order;
    gather->rows_max = 8192;
    shmq_reader_init(&wish.tags, &self->core);
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "IIKKy*s#s#|$IKOKKO:columns", names, &gather->queue,
                                     &gather->queue_id, &next, &end, &order, &topic, &topic_bytes, &broker,
                                     &broker_bytes, &gather->rows_max, &bytes_max, &tags, &ms_begin, &ms_end,
                                     &verify)) {
        return NULL;
    }
    gather->next = next;
    gather->end = end;
    gather->bytes_max = bytes_max;
    gather->ms_begin = ms_begin;
    gather->ms_end = ms_end;
    struct store_lane *lane = NULL;
    if (columns_open(self->state, &order, &wish.columns) && limits_check(self->state, gather) &&
        tags_add(&wish, tags) && store_check(self) && (lane = store_lane_take(self)) != NULL) {
        wish.columns.topic = (struct shmq_slice){.data = topic, .bytes = (size_t)topic_bytes};
        wish.columns.broker = (struct shmq_slice){.data = broker, .bytes = (size_t)broker_bytes};
        gather->verify = verify == Py_None ? !self->core.head->trusts_reads : verify == Py_True;
        gather->verify_all = verify == Py_True;
        enum shmq_status status;
        Py_BEGIN_ALLOW_THREADS
        status = shmq_gather(&lane->core, gather, &wish.columns);
        Py_END_ALLOW_THREADS
        store_lane_give(self, lane);
        result = status == SHMQ_OK ? answer(&wish, 0, false) : gather_raise(self->state, status, gather);
    }
    PyBuffer_Release(&order);
    wish_close(&wish);
    return result;
}

static PyObject *store_queue_visible(PyStore *self, PyObject *args)
{
    unsigned int queue;
    if (!PyArg_ParseTuple(args, "I:queue_visible", &queue) || !store_check(self)) {
        return NULL;
    }
    if (!shmq_queue_is_number(&self->core, queue)) {
        return core_raise(self->state, SHMQ_NO_QUEUE, "queue index %u of %u", queue, self->core.sizes.queue_max);
    }
    return PyLong_FromUnsignedLongLong(shmq_queue_visible(&self->core, queue));
}

PyMethodDef column_methods[] = {
    {"columns", (PyCFunction)(void (*)(void))reader_columns, METH_VARARGS | METH_KEYWORDS,
     "Records of a range of one queue as an Arrow array: (next offset, rows, record bytes, packed bodies, capsule)."},
    {NULL},
};

PyMethodDef visible_methods[] = {
    {"queue_visible", (PyCFunction)store_queue_visible, METH_VARARGS, "First queue offset that is not visible yet."},
    {NULL},
};

/* ---- from bytes ------------------------------------------------------------------------------------------------ */
static PyObject *core_columns_decode(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"data", "columns",  "topic",  "broker", "rows_max", "bytes_max",
                            "tags", "ms_begin", "ms_end", "verify", "range",    NULL};
    struct core_state *state = PyModule_GetState(module);
    struct wish wish = {.gather = {.ms_end = UINT64_MAX}};
    struct shmq_gather *gather = &wish.gather;
    u64 bytes_max = 16u << 20, ms_begin = 0, ms_end = UINT64_MAX, first = 0, end = 0;
    Py_ssize_t topic_bytes, broker_bytes;
    const char *topic, *broker;
    PyObject *tags = Py_None, *verify = Py_None, *result = NULL;
    Py_buffer data, order;
    gather->rows_max = 8192;
    shmq_reader_init(&wish.tags, NULL);
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*y*z#s#|$IKOKKO(IKK):columns_decode", names, &data, &order, &topic,
                                     &topic_bytes, &broker, &broker_bytes, &gather->rows_max, &bytes_max, &tags,
                                     &ms_begin, &ms_end, &verify, &gather->queue_id, &first, &end)) {
        return NULL;
    }
    gather->next = first;
    gather->end = topic ? end : 0;
    gather->bytes_max = bytes_max;
    gather->ms_begin = ms_begin;
    gather->ms_end = ms_end;
    gather->verify = verify != Py_False;
    if (columns_open(state, &order, &wish.columns) && limits_check(state, gather) && tags_add(&wish, tags)) {
        size_t consumed;
        enum shmq_status status;
        wish.columns.topic = (struct shmq_slice){.data = topic, .bytes = (size_t)topic_bytes};
        wish.columns.broker = (struct shmq_slice){.data = broker, .bytes = (size_t)broker_bytes};
        Py_BEGIN_ALLOW_THREADS
        status = shmq_gather_bytes(data.buf, (size_t)data.len, gather, &wish.columns, &consumed);
        Py_END_ALLOW_THREADS
        result = status == SHMQ_OK        ? answer(&wish, consumed, true)
                 : status == SHMQ_CORRUPT ? core_raise(state, status, "the record at byte %zd of %zd is damaged%s",
                                                       (Py_ssize_t)consumed, data.len,
                                                       gather->end ? ", or not one of those asked for" : "")
                                          : core_raise_status(state, status, "decoding records");
    }
    PyBuffer_Release(&order);
    PyBuffer_Release(&data);
    wish_close(&wish);
    return result;
}

static PyObject *core_columns_schema(PyObject *module, PyObject *columns)
{
    struct shmq_columns parsed;
    Py_buffer order;
    if (PyObject_GetBuffer(columns, &order, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    bool ok = columns_open(PyModule_GetState(module), &order, &parsed);
    PyBuffer_Release(&order);
    struct ArrowSchema *schema = ok ? PyMem_RawCalloc(1, sizeof *schema) : NULL;
    if (!schema || shmq_arrow_schema(parsed.order, parsed.order_count, schema) != SHMQ_OK) {
        PyMem_RawFree(schema);
        return ok ? PyErr_NoMemory() : NULL;
    }
    PyObject *capsule = PyCapsule_New(schema, SCHEMA_CAPSULE, schema_capsule_free);
    if (!capsule) {
        schema->release(schema);
        PyMem_RawFree(schema);
    }
    return capsule;
}

static PyObject *core_columns_names(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    (void)module;
    PyObject *tuple = PyTuple_New(SHMQ_COLUMN_COUNT);
    for (int i = 0; tuple && i < SHMQ_COLUMN_COUNT; i++) {
        PyObject *name = PyUnicode_FromString(shmq_column_types[i].name);
        if (!name) {
            Py_CLEAR(tuple);
            break;
        }
        PyTuple_SET_ITEM(tuple, i, name);
    }
    return tuple;
}

PyMethodDef columns_functions[] = {
    {"columns_names", core_columns_names, METH_NOARGS, "Names of all columns; a column's number is its place here."},
    {"columns_schema", core_columns_schema, METH_O, "Arrow schema of these columns, as a capsule."},
    {"columns_decode", (PyCFunction)(void (*)(void))core_columns_decode, METH_VARARGS | METH_KEYWORDS,
     "Records back to back in memory as an Arrow array: (bytes used, next offset, rows, packed bodies, capsule)."},
    {NULL},
};
