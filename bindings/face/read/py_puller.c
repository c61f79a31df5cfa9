/* Puller: pulls that repeat, out of a connection's bytes and into frames that answer them.
 *
 *   bytes ──split──▶ header ──key──▶ plan ──records there?──▶ copy · commit · taken ──▶ answer      until one is not plain
 *
 * A plan is what the broker's own path found that requests of one key (core/wire/pull_frame.h) get. It holds as long as
 * nothing it rests upon has changed: the topics, groups and settings in the tables, by their version, and what the process
 * itself knows, by an epoch that the caller counts; its high half says whose plan it is. Pulls that find messages are
 * served here; held ones, those that find nothing, damage, a lock that would have to be waited for and all else are left to
 * that path, and nothing has happened.
 */
#include <string.h>

#include "core/read/reader.h"
#include "core/wire/pull_frame.h"
#include "face/read/py_read.h"

enum { PLACES = 1024, PIECES_MAX = 32, TAGS_MAX = 64, ANSWERS_MAX = 64 };
#define BYTES_MAX (128u << 10) /* of one answer: more is copied without the GIL, by the other path */
#define SCAN_UNITS_MAX 800u    /* as store/log.py */

struct plan {
    uint64_t epoch;
    uint32_t table_version, code, queue, group;
    uint32_t count_max;
    uint64_t bytes_max;
    uint64_t far_bytes;        /* farther behind the log end it is left to the other path; 0: never */
    bool commits;              /* its commit offset counts */
    bool needs_progress;       /* a group without progress in the queue is left to the other path */
    PyFilter *where;           /* or NULL */
    int64_t tags[TAGS_MAX];
    uint32_t tag_count;
    bool has_tags;
    uint32_t hash, key_bytes;
    uint8_t key[];
};

typedef struct {
    PyObject_HEAD
    PyStore *store;
    PyObject *literals;        /* what the pieces point into */
    struct shmq_piece pieces[PIECES_MAX];
    uint32_t piece_count;
    struct plan *plans[PLACES]; /* by the hash of the key; one that finds its place taken takes it */
    struct shmq_pull_key key;
    struct shmq_pull pull;
    PyObject *answers[ANSWERS_MAX];
    uint32_t answer_count;
} PyPuller;

static void plan_free(struct plan *plan)
{
    if (plan) {
        Py_XDECREF(plan->where);
        PyMem_Free(plan);
    }
}

/* Where the plan of a key belongs; each connection has its own of the same bytes. */
static struct plan **plan_place(PyPuller *self, uint32_t hash, uint64_t epoch)
{
    return &self->plans[(hash ^ (uint32_t)(epoch >> 32) * 2654435761u) % PLACES];
}

/* The plan of self->key; NULL when there is none that still holds. */
static const struct plan *plan_find(PyPuller *self, uint64_t epoch)
{
    const struct shmq_pull_key *key = &self->key;
    const struct plan *plan = *plan_place(self, key->hash, epoch);
    if (!plan || plan->hash != key->hash || plan->key_bytes != key->bytes || memcmp(plan->key, key->text, key->bytes) != 0) {
        return NULL;
    }
    const uint32_t version = atomic_load_explicit(&self->store->core.log->table_version, memory_order_acquire);
    return plan->epoch == epoch && plan->table_version == version ? plan : NULL;
}

/* ---- serving ---------------------------------------------------------------------------------------- */
struct progress { struct shmq_offset *entry; uint64_t place; bool commits; };

/* Where the group is in the queue; false: that is for the other path. */
static bool progress_open(PyPuller *self, const struct plan *plan, uint64_t high, struct progress *out)
{
    PyStore *store = self->store;
    const uint32_t slot = shmq_offset_find(&store->core, plan->group, plan->queue);
    if (slot == SHMQ_NONE) {
        return false;
    }
    out->entry = &store->core.offsets[slot];
    out->place = shmq_offset_place(plan->group, plan->queue);
    out->commits = plan->commits && self->key.numbers[SHMQ_PULL_COMMIT] <= high &&
                   shmq_owner_find(&store->core, out->entry, out->place) == SHMQ_NONE;
    return out->commits || !plan->needs_progress ||
           atomic_load_explicit(&out->entry->committed, memory_order_acquire) != 0;
}

/* Whether the record that was looked at last lies so far behind that the answer sends its reader elsewhere. */
static bool is_far(PyPuller *self, const struct plan *plan)
{
    struct shmq_store *core = &self->store->core;
    uint8_t raw[SHMQ_UNIT_BYTES];
    struct shmq_unit unit;
    if (plan->far_bytes == 0) {
        return false;
    }
    if (shmq_units_stored(core, plan->queue, self->pull.next_offset - 1, 1, raw) == 0) {
        return true;
    }
    shmq_unit_unpack(raw, &unit);
    const uint64_t end = atomic_load_explicit(&core->log->end, memory_order_acquire);
    return end > unit.log_position && end - unit.log_position > plan->far_bytes;
}

static PyObject *answer_of(PyPuller *self, uint64_t low, uint64_t high)
{
    const struct shmq_pull *pull = &self->pull;
    const uint64_t numbers[SHMQ_PULL_PIECES] = {
        [SHMQ_PULL_PIECE_OPAQUE] = self->key.numbers[SHMQ_PULL_OPAQUE],
        [SHMQ_PULL_PIECE_NEXT] = pull->next_offset,
        [SHMQ_PULL_PIECE_MIN] = low,
        [SHMQ_PULL_PIECE_MAX] = high,
    };
    const size_t room = shmq_pull_answer_room(self->pieces, self->piece_count) + pull->bytes;
    PyObject *answer = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)room);
    if (!answer) {
        return NULL;
    }
    uint8_t *out = (uint8_t *)PyBytes_AS_STRING(answer);
    const size_t head_bytes = shmq_pull_answer_write(out, self->pieces, self->piece_count, numbers);
    const uint64_t body_bytes = shmq_pull_copy(pull, out + head_bytes);
    shmq_pull_answer_end(out, head_bytes, body_bytes);
    _PyBytes_Resize(&answer, (Py_ssize_t)(head_bytes + body_bytes)); /* NULL when it fails */
    return answer;
}

/* The answer to the pull of self->key; NULL: it is not plain, or something went wrong, and nothing has happened. */
static PyObject *plan_serve(PyPuller *self, const struct plan *plan)
{
    struct shmq_store *core = &self->store->core;
    struct shmq_pull *pull = &self->pull;
    struct progress progress;
    if (!shmq_queue_is_number(core, plan->queue)) {
        return NULL;
    }
    const struct shmq_queue *entry = shmq_queue_place(core, plan->queue);
    const uint64_t offset = self->key.numbers[SHMQ_PULL_OFFSET];
    const uint64_t low = atomic_load_explicit(&entry->offset_min, memory_order_acquire);
    const uint64_t high = atomic_load_explicit(&entry->offset_max, memory_order_acquire);
    if (!shmq_queue_lives(core, plan->queue) || offset < low || offset >= high ||
        !progress_open(self, plan, high, &progress)) {
        return NULL;
    }
    pull->queue = plan->queue;
    pull->offset = offset;
    pull->count_max = plan->count_max;
    pull->bytes_max = plan->bytes_max;
    pull->scan_max = SCAN_UNITS_MAX;
    pull->tags = plan->has_tags ? plan->tags : NULL;
    pull->tag_count = plan->tag_count;
    pull->filter = plan->where ? plan->where->core : NULL;
    pull->trimmed = true;
    pull->verify = !core->head->trusts_reads;
    pull->span_count = 0;
    const bool found = shmq_pull_plan(core, pull) == SHMQ_OK && pull->count > 0 && pull->bytes <= BYTES_MAX &&
                       !is_far(self, plan);
    PyObject *answer = found ? answer_of(self, low, high) : NULL;
    shmq_pull_release(pull);
    if (!answer) {
        PyErr_Clear();
        return NULL;
    }
    if (progress.commits) {
        shmq_offset_set(&self->store->core, progress.entry, progress.place, self->key.numbers[SHMQ_PULL_COMMIT]);
    }
    shmq_owner_show(&self->store->core, progress.entry, progress.place, pull->next_offset);
    return answer;
}

static PyObject *answers_tuple(PyPuller *self)
{
    PyObject *tuple = PyTuple_New(self->answer_count);
    for (uint32_t i = 0; i < self->answer_count; i++) {
        if (tuple) {
            PyTuple_SET_ITEM(tuple, i, self->answers[i]);
        } else {
            Py_DECREF(self->answers[i]);
        }
    }
    self->answer_count = 0;
    return tuple;
}

static PyObject *puller_serve(PyPuller *self, PyObject *args)
{
    PyObject *data;
    unsigned int frame_bytes_max, count_max, code = 0;
    unsigned long long bytes_max, epoch, bytes = 0;
    if (!PyArg_ParseTuple(args, "SIIKK:serve", &data, &frame_bytes_max, &count_max, &bytes_max, &epoch) ||
        !store_check(self->store)) {
        return NULL;
    }
    const uint8_t *start = (const uint8_t *)PyBytes_AS_STRING(data), *at = start;
    const uint8_t *end = start + PyBytes_GET_SIZE(data);
    struct shmq_frame_view frame;
    while (self->answer_count < count_max && self->answer_count < ANSWERS_MAX && bytes < bytes_max) {
        if (shmq_frame_split(at, (size_t)(end - at), frame_bytes_max, &frame) != SHMQ_OK ||
            frame.codec != SHMQ_CODEC_JSON || frame.body_bytes > 0 ||
            shmq_pull_key_read(frame.header, frame.header_bytes, &self->key) != SHMQ_OK) {
            break;
        }
        const struct plan *plan = plan_find(self, epoch);
        PyObject *answer = plan && (!code || code == plan->code) ? plan_serve(self, plan) : NULL;
        if (!answer) {
            break;
        }
        code = plan->code;
        self->answers[self->answer_count++] = answer;
        bytes += (unsigned long long)PyBytes_GET_SIZE(answer);
        at += frame.frame_bytes;
    }
    PyObject *answers = answers_tuple(self);
    return answers ? Py_BuildValue("(nIN)", (Py_ssize_t)(at - start), code, answers) : NULL;
}

/* ---- learning --------------------------------------------------------------------------------------- */
static PyObject *puller_unknown_key(PyPuller *self, PyObject *args)
{
    PyObject *header;
    unsigned long long epoch;
    if (!PyArg_ParseTuple(args, "SK:unknown_key", &header, &epoch) || !store_check(self->store)) {
        return NULL;
    }
    const uint8_t *text = (const uint8_t *)PyBytes_AS_STRING(header);
    const Py_ssize_t bytes = PyBytes_GET_SIZE(header);
    if (bytes > SHMQ_PULL_HEADER_MAX || shmq_pull_key_read(text, (uint32_t)bytes, &self->key) != SHMQ_OK ||
        plan_find(self, epoch)) {
        Py_RETURN_NONE;
    }
    return PyBytes_FromStringAndSize((const char *)self->key.text, self->key.bytes);
}

static bool tags_from(PyObject *tags, struct plan *plan)
{
    plan->has_tags = tags != Py_None;
    plan->tag_count = plan->has_tags ? (uint32_t)PyTuple_GET_SIZE(tags) : 0;
    for (uint32_t i = 0; i < plan->tag_count; i++) {
        plan->tags[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tags, i));
    }
    return !PyErr_Occurred();
}

static PyObject *puller_learn(PyPuller *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"key",       "epoch",   "table_version",  "code", "group", "queue", "count_max",
                            "bytes_max", "commits", "needs_progress", "tags", "where", "far_bytes", NULL};
    PyObject *key, *tags, *where;
    PyFilter *filter;
    unsigned long long epoch, bytes_max, far_bytes;
    unsigned int table_version, code, group, queue, count_max;
    int commits, needs_progress;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "S$KIIIIIKppOOK:learn", names, &key, &epoch, &table_version, &code, &group,
                                     &queue, &count_max, &bytes_max, &commits, &needs_progress, &tags, &where, &far_bytes) ||
        !filter_from(self->store->state, where, &filter)) {
        return NULL;
    }
    if (tags != Py_None && (!PyTuple_Check(tags) || PyTuple_GET_SIZE(tags) > TAGS_MAX)) {
        Py_RETURN_NONE; /* long lists are rare enough for the other path */
    }
    const size_t key_bytes = (size_t)PyBytes_GET_SIZE(key);
    struct plan *plan = key_bytes <= SHMQ_PULL_HEADER_MAX ? PyMem_Malloc(sizeof *plan + key_bytes) : NULL;
    if (!plan) {
        return PyErr_NoMemory();
    }
    *plan = (struct plan){.epoch = epoch, .table_version = table_version, .code = code, .queue = queue, .group = group,
                          .count_max = count_max, .bytes_max = bytes_max, .commits = commits,
                          .far_bytes = far_bytes, .needs_progress = needs_progress, .key_bytes = (uint32_t)key_bytes};
    plan->where = (PyFilter *)Py_XNewRef((PyObject *)filter);
    memcpy(plan->key, PyBytes_AS_STRING(key), key_bytes);
    plan->hash = shmq_crc32(plan->key, plan->key_bytes);
    if (!tags_from(tags, plan)) {
        plan_free(plan);
        return NULL;
    }
    struct plan **place = plan_place(self, plan->hash, epoch);
    plan_free(*place);
    *place = plan;
    Py_RETURN_NONE;
}

/* ---- the type --------------------------------------------------------------------------------------- */
static bool pieces_from(PyPuller *self, PyObject *items)
{
    if (PyTuple_GET_SIZE(items) > PIECES_MAX) {
        core_raise(self->store->state, SHMQ_BAD_ARGUMENT, "an answer has at most %d pieces", PIECES_MAX);
        return false;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items); i++) {
        PyObject *item = PyTuple_GET_ITEM(items, i);
        if (PyBytes_CheckExact(item)) {
            self->pieces[i] = (struct shmq_piece){SHMQ_PULL_PIECE_LITERAL, (uint32_t)PyBytes_GET_SIZE(item),
                                                  (const uint8_t *)PyBytes_AS_STRING(item)};
            continue;
        }
        const unsigned long kind = PyLong_AsUnsignedLong(item);
        if (PyErr_Occurred()) {
            return false;
        }
        if (kind == SHMQ_PULL_PIECE_LITERAL || kind >= SHMQ_PULL_PIECES) {
            core_raise(self->store->state, SHMQ_BAD_ARGUMENT, "there is no piece %lu", kind);
            return false;
        }
        self->pieces[i] = (struct shmq_piece){(uint32_t)kind, 0, NULL};
    }
    self->piece_count = (uint32_t)PyTuple_GET_SIZE(items);
    return true;
}

static void puller_dealloc(PyPuller *self)
{
    PyTypeObject *type = Py_TYPE(self);
    for (int i = 0; i < PLACES; i++) {
        plan_free(self->plans[i]);
    }
    Py_XDECREF(self->store);
    Py_XDECREF(self->literals);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *puller_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"store", "answer", NULL};
    struct core_state *state = PyType_GetModuleState(type);
    PyObject *store, *answer;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!$O!:Puller", names, state->store_type, &store, &PyTuple_Type,
                                     &answer) ||
        !store_check_writable((PyStore *)store)) {
        return NULL;
    }
    PyPuller *self = (PyPuller *)type->tp_alloc(type, 0);
    if (!self) {
        return NULL;
    }
    self->store = (PyStore *)Py_NewRef(store);
    self->literals = Py_NewRef(answer);
    if (!pieces_from(self, answer)) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static PyMethodDef puller_methods[] = {
    {"serve", (PyCFunction)puller_serve, METH_VARARGS,
     "Answer the plain pulls at the front of a connection's bytes: (end, request code, answers)."},
    {"unknown_key", (PyCFunction)puller_unknown_key, METH_VARARGS,
     "The key of a header; None when it has none, or a plan for it holds."},
    {"learn", (PyCFunction)(void (*)(void))puller_learn, METH_VARARGS | METH_KEYWORDS,
     "Take the plan for pulls of a key."},
    {NULL},
};

static PyType_Slot puller_slots[] = {
    {Py_tp_doc, "Answers pulls of RocketMQ clients that repeat; one for all connections."},
    {Py_tp_new, puller_new},
    {Py_tp_dealloc, puller_dealloc},
    {Py_tp_methods, puller_methods},
    {0, NULL},
};

PyType_Spec puller_spec = {
    .name = "shmq.bindings._core.Puller",
    .basicsize = sizeof(PyPuller),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = puller_slots,
};
