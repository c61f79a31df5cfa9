/* Store and BrokerTables: the progress of groups, and who owns which queue.
 *
 *   owner word of an offset slot     0                                            nobody
 *                                    client slot + 1 | slot generation << 32      a local member
 *                                    OWNER_LOCK_BIT | holder | until << 32        a client over TCP that reads in order
 *
 * A client slot is live while its generation is the one in the word, its state is not FREE and its process (pid and
 * start time) exists. `holder` is 31 bits of whoever locks, `until` the last tick of 64 ms on the monotonic clock at which
 * the lock holds: 8 years of them fit. (1) Only compare-and-swap gives a queue to anybody. (2) An owner word of the dead,
 * or a lock whose time is over, may be replaced by anybody. (3) The broker takes a word away from the living when it sets
 * a group's offset: the member finds out when it next looks, and until then nothing it acknowledges moves the offset.
 * (4) What Python calls a slot says for which queue it is: slot | number of the queue << 32. When that queue is no more and
 * the slot is another's (offset.c), it has no offset and no owner, and nothing that is done to it has an effect.
 */
#include <string.h>

#include "face/py_core.h"

#define LOCK_HOLDER (OWNER_LOCK_BIT - 1)
enum { LOCK_TICK_MS = 64, NS_PER_MS = 1000000 };

/* A slot as Python knows it. */
struct slot { struct shmq_offset *entry; uint32_t queue; };

struct lock_wish {
    struct slot slot;
    unsigned int holder;
    unsigned long long now_ms, life_ms;
};

static PyObject *slot_number(uint32_t slot, uint32_t queue)
{
    return PyLong_FromUnsignedLongLong((uint64_t)queue << 32 | slot);
}

static bool slot_from(PyStore *self, PyObject *value, struct slot *out)
{
    if (!store_check(self)) {
        return false;
    }
    unsigned long long number = PyLong_AsUnsignedLongLong(value);
    if (number == (unsigned long long)-1 && PyErr_Occurred()) {
        return false;
    }
    if ((uint32_t)number < self->core.sizes.offset_max) {
        *out = (struct slot){.entry = &self->core.offsets[(uint32_t)number], .queue = (uint32_t)(number >> 32)};
        return true;
    }
    core_raise(self->state, SHMQ_BAD_ARGUMENT, "offset slot %u of %u", (unsigned int)number, self->core.sizes.offset_max);
    return false;
}

static bool slot_holds(const struct slot *slot)
{
    return (uint32_t)atomic_load_explicit(&slot->entry->place, memory_order_acquire) == slot->queue;
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
    return shmq_process_died(pid, start) ? -1 : (int64_t)slot;
}

static uint64_t lock_ticks(uint64_t ms)
{
    return ms / LOCK_TICK_MS;
}

static bool is_locked(uint64_t word, uint64_t now_ms)
{
    return ((uint32_t)word & OWNER_LOCK_BIT) && word >> 32 >= lock_ticks(now_ms);
}

/* Put a word into an owner that is nobody, dead or expired, or whose low half says that it is the caller's already. */
static bool owner_replace(PyStore *self, const struct slot *slot, uint64_t word, uint64_t own, uint64_t now_ms)
{
    struct shmq_offset *entry = slot->entry;
    if (!slot_holds(slot)) {
        return false;
    }
    uint64_t seen = atomic_load_explicit(&entry->owner, memory_order_acquire);
    while (seen != word) {
        bool is_own = (seen & OWNER_LOCK_BIT) && (uint32_t)seen == own;
        if (!is_own && (is_locked(seen, now_ms) || owner_of(self, seen) >= 0)) {
            return false;
        }
        /* Acquire: what the former owner did before it left happened before what we read of its progress. */
        if (atomic_compare_exchange_strong_explicit(&entry->owner, &seen, word, memory_order_acq_rel,
                                                    memory_order_acquire)) {
            if (!slot_holds(slot)) { /* it became another queue's since we looked: that one is not ours */
                (void)atomic_compare_exchange_strong_explicit(&entry->owner, &word, 0, memory_order_acq_rel,
                                                              memory_order_relaxed);
                return false;
            }
            if (!is_own) {
                atomic_store_explicit(&entry->taken, 0, memory_order_relaxed); /* that was the former owner's */
            }
            break;
        }
    }
    return true;
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
    return status == SHMQ_OK ? slot_number(slot, queue)
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
    return slot == SHMQ_NONE ? PyLong_FromLong(-1) : slot_number(slot, queue);
}

static PyObject *members_offset_get(PyStore *self, PyObject *value)
{
    struct slot slot;
    if (!slot_from(self, value, &slot)) {
        return NULL;
    }
    uint64_t committed = atomic_load_explicit(&slot.entry->committed, memory_order_acquire);
    return PyLong_FromLongLong(slot_holds(&slot) ? (long long)committed - 1 : -1);
}

void offset_commit(PyStore *self, struct shmq_offset *entry, uint32_t queue, uint64_t queue_offset)
{
    if (shmq_offset_commit(entry, queue, queue_offset + 1)) {
        atomic_store_explicit(&entry->updated_ms, shmq_clock_ms(&self->core), memory_order_release);
    }
}

static PyObject *members_offset_set(PyStore *self, PyObject *args)
{
    PyObject *value;
    unsigned long long offset;
    struct slot slot;
    if (!PyArg_ParseTuple(args, "OK:offset_set", &value, &offset) || !store_check_readers(self) ||
        !slot_from(self, value, &slot)) {
        return NULL;
    }
    offset_commit(self, slot.entry, slot.queue, offset);
    Py_RETURN_NONE;
}

static PyObject *members_offset_owner(PyStore *self, PyObject *value)
{
    struct slot slot;
    if (!slot_from(self, value, &slot)) {
        return NULL;
    }
    uint64_t owner = atomic_load_explicit(&slot.entry->owner, memory_order_acquire);
    return PyLong_FromLongLong(slot_holds(&slot) ? owner_of(self, owner) : -1);
}

bool offset_is_owned(PyStore *self, struct shmq_offset *entry, uint32_t queue)
{
    const struct slot slot = {.entry = entry, .queue = queue};
    uint64_t owner = atomic_load_explicit(&entry->owner, memory_order_acquire);
    return slot_holds(&slot) && owner_of(self, owner) >= 0;
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
    struct slot slot;
    uint64_t own = slot_from(self, value, &slot) ? own_word(self) : 0;
    if (!own) {
        return NULL;
    }
    return PyBool_FromLong(owner_replace(self, &slot, own, own, self->core.io->monotonic_ns() / NS_PER_MS));
}

static bool lock_arguments(PyStore *self, PyObject *args, const char *format, struct lock_wish *wish)
{
    PyObject *slot;
    wish->now_ms = wish->life_ms = 0;
    if (!PyArg_ParseTuple(args, format, &slot, &wish->holder, &wish->now_ms, &wish->life_ms) ||
        !store_check(self)) {
        return false;
    }
    wish->holder &= LOCK_HOLDER;
    return slot_from(self, slot, &wish->slot);
}

static PyObject *members_offset_lock(PyStorePart *part, PyObject *args)
{
    PyStore *self = part->store;
    struct lock_wish wish;
    if (!lock_arguments(self, args, "OIKK:offset_lock", &wish)) {
        return NULL;
    }
    uint64_t until = lock_ticks(wish.now_ms + wish.life_ms) + 1;
    uint64_t word = until << 32 | OWNER_LOCK_BIT | wish.holder;
    return PyBool_FromLong(owner_replace(self, &wish.slot, word, OWNER_LOCK_BIT | wish.holder, wish.now_ms));
}

static PyObject *members_offset_unlock(PyStorePart *part, PyObject *args)
{
    PyStore *self = part->store;
    struct lock_wish wish;
    if (!lock_arguments(self, args, "OI:offset_unlock", &wish)) {
        return NULL;
    }
    struct shmq_offset *entry = wish.slot.entry;
    uint64_t seen = atomic_load_explicit(&entry->owner, memory_order_acquire);
    while (slot_holds(&wish.slot) && (uint32_t)seen == (OWNER_LOCK_BIT | wish.holder)) {
        if (atomic_compare_exchange_strong_explicit(&entry->owner, &seen, 0, memory_order_acq_rel,
                                                    memory_order_acquire)) {
            break;
        }
    }
    Py_RETURN_NONE;
}

static PyObject *members_offset_leave(PyStore *self, PyObject *value)
{
    struct slot slot;
    uint64_t own = slot_from(self, value, &slot) ? own_word(self) : 0;
    if (!own) {
        return NULL;
    }
    struct shmq_offset *entry = slot.entry;
    if (!slot_holds(&slot)) {
        Py_RETURN_NONE; /* what we own there, if anything, is another queue */
    }
    if (atomic_load_explicit(&entry->owner, memory_order_relaxed) == own) {
        atomic_store_explicit(&entry->taken, 0, memory_order_relaxed);
    }
    (void)atomic_compare_exchange_strong_explicit(&entry->owner, &own, 0, memory_order_acq_rel, memory_order_relaxed);
    Py_RETURN_NONE;
}

static PyObject *members_offset_free(PyStorePart *part, PyObject *value)
{
    PyStore *self = part->store;
    struct slot slot;
    if (!slot_from(self, value, &slot)) {
        return NULL;
    }
    if (slot_holds(&slot)) { /* stopped here, we take the next queue from a member: it finds out, and takes it again */
        atomic_store_explicit(&slot.entry->taken, 0, memory_order_relaxed);
        atomic_store_explicit(&slot.entry->owner, 0, memory_order_seq_cst);
    }
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
        const uint64_t before = atomic_load_explicit(&entry->place, memory_order_acquire);
        uint64_t committed = atomic_load_explicit(&entry->committed, memory_order_acquire);
        uint64_t owner = atomic_load_explicit(&entry->owner, memory_order_acquire);
        const uint64_t place = atomic_load_explicit(&entry->place, memory_order_acquire);
        if (place != before) {
            committed = owner = 0; /* of the queue that was there before */
        }
        const int64_t numbers[] = {(int64_t)((uint64_t)(uint32_t)place << 32 | i), (int64_t)(place >> 32),
                                   (uint32_t)place, (int64_t)committed - 1, owner_of(self, owner),
                                   (int64_t)atomic_load_explicit(&entry->updated_ms, memory_order_relaxed)};
        if (!row_append(list, row_new(self->state, ROW_OFFSET, numbers, -1, NULL))) {
            Py_CLEAR(list);
        }
    }
    return list;
}

/* One word for both numbers, so that nobody reads the count of one cleaning with the time of another. */
static PyObject *members_offset_lose(PyStorePart *part, PyObject *args)
{
    PyStore *self = part->store;
    PyObject *value;
    unsigned long long count, seconds = 0;
    struct slot slot;
    if (!PyArg_ParseTuple(args, "OK|K:offset_lose", &value, &count, &seconds) || !slot_from(self, value, &slot)) {
        return NULL;
    }
    struct shmq_offset *entry = slot.entry;
    if (!slot_holds(&slot)) {
        Py_RETURN_NONE;
    }
    uint64_t lost = (atomic_load_explicit(&entry->lost, memory_order_relaxed) >> 32) + count;
    lost = lost < UINT32_MAX ? lost : UINT32_MAX;
    seconds = seconds ? seconds : shmq_clock_ms(&self->core) / 1000;
    atomic_store_explicit(&entry->lost, lost << 32 | (seconds & UINT32_MAX), memory_order_relaxed);
    Py_RETURN_NONE;
}

static PyObject *members_offsets_lost(PyStore *self, PyObject *unused)
{
    (void)unused;
    if (!store_check(self)) {
        return NULL;
    }
    uint32_t count = atomic_load_explicit(&self->core.readers->offset_count, memory_order_acquire);
    count = count < self->core.sizes.offset_max ? count : self->core.sizes.offset_max;
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

/* ---- how far readers were handed messages ----------------------------------------------------------- */
bool owner_stays(const struct shmq_store *store, uint64_t word)
{
    uint32_t slot = (uint32_t)word - 1u;
    if (!(uint32_t)word || slot >= store->sizes.client_max) {
        return false;
    }
    const struct shmq_client *client = &store->clients[slot];
    return atomic_load_explicit(&client->state, memory_order_acquire) != SHMQ_CLIENT_FREE &&
           atomic_load_explicit(&client->generation, memory_order_acquire) == (uint32_t)(word >> 32);
}

void offset_tell_taken(PyStore *self, struct shmq_offset *entry, uint32_t queue, uint64_t taken)
{
    const struct slot slot = {.entry = entry, .queue = queue};
    if (!slot_holds(&slot)) {
        return;
    }
    uint64_t owner = atomic_load_explicit(&entry->owner, memory_order_acquire);
    bool is_local = (uint32_t)owner && !((uint32_t)owner & OWNER_LOCK_BIT);
    if (is_local && !owner_stays(&self->core, owner)) {
        /* Of a dead owner; while its word stands, what is shown counts as its own. */
        is_local = !atomic_compare_exchange_strong_explicit(&entry->owner, &owner, 0, memory_order_acq_rel,
                                                            memory_order_relaxed);
    }
    if (!is_local) {
        atomic_store_explicit(&entry->taken, taken, memory_order_relaxed);
    }
}

static PyObject *members_offset_show(PyStorePart *part, PyObject *args)
{
    PyObject *value;
    unsigned long long taken;
    struct slot slot;
    if (!PyArg_ParseTuple(args, "OK:offset_show", &value, &taken) || !slot_from(part->store, value, &slot)) {
        return NULL;
    }
    offset_tell_taken(part->store, slot.entry, slot.queue, taken);
    Py_RETURN_NONE;
}

PyMethodDef offset_methods[] = {
    {"offset_get", (PyCFunction)members_offset_get, METH_O, "Committed queue offset, -1 when never set."},
    {"offset_set", (PyCFunction)members_offset_set, METH_VARARGS, "Set the next queue offset to deliver."},
    {"offset_owner", (PyCFunction)members_offset_owner, METH_O,
     "Client slot of the live owner, -1 when nobody owns it or the owner is dead."},
    {"offset_take", (PyCFunction)members_offset_take, METH_O,
     "Become the owner if nobody live is; True when it is ours."},
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
    {"offset_lock", (PyCFunction)members_offset_lock, METH_VARARGS,
     "(slot, holder, now ms, life ms): lock the queue for a client over TCP, or renew that; False while it is another's."},
    {"offset_unlock", (PyCFunction)members_offset_unlock, METH_VARARGS, "(slot, holder): end that lock."},
    {"offset_free", (PyCFunction)members_offset_free, METH_O, "Take the queue away from whoever owns it."},
    {"offset_show", (PyCFunction)members_offset_show, METH_VARARGS,
     "Show how far somebody without a client slot was handed messages."},
    {NULL},
};

PyMethodDef loss_methods[] = {
    {"offset_lose", (PyCFunction)members_offset_lose, METH_VARARGS,
     "Count messages that cleaning took before the group had acknowledged them."},
    {NULL},
};
