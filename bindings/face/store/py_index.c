/* The key index for Python: KeeperStore.index_follow, and functions on a mapped index file for both sides.
 *
 * An index file is any buffer (mmap): its owner keeps it open for the length of a call, which the buffer protocol proves.
 */
#include <errno.h>
#include <string.h>

#include "core/files/index.h"
#include "face/store/py_store.h"

#define FIND_COUNT_MAX 1024u
#define WALK_MAX (1u << 20) /* entries of one call */

/* The buffer as an index of that shape; false with an exception. The head is read: it is input. */
static bool index_open(struct core_state *state, const Py_buffer *buffer, unsigned int slot_max, unsigned int entry_max,
                       struct shmq_index *index, struct shmq_index_head *head)
{
    if (slot_max == 0 || slot_max > INT32_MAX || entry_max < 2 || entry_max > INT32_MAX ||
        (uint64_t)buffer->len != shmq_index_bytes(slot_max, entry_max)) {
        core_raise(state, SHMQ_BAD_ARGUMENT, "an index file of %zd bytes does not have %u slots and %u entries",
                   buffer->len, slot_max, entry_max);
        return false;
    }
    *index = (struct shmq_index){
        .data = buffer->buf, .slot_max = slot_max, .entry_max = entry_max, .entry_room = entry_max};
    if (!shmq_index_head(index, head)) {
        core_raise(state, SHMQ_CORRUPT, "the head of the index file contradicts itself");
        return false;
    }
    index->next = head->next;
    index->last_position = head->last_position;
    return true;
}

static PyObject *core_index_hash(PyObject *module, PyObject *args)
{
    (void)module;
    const char *topic, *key;
    Py_ssize_t topic_bytes, key_bytes;
    if (!PyArg_ParseTuple(args, "s#s#:index_hash", &topic, &topic_bytes, &key, &key_bytes)) {
        return NULL;
    }
    return PyLong_FromUnsignedLong(shmq_index_hash(topic, (size_t)topic_bytes, key, (size_t)key_bytes));
}

static PyObject *core_index_bytes(PyObject *module, PyObject *args)
{
    (void)module;
    unsigned int slot_max, entry_max;
    if (!PyArg_ParseTuple(args, "II:index_bytes", &slot_max, &entry_max)) {
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(shmq_index_bytes(slot_max, entry_max));
}

static PyObject *core_index_head(PyObject *module, PyObject *args)
{
    Py_buffer buffer;
    unsigned int slot_max, entry_max;
    if (!PyArg_ParseTuple(args, "y*II:index_head", &buffer, &slot_max, &entry_max)) {
        return NULL;
    }
    struct shmq_index index;
    struct shmq_index_head head;
    PyObject *out = NULL;
    typedef unsigned long long u64;
    if (index_open(PyModule_GetState(module), &buffer, slot_max, entry_max, &index, &head)) {
        out = Py_BuildValue("(KKKKIIK)", (u64)head.begin_ms, (u64)head.end_ms, (u64)head.begin_position,
                            (u64)head.end_position, head.slots_used, head.next, (u64)head.last_position);
    }
    PyBuffer_Release(&buffer);
    return out;
}

static PyObject *positions_list(const uint64_t *positions, uint32_t count)
{
    PyObject *list = PyList_New(count);
    for (uint32_t i = 0; list && i < count; i++) {
        PyObject *position = PyLong_FromUnsignedLongLong(positions[i]);
        if (!position) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, i, position);
    }
    return list;
}

static PyObject *core_index_find(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"data", "slots", "entries", "hash", "begin_ms", "end_ms", "count", "steps", "next", NULL};
    Py_buffer buffer;
    unsigned int slot_max, entry_max;
    unsigned long long begin_ms, end_ms;
    struct shmq_index_search search = {.next = 0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*IIIKKII|I:index_find", names, &buffer, &slot_max, &entry_max,
                                     &search.hash, &begin_ms, &end_ms, &search.count_max, &search.steps_max,
                                     &search.next)) {
        return NULL;
    }
    search.begin_ms = begin_ms;
    search.end_ms = end_ms;
    search.count_max = search.count_max < FIND_COUNT_MAX ? search.count_max : FIND_COUNT_MAX;
    struct shmq_index index;
    struct shmq_index_head head;
    uint64_t positions[FIND_COUNT_MAX];
    PyObject *out = NULL;
    if (index_open(PyModule_GetState(module), &buffer, slot_max, entry_max, &index, &head)) {
        uint32_t found;
        Py_BEGIN_ALLOW_THREADS
        found = shmq_index_find(&index, &search, positions);
        Py_END_ALLOW_THREADS
        PyObject *list = positions_list(positions, found);
        out = list ? Py_BuildValue("(NI)", list, search.next) : NULL;
    }
    PyBuffer_Release(&buffer);
    return out;
}

static PyObject *core_index_walk(PyObject *module, PyObject *args)
{
    struct core_state *state = PyModule_GetState(module);
    Py_buffer data, newest;
    unsigned int slot_max, entry_max, number, end;
    unsigned long long until, begin, reached;
    if (!PyArg_ParseTuple(args, "y*IIw*IIKKK:index_walk", &data, &slot_max, &entry_max, &newest, &number, &end, &until,
                          &begin, &reached)) {
        return NULL;
    }
    struct shmq_index index;
    struct shmq_index_head head;
    PyObject *out = NULL, *keys = NULL;
    bool ok = index_open(state, &data, slot_max, entry_max, &index, &head);
    if (ok && ((uint64_t)newest.len != (uint64_t)slot_max * sizeof(uint32_t) || number == 0 || end > entry_max)) {
        core_raise(state, SHMQ_BAD_ARGUMENT, "entries %u to %u of %u, and %zd bytes for %u slots", number, end, entry_max,
                   newest.len, slot_max);
        ok = false;
    }
    const uint32_t key_max = ok && end > number ? (end - number < WALK_MAX ? end - number : WALK_MAX) : 0;
    if (ok && (keys = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)key_max * SHMQ_INDEX_KEY_BYTES))) {
        struct shmq_index_walk walk = {.number = number, .end = end, .newest = newest.buf, .until = until,
                                       .log_begin = begin, .reached = reached,
                                       .keys = (uint8_t *)PyBytes_AS_STRING(keys), .key_max = key_max};
        enum shmq_index_walked walked;
        Py_BEGIN_ALLOW_THREADS
        walked = shmq_index_walk(&index, &walk);
        Py_END_ALLOW_THREADS
        if (_PyBytes_Resize(&keys, (Py_ssize_t)walk.key_count * SHMQ_INDEX_KEY_BYTES) == 0) {
            out = Py_BuildValue("(IiKN)", walk.number, (int)walked, (unsigned long long)walk.reached, keys);
        }
    }
    PyBuffer_Release(&newest);
    PyBuffer_Release(&data);
    return out;
}

PyMethodDef index_functions[] = {
    {"index_walk", core_index_walk, METH_VARARGS, "Entries of an index file, as long as each is as it must be."},
    {"index_hash", core_index_hash, METH_VARARGS, "Hash of a topic's key, as index files have it."},
    {"index_bytes", core_index_bytes, METH_VARARGS, "Size of an index file with so many slots and entries."},
    {"index_head", core_index_head, METH_VARARGS,
     "(begin_ms, end_ms, begin_position, end_position, slots used, next entry, last position) of an index file."},
    {"index_find", (PyCFunction)(void (*)(void))core_index_find, METH_VARARGS | METH_KEYWORDS,
     "(log positions of entries of a hash, the newest first; the entry to go on with)."},
    {NULL},
};

/* ---- Store ------------------------------------------------------------------------------------------- */
/* One log file after the other until something stops it; false with an exception. */
static bool follow_files(PyStore *self, struct shmq_index *index, struct shmq_follow *follow, enum shmq_index_stop *stop)
{
    *stop = SHMQ_INDEX_DONE;
    while (*stop == SHMQ_INDEX_DONE && follow->position < follow->until) {
        struct shmq_mapping *mapping = shmq_mapping_get(&self->core, follow->position);
        if (!mapping) {
            core_raise_status(self->state, errno == ENOENT ? SHMQ_GONE : SHMQ_SYSTEM, "mapping the log file");
            return false;
        }
        const uint64_t before = follow->position;
        shmq_mapping_hold(mapping);
        Py_BEGIN_ALLOW_THREADS
        *stop = shmq_index_follow(index, mapping, follow);
        shmq_mapping_release(mapping);
        Py_END_ALLOW_THREADS
        if (*stop == SHMQ_INDEX_DONE && follow->position == before) {
            break; /* less than a record is left below `end` */
        }
    }
    return true;
}

static PyObject *store_index_follow(PyStorePart *part, PyObject *args, PyObject *kwargs)
{
    PyStore *self = part->store;
    static char *names[] = {"position", "until", "end", "data", "slots", "entries", "room", NULL};
    unsigned long long position, until, end;
    unsigned int slot_max = 0, entry_max = 0, room = 0;
    PyObject *data = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "KKK|OIII:index_follow", names, &position, &until, &end, &data,
                                     &slot_max, &entry_max, &room) ||
        !store_check(self)) {
        return NULL;
    }
    Py_buffer buffer = {0};
    struct shmq_index index = {0};
    struct shmq_index_head head;
    if (data != Py_None && PyObject_GetBuffer(data, &buffer, PyBUF_WRITABLE) < 0) {
        return NULL;
    }
    struct shmq_follow follow = {.position = position, .until = until < end ? until : end, .end = end};
    enum shmq_index_stop stop = SHMQ_INDEX_DONE;
    bool ok = data == Py_None || index_open(self->state, &buffer, slot_max, entry_max, &index, &head);
    if (ok) {
        index.entry_room = room < entry_max ? room : entry_max;
        store_user_enter(self);
        ok = follow_files(self, &index, &follow, &stop);
        store_user_leave(self);
    }
    if (buffer.obj) {
        PyBuffer_Release(&buffer);
    }
    const int64_t numbers[] = {(int64_t)follow.position, stop, (int64_t)follow.store_ms, (int64_t)follow.records,
                               (int64_t)follow.keyed};
    return ok ? row_new(self->state, ROW_INDEX_PROGRESS, numbers, -1, NULL) : NULL;
}

PyMethodDef index_methods[] = {
    {"index_follow", (PyCFunction)(void (*)(void))store_index_follow, METH_VARARGS | METH_KEYWORDS,
     "Put the keys of the log's records into an index file."},
    {NULL},
};
