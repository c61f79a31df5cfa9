/* BrokerLog: records for others, as bytes: many of one queue, one by log position; and waiting for many queues at once.
 *
 * The bytes are copied once, straight out of the mapped files. The GIL goes only where that takes longer than getting it
 * back: behind COPY_WITHOUT_GIL_BYTES, and while waiting.
 */
#include <errno.h>
#include <string.h>

#include "face/read/py_read.h"

#define COPY_WITHOUT_GIL_BYTES (128u << 10)
#define TAGS_ON_STACK 32

/* ---- pull ------------------------------------------------------------------------------------------ */
/* Tag hashes of a pull: units hold 64 bits with a sign. */
struct tag_list { int64_t here[TAGS_ON_STACK]; int64_t *data; Py_ssize_t count; };

static bool tags_open(PyObject *value, struct tag_list *tags)
{
    tags->data = NULL;
    tags->count = 0;
    if (value == Py_None) {
        return true;
    }
    PyObject *items = PySequence_Fast(value, "tags is a sequence of tag hashes, or None");
    if (!items) {
        return false;
    }
    tags->count = PySequence_Fast_GET_SIZE(items);
    tags->data = tags->count <= TAGS_ON_STACK ? tags->here : PyMem_New(int64_t, (size_t)tags->count);
    if (!tags->data) {
        PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; tags->data && i < tags->count; i++) {
        tags->data[i] = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(items, i));
        if (tags->data[i] == -1 && PyErr_Occurred()) {
            break;
        }
    }
    Py_DECREF(items);
    return !PyErr_Occurred();
}

static void tags_close(struct tag_list *tags)
{
    if (tags->data != tags->here) {
        PyMem_Free(tags->data);
    }
}

static bool count_from(PyStore *self, PyObject *value, const char *name, uint64_t most, uint64_t *out)
{
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (number == -1 && !overflow && PyErr_Occurred()) {
        return false;
    }
    if (overflow < 0 || (!overflow && number < 0)) {
        core_raise(self->state, SHMQ_BAD_ARGUMENT, "%s is %R; it must be 0 or more", name, value);
        return false;
    }
    *out = overflow || (uint64_t)number > most ? most : (uint64_t)number;
    return true;
}

static PyObject *pull_raise(PyStore *self, enum shmq_status status, const struct shmq_pull *pull)
{
    typedef unsigned long long u64;
    if (status == SHMQ_CORRUPT && pull->log_position == UINT64_MAX) {
        return core_raise(self->state, status,
                          "queue index %u: its units from offset %llu on are neither in memory nor in ConsumeQueue files",
                          pull->queue, (u64)pull->next_offset);
    }
    if (status == SHMQ_CORRUPT) {
        return core_raise(self->state, status,
                          "queue index %u, offset %llu: the bytes at log position %llu are not the record that was "
                          "stored there",
                          pull->queue, (u64)pull->next_offset, (u64)pull->log_position);
    }
    if (status == SHMQ_NO_QUEUE) {
        return core_raise(self->state, status, "queue index %u of %u", pull->queue, self->core.sizes.queue_max);
    }
    return core_raise_status(self->state, status, "mapping a log file");
}

static PyObject *pull_copy(PyStore *self, const struct shmq_pull *pull)
{
    PyObject *body = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)pull->bytes);
    uint64_t copied = 0;
    if (body && pull->bytes > COPY_WITHOUT_GIL_BYTES) {
        store_user_enter(self);
        Py_BEGIN_ALLOW_THREADS
        copied = shmq_pull_copy(pull, (uint8_t *)PyBytes_AS_STRING(body));
        Py_END_ALLOW_THREADS
        store_user_leave(self);
    } else if (body) {
        copied = shmq_pull_copy(pull, (uint8_t *)PyBytes_AS_STRING(body));
    }
    if (body && copied < pull->bytes) {
        _PyBytes_Resize(&body, (Py_ssize_t)copied); /* NULL when it fails */
    }
    return body;
}

static PyObject *log_pull(PyStorePart *part, PyObject *const *args, Py_ssize_t nargs)
{
    PyStore *self = part->store;
    uint64_t queue, count_max, scan_max = 800;
    struct shmq_pull pull;
    struct tag_list tags = {.data = NULL};
    PyFilter *filter;
    PyObject *answer = NULL;
    if (nargs < 5 || nargs > 8) {
        PyErr_Format(PyExc_TypeError,
                     "pull() takes queue, offset, count_max, bytes_max, tags, scan_max, a filter and trimmed "
                     "(%zd given)",
                     nargs);
        return NULL;
    }
    if (!store_check(self) || !count_from(self, args[0], "queue", UINT32_MAX, &queue) ||
        !count_from(self, args[1], "offset", INT64_MAX, &pull.offset) ||
        !count_from(self, args[2], "count_max", UINT32_MAX, &count_max) ||
        !count_from(self, args[3], "bytes_max", INT64_MAX, &pull.bytes_max) ||
        (nargs > 5 && !count_from(self, args[5], "scan_max", UINT32_MAX, &scan_max)) ||
        !filter_from(self->state, nargs > 6 ? args[6] : NULL, &filter) || !tags_open(args[4], &tags)) {
        tags_close(&tags);
        return NULL;
    }
    pull.queue = (uint32_t)queue;
    pull.count_max = (uint32_t)count_max;
    pull.scan_max = (uint32_t)scan_max;
    pull.tags = tags.data;
    pull.tag_count = (uint32_t)tags.count;
    pull.filter = filter ? filter->core : NULL; /* the caller's arguments keep it alive */
    pull.trimmed = nargs > 7 && args[7] == Py_True;
    pull.span_count = 0;
    enum shmq_status status = FACE_ERROR;
    if (store_check(self)) { /* tags may be a sequence of its own making, whose code closed the store */
        pull.verify = !self->core.head->trusts_reads;
        status = shmq_pull_plan(&self->core, &pull);
    }
    if (status == SHMQ_OK) {
        PyObject *body = pull_copy(self, &pull);
        answer = body ? Py_BuildValue("(KIN)", (unsigned long long)pull.next_offset, pull.count, body) : NULL;
    } else if (status != FACE_ERROR) {
        pull_raise(self, status, &pull);
    }
    shmq_pull_release(&pull);
    tags_close(&tags);
    return answer;
}

/* ---- one record ------------------------------------------------------------------------------------ */
static PyObject *log_record_bytes_at(PyStorePart *part, PyObject *args)
{
    PyStore *self = part->store;
    unsigned long long position, bytes = 0;
    int trimmed = 0, stored = 0;
    if (!PyArg_ParseTuple(args, "K|Kpp:record_bytes_at", &position, &bytes, &trimmed, &stored) || !store_check(self)) {
        return NULL;
    }
    const uint64_t end = stored ? atomic_load_explicit(&self->core.log->end, memory_order_acquire)
                                : shmq_visible_end(&self->core);
    struct shmq_mapping *mapping;
    struct shmq_view view;
    const bool verify = !self->core.head->trusts_reads;
    enum shmq_status status = shmq_record_at(&self->core, position, bytes, end, verify, &mapping, &view);
    if (status == SHMQ_SYSTEM) {
        return core_raise_status(self->state, status, "mapping the log file");
    }
    if (status != SHMQ_OK) {
        Py_RETURN_NONE;
    }
    const uint8_t *data = mapping->data + (position - mapping->base);
    PyObject *record = PyBytes_FromStringAndSize((const char *)data, view.record_bytes);
    uint32_t left = view.record_bytes;
    if (record && trimmed) {
        left = shmq_record_trim((uint8_t *)PyBytes_AS_STRING(record), left);
    }
    if (left < view.record_bytes) {
        _PyBytes_Resize(&record, left); /* NULL when it fails */
    }
    return record;
}

/* ---- waiting --------------------------------------------------------------------------------------- */
struct queue_list { uint32_t *queues; uint64_t *offsets; uint32_t count; };

static bool queues_open(PyStore *self, PyObject *queues, PyObject *offsets, struct queue_list *out)
{
    PyObject *first = PySequence_Fast(queues, "queues is a sequence of queue indexes");
    PyObject *second = first ? PySequence_Fast(offsets, "offsets is a sequence of queue offsets") : NULL;
    bool ok = second != NULL;
    if (ok && PySequence_Fast_GET_SIZE(first) != PySequence_Fast_GET_SIZE(second)) {
        core_raise(self->state, SHMQ_BAD_ARGUMENT, "%zd queues and %zd offsets", PySequence_Fast_GET_SIZE(first),
                   PySequence_Fast_GET_SIZE(second));
        ok = false;
    }
    Py_ssize_t count = ok ? PySequence_Fast_GET_SIZE(first) : 0;
    out->offsets = PyMem_RawMalloc(((size_t)count + 1) * (sizeof *out->offsets + sizeof *out->queues));
    out->queues = out->offsets ? (uint32_t *)(out->offsets + count + 1) : NULL;
    out->count = (uint32_t)count;
    if (ok && !out->offsets) {
        PyErr_NoMemory();
        ok = false;
    }
    for (Py_ssize_t i = 0; ok && i < count; i++) {
        uint64_t queue;
        ok = count_from(self, PySequence_Fast_GET_ITEM(first, i), "a queue", UINT32_MAX, &queue) &&
             count_from(self, PySequence_Fast_GET_ITEM(second, i), "an offset", INT64_MAX, &out->offsets[i]);
        out->queues[i] = ok ? (uint32_t)queue : 0;
    }
    Py_XDECREF(first);
    Py_XDECREF(second);
    return ok;
}

/* A flush wakes every sleeper. Whether it was for us is looked at here, before the GIL is asked for: a loop that serves
 * clients needs it more. A look is a wait whose time is over. */
static enum shmq_status wait_for_news(struct shmq_store *store, const struct shmq_watch *watch, uint64_t deadline)
{
    enum shmq_status status;
    do {
        status = shmq_wait_for(store, watch, 0, deadline);
    } while (status == SHMQ_OK && shmq_wait_for(store, watch, 0, 1) == SHMQ_TIMED_OUT);
    return status;
}

static PyObject *log_wait_queues(PyStorePart *part, PyObject *args, PyObject *kwargs)
{
    PyStore *self = part->store;
    static char *names[] = {"queues", "offsets", "timeout", "safe_end", NULL};
    PyObject *queues, *offsets, *safe = Py_None;
    double timeout;
    struct queue_list list = {.count = 0};
    uint64_t safe_end = UINT64_MAX;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOd|$O:wait_queues", names, &queues, &offsets, &timeout,
                                     &safe)) {
        return NULL;
    }
    if (!queues_open(self, queues, offsets, &list) ||
        (safe != Py_None && !count_from(self, safe, "safe_end", INT64_MAX, &safe_end)) ||
        !store_check(self)) {
        PyMem_RawFree(list.offsets);
        return NULL;
    }
    struct shmq_watch watch = {.queues = list.queues,
                               .offsets = list.offsets,
                               .count = list.count,
                               .safe_end = safe_end,
                               .interruptible = true,
                               .interrupts_seen = self->interrupts_seen};
    uint64_t deadline = deadline_after(self, timeout);
    enum shmq_status status;
    store_user_enter(self);
    Py_BEGIN_ALLOW_THREADS
    status = wait_for_news(&self->core, &watch, deadline);
    Py_END_ALLOW_THREADS
    int reason = errno;
    self->interrupts_seen = atomic_load_explicit(&self->core.interrupts, memory_order_acquire);
    store_user_leave(self);
    PyMem_RawFree(list.offsets);
    if (PyErr_CheckSignals() < 0) {
        return NULL;
    }
    errno = reason;
    if (status == SHMQ_BAD_ARGUMENT) {
        return core_raise(self->state, status, "waiting needs a client slot; call use_client() first");
    }
    return status == SHMQ_OK || status == SHMQ_TIMED_OUT
               ? PyBool_FromLong(status == SHMQ_OK)
               : core_raise_status(self->state, status, "waiting for messages");
}

static PyObject *log_queues_risen(PyStorePart *part, PyObject *args)
{
    PyStore *self = part->store;
    PyObject *queues, *offsets;
    struct queue_list list = {.count = 0};
    if (!PyArg_ParseTuple(args, "OO:queues_risen", &queues, &offsets)) {
        return NULL;
    }
    PyObject *risen = queues_open(self, queues, offsets, &list) && store_check(self) ? PyList_New(0) : NULL;
    for (uint32_t i = 0; risen && i < list.count; i++) {
        const struct shmq_queue *entry = shmq_queue_entry(&self->core, list.queues[i]);
        if (!entry || atomic_load_explicit(&entry->offset_max, memory_order_acquire) <= list.offsets[i]) {
            continue;
        }
        PyObject *queue = PyLong_FromUnsignedLong(list.queues[i]);
        if (!queue || PyList_Append(risen, queue) < 0) {
            Py_CLEAR(risen);
        }
        Py_XDECREF(queue);
    }
    PyMem_RawFree(list.offsets);
    return risen;
}

static PyObject *log_wake_self(PyStorePart *part, PyObject *unused)
{
    PyStore *self = part->store;
    (void)unused;
    if (!store_check(self)) {
        return NULL;
    }
    shmq_interrupt(&self->core);
    Py_RETURN_NONE;
}

static PyObject *log_ring_keeper(PyStorePart *part, PyObject *unused)
{
    PyStore *self = part->store;
    (void)unused;
    if (!store_check(self)) {
        return NULL;
    }
    shmq_ring_keeper(&self->core);
    Py_RETURN_NONE;
}

PyMethodDef pull_methods[] = {
    {"pull", (PyCFunction)(void (*)(void))log_pull, METH_FASTCALL,
     "Records of one queue, concatenated: (next offset, count, bytes)."},
    {"record_bytes_at", (PyCFunction)log_record_bytes_at, METH_VARARGS,
     "The bytes of the record at a log position, None when none starts there; also before it is durable, if wanted."},
    {"wait_queues", (PyCFunction)(void (*)(void))log_wait_queues, METH_VARARGS | METH_KEYWORDS,
     "Sleep until one of the queues has a visible message at its offset, the durable end is there, or wake_self()."},
    {"queues_risen", (PyCFunction)log_queues_risen, METH_VARARGS,
     "Those of the queues that end behind their offset now."},
    {"wake_self", (PyCFunction)log_wake_self, METH_NOARGS, "End wait_queues() of this store, or its next one."},
    {"ring_keeper", (PyCFunction)log_ring_keeper, METH_NOARGS, "Have the keeper look at the log now."},
    {NULL},
};
