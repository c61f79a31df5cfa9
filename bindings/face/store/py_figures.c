/* StoreFigures: counters and states of the segments, for monitoring; and the sizes that units tell.
 *
 * Everything is read word by word while others go on: two figures of one answer may differ by what happened in between.
 */
#include <string.h>

#include "core/internal.h"
#include "face/store/py_store.h"

#define BOUNDS_MAX 32u
#define TAKEN_LOCALLY (UINT64_C(1) << 63)

/* ---- the log, its locks and its claim -------------------------------------------------------------- */
/* The thread that holds a lock: the TID in the mutex word, which the kernel uses to find a dead owner. */
static uint32_t lock_tid(const pthread_mutex_t *mutex)
{
    int word;
    memcpy(&word, mutex, sizeof word); /* glibc: __data.__lock is the first member; attach refused other libcs */
    return (uint32_t)word & 0x3FFFFFFFu;
}

static PyObject *figures_stats(PyStorePart *part, PyObject *unused)
{
    PyStore *self = part->store;
    (void)unused;
    typedef unsigned long long u64;
    if (!store_check(self)) {
        return NULL;
    }
    struct shmq_log *log = self->core.log;
    struct shmq_claim *claim = &log->claim;
    return Py_BuildValue("{s:I,s:I,s:I,s:I,s:I,s:I,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:I,s:I,s:K,s:K,s:I,s:I,s:K,s:K,s:K}", "topics_used",
                         atomic_load_explicit(&log->topic_count, memory_order_relaxed), "queues_used",
                         atomic_load_explicit(&log->queue_used, memory_order_relaxed), "lock_tid",
                         lock_tid(&log->lock), "table_lock_tid", lock_tid(&log->table_lock), "flush_lock_tid",
                         lock_tid(&log->flush_lock), "holder_pid", log->holder_pid, "lock_count",
                         (u64)log->lock_count, "deaths",
                         (u64)log->deaths, "appended", (u64)log->appended, "appended_bytes", (u64)log->appended_bytes,
                         "busy", (u64)atomic_load_explicit(&log->busy, memory_order_relaxed), "wakes",
                         (u64)atomic_load_explicit(&self->core.readers->wakes, memory_order_relaxed), "rolled", (u64)log->rolled,
                         "frame_ready", atomic_load_explicit(&log->frame_ready, memory_order_relaxed), "frame_bump",
                         log->frame_bump, "claims", (u64)log->claims, "claims_evicted",
                         (u64)log->claims_evicted, "claim_state",
                         atomic_load_explicit(&claim->state, memory_order_relaxed), "claim_owner_pid", claim->owner_pid,
                         "claim_owner_start", (u64)claim->owner_start, "claim_bytes", (u64)claim->bytes,
                         "claim_opened_ns", (u64)claim->opened_ns);
}

static PyObject *get_lookup_probes(PyStorePart *part, void *closure)
{
    PyStore *self = part->store;
    (void)closure;
    return store_check(self) ? PyLong_FromUnsignedLongLong(shmq_lookup_probes(&self->core)) : NULL;
}

/* Counted and not kept: a count beside the free list would have to be repaired with it. 16 bytes a frame are read. */
static PyObject *get_frames_used(PyStorePart *part, void *unused)
{
    PyStore *self = part->store;
    (void)unused;
    if (!store_check(self)) {
        return NULL;
    }
    uint32_t end = self->core.log->frame_bump;
    end = end < self->core.sizes.frame_max ? end : self->core.sizes.frame_max;
    uint32_t used = 0;
    for (uint32_t frame = 0; frame < end; frame++) {
        used += atomic_load_explicit(&self->core.frames[frame].tag, memory_order_relaxed) != 0;
    }
    return PyLong_FromUnsignedLong(used);
}

/* ---- queues ---------------------------------------------------------------------------------------- */
static PyObject *figures_queue_counts(PyStorePart *part, PyObject *unused)
{
    PyStore *self = part->store;
    (void)unused;
    if (!store_check(self)) {
        return NULL;
    }
    const uint32_t count = shmq_queue_count(&self->core);
    PyObject *words = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)count * 16);
    for (uint32_t i = 0; words && i < count; i++) {
        struct shmq_queue *queue = &self->core.queues[i];
        uint64_t pair[2] = {atomic_load_explicit(&queue->offset_max, memory_order_acquire), queue->bytes};
        memcpy(PyBytes_AS_STRING(words) + sizeof pair * i, pair, sizeof pair);
    }
    return words;
}

static PyObject *figures_queue_numbers(PyStorePart *part, PyObject *unused)
{
    PyStore *self = part->store;
    (void)unused;
    if (!store_check(self)) {
        return NULL;
    }
    const uint32_t count = shmq_queue_count(&self->core);
    PyObject *numbers = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)count * 4);
    for (uint32_t i = 0; numbers && i < count; i++) {
        const uint32_t number = atomic_load_explicit(&self->core.queues[i].life, memory_order_acquire) - 1;
        memcpy(PyBytes_AS_STRING(numbers) + sizeof number * i, &number, sizeof number);
    }
    return numbers;
}

static PyObject *figures_dirty_queues(PyStorePart *part, PyObject *args)
{
    PyStore *self = part->store;
    Py_ssize_t limit;
    long long after = -1;
    if (!PyArg_ParseTuple(args, "n|L:dirty_queues", &limit, &after) || !store_check(self)) {
        return NULL;
    }
    const uint32_t start = after < 0 ? 0 : ((uint32_t)after & self->core.queue_mask) + 1;
    PyObject *list = PyList_New(0);
    const uint32_t count = shmq_queue_count(&self->core);
    for (uint32_t i = start; list && i < count && PyList_GET_SIZE(list) < limit; i++) {
        const struct shmq_queue *entry = &self->core.queues[i];
        const uint32_t queue = atomic_load_explicit(&entry->life, memory_order_acquire) - 1;
        uint64_t persisted = atomic_load_explicit(&entry->persisted, memory_order_acquire);
        uint64_t end = atomic_load_explicit(&entry->offset_max, memory_order_acquire);
        if (persisted >= end || !shmq_queue_lives(&self->core, queue)) {
            continue;
        }
        const int64_t numbers[] = {queue, (int64_t)persisted, (int64_t)end};
        if (!row_append(list, row_new(self->state, ROW_UNPERSISTED, numbers, -1, NULL))) {
            Py_CLEAR(list);
        }
    }
    return list;
}

/* ---- groups and clients ---------------------------------------------------------------------------- */
static PyObject *figures_offset_counts(PyStorePart *part, PyObject *args)
{
    PyStore *self = part->store;
    unsigned int first = 0;
    if (!PyArg_ParseTuple(args, "|I:offset_counts", &first) || !store_check(self)) {
        return NULL;
    }
    uint32_t count = shmq_offset_count(&self->core);
    count = count > first ? count - first : 0;
    PyObject *words = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)count * 16);
    for (uint32_t i = 0; words && i < count; i++) {
        const struct shmq_offset *entry = &self->core.offsets[first + i];
        uint64_t pair[2];
        do { /* both of one moment: what is committed belongs to that queue */
            pair[1] = atomic_load_explicit(&entry->place, memory_order_acquire);
            pair[0] = atomic_load_explicit(&entry->committed, memory_order_acquire);
        } while (atomic_load_explicit(&entry->place, memory_order_acquire) != pair[1]);
        memcpy(PyBytes_AS_STRING(words) + sizeof pair * i, pair, sizeof pair);
    }
    return words;
}

static PyObject *figures_offset_place(PyStorePart *part, PyObject *args)
{
    PyStore *self = part->store;
    unsigned int slot;
    if (!PyArg_ParseTuple(args, "I:offset_place", &slot) || !store_check(self)) {
        return NULL;
    }
    if (slot >= self->core.sizes.offset_max) {
        return core_raise(self->state, SHMQ_BAD_ARGUMENT, "offset slot %u of %u", slot, self->core.sizes.offset_max);
    }
    return PyLong_FromUnsignedLongLong(atomic_load_explicit(&self->core.offsets[slot].place, memory_order_acquire));
}

static PyObject *figures_offsets_taken(PyStorePart *part, PyObject *unused)
{
    PyStore *self = part->store;
    (void)unused;
    if (!store_check(self)) {
        return NULL;
    }
    const struct shmq_store *store = &self->core;
    const uint32_t count = shmq_offset_count(store);
    PyObject *words = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)count * 8);
    for (uint32_t i = 0; words && i < count; i++) {
        const struct shmq_offset *entry = &store->offsets[i];
        uint64_t owner = atomic_load_explicit(&entry->owner, memory_order_acquire);
        uint64_t taken = atomic_load_explicit(&entry->taken, memory_order_relaxed) & ~TAKEN_LOCALLY;
        if (shmq_owner_is_local(owner)) {
            taken = shmq_client_lives(store, owner) && taken ? taken | TAKEN_LOCALLY : 0;
        }
        memcpy(PyBytes_AS_STRING(words) + sizeof taken * i, &taken, sizeof taken);
    }
    return words;
}

static PyObject *figures_clients(PyStorePart *part, PyObject *unused)
{
    PyStore *self = part->store;
    (void)unused;
    if (!store_check(self)) {
        return NULL;
    }
    const uint32_t count = shmq_client_count(&self->core);
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < count; i++) {
        struct shmq_client *client = &self->core.clients[i];
        uint32_t state = atomic_load_explicit(&client->state, memory_order_acquire);
        if (state == SHMQ_CLIENT_FREE) {
            continue;
        }
        const int64_t numbers[] = {i, state, client->pid, (int64_t)client->start, client->role,
                                   (int64_t)atomic_load_explicit(&client->received, memory_order_relaxed),
                                   (int64_t)atomic_load_explicit(&client->sent, memory_order_relaxed),
                                   (int64_t)atomic_load_explicit(&client->beat_ns, memory_order_relaxed),
                                   (int64_t)atomic_load_explicit(&client->settled, memory_order_relaxed)};
        if (!row_append(list, row_new(self->state, ROW_CLIENT, numbers, -1, NULL))) {
            Py_CLEAR(list);
        }
    }
    return list;
}

PyMethodDef figure_methods[] = {
    {"queue_counts", (PyCFunction)figures_queue_counts, METH_NOARGS,
     "offset_max and bytes of every queue entry, as native 64-bit words."},
    {"queue_numbers", (PyCFunction)figures_queue_numbers, METH_NOARGS,
     "The number of the queue that lives in each entry, as native 32-bit words; all bits set: none."},
    {"offset_counts", (PyCFunction)figures_offset_counts, METH_VARARGS,
     "Committed offset plus 1, group and queue of the offset slots from one on, as native 64-bit words."},
    {"offset_place", (PyCFunction)figures_offset_place, METH_VARARGS,
     "The slot that an entry of the table of slots is."},
    {"offsets_taken", (PyCFunction)figures_offsets_taken, METH_NOARGS,
     "Of each offset slot the queue offset behind what was handed out, 0: none; as native 64-bit words."},
    {"clients", (PyCFunction)figures_clients, METH_NOARGS,
     "A ClientEntry of every used slot."},
    {NULL},
};

/* What the keeper asks too. */
PyMethodDef state_methods[] = {
    {"stats", (PyCFunction)figures_stats, METH_NOARGS, "Counters of struct shmq_log."},
    {"dirty_queues", (PyCFunction)figures_dirty_queues, METH_VARARGS,
     "An UnpersistedQueue of each queue whose units are not all in files."},
    {NULL},
};

PyGetSetDef figure_getset[] = {
    {"frames_used", (getter)get_frames_used, NULL, "Frames that hold units of a queue.", NULL},
    {"lookup_probes", (getter)get_lookup_probes, NULL, "Entries looked at for groups and offset slots so far.", NULL},
    {NULL},
};

/* ---- sizes of records ------------------------------------------------------------------------------ */
static bool bounds_from(struct core_state *state, PyObject *sequence, uint64_t bounds[BOUNDS_MAX], size_t *count)
{
    PyObject *fast = PySequence_Fast(sequence, "bounds are a sequence of numbers");
    if (!fast) {
        return false;
    }
    *count = (size_t)PySequence_Fast_GET_SIZE(fast);
    bool ok = *count <= BOUNDS_MAX;
    if (!ok) {
        core_raise(state, SHMQ_BAD_ARGUMENT, "%zu bounds, at most %u", *count, BOUNDS_MAX);
    }
    for (size_t i = 0; ok && i < *count; i++) {
        bounds[i] = PyLong_AsUnsignedLongLong(PySequence_Fast_GET_ITEM(fast, (Py_ssize_t)i));
        ok = !PyErr_Occurred();
    }
    Py_DECREF(fast);
    return ok;
}

static PyObject *core_unit_sizes(PyObject *module, PyObject *args)
{
    Py_buffer units;
    PyObject *sequence;
    uint64_t bounds[BOUNDS_MAX], counts[BOUNDS_MAX + 2] = {0};
    size_t bound_count = 0;
    if (!PyArg_ParseTuple(args, "y*O:unit_sizes", &units, &sequence)) {
        return NULL;
    }
    bool ok = bounds_from(PyModule_GetState(module), sequence, bounds, &bound_count);
    for (Py_ssize_t at = 0; ok && at + (Py_ssize_t)SHMQ_UNIT_BYTES <= units.len; at += (Py_ssize_t)SHMQ_UNIT_BYTES) {
        struct shmq_unit unit;
        size_t bucket = 0;
        shmq_unit_unpack((const uint8_t *)units.buf + at, &unit);
        while (bucket < bound_count && unit.record_bytes > bounds[bucket]) {
            bucket++;
        }
        counts[bucket]++;
        counts[bound_count + 1] += unit.record_bytes;
    }
    PyBuffer_Release(&units);
    PyObject *list = ok ? PyList_New((Py_ssize_t)bound_count + 2) : NULL;
    for (size_t i = 0; list && i < bound_count + 2; i++) {
        PyObject *number = PyLong_FromUnsignedLongLong(counts[i]);
        if (!number) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, (Py_ssize_t)i, number);
    }
    return list;
}

PyMethodDef figure_functions[] = {
    {"unit_sizes", core_unit_sizes, METH_VARARGS,
     "How many records have up to each bound of bytes, and more; and the sum of their bytes."},
    {NULL},
};
