/* What the metrics ask of the tables and of units, many at a time: a scrape and a keeper's round have no time for a call
 * a queue or a message.
 *
 * How far a member was handed messages is shown in its group's offset slot. A local member shows it as long as it owns
 * the slot; of a client over TCP the bridge shows it, and nobody owns the slot.
 */
#include <string.h>

#include "py_core.h"

#define BOUNDS_MAX 32u
#define OWNED (UINT64_C(1) << 63)

/* The owner is there as far as shared memory says: its slot is in use, and was not handed out again. */
static bool owner_stays(const struct shmq_store *store, uint64_t word)
{
    uint32_t slot = (uint32_t)word - 1u;
    if (!(uint32_t)word || slot >= store->sizes.client_max) {
        return false;
    }
    const struct shmq_client *client = &store->clients[slot];
    return atomic_load_explicit(&client->state, memory_order_acquire) != SHMQ_CLIENT_FREE &&
           atomic_load_explicit(&client->generation, memory_order_acquire) == (uint32_t)(word >> 32);
}

static PyObject *figures_offset_counts(PyStore *self, PyObject *args)
{
    unsigned int first = 0;
    if (!PyArg_ParseTuple(args, "|I:offset_counts", &first) || !store_check(self)) {
        return NULL;
    }
    uint32_t count = atomic_load_explicit(&self->core.readers->offset_count, memory_order_acquire);
    count = count < self->core.sizes.offset_max ? count : self->core.sizes.offset_max;
    count = count > first ? count - first : 0;
    PyObject *words = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)count * 16);
    for (uint32_t i = 0; words && i < count; i++) {
        const struct shmq_offset *entry = &self->core.offsets[first + i];
        uint64_t pair[2] = {atomic_load_explicit(&entry->committed, memory_order_acquire),
                            (uint64_t)entry->group << 32 | entry->queue};
        memcpy(PyBytes_AS_STRING(words) + sizeof pair * i, pair, sizeof pair);
    }
    return words;
}

static PyObject *figures_offsets_taken(PyStore *self, PyObject *unused)
{
    (void)unused;
    if (!store_check(self)) {
        return NULL;
    }
    const struct shmq_store *store = &self->core;
    uint32_t count = atomic_load_explicit(&store->readers->offset_count, memory_order_acquire);
    count = count < store->sizes.offset_max ? count : store->sizes.offset_max;
    PyObject *words = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)count * 8);
    for (uint32_t i = 0; words && i < count; i++) {
        const struct shmq_offset *entry = &store->offsets[i];
        uint64_t owner = atomic_load_explicit(&entry->owner, memory_order_acquire);
        uint64_t taken = atomic_load_explicit(&entry->taken, memory_order_relaxed) & ~OWNED;
        if (owner) {
            taken = owner_stays(store, owner) && taken ? taken | OWNED : 0;
        }
        memcpy(PyBytes_AS_STRING(words) + sizeof taken * i, &taken, sizeof taken);
    }
    return words;
}

static PyObject *figures_offset_show(PyStore *self, PyObject *args)
{
    unsigned int slot;
    unsigned long long taken;
    if (!PyArg_ParseTuple(args, "IK:offset_show", &slot, &taken) || !store_check_readers(self)) {
        return NULL;
    }
    if (slot >= self->core.sizes.offset_max) {
        core_raise(self->state, SHMQ_BAD_ARGUMENT, "offset slot %u of %u", slot, self->core.sizes.offset_max);
        return NULL;
    }
    struct shmq_offset *entry = &self->core.offsets[slot];
    uint64_t owner = atomic_load_explicit(&entry->owner, memory_order_acquire);
    if (owner && !owner_stays(&self->core, owner) &&
        atomic_compare_exchange_strong_explicit(&entry->owner, &owner, 0, memory_order_acq_rel, memory_order_relaxed)) {
        owner = 0;
    }
    if (!owner) {
        atomic_store_explicit(&entry->taken, (uint64_t)taken, memory_order_relaxed);
    }
    Py_RETURN_NONE;
}

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

static PyObject *figures_unit_sizes(PyStore *self, PyObject *args)
{
    Py_buffer units;
    PyObject *sequence;
    uint64_t bounds[BOUNDS_MAX], counts[BOUNDS_MAX + 2] = {0};
    size_t bound_count = 0;
    if (!PyArg_ParseTuple(args, "y*O:unit_sizes", &units, &sequence)) {
        return NULL;
    }
    bool ok = bounds_from(self->state, sequence, bounds, &bound_count);
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

PyMethodDef figure_methods[] = {
    {"offset_counts", (PyCFunction)figures_offset_counts, METH_VARARGS,
     "Committed offset plus 1, group and queue of the offset slots from one on, as native 64-bit words."},
    {"offsets_taken", (PyCFunction)figures_offsets_taken, METH_NOARGS,
     "Of each offset slot the queue offset behind what was handed out, 0: none; as native 64-bit words."},
    {"offset_show", (PyCFunction)figures_offset_show, METH_VARARGS,
     "Show how far somebody without a client slot was handed messages."},
    {"unit_sizes", (PyCFunction)figures_unit_sizes, METH_VARARGS,
     "How many records have up to each bound of bytes, and more; and the sum of their bytes."},
    {NULL},
};
