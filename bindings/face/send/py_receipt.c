/* Receipt: where a message was stored, and RocketMQ's message id made from it. */
#include <string.h>

#include "face/send/py_send.h"

typedef struct py_receipt {
    PyObject_HEAD
    struct core_state *state;
    PyObject *topic;
    PyObject *message_id;      /* text of another host, or NULL: made from store_host */
    PyObject *recall_handle;   /* str, or what has encode() for it; NULL for a message that cannot be taken back */
    uint32_t queue_id;
    uint64_t queue_offset;
    uint64_t log_position;
    uint64_t store_ms;
    uint8_t store_host[8];
} PyReceipt;

static PyReceipt *receipt_blank(struct core_state *state)
{
    PyReceipt *self;
    if (state->receipt_free_count) {
        self = (PyReceipt *)PyObject_Init((PyObject *)state->receipt_free[--state->receipt_free_count],
                                          state->receipt_type);
    } else {
        self = PyObject_New(PyReceipt, state->receipt_type);
    }
    if (self) {
        self->state = state;
        self->topic = self->message_id = self->recall_handle = NULL;
    }
    return self;
}

PyObject *receipt_new(PyProducer *producer, const struct route *route, uint32_t queue_id,
                      const struct shmq_appended *appended)
{
    PyReceipt *self = receipt_blank(producer->state);
    if (!self) {
        return NULL;
    }
    self->topic = Py_NewRef(route->topic);
    self->queue_id = queue_id;
    self->queue_offset = appended->queue_offset;
    self->log_position = appended->log_position;
    self->store_ms = appended->store_ms;
    memcpy(self->store_host, producer->blank.store_host, sizeof self->store_host);
    return (PyObject *)self;
}

static void receipt_dealloc(PyReceipt *self)
{
    struct core_state *state = self->state;
    PyTypeObject *type = Py_TYPE(self);
    Py_CLEAR(self->topic);
    Py_CLEAR(self->message_id);
    Py_CLEAR(self->recall_handle);
    if (state->receipt_free_count < FREE_LIST_MAX) {
        state->receipt_free[state->receipt_free_count++] = self;
    } else {
        PyObject_Free(self);
    }
    Py_DECREF(type); /* last: the type keeps the module, and with it `state`, alive */
}

static PyObject *receipt_topic(PyReceipt *self, void *closure)
{
    (void)closure;
    return Py_NewRef(self->topic);
}

static PyObject *receipt_number(PyReceipt *self, void *closure)
{
    return PyLong_FromUnsignedLongLong(*(uint64_t *)((char *)self + (Py_ssize_t)(intptr_t)closure));
}

static PyObject *receipt_queue_id(PyReceipt *self, void *closure)
{
    (void)closure;
    return PyLong_FromUnsignedLong(self->queue_id);
}

static PyObject *receipt_message_id(PyReceipt *self, void *closure)
{
    (void)closure;
    if (self->message_id) {
        return Py_NewRef(self->message_id);
    }
    return message_id_text(self->store_host, sizeof self->store_host, self->log_position);
}

static PyObject *receipt_recall_handle(PyReceipt *self, void *closure)
{
    (void)closure;
    if (self->recall_handle && !PyUnicode_Check(self->recall_handle)) { /* few are ever asked for it */
        PyObject *text = PyObject_CallMethod(self->recall_handle, "encode", NULL);
        if (!text) {
            return NULL;
        }
        Py_SETREF(self->recall_handle, text);
    }
    return Py_NewRef(self->recall_handle ? self->recall_handle : Py_None);
}

static PyObject *receipt_repr(PyReceipt *self)
{
    PyObject *id = receipt_message_id(self, NULL);
    if (!id) {
        return NULL;
    }
    PyObject *text = PyUnicode_FromFormat("Receipt(topic=%R, queue_id=%u, offset=%llu, message_id=%R)", self->topic,
                                          self->queue_id, (unsigned long long)self->queue_offset, id);
    Py_DECREF(id);
    return text;
}

static PyObject *receipt_compare(PyObject *left, PyObject *right, int how)
{
    if (!Py_IS_TYPE(right, Py_TYPE(left)) || (how != Py_EQ && how != Py_NE)) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    PyReceipt *a = (PyReceipt *)left, *b = (PyReceipt *)right;
    int same = a->queue_id == b->queue_id && a->queue_offset == b->queue_offset && a->log_position == b->log_position &&
               a->store_ms == b->store_ms;
    same = same ? PyObject_RichCompareBool(a->topic, b->topic, Py_EQ) : 0;
    if (same > 0) {
        PyObject *id = receipt_message_id(a, NULL), *other = receipt_message_id(b, NULL);
        same = id && other ? PyObject_RichCompareBool(id, other, Py_EQ) : -1;
        Py_XDECREF(id);
        Py_XDECREF(other);
    }
    return same < 0 ? NULL : PyBool_FromLong(same == (how == Py_EQ));
}

static Py_hash_t receipt_hash(PyReceipt *self)
{
    const Py_hash_t topic = PyObject_Hash(self->topic);
    if (topic == -1) {
        return -1;
    }
    /* Records lie at even positions; where several are of one batch over TCP, only the offsets differ. */
    const uint64_t mixed = ((uint64_t)topic ^ self->queue_id) * UINT64_C(0x9E3779B97F4A7C15) ^
                           self->queue_offset * UINT64_C(0xC2B2AE3D27D4EB4F) ^ self->log_position;
    return (Py_hash_t)mixed == -1 ? -2 : (Py_hash_t)mixed;
}

#define AT(field) ((void *)(intptr_t)offsetof(PyReceipt, field))
static PyGetSetDef receipt_getset[] = {
    {"topic", (getter)receipt_topic, NULL, "Topic the message was stored under.", NULL},
    {"queue_id", (getter)receipt_queue_id, NULL, "Queue within the topic.", NULL},
    {"offset", (getter)receipt_number, NULL, "Queue offset: counts messages.", AT(queue_offset)},
    {"log_position", (getter)receipt_number, NULL, "Position in the CommitLog, in bytes.", AT(log_position)},
    {"store_ms", (getter)receipt_number, NULL, "When it was stored, ms since the epoch.", AT(store_ms)},
    {"message_id", (getter)receipt_message_id, NULL, "Store host and log position, in RocketMQ's hex form.", NULL},
    {"recall_handle", (getter)receipt_recall_handle, NULL,
     "What recall() takes back a delayed message by; None for one that cannot be.", NULL},
    {NULL},
};

static PyType_Slot receipt_slots[] = {
    {Py_tp_doc, "Where a message was stored; a copy, as of another process, is equal."},
    {Py_tp_dealloc, receipt_dealloc},
    {Py_tp_repr, receipt_repr},
    {Py_tp_richcompare, receipt_compare},
    {Py_tp_hash, receipt_hash},
    {Py_tp_getset, receipt_getset},
    {0, NULL},
};

PyType_Spec receipt_spec = {
    .name = "shmq.bindings._core.Receipt",
    .basicsize = sizeof(PyReceipt),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = receipt_slots,
};

/* ---- of what another host has stored ---- */
static PyObject *core_receipt_make(PyObject *module, PyObject *args)
{
    struct core_state *state = PyModule_GetState(module);
    PyObject *topic, *message_id, *recall_handle = Py_None;
    unsigned int queue_id;
    unsigned long long queue_offset, log_position, store_ms;
    if (!PyArg_ParseTuple(args, "UIKKKU|O:receipt_make", &topic, &queue_id, &queue_offset, &log_position,
                          &store_ms, &message_id, &recall_handle)) {
        return NULL;
    }
    PyReceipt *self = receipt_blank(state);
    if (!self) {
        return NULL;
    }
    self->topic = Py_NewRef(topic);
    self->message_id = Py_NewRef(message_id);
    self->recall_handle = recall_handle == Py_None ? NULL : Py_NewRef(recall_handle);
    self->queue_id = queue_id;
    self->queue_offset = queue_offset;
    self->log_position = log_position;
    self->store_ms = store_ms;
    return (PyObject *)self;
}

static PyObject *core_receipt_moved(PyObject *module, PyObject *args)
{
    struct core_state *state = PyModule_GetState(module);
    PyReceipt *from;
    PyObject *topic, *recall_handle;
    unsigned int queue_id;
    if (!PyArg_ParseTuple(args, "O!UIO:receipt_moved", state->receipt_type, &from, &topic, &queue_id, &recall_handle)) {
        return NULL;
    }
    PyReceipt *self = receipt_blank(state);
    if (!self) {
        return NULL;
    }
    self->topic = Py_NewRef(topic);
    self->message_id = Py_XNewRef(from->message_id);
    self->recall_handle = recall_handle == Py_None ? NULL : Py_NewRef(recall_handle);
    self->queue_id = queue_id;
    self->queue_offset = from->queue_offset;
    self->log_position = from->log_position;
    self->store_ms = from->store_ms;
    memcpy(self->store_host, from->store_host, sizeof self->store_host);
    return (PyObject *)self;
}

PyMethodDef receipt_functions[] = {
    {"receipt_moved", core_receipt_moved, METH_VARARGS, "A receipt that says another topic and queue, and a recall handle."},
    {"receipt_make", core_receipt_make, METH_VARARGS, "A receipt of what another host has stored."},
    {NULL},
};
