/* Messages and receipts that did not come through the segments: records of a pull reply, and the answer to a send.
 *
 * A message made here keeps the bytes object it lies in alive instead of a mapped file, and settles through its owner, a
 * Python object with `_ack(message)`, `_nack(message, after)` and `_extend(message, seconds)`.
 *
 *   reply body   record | record | ...        each begins with its own length; nothing stands between them
 *
 * (1) Every record is range-checked by shmq_record_decode before a byte of it is believed. (2) A bytes object does not
 * change, so what was checked stays true.
 */
#include <string.h>

#include "face/py_core.h"

static PyObject *foreign_message(struct core_state *state, PyObject *data, const uint8_t *record,
                                 const struct shmq_view *view, PyObject *owner, PyObject *codec)
{
    PyMessage *message = (PyMessage *)message_new(state, NULL, view, NULL, 0, 0);
    if (message) {
        message->holder = Py_NewRef(data);
        message->record = record;
        message->owner = owner == Py_None ? NULL : Py_NewRef(owner);
        message->codec = codec == Py_None ? NULL : Py_NewRef(codec);
    }
    return (PyObject *)message;
}

static PyObject *core_records_read(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"data", "owner", "codec", "queue_base", NULL};
    struct core_state *state = PyModule_GetState(module);
    PyObject *data, *owner = Py_None, *codec = Py_None;
    unsigned int queue_base = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "S|$OOI:records_read", names, &data, &owner, &codec, &queue_base)) {
        return NULL;
    }
    const uint8_t *at = (const uint8_t *)PyBytes_AS_STRING(data), *end = at + PyBytes_GET_SIZE(data);
    PyObject *messages = PyList_New(0);
    while (messages && at < end) {
        struct shmq_view view;
        enum shmq_status status = shmq_record_decode(at, (size_t)(end - at), &view);
        if (status != SHMQ_OK) {
            core_raise(state, SHMQ_CORRUPT, "no whole, consistent record at byte %zd of a reply of %zd bytes",
                       (Py_ssize_t)(at - (const uint8_t *)PyBytes_AS_STRING(data)), PyBytes_GET_SIZE(data));
            Py_CLEAR(messages);
            break;
        }
        shmq_view_show_origin(&view);
        view.queue_id += queue_base;
        PyObject *message = foreign_message(state, data, at, &view, owner, codec);
        if (!message || PyList_Append(messages, message) < 0) {
            Py_CLEAR(messages);
        }
        Py_XDECREF(message);
        at += view.record_bytes;
    }
    return messages;
}

static PyObject *core_message_reopen(PyObject *module, PyObject *value)
{
    struct core_state *state = PyModule_GetState(module);
    if (!Py_IS_TYPE(value, state->message_type) || !((PyMessage *)value)->holder) {
        PyErr_SetString(PyExc_TypeError, "message_reopen() takes a Message of records_read()");
        return NULL;
    }
    ((PyMessage *)value)->settled = false;
    Py_RETURN_NONE;
}

static PyObject *core_receipt_make(PyObject *module, PyObject *args)
{
    struct core_state *state = PyModule_GetState(module);
    PyObject *topic, *message_id, *recall_handle = Py_None;
    unsigned int queue_id;
    unsigned long long queue_offset, log_position, store_ms;
    if (!PyArg_ParseTuple(args, "UIKKKU|O:receipt_make", &topic, &queue_id, &queue_offset, &log_position,
                          &store_ms, &message_id, &recall_handle)) {
        return NULL;
    }
    PyReceipt *self = receipt_blank(state);
    if (!self) {
        return NULL;
    }
    self->topic = Py_NewRef(topic);
    self->message_id = Py_NewRef(message_id);
    self->recall_handle = recall_handle == Py_None ? NULL : Py_NewRef(recall_handle);
    self->queue_id = queue_id;
    self->queue_offset = queue_offset;
    self->log_position = log_position;
    self->store_ms = store_ms;
    return (PyObject *)self;
}

static PyObject *core_receipt_moved(PyObject *module, PyObject *args)
{
    struct core_state *state = PyModule_GetState(module);
    PyReceipt *from;
    PyObject *topic, *recall_handle;
    unsigned int queue_id;
    if (!PyArg_ParseTuple(args, "O!UIO:receipt_moved", state->receipt_type, &from, &topic, &queue_id, &recall_handle)) {
        return NULL;
    }
    PyReceipt *self = receipt_blank(state);
    if (!self) {
        return NULL;
    }
    self->topic = Py_NewRef(topic);
    self->message_id = Py_XNewRef(from->message_id);
    self->recall_handle = recall_handle == Py_None ? NULL : Py_NewRef(recall_handle);
    self->queue_id = queue_id;
    self->queue_offset = from->queue_offset;
    self->log_position = from->log_position;
    self->store_ms = from->store_ms;
    memcpy(self->store_host, from->store_host, sizeof self->store_host);
    return (PyObject *)self;
}

PyMethodDef foreign_functions[] = {
    {"records_read", (PyCFunction)(void (*)(void))core_records_read, METH_VARARGS | METH_KEYWORDS,
     "Messages of a pull reply's body; CORRUPT when a record is not whole."},
    {"message_reopen", core_message_reopen, METH_O, "Let a message of records_read() be settled again."},
    {"receipt_moved", core_receipt_moved, METH_VARARGS, "A receipt that says another topic and queue, and a recall handle."},
    {"receipt_make", core_receipt_make, METH_VARARGS, "A receipt of what another host has stored."},
    {NULL},
};
