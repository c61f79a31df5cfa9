/* KeeperStore: the flush, the thread that keeps the log flushed, and the durable end.
 *
 * keep_flushed() is one stretch of that thread (core/log/flusher.c). It runs without the GIL, so that a keeper that writes
 * units in Python never stands between two flushes; what it counted goes back as numbers, for counters live in Python's
 * hands.
 */
#include "face/store/py_store.h"

#define BOUNDS_MAX 32

static bool number_from(PyObject *value, uint64_t *out)
{
    *out = PyLong_AsUnsignedLongLong(value);
    return *out != (uint64_t)-1 || !PyErr_Occurred();
}

static PyObject *keeper_flush(PyStorePart *part, PyObject *unused)
{
    PyStore *self = part->store;
    (void)unused;
    if (!store_check(self)) {
        return NULL;
    }
    uint64_t durable_end = 0;
    enum shmq_status status;
    ON_LANE(self, status, shmq_flush(&lane->core, &durable_end));
    if (status == FACE_ERROR) {
        return NULL;
    }
    if (status != SHMQ_OK) {
        return core_raise_status(self->state, status, "flushing the log");
    }
    return PyLong_FromUnsignedLongLong(durable_end);
}

static PyObject *keeper_beat(PyStorePart *part, PyObject *unused)
{
    PyStore *self = part->store;
    (void)unused;
    if (!store_check(self)) {
        return NULL;
    }
    atomic_store_explicit(&self->core.log->keeper_beat_ns, self->core.io->monotonic_ns(), memory_order_release);
    Py_RETURN_NONE;
}

static bool bounds_from(PyObject *bounds, uint64_t *out, uint32_t *count)
{
    if (!PyTuple_CheckExact(bounds) || PyTuple_GET_SIZE(bounds) > BOUNDS_MAX) {
        PyErr_Format(PyExc_TypeError, "bounds must be a tuple of at most %d numbers", BOUNDS_MAX);
        return false;
    }
    *count = (uint32_t)PyTuple_GET_SIZE(bounds);
    for (uint32_t i = 0; i < *count; i++) {
        if (!number_from(PyTuple_GET_ITEM(bounds, i), &out[i])) {
            return false;
        }
    }
    return true;
}

static PyObject *counts_tuple(const uint64_t *counts, uint32_t count)
{
    PyObject *tuple = PyTuple_New(count);
    for (uint32_t i = 0; tuple && i < count; i++) {
        PyObject *number = PyLong_FromUnsignedLongLong(counts[i]);
        if (!number) {
            Py_CLEAR(tuple);
            break;
        }
        PyTuple_SET_ITEM(tuple, i, number);
    }
    return tuple;
}

static PyObject *keeper_keep_flushed(PyStorePart *part, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"seconds", "interval", "bounds", NULL};
    PyStore *self = part->store;
    PyObject *interval = Py_None, *bounds = NULL;
    double seconds, pause = 0.0;
    uint64_t limits[BOUNDS_MAX], counts[BOUNDS_MAX + 2] = {0};
    uint32_t bound_count = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "d|$OO:keep_flushed", names, &seconds, &interval, &bounds) ||
        !seconds_from(self->state, interval, "interval", &pause) ||
        (bounds && !bounds_from(bounds, limits, &bound_count)) || !store_check(self)) {
        return NULL;
    }
    struct shmq_flusher flusher = {.always = interval == Py_None,
                                   .interval_ns = (uint64_t)(pause * 1e9),
                                   .due_ns = self->flush_due_ns,
                                   .errands_seen = self->errands_seen,
                                   .bounds = limits,
                                   .bound_count = bound_count,
                                   .counts = counts};
    const uint64_t until = deadline_after(self, seconds);
    enum shmq_status status;
    ON_LANE(self, status, shmq_flusher_work(&lane->core, &flusher, until));
    if (status == FACE_ERROR) {
        return NULL;
    }
    const bool rung = flusher.errands_seen != self->errands_seen;
    self->errands_seen = flusher.errands_seen;
    self->flush_due_ns = flusher.due_ns;
    if (status != SHMQ_OK) {
        return core_raise_status(self->state, status, "flushing the log");
    }
    if (PyErr_CheckSignals() < 0) {
        return NULL;
    }
    PyObject *counted = counts_tuple(counts, flusher.began_ms ? bound_count + 2 : 0);
    return counted ? Py_BuildValue("(NKN)", PyBool_FromLong(rung), (unsigned long long)flusher.began_ms, counted)
                   : NULL;
}

static PyObject *keeper_durable_follow(PyStorePart *part, PyObject *args)
{
    PyStore *self = part->store;
    unsigned long long position;
    double seconds;
    if (!PyArg_ParseTuple(args, "Kd:durable_follow", &position, &seconds) || !store_check(self)) {
        return NULL;
    }
    const uint64_t deadline = deadline_after(self, seconds);
    enum shmq_status status;
    store_user_enter(self);
    Py_BEGIN_ALLOW_THREADS
    status = shmq_durable_follow(&self->core, position, deadline);
    Py_END_ALLOW_THREADS
    store_user_leave(self);
    return PyBool_FromLong(status == SHMQ_OK);
}

PyMethodDef flush_methods[] = {
    {"flush", (PyCFunction)keeper_flush, METH_NOARGS, "fdatasync what is dirty; returns the durable end."},
    {"keeper_beat", (PyCFunction)keeper_beat, METH_NOARGS, "Say that the keeper is alive."},
    {"keep_flushed", (PyCFunction)(void (*)(void))keeper_keep_flushed, METH_VARARGS | METH_KEYWORDS,
     "Beat, and flush what is wanted, until an errand is rung for or the time passes."},
    {"durable_follow", (PyCFunction)keeper_durable_follow, METH_VARARGS,
     "Sleep until the durable end is above a position (True) or the time passes."},
    {NULL},
};
