/* Producer.send_batch: many bodies into one queue, as few lock acquisitions as the limits of one batch allow.
 *
 * Bodies are taken in order. A part ends before the record that would break SHMQ_BATCH_MAX or SHMQ_BATCH_BYTES_MAX; a
 * record longer than SHMQ_INLINE_BYTES_MAX is a part of its own. What an earlier part stored stays stored when a later
 * one fails.
 */
#include <string.h>

#include "py_core.h"

struct batch_item { /* what one record of the part holds on to */
    struct body_buffer body;
    void *copy;                 /* of a body that somebody may write to while we wait without the GIL */
    struct property_text *text; /* with a key of its own */
};

struct batch {
    PyProducer *producer;
    struct call call;
    PyObject *bodies; /* tuple */
    PyObject *keys;   /* tuple, or NULL */
    PyObject *receipts;
    struct shmq_spec base;     /* everything but body and key */
    struct property_text text; /* of every record without a key of its own */
    int64_t tag_hash;
    Py_ssize_t at;  /* first body not yet stored */
    uint64_t end;   /* log position behind the last stored record */
    uint32_t count; /* of the part */
    uint32_t bytes;
    struct batch_item items[SHMQ_BATCH_MAX];
    struct shmq_spec specs[SHMQ_BATCH_MAX];
    int64_t tag_hashes[SHMQ_BATCH_MAX];
};

static void item_close(struct batch_item *item)
{
    body_close(&item->body);
    PyMem_Free(item->copy);
    if (item->text) {
        property_text_close(item->text);
    }
    PyMem_Free(item->text);
}

static void part_clear(struct batch *batch)
{
    for (uint32_t i = 0; i < batch->count; i++) {
        item_close(&batch->items[i]);
    }
    batch->count = batch->bytes = 0;
}

static bool item_text(struct batch *batch, PyObject *key, struct batch_item *item, struct shmq_spec *spec)
{
    PyObject *values[CALL_COUNT];
    int64_t tag_hash;
    item->text = PyMem_Malloc(sizeof *item->text);
    if (!item->text) {
        PyErr_NoMemory();
        return false;
    }
    memcpy(values, batch->call.values, sizeof values);
    values[CALL_KEY] = key == Py_None ? NULL : key;
    values[CALL_KEYS] = NULL;
    property_text_open(item->text);
    if (!property_text_fill(batch->producer->state, values, item->text, &tag_hash)) {
        return false;
    }
    spec->properties = item->text->data;
    spec->properties_bytes = (uint32_t)item->text->bytes;
    return true;
}

static bool item_open(struct batch *batch, Py_ssize_t index, struct batch_item *item, struct shmq_spec *spec)
{
    item->copy = NULL;
    item->text = NULL;
    if (!body_open(batch->producer->state, PyTuple_GET_ITEM(batch->bodies, index), &item->body)) {
        item->body.held = false;
        return false;
    }
    *spec = batch->base;
    spec->body = item->body.data;
    spec->body_bytes = (uint32_t)item->body.bytes;
    if (item->body.held && !item->body.buffer.readonly && spec->body_bytes <= SHMQ_INLINE_BYTES_MAX) {
        item->copy = PyMem_Malloc(spec->body_bytes + 1u);
        if (!item->copy) {
            PyErr_NoMemory();
            return false;
        }
        spec->body = memcpy(item->copy, item->body.data, spec->body_bytes);
    }
    return !batch->keys || item_text(batch, PyTuple_GET_ITEM(batch->keys, index), item, spec);
}

/* Gather the next part from `at`; false with an exception. */
static bool part_fill(struct batch *batch)
{
    while (batch->at + batch->count < PyTuple_GET_SIZE(batch->bodies) && batch->count < SHMQ_BATCH_MAX) {
        uint32_t i = batch->count;
        struct batch_item *item = &batch->items[i];
        bool ok = item_open(batch, batch->at + i, item, &batch->specs[i]);
        uint32_t bytes = ok ? shmq_record_bytes(&batch->specs[i]) : 0;
        bool alone = bytes > SHMQ_INLINE_BYTES_MAX;
        if (!ok || (i > 0 && (alone || bytes > SHMQ_BATCH_BYTES_MAX - batch->bytes))) {
            item_close(item);
            return ok;
        }
        batch->tag_hashes[i] = batch->tag_hash;
        batch->bytes += bytes;
        batch->count++;
        if (alone) {
            return true;
        }
    }
    return true;
}

static enum shmq_status part_append(struct batch *batch, struct shmq_appended *first)
{
    PyStore *store = batch->producer->store;
    struct call *call = &batch->call;
    if (batch->count == 1) {
        const struct batch_item *only = &batch->items[0];
        bool constant = !only->body.held || only->body.buffer.readonly || only->copy;
        return producer_append(batch->producer, call, &batch->specs[0], constant, batch->tag_hash, first);
    }
    enum shmq_status status =
        shmq_append_batch(&store->core, call->queue, batch->specs, batch->tag_hashes, batch->count, 0, first);
    if (status == SHMQ_WOULD_BLOCK) {
        struct store_lane *lane = store_lane_take(store);
        if (!lane) {
            return FACE_ERROR;
        }
        uint64_t deadline = deadline_after(store, call->timeout);
        Py_BEGIN_ALLOW_THREADS
        status =
            shmq_append_batch(&lane->core, call->queue, batch->specs, batch->tag_hashes, batch->count, deadline, first);
        Py_END_ALLOW_THREADS
        store_lane_give(store, lane);
    }
    if (status == SHMQ_OK) {
        return status;
    }
    core_raise_append(store, status, call->route->name, call->queue_id, batch->bytes, call->timeout);
    return FACE_ERROR;
}

static bool part_receipts(struct batch *batch, struct shmq_appended *appended)
{
    for (uint32_t i = 0; i < batch->count; i++) {
        PyObject *receipt = receipt_new(batch->producer, batch->call.route, batch->call.queue_id, appended);
        if (!receipt) {
            return false;
        }
        PyList_SET_ITEM(batch->receipts, batch->at + i, receipt);
        appended->queue_offset++;
        appended->log_position += shmq_record_bytes(&batch->specs[i]); /* one part lies in one piece */
    }
    return true;
}

static bool part_send(struct batch *batch)
{
    struct shmq_appended appended;
    if (!part_fill(batch) || part_append(batch, &appended) != SHMQ_OK) {
        return false;
    }
    batch->end = appended.end;
    if (!producer_published(batch->producer, &batch->call, &appended, batch->count, appended.end, false) ||
        !part_receipts(batch, &appended)) {
        return false;
    }
    batch->at += batch->count;
    part_clear(batch);
    return store_check(batch->producer->store);
}

static bool batch_prepare(struct batch *batch)
{
    PyProducer *self = batch->producer;
    struct call *call = &batch->call;
    PyObject *keys = call->values[CALL_KEYS];
    call->values[CALL_KEYS] = NULL;
    property_text_open(&batch->text);
    if (PyUnicode_Check(call->values[CALL_SECOND]) || PyObject_CheckBuffer(call->values[CALL_SECOND])) {
        PyErr_SetString(PyExc_TypeError, "bodies is a sequence of bodies; did you mean send(topic, body)?");
        return false;
    }
    if (keys && PyUnicode_Check(keys)) {
        PyErr_SetString(PyExc_TypeError, "keys is a sequence, one key a body");
        return false;
    }
    /* Tuples of our own: another thread may change a list while we wait without the GIL. */
    batch->bodies = PySequence_Tuple(call->values[CALL_SECOND]);
    batch->keys = keys && batch->bodies ? PySequence_Tuple(keys) : NULL;
    if (PyErr_Occurred()) {
        return false;
    }
    if (keys && PyTuple_GET_SIZE(batch->keys) != PyTuple_GET_SIZE(batch->bodies)) {
        core_raise(self->state, SHMQ_BAD_ARGUMENT, "%zd keys for %zd bodies", PyTuple_GET_SIZE(batch->keys),
                   PyTuple_GET_SIZE(batch->bodies));
        return false;
    }
    if (!call_route(self, call) || !property_text_fill(self->state, call->values, &batch->text, &batch->tag_hash)) {
        return false;
    }
    batch->base = self->blank;
    batch->base.topic = call->route->name;
    batch->base.topic_bytes = call->route->name_bytes;
    batch->base.queue_id = call->queue_id;
    batch->base.properties = batch->text.data;
    batch->base.properties_bytes = (uint32_t)batch->text.bytes;
    batch->receipts = PyList_New(PyTuple_GET_SIZE(batch->bodies));
    return batch->receipts != NULL;
}

#define BATCH_NAMES                                                                                                    \
    (1u << CALL_TOPIC | 1u << CALL_SECOND | 1u << CALL_TAG | 1u << CALL_KEYS | 1u << CALL_PROPERTIES |                 \
     1u << CALL_GROUP | 1u << CALL_QUEUE_ID | 1u << CALL_TIMEOUT)

PyObject *producer_send_batch(PyProducer *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    struct batch *batch = PyMem_Malloc(sizeof *batch);
    if (!batch) {
        return PyErr_NoMemory();
    }
    memset(batch, 0, offsetof(struct batch, items));
    batch->producer = self;
    batch->text.data = batch->text.fixed;
    bool ok = call_parse(self->state, "send_batch", self->state->name_bodies, BATCH_NAMES, args, nargs, kwnames,
                         batch->call.values) &&
              batch_prepare(batch);
    while (ok && batch->at < PyTuple_GET_SIZE(batch->bodies)) {
        ok = part_send(batch);
    }
    if (ok && self->wait_durable && batch->at) {
        ok = store_wait_durable(self->store, batch->end, batch->call.timeout);
    }
    part_clear(batch);
    property_text_close(&batch->text);
    PyObject *receipts = ok ? Py_NewRef(batch->receipts) : NULL;
    Py_XDECREF(batch->receipts);
    Py_XDECREF(batch->keys);
    Py_XDECREF(batch->bodies);
    PyMem_Free(batch);
    return receipts;
}
