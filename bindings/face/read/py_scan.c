/* Records of the log by their position, outside any queue: the walk of recovery, one message, a search by time. */
#include <errno.h>
#include <string.h>

#include "core/read/scan.h"
#include "face/read/py_read.h"

#define SCAN_COUNT_MAX (1u << 20)

struct scan { /* one step of the walk */
    uint64_t position;
    struct shmq_view view;
    enum shmq_found found;
};

static int64_t record_tag_hash(const struct shmq_view *view)
{
    size_t bytes;
    const char *tag = shmq_property_find(view->properties, view->properties_bytes, "TAGS", 4, &bytes);
    return tag && bytes ? shmq_tag_hash(tag, bytes) : 0;
}

static bool scan_append(PyStore *self, PyObject *list, const struct scan *scan)
{
    const struct shmq_view *view = &scan->view;
    PyObject *topic = PyBytes_FromStringAndSize(view->topic, (Py_ssize_t)view->topic_bytes);
    const int64_t numbers[] = {(int64_t)scan->position, view->record_bytes, 0, view->queue_id,
                               (int64_t)view->queue_offset, (int64_t)view->store_ms, record_tag_hash(view),
                               view->sys_flag, (int64_t)view->prepared_position};
    return row_append(list, row_new(self->state, ROW_SCANNED, numbers, 2, topic));
}

/* Walk until `count` records, `end`, or a stop; the reason for stopping is the result, NULL with an exception. */
static const char *scan_walk(PyStore *self, struct scan *scan, uint64_t end, Py_ssize_t count, PyObject *list)
{
    while (PyList_GET_SIZE(list) < count && scan->position < end) {
        struct shmq_mapping *mapping = shmq_mapping_get(&self->core, scan->position);
        if (!mapping) {
            if (errno == ENOENT) {
                return "blank-end";
            }
            core_raise_status(self->state, SHMQ_SYSTEM, "mapping the log file");
            return NULL;
        }
        shmq_mapping_hold(mapping);
        const struct shmq_log_part part = {mapping->data, mapping->base, mapping->bytes};
        Py_BEGIN_ALLOW_THREADS
        scan->found = shmq_record_find(&part, scan->position, end, &scan->view);
        Py_END_ALLOW_THREADS
        uint64_t file_end = mapping->base + mapping->bytes;
        bool ok = scan->found != SHMQ_FOUND_RECORD || scan_append(self, list, scan);
        shmq_mapping_release(mapping);
        if (!ok) {
            return NULL;
        }
        if (scan->found != SHMQ_FOUND_RECORD && scan->found != SHMQ_FOUND_BLANK) {
            return scan->found == SHMQ_FOUND_ZERO ? "zero" : "corrupt";
        }
        scan->position = scan->found == SHMQ_FOUND_BLANK ? file_end : scan->position + scan->view.record_bytes;
    }
    return "";
}

static PyObject *store_scan(PyStorePart *part, PyObject *args)
{
    PyStore *self = part->store;
    unsigned long long position, end;
    Py_ssize_t count;
    if (!PyArg_ParseTuple(args, "KKn:scan", &position, &end, &count) || !store_check(self)) {
        return NULL;
    }
    PyObject *list = PyList_New(0);
    if (!list) {
        return NULL;
    }
    struct scan scan = {.position = position};
    store_user_enter(self); /* the walk lets the GIL go while it checks CRCs */
    const char *stop = scan_walk(self, &scan, end, count < SCAN_COUNT_MAX ? count : SCAN_COUNT_MAX, list);
    store_user_leave(self);
    PyObject *text = !stop                          ? NULL
                     : strcmp(stop, "corrupt") == 0 ? PyUnicode_FromFormat("corrupt: %s", shmq_found_reason(scan.found))
                                                    : PyUnicode_FromString(stop);
    if (text) {
        return Py_BuildValue("(KNN)", (unsigned long long)scan.position, list, text);
    }
    Py_DECREF(list);
    return NULL;
}

static PyObject *store_message_at(PyStore *self, PyObject *args)
{
    unsigned long long position, bytes = 0;
    PyObject *owner = Py_None, *codec = Py_None, *wish = Py_None;
    if (!PyArg_ParseTuple(args, "K|KOOO:message_at", &position, &bytes, &owner, &codec, &wish) || !store_check(self)) {
        return NULL;
    }
    struct shmq_mapping *mapping;
    struct shmq_view view;
    const bool verify = wish == Py_None ? !self->core.head->trusts_reads : wish == Py_True;
    switch (shmq_record_at(&self->core, position, bytes, shmq_visible_end(&self->core), verify, &mapping, &view)) {
    case SHMQ_OK:
        break;
    case SHMQ_GONE:
        return core_raise(self->state, SHMQ_GONE, "log position %llu is outside the log, which holds %llu to %llu", position,
                          (unsigned long long)atomic_load_explicit(&self->core.log->begin, memory_order_relaxed),
                          (unsigned long long)shmq_visible_end(&self->core));
    case SHMQ_SYSTEM:
        return core_raise_status(self->state, SHMQ_SYSTEM, "mapping the log file");
    case SHMQ_CORRUPT:
        return core_raise(self->state, SHMQ_CORRUPT, "the record at log position %llu is damaged: its CRC does not hold",
                          position);
    default:
        return core_raise(self->state, SHMQ_CORRUPT, "no record%s starts at log position %llu",
                          bytes ? " of that size" : "", position);
    }
    PyMessage *message = (PyMessage *)message_new(self->state, NULL, &view, mapping, 0, 0);
    if (message) {
        message->owner = owner == Py_None ? NULL : Py_NewRef(owner);
        message->codec = codec == Py_None ? NULL : Py_NewRef(codec);
    }
    return (PyObject *)message;
}

/* Milliseconds since the epoch: what is before it is its beginning, what fits no number of ours is after everything. */
static bool time_from(PyObject *value, uint64_t *time_ms)
{
    int overflow;
    const long long given = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (given == -1 && PyErr_Occurred()) {
        return false;
    }
    *time_ms = overflow > 0 ? INT64_MAX : overflow < 0 || given < 0 ? 0 : (uint64_t)given;
    return true;
}

static PyObject *store_search_time(PyStore *self, PyObject *args)
{
    unsigned int queue;
    PyObject *time;
    uint64_t time_ms, offset;
    if (!PyArg_ParseTuple(args, "IO:search_time", &queue, &time) || !time_from(time, &time_ms) || !store_check(self)) {
        return NULL;
    }
    if (!shmq_queue_is_number(&self->core, queue)) {
        return core_raise(self->state, SHMQ_NO_QUEUE, "queue index %u of %u", queue, self->core.sizes.queue_max);
    }
    enum shmq_status status = shmq_reader_search_time(&self->core, queue, time_ms, &offset);
    if (status != SHMQ_OK) {
        return core_raise_status(self->state, status, "searching a queue by time");
    }
    return PyLong_FromUnsignedLongLong(offset);
}

PyMethodDef look_methods[] = {
    {"message_at", (PyCFunction)store_message_at, METH_VARARGS, "The record at a log position."},
    {"search_time", (PyCFunction)store_search_time, METH_VARARGS,
     "First queue offset whose record was stored at or after a time."},
    {NULL},
};

/* What a part does that walks the log record by record. */
PyMethodDef scan_methods[] = {
    {"scan", (PyCFunction)store_scan, METH_VARARGS, "Walk records of the log, verifying CRCs."},
    {NULL},
};
