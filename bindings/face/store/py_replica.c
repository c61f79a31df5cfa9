/* ReplicaStore: a log that takes the records of a master on another host, and one that waits for its replicas. */
#include <string.h>

#include "face/store/py_store.h"

static PyObject *done(PyStore *self, enum shmq_status status, const char *doing)
{
    if (status == FACE_ERROR) {
        return NULL;
    }
    return status == SHMQ_OK ? Py_NewRef(Py_None) : core_raise_status(self->state, status, doing);
}

static PyObject *replica_follow(PyStorePart *part, PyObject *leader)
{
    PyStore *self = part->store;
    const char *text = PyUnicode_Check(leader) ? PyUnicode_AsUTF8(leader) : NULL;
    if (!text) {
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "the leader is a text, not %R", leader);
    }
    if (!store_check(self)) {
        return NULL;
    }
    const uint64_t deadline = deadline_after(self, 5.0);
    enum shmq_status status;
    ON_LANE(self, status, shmq_follow(&lane->core, text, deadline));
    return done(self, status, "following a master");
}

static PyObject *replica_lead(PyStorePart *part, PyObject *epoch)
{
    PyStore *self = part->store;
    const unsigned long long number = PyLong_AsUnsignedLongLong(epoch);
    if (PyErr_Occurred() || !store_check(self)) {
        return NULL;
    }
    const uint64_t deadline = deadline_after(self, 5.0);
    enum shmq_status status;
    ON_LANE(self, status, shmq_lead(&lane->core, number, deadline));
    return done(self, status, "taking records as the master");
}

static PyObject *replica_fence_off(PyStorePart *part, PyObject *args)
{
    PyStore *self = part->store;
    const char *leader;
    double seconds;
    if (!PyArg_ParseTuple(args, "sd:fence_off", &leader, &seconds) || !store_check(self)) {
        return NULL;
    }
    const uint64_t deadline = deadline_after(self, seconds);
    enum shmq_status status;
    ON_LANE(self, status, shmq_fence_off(&lane->core, leader, deadline));
    if (status == SHMQ_BROKER_BUSY) {
        Py_RETURN_FALSE;
    }
    return status == SHMQ_OK ? Py_NewRef(Py_True) : done(self, status, "fencing the log off");
}

static PyObject *replica_lease(PyStorePart *part, PyObject *until)
{
    PyStore *self = part->store;
    const unsigned long long until_ns = PyLong_AsUnsignedLongLong(until);
    if (PyErr_Occurred() || !store_check(self)) {
        return NULL;
    }
    return done(self, shmq_lease(&self->core, until_ns), "taking a lease");
}

/* What the caller has to do before it comes again; everything else is an error. */
static bool is_stop(enum shmq_status status)
{
    return status == SHMQ_OK || status == SHMQ_NO_TOPIC || status == SHMQ_NO_QUEUE || status == SHMQ_LOG_FULL ||
           status == SHMQ_BROKER_BUSY || status == SHMQ_READ_ONLY;
}

static PyObject *answer(PyStore *self, enum shmq_status status, const struct shmq_replicated *out)
{
    if (status == FACE_ERROR) {
        return NULL;
    }
    if (status == SHMQ_CORRUPT) {
        return core_raise(self->state, SHMQ_CORRUPT, "what the master has at log position %llu is refused: %s",
                          (unsigned long long)out->end, out->reason ? out->reason : "it contradicts itself");
    }
    if (status == SHMQ_FENCED) {
        const uint64_t epoch = atomic_load_explicit(&self->core.log->epoch, memory_order_acquire);
        return core_raise(self->state, SHMQ_FENCED, "the master is one of an epoch before %llu, which was heard of here",
                          (unsigned long long)epoch);
    }
    if (!is_stop(status)) {
        return core_raise_status(self->state, status, "taking a master's records");
    }
    if (!out->topic) {
        return Py_BuildValue("(KIiO)", (unsigned long long)out->end, out->records, (int)status, Py_None);
    }
    return Py_BuildValue("(KIi(y#I))", (unsigned long long)out->end, out->records, (int)status, out->topic,
                         (Py_ssize_t)out->topic_bytes, out->queue_id);
}

static PyObject *replica_replicate(PyStorePart *part, PyObject *args)
{
    PyStore *self = part->store;
    Py_buffer data, delays;
    unsigned long long position, judged_end = 0, epoch = 0;
    double seconds;
    if (!PyArg_ParseTuple(args, "y*Ky*d|KK:replicate", &data, &position, &delays, &seconds, &judged_end, &epoch)) {
        return NULL;
    }
    PyObject *result = NULL;
    if (store_check(self)) {
        const struct shmq_shipped shipped = {.data = data.buf,
                                             .bytes = (size_t)data.len,
                                             .log_position = position,
                                             .delays_ms = delays.buf,
                                             .delay_count = (uint32_t)((size_t)delays.len / sizeof(uint64_t)),
                                             .judged_end = judged_end,
                                             .epoch = epoch};
        const uint64_t deadline = deadline_after(self, seconds);
        struct shmq_replicated out;
        enum shmq_status status;
        ON_LANE(self, status, shmq_replicate(&lane->core, &shipped, deadline, &out));
        result = answer(self, status, &out);
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&delays);
    return result;
}

static PyObject *replica_confirm(PyStorePart *part, PyObject *args, PyObject *kwargs)
{
    PyStore *self = part->store;
    static char *names[] = {"in_sync_end", "in_sync_count", "seconds", "lacks_replicas", NULL};
    PyObject *end = Py_None;
    unsigned int count;
    double seconds;
    int lacks = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OId|$p:confirm", names, &end, &count, &seconds, &lacks) ||
        !store_check(self)) {
        return NULL;
    }
    struct shmq_in_sync in_sync = {.end = UINT64_MAX, .count = count, .lacks_replicas = lacks};
    if (end != Py_None) {
        in_sync.end = PyLong_AsUnsignedLongLong(end);
        if (in_sync.end == UINT64_MAX && PyErr_Occurred()) {
            return NULL;
        }
    }
    const uint64_t deadline = deadline_after(self, seconds);
    uint64_t confirmed_end = 0;
    enum shmq_status status;
    ON_LANE(self, status, shmq_confirm(&lane->core, &in_sync, deadline, &confirmed_end));
    if (status == FACE_ERROR) {
        return NULL;
    }
    if (status != SHMQ_OK && status != SHMQ_TIMED_OUT) {
        return core_raise_status(self->state, status, "confirming what replicas have");
    }
    return status == SHMQ_OK ? PyLong_FromUnsignedLongLong(confirmed_end) : Py_NewRef(Py_None);
}

PyMethodDef replica_methods[] = {
    {"follow", (PyCFunction)replica_follow, METH_O, "From now on records come by replicate only."},
    {"replicate", (PyCFunction)replica_replicate, METH_VARARGS,
     "Take the whole records that the master has from a position on, the end of this log."},
    {"confirm", (PyCFunction)(void (*)(void))replica_confirm, METH_VARARGS | METH_KEYWORDS,
     "Say what every replica in sync has on its disk; the confirmed end, None when a flush takes too long."},
    {"lead", (PyCFunction)replica_lead, METH_O, "Take records as the master of an epoch."},
    {"fence_off", (PyCFunction)replica_fence_off, METH_VARARGS,
     "Take no record any more; say who does. False: an append may be under way."},
    {"lease", (PyCFunction)replica_lease, METH_O, "Take records until a time on CLOCK_BOOTTIME; 0: without end."},
    {NULL},
};
