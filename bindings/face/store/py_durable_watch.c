/* DurableWatch: core/log/durable_watch.c for an event loop. The descriptor is the caller's; the store stays mapped as long
 * as the watch is open.
 */
#include <errno.h>

#include "core/log/durable_watch.h"
#include "face/store/py_store.h"

typedef struct {
    PyObject_HEAD
    PyStore *store;
    struct shmq_durable_watch core;
    bool open;
} PyDurableWatch;

static PyObject *watch_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"store", "descriptor", "ships", NULL};
    struct core_state *state = PyType_GetModuleState(type);
    PyObject *store;
    int descriptor, ships = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!i|$p:DurableWatch", names, state->store_type, &store, &descriptor,
                                     &ships) ||
        !store_check_writable((PyStore *)store)) {
        return NULL;
    }
    PyDurableWatch *self = (PyDurableWatch *)type->tp_alloc(type, 0);
    if (!self) {
        return NULL;
    }
    self->store = (PyStore *)Py_NewRef(store);
    const int rc = shmq_durable_watch_start(&self->core, &self->store->core, descriptor, ships);
    if (rc != 0) {
        Py_DECREF(self);
        errno = rc;
        return core_raise_status(state, SHMQ_SYSTEM, "starting the thread that waits for the disk");
    }
    store_user_enter(self->store);
    self->open = true;
    return (PyObject *)self;
}

static void watch_end(PyDurableWatch *self)
{
    if (!self->open) {
        return;
    }
    self->open = false;
    Py_BEGIN_ALLOW_THREADS
    shmq_durable_watch_stop(&self->core);
    Py_END_ALLOW_THREADS
    store_user_leave(self->store);
}

static PyObject *watch_want(PyDurableWatch *self, PyObject *value)
{
    const unsigned long long position = PyLong_AsUnsignedLongLong(value);
    if (position == (unsigned long long)-1 && PyErr_Occurred()) {
        return NULL;
    }
    if (self->open) {
        shmq_durable_watch_want(&self->core, position);
    }
    Py_RETURN_NONE;
}

static PyObject *watch_close(PyDurableWatch *self, PyObject *unused)
{
    (void)unused;
    watch_end(self);
    Py_RETURN_NONE;
}

static void watch_dealloc(PyDurableWatch *self)
{
    PyTypeObject *type = Py_TYPE(self);
    watch_end(self);
    Py_XDECREF(self->store);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef watch_methods[] = {
    {"want", (PyCFunction)watch_want, METH_O, "Tell the descriptor when the log is that far."},
    {"close", (PyCFunction)watch_close, METH_NOARGS, "End the thread; it writes nothing afterwards."},
    {NULL},
};

static PyType_Slot watch_slots[] = {
    {Py_tp_doc, "Tells an eventfd when the log is safe, or with ships only long enough, up to the position wanted last."},
    {Py_tp_new, watch_new},
    {Py_tp_dealloc, watch_dealloc},
    {Py_tp_methods, watch_methods},
    {0, NULL},
};

PyType_Spec durable_watch_spec = {
    .name = "shmq.bindings._core.DurableWatch",
    .basicsize = sizeof(PyDurableWatch),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = watch_slots,
};
