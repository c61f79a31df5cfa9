/* Store and BrokerTables: topics and queues. What an entry says is copied and range-checked before it is believed. */
#include <string.h>

#include "core/internal.h"
#include "face/store/py_store.h"

static bool topic_check(PyStore *self, unsigned int index)
{
    const uint32_t count = shmq_topic_count(&self->core);
    if ((index & self->core.topic_mask) < count && shmq_topic_place(&self->core, index)) {
        return true;
    }
    core_raise(self->state, SHMQ_NO_TOPIC, "topic index %u, which no topic has: of %u entries", index, count);
    return false;
}

/* An argument that has to be a name: str without NUL. */
static const char *name_from(PyObject *value, Py_ssize_t *bytes)
{
    const char *name = PyUnicode_AsUTF8AndSize(value, bytes);
    if (name && strlen(name) != (size_t)*bytes) {
        PyErr_SetString(PyExc_ValueError, "a name must not hold NUL");
        return NULL;
    }
    return name;
}

static PyObject *tables_topic_put(PyStorePart *part, PyObject *args, PyObject *kwargs)
{
    PyStore *self = part->store;
    static char *names[] = {"name", "read_queues", "write_queues", "perm", "flags", "kind", NULL};
    const char *name;
    unsigned int read_queues, write_queues, perm = 6, flags = 0, kind = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sII|III:topic_put", names, &name, &read_queues, &write_queues,
                                     &perm, &flags, &kind) ||
        !store_check(self)) {
        return NULL;
    }
    uint32_t index = 0;
    enum shmq_status status;
    status = shmq_topic_put(&self->core, name, read_queues, write_queues, perm, flags, kind, &index);
    if (status == SHMQ_OK) {
        return PyLong_FromUnsignedLong(index);
    }
    PyObject *what =
        PyUnicode_FromFormat("topic '%s' with %u read and %u write queues", name, read_queues, write_queues);
    if (what) {
        core_raise_status(self->state, status, PyUnicode_AsUTF8(what));
    }
    Py_XDECREF(what);
    return NULL;
}

static PyObject *tables_topic_set_flush(PyStorePart *part, PyObject *args)
{
    PyStore *self = part->store;
    unsigned int index, mode;
    if (!PyArg_ParseTuple(args, "II:topic_set_flush", &index, &mode) || !store_check(self)) {
        return NULL;
    }
    enum shmq_status status = shmq_topic_set_flush(&self->core, index, mode);
    if (status != SHMQ_OK) {
        return core_raise_status(self->state, status, "how a topic is flushed");
    }
    Py_RETURN_NONE;
}

static PyObject *tables_topic_delete(PyStorePart *part, PyObject *value)
{
    PyStore *self = part->store;
    Py_ssize_t bytes;
    const char *name = name_from(value, &bytes);
    if (!name || !store_check(self)) {
        return NULL;
    }
    enum shmq_status status = shmq_topic_delete(&self->core, name);
    if (status != SHMQ_OK) {
        return core_raise_status(self->state, status, name);
    }
    Py_RETURN_NONE;
}

static PyObject *tables_topic_find(PyStore *self, PyObject *value)
{
    Py_ssize_t bytes;
    const char *name = PyUnicode_AsUTF8AndSize(value, &bytes);
    if (!name || !store_check(self)) {
        return NULL;
    }
    uint32_t index = shmq_topic_find(&self->core, name, (size_t)bytes);
    return PyLong_FromLong(index == SHMQ_NONE ? -1 : (long)index);
}

static PyObject *queue_list(PyStore *self, uint32_t index, uint32_t count)
{
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < count; i++) {
        uint32_t queue = shmq_topic_queue(&self->core, index, i);
        PyObject *number = queue == SHMQ_NONE ? NULL : PyLong_FromUnsignedLong(queue);
        if (queue == SHMQ_NONE) {
            break;
        }
        if (!number || PyList_Append(list, number) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(number);
    }
    return list;
}

static PyObject *topic_dict(PyStore *self, uint32_t index)
{
    struct shmq_topic *entry = &self->core.topics[index & self->core.topic_mask];
    uint32_t state, version, read_queues, write_queues;
    for (int attempt = 0;; attempt++) {
        version = atomic_load_explicit(&entry->version, memory_order_acquire);
        state = atomic_load_explicit(&entry->state, memory_order_acquire);
        read_queues = entry->read_queues;
        write_queues = entry->write_queues;
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&entry->version, memory_order_relaxed) == version || attempt == 100) {
            break;
        }
    }
    uint32_t count = read_queues > write_queues ? read_queues : write_queues;
    uint32_t bytes = entry->name_bytes;
    bytes = bytes < sizeof entry->name ? bytes : (uint32_t)sizeof entry->name;
    PyObject *name = PyUnicode_DecodeUTF8(entry->name, bytes, "replace");
    PyObject *queues = queue_list(self, index, count < self->core.sizes.queue_max ? count : self->core.sizes.queue_max);
    if (name && queues && !shmq_topic_holds(&self->core, index)) {
        core_raise(self->state, SHMQ_NO_TOPIC, "topic index %u, whose entry is another topic's by now", index);
        Py_CLEAR(name);
    }
    if (name && queues) {
        return Py_BuildValue("{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:K,s:N,s:N}", "state", state, "version", version,
                             "read_queues", read_queues, "write_queues", write_queues, "perm", entry->perm, "flags",
                             entry->flags, "kind", (unsigned int)entry->kind, "flush",
                             (unsigned int)entry->flush, "born_position",
                             (unsigned long long)entry->born_position, "name", name, "queues", queues);
    }
    Py_XDECREF(name);
    Py_XDECREF(queues);
    return NULL;
}

static PyObject *tables_topic(PyStore *self, PyObject *args)
{
    unsigned int index;
    if (!PyArg_ParseTuple(args, "I:topic", &index) || !store_check(self) || !topic_check(self, index)) {
        return NULL;
    }
    return topic_dict(self, index);
}

static PyObject *tables_topics(PyStore *self, PyObject *args)
{
    int with_deleted = 0;
    if (!PyArg_ParseTuple(args, "|p:topics", &with_deleted) || !store_check(self)) {
        return NULL;
    }
    const uint32_t count = shmq_topic_count(&self->core);
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < count; i++) {
        const uint32_t index = atomic_load_explicit(&self->core.topics[i].number, memory_order_acquire);
        const uint32_t state = atomic_load_explicit(&self->core.topics[i].state, memory_order_acquire);
        if ((index & self->core.topic_mask) != i ||
            (state != SHMQ_TOPIC_LIVE && !(with_deleted && state == SHMQ_TOPIC_DELETED))) {
            continue;
        }
        PyObject *entry = topic_dict(self, index);
        if (!entry && !shmq_topic_place(&self->core, index)) {
            PyErr_Clear(); /* it went meanwhile */
            continue;
        }
        PyObject *number = PyLong_FromUnsignedLong(index);
        if (!entry || !number || PyDict_SetItemString(entry, "index", number) < 0 || PyList_Append(list, entry) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(entry);
        Py_XDECREF(number);
    }
    return list;
}

static PyObject *tables_topic_marks(PyStore *self, PyObject *unused)
{
    (void)unused;
    if (!store_check(self)) {
        return NULL;
    }
    const uint32_t count = shmq_topic_count(&self->core);
    uint64_t *marks = PyMem_New(uint64_t, count ? count : 1);
    if (!marks) {
        return PyErr_NoMemory();
    }
    Py_ssize_t found = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct shmq_topic *entry = &self->core.topics[i];
        const uint32_t version = atomic_load_explicit(&entry->version, memory_order_acquire);
        const uint32_t index = atomic_load_explicit(&entry->number, memory_order_acquire);
        if (atomic_load_explicit(&entry->state, memory_order_acquire) == SHMQ_TOPIC_LIVE &&
            (index & self->core.topic_mask) == i) {
            marks[found++] = (uint64_t)index << 32 | version;
        }
    }
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)marks, found * (Py_ssize_t)sizeof *marks);
    PyMem_Free(marks);
    return bytes;
}

static PyObject *tables_set_topic_born(PyStorePart *part, PyObject *args)
{
    PyStore *self = part->store;
    unsigned int index;
    unsigned long long position;
    if (!PyArg_ParseTuple(args, "IK:set_topic_born", &index, &position) || !store_check(self) ||
        !topic_check(self, index)) {
        return NULL;
    }
    self->core.topics[index & self->core.topic_mask].born_position = position;
    Py_RETURN_NONE;
}

static PyObject *tables_queue(PyStore *self, PyObject *args)
{
    unsigned int index;
    if (!PyArg_ParseTuple(args, "I:queue", &index) || !store_check(self)) {
        return NULL;
    }
    if (!shmq_queue_is_number(&self->core, index)) {
        return core_raise(self->state, SHMQ_NO_QUEUE, "queue index %u of %u", index, self->core.sizes.queue_max);
    }
    struct shmq_queue *queue = shmq_queue_place(&self->core, index);
    const int64_t numbers[] = {(int64_t)atomic_load_explicit(&queue->offset_min, memory_order_acquire),
                               (int64_t)atomic_load_explicit(&queue->offset_max, memory_order_acquire),
                               (int64_t)atomic_load_explicit(&queue->persisted, memory_order_acquire),
                               queue->topic, queue->queue_id, (int64_t)queue->bytes};
    if (!shmq_queue_lives(&self->core, index)) {
        const int64_t nothing[] = {0, 0, 0, SHMQ_NONE, 0, 0}; /* what was read may be of the entry's next queue */
        return row_new(self->state, ROW_QUEUE, nothing, -1, NULL);
    }
    return row_new(self->state, ROW_QUEUE, numbers, -1, NULL);
}

static PyObject *tables_queue_index(PyStore *self, PyObject *args)
{
    unsigned int topic, queue_id;
    if (!PyArg_ParseTuple(args, "II:queue_index", &topic, &queue_id) || !store_check(self) ||
        !topic_check(self, topic)) {
        return NULL;
    }
    uint32_t queue = shmq_topic_queue(&self->core, topic, queue_id);
    if (queue == SHMQ_NONE) {
        return core_raise(self->state, SHMQ_NO_QUEUE, "topic index %u has no queue %u", topic, queue_id);
    }
    return PyLong_FromUnsignedLong(queue);
}

static PyObject *tables_set_store_host(PyStorePart *part, PyObject *args)
{
    PyStore *self = part->store;
    Py_buffer host;
    if (!PyArg_ParseTuple(args, "y*:set_store_host", &host)) {
        return NULL;
    }
    bool fits = host.len == (Py_ssize_t)sizeof self->core.head->store_host;
    bool open = store_check(self);
    if (open && fits) {
        memcpy(self->core.head->store_host, host.buf, sizeof self->core.head->store_host);
    }
    PyBuffer_Release(&host);
    if (!open) {
        return NULL;
    }
    if (!fits) {
        return core_raise(self->state, SHMQ_BAD_ARGUMENT, "a store host has %u bytes, IPv4 address and port",
                          (unsigned)sizeof self->core.head->store_host);
    }
    Py_RETURN_NONE;
}

static PyObject *tables_clock_advance(PyStorePart *part, PyObject *milliseconds)
{
    unsigned long number = PyLong_AsUnsignedLong(milliseconds);
    if ((number == (unsigned long)-1 && PyErr_Occurred()) || !store_check(part->store)) {
        return NULL;
    }
    shmq_clock_advance(&part->store->core, number);
    Py_RETURN_NONE;
}

PyMethodDef table_methods[] = {
    {"topic_find", (PyCFunction)tables_topic_find, METH_O, "Topic index, -1 when there is none."},
    {"topic", (PyCFunction)tables_topic, METH_VARARGS, "One topic entry as a dict."},
    {"topics", (PyCFunction)tables_topics, METH_VARARGS,
     "Every live topic, its index added; also those that were deleted, until their entries are free."},
    {"topic_marks", (PyCFunction)tables_topic_marks, METH_NOARGS,
     "Of every live topic its index and, in the low half, its version: 64-bit words. What differs has changed."},
    {"queue", (PyCFunction)tables_queue, METH_VARARGS,
     "A QueueEntry: what the queue table says of one queue."},
    {"queue_index", (PyCFunction)tables_queue_index, METH_VARARGS, "Queue index of one queue id of a topic."},
    {NULL},
};

PyMethodDef broker_topic_methods[] = {
    {"set_store_host", (PyCFunction)tables_set_store_host, METH_VARARGS,
     "Where records say they are stored, from the next producer on."},
    {"clock_advance", (PyCFunction)tables_clock_advance, METH_O, "Move the broker's clock ahead by milliseconds; for tests."},
    {"topic_put", (PyCFunction)(void (*)(void))tables_topic_put, METH_VARARGS | METH_KEYWORDS,
     "Create or change a topic; returns its index."},
    {"topic_set_flush", (PyCFunction)tables_topic_set_flush, METH_VARARGS,
     "Say when messages of a topic count: 0 as the broker says, 1 once stored, 2 once on disk."},
    {"topic_delete", (PyCFunction)tables_topic_delete, METH_O, "Forget a topic; its records stay until retention."},
    {"set_topic_born", (PyCFunction)tables_set_topic_born, METH_VARARGS,
     "Say from which log position records of that name are this topic's."},
    {NULL},
};
