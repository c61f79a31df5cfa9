/* Producer.send_batch: many bodies into one queue, in order; as many at once as one append stores (py_part.c).
 *
 * Where a later part fails, the error has the receipts of what is stored.
 */
#include <string.h>

#include "face/send/py_send.h"

struct batch_item { /* what one record of the part holds on to */
    struct body_buffer body;
    void *copy;                 /* of a body that may be written to while we wait without the GIL */
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
    struct batch_item *items; /* of the part; as many as it has room for */
    struct batch_part part;
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
    for (uint32_t i = 0; i < batch->part.count; i++) {
        item_close(&batch->items[i]);
    }
    batch->part.count = batch->part.bytes = 0;
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
    if (!property_text_fill(batch->producer, values, item->text, &tag_hash)) {
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
    if (item->body.held && !item->body.buffer.readonly) {
        item->copy = PyMem_Malloc(spec->body_bytes + 1u);
        if (!item->copy) {
            PyErr_NoMemory();
            return false;
        }
        spec->body = memcpy(item->copy, item->body.data, spec->body_bytes);
    }
    return !batch->keys || item_text(batch, PyTuple_GET_ITEM(batch->keys, index), item, spec);
}

static bool room_for_one(struct batch *batch)
{
    const uint32_t room = batch->part.room ? 2 * batch->part.room : 64;
    if (batch->part.count < batch->part.room) {
        return true;
    }
    struct batch_item *items = PyMem_Realloc(batch->items, room * sizeof *items);
    if (!items) {
        PyErr_NoMemory();
        return false;
    }
    batch->items = items;
    return part_reserve(&batch->part, room);
}

/* Gather the next part from `at`; false with an exception. */
static bool part_fill(struct batch *batch)
{
    struct batch_part *part = &batch->part;
    const uint32_t bytes_max = shmq_batch_bytes_max(&batch->producer->store->core);
    while (batch->at + part->count < PyTuple_GET_SIZE(batch->bodies)) {
        uint32_t i = part->count;
        if (!room_for_one(batch)) {
            return false;
        }
        struct batch_item *item = &batch->items[i];
        bool ok = item_open(batch, batch->at + i, item, &part->specs[i]);
        uint32_t bytes = ok ? shmq_record_bytes(&part->specs[i]) : 0; /* 0: too large, which its append says */
        if (!ok || (i > 0 && (bytes == 0 || bytes > bytes_max - part->bytes))) {
            item_close(item);
            return ok;
        }
        part_add(part, bytes, batch->tag_hash);
        if (bytes == 0 || part->bytes > bytes_max) { /* alone: one append decides */
            return true;
        }
    }
    return true;
}

static bool part_receipts(struct batch *batch, struct shmq_appended *appended)
{
    for (uint32_t i = 0; i < batch->part.count; i++) {
        PyObject *receipt = receipt_new(batch->producer, batch->call.route, batch->call.queue_id, appended);
        if (!receipt) {
            return false;
        }
        PyList_SET_ITEM(batch->receipts, batch->at + i, receipt);
        appended->queue_offset++;
        appended->log_position += shmq_record_bytes(&batch->part.specs[i]); /* one part lies in one piece */
    }
    return true;
}

static bool part_send(struct batch *batch)
{
    struct shmq_appended appended;
    if (!part_fill(batch)) {
        return false;
    }
    if (part_append(batch->producer, &batch->call, &batch->part, &appended) != SHMQ_OK) {
        return false;
    }
    batch->end = appended.end;
    if (!producer_published(batch->producer, &batch->call, &appended, batch->part.count, appended.end, false) ||
        !part_receipts(batch, &appended)) {
        return false;
    }
    batch->at += batch->part.count;
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
    if (!call_route(self, call) || !property_text_fill(self, call->values, &batch->text, &batch->tag_hash)) {
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

/* An exception is set: it says what an earlier part has stored, so that this is not sent twice. */
static void what_is_stored(const struct batch *batch)
{
    PyObject *type, *error, *traceback;
    if (batch->at == 0) {
        return;
    }
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    PyObject *receipts = PyList_GetSlice(batch->receipts, 0, batch->at);
    if (!receipts || PyObject_SetAttrString(error, "receipts", receipts) < 0 ||
        PyObject_SetAttrString(error, "maybe_stored", Py_True) < 0) {
        PyErr_Clear();
    }
    Py_XDECREF(receipts);
    PyErr_Restore(type, error, traceback);
}

#define BATCH_NAMES                                                                                                    \
    (1u << CALL_TOPIC | 1u << CALL_SECOND | 1u << CALL_TAG | 1u << CALL_KEYS | 1u << CALL_PROPERTIES |                 \
     1u << CALL_GROUP | 1u << CALL_QUEUE_ID | 1u << CALL_TIMEOUT)

PyObject *producer_send_batch(PyProducer *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    struct batch *batch = PyMem_Calloc(1, sizeof *batch);
    if (!batch) {
        return PyErr_NoMemory();
    }
    batch->producer = self;
    batch->text.data = batch->text.fixed;
    bool ok = call_parse(self->state, "send_batch", self->state->name_bodies, BATCH_NAMES, args, nargs, kwnames,
                         batch->call.values, NULL) &&
              batch_prepare(batch);
    while (ok && batch->at < PyTuple_GET_SIZE(batch->bodies)) {
        ok = part_send(batch);
    }
    if (ok && batch->at && producer_waits(self, batch->call.queue)) {
        ok = store_wait_durable(self->store, batch->end, batch->call.timeout);
    }
    part_clear(batch);
    property_text_close(&batch->text);
    PyObject *receipts = ok ? Py_NewRef(batch->receipts) : NULL;
    if (!ok) {
        call_explain(self, self->state->name_bodies, args, nargs, kwnames);
        what_is_stored(batch);
    }
    Py_XDECREF(batch->receipts);
    Py_XDECREF(batch->keys);
    Py_XDECREF(batch->bodies);
    part_free(&batch->part);
    PyMem_Free(batch->items);
    PyMem_Free(batch);
    return receipts;
}
