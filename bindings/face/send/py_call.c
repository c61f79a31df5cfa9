/* Reading the arguments of send, send_oneway, send_batch and reserve, and a body of any buffer type. */
#include <string.h>

#include "face/send/py_send.h"

static int name_index(struct core_state *state, PyObject *name, PyObject *second)
{
    for (int i = 0; i < CALL_COUNT; i++) {
        if (name == (i == CALL_SECOND ? second : state->call_names[i])) {
            return i;
        }
    }
    for (int i = 0; i < CALL_COUNT; i++) { /* a name made at run time need not be interned */
        if (PyUnicode_Compare(name, i == CALL_SECOND ? second : state->call_names[i]) == 0) {
            return i;
        }
    }
    return -1;
}

bool call_parse(struct core_state *state, const char *method, PyObject *second, uint32_t allowed, PyObject *const *args,
                Py_ssize_t nargs, PyObject *kwnames, PyObject **values, bool *unknown)
{
    if (nargs > 2) {
        PyErr_Format(PyExc_TypeError, "%s() takes topic and %U by position, the rest by name (%zd given)", method,
                     second, nargs);
        return false;
    }
    memset(values, 0, CALL_COUNT * sizeof *values);
    for (Py_ssize_t i = 0; i < nargs; i++) {
        values[i] = args[i];
    }
    for (Py_ssize_t i = 0; kwnames && i < PyTuple_GET_SIZE(kwnames); i++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, i);
        int index = name_index(state, name, second);
        if (index < 0 && unknown) {
            *unknown = true;
            return false;
        }
        if (index < 0 || !(allowed >> index & 1)) {
            PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'", method, name);
            return false;
        }
        if (values[index]) {
            PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument '%U'", method, name);
            return false;
        }
        values[index] = args[nargs + i];
    }
    for (int i = CALL_TAG; i < CALL_COUNT; i++) {
        if (values[i] == Py_None) {
            values[i] = NULL;
        }
    }
    if (values[CALL_TOPIC] && values[CALL_SECOND]) {
        return true;
    }
    PyErr_Format(PyExc_TypeError, "%s() missing required argument '%U'", method,
                 values[CALL_TOPIC] ? second : state->call_names[CALL_TOPIC]);
    return false;
}

static bool is_of_arguments(void) /* ValueError: our own for an argument outside its range is one, too */
{
    return PyErr_ExceptionMatches(PyExc_TypeError) || PyErr_ExceptionMatches(PyExc_AttributeError) ||
           PyErr_ExceptionMatches(PyExc_OverflowError) || PyErr_ExceptionMatches(PyExc_ValueError) ||
           PyErr_ExceptionMatches(PyExc_BufferError);
}

static PyObject *call_named(PyObject *const names[2], PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *named = PyDict_New();
    bool ok = named;
    for (Py_ssize_t i = 0; ok && i < nargs && i < 2; i++) {
        ok = PyDict_SetItem(named, names[i], args[i]) == 0;
    }
    for (Py_ssize_t i = 0; ok && kwnames && i < PyTuple_GET_SIZE(kwnames); i++) {
        ok = PyDict_SetItem(named, PyTuple_GET_ITEM(kwnames, i), args[nargs + i]) == 0;
    }
    if (!ok) {
        Py_CLEAR(named);
    }
    return named;
}

PyObject *call_explain(PyProducer *self, PyObject *second_name, PyObject *const *args, Py_ssize_t nargs,
                       PyObject *kwnames)
{
    if (!self->explain || !is_of_arguments()) {
        return NULL;
    }
    PyObject *const names[2] = {self->state->call_names[CALL_TOPIC], second_name};
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *named = call_named(names, args, nargs, kwnames);
    PyErr_NormalizeException(&type, &value, &trace);
    PyObject *own = value && !trace ? value : Py_None; /* what Python code has raised has a trace */
    PyObject *error = named ? PyObject_CallFunctionObjArgs(self->explain, named, own, NULL) : NULL;
    Py_XDECREF(named);
    if (error && PyExceptionInstance_Check(error)) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(trace);
    } else { /* nothing to add; what failed inside the explanation is of no interest */
        PyErr_Restore(type, value, trace);
    }
    Py_XDECREF(error);
    return NULL;
}

PyObject *call_refused(PyProducer *self, const char *method, PyObject *const *args, Py_ssize_t nargs,
                       PyObject *kwnames)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception)) {
        return NULL;
    }
    PyObject *type, *error, *trace, *answer = NULL;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    PyObject *positional = PyTuple_New(nargs);
    for (Py_ssize_t i = 0; positional && i < nargs; i++) {
        PyTuple_SET_ITEM(positional, i, Py_NewRef(args[i]));
    }
    PyObject *named = positional ? call_named(NULL, args + nargs, 0, kwnames) : NULL;
    PyObject *found = named ? PyObject_CallFunction(self->refused, "sOOO", method, error, positional, named) : NULL;
    Py_XDECREF(positional);
    Py_XDECREF(named);
    if (found == Py_None) { /* not for it: the error is as it was */
        PyErr_Restore(type, error, trace);
    } else {
        answer = found && PyTuple_Check(found) && PyTuple_GET_SIZE(found) == 1 ? Py_NewRef(PyTuple_GET_ITEM(found, 0)) : NULL;
        if (found && !answer) {
            PyErr_SetString(PyExc_TypeError, "refused= returns None, or a tuple of what the method returns");
        }
        Py_DECREF(type);
        Py_XDECREF(error);
        Py_XDECREF(trace);
    }
    Py_XDECREF(found);
    return answer;
}

bool body_open(struct core_state *state, PyObject *body, struct body_buffer *out)
{
    out->held = false;
    if (PyBytes_CheckExact(body)) {
        out->data = PyBytes_AS_STRING(body);
        out->bytes = (size_t)PyBytes_GET_SIZE(body);
    } else {
        if (PyUnicode_Check(body)) {
            PyErr_SetString(PyExc_TypeError, "a body is bytes, not str; did you mean body=text.encode()?");
            return false;
        }
        if (!PyObject_CheckBuffer(body)) {
            PyErr_Format(PyExc_TypeError, "a body is bytes, not %.100s; did you mean body=json.dumps(value).encode(), "
                         "or a typed topic: mq.topic(name, type)?", Py_TYPE(body)->tp_name);
            return false;
        }
        if (PyObject_GetBuffer(body, &out->buffer, PyBUF_SIMPLE) < 0) {
            return false;
        }
        out->held = true;
        out->data = out->buffer.len ? out->buffer.buf : "";
        out->bytes = (size_t)out->buffer.len;
    }
    if (out->bytes <= SHMQ_BODY_BYTES_MAX) {
        return true;
    }
    body_close(out);
    core_raise(state, SHMQ_TOO_LARGE, "a body of %zu bytes is longer than %u", out->bytes, SHMQ_BODY_BYTES_MAX);
    return false;
}
