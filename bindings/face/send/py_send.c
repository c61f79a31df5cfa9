/* Producer.send and send_oneway: one record, short under the lock or long under a claim.
 *
 * The lock is tried without waiting first, the GIL held: that is the whole story of nearly every call. Only
 * SHMQ_WOULD_BLOCK lets the GIL go and waits on a lane. A body that may be written to meanwhile (bytearray, array)
 * is copied before that, for a record whose CRC does not fit its body could never be delivered.
 */
#include <errno.h>
#include <string.h>

#include "face/send/py_send.h"

#define COPY_WITHOUT_GIL_BYTES (64u << 10)

/* ---- waiting for the lock -------------------------------------------------------------------------- */
static enum shmq_status append_blocking(PyProducer *self, const struct call *call, const struct shmq_spec *spec,
                                        bool body_constant, int64_t tag_hash, struct shmq_appended *out)
{
    PyStore *store = self->store;
    struct shmq_spec stable = *spec;
    void *copy = NULL;
    if (!body_constant && spec->body_bytes) {
        copy = PyMem_RawMalloc(spec->body_bytes);
        if (!copy) {
            PyErr_NoMemory();
            return FACE_ERROR;
        }
        stable.body = memcpy(copy, spec->body, spec->body_bytes);
    }
    enum shmq_status status;
    uint64_t deadline = deadline_after(store, call->timeout);
    ON_LANE(store, status, shmq_append(&lane->core, call->queue, &stable, tag_hash, deadline, out));
    PyMem_RawFree(copy);
    return status;
}

enum shmq_status claim_open(PyStore *store, uint32_t queue, uint32_t body_bytes, uint32_t tail_bytes, uint64_t deadline,
                            struct shmq_claim_handle *claim)
{
    enum shmq_status status = shmq_claim_open(&store->core, queue, body_bytes, tail_bytes, 0, claim);
    if (status == SHMQ_WOULD_BLOCK) {
        ON_LANE(store, status, shmq_claim_open(&lane->core, queue, body_bytes, tail_bytes, deadline, claim));
    }
    return status;
}

enum shmq_status claim_finish(PyStore *store, struct shmq_claim_handle *claim, const struct shmq_spec *spec,
                              int64_t tag_hash, uint64_t deadline, struct shmq_appended *out)
{
    enum shmq_status status = shmq_claim_commit(&store->core, claim, spec, tag_hash, 0, out);
    if (status == SHMQ_WOULD_BLOCK) {
        ON_LANE(store, status, shmq_claim_commit(&lane->core, claim, spec, tag_hash, deadline, out));
    }
    return status;
}

void claim_drop(PyStore *store, struct shmq_claim_handle *claim)
{
    int reason = errno;
    Py_BEGIN_ALLOW_THREADS
    shmq_claim_abort(&store->core, claim); /* takes the lock, touches neither scratch nor mapping cache */
    Py_END_ALLOW_THREADS
    errno = reason;
}

/* ---- a long record: the core's algorithm, each step of it with the GIL only as long as it does not wait ------- */
static enum shmq_status step_open(void *store, uint32_t queue, uint32_t body_bytes, uint32_t tail_bytes,
                                  uint64_t deadline, struct shmq_claim_handle *claim)
{
    return claim_open(store, queue, body_bytes, tail_bytes, deadline, claim);
}

static uint32_t step_fill(uint8_t *to, const struct shmq_spec *spec)
{
    if (spec->body_bytes <= COPY_WITHOUT_GIL_BYTES) {
        return shmq_claim_fill(to, spec);
    }
    uint32_t body_crc_raw;
    Py_BEGIN_ALLOW_THREADS
    body_crc_raw = shmq_claim_fill(to, spec);
    Py_END_ALLOW_THREADS
    return body_crc_raw;
}

static enum shmq_status step_commit(void *store, struct shmq_claim_handle *claim, const struct shmq_spec *spec,
                                    int64_t tag_hash, uint64_t deadline, struct shmq_appended *out)
{
    return claim_finish(store, claim, spec, tag_hash, deadline, out);
}

static void step_abort(void *store, struct shmq_claim_handle *claim)
{
    claim_drop(store, claim);
}

static const struct shmq_claim_steps claim_steps = {
    .open = step_open, .fill = step_fill, .commit = step_commit, .abort = step_abort};

static enum shmq_status append_long(PyProducer *self, const struct call *call, const struct shmq_spec *spec,
                                    bool body_constant, int64_t tag_hash, struct shmq_appended *out)
{
    PyStore *store = self->store;
    struct shmq_spec long_spec = *spec;
    long_spec.body_changes = !body_constant;
    return shmq_append_long(&store->core, call->queue, &long_spec, tag_hash, deadline_after(store, call->timeout),
                            &claim_steps, store, out);
}

enum shmq_status producer_append(PyProducer *self, struct call *call, const struct shmq_spec *spec, bool body_constant,
                                 int64_t tag_hash, struct shmq_appended *out)
{
    enum shmq_status status;
    uint32_t bytes = spec->body_bytes + spec->properties_bytes + shmq_record_body_at(spec) + spec->topic_bytes;
    if (bytes > SHMQ_INLINE_BYTES_MAX - 64 && shmq_record_bytes(spec) > SHMQ_INLINE_BYTES_MAX) {
        status = append_long(self, call, spec, body_constant, tag_hash, out);
    } else {
        status = shmq_append(&self->store->core, call->queue, spec, tag_hash, 0, out);
        if (status == SHMQ_WOULD_BLOCK) {
            status = append_blocking(self, call, spec, body_constant, tag_hash, out);
        }
    }
    if (status == SHMQ_OK) {
        return status;
    }
    core_raise_append(self->store->state, &self->store->core, status, call->route->name, call->queue_id, shmq_record_bytes(spec), call->timeout);
    return FACE_ERROR;
}

void producer_count(PyProducer *self, const struct shmq_appended *out, uint64_t count)
{
    struct shmq_client *client = store_client(self->store);
    if (client) {
        uint64_t sent = atomic_load_explicit(&client->sent, memory_order_relaxed) + count;
        atomic_store_explicit(&client->sent, sent, memory_order_relaxed);
        if (out->store_ms != self->beat_ms) { /* a clock of its own only once a millisecond */
            self->beat_ms = out->store_ms;
            atomic_store_explicit(&client->beat_ns, self->store->core.io->monotonic_ns(), memory_order_relaxed);
        }
    }
}

/* A topic's own flush decides; else the broker's, which the producer was made for. */
bool producer_waits(const PyProducer *self, uint32_t queue)
{
    const struct shmq_store *store = &self->store->core;
    uint32_t mode = atomic_load_explicit(&shmq_queue_place(store, queue)->flush, memory_order_relaxed);
    return mode == SHMQ_FLUSH_AS_BROKER ? self->wait_durable : mode == SHMQ_FLUSH_SYNC;
}

bool producer_published(PyProducer *self, const struct call *call, const struct shmq_appended *out, uint64_t count,
                        uint64_t end, bool durable)
{
    shmq_wake(&self->store->core, call->queue);
    producer_count(self, out, count);
    durable = durable && producer_waits(self, call->queue);
    return !durable || store_wait_durable(self->store, end, call->timeout);
}

/* ---- send ------------------------------------------------------------------------------------------ */
static bool send_one(PyProducer *self, struct call *call, bool durable, struct shmq_appended *out)
{
    struct body_buffer body;
    struct property_text text;
    int64_t tag_hash = 0;
    bool sent = false;
    if (!call_route(self, call) || !body_open(self->state, call->values[CALL_SECOND], &body)) {
        return false;
    }
    struct shmq_spec spec = self->blank;
    property_text_open(&text);
    if (!property_text_fill(self, call->values, &text, &tag_hash)) {
        goto done;
    }
    if (call->values[CALL_FLAG]) {
        PyObject *number = whole_from(call->values[CALL_FLAG]);
        if (!number) {
            goto done;
        }
        long flag = PyLong_AsLong(number);
        Py_DECREF(number);
        if (flag < INT32_MIN || flag > (long)UINT32_MAX) {
            PyErr_SetString(PyExc_OverflowError, "flag has more than 32 bits");
        }
        if (PyErr_Occurred()) {
            goto done;
        }
        spec.flag = (uint32_t)flag;
    }
    if (call->values[CALL_TAG_CODE]) {
        tag_hash = PyLong_AsLongLong(call->values[CALL_TAG_CODE]);
        if (tag_hash == -1 && PyErr_Occurred()) {
            goto done;
        }
    }
    spec.body = body.data;
    spec.body_bytes = (uint32_t)body.bytes;
    spec.topic = call->route->name;
    spec.topic_bytes = call->route->name_bytes;
    spec.properties = text.data;
    spec.properties_bytes = (uint32_t)text.bytes;
    spec.queue_id = call->queue_id;
    bool constant = !body.held || body.buffer.readonly;
    sent = producer_append(self, call, &spec, constant, tag_hash, out) == SHMQ_OK &&
           producer_published(self, call, out, 1, out->end, durable);
done:
    property_text_close(&text);
    body_close(&body);
    return sent;
}

#define SEND_NAMES ((1u << CALL_COUNT) - 1)

static bool send_parse(PyProducer *self, const char *method, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                       struct call *call, bool *unknown)
{
    *unknown = false;
    if (nargs == 2 && !kwnames) {
        memset(call->values, 0, sizeof call->values);
        call->values[CALL_TOPIC] = args[0];
        call->values[CALL_SECOND] = args[1];
        return true;
    }
    return call_parse(self->state, method, self->state->call_names[CALL_SECOND], SEND_NAMES, args, nargs, kwnames,
                      call->values, self->special ? unknown : NULL);
}

/* A send with a keyword that is none of ours: special(topic, body, {keyword: value}, is one-way) takes it, or refuses the
 * keyword. */
static PyObject *send_special(PyProducer *self, const char *method, PyObject *const *args, Py_ssize_t nargs,
                              PyObject *kwnames, bool oneway)
{
    PyObject *call[2] = {NULL, NULL}, *answer = NULL;
    PyObject *named = PyDict_New();
    for (Py_ssize_t i = 0; named && i < nargs; i++) {
        call[i] = Py_NewRef(args[i]);
    }
    for (Py_ssize_t i = 0; named && i < PyTuple_GET_SIZE(kwnames); i++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, i), **place = NULL;
        for (int j = CALL_TOPIC; j <= CALL_SECOND; j++) {
            place = PyUnicode_Compare(name, self->state->call_names[j]) == 0 ? &call[j] : place;
        }
        if (place && *place) {
            PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument '%U'", method, name);
            goto done;
        }
        if (place) {
            *place = Py_NewRef(args[nargs + i]);
        } else if (PyDict_SetItem(named, name, args[nargs + i]) < 0) {
            goto done;
        }
    }
    if (named && call[0] && call[1]) {
        answer = PyObject_CallFunctionObjArgs(self->special, call[0], call[1], named, oneway ? Py_True : Py_False,
                                              NULL);
    } else if (named) {
        PyErr_Format(PyExc_TypeError, "%s() missing required argument '%U'", method,
                     self->state->call_names[call[0] ? CALL_SECOND : CALL_TOPIC]);
    }
done:
    Py_XDECREF(call[0]);
    Py_XDECREF(call[1]);
    Py_XDECREF(named);
    return answer;
}

/* Kept apart, so that a send that succeeds is compiled as if nothing could fail. */
__attribute__((noinline))
static PyObject *send_otherwise(PyProducer *self, bool unknown, PyObject *const *args, Py_ssize_t nargs,
                                PyObject *kwnames, bool oneway)
{
    const char *method = oneway ? "send_oneway" : "send";
    PyObject *answer = unknown ? send_special(self, method, args, nargs, kwnames, oneway) : NULL;
    return answer ? answer : call_explain(self, self->state->call_names[CALL_SECOND], args, nargs, kwnames);
}

PyObject *producer_send(PyProducer *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    struct call call;
    struct shmq_appended appended;
    bool unknown;
    if (!send_parse(self, "send", args, nargs, kwnames, &call, &unknown)) {
        return send_otherwise(self, unknown, args, nargs, kwnames, false);
    }
    if (!send_one(self, &call, true, &appended)) {
        return send_otherwise(self, false, args, nargs, kwnames, false);
    }
    return receipt_new(self, call.route, call.queue_id, &appended);
}

PyObject *producer_send_oneway(PyProducer *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    struct call call;
    struct shmq_appended appended;
    bool unknown;
    if (!send_parse(self, "send_oneway", args, nargs, kwnames, &call, &unknown)) {
        PyObject *answer = send_otherwise(self, unknown, args, nargs, kwnames, true);
        if (!answer) {
            return NULL;
        }
        Py_DECREF(answer);
        Py_RETURN_NONE;
    }
    if (!send_one(self, &call, false, &appended)) {
        return send_otherwise(self, false, args, nargs, kwnames, true);
    }
    Py_RETURN_NONE;
}
