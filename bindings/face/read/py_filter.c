/* Filter: a loaded filter program as a Python object, for readers, pulls and single messages. */
#include <string.h>

#include "face/read/py_read.h"

static PyObject *filter_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"program", NULL};
    struct core_state *state = PyType_GetModuleState(type);
    Py_buffer program;
    const char *reason;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*:Filter", names, &program)) {
        return NULL;
    }
    struct shmq_filter *core = shmq_filter_load(program.buf, (size_t)program.len, &reason);
    PyBuffer_Release(&program);
    if (!core) {
        return reason ? core_raise(state, SHMQ_BAD_ARGUMENT, "this is no filter program: %s", reason)
                      : PyErr_NoMemory();
    }
    PyFilter *self = (PyFilter *)type->tp_alloc(type, 0);
    if (!self) {
        shmq_filter_free(core);
        return NULL;
    }
    self->core = core;
    return (PyObject *)self;
}

static void filter_dealloc(PyFilter *self)
{
    PyTypeObject *type = Py_TYPE(self);
    shmq_filter_free(self->core);
    type->tp_free(self);
    Py_DECREF(type);
}

bool filter_from(struct core_state *state, PyObject *value, PyFilter **out)
{
    *out = NULL;
    if (!value || value == Py_None) {
        return true;
    }
    if (!Py_IS_TYPE(value, state->filter_type)) {
        PyErr_Format(PyExc_TypeError, "where is a Filter or None, not %.100s", Py_TYPE(value)->tp_name);
        return false;
    }
    *out = (PyFilter *)value;
    return true;
}

static PyObject *filter_matches(PyFilter *self, PyObject *value)
{
    struct core_state *state = PyType_GetModuleState(Py_TYPE(self));
    if (Py_IS_TYPE(value, state->message_type)) {
        const struct shmq_view *view = &((PyMessage *)value)->view;
        return PyBool_FromLong(shmq_filter_run(self->core, view->properties, view->properties_bytes) == SHMQ_TRUE);
    }
    Py_buffer text;
    if (PyObject_GetBuffer(value, &text, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    enum shmq_truth truth = shmq_filter_run(self->core, text.buf, (size_t)text.len);
    PyBuffer_Release(&text);
    return PyBool_FromLong(truth == SHMQ_TRUE);
}

static PyMethodDef filter_methods[] = {
    {"matches", (PyCFunction)filter_matches, METH_O, "Whether a Message, or RocketMQ property text, is selected."},
    {NULL},
};

static PyType_Slot filter_slots[] = {
    {Py_tp_doc, "A filter program that was checked; immutable. Any thread may use it."},
    {Py_tp_new, filter_new},
    {Py_tp_dealloc, filter_dealloc},
    {Py_tp_methods, filter_methods},
    {0, NULL},
};

PyType_Spec filter_spec = {
    .name = "shmq.bindings._core.Filter",
    .basicsize = sizeof(PyFilter),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = filter_slots,
};
