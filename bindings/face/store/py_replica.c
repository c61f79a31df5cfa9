/* ReplicaStore: a log that takes the records of a master on another host. */
#include <string.h>

#include "face/py_core.h"

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
    if (status == FACE_ERROR) {
        return NULL;
    }
    if (status != SHMQ_OK) {
        return core_raise_status(self->state, status, "following a master");
    }
    Py_RETURN_NONE;
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
    unsigned long long position;
    double seconds;
    if (!PyArg_ParseTuple(args, "y*Ky*d:replicate", &data, &position, &delays, &seconds)) {
        return NULL;
    }
    PyObject *result = NULL;
    if (store_check(self)) {
        const struct shmq_shipped shipped = {.data = data.buf,
                                             .bytes = (size_t)data.len,
                                             .log_position = position,
                                             .delays_ms = delays.buf,
                                             .delay_count = (uint32_t)((size_t)delays.len / sizeof(uint64_t))};
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

PyMethodDef replica_methods[] = {
    {"follow", (PyCFunction)replica_follow, METH_O, "From now on records come by replicate only."},
    {"replicate", (PyCFunction)replica_replicate, METH_VARARGS,
     "Take the whole records that the master has from a position on, the end of this log."},
    {NULL},
};
