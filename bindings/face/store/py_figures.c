/* What the metrics ask of units, many at a time: a keeper's round has no time for a call a message. */
#include <string.h>

#include "face/py_core.h"

#define BOUNDS_MAX 32u

static bool bounds_from(struct core_state *state, PyObject *sequence, uint64_t bounds[BOUNDS_MAX], size_t *count)
{
    PyObject *fast = PySequence_Fast(sequence, "bounds are a sequence of numbers");
    if (!fast) {
        return false;
    }
    *count = (size_t)PySequence_Fast_GET_SIZE(fast);
    bool ok = *count <= BOUNDS_MAX;
    if (!ok) {
        core_raise(state, SHMQ_BAD_ARGUMENT, "%zu bounds, at most %u", *count, BOUNDS_MAX);
    }
    for (size_t i = 0; ok && i < *count; i++) {
        bounds[i] = PyLong_AsUnsignedLongLong(PySequence_Fast_GET_ITEM(fast, (Py_ssize_t)i));
        ok = !PyErr_Occurred();
    }
    Py_DECREF(fast);
    return ok;
}

static PyObject *figures_unit_sizes(PyStore *self, PyObject *args)
{
    Py_buffer units;
    PyObject *sequence;
    uint64_t bounds[BOUNDS_MAX], counts[BOUNDS_MAX + 2] = {0};
    size_t bound_count = 0;
    if (!PyArg_ParseTuple(args, "y*O:unit_sizes", &units, &sequence)) {
        return NULL;
    }
    bool ok = bounds_from(self->state, sequence, bounds, &bound_count);
    for (Py_ssize_t at = 0; ok && at + (Py_ssize_t)SHMQ_UNIT_BYTES <= units.len; at += (Py_ssize_t)SHMQ_UNIT_BYTES) {
        struct shmq_unit unit;
        size_t bucket = 0;
        shmq_unit_unpack((const uint8_t *)units.buf + at, &unit);
        while (bucket < bound_count && unit.record_bytes > bounds[bucket]) {
            bucket++;
        }
        counts[bucket]++;
        counts[bound_count + 1] += unit.record_bytes;
    }
    PyBuffer_Release(&units);
    PyObject *list = ok ? PyList_New((Py_ssize_t)bound_count + 2) : NULL;
    for (size_t i = 0; list && i < bound_count + 2; i++) {
        PyObject *number = PyLong_FromUnsignedLongLong(counts[i]);
        if (!number) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, (Py_ssize_t)i, number);
    }
    return list;
}

PyMethodDef figure_methods[] = {
    {"unit_sizes", (PyCFunction)figures_unit_sizes, METH_VARARGS,
     "How many records have up to each bound of bytes, and more; and the sum of their bytes."},
    {NULL},
};
