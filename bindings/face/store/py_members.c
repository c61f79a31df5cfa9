/* Store and BrokerTables: groups, their settings, and the client slots. What groups have read: py_offsets.c. */
#include <string.h>

#include "core/internal.h"
#include "face/store/py_store.h"

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

static PyObject *members_group_put(PyStorePart *part, PyObject *value)
{
    PyStore *self = part->store;
    const char *name = store_check(self) ? group_name(self, value) : NULL;
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

static PyObject *members_group_delete(PyStorePart *part, PyObject *value)
{
    PyStore *self = part->store;
    const char *name = store_check(self) ? group_name(self, value) : NULL;
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
    const uint32_t count = shmq_group_count(&self->core);
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < count; i++) {
        struct shmq_group *group = &self->core.groups[i];
        const uint32_t number = atomic_load_explicit(&group->number, memory_order_acquire);
        if (atomic_load_explicit(&group->state, memory_order_acquire) != SHMQ_TOPIC_LIVE) {
            continue;
        }
        uint32_t bytes = group->name_bytes < sizeof group->name ? group->name_bytes : (uint32_t)sizeof group->name;
        PyObject *name = PyUnicode_DecodeUTF8(group->name, bytes, "replace");
        if (name && !shmq_group_holds(&self->core, number)) {
            Py_DECREF(name); /* another name has the entry now; it was not there when this began */
            continue;
        }
        PyObject *item = name ? Py_BuildValue("(IN)", number, name) : NULL;
        if (!row_append(list, item)) {
            Py_CLEAR(list);
        }
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

static PyObject *members_group_set(PyStorePart *part, PyObject *args)
{
    PyStore *self = part->store;
    unsigned int group;
    Py_buffer text;
    if (!PyArg_ParseTuple(args, "Iy*:group_set", &group, &text)) {
        return NULL;
    }
    enum shmq_status status = SHMQ_BAD_ARGUMENT;
    bool open = store_check(self);
    if (open && text.len <= SHMQ_GROUP_SETTINGS_BYTES_MAX) {
        status = shmq_group_set(&self->core, group, text.buf, (uint32_t)text.len);
    }
    PyBuffer_Release(&text);
    if (!open) {
        return NULL;
    }
    if (status != SHMQ_OK) {
        return core_raise_status(self->state, status, "the settings of a group");
    }
    Py_RETURN_NONE;
}

/* ---- client slots ---------------------------------------------------------------------------------- */
static PyObject *members_client_put(PyStorePart *part, PyObject *args)
{
    PyStore *self = part->store;
    PyObject *values[3];
    uint64_t pid, start, role, client = 0;
    if (!PyArg_ParseTuple(args, "OOO:client_put", &values[0], &values[1], &values[2]) || !store_check(self) ||
        !whole_in(self->state, values[0], "the pid of a client", INT32_MAX, &pid) ||
        !whole_in(self->state, values[1], "the start time of a client", UINT64_MAX, &start) ||
        !whole_in(self->state, values[2], "the role of a client", UINT32_MAX, &role)) {
        return NULL;
    }
    enum shmq_status status = shmq_client_put(&self->core, (uint32_t)pid, start, (uint32_t)role, &client);
    return status == SHMQ_OK ? PyLong_FromUnsignedLong(shmq_client_slot(client))
                             : core_raise_status(self->state, status, "a client slot");
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

static PyObject *members_client_drop(PyStorePart *part, PyObject *value)
{
    PyStore *self = part->store;
    uint32_t slot;
    if (!store_check(self) || !slot_from(self, value, &slot)) {
        return NULL;
    }
    shmq_client_drop(&self->core, slot);
    Py_RETURN_NONE;
}

static PyObject *members_client_generation(PyStorePart *part, PyObject *value)
{
    PyStore *self = part->store;
    uint32_t slot;
    if (!store_check(self) || !slot_from(self, value, &slot)) {
        return NULL;
    }
    return PyLong_FromUnsignedLong((unsigned long)(shmq_client_word(&self->core, slot) >> 32));
}

static PyObject *members_use_client(PyStore *self, PyObject *args)
{
    PyObject *value, *life;
    uint32_t slot;
    uint64_t generation;
    if (!PyArg_ParseTuple(args, "OO:use_client", &value, &life) || !store_check_readers(self) ||
        !slot_from(self, value, &slot) ||
        !whole_in(self->state, life, "the generation of a client slot", UINT32_MAX, &generation)) {
        return NULL;
    }
    shmq_client_use(&self->core, generation << 32 | (slot + 1u));
    Py_RETURN_NONE;
}

PyMethodDef member_methods[] = {
    {"group_find", (PyCFunction)members_group_find, METH_O, "Number of a group, -1 when there is none."},
    {"groups", (PyCFunction)members_groups, METH_NOARGS, "(number, name) of every group."},
    {"group_settings", (PyCFunction)members_group_settings, METH_O, "What a group is configured with, as text."},
    {"use_client", (PyCFunction)members_use_client, METH_VARARGS,
     "(slot, generation) of this process as they were handed out; needed to wait or own offsets."},
    {NULL},
};

PyMethodDef broker_member_methods[] = {
    {"group_put", (PyCFunction)members_group_put, METH_O, "Create a group, or find it; returns its number."},
    {"group_delete", (PyCFunction)members_group_delete, METH_O, "Forget a group and its offsets."},
    {"group_set", (PyCFunction)members_group_set, METH_VARARGS, "Configure a group, with text of the caller's."},
    {"client_put", (PyCFunction)members_client_put, METH_VARARGS, "Hand out a client slot."},
    {"client_generation", (PyCFunction)members_client_generation, METH_O,
     "How often a client slot was handed out and taken back."},
    {"client_drop", (PyCFunction)members_client_drop, METH_O, "Take a client slot back."},
    {NULL},
};
