/* Reader: the Python face of the cursors. Assigning, seeking, acknowledging; waiting is in py_poll.c. */
#include <errno.h>
#include <string.h>

#include "face/read/py_read.h"

/* ---- queues ---------------------------------------------------------------------------------------- */
static struct shmq_cursor *cursor_from(PyReader *self, PyObject *value)
{
    if (!reader_check(self)) {
        return NULL;
    }
    unsigned long queue = PyLong_AsUnsignedLong(value);
    if (queue == (unsigned long)-1 && PyErr_Occurred()) {
        return NULL;
    }
    struct shmq_cursor *cursor = queue < SHMQ_NONE ? shmq_reader_find(&self->core, (uint32_t)queue) : NULL;
    if (!cursor) {
        core_raise(self->state, SHMQ_NO_QUEUE, "queue index %lu is not assigned to this reader", queue);
    }
    return cursor;
}

static PyObject *reader_assign(PyReader *self, PyObject *args)
{
    PyObject *topic;
    unsigned int queue, queue_id;
    unsigned long long offset;
    long long slot = -1; /* as py_offsets.c names them */
    void *old;
    if (!PyArg_ParseTuple(args, "UIIK|L:assign", &topic, &queue, &queue_id, &offset, &slot) || !reader_check(self)) {
        return NULL;
    }
    const uint64_t place = slot == -1 ? SHMQ_NO_PLACE : (uint64_t)slot;
    enum shmq_status status = slot < -1 ? SHMQ_BAD_ARGUMENT
                                        : shmq_reader_assign(&self->core, queue, queue_id, offset, place, topic, &old);
    if (status != SHMQ_OK) {
        return core_raise(self->state, status, "queue index %u (of %u) with offset slot %lld cannot be assigned", queue,
                          self->store->core.sizes.queue_max, slot);
    }
    Py_INCREF(topic);
    Py_XDECREF((PyObject *)old);
    /* Another thread may be waiting for the queues of before. */
    shmq_wake_own(&self->store->core);
    Py_RETURN_NONE;
}

static PyObject *reader_revoke(PyReader *self, PyObject *queue)
{
    struct shmq_cursor *cursor = cursor_from(self, queue);
    if (!cursor) {
        return NULL;
    }
    PyObject *topic = cursor->context;
    shmq_reader_revoke(&self->core, cursor);
    Py_XDECREF(topic);
    Py_RETURN_NONE;
}

static PyObject *reader_assigned(PyReader *self, PyObject *unused)
{
    (void)unused;
    if (!reader_check(self)) {
        return NULL;
    }
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < self->core.cursor_count; i++) {
        const struct shmq_cursor *cursor = self->core.cursors[i];
        if (!cursor->live) {
            continue;
        }
        const int64_t numbers[] = {0, cursor->queue, cursor->queue_id, (int64_t)cursor->next,
                                   (int64_t)cursor->committed};
        PyObject *topic = Py_NewRef((PyObject *)cursor->context);
        if (!row_append(list, row_new(self->state, ROW_ASSIGNMENT, numbers, 0, topic))) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *reader_seek(PyReader *self, PyObject *args)
{
    PyObject *queue;
    unsigned long long offset;
    if (!PyArg_ParseTuple(args, "OK:seek", &queue, &offset)) {
        return NULL;
    }
    struct shmq_cursor *cursor = cursor_from(self, queue);
    if (!cursor) {
        return NULL;
    }
    shmq_reader_seek(&self->core, cursor, offset);
    Py_RETURN_NONE;
}

static PyObject *reader_pause(PyReader *self, PyObject *args)
{
    PyObject *queue;
    int paused;
    if (!PyArg_ParseTuple(args, "Op:pause", &queue, &paused)) {
        return NULL;
    }
    struct shmq_cursor *cursor = cursor_from(self, queue);
    if (!cursor) {
        return NULL;
    }
    cursor->paused = paused;
    if (!paused) {
        shmq_wake_own(&self->store->core);
    }
    Py_RETURN_NONE;
}

static PyObject *reader_requeue(PyReader *self, PyObject *value)
{
    if (!reader_check(self)) {
        return NULL;
    }
    PyMessage *message = (PyMessage *)value;
    if (!Py_IS_TYPE(value, self->state->message_type) || !message->reader || message->reader->store != self->store) {
        PyErr_SetString(PyExc_TypeError, "requeue() takes a Message of a reader of this store");
        return NULL;
    }
    if (PyList_Append(self->requeued, value) < 0) {
        return NULL;
    }
    if (message->reader != self) { /* it still settles with its own reader, but is decoded as ours are */
        Py_XSETREF(message->codec, Py_NewRef(self->codec ? self->codec : Py_None));
    }
    message->requeued = true;
    Py_RETURN_NONE;
}

static PyObject *reader_lag(PyReader *self, PyObject *unused)
{
    (void)unused;
    if (!reader_check(self)) {
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(shmq_reader_lag(&self->core));
}

static PyObject *reader_doubts(PyReader *self, PyObject *unused)
{
    (void)unused;
    return reader_check(self) ? PyBool_FromLong(shmq_reader_doubts(&self->core)) : NULL;
}

static PyObject *reader_wake(PyReader *self, PyObject *unused)
{
    (void)unused;
    self->woken = true;
    if (self->open && self->store->open) {
        shmq_wake_own(&self->store->core);
    }
    Py_RETURN_NONE;
}

static PyObject *reader_stop(PyReader *self, PyObject *unused)
{
    self->stopped = true;
    return reader_wake(self, unused);
}

/* ---- life ------------------------------------------------------------------------------------------ */
static int reader_traverse(PyReader *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->store);
    Py_VISIT(self->owner);
    Py_VISIT(self->codec);
    Py_VISIT(self->where);
    Py_VISIT(self->last);
    Py_VISIT(self->deferred);
    Py_VISIT(self->requeued);
    return 0;
}

static int reader_clear(PyReader *self)
{
    Py_CLEAR(self->owner);
    Py_CLEAR(self->codec);
    Py_CLEAR(self->last);
    Py_CLEAR(self->deferred);
    if (self->requeued) {
        PyList_SetSlice(self->requeued, 0, PyList_GET_SIZE(self->requeued), NULL);
    }
    return 0;
}

/* Forget the queues; their messages stay readable, but no longer move an offset. */
static void cursors_drop(PyReader *self)
{
    for (uint32_t i = 0; i < self->core.cursor_count; i++) {
        Py_CLEAR(self->core.cursors[i]->context);
    }
    shmq_reader_clear(&self->core);
}

static PyObject *reader_close(PyReader *self, PyObject *unused)
{
    if (!self->open) {
        Py_RETURN_NONE;
    }
    bool ok = reader_settle_last(self);
    Py_XDECREF(reader_stop(self, unused));
    self->open = false;
    cursors_drop(self);
    reader_clear(self);
    return ok ? Py_NewRef(Py_None) : NULL;
}

static void reader_dealloc(PyReader *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    reader_clear(self);
    cursors_drop(self);
    Py_XDECREF(self->where);
    Py_XDECREF(self->requeued);
    Py_XDECREF(self->store);
    type->tp_free(self);
    Py_DECREF(type);
}

static bool tags_add(PyReader *self, PyObject *tags)
{
    if (tags == Py_None) {
        return true;
    }
    if (PyUnicode_Check(tags)) {
        PyErr_SetString(PyExc_TypeError, "tags is a sequence of str; did you mean tags=[tag]?");
        return false;
    }
    PyObject *each = PyObject_GetIter(tags), *tag;
    if (!each) {
        return false;
    }
    while ((tag = PyIter_Next(each))) {
        Py_ssize_t bytes;
        const char *text = PyUnicode_AsUTF8AndSize(tag, &bytes);
        if (text && shmq_reader_tag_add(&self->core, text, (size_t)bytes) != SHMQ_OK) {
            PyErr_NoMemory();
        }
        Py_DECREF(tag);
        if (PyErr_Occurred()) {
            break;
        }
    }
    Py_DECREF(each);
    return !PyErr_Occurred();
}

static PyObject *reader_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"store", "owner", "auto_ack", "tags", "codec", "spin_us", "slice", "where", "verify",
                            NULL};
    struct core_state *state = PyType_GetModuleState(type);
    PyObject *store, *owner = Py_None, *tags = Py_None, *codec = Py_None, *where = NULL, *verify = Py_None;
    PyFilter *filter;
    int auto_ack = 0;
    unsigned int spin_us = 20;
    double slice = 0.2;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!|$OpOOIdOO:Reader", names, state->store_type, &store, &owner,
                                     &auto_ack, &tags, &codec, &spin_us, &slice, &where, &verify) ||
        !filter_from(state, where, &filter) ||
        !store_check((PyStore *)store)) {
        return NULL;
    }
    if (!(slice > 0) || slice > 60 || spin_us > 1000000) {
        return core_raise(state, SHMQ_BAD_ARGUMENT, "slice is above 0 and at most 60 seconds, spin_us at most 1000000");
    }
    PyReader *self = (PyReader *)type->tp_alloc(type, 0);
    if (!self) {
        return NULL;
    }
    self->state = state;
    self->store = (PyStore *)Py_NewRef(store);
    self->owner = owner == Py_None ? NULL : Py_NewRef(owner);
    self->codec = codec == Py_None ? NULL : Py_NewRef(codec);
    self->auto_ack = auto_ack;
    self->slice = slice;
    self->spin_us = spin_us;
    self->open = true;
    shmq_reader_init(&self->core, &self->store->core);
    self->core.verify = verify == Py_None ? !self->store->core.head->trusts_reads : verify == Py_True;
    self->where = (PyFilter *)Py_XNewRef((PyObject *)filter);
    self->core.filter = filter ? filter->core : NULL;
    self->requeued = PyList_New(0);
    if (!self->requeued || !tags_add(self, tags)) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static PyMethodDef reader_methods[] = {
    {"assign", (PyCFunction)reader_assign, METH_VARARGS, "Read a queue from an offset."},
    {"revoke", (PyCFunction)reader_revoke, METH_O, "Stop reading a queue."},
    {"assigned", (PyCFunction)reader_assigned, METH_NOARGS,
     "(topic, queue index, queue id, next offset to deliver, lowest unacknowledged offset) of each queue."},
    {"seek", (PyCFunction)reader_seek, METH_VARARGS, "Deliver a queue from another offset."},
    {"pause", (PyCFunction)reader_pause, METH_VARARGS, "Leave a queue out, or take it in again."},
    {"poll", (PyCFunction)(void (*)(void))reader_poll, METH_FASTCALL | METH_KEYWORDS,
     "At most `max` messages; [] when nothing came in time."},
    {"requeue", (PyCFunction)reader_requeue, METH_O, "Deliver a message again, before anything new."},
    {"lag", (PyCFunction)reader_lag, METH_NOARGS,
     "Messages not acknowledged (without an offset slot: not delivered), over all queues."},
    {"doubts", (PyCFunction)reader_doubts, METH_NOARGS,
     "Whether a queue waits for the keeper to mend the unit of its next message."},
    {"wake", (PyCFunction)reader_wake, METH_NOARGS, "End a wait of this reader, from any thread."},
    {"stop", (PyCFunction)reader_stop, METH_NOARGS, "End the iteration and every later poll, from any thread."},
    {"close", (PyCFunction)reader_close, METH_NOARGS, "Stop, and forget the queues."},
    {NULL},
};

static PyType_Slot reader_slots[] = {
    {Py_tp_doc, "Cursors over queues, with acknowledgement windows. Iterating blocks and yields Message."},
    {Py_tp_new, reader_new},
    {Py_tp_dealloc, reader_dealloc},
    {Py_tp_traverse, reader_traverse},
    {Py_tp_clear, reader_clear},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, reader_iternext},
    {Py_tp_methods, reader_methods},
    {0, NULL},
};

PyType_Spec reader_spec = {
    .name = "shmq.bindings._core.Reader",
    .basicsize = sizeof(PyReader),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = reader_slots,
};
