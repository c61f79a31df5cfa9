/* Many records of the log with one call: KeeperStore.scan_batch on mapped files, record_batch on bytes that were read.
 *
 * A batch lies in one log file. Its Python objects are as many as it has runs of units, however many records there are.
 */
#include <errno.h>
#include <string.h>

#include "core/files/index.h"
#include "core/read/scan.h"
#include "face/store/py_store.h"

#define BATCH_RECORDS_MAX (1 << 20)
#define NAMES_MAX 16

struct watched { struct shmq_scan_name names[NAMES_MAX]; };

/* Room for `count` records; `topics` is a tuple of bytes, which the caller keeps, or None: nothing is gathered. */
static bool batch_open(struct core_state *state, struct shmq_scan *scan, PyObject *topics, Py_ssize_t count,
                       struct watched *watched)
{
    const bool gathers = topics != Py_None;
    const Py_ssize_t names = gathers && PyTuple_Check(topics) ? PyTuple_GET_SIZE(topics) : 0;
    if ((gathers && !PyTuple_Check(topics)) || names > NAMES_MAX || count < 1 || count > BATCH_RECORDS_MAX) {
        core_raise(state, SHMQ_BAD_ARGUMENT, "a batch has 1 to %d records, and a tuple of at most %d topics, or None",
                   BATCH_RECORDS_MAX, NAMES_MAX);
        return false;
    }
    for (Py_ssize_t i = 0; i < names; i++) {
        PyObject *name = PyTuple_GET_ITEM(topics, i);
        if (!PyBytes_Check(name)) {
            core_raise(state, SHMQ_BAD_ARGUMENT, "the name of a topic is bytes");
            return false;
        }
        watched->names[i] = (struct shmq_scan_name){PyBytes_AS_STRING(name), (size_t)PyBytes_GET_SIZE(name)};
    }
    scan->names = watched->names;
    scan->name_count = (uint32_t)names;
    scan->record_max = (uint32_t)count;
    scan->gathers = gathers;
    return shmq_scan_open(scan) || PyErr_NoMemory();
}

static PyObject *run_row(struct core_state *state, const struct shmq_scan *scan, const struct shmq_scan_run *run)
{
    PyObject *units = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)run->count * SHMQ_UNIT_BYTES);
    PyObject *times = run->is_watched
                          ? PyBytes_FromStringAndSize(NULL, (Py_ssize_t)run->count * (Py_ssize_t)sizeof(uint64_t))
                          : Py_NewRef(Py_None);
    if (units && times) {
        char *unit = PyBytes_AS_STRING(units), *time = run->is_watched ? PyBytes_AS_STRING(times) : NULL;
        for (uint32_t number = run->first + 1; number != 0; number = scan->rows[number - 1].next) {
            const struct shmq_scan_row *row = &scan->rows[number - 1];
            memcpy(unit, row->unit, SHMQ_UNIT_BYTES);
            unit += SHMQ_UNIT_BYTES;
            if (time) {
                memcpy(time, &row->store_ms, sizeof row->store_ms);
                time += sizeof row->store_ms;
            }
        }
    }
    PyObject *const values[] = {PyBytes_FromStringAndSize(run->topic, (Py_ssize_t)run->topic_bytes),
                                PyLong_FromUnsignedLong(run->queue_id),
                                PyLong_FromLongLong((long long)run->queue_offset), units, times};
    return row_of(state, ROW_UNIT_RUN, values);
}

static PyObject *runs_list(struct core_state *state, const struct shmq_scan *scan)
{
    PyObject *list = PyList_New(scan->run_count);
    for (uint32_t i = 0; list && i < scan->run_count; i++) {
        PyObject *row = run_row(state, scan, &scan->runs[i]);
        if (!row) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, i, row);
    }
    return list;
}

static PyObject *watched_list(const struct shmq_scan *scan)
{
    PyObject *list = PyList_New(scan->watched_count);
    for (uint32_t i = 0; list && i < scan->watched_count; i++) {
        const struct shmq_scan_place *place = &scan->watched[i];
        PyObject *pair = Py_BuildValue("(KI)", (unsigned long long)place->log_position, place->record_bytes);
        if (!pair) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, i, pair);
    }
    return list;
}

static PyObject *batch_row(struct core_state *state, const struct shmq_scan *scan, const char *stop)
{
    const char *reason = shmq_found_reason(scan->found);
    PyObject *const values[] = {PyLong_FromUnsignedLongLong(scan->position), PyLong_FromUnsignedLong(scan->records),
                                PyLong_FromUnsignedLongLong(scan->record_bytes),
                                PyLong_FromUnsignedLongLong(scan->store_ms), runs_list(state, scan),
                                watched_list(scan),
                                PyBytes_FromStringAndSize((const char *)scan->keys,
                                                          (Py_ssize_t)scan->key_count * SHMQ_INDEX_KEY_BYTES),
                                reason ? PyUnicode_FromFormat("corrupt: %s", reason) : PyUnicode_FromString(stop)};
    return row_of(state, ROW_RECORD_BATCH, values);
}

static PyObject *store_scan_batch(PyStorePart *part, PyObject *args)
{
    PyStore *self = part->store;
    unsigned long long position, end;
    Py_ssize_t count;
    PyObject *topics;
    if (!PyArg_ParseTuple(args, "KKnO:scan_batch", &position, &end, &count, &topics) || !store_check(self)) {
        return NULL;
    }
    struct shmq_scan scan = {.position = position, .end = end};
    struct watched watched;
    if (!batch_open(self->state, &scan, topics, count, &watched)) {
        return NULL;
    }
    PyObject *batch = NULL;
    struct shmq_mapping *mapping = position < end ? shmq_mapping_get(&self->core, position) : NULL;
    if (mapping) {
        const struct shmq_log_part log_part = {mapping->data, mapping->base, mapping->bytes};
        shmq_mapping_hold(mapping);
        store_user_enter(self); /* the walk lets the GIL go */
        Py_BEGIN_ALLOW_THREADS
        shmq_scan_run(&scan, &log_part);
        Py_END_ALLOW_THREADS
        if (scan.found == SHMQ_FOUND_BLANK) {
            scan.position = mapping->base + mapping->bytes;
        }
        batch = batch_row(self->state, &scan, scan.found == SHMQ_FOUND_ZERO ? "zero" : "");
        shmq_mapping_release(mapping);
        store_user_leave(self);
    } else if (position >= end || errno == ENOENT) {
        batch = batch_row(self->state, &scan, position < end ? "blank-end" : "");
    } else {
        core_raise_status(self->state, SHMQ_SYSTEM, "mapping the log file");
    }
    shmq_scan_close(&scan);
    return batch;
}

static PyObject *core_record_batch(PyObject *module, PyObject *args)
{
    struct core_state *state = PyModule_GetState(module);
    Py_buffer data;
    unsigned long long position;
    Py_ssize_t count;
    PyObject *topics;
    int keys = 0;
    if (!PyArg_ParseTuple(args, "y*KnO|p:record_batch", &data, &position, &count, &topics, &keys)) {
        return NULL;
    }
    struct shmq_scan scan = {.position = position, .end = UINT64_MAX, .gathers_keys = keys};
    struct watched watched;
    PyObject *batch = NULL;
    if (batch_open(state, &scan, topics, count, &watched)) {
        const struct shmq_log_part part = {data.buf, position, (uint64_t)data.len};
        Py_BEGIN_ALLOW_THREADS
        shmq_scan_run(&scan, &part);
        Py_END_ALLOW_THREADS
        const bool is_blank = scan.found == SHMQ_FOUND_BLANK;
        batch = scan.lacks_memory ? PyErr_NoMemory()
                                  : batch_row(state, &scan, is_blank                         ? "blank"
                                                            : scan.found == SHMQ_FOUND_ZERO ? "zero"
                                                                                            : "");
        shmq_scan_close(&scan);
    }
    PyBuffer_Release(&data);
    return batch;
}

PyMethodDef batch_methods[] = {
    {"scan_batch", (PyCFunction)store_scan_batch, METH_VARARGS, "Check records of one log file and gather their units."},
    {NULL},
};

PyMethodDef batch_functions[] = {
    {"record_batch", core_record_batch, METH_VARARGS, "Check records that lie in some bytes and gather their units."},
    {NULL},
};
