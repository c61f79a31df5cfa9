/* Reader.poll and iteration: take what is there, else wait without the GIL, in slices.
 *
 * A slice bounds how long a signal, stop() or a new assignment can go unseen; within it the wait ends at the first
 * message. The wait sees a private copy of queues and offsets, so other threads may assign and take meanwhile.
 *
 *   wake()     poll: [] at once          iterator: asks owner._idle() at once
 *   stop()     poll: []                  iterator: StopIteration
 */
#include <errno.h>
#include <string.h>

#include "face/read/py_read.h"

#define WAIT_QUEUES_ON_STACK 64
#define BEAT_EVERY 64u /* messages between two looks at the clock while messages flow */

static void beat_at(PyReader *self, uint64_t now_ns)
{
    struct shmq_client *client = store_client(self->store);
    if (client) {
        atomic_store_explicit(&client->beat_ns, now_ns, memory_order_relaxed);
    }
}

static void beat(PyReader *self)
{
    beat_at(self, self->store->core.io->monotonic_ns());
}

static void count_received(PyReader *self)
{
    struct shmq_client *client = store_client(self->store);
    if (!client) {
        return;
    }
    uint64_t count = atomic_load_explicit(&client->received, memory_order_relaxed) + 1;
    atomic_store_explicit(&client->received, count, memory_order_relaxed);
    if (count % BEAT_EVERY == 0) {
        beat(self);
    }
}

bool reader_settle_last(PyReader *self)
{
    PyObject *last = self->last;
    if (!last) {
        return true;
    }
    self->last = NULL;
    bool ok = true;
    if (PyList_CheckExact(last)) {
        for (Py_ssize_t i = 0; ok && i < PyList_GET_SIZE(last); i++) {
            ok = message_acknowledge((PyMessage *)PyList_GET_ITEM(last, i));
        }
    } else {
        ok = message_acknowledge((PyMessage *)last);
    }
    Py_DECREF(last);
    return ok;
}

static PyObject *raise_delivery(PyReader *self, enum shmq_status status, const struct shmq_delivery *delivery)
{
    typedef unsigned long long u64;
    if (status == SHMQ_CORRUPT) {
        return damage_raise(self, delivery);
    }
    if (status == SHMQ_GONE) {
        const struct shmq_cursor *cursor = shmq_reader_find(&self->core, delivery->queue);
        u64 first = delivery->queue_offset, next = first + delivery->log_position;
        return core_raise(self->state, status,
                          "topic %S, queue %u: cleaning deleted %llu messages, offsets %llu to %llu, before this group "
                          "had read them; it goes on at offset %llu",
                          (PyObject *)cursor->context, cursor->queue_id, delivery->log_position, first, next - 1, next);
    }
    return core_raise_status(self->state, status, "mapping a log file");
}

/* A message given back that is still ours to deliver. */
static PyObject *take_requeued(PyReader *self)
{
    while (PyList_GET_SIZE(self->requeued)) {
        PyMessage *message = (PyMessage *)Py_NewRef(PyList_GET_ITEM(self->requeued, 0));
        if (PyList_SetSlice(self->requeued, 0, 1, NULL) < 0) {
            Py_DECREF(message);
            return NULL;
        }
        message->requeued = false;
        const struct shmq_reader *core = &message->reader->core;
        if (message->cursor < core->cursor_count && core->cursors[message->cursor]->serial == message->serial) {
            if (message->settled) {
                reader_count_settled(self, -1);
            }
            message->settled = false;
            return (PyObject *)message;
        }
        Py_DECREF(message); /* its queue is read by another member now, which gets it from there */
    }
    return NULL;
}

static PyObject *raise_deferred(PyReader *self)
{
    PyObject *error = self->deferred;
    self->deferred = NULL;
    PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_DECREF(error);
    return NULL;
}

/* Many were filtered out in a row: let other threads and signals have a moment. False: do not go on. */
static bool stretch_end(PyReader *self)
{
    beat(self);
    Py_BEGIN_ALLOW_THREADS
    Py_END_ALLOW_THREADS
    return PyErr_CheckSignals() == 0 && self->open && self->store->open && !self->stopped;
}

/* Whether a message that came out of a retry queue was sent to another topic than the one read here. */
static bool is_stray(PyReader *self, const struct shmq_delivery *delivery)
{
    const struct shmq_cursor *cursor = self->core.cursors[delivery->cursor];
    Py_ssize_t bytes;
    const char *topic = shmq_cursor_retries(cursor) ? PyUnicode_AsUTF8AndSize(cursor->context, &bytes) : NULL;
    if (!topic) {
        PyErr_Clear();
        return false;
    }
    return (size_t)bytes != delivery->view.topic_bytes || memcmp(topic, delivery->view.topic, (size_t)bytes) != 0;
}

/* Let the owner find a reader for it. */
static bool give_stray(PyReader *self, PyObject *message)
{
    PyObject *owner = Py_NewRef(self->owner);
    PyObject *result = PyObject_CallMethodOneArg(owner, self->state->name_stray, message);
    Py_DECREF(owner);
    Py_XDECREF(result);
    return result != NULL;
}

/* The next new message; NULL without an exception when there is none. */
static inline PyObject *take_new(PyReader *self)
{
    struct shmq_delivery delivery;
    for (;;) {
        enum shmq_status status = shmq_reader_next(&self->core, &delivery);
        while (status == SHMQ_WOULD_BLOCK && stretch_end(self)) {
            status = shmq_reader_next(&self->core, &delivery);
        }
        if (status != SHMQ_OK) {
            return status == SHMQ_EMPTY || status == SHMQ_WOULD_BLOCK ? NULL : raise_delivery(self, status, &delivery);
        }
        count_received(self);
        PyObject *message =
            message_new(self->state, self, &delivery.view, delivery.mapping, delivery.cursor, delivery.serial);
        if (!message || !self->owner || !is_stray(self, &delivery)) {
            return message;
        }
        bool given = give_stray(self, message);
        Py_DECREF(message);
        if (!given || !self->open || !self->store->open) {
            return NULL; /* what the owner called may have closed us */
        }
    }
}

/* The next message that is there now; NULL without an exception when there is none. */
static inline PyObject *take(PyReader *self)
{
    if (self->deferred) {
        return raise_deferred(self);
    }
    if (PyList_GET_SIZE(self->requeued)) {
        PyObject *message = take_requeued(self);
        if (message || PyErr_Occurred()) {
            return message;
        }
    }
    return take_new(self);
}

/* Wait until something may be there or deadline_ns. SHMQ_TIMED_OUT: nothing. FACE_ERROR: exception. */
static enum shmq_status wait_once(PyReader *self, uint64_t deadline_ns)
{
    PyStore *store = self->store;
    uint32_t queues_here[WAIT_QUEUES_ON_STACK], *queues = queues_here;
    uint64_t offsets_here[WAIT_QUEUES_ON_STACK], *offsets = offsets_here;
    if (self->core.cursor_count > WAIT_QUEUES_ON_STACK) {
        offsets = PyMem_RawMalloc(self->core.cursor_count * (sizeof *offsets + sizeof *queues));
        if (!offsets) {
            PyErr_NoMemory();
            return FACE_ERROR;
        }
        queues = (uint32_t *)(offsets + self->core.cursor_count);
    }
    uint32_t count = shmq_reader_wait_list(&self->core, queues, offsets);
    uint32_t spin_us = shmq_reader_spin_us(&self->core, self->spin_us);
    uint64_t from_ns = store->core.io->monotonic_ns();
    enum shmq_status status;
    if (shmq_reader_doubts(&self->core) && deadline_ns > from_ns + SHMQ_LOOK_AGAIN_NS) {
        deadline_ns = from_ns + SHMQ_LOOK_AGAIN_NS;
    }
    beat_at(self, from_ns);
    Py_BEGIN_ALLOW_THREADS
    status = shmq_wait(&store->core, queues, offsets, count, spin_us, deadline_ns);
    Py_END_ALLOW_THREADS
    int reason = errno;
    uint64_t waited_ns = store->core.io->monotonic_ns() - from_ns;
    if (offsets != offsets_here) {
        PyMem_RawFree(offsets);
    }
    shmq_reader_waited(&self->core, waited_ns);
    if (PyErr_CheckSignals() < 0) {
        return FACE_ERROR;
    }
    if (status == SHMQ_OK || status == SHMQ_TIMED_OUT) {
        return status;
    }
    errno = reason;
    if (status == SHMQ_BAD_ARGUMENT) {
        core_raise(self->state, status, "waiting needs a client slot; call Store.use_client() first");
    } else {
        core_raise_status(self->state, status, "waiting for messages");
    }
    return FACE_ERROR;
}

static bool keep_last(PyReader *self, PyObject *delivered)
{
    if (!self->auto_ack) {
        return true;
    }
    /* The caller may change a list that it was given. */
    PyObject *last =
        PyList_CheckExact(delivered) ? PyList_GetSlice(delivered, 0, PyList_GET_SIZE(delivered)) : Py_NewRef(delivered);
    Py_XSETREF(self->last, last);
    return last != NULL;
}

/* ---- poll ------------------------------------------------------------------------------------------ */
static bool poll_parse(PyReader *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, Py_ssize_t *most,
                       double *timeout)
{
    PyObject *values[2] = {nargs > 0 ? args[0] : NULL, nargs > 1 ? args[1] : NULL};
    if (nargs > 2) {
        PyErr_SetString(PyExc_TypeError, "poll() takes max and timeout");
        return false;
    }
    for (Py_ssize_t i = 0; kwnames && i < PyTuple_GET_SIZE(kwnames); i++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, i);
        int index = PyUnicode_CompareWithASCIIString(name, "max") == 0       ? 0
                    : PyUnicode_CompareWithASCIIString(name, "timeout") == 0 ? 1
                                                                             : -1;
        if (index < 0 || values[index]) {
            PyErr_Format(PyExc_TypeError, "poll() got an unexpected or repeated argument '%U'", name);
            return false;
        }
        values[index] = args[nargs + i];
    }
    *most = values[0] ? PyLong_AsSsize_t(values[0]) : 32;
    *timeout = 0;
    if (*most == -1 && PyErr_Occurred()) {
        return false;
    }
    if (*most < 1) {
        core_raise(self->state, SHMQ_BAD_ARGUMENT, "poll(max=%zd): at least 1", *most);
        return false;
    }
    return seconds_from(self->state, values[1], "timeout", timeout);
}

/* Append what is there; false with an exception. One that comes behind messages waits, or they would be lost. */
static bool poll_fill(PyReader *self, PyObject *list, Py_ssize_t most)
{
    while (PyList_GET_SIZE(list) < most) {
        PyObject *message = take(self);
        if (!message) {
            break;
        }
        int failed = PyList_Append(list, message);
        Py_DECREF(message);
        if (failed) {
            return false;
        }
    }
    if (!PyErr_Occurred()) {
        return true;
    }
    if (!PyList_GET_SIZE(list)) {
        return false;
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    Py_XSETREF(self->deferred, value);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return true;
}

static PyObject *poll(PyReader *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    Py_ssize_t most;
    double timeout;
    if (!poll_parse(self, args, nargs, kwnames, &most, &timeout) || !reader_check(self) || !reader_settle_last(self)) {
        return NULL;
    }
    PyObject *list = PyList_New(0);
    if (!list) {
        return NULL;
    }
    uint64_t deadline = 0;
    while (!self->stopped) {
        if (!poll_fill(self, list, most)) {
            goto failed;
        }
        if (PyList_GET_SIZE(list) || timeout <= 0 || self->woken) {
            break;
        }
        if (!reader_check(self)) {
            goto failed; /* another thread closed it between two stretches */
        }
        uint64_t now = self->store->core.io->monotonic_ns();
        deadline = deadline ? deadline : deadline_after(self->store, timeout);
        if (now >= deadline) {
            break;
        }
        uint64_t slice = deadline_after(self->store, self->slice);
        if (wait_once(self, slice < deadline ? slice : deadline) == FACE_ERROR || !reader_check(self)) {
            goto failed;
        }
    }
    self->woken = false;
    beat(self);
    if (keep_last(self, list)) {
        return list;
    }
failed:
    Py_DECREF(list);
    return NULL;
}

/* The owner's code and waits come between two looks at the segments, which stay mapped until the call is over. */
PyObject *reader_poll(PyReader *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    store_user_enter(self->store);
    PyObject *messages = poll(self, args, nargs, kwnames);
    store_user_leave(self->store);
    return messages;
}

/* ---- iteration ------------------------------------------------------------------------------------- */
/* Let the owner look after its group; true: end the iteration, or an exception is set. */
static bool idle_ends(PyReader *self)
{
    self->woken = false;
    if (!self->owner) {
        return false;
    }
    PyObject *owner = Py_NewRef(self->owner);
    PyObject *answer = PyObject_CallMethodNoArgs(owner, self->state->name_idle);
    Py_DECREF(owner);
    int end = answer ? PyObject_IsTrue(answer) : 1;
    Py_XDECREF(answer);
    return end != 0;
}

static PyObject *iternext_wait(PyReader *self)
{
    bool idle = self->woken;
    while (!self->stopped && self->open) { /* a reader that was stopped or closed ends quietly */
        if (idle && idle_ends(self)) {
            return NULL;
        }
        if (self->stopped || !self->open || !reader_check(self)) {
            return NULL;
        }
        PyObject *message = take(self);
        if (message || PyErr_Occurred()) {
            return message;
        }
        enum shmq_status status = wait_once(self, deadline_after(self->store, self->slice));
        if (status == FACE_ERROR) {
            return NULL;
        }
        idle = status == SHMQ_TIMED_OUT || self->woken;
    }
    return NULL;
}

static PyObject *iternext(PyReader *self)
{
    if (self->last && !reader_settle_last(self)) {
        return NULL;
    }
    PyObject *message = NULL;
    if (!self->woken && !self->stopped && self->open && self->store->open) {
        message = take(self);
    }
    if (!message && !PyErr_Occurred()) {
        message = iternext_wait(self);
    }
    if (message && self->auto_ack) {
        self->last = Py_NewRef(message);
    }
    return message;
}

PyObject *reader_iternext(PyReader *self)
{
    store_user_enter(self->store);
    PyObject *message = iternext(self);
    store_user_leave(self->store);
    return message;
}
