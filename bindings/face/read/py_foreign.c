/* Messages that did not come through the segments: records of a pull reply.
 *
 * A message made here keeps the bytes object it lies in alive instead of a mapped file, and settles through its owner, a
 * Python object with `_ack(message)`, `_nack(message, after)` and `_extend(message, seconds)`.
 *
 *   reply body   record | record | ...        each begins with its own length; nothing stands between them
 *
 * (1) Every record is range-checked by shmq_record_decode before a byte of it is believed. (2) A bytes object does not
 * change, so what was checked stays true.
 */
#include "face/read/py_read.h"

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
    static char *names[] = {"data", "owner", "codec", "queue_base", "are_retries", NULL};
    struct core_state *state = PyModule_GetState(module);
    PyObject *data, *owner = Py_None, *codec = Py_None;
    unsigned int queue_base = 0;
    int are_retries = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "S|$OOIp:records_read", names, &data, &owner, &codec, &queue_base,
                                     &are_retries)) {
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
        if (are_retries) {
            shmq_view_show_origin(&view);
        }
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

static PyObject *core_messages_keep(PyObject *module, PyObject *args)
{
    struct core_state *state = PyModule_GetState(module);
    PyObject *messages, *kept;
    if (!PyArg_ParseTuple(args, "O!O:messages_keep", &PyList_Type, &messages, &kept)) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(messages); i++) {
        PyObject *message = PyList_GET_ITEM(messages, i);
        if (!Py_IS_TYPE(message, state->message_type)) {
            PyErr_SetString(PyExc_TypeError, "messages_keep() takes a list of Messages");
            return NULL;
        }
        Py_XSETREF(((PyMessage *)message)->kept, kept == Py_None ? NULL : Py_NewRef(kept));
    }
    Py_RETURN_NONE;
}

PyMethodDef foreign_functions[] = {
    {"records_read", (PyCFunction)(void (*)(void))core_records_read, METH_VARARGS | METH_KEYWORDS,
     "Messages of a pull reply's body; CORRUPT when a record is not whole."},
    {"message_reopen", core_message_reopen, METH_O, "Let a message of records_read() be settled again."},
    {"messages_keep", core_messages_keep, METH_VARARGS, "Let an object live as long as these messages; None: no longer."},
    {NULL},
};
