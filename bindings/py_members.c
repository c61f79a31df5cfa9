/* Store: groups, their offsets, who owns which queue, and the client slots.
 *
 *   owner word of an offset slot     client slot + 1 | slot generation << 32      0: nobody
 *
 * A client slot is live while its generation is the one in the word, its state is not FREE and its process (pid and
 * start time) exists. (1) Only compare-and-swap gives a queue to anybody. (2) An owner word of the dead may be replaced by
 * anybody. (3) The broker takes a word away from the living when it sets a group's offset: the member finds out when it
 * next looks, and until then nothing it acknowledges moves the offset.
 */
#include <string.h>

#include "py_core.h"

/* ---- groups ---------------------------------------------------------------------------------------- */
static const char *group_name(PyStore *self, PyObject *value)
{
    Py_ssize_t bytes;
    const char *name = PyUnicode_AsUTF8AndSize(value, &bytes);
    if (name && (!bytes || bytes > SHMQ_GROUP_BYTES_MAX || strlen(name) != (size_t)bytes)) {
        core_raise(self->state, SHMQ_BAD_ARGUMENT, "group %R: a name has 1 to %u bytes, none of them NUL", value,
                   SHMQ_GROUP_BYTES_MAX);
        return NULL;
    }
    return name;
}

static PyObject *members_group_put(PyStore *self, PyObject *value)
{
    const char *name = store_check_writable(self) ? group_name(self, value) : NULL;
    uint32_t group = 0;
    if (!name) {
        return NULL;
    }
    enum shmq_status status = shmq_group_put(&self->core, name, &group);
    return status == SHMQ_OK ? PyLong_FromUnsignedLong(group) : core_raise_status(self->state, status, name);
}

static PyObject *members_group_find(PyStore *self, PyObject *value)
{
    const char *name = store_check(self) ? group_name(self, value) : NULL;
    if (!name) {
        return NULL;
    }
    uint32_t group = shmq_group_find(&self->core, name);
    return PyLong_FromLong(group == SHMQ_NONE ? -1 : (long)group);
}

static PyObject *members_group_delete(PyStore *self, PyObject *value)
{
    const char *name = store_check_writable(self) ? group_name(self, value) : NULL;
    if (!name) {
        return NULL;
    }
    enum shmq_status status = shmq_group_delete(&self->core, name);
    if (status != SHMQ_OK) {
        return core_raise_status(self->state, status, name);
    }
    Py_RETURN_NONE;
}

static PyObject *members_groups(PyStore *self, PyObject *unused)
{
    (void)unused;
    if (!store_check(self)) {
        return NULL;
    }
    uint32_t count = atomic_load_explicit(&self->core.readers->group_count, memory_order_acquire);
    count = count < self->core.sizes.group_max ? count : self->core.sizes.group_max;
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < count; i++) {
        struct shmq_group *group = &self->core.groups[i];
        if (atomic_load_explicit(&group->state, memory_order_acquire) != SHMQ_TOPIC_LIVE) {
            continue;
        }
        uint32_t bytes = group->name_bytes < sizeof group->name ? group->name_bytes : (uint32_t)sizeof group->name;
        PyObject *name = PyUnicode_DecodeUTF8(group->name, bytes, "replace");
        PyObject *item = name ? Py_BuildValue("(IN)", i, name) : NULL;
        if (!item || PyList_Append(list, item) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(item);
    }
    return list;
}

static PyObject *members_group_settings(PyStore *self, PyObject *value)
{
    char text[SHMQ_GROUP_SETTINGS_BYTES_MAX];
    unsigned long group = store_check(self) ? PyLong_AsUnsignedLong(value) : (unsigned long)-1;
    if (group == (unsigned long)-1 && PyErr_Occurred()) {
        return NULL;
    }
    uint32_t bytes = shmq_group_settings(&self->core, group < SHMQ_NONE ? (uint32_t)group : SHMQ_NONE, text);
    return PyBytes_FromStringAndSize(text, bytes);
}

static PyObject *members_group_set(PyStore *self, PyObject *args)
{
    unsigned int group;
    Py_buffer text;
    if (!PyArg_ParseTuple(args, "Iy*:group_set", &group, &text)) {
        return NULL;
    }
    enum shmq_status status = SHMQ_BAD_ARGUMENT;
    bool writable = store_check_writable(self);
    if (writable && text.len <= SHMQ_GROUP_SETTINGS_BYTES_MAX) {
        status = shmq_group_set(&self->core, group, text.buf, (uint32_t)text.len);
    }
    PyBuffer_Release(&text);
    if (!writable) {
        return NULL;
    }
    if (status != SHMQ_OK) {
        return core_raise_status(self->state, status, "the settings of a group");
    }
    Py_RETURN_NONE;
}

/* ---- offsets and owners ---------------------------------------------------------------------------- */
static struct shmq_offset *offset_entry(PyStore *self, PyObject *value)
{
    if (!store_check(self)) {
        return NULL;
    }
    unsigned long slot = PyLong_AsUnsignedLong(value);
    if (slot == (unsigned long)-1 && PyErr_Occurred()) {
        return NULL;
    }
    if (slot < self->core.sizes.offset_max) {
        return &self->core.offsets[slot];
    }
    core_raise(self->state, SHMQ_BAD_ARGUMENT, "offset slot %lu of %u", slot, self->core.sizes.offset_max);
    return NULL;
}

static int64_t owner_of(PyStore *self, uint64_t word)
{
    uint32_t slot = (uint32_t)word - 1u;
    if (!(uint32_t)word || slot >= self->core.sizes.client_max) {
        return -1;
    }
    struct shmq_client *client = &self->core.clients[slot];
    if (atomic_load_explicit(&client->state, memory_order_acquire) == SHMQ_CLIENT_FREE ||
        atomic_load_explicit(&client->generation, memory_order_acquire) != (uint32_t)(word >> 32)) {
        return -1;
    }
    uint32_t pid = client->pid;
    uint64_t start = client->start;
    if (pid == self->core.self_pid && start == self->core.self_start) {
        return slot;
    }
    return shmq_process_start(pid) == start ? (int64_t)slot : -1;
}

static PyObject *members_offset_put(PyStore *self, PyObject *args)
{
    unsigned int group, queue;
    uint32_t slot = 0;
    if (!PyArg_ParseTuple(args, "II:offset_put", &group, &queue) || !store_check_writable(self)) {
        return NULL;
    }
    enum shmq_status status = shmq_offset_put(&self->core, group, queue, &slot);
    return status == SHMQ_OK ? PyLong_FromUnsignedLong(slot)
                             : core_raise_status(self->state, status, "an offset slot for a group and a queue");
}

static PyObject *members_offset_get(PyStore *self, PyObject *value)
{
    struct shmq_offset *entry = offset_entry(self, value);
    if (!entry) {
        return NULL;
    }
    uint64_t committed = atomic_load_explicit(&entry->committed, memory_order_acquire);
    return PyLong_FromLongLong((long long)committed - 1);
}

static PyObject *members_offset_set(PyStore *self, PyObject *args)
{
    PyObject *slot;
    unsigned long long offset;
    struct shmq_offset *entry = NULL;
    if (PyArg_ParseTuple(args, "OK:offset_set", &slot, &offset) && store_check_readers(self)) {
        entry = offset_entry(self, slot);
    }
    if (!entry) {
        return NULL;
    }
    atomic_store_explicit(&entry->committed, offset + 1, memory_order_release);
    atomic_store_explicit(&entry->updated_ms, self->core.io->wall_ms(), memory_order_release);
    Py_RETURN_NONE;
}

static PyObject *members_offset_owner(PyStore *self, PyObject *value)
{
    struct shmq_offset *entry = offset_entry(self, value);
    if (!entry) {
        return NULL;
    }
    return PyLong_FromLongLong(owner_of(self, atomic_load_explicit(&entry->owner, memory_order_acquire)));
}

static uint64_t own_word(PyStore *self)
{
    uint64_t word = shmq_owner_word(&self->core);
    if (!word) {
        core_raise(self->state, SHMQ_BAD_ARGUMENT, "this store has no client slot; call use_client() first");
    }
    return word;
}

static PyObject *members_offset_take(PyStore *self, PyObject *value)
{
    struct shmq_offset *entry = offset_entry(self, value);
    uint64_t own = entry ? own_word(self) : 0;
    if (!own) {
        return NULL;
    }
    uint64_t seen = atomic_load_explicit(&entry->owner, memory_order_acquire);
    while (seen != own) {
        if (owner_of(self, seen) >= 0) {
            Py_RETURN_FALSE;
        }
        /* Acquire: what the former owner did before it left happened before what we read of its progress. */
        if (atomic_compare_exchange_strong_explicit(&entry->owner, &seen, own, memory_order_acq_rel,
                                                    memory_order_acquire)) {
            atomic_store_explicit(&entry->taken, 0, memory_order_relaxed); /* that was the former owner's */
            break;
        }
    }
    Py_RETURN_TRUE;
}

static PyObject *members_offset_leave(PyStore *self, PyObject *value)
{
    struct shmq_offset *entry = offset_entry(self, value);
    uint64_t own = entry ? own_word(self) : 0;
    if (!own) {
        return NULL;
    }
    if (atomic_load_explicit(&entry->owner, memory_order_relaxed) == own) {
        atomic_store_explicit(&entry->taken, 0, memory_order_relaxed);
    }
    (void)atomic_compare_exchange_strong_explicit(&entry->owner, &own, 0, memory_order_acq_rel, memory_order_relaxed);
    Py_RETURN_NONE;
}

static PyObject *members_offset_free(PyStore *self, PyObject *value)
{
    struct shmq_offset *entry = offset_entry(self, value);
    if (!entry || !store_check_writable(self)) {
        return NULL;
    }
    atomic_store_explicit(&entry->taken, 0, memory_order_relaxed);
    atomic_store_explicit(&entry->owner, 0, memory_order_seq_cst);
    Py_RETURN_NONE;
}

static PyObject *members_offsets(PyStore *self, PyObject *unused)
{
    (void)unused;
    if (!store_check(self)) {
        return NULL;
    }
    uint32_t count = atomic_load_explicit(&self->core.readers->offset_count, memory_order_acquire);
    count = count < self->core.sizes.offset_max ? count : self->core.sizes.offset_max;
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < count; i++) {
        struct shmq_offset *entry = &self->core.offsets[i];
        uint64_t committed = atomic_load_explicit(&entry->committed, memory_order_acquire);
        uint64_t owner = atomic_load_explicit(&entry->owner, memory_order_acquire);
        PyObject *item =
            Py_BuildValue("(IIILLK)", i, entry->group, entry->queue, (long long)committed - 1,
                          (long long)owner_of(self, owner),
                          (unsigned long long)atomic_load_explicit(&entry->updated_ms, memory_order_relaxed));
        if (!item || PyList_Append(list, item) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(item);
    }
    return list;
}

/* ---- client slots ---------------------------------------------------------------------------------- */
static PyObject *members_client_put(PyStore *self, PyObject *args)
{
    unsigned int pid, role;
    unsigned long long start;
    uint32_t slot = 0;
    if (!PyArg_ParseTuple(args, "IKI:client_put", &pid, &start, &role) || !store_check_writable(self)) {
        return NULL;
    }
    enum shmq_status status = shmq_client_put(&self->core, pid, start, role, &slot);
    return status == SHMQ_OK ? PyLong_FromUnsignedLong(slot) : core_raise_status(self->state, status, "a client slot");
}

static bool slot_from(PyStore *self, PyObject *value, uint32_t *slot)
{
    unsigned long number = PyLong_AsUnsignedLong(value);
    if ((number == (unsigned long)-1 && PyErr_Occurred()) || !store_check(self)) {
        return false;
    }
    *slot = (uint32_t)number;
    if (number < self->core.sizes.client_max) {
        return true;
    }
    core_raise(self->state, SHMQ_BAD_ARGUMENT, "client slot %lu of %u", number, self->core.sizes.client_max);
    return false;
}

static PyObject *members_client_drop(PyStore *self, PyObject *value)
{
    uint32_t slot;
    if (!store_check_writable(self) || !slot_from(self, value, &slot)) {
        return NULL;
    }
    shmq_client_drop(&self->core, slot);
    Py_RETURN_NONE;
}

static PyObject *members_clients(PyStore *self, PyObject *unused)
{
    (void)unused;
    typedef unsigned long long u64;
    if (!store_check(self)) {
        return NULL;
    }
    uint32_t count = atomic_load_explicit(&self->core.readers->client_high, memory_order_acquire);
    count = count < self->core.sizes.client_max ? count : self->core.sizes.client_max;
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < count; i++) {
        struct shmq_client *client = &self->core.clients[i];
        uint32_t state = atomic_load_explicit(&client->state, memory_order_acquire);
        if (state == SHMQ_CLIENT_FREE) {
            continue;
        }
        PyObject *item = Py_BuildValue("(IIIKIKKKK)", i, state, client->pid, (u64)client->start, client->role,
                                       (u64)atomic_load_explicit(&client->received, memory_order_relaxed),
                                       (u64)atomic_load_explicit(&client->sent, memory_order_relaxed),
                                       (u64)atomic_load_explicit(&client->beat_ns, memory_order_relaxed),
                                       (u64)atomic_load_explicit(&client->settled, memory_order_relaxed));
        if (!item || PyList_Append(list, item) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(item);
    }
    return list;
}

static PyObject *members_use_client(PyStore *self, PyObject *value)
{
    uint32_t slot;
    if (!store_check_readers(self) || !slot_from(self, value, &slot)) {
        return NULL;
    }
    self->core.client_slot = slot;
    Py_RETURN_NONE;
}

PyMethodDef member_methods[] = {
    {"group_put", (PyCFunction)members_group_put, METH_O, "Create a group, or find it; returns its index."},
    {"group_find", (PyCFunction)members_group_find, METH_O, "Group index, -1 when there is none."},
    {"group_delete", (PyCFunction)members_group_delete, METH_O, "Forget a group and its offsets."},
    {"groups", (PyCFunction)members_groups, METH_NOARGS, "(index, name) of every group."},
    {"group_settings", (PyCFunction)members_group_settings, METH_O, "What a group is configured with, as text."},
    {"group_set", (PyCFunction)members_group_set, METH_VARARGS, "Configure a group, with text of the caller's."},
    {"offset_put", (PyCFunction)members_offset_put, METH_VARARGS,
     "Offset slot of a group and a queue, made if need be."},
    {"offset_get", (PyCFunction)members_offset_get, METH_O, "Committed queue offset, -1 when never set."},
    {"offset_set", (PyCFunction)members_offset_set, METH_VARARGS, "Set the next queue offset to deliver."},
    {"offset_owner", (PyCFunction)members_offset_owner, METH_O,
     "Client slot of the live owner, -1 when nobody owns it or the owner is dead."},
    {"offset_take", (PyCFunction)members_offset_take, METH_O,
     "Become the owner if nobody live is; True when it is ours."},
    {"offset_leave", (PyCFunction)members_offset_leave, METH_O, "Give the queue up if it is ours."},
    {"offset_free", (PyCFunction)members_offset_free, METH_O, "Take the queue away from whoever owns it."},
    {"offsets", (PyCFunction)members_offsets, METH_NOARGS,
     "(slot, group, queue, committed or -1, owner client slot or -1, updated_ms) of every offset slot."},
    {"client_put", (PyCFunction)members_client_put, METH_VARARGS, "Hand out a client slot."},
    {"client_drop", (PyCFunction)members_client_drop, METH_O, "Take a client slot back."},
    {"clients", (PyCFunction)members_clients, METH_NOARGS,
     "(slot, state, pid, start, role, received, sent, beat_ns, settled) of every used slot."},
    {"use_client", (PyCFunction)members_use_client, METH_O, "This process' own slot; needed to wait or own offsets."},
    {NULL},
};
