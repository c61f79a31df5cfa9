/* Store and BrokerTables: the progress of groups, and who owns which queue: offset.c and owner.c of the core.
 *
 * What Python calls a slot is its place: number of the group << 32 | number of the queue. When group or queue is no more and
 * the slot is another's (offset.c), it has no offset and no owner, and nothing that is done to it has an effect.
 */
#include "core/internal.h"
#include "face/store/py_store.h"

/* A slot as Python knows it. */
struct slot { struct shmq_offset *entry; uint64_t place; };

static bool slot_from(PyStore *self, PyObject *value, struct slot *out)
{
    if (!store_check(self)) {
        return false;
    }
    const unsigned long long place = PyLong_AsUnsignedLongLong(value);
    if (place == (unsigned long long)-1 && PyErr_Occurred()) {
        return false;
    }
    const uint32_t slot = shmq_offset_slot(&self->core, place);
    if (slot != SHMQ_NONE) {
        *out = (struct slot){.entry = &self->core.offsets[slot], .place = place};
        return true;
    }
    core_raise(self->state, SHMQ_BAD_ARGUMENT, "no offset slot was made for group %u and queue %u",
               (unsigned int)(place >> 32), (unsigned int)place);
    return false;
}

static long long owner_number(uint32_t client_slot)
{
    return client_slot == SHMQ_NONE ? -1 : (long long)client_slot;
}

static PyObject *members_offset_put(PyStorePart *part, PyObject *args)
{
    PyStore *self = part->store;
    unsigned int group, queue;
    uint32_t slot = 0;
    if (!PyArg_ParseTuple(args, "II:offset_put", &group, &queue) || !store_check(self)) {
        return NULL;
    }
    enum shmq_status status = shmq_offset_put(&self->core, group, queue, &slot);
    return status == SHMQ_OK ? PyLong_FromUnsignedLongLong(shmq_offset_place(group, queue))
                             : core_raise_status(self->state, status, "an offset slot for a group and a queue");
}

static PyObject *members_offset_find(PyStorePart *part, PyObject *args)
{
    PyStore *self = part->store;
    unsigned int group, queue;
    if (!PyArg_ParseTuple(args, "II:offset_find", &group, &queue) || !store_check(self)) {
        return NULL;
    }
    uint32_t slot = shmq_offset_find(&self->core, group, queue);
    return slot == SHMQ_NONE ? PyLong_FromLong(-1) : PyLong_FromUnsignedLongLong(shmq_offset_place(group, queue));
}

static PyObject *members_offset_get(PyStore *self, PyObject *value)
{
    struct slot slot;
    if (!slot_from(self, value, &slot)) {
        return NULL;
    }
    return PyLong_FromLongLong((long long)shmq_offset_get(slot.entry, slot.place) - 1);
}

static PyObject *members_offset_set(PyStore *self, PyObject *args)
{
    PyObject *value, *number;
    uint64_t offset;
    struct slot slot;
    if (!PyArg_ParseTuple(args, "OO:offset_set", &value, &number) || !store_check_readers(self) ||
        !slot_from(self, value, &slot) ||
        !whole_in(self->state, number, "the offset of a group", SHMQ_QUEUE_OFFSET_MAX, &offset)) {
        return NULL;
    }
    (void)shmq_offset_set(&self->core, slot.entry, slot.place, offset);
    Py_RETURN_NONE;
}

static PyObject *members_offset_owner(PyStore *self, PyObject *value)
{
    struct slot slot;
    if (!slot_from(self, value, &slot)) {
        return NULL;
    }
    return PyLong_FromLongLong(owner_number(shmq_owner_find(&self->core, slot.entry, slot.place)));
}

/* The slot that a member with a client slot means. */
static bool own_slot_from(PyStore *self, PyObject *value, struct slot *out)
{
    if (!slot_from(self, value, out)) {
        return false;
    }
    if (!atomic_load_explicit(&self->core.client, memory_order_relaxed)) {
        core_raise(self->state, SHMQ_BAD_ARGUMENT, "this store has no client slot; call use_client() first");
        return false;
    }
    return true;
}

static PyObject *members_offset_is_own(PyStore *self, PyObject *value)
{
    struct slot slot;
    return slot_from(self, value, &slot) ? PyBool_FromLong(shmq_owner_is_own(&self->core, slot.entry, slot.place)) : NULL;
}

static PyObject *members_offset_take(PyStore *self, PyObject *value)
{
    struct slot slot;
    if (!own_slot_from(self, value, &slot)) {
        return NULL;
    }
    const bool taken = shmq_owner_take(&self->core, slot.entry, slot.place);
    const uint64_t client = atomic_load_explicit(&self->core.client, memory_order_relaxed);
    if (!taken && !shmq_client_lives(&self->core, client)) {
        return core_raise(self->state, SHMQ_DETACHED,
                          "the broker took client slot %u back, as the connection ended; a queue is taken once this "
                          "process is attached again",
                          shmq_client_slot(client));
    }
    return PyBool_FromLong(taken);
}

static PyObject *members_offset_leave(PyStore *self, PyObject *value)
{
    struct slot slot;
    if (!own_slot_from(self, value, &slot)) {
        return NULL;
    }
    shmq_owner_leave(&self->core, slot.entry, slot.place);
    Py_RETURN_NONE;
}

static PyObject *members_offset_lock(PyStorePart *part, PyObject *const *args, Py_ssize_t nargs)
{
    struct core_state *state = part->store->state;
    uint64_t holder, now_ms, life_ms;
    struct slot slot;
    if (nargs != 4) {
        return PyErr_Format(PyExc_TypeError, "offset_lock() takes a slot, a holder, now and a life in ms (%zd given)",
                            nargs);
    }
    if (!slot_from(part->store, args[0], &slot) ||
        !whole_in(state, args[1], "the holder of a lock", SHMQ_OWNER_HOLDER_MAX, &holder) ||
        !whole_in(state, args[2], "the begin of a lock in ms", SHMQ_OWNER_UNTIL_MS_MAX, &now_ms) ||
        !whole_in(state, args[3], "the life of a lock in ms", SHMQ_OWNER_UNTIL_MS_MAX - now_ms, &life_ms)) {
        return NULL;
    }
    const struct shmq_owner_lock lock = {.holder = (uint32_t)holder, .now_ms = now_ms, .life_ms = life_ms};
    return PyBool_FromLong(shmq_owner_lock(&part->store->core, slot.entry, slot.place, &lock));
}

static PyObject *members_offset_unlock(PyStorePart *part, PyObject *const *args, Py_ssize_t nargs)
{
    uint64_t holder;
    struct slot slot;
    if (nargs != 2) {
        return PyErr_Format(PyExc_TypeError, "offset_unlock() takes a slot and a holder (%zd given)", nargs);
    }
    if (!slot_from(part->store, args[0], &slot) ||
        !whole_in(part->store->state, args[1], "the holder of a lock", SHMQ_OWNER_HOLDER_MAX, &holder)) {
        return NULL;
    }
    shmq_owner_unlock(slot.entry, slot.place, (uint32_t)holder);
    Py_RETURN_NONE;
}

static PyObject *members_offset_free(PyStorePart *part, PyObject *value)
{
    struct slot slot;
    if (!slot_from(part->store, value, &slot)) {
        return NULL;
    }
    shmq_owner_free(slot.entry, slot.place);
    Py_RETURN_NONE;
}

static PyObject *members_offsets(PyStore *self, PyObject *unused)
{
    (void)unused;
    if (!store_check(self)) {
        return NULL;
    }
    const uint32_t count = shmq_offset_count(&self->core);
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < count; i++) {
        struct shmq_offset *entry = &self->core.offsets[i];
        const uint64_t before = atomic_load_explicit(&entry->place, memory_order_acquire);
        uint64_t committed = atomic_load_explicit(&entry->committed, memory_order_acquire);
        uint64_t owner = atomic_load_explicit(&entry->owner, memory_order_acquire);
        const uint64_t place = atomic_load_explicit(&entry->place, memory_order_acquire);
        if (place != before) {
            committed = owner = 0; /* of the group and queue that were there before */
        }
        const int64_t numbers[] = {(int64_t)place, (int64_t)(place >> 32), (uint32_t)place, (int64_t)committed - 1,
                                   owner_number(shmq_owner_of(&self->core, owner)),
                                   (int64_t)atomic_load_explicit(&entry->updated_ms, memory_order_relaxed)};
        if (!row_append(list, row_new(self->state, ROW_OFFSET, numbers, -1, NULL))) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *members_offset_lose(PyStorePart *part, PyObject *args)
{
    PyStore *self = part->store;
    PyObject *value, *number, *time = NULL;
    uint64_t count, seconds = 0;
    struct slot slot;
    if (!PyArg_ParseTuple(args, "OO|O:offset_lose", &value, &number, &time) || !slot_from(self, value, &slot) ||
        !whole_in(self->state, number, "the count of lost messages", UINT64_MAX, &count) ||
        (time && !whole_in(self->state, time, "the time of a loss in seconds", UINT64_MAX, &seconds))) {
        return NULL;
    }
    shmq_offset_lose(slot.entry, slot.place, count, seconds ? seconds : shmq_clock_ms(&self->core) / 1000);
    Py_RETURN_NONE;
}

static PyObject *members_offsets_lost(PyStore *self, PyObject *unused)
{
    (void)unused;
    if (!store_check(self)) {
        return NULL;
    }
    const uint32_t count = shmq_offset_count(&self->core);
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < count; i++) {
        const struct shmq_offset *entry = &self->core.offsets[i];
        const uint64_t lost = atomic_load_explicit(&entry->lost, memory_order_relaxed);
        const uint64_t place = atomic_load_explicit(&entry->place, memory_order_relaxed);
        if (lost && !row_append(list, Py_BuildValue("(IIKK)", (unsigned int)(place >> 32), (unsigned int)place,
                                                    (unsigned long long)(lost >> 32),
                                                    (unsigned long long)(uint32_t)lost))) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *members_offset_show(PyStorePart *part, PyObject *args)
{
    PyObject *value, *number;
    uint64_t taken;
    struct slot slot;
    if (!PyArg_ParseTuple(args, "OO:offset_show", &value, &number) || !slot_from(part->store, value, &slot) ||
        !whole_in(part->store->state, number, "the offset of a reader", INT64_MAX, &taken)) {
        return NULL;
    }
    shmq_owner_show(&part->store->core, slot.entry, slot.place, taken);
    Py_RETURN_NONE;
}

PyMethodDef offset_methods[] = {
    {"offset_get", (PyCFunction)members_offset_get, METH_O, "Committed queue offset, -1 when never set."},
    {"offset_set", (PyCFunction)members_offset_set, METH_VARARGS, "Set the next queue offset to deliver."},
    {"offset_owner", (PyCFunction)members_offset_owner, METH_O,
     "Client slot of the live owner, -1 without an owner, or when it is dead."},
    {"offset_is_own", (PyCFunction)members_offset_is_own, METH_O, "Whether we own the queue."},
    {"offset_take", (PyCFunction)members_offset_take, METH_O,
     "Become the owner if no live client is; True when it is ours."},
    {"offset_leave", (PyCFunction)members_offset_leave, METH_O, "Give the queue up if it is ours."},
    {"offsets", (PyCFunction)members_offsets, METH_NOARGS,
     "(slot, group, queue, committed or -1, owner client slot or -1, updated_ms) of every offset slot."},
    {"offsets_lost", (PyCFunction)members_offsets_lost, METH_NOARGS,
     "(group, queue, messages lost to cleaning, seconds since the epoch of the last) where there are any."},
    {NULL},
};

PyMethodDef broker_offset_methods[] = {
    {"offset_put", (PyCFunction)members_offset_put, METH_VARARGS,
     "Offset slot of a group and a queue, made if need be."},
    {"offset_find", (PyCFunction)members_offset_find, METH_VARARGS, "The same, -1 when there is none."},
    {"offset_lock", (PyCFunction)(void (*)(void))members_offset_lock, METH_FASTCALL,
     "(slot, holder, now ms, life ms): lock the queue for a client over TCP, or renew that; False while it is another's."},
    {"offset_unlock", (PyCFunction)(void (*)(void))members_offset_unlock, METH_FASTCALL, "(slot, holder): end that lock."},
    {"offset_free", (PyCFunction)members_offset_free, METH_O, "Take the queue away from its owner."},
    {"offset_show", (PyCFunction)members_offset_show, METH_VARARGS,
     "Show how far a client without a slot was handed messages."},
    {NULL},
};

PyMethodDef loss_methods[] = {
    {"offset_lose", (PyCFunction)members_offset_lose, METH_VARARGS,
     "Count messages that cleaning took before the group had acknowledged them."},
    {NULL},
};
