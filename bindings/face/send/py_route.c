/* Routes: what a producer knows of topics, and which queue a message goes to.
 *
 * A route is a private copy of one topic entry. It is believed while the entry's version is the one it was read under
 * and the entry is live; otherwise it is read again, and if the entry is gone the topic is resolved again.
 */
#include <string.h>

#include "face/send/py_send.h"

#define ROUTE_READ_TRIES 1000
#define PERM_WRITE 2u

static inline bool route_holds(const PyProducer *self, const struct route *route)
{
    const struct shmq_store *core = &self->store->core;
    struct shmq_topic *entry = &core->topics[route->index & core->topic_mask]; /* another name is another version */
    return atomic_load_explicit(&entry->version, memory_order_acquire) == route->version &&
           atomic_load_explicit(&entry->state, memory_order_relaxed) == SHMQ_TOPIC_LIVE;
}

/* Copy the topic entry; false without an exception when it is not live or not of this name. */
static bool route_read(PyProducer *self, struct route *route, uint32_t index)
{
    struct shmq_store *core = &self->store->core;
    struct shmq_topic *entry = &core->topics[index & core->topic_mask];
    uint32_t version, read_queues, write_queues, perm;
    bool same;
    int tries = 0;
    do {
        version = atomic_load_explicit(&entry->version, memory_order_acquire);
        read_queues = entry->read_queues;
        write_queues = entry->write_queues;
        perm = entry->perm;
        same = atomic_load_explicit(&entry->state, memory_order_acquire) == SHMQ_TOPIC_LIVE &&
               entry->name_bytes == route->name_bytes && !memcmp(entry->name, route->name, route->name_bytes);
        atomic_thread_fence(memory_order_acquire);
    } while (atomic_load_explicit(&entry->version, memory_order_relaxed) != version && ++tries < ROUTE_READ_TRIES);
    if (!same || tries == ROUTE_READ_TRIES || !shmq_topic_holds(core, index)) {
        return false;
    }
    uint32_t queue_count = read_queues > write_queues ? read_queues : write_queues;
    if (queue_count > core->sizes.queue_max) {
        core_raise(self->state, SHMQ_CORRUPT, "topic '%s' has %u queues, the broker at most %u", route->name,
                   queue_count, core->sizes.queue_max);
        return false;
    }
    uint32_t *queues = PyMem_Malloc((queue_count + 1u) * sizeof *queues);
    if (!queues) {
        PyErr_NoMemory();
        return false;
    }
    for (uint32_t i = 0; i < queue_count; i++) {
        queues[i] = shmq_topic_queue(core, index, i);
        if (queues[i] == SHMQ_NONE) {
            PyMem_Free(queues);
            return false;
        }
    }
    PyMem_Free(route->queues);
    route->queues = queues;
    route->index = index;
    route->version = version;
    route->perm = perm;
    route->write_queues = perm & PERM_WRITE ? write_queues : 0;
    route->queue_count = queue_count;
    return true;
}

static bool route_resolve(PyProducer *self, struct route *route)
{
    PyObject *answer = self->resolve ? PyObject_CallOneArg(self->resolve, route->topic) : NULL;
    if (!answer) {
        if (!PyErr_Occurred()) {
            core_raise(self->state, SHMQ_BAD_ARGUMENT, "the producer is gone");
        }
        return false;
    }
    long index = PyLong_AsLong(answer);
    Py_DECREF(answer);
    if (index == -1 && PyErr_Occurred()) {
        return false;
    }
    /* resolve() ran Python code: the store may be closed by now. */
    if (!store_check(self->store)) {
        return false;
    }
    if (index >= 0 && index < SHMQ_NONE && shmq_topic_place(&self->store->core, (uint32_t)index) &&
        route_read(self, route, (uint32_t)index)) {
        return true;
    }
    if (!PyErr_Occurred()) {
        core_raise(self->state, SHMQ_NO_TOPIC, "topic '%s' was resolved to index %ld, which is not that topic",
                   route->name, index);
    }
    return false;
}

void route_free(struct route *route)
{
    Py_XDECREF(route->topic);
    PyMem_Free(route->queues);
    PyMem_Free(route);
}

static struct route *route_new(PyProducer *self, PyObject *topic)
{
    Py_ssize_t bytes;
    if (!PyUnicode_CheckExact(topic)) {
        PyErr_Format(PyExc_TypeError, "topic must be str, not %.100s", Py_TYPE(topic)->tp_name);
        return NULL;
    }
    const char *name = PyUnicode_AsUTF8AndSize(topic, &bytes);
    if (!name) {
        return NULL;
    }
    if (!bytes || bytes > SHMQ_TOPIC_BYTES_MAX) {
        return core_raise(self->state, SHMQ_BAD_ARGUMENT, "topic %R has %zd bytes; 1 to %u are possible", topic, bytes,
                          SHMQ_TOPIC_BYTES_MAX),
               NULL;
    }
    struct route *route = PyMem_Calloc(1, sizeof *route);
    if (!route) {
        return (struct route *)PyErr_NoMemory();
    }
    route->topic = Py_NewRef(topic);
    route->name = name;
    route->name_bytes = (uint32_t)bytes;
    self->seed = self->seed * 1664525u + 1013904223u;
    if (route_resolve(self, route)) {
        route->turn = (self->seed >> 8) % (route->write_queues + 1u); /* producers that start together spread out */
        return route;
    }
    route_free(route);
    return NULL;
}

static struct route *route_add(PyProducer *self, PyObject *topic)
{
    struct route *route = route_new(self, topic);
    if (!route) {
        return NULL;
    }
    struct route **list = PyMem_Realloc(self->route_list, (self->route_count + 1) * sizeof *list);
    if (list) {
        self->route_list = list;
    }
    PyObject *number = list ? PyLong_FromUnsignedLong(self->route_count) : PyErr_NoMemory();
    if (!number || PyDict_SetItem(self->routes, topic, number) < 0) {
        Py_XDECREF(number);
        route_free(route);
        return NULL;
    }
    Py_DECREF(number);
    list[self->route_count++] = route;
    return route;
}

struct route *producer_route(PyProducer *self, PyObject *topic)
{
    struct route *route = self->route_last;
    if (!route || route->topic != topic) {
        PyObject *number = PyDict_GetItemWithError(self->routes, topic);
        if (!number && PyErr_Occurred()) {
            return NULL;
        }
        route = number ? self->route_list[PyLong_AsUnsignedLong(number)] : route_add(self, topic);
        if (!route) {
            return NULL;
        }
        self->route_last = route;
    }
    if (route_holds(self, route) || route_read(self, route, route->index)) {
        return route;
    }
    return !PyErr_Occurred() && route_resolve(self, route) ? route : NULL;
}

static bool queue_by_id(PyProducer *self, struct call *call)
{
    PyObject *number = whole_from(call->values[CALL_QUEUE_ID]);
    if (!number) {
        return false;
    }
    unsigned long queue_id = PyLong_AsUnsignedLong(number);
    Py_DECREF(number);
    if (queue_id == (unsigned long)-1 && PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError)) {
            return false;
        }
        PyErr_Clear();
    }
    if (queue_id < call->route->write_queues) {
        call->queue_id = (uint32_t)queue_id;
        return true;
    }
    core_raise(self->state, SHMQ_NO_QUEUE, "topic '%s' has %u write queues, so queue_id is 0 to %u, not %R",
               call->route->name, call->route->write_queues, call->route->write_queues - 1,
               call->values[CALL_QUEUE_ID]);
    return false;
}

bool call_route(PyProducer *self, struct call *call)
{
    if (!store_check(self->store)) {
        return false;
    }
    struct route *route = call->route = producer_route(self, call->values[CALL_TOPIC]);
    if (!route) {
        return false;
    }
    if (!route->write_queues) {
        core_raise(self->state, SHMQ_NO_QUEUE, "topic '%s' takes no messages: permission %u, %u queues", route->name,
                   route->perm, route->queue_count);
        return false;
    }
    call->timeout = self->timeout;
    if (call->values[CALL_TIMEOUT] &&
        !seconds_from(self->state, call->values[CALL_TIMEOUT], "timeout", &call->timeout)) {
        return false;
    }
    if (call->values[CALL_QUEUE_ID]) {
        if (!queue_by_id(self, call)) {
            return false;
        }
    } else if (call->values[CALL_GROUP]) {
        Py_ssize_t bytes;
        PyObject *value = call->values[CALL_GROUP];
        if (!PyUnicode_Check(value)) {
            PyErr_Format(PyExc_TypeError, "message_group must be str, not %.100s", Py_TYPE(value)->tp_name);
        }
        const char *group = PyUnicode_Check(value) ? PyUnicode_AsUTF8AndSize(value, &bytes) : NULL;
        if (!group) {
            return false;
        }
        call->queue_id = ((uint32_t)shmq_tag_hash(group, (size_t)bytes) & 0x7fffffffu) % route->write_queues;
    } else {
        /* Not a modulo: the count may change under the turn, and a division is the dearest instruction here. */
        call->queue_id = ++route->turn < route->write_queues ? route->turn : (route->turn = 0);
    }
    call->queue = route->queues[call->queue_id];
    return true;
}
