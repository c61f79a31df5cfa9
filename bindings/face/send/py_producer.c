/* Producer: the type, whose methods are in the files that store what they take. */
#include <string.h>
#include <sys/random.h>

#include "face/send/py_send.h"

static int producer_traverse(PyProducer *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->store);
    Py_VISIT(self->resolve);
    Py_VISIT(self->special);
    Py_VISIT(self->explain);
    Py_VISIT(self->refused);
    return 0;
}

static int producer_clear(PyProducer *self)
{
    Py_CLEAR(self->resolve);
    Py_CLEAR(self->special);
    Py_CLEAR(self->explain);
    Py_CLEAR(self->refused);
    return 0;
}

static void producer_dealloc(PyProducer *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    producer_clear(self);
    for (uint32_t i = 0; i < self->route_count; i++) {
        route_free(self->route_list[i]);
    }
    PyMem_Free(self->route_list);
    Py_XDECREF(self->routes);
    Py_XDECREF(self->store);
    type->tp_free(self);
    Py_DECREF(type);
}

static bool is_callable_or_none(PyObject *given, const char *what)
{
    if (given && given != Py_None && !PyCallable_Check(given)) {
        PyErr_Format(PyExc_TypeError, "%s, or None", what);
        return false;
    }
    return true;
}

static PyObject *callable_of(PyObject *given)
{
    return given && given != Py_None ? Py_NewRef(given) : NULL;
}

static PyObject *producer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"store", "resolve", "timeout", "wait_durable", "special", "explain", "refused", NULL};
    struct core_state *state = PyType_GetModuleState(type);
    PyObject *store, *resolve = NULL, *timeout = NULL, *special = NULL, *explain = NULL, *refused = NULL;
    double seconds = 3.0;
    int wait_durable = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!|$OOpOOO:Producer", names, state->store_type, &store, &resolve,
                                     &timeout, &wait_durable, &special, &explain, &refused) ||
        !seconds_from(state, timeout, "timeout", &seconds) || !store_check_writable((PyStore *)store)) {
        return NULL;
    }
    if (!resolve || !PyCallable_Check(resolve)) {
        PyErr_SetString(PyExc_TypeError, "Producer() needs resolve=, a callable from topic to topic index");
        return NULL;
    }
    if (!is_callable_or_none(special, "special= is a callable of topic, body, a dict of keywords and whether it is one-way") ||
        !is_callable_or_none(explain, "explain= is a callable of a dict of all arguments and the error") ||
        !is_callable_or_none(refused, "refused= is a callable of a method's name, the error, and both kinds of arguments")) {
        return NULL;
    }
    PyProducer *self = (PyProducer *)type->tp_alloc(type, 0);
    if (!self) {
        return NULL;
    }
    self->state = state;
    self->store = (PyStore *)Py_NewRef(store);
    self->resolve = Py_NewRef(resolve);
    self->special = callable_of(special);
    self->explain = callable_of(explain);
    self->refused = callable_of(refused);
    self->timeout = seconds;
    self->wait_durable = wait_durable;
    memcpy(self->blank.store_host, self->store->core.head->store_host, sizeof self->blank.store_host);
    memcpy(self->blank.born_host, self->store->core.head->store_host, 4); /* a local client has no port */
    if (getrandom(&self->seed, sizeof self->seed, GRND_NONBLOCK) != (ssize_t)sizeof self->seed) {
        self->seed = (uint32_t)self->store->core.io->monotonic_ns();
    }
    self->routes = PyDict_New();
    if (!self->routes) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

/* Every call runs code of the caller's (a buffer, a mapping, resolve) or waits without the GIL, and meanwhile the store
 * may be closed: what it has begun it ends in segments that are still mapped.
 */
#define KEPT_MAPPED(method)                                                                                            \
    static PyObject *method##_mapped(PyProducer *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)      \
    {                                                                                                                  \
        store_user_enter(self->store);                                                                                 \
        PyObject *answer = method(self, args, nargs, kwnames);                                                         \
        store_user_leave(self->store);                                                                                 \
        return answer;                                                                                                 \
    }

KEPT_MAPPED(producer_append_record)
KEPT_MAPPED(producer_append_batch)
KEPT_MAPPED(producer_append_encoded_batch)

/* The same of a send, which refused() may carry out elsewhere: in other segments, so this call is over before. */
#define SENDS(method, name)                                                                                            \
    static PyObject *method##_mapped(PyProducer *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)      \
    {                                                                                                                  \
        store_user_enter(self->store);                                                                                 \
        PyObject *answer = method(self, args, nargs, kwnames);                                                         \
        store_user_leave(self->store);                                                                                 \
        return answer || !self->refused ? answer : call_refused(self, name, args, nargs, kwnames);                     \
    }

SENDS(producer_send, "send")
SENDS(producer_send_oneway, "send_oneway")
SENDS(producer_send_batch, "send_batch")
SENDS(producer_reserve, "reserve")

static PyObject *producer_append_together_mapped(PyProducer *self, PyObject *args)
{
    store_user_enter(self->store);
    PyObject *answer = producer_append_together(self, args);
    store_user_leave(self->store);
    return answer;
}

static PyMethodDef producer_methods[] = {
    {"send", (PyCFunction)(void (*)(void))producer_send_mapped, METH_FASTCALL | METH_KEYWORDS,
     "send($self, topic, body, *, tag=None, key=None, keys=None, properties=None, message_group=None, queue_id=None,\n"
     "flag=0, timeout=None, delay_level=None, delay=None, deliver_at=None, tag_code=None)\n--\n\n"
     "Store one message and say where.\n\n>>> receipt = mq.send(\"orders\", b\"42 apples\", tag=\"fruit\")"},
    {"send_oneway", (PyCFunction)(void (*)(void))producer_send_oneway_mapped, METH_FASTCALL | METH_KEYWORDS,
     "send_oneway($self, topic, body, *, tag=None, key=None, keys=None, properties=None, message_group=None, queue_id=None,\n"
     "flag=0, timeout=None, delay_level=None, delay=None, deliver_at=None, tag_code=None)\n--\n\n"
     "As send, without a receipt and without waiting for durability.\n\n>>> mq.send_oneway(\"orders\", b\"tick\")"},
    {"send_batch", (PyCFunction)(void (*)(void))producer_send_batch_mapped, METH_FASTCALL | METH_KEYWORDS,
     "send_batch($self, topic, bodies, *, tag=None, keys=None, properties=None, message_group=None, queue_id=None,\n"
     "timeout=None)\n--\n\n"
     "All bodies into one queue, in order.\n\n>>> receipts = mq.send_batch(\"orders\", [b\"a\", b\"b\"])"},
    {"append", (PyCFunction)(void (*)(void))producer_append_record_mapped, METH_FASTCALL | METH_KEYWORDS,
     "Store one record whose every field the caller decides."},
    {"append_batch", (PyCFunction)(void (*)(void))producer_append_batch_mapped, METH_FASTCALL | METH_KEYWORDS,
     "Store (body, properties, flag) tuples in one queue, in order."},
    {"append_encoded_batch", (PyCFunction)(void (*)(void))producer_append_encoded_batch_mapped, METH_FASTCALL | METH_KEYWORDS,
     "Store the messages in the body of a SEND_BATCH_MESSAGE request in one queue, in order."},
    {"append_together", (PyCFunction)producer_append_together_mapped, METH_VARARGS,
     "Store records of different queues, all or none."},
    {"reserve", (PyCFunction)(void (*)(void))producer_reserve_mapped, METH_FASTCALL | METH_KEYWORDS,
     "reserve($self, topic, size, *, tag=None, key=None, properties=None, message_group=None, queue_id=None,\n"
     "timeout=None)\n--\n\n"
     "Room for a body inside the log itself.\n\n"
     ">>> with mq.reserve(\"frames\", 3) as slot:\n...     slot.view[:] = b\"abc\""},
    {NULL},
};

static PyType_Slot producer_slots[] = {
    {Py_tp_doc, "Appends. `resolve(topic)` is called once per unknown topic and returns a topic index or raises."},
    {Py_tp_new, producer_new},
    {Py_tp_dealloc, producer_dealloc},
    {Py_tp_traverse, producer_traverse},
    {Py_tp_clear, producer_clear},
    {Py_tp_methods, producer_methods},
    {0, NULL},
};

PyType_Spec producer_spec = {
    .name = "shmq.bindings._core.Producer",
    .basicsize = sizeof(PyProducer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = producer_slots,
};
