/* Slot: a body written in place, in the log itself, under a claim.
 *
 *   open --commit--> over          record published where it was written
 *     |  --abort---> over          room given back
 *     '- over while a view is still held --> parked --last view gone--> over
 *
 * Memory that may still be written to is never given away (rule 5 of shmq.h). So a slot that ends while a view of it
 * lives keeps its claim until that view is gone; if it ends by commit, the body is copied to a new place, which is
 * published instead. The same copy is made when a writer that waited too long took the claim away.
 */
#include <string.h>

#include "face/send/py_send.h"

#define COPY_WITHOUT_GIL_BYTES (64u << 10)

/* ---- views ----------------------------------------------------------------------------------------- */
static PyObject *view_alive(PySlot *self)
{
    PyObject *view = NULL;
    if (!self->view) {
        return NULL;
    }
#if PY_VERSION_HEX >= 0x030D0000
    if (PyWeakref_GetRef(self->view, &view) < 0) {
        PyErr_Clear();
    }
#else
    view = PyWeakref_GetObject(self->view);
    view = view == Py_None ? NULL : Py_XNewRef(view);
#endif
    return view;
}

/* Release the view that was handed out; what is still exported afterwards is a view of a view, or the program's own. */
static void views_release(PySlot *self)
{
    PyObject *view = view_alive(self);
    if (view) {
        PyObject *none = PyObject_CallMethod(view, "release", NULL);
        if (!none) {
            PyErr_Clear(); /* BufferError: an array lies on it; `exports` says so, too */
        }
        Py_XDECREF(none);
        Py_DECREF(view);
    }
    Py_CLEAR(self->view);
}

static int slot_getbuffer(PySlot *self, Py_buffer *buffer, int flags)
{
    if (!self->open) {
        buffer->obj = NULL;
        PyErr_SetString(PyExc_BufferError, "the slot was committed or aborted; its memory is the log's again");
        return -1;
    }
    if (PyBuffer_FillInfo(buffer, (PyObject *)self, self->claim.body, self->claim.body_bytes_max, 0, flags) < 0) {
        return -1;
    }
    self->exports++;
    return 0;
}

static void slot_releasebuffer(PySlot *self, Py_buffer *buffer)
{
    (void)buffer;
    if (--self->exports == 0 && self->parked) {
        self->parked = false;
        claim_drop(self->producer->store, &self->claim);
    }
}

static PyObject *slot_view(PySlot *self, void *closure)
{
    (void)closure;
    PyObject *view = view_alive(self);
    if (view) {
        return view;
    }
    view = PyMemoryView_FromObject((PyObject *)self);
    Py_XSETREF(self->view, view ? PyWeakref_NewRef(view, NULL) : NULL);
    if (view && !self->view) {
        Py_CLEAR(view);
    }
    return view;
}

/* The slot is over: give the claim back, or park it. False: the warning was made an error. */
static bool slot_end(PySlot *self, const char *what)
{
    self->open = false;
    if (!self->exports) {
        claim_drop(self->producer->store, &self->claim);
        return true;
    }
    self->parked = true;
    return PyErr_ResourceWarning(
               (PyObject *)self, 2,
               "a view of a slot was still in use when the slot was %s; its place in the log stays parked "
               "until the view is deleted (del the array made from slot.view inside the with block)",
               what) == 0;
}

/* ---- the two ends ---------------------------------------------------------------------------------- */
static bool slot_spec_fill(PySlot *self, struct property_text *text, struct shmq_spec *spec, int64_t *tag_hash)
{
    PyObject *values[CALL_COUNT] = {[CALL_TAG] = self->tag,
                                    [CALL_KEY] = self->key,
                                    [CALL_GROUP] = self->group,
                                    [CALL_PROPERTIES] = self->properties};
    property_text_open(text);
    if (!property_text_fill(self->producer, values, text, tag_hash)) {
        return false;
    }
    *spec = self->producer->blank;
    spec->body_bytes = self->size;
    spec->topic = self->route->name;
    spec->topic_bytes = self->route->name_bytes;
    spec->properties = text->data;
    spec->properties_bytes = (uint32_t)text->bytes;
    spec->queue_id = self->queue_id;
    return true;
}

static enum shmq_status commit_copy(PySlot *self, struct call *call, struct shmq_spec *spec, int64_t tag_hash,
                                    struct shmq_appended *out)
{
    void *copy = PyMem_RawMalloc(self->size + 1u);
    if (!copy) {
        PyErr_NoMemory();
        return FACE_ERROR;
    }
    spec->body = memcpy(copy, self->claim.body, self->size);
    if (!self->exports) {
        claim_drop(self->producer->store, &self->claim);
    }
    enum shmq_status status = producer_append(self->producer, call, spec, true, tag_hash, out);
    PyMem_RawFree(copy);
    return status;
}

static enum shmq_status commit_in_place(PySlot *self, struct call *call, struct shmq_spec *spec, int64_t tag_hash,
                                        struct shmq_appended *out)
{
    PyStore *store = self->producer->store;
    spec->body = NULL;
    if (self->size > COPY_WITHOUT_GIL_BYTES) {
        Py_BEGIN_ALLOW_THREADS
        spec->body_crc_raw = shmq_crc32_raw(UINT32_MAX, self->claim.body, self->size);
        Py_END_ALLOW_THREADS
    } else {
        spec->body_crc_raw = shmq_crc32_raw(UINT32_MAX, self->claim.body, self->size);
    }
    enum shmq_status status =
        claim_finish(store, &self->claim, spec, tag_hash, deadline_after(store, self->timeout), out);
    if (status == SHMQ_OK || status == SHMQ_EVICTED || status == FACE_ERROR) {
        return status;
    }
    core_raise_append(store->state, &store->core, status, self->route->name, self->queue_id, shmq_record_bytes(spec), call->timeout);
    return FACE_ERROR;
}

static PyObject *slot_explain(PySlot *self)
{
    PyObject *const *names = self->state->call_names;
    PyObject *given[] = {self->tag, self->key, self->group, self->properties};
    PyObject *kwnames = PyTuple_Pack(4, names[CALL_TAG], names[CALL_KEY], names[CALL_GROUP], names[CALL_PROPERTIES]);
    for (int i = 0; i < 4; i++) {
        given[i] = given[i] ? given[i] : Py_None;
    }
    if (kwnames) {
        call_explain(self->producer, NULL, given, 0, kwnames);
        Py_DECREF(kwnames);
    }
    return NULL;
}

static PyObject *slot_commit(PySlot *self, PyObject *unused)
{
    (void)unused;
    PyProducer *producer = self->producer;
    struct call call = {.route = self->route,
                        .queue_id = self->queue_id,
                        .queue = self->claim.queue,
                        .timeout = self->timeout};
    struct property_text text;
    struct shmq_spec spec;
    struct shmq_appended appended;
    int64_t tag_hash;
    if (!self->open) {
        return core_raise(self->state, SHMQ_BAD_ARGUMENT, "the slot was committed or aborted already");
    }
    if (!store_check(producer->store)) {
        return NULL;
    }
    if (!slot_spec_fill(self, &text, &spec, &tag_hash)) {
        property_text_close(&text);
        return slot_explain(self);
    }
    self->open = false; /* another thread cannot commit it, too, while we wait without the GIL */
    views_release(self);
    bool parked = self->exports != 0;
    enum shmq_status status = SHMQ_EVICTED;
    if (!parked) {
        status = commit_in_place(self, &call, &spec, tag_hash, &appended);
    }
    if (status == SHMQ_EVICTED) {
        status = commit_copy(self, &call, &spec, tag_hash, &appended);
    }
    property_text_close(&text);
    if (status != SHMQ_OK) {
        self->open = self->claim.mapping != NULL; /* may be tried again unless the copy has taken its place */
        return NULL;
    }
    self->receipt = receipt_new(producer, self->route, self->queue_id, &appended);
    if (!self->receipt || !producer_published(producer, &call, &appended, 1, appended.end, true) ||
        (parked && !slot_end(self, "committed, so the body was copied to a new place"))) {
        return NULL;
    }
    return Py_NewRef(self->receipt);
}

static PyObject *slot_abort(PySlot *self, PyObject *unused)
{
    (void)unused;
    if (!self->open) {
        Py_RETURN_NONE;
    }
    views_release(self);
    return slot_end(self, "aborted") ? Py_NewRef(Py_None) : NULL;
}

static PyObject *slot_enter(PySlot *self, PyObject *unused)
{
    (void)unused;
    return Py_NewRef(self);
}

static PyObject *slot_exit(PySlot *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (!self->open) {
        Py_RETURN_NONE;
    }
    if (nargs && args[0] != Py_None) {
        return slot_abort(self, NULL);
    }
    PyObject *receipt = slot_commit(self, NULL);
    if (receipt) {
        Py_DECREF(receipt);
        Py_RETURN_NONE;
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *none = slot_abort(self, NULL);
    Py_XDECREF(none);
    PyErr_Restore(type, value, traceback); /* why the commit failed; an abort's warning is less */
    return NULL;
}

/* ---- attributes ------------------------------------------------------------------------------------ */
static PyObject *slot_get_properties(PySlot *self, void *closure)
{
    (void)closure;
    return self->properties ? Py_NewRef(self->properties) : PyDict_New(); /* NULL only inside a dying cycle */
}

static int slot_set_properties(PySlot *self, PyObject *value, void *closure)
{
    (void)closure;
    if (!value || !PyDict_Check(value)) {
        PyErr_SetString(PyExc_TypeError, "properties is a dict");
        return -1;
    }
    Py_XSETREF(self->properties, Py_NewRef(value));
    return 0;
}

static PyObject *slot_get_size(PySlot *self, void *closure)
{
    (void)closure;
    return PyLong_FromUnsignedLong(self->size);
}

static int slot_set_size(PySlot *self, PyObject *value, void *closure)
{
    (void)closure;
    PyObject *number = value ? whole_from(value) : NULL;
    if (!number) {
        if (!value) {
            PyErr_SetString(PyExc_TypeError, "size cannot be deleted");
        }
        return -1;
    }
    unsigned long size = PyLong_AsUnsignedLong(number);
    Py_DECREF(number);
    bool is_size = size != (unsigned long)-1 || !PyErr_Occurred();
    PyErr_Clear();
    if (!is_size || !self->open || size > self->claim.body_bytes_max) {
        core_raise(self->state, SHMQ_BAD_ARGUMENT, "size %R: the slot is %s and has room for %u bytes", value,
                   self->open ? "open" : "over", self->claim.body_bytes_max);
        return -1;
    }
    self->size = (uint32_t)size;
    return 0;
}

static PyObject *slot_get_receipt(PySlot *self, void *closure)
{
    (void)closure;
    return Py_NewRef(self->receipt ? self->receipt : Py_None);
}

/* ---- life ------------------------------------------------------------------------------------------ */
static int slot_traverse(PySlot *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->producer);
    Py_VISIT(self->properties);
    return 0;
}

static int slot_clear(PySlot *self)
{
    Py_CLEAR(self->properties);
    return 0;
}

static void slot_finalize(PySlot *self)
{
    PyObject *type, *value, *traceback;
    if (!self->open) {
        return;
    }
    PyErr_Fetch(&type, &value, &traceback);
    if (PyErr_ResourceWarning((PyObject *)self, 1,
                              "a slot was dropped without commit() or abort(); its place is given back")) {
        PyErr_WriteUnraisable((PyObject *)self);
    }
    if (!slot_end(self, "dropped")) {
        PyErr_WriteUnraisable((PyObject *)self);
    }
    PyErr_Restore(type, value, traceback);
}

static void slot_dealloc(PySlot *self)
{
    PyTypeObject *type = Py_TYPE(self);
    if (PyObject_CallFinalizerFromDealloc((PyObject *)self) < 0) {
        return;
    }
    PyObject_GC_UnTrack(self);
    if (self->uses_store) {
        store_user_leave(self->producer->store);
    }
    Py_CLEAR(self->tag);
    Py_CLEAR(self->key);
    Py_CLEAR(self->group);
    Py_CLEAR(self->properties);
    Py_CLEAR(self->view);
    Py_CLEAR(self->receipt);
    Py_CLEAR(self->producer);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef slot_methods[] = {
    {"commit", (PyCFunction)slot_commit, METH_NOARGS,
     "commit($self)\n--\n\nPublish the first `size` bytes; returns the receipt.\n\n>>> receipt = slot.commit()"},
    {"abort", (PyCFunction)slot_abort, METH_NOARGS,
     "abort($self)\n--\n\n"
     "Give the room back; nothing is published. Twice is harmless.\n\n>>> slot.abort()"},
    {"__enter__", (PyCFunction)slot_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))slot_exit, METH_FASTCALL,
     "Commit on normal exit, abort on an exception."},
    {NULL},
};

static PyGetSetDef slot_getset[] = {
    {"view", (getter)slot_view, NULL, "Writable memoryview of the body's place in the log.", NULL},
    {"properties", (getter)slot_get_properties, (setter)slot_set_properties, "Properties to publish with it.", NULL},
    {"size", (getter)slot_get_size, (setter)slot_set_size, "Bytes of the body; may be lowered before commit.", NULL},
    {"receipt", (getter)slot_get_receipt, NULL, "Where it was stored; None before commit.", NULL},
    {NULL},
};

static PyType_Slot slot_slots[] = {
    {Py_tp_doc, "A body being written in place; leaving the with block publishes it."},
    {Py_tp_dealloc, slot_dealloc},
    {Py_tp_finalize, slot_finalize},
    {Py_tp_traverse, slot_traverse},
    {Py_tp_clear, slot_clear},
    {Py_bf_getbuffer, slot_getbuffer},
    {Py_bf_releasebuffer, slot_releasebuffer},
    {Py_tp_methods, slot_methods},
    {Py_tp_getset, slot_getset},
    {0, NULL},
};

PyType_Spec slot_spec = {
    .name = "shmq.bindings._core.Slot",
    .basicsize = sizeof(PySlot),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = slot_slots,
};
