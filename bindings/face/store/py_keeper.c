/* KeeperStore, what the store keeper and recovery do: positions, flush, bell, units and frames. */
#include <errno.h>
#include <string.h>

#include "face/store/py_store.h"

#define UNITS_READ_MAX 65536u
#define POPULATE_BYTES_MAX (UINT64_C(1) << 30)

static bool number_from(PyObject *value, uint64_t *out)
{
    *out = PyLong_AsUnsignedLongLong(value);
    return *out != (uint64_t)-1 || !PyErr_Occurred();
}

/* ---- positions ------------------------------------------------------------------------------------- */
static PyObject *position_set(PyStore *self, PyObject *value, void (*set)(struct shmq_store *store, uint64_t position))
{
    uint64_t position;
    if (!store_check(self) || !number_from(value, &position)) {
        return NULL;
    }
    set(&self->core, position);
    Py_RETURN_NONE;
}

static PyObject *keeper_set_allocated_end(PyStorePart *part, PyObject *value)
{
    return position_set(part->store, value, shmq_set_allocated_end);
}

static PyObject *keeper_give_back(PyStorePart *part, PyObject *value)
{
    PyStore *self = part->store;
    uint64_t position;
    if (!store_check(self) || !number_from(value, &position)) {
        return NULL;
    }
    enum shmq_status status = shmq_room_give_back(&self->core, position);
    if (status == SHMQ_OK) {
        /* Whatever we made pages in. A lane in use flushes, below the log end. */
        shmq_mapping_drop(&self->core, position);
        for (struct store_lane *lane = self->lanes; lane; lane = lane->next) {
            shmq_mapping_drop(&lane->core, position);
        }
    }
    return PyBool_FromLong(status == SHMQ_OK);
}

static PyObject *keeper_set_log_begin(PyStorePart *part, PyObject *value)
{
    return position_set(part->store, value, shmq_set_log_begin);
}

static PyObject *keeper_set_log_end(PyStorePart *part, PyObject *value)
{
    return position_set(part->store, value, shmq_set_log_end);
}

static PyObject *keeper_set_confirmed_end(PyStorePart *part, PyObject *value)
{
    return position_set(part->store, value, shmq_set_confirmed_end);
}

static PyObject *keeper_set_log_directory(PyStorePart *part, PyObject *value)
{
    PyStore *self = part->store;
    uint64_t directory;
    if (!store_check(self) || !number_from(value, &directory)) {
        return NULL;
    }
    if (!shmq_set_log_directory(&self->core, directory <= INT32_MAX ? (int)directory : -1)) {
        return core_raise_status(self->state, SHMQ_SYSTEM, "naming the directory of the log");
    }
    Py_RETURN_NONE;
}

static PyObject *keeper_set_read_only(PyStorePart *part, PyObject *value)
{
    PyStore *self = part->store;
    uint64_t reason;
    if (!store_check(self) || !number_from(value, &reason)) {
        return NULL;
    }
    bool is_full = reason <= 0xffffff && SHMQ_READ_ONLY_REASON(reason) == SHMQ_READ_ONLY_DISK_FULL;
    if (reason > SHMQ_READ_ONLY_OPERATOR && reason != SHMQ_READ_ONLY_FILES_LOST && !is_full) {
        return core_raise(self->state, SHMQ_BAD_ARGUMENT, "read-only reason %R is none of 0 to %d and %d", value,
                          SHMQ_READ_ONLY_OPERATOR, SHMQ_READ_ONLY_FILES_LOST);
    }
    shmq_set_read_only(&self->core, (uint32_t)reason);
    Py_RETURN_NONE;
}

static PyObject *keeper_set_retired(PyStorePart *part, PyObject *unused)
{
    PyStore *self = part->store;
    (void)unused;
    if (!store_check(self)) {
        return NULL;
    }
    shmq_retire(&self->core);
    Py_RETURN_NONE;
}

static PyObject *keeper_populate(PyStorePart *part, PyObject *args)
{
    PyStore *self = part->store;
    unsigned long long position, bytes;
    if (!PyArg_ParseTuple(args, "KK:populate", &position, &bytes) || !store_check(self)) {
        return NULL;
    }
    if (bytes > POPULATE_BYTES_MAX) {
        return core_raise(self->state, SHMQ_BAD_ARGUMENT, "populate takes at most %llu bytes at once",
                          (unsigned long long)POPULATE_BYTES_MAX);
    }
    struct shmq_mapping *mapping = shmq_mapping_get(&self->core, position);
    if (!mapping) {
        return core_raise_status(self->state, SHMQ_SYSTEM, "mapping the log file");
    }
    const uint64_t page = 4096;
    uint64_t at = (position - mapping->base) / page * page;
    uint64_t end = position - mapping->base + bytes;
    end = end > mapping->bytes ? mapping->bytes : (end + page - 1) / page * page;
    shmq_mapping_hold(mapping);
    store_user_enter(self);
    Py_BEGIN_ALLOW_THREADS
    /* Advice only: where the kernel does not take it, the first access faults as usual. */
    if (end > at) {
        shmq_mapping_make_present(&self->core, mapping, at, end);
    }
    shmq_mapping_release(mapping);
    Py_END_ALLOW_THREADS
    store_user_leave(self);
    Py_RETURN_NONE;
}

static PyObject *keeper_repair(PyStorePart *part, PyObject *args)
{
    PyStore *self = part->store;
    double timeout;
    if (!PyArg_ParseTuple(args, "d:repair", &timeout) || !store_check(self)) {
        return NULL;
    }
    struct store_lane *lane = store_lane_take(self);
    if (!lane) {
        return NULL;
    }
    uint64_t deadline = deadline_after(self, timeout);
    enum shmq_status status;
    Py_BEGIN_ALLOW_THREADS
    status = shmq_lock(&lane->core, deadline);
    if (status == SHMQ_OK) {
        shmq_unlock(&lane->core);
    }
    Py_END_ALLOW_THREADS
    store_lane_give(self, lane);
    if (status != SHMQ_OK) {
        return core_raise_status(self->state, status, "taking the append lock");
    }
    Py_RETURN_NONE;
}

/* ---- units and frames ------------------------------------------------------------------------------ */
static bool queue_check(PyStore *self, unsigned int queue)
{
    if (shmq_queue_is_number(&self->core, queue)) {
        return true;
    }
    core_raise(self->state, SHMQ_NO_QUEUE, "queue index %u of %u", queue, self->core.sizes.queue_max);
    return false;
}

/* The keeper alone lets queues leave, so for it one that lives does so until it says otherwise. */
static struct shmq_queue *queue_living(PyStore *self, unsigned int queue)
{
    struct shmq_queue *entry = queue_check(self, queue) ? shmq_queue_entry(&self->core, queue) : NULL;
    if (!entry && !PyErr_Occurred()) {
        core_raise(self->state, SHMQ_NO_QUEUE, "queue %u: its topic was deleted", queue);
    }
    return entry;
}

static PyObject *units_bytes(PyStore *self, PyObject *args, bool files)
{
    unsigned int queue, count;
    unsigned long long first;
    if (!PyArg_ParseTuple(args, "IKI:units_read", &queue, &first, &count) || !store_check(self) ||
        !queue_check(self, queue)) {
        return NULL;
    }
    count = count < UNITS_READ_MAX ? count : UNITS_READ_MAX;
    PyObject *out = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)count * SHMQ_UNIT_BYTES);
    if (!out) {
        return NULL;
    }
    uint32_t got = (files ? shmq_units_stored : shmq_units_read)(&self->core, queue, first, count,
                                                                  (uint8_t *)PyBytes_AS_STRING(out));
    _PyBytes_Resize(&out, (Py_ssize_t)got * SHMQ_UNIT_BYTES);
    return out;
}

static PyObject *keeper_units_read(PyStorePart *part, PyObject *args)
{
    return units_bytes(part->store, args, false);
}

static PyObject *store_units_stored(PyStore *self, PyObject *args)
{
    return units_bytes(self, args, true);
}

static PyObject *keeper_units_restore(PyStorePart *part, PyObject *args)
{
    PyStore *self = part->store;
    unsigned int queue;
    unsigned long long first;
    Py_buffer units;
    if (!PyArg_ParseTuple(args, "IKy*:units_restore", &queue, &first, &units)) {
        return NULL;
    }
    enum shmq_status status = SHMQ_BAD_ARGUMENT;
    bool ok = store_check(self) && queue_check(self, queue);
    if (ok && units.len % SHMQ_UNIT_BYTES == 0 && units.len / SHMQ_UNIT_BYTES <= UINT32_MAX) {
        status = units.len
                     ? shmq_units_restore(&self->core, queue, first, (uint32_t)(units.len / SHMQ_UNIT_BYTES), units.buf)
                     : SHMQ_OK;
    }
    PyBuffer_Release(&units);
    if (!ok) {
        return NULL;
    }
    if (status != SHMQ_OK) {
        return core_raise_status(self->state, status, "restoring units");
    }
    Py_RETURN_NONE;
}

static PyObject *keeper_set_persisted(PyStorePart *part, PyObject *args)
{
    PyStore *self = part->store;
    unsigned int queue;
    unsigned long long offset;
    if (!PyArg_ParseTuple(args, "IK:set_persisted", &queue, &offset) || !store_check(self) ||
        !queue_living(self, queue)) {
        return NULL;
    }
    (void)shmq_queue_set_persisted(&self->core, queue, offset);
    Py_RETURN_NONE;
}

static PyObject *keeper_set_queue(PyStorePart *part, PyObject *args, PyObject *kwargs)
{
    PyStore *self = part->store;
    static char *names[] = {"queue", "offset_min", "offset_max", "persisted", NULL};
    unsigned int queue;
    unsigned long long first, end, persisted;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "IKKK:set_queue", names, &queue, &first, &end, &persisted) ||
        !store_check(self) || !queue_living(self, queue)) {
        return NULL;
    }
    if (shmq_queue_publish(&self->core, queue, first, persisted, end) == SHMQ_BAD_ARGUMENT) {
        return core_raise(self->state, SHMQ_BAD_ARGUMENT,
                          "offset_min %llu and persisted %llu must not exceed offset_max "
                          "%llu",
                          first, persisted, end);
    }
    Py_RETURN_NONE;
}

static PyObject *keeper_set_offset_min(PyStorePart *part, PyObject *args)
{
    PyStore *self = part->store;
    unsigned int queue;
    unsigned long long offset;
    struct shmq_queue *entry;
    if (!PyArg_ParseTuple(args, "IK:set_offset_min", &queue, &offset) || !store_check(self) ||
        !(entry = queue_living(self, queue))) {
        return NULL;
    }
    if (shmq_queue_set_offset_min(&self->core, queue, offset) == SHMQ_BAD_ARGUMENT) {
        return core_raise(self->state, SHMQ_BAD_ARGUMENT, "offset_min %llu must not exceed offset_max %llu", offset,
                          (unsigned long long)atomic_load_explicit(&entry->offset_max, memory_order_acquire));
    }
    Py_RETURN_NONE;
}

static PyObject *keeper_frames_grow(PyStorePart *part, PyObject *value)
{
    PyStore *self = part->store;
    uint64_t count;
    if (!store_check(self) || !number_from(value, &count)) {
        return NULL;
    }
    enum shmq_status status = count > UINT32_MAX ? SHMQ_BAD_ARGUMENT : shmq_frames_grow(&self->core, (uint32_t)count);
    if (status != SHMQ_OK) {
        return core_raise_status(self->state, status, "reserving memory for unit frames");
    }
    Py_RETURN_NONE;
}

static PyObject *keeper_frames_release(PyStorePart *part, PyObject *args)
{
    PyStore *self = part->store;
    unsigned int queue, count;
    unsigned long long ordinal;
    double timeout;
    if (!PyArg_ParseTuple(args, "IKId:frames_release", &queue, &ordinal, &count, &timeout) ||
        !store_check(self) || !queue_check(self, queue)) {
        return NULL;
    }
    struct store_lane *lane = store_lane_take(self);
    if (!lane) {
        return NULL;
    }
    uint64_t deadline = deadline_after(self, timeout);
    uint32_t released;
    Py_BEGIN_ALLOW_THREADS
    released = shmq_frames_release(&lane->core, queue, ordinal, count, deadline);
    Py_END_ALLOW_THREADS
    store_lane_give(self, lane);
    return PyLong_FromLongLong(released == SHMQ_NONE ? -1 : (long long)released);
}

/* Enough for one deletion of a large topic; the caller asks again as long as it gets that many. */
#define LEAVING_MAX 4096u

static PyObject *keeper_queues_close(PyStorePart *part, PyObject *args)
{
    PyStore *self = part->store;
    double timeout;
    if (!PyArg_ParseTuple(args, "d:queues_close", &timeout) || !store_check(self)) {
        return NULL;
    }
    struct shmq_leaving *leaving = PyMem_New(struct shmq_leaving, LEAVING_MAX);
    struct store_lane *lane = leaving ? store_lane_take(self) : (PyErr_NoMemory(), NULL);
    if (!lane) {
        PyMem_Free(leaving);
        return NULL;
    }
    uint64_t deadline = deadline_after(self, timeout);
    uint32_t count;
    enum shmq_status status;
    Py_BEGIN_ALLOW_THREADS
    status = shmq_queues_close(&lane->core, deadline, LEAVING_MAX, leaving, &count);
    Py_END_ALLOW_THREADS
    store_lane_give(self, lane);
    PyObject *list = status == SHMQ_OK ? PyList_New(0) : core_raise_status(self->state, status, "closing deleted queues");
    for (uint32_t i = 0; list && i < count; i++) {
        if (!row_append(list, Py_BuildValue("(IK)", leaving[i].queue, (unsigned long long)leaving[i].offset_max))) {
            Py_CLEAR(list);
        }
    }
    PyMem_Free(leaving);
    return list;
}

static PyObject *keeper_queue_free(PyStorePart *part, PyObject *args)
{
    PyStore *self = part->store;
    unsigned int queue;
    if (!PyArg_ParseTuple(args, "I:queue_free", &queue) || !store_check(self) || !queue_check(self, queue)) {
        return NULL;
    }
    enum shmq_status status = shmq_queue_free(&self->core, queue);
    if (status != SHMQ_OK) {
        return core_raise_status(self->state, status, "the entry of a deleted queue");
    }
    Py_RETURN_NONE;
}

static PyObject *keeper_topic_free(PyStorePart *part, PyObject *args)
{
    PyStore *self = part->store;
    unsigned int topic, version;
    if (!PyArg_ParseTuple(args, "II:topic_free", &topic, &version) || !store_check(self)) {
        return NULL;
    }
    const enum shmq_status status = shmq_topic_free(&self->core, topic, version);
    if (status != SHMQ_OK && status != SHMQ_WOULD_BLOCK && status != SHMQ_NO_TOPIC) {
        return core_raise_status(self->state, status, "the entry of a deleted topic");
    }
    return PyBool_FromLong(status != SHMQ_WOULD_BLOCK);
}

PyMethodDef keeper_methods[] = {
    {"set_allocated_end", (PyCFunction)keeper_set_allocated_end, METH_O, "All files below it exist and are reserved."},
    {"give_back", (PyCFunction)keeper_give_back, METH_O, "Let the log's files end at a position, if writers may."},
    {"set_log_directory", (PyCFunction)keeper_set_log_directory, METH_O, "Name the directory of the log's files."},
    {"set_log_begin", (PyCFunction)keeper_set_log_begin, METH_O, "Say what retention has left."},
    {"set_log_end", (PyCFunction)keeper_set_log_end, METH_O, "Recovery only: set end, durable and confirmed end."},
    {"set_confirmed_end", (PyCFunction)keeper_set_confirmed_end, METH_O, "Recovery only: no more is known as confirmed."},
    {"set_read_only", (PyCFunction)keeper_set_read_only, METH_O, "Refuse appends from now on; 0 allows them again."},
    {"set_retired", (PyCFunction)keeper_set_retired, METH_NOARGS, "Give this generation of segments up."},
    {"populate", (PyCFunction)keeper_populate, METH_VARARGS, "Make pages present ahead of the writers."},
    {"units_read", (PyCFunction)keeper_units_read, METH_VARARGS,
     "Units still in memory, 20 bytes each; may be shorter."},
    {"units_restore", (PyCFunction)keeper_units_restore, METH_VARARGS, "Put units back after a restart."},
    {"set_persisted", (PyCFunction)keeper_set_persisted, METH_VARARGS, "Units below it are in the ConsumeQueue files."},
    {"set_queue", (PyCFunction)(void (*)(void))keeper_set_queue, METH_VARARGS | METH_KEYWORDS,
     "Recovery only: set the offsets of a queue."},
    {"set_offset_min", (PyCFunction)keeper_set_offset_min, METH_VARARGS,
     "Retention: the first queue offset that is left."},
    {"repair", (PyCFunction)keeper_repair, METH_VARARGS,
     "Take and release the append lock; a dead holder's work is finished on the way."},
    {"queues_close", (PyCFunction)keeper_queues_close, METH_VARARGS,
     "End the lives of queues that no topic has: (queue, offset_max) of these and of those whose frames are still held."},
    {"queue_free", (PyCFunction)keeper_queue_free, METH_VARARGS,
     "Let others have the entry of a queue that is closed; its frames must be given back."},
    {"topic_free", (PyCFunction)keeper_topic_free, METH_VARARGS,
     "Let others have the entry of a topic that was deleted at a version; False while a queue of it is not free."},
    {"frames_grow", (PyCFunction)keeper_frames_grow, METH_O, "Reserve memory for that many more unit frames."},
    {"frames_release", (PyCFunction)keeper_frames_release, METH_VARARGS,
     "Give back full, persisted frames of a queue, of a closed one any; returns how many."},
    {NULL},
};

/* What every reader of a unit calls. */
PyMethodDef unit_methods[] = {
    {"units_stored", (PyCFunction)store_units_stored, METH_VARARGS,
     "Units in memory, else in their file, 20 bytes each; may be shorter."},
    {NULL},
};
