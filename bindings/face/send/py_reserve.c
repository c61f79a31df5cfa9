/* Producer.reserve: open a claim and make the Slot that stands for it. */
#include "face/send/py_send.h"

static bool reserve_bytes(PyProducer *self, PyObject *size, unsigned long *bytes)
{
    PyObject *number = whole_from(size);
    if (!number) {
        return false;
    }
    *bytes = PyLong_AsUnsignedLong(number);
    Py_DECREF(number);
    if (*bytes == (unsigned long)-1 && PyErr_Occurred()) {
        return false;
    }
    if (*bytes <= SHMQ_BODY_BYTES_MAX) {
        return true;
    }
    core_raise(self->state, SHMQ_TOO_LARGE, "a body of %lu bytes is longer than %u", *bytes, SHMQ_BODY_BYTES_MAX);
    return false;
}

#define RESERVE_NAMES                                                                                                  \
    (1u << CALL_TOPIC | 1u << CALL_SECOND | 1u << CALL_TAG | 1u << CALL_KEY | 1u << CALL_PROPERTIES |                  \
     1u << CALL_GROUP | 1u << CALL_QUEUE_ID | 1u << CALL_TIMEOUT)

PyObject *producer_reserve(PyProducer *producer, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    struct core_state *state = producer->state;
    struct call call;
    unsigned long bytes;
    if (!call_parse(state, "reserve", state->name_size, RESERVE_NAMES, args, nargs, kwnames, call.values, NULL) ||
        !reserve_bytes(producer, call.values[CALL_SECOND], &bytes) || !call_route(producer, &call)) {
        return call_explain(producer, state->name_size, args, nargs, kwnames);
    }
    PySlot *self = (PySlot *)state->slot_type->tp_alloc(state->slot_type, 0);
    if (!self) {
        return NULL;
    }
    self->state = state;
    self->producer = (PyProducer *)Py_NewRef(producer);
    self->route = call.route;
    self->tag = Py_XNewRef(call.values[CALL_TAG]);
    self->key = Py_XNewRef(call.values[CALL_KEY]);
    self->group = Py_XNewRef(call.values[CALL_GROUP]);
    self->queue_id = call.queue_id;
    self->timeout = call.timeout;
    self->size = (uint32_t)bytes;
    self->properties = PyDict_New();
    if (!self->properties ||
        (call.values[CALL_PROPERTIES] && PyDict_Update(self->properties, call.values[CALL_PROPERTIES]) < 0)) {
        Py_DECREF(self);
        return call_explain(producer, state->name_size, args, nargs, kwnames);
    }
    /* Room for any properties: what commit does not need is not used up, since the log end moves by the record's size.
     */
    uint32_t tail = call.route->name_bytes + SHMQ_PROPERTIES_BYTES_MAX + 64;
    PyStore *store = producer->store;
    enum shmq_status status =
        claim_open(store, call.queue, self->size, tail, deadline_after(store, call.timeout), &self->claim);
    self->open = status == SHMQ_OK;
    if (self->open) {
        store_user_enter(store); /* until it is freed: its claim is given back in mapped segments */
        self->uses_store = true;
        return (PyObject *)self;
    }
    core_raise_append(store->state, &store->core, status, call.route->name, call.queue_id, SHMQ_RECORD_BODY_AT + self->size + tail,
                      call.timeout);
    Py_DECREF(self);
    return NULL;
}
