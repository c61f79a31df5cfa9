/* Message: one received record, decoded where it lies.
 *
 * Holds the mapped file and the decoded view; everything else is made on access and kept only where making it again is
 * dear (body, properties, value). The object exports the stored body, so `view` and every slice of it keep it, and with
 * it the file, alive. Deleted files stay readable that way until the last view is gone.
 */
#include <string.h>

#include "face/read/py_read.h"

/* ---- life ------------------------------------------------------------------------------------------ */
PyObject *message_new(struct core_state *state, PyReader *reader, const struct shmq_view *view,
                      struct shmq_mapping *mapping, uint32_t cursor, uint64_t serial)
{
    PyMessage *self;
    if (state->message_free_count) {
        self = (PyMessage *)PyObject_Init((PyObject *)state->message_free[--state->message_free_count],
                                          state->message_type);
    } else {
        self = PyObject_GC_New(PyMessage, state->message_type);
    }
    if (!self) {
        return NULL;
    }
    self->state = state;
    self->reader = (PyReader *)Py_XNewRef(reader);
    self->mapping = mapping ? shmq_mapping_hold(mapping) : NULL;
    self->holder = self->owner = self->codec = self->kept = NULL;
    self->record = NULL;
    self->view = *view;
    self->serial = serial;
    self->cursor = cursor;
    /* An int32 on the wire; clients may write any. */
    self->attempt = (int32_t)view->reconsume_times < 0 ? 1 : view->reconsume_times + 1;
    self->settled = self->requeued = false;
    self->body = self->properties = self->value = NULL;
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

static int message_traverse(PyMessage *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->reader);
    Py_VISIT(self->owner);
    Py_VISIT(self->codec);
    Py_VISIT(self->kept);
    Py_VISIT(self->properties);
    Py_VISIT(self->value);
    return 0;
}

static int message_clear(PyMessage *self)
{
    Py_CLEAR(self->reader);
    Py_CLEAR(self->owner);
    Py_CLEAR(self->codec);
    Py_CLEAR(self->kept);
    Py_CLEAR(self->body);
    Py_CLEAR(self->properties);
    Py_CLEAR(self->value);
    return 0;
}

static void message_dealloc(PyMessage *self)
{
    struct core_state *state = self->state;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    message_clear(self);
    if (self->mapping) {
        shmq_mapping_release(self->mapping);
    }
    Py_CLEAR(self->holder);
    if (state->message_free_count < FREE_LIST_MAX) {
        state->message_free[state->message_free_count++] = self;
    } else {
        PyObject_GC_Del(self);
    }
    Py_DECREF(type); /* last: the type keeps the module, and with it `state`, alive */
}

void message_free_list_clear(struct core_state *state)
{
    while (state->message_free_count) {
        PyObject_GC_Del(state->message_free[--state->message_free_count]);
    }
}

/* ---- numbers and texts ----------------------------------------------------------------------------- */
#define AT(field) ((void *)(intptr_t)offsetof(PyMessage, field))

static PyObject *get_i32(PyMessage *self, void *closure)
{
    return PyLong_FromLong(*(int32_t *)((char *)self + (intptr_t)closure));
}

static PyObject *get_u32(PyMessage *self, void *closure)
{
    return PyLong_FromUnsignedLong(*(uint32_t *)((char *)self + (intptr_t)closure));
}

static PyObject *get_u64(PyMessage *self, void *closure)
{
    return PyLong_FromUnsignedLongLong(*(uint64_t *)((char *)self + (intptr_t)closure));
}

static PyObject *get_topic(PyMessage *self, void *closure)
{
    (void)closure;
    return PyUnicode_DecodeUTF8(self->view.topic, self->view.topic_bytes, "replace");
}

static const char *property_of(const PyMessage *self, const char *name, size_t *bytes)
{
    return shmq_property_find(self->view.properties, self->view.properties_bytes, name, strlen(name), bytes);
}

static PyObject *text_or_none(const char *text, size_t bytes)
{
    return text && bytes ? PyUnicode_DecodeUTF8(text, (Py_ssize_t)bytes, "replace") : Py_NewRef(Py_None);
}

static PyObject *get_property(PyMessage *self, void *closure)
{
    size_t bytes = 0;
    const char *text = property_of(self, closure, &bytes);
    return text_or_none(text, bytes);
}

/* The next key of a text and its bytes, NULL behind the last; blanks separate them, and no other character does. */
static const char *key_in(const char **at, const char *end, size_t *bytes)
{
    while (*at < end && **at == ' ') {
        (*at)++;
    }
    const char *key = *at, *blank = key < end ? memchr(key, ' ', (size_t)(end - key)) : NULL;
    *at = blank ? blank : end;
    *bytes = (size_t)(*at - key);
    return *bytes ? key : NULL;
}

static PyObject *get_key(PyMessage *self, void *closure)
{
    (void)closure;
    size_t bytes = 0;
    const char *text = property_of(self, "KEYS", &bytes);
    const char *end = text ? text + bytes : NULL;
    const char *key = key_in(&text, end, &bytes);
    return text_or_none(key, bytes);
}

static PyObject *get_keys(PyMessage *self, void *closure)
{
    (void)closure;
    size_t bytes = 0;
    const char *text = property_of(self, "KEYS", &bytes);
    const char *end = text ? text + bytes : NULL, *key;
    PyObject *keys = PyList_New(0);
    while (keys && (key = key_in(&text, end, &bytes))) {
        PyObject *word = text_or_none(key, bytes);
        if (!word || PyList_Append(keys, word) < 0) {
            Py_CLEAR(keys);
        }
        Py_XDECREF(word);
    }
    return keys;
}

static PyObject *get_properties(PyMessage *self, void *closure)
{
    (void)closure;
    if (!self->properties) {
        self->properties = property_dict(self->view.properties, self->view.properties_bytes);
    }
    return Py_XNewRef(self->properties);
}

static PyObject *get_offset_message_id(PyMessage *self, void *closure)
{
    (void)closure;
    return message_id_text(self->view.store_host, self->view.store_host_bytes, self->view.log_position);
}

static PyObject *get_message_id(PyMessage *self, void *closure)
{
    size_t bytes = 0;
    const char *text = property_of(self, "UNIQ_KEY", &bytes);
    return text && bytes ? PyUnicode_DecodeUTF8(text, (Py_ssize_t)bytes, "replace")
                         : get_offset_message_id(self, closure);
}

static int set_attempt(PyMessage *self, PyObject *value, void *closure)
{
    (void)closure;
    unsigned long attempt = value ? PyLong_AsUnsignedLong(value) : 0;
    if (value && PyErr_Occurred()) {
        return -1;
    }
    if (attempt < 1 || attempt > UINT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "attempt counts deliveries from 1");
        return -1;
    }
    self->attempt = (uint32_t)attempt;
    return 0;
}

static PyObject *get_settled(PyMessage *self, void *closure)
{
    (void)closure;
    return PyBool_FromLong(self->settled);
}

static PyObject *get_view(PyMessage *self, void *closure)
{
    (void)closure;
    return PyMemoryView_FromObject((PyObject *)self);
}

static int message_getbuffer(PyMessage *self, Py_buffer *buffer, int flags)
{
    return PyBuffer_FillInfo(buffer, (PyObject *)self, (void *)self->view.body, self->view.body_bytes, 1, flags);
}

static PyObject *get_value(PyMessage *self, void *closure)
{
    (void)closure;
    if (self->value) {
        return Py_NewRef(self->value);
    }
    PyObject *codec = Py_XNewRef(self->codec || !self->reader ? self->codec : self->reader->codec);
    if (!codec || codec == Py_None) {
        Py_XDECREF(codec);
        PyErr_SetString(PyExc_AttributeError, "this message was read without a codec; use body or view");
        return NULL;
    }
    PyObject *body = message_body(self, NULL);
    PyObject *value = body ? PyObject_CallOneArg(codec, body) : NULL;
    Py_XDECREF(body);
    Py_DECREF(codec);
    Py_XSETREF(self->value, Py_XNewRef(value));
    return value;
}

/* owner.<method>(message[, argument]); `argument` may be NULL */
static bool ask_owner(PyMessage *self, PyObject *method, PyObject *argument)
{
    PyObject *owner = Py_XNewRef(self->reader ? self->reader->owner : self->owner);
    if (!owner) {
        core_raise(self->state, SHMQ_BAD_ARGUMENT,
                   "this message was read without a group; there is no group to give it back to");
        return false;
    }
    PyObject *result = PyObject_CallMethodObjArgs(owner, method, self, argument, NULL);
    Py_DECREF(owner);
    Py_XDECREF(result);
    return result != NULL;
}

/* ---- settling -------------------------------------------------------------------------------------- */
static void settle(PyMessage *self)
{
    self->settled = true;
    if (self->reader) {
        reader_count_settled(self->reader, 1);
    }
}

bool message_acknowledge(PyMessage *self)
{
    if (self->settled) {
        return true;
    }
    if (self->reader ? !reader_acknowledge(self->reader, self)
                     : self->owner && !ask_owner(self, self->state->name_ack, NULL)) {
        return false;
    }
    settle(self);
    return true;
}

static PyObject *message_ack(PyMessage *self, PyObject *unused)
{
    (void)unused;
    return message_acknowledge(self) ? Py_NewRef(Py_None) : NULL;
}

static bool nack(PyMessage *self, PyObject *after)
{
    if (self->settled) {
        return true;
    }
    self->requeued = false;
    if (!ask_owner(self, self->state->name_nack, after)) {
        return false;
    }
    if (!self->requeued) { /* requeue() made it a message to be delivered again */
        settle(self);
    }
    return true;
}

static PyObject *message_nack(PyMessage *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *after = Py_None;
    Py_ssize_t named = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
    if (nargs + named > 1 || (named && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, 0), "after") != 0)) {
        PyErr_SetString(PyExc_TypeError, "nack() takes one argument, after");
        return NULL;
    }
    if (nargs + named) {
        after = args[0];
    }
    return nack(self, after) ? Py_NewRef(Py_None) : NULL;
}

static PyObject *message_extend(PyMessage *self, PyObject *seconds)
{
    return ask_owner(self, self->state->name_extend, seconds) ? Py_NewRef(Py_None) : NULL;
}

static PyObject *message_verify(PyMessage *self, PyObject *unused)
{
    (void)unused;
    const uint8_t *record =
        self->mapping ? self->mapping->data + (self->view.log_position - self->mapping->base) : self->record;
    return PyBool_FromLong(shmq_record_verify(record, &self->view) == SHMQ_OK);
}

static PyObject *message_enter(PyMessage *self, PyObject *unused)
{
    (void)unused;
    return Py_NewRef(self);
}

static PyObject *message_exit(PyMessage *self, PyObject *const *args, Py_ssize_t nargs)
{
    bool failed = nargs && args[0] != Py_None;
    return (failed ? nack(self, Py_None) : message_acknowledge(self)) ? Py_NewRef(Py_None) : NULL;
}

static PyObject *message_repr(PyMessage *self)
{
    PyObject *topic = get_topic(self, NULL);
    if (!topic) {
        return NULL;
    }
    PyObject *text = PyUnicode_FromFormat("<Message %U queue %u offset %llu, %u %sbytes%s>", topic, self->view.queue_id,
                                          (unsigned long long)self->view.queue_offset, self->view.body_bytes,
                                          message_is_packed(self) ? "compressed " : "", self->settled ? ", settled" : "");
    Py_DECREF(topic);
    return text;
}

static PyGetSetDef message_getset[] = {
    {"topic", (getter)get_topic, NULL, "Topic it was stored under.", NULL},
    {"queue_id", (getter)get_u32, NULL, "Queue within the topic.", AT(view.queue_id)},
    {"offset", (getter)get_u64, NULL, "Queue offset: counts messages.", AT(view.queue_offset)},
    {"body", (getter)message_body, NULL, "The body as bytes: copied, and inflated if compressed, on first access.",
     NULL},
    {"view", (getter)get_view, NULL, "Read-only memoryview of the stored body, in the log itself.", NULL},
    {"size", (getter)message_size, NULL, "Bytes of the body; len(view) is those that are stored.", NULL},
    {"tag", (getter)get_property, NULL, "The tag, or None.", "TAGS"},
    {"key", (getter)get_key, NULL, "The first key, or None.", NULL},
    {"keys", (getter)get_keys, NULL, "All keys.", NULL},
    {"properties", (getter)get_properties, NULL, "All properties but the record CRC.", NULL},
    {"message_group", (getter)get_property, NULL, "What keeps messages in order, or None.", "__SHARDINGKEY"},
    {"born_ms", (getter)get_u64, NULL, "When it was sent, ms since the epoch.", AT(view.born_ms)},
    {"store_ms", (getter)get_u64, NULL, "When it was stored, ms since the epoch.", AT(view.store_ms)},
    {"sys_flag", (getter)get_u32, NULL, "RocketMQ's sysFlag.", AT(view.sys_flag)},
    {"flag", (getter)get_u32, NULL, "The sender's flag.", AT(view.flag)},
    {"reconsume_times", (getter)get_i32, NULL, "How often it was stored again for a retry.", AT(view.reconsume_times)},
    {"log_position", (getter)get_u64, NULL, "Position in the CommitLog, in bytes.", AT(view.log_position)},
    {"record_bytes", (getter)get_u32, NULL, "Bytes of the whole record.", AT(view.record_bytes)},
    {"message_id", (getter)get_message_id, NULL, "UNIQ_KEY if there is one, else the offset message id.", NULL},
    {"offset_message_id", (getter)get_offset_message_id, NULL, "Store host and log position in hex.", NULL},
    {"attempt", (getter)get_u32, (setter)set_attempt, "1 at first delivery.", AT(attempt)},
    {"settled", (getter)get_settled, NULL, "Acknowledged or given back.", NULL},
    {"value", (getter)get_value, NULL, "codec(body), when the reader has a codec.", NULL},
    {NULL},
};

static PyMethodDef message_methods[] = {
    {"ack", (PyCFunction)message_ack, METH_NOARGS,
     "ack($self)\n--\n\nMark consumed. Twice is harmless.\n\n>>> message.ack()"},
    {"nack", (PyCFunction)(void (*)(void))message_nack, METH_FASTCALL | METH_KEYWORDS,
     "nack($self, after=None)\n--\n\n"
     "Give back: delivered again after `after` seconds.\n\n>>> message.nack(after=30)"},
    {"extend", (PyCFunction)message_extend, METH_O,
     "extend($self, seconds, /)\n--\n\n"
     "Ask for more time before it is given to another member.\n\n>>> message.extend(60)"},
    {"verify", (PyCFunction)message_verify, METH_NOARGS,
     "verify($self)\n--\n\nWhether body CRC and record CRC hold.\n\n>>> assert message.verify()"},
    {"__enter__", (PyCFunction)message_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))message_exit, METH_FASTCALL,
     "Acknowledge on normal exit, give back on an exception."},
    {NULL},
};

static PyType_Slot message_slots[] = {
    {Py_tp_doc, "One received message; decodes lazily, keeps its mapped file alive."},
    {Py_tp_dealloc, message_dealloc},
    {Py_tp_traverse, message_traverse},
    {Py_tp_clear, message_clear},
    {Py_tp_repr, message_repr},
    {Py_bf_getbuffer, message_getbuffer},
    {Py_tp_methods, message_methods},
    {Py_tp_getset, message_getset},
    {0, NULL},
};

PyType_Spec message_spec = {
    .name = "shmq.bindings._core.Message",
    .basicsize = sizeof(PyMessage),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = message_slots,
};
