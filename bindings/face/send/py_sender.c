/* Sender: plain sends out of a connection's bytes into the log, and the frames that answer them.
 *
 *   bytes ──split──▶ header ──read──▶ route · queue · size ──append──▶ answer         until one is not plain
 *
 * It is an optimisation of the broker's own path, which is asked about everything that is not plain, and about whatever
 * goes wrong here: what this type does is what that path would have done. Nothing waits: a taken lock is left to it too.
 * The GIL is held throughout; other threads see a message a few microseconds later.
 *
 * Where a message counts on the disk only, its answer is written all the same, but into a box of its own with the log
 * position that lets it go; the caller keeps it until then. All messages of one call ask for the disk together.
 *
 * A message that is stored while the log is fenced has no such answer, and may not be stored again: its frame is the last
 * of the call, and the caller gets the error to answer it with.
 */
#include <string.h>

#include "face/send/py_send.h"
#include "face/send/py_sender.h"

#define OUTBOX_BYTES (64u << 10)

static bool outbox_reserve(struct outbox *outbox, size_t bytes)
{
    if (outbox->room - outbox->used >= bytes) {
        return true;
    }
    size_t room = 2 * (outbox->room + bytes);
    uint8_t *grown = PyMem_Realloc(outbox->bytes, room);
    if (!grown) {
        return false;
    }
    outbox->bytes = grown;
    outbox->room = room;
    return true;
}

/* Room for the longest answer: it must not be missing when the message is stored. */
static size_t answer_room(const PySender *self, enum shmq_codec codec, const struct shmq_answer *answer)
{
    const struct shmq_answer longest = {.count = SHMQ_BATCH_MAX, .address_bytes = answer->address_bytes};
    size_t bytes = SHMQ_FRAME_PREFIX_BYTES + shmq_answer_ids_bytes(&longest);
    for (uint32_t i = 0; i < self->piece_count[codec]; i++) {
        bytes += self->pieces[codec][i].bytes + SHMQ_ANSWER_FIELD_MAX;
    }
    return bytes;
}

/* ---- frames ------------------------------------------------------------------------------------------ */
struct feed {                  /* the arguments of one call */
    const uint8_t *data;
    size_t bytes, at;
    uint32_t frame_bytes_max, count_max, count;
    struct shmq_spec spec;     /* hosts filled in */
    struct shmq_answer answer; /* address filled in */
    size_t doubted_at;         /* where the frame begins that is stored and in doubt; */
    PyObject *doubt;           /* the error that says so, or NULL */
};

/* The frame is stored, and the log was fenced since: the last one, because those behind it find the log fenced. Where
 * memory for the error is missing, that takes its place, and the connection ends: a doubt for every client, too. */
static bool doubt(PySender *self, struct feed *feed, const struct shmq_frame_view *frame, uint32_t queue_id)
{
    PyObject *type, *trace;
    core_raise_append(self->state, &self->producer->store->core, SHMQ_DOUBTED, feed->spec.topic, queue_id, 0, 0);
    PyErr_Fetch(&type, &feed->doubt, &trace);
    PyErr_NormalizeException(&type, &feed->doubt, &trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    feed->doubted_at = feed->at;
    feed->at += frame->frame_bytes;
    feed->count++;
    return false;
}

/* One frame; false: it is not plain, or something went wrong, and nothing has happened; or it is in doubt. */
static bool serve_one(PySender *self, struct feed *feed)
{
    struct shmq_frame_view frame;
    struct shmq_send_request request;
    struct stored stored;
    if (shmq_frame_split(feed->data + feed->at, feed->bytes - feed->at, feed->frame_bytes_max, &frame) != SHMQ_OK ||
        shmq_send_read(&frame, self->scratch, &request) != SHMQ_OK) {
        return false;
    }
    const size_t room = answer_room(self, frame.codec, &feed->answer);
    if (!outbox_reserve(&self->outboxes[AT_ONCE], room) || !outbox_reserve(&self->outboxes[WHEN_DURABLE], room)) {
        return false;
    }
    const enum shmq_status status = sender_store(self, &frame, &request, &feed->spec, &stored);
    if (status != SHMQ_OK) {
        return status == SHMQ_DOUBTED && doubt(self, feed, &frame, (uint32_t)request.queue_id);
    }
    struct outbox *outbox = &self->outboxes[stored.waits ? WHEN_DURABLE : AT_ONCE];
    feed->at += frame.frame_bytes;
    feed->count++;
    outbox->frame_count++;
    producer_count(self->producer, &stored.appended, self->positions_count);
    if (!request.oneway) {
        feed->answer.opaque = request.opaque;
        feed->answer.queue_id = (uint32_t)request.queue_id;
        feed->answer.queue_offset = stored.appended.queue_offset;
        feed->answer.log_positions = self->positions;
        feed->answer.count = self->positions_count;
        outbox->used += shmq_answer_write(outbox->bytes + outbox->used, outbox->room - outbox->used, frame.codec,
                                          self->pieces[frame.codec], self->piece_count[frame.codec], &feed->answer);
    }
    return true;
}

static bool feed_open(PySender *self, PyObject *const *args, struct feed *feed)
{
    PyObject *data = args[0], *host = args[4], *address = args[5];
    if (!PyBytes_CheckExact(data) || !PyBytes_CheckExact(host) || !PyBytes_CheckExact(address)) {
        PyErr_SetString(PyExc_TypeError, "data, born_host and address must be bytes");
        return false;
    }
    Py_ssize_t at = PyLong_AsSsize_t(args[1]);
    unsigned long frame_bytes_max = PyLong_AsUnsignedLong(args[2]), count_max = PyLong_AsUnsignedLong(args[3]);
    if (PyErr_Occurred()) {
        return false;
    }
    size_t host_bytes = (size_t)PyBytes_GET_SIZE(host);
    if (at < 0 || at > PyBytes_GET_SIZE(data) || frame_bytes_max > INT32_MAX || count_max > UINT32_MAX ||
        (host_bytes != SHMQ_HOST_BYTES && host_bytes != SHMQ_HOST_BYTES_V6) ||
        PyBytes_GET_SIZE(address) > 2 * (Py_ssize_t)SHMQ_HOST_BYTES_V6) {
        core_raise(self->state, SHMQ_BAD_ARGUMENT, "serve(): an offset, a limit, a host or an address out of range");
        return false;
    }
    feed->data = (const uint8_t *)PyBytes_AS_STRING(data);
    feed->bytes = (size_t)PyBytes_GET_SIZE(data);
    feed->at = (size_t)at;
    feed->frame_bytes_max = (uint32_t)frame_bytes_max;
    feed->count_max = count_max < QUEUES_MAX ? (uint32_t)count_max : QUEUES_MAX;
    feed->count = 0;
    feed->doubt = NULL;
    feed->spec = self->producer->blank;
    memcpy(feed->spec.born_host, PyBytes_AS_STRING(host), host_bytes);
    feed->spec.born_host_bytes = (uint8_t)host_bytes;
    feed->answer = (struct shmq_answer){.address = PyBytes_AS_STRING(address),
                                        .address_bytes = (uint32_t)PyBytes_GET_SIZE(address)};
    return true;
}

static PyObject *queues_tuple(const struct outbox *outbox)
{
    PyObject *tuple = PyTuple_New(outbox->queue_count);
    for (uint32_t i = 0; tuple && i < outbox->queue_count; i++) {
        PyObject *number = PyLong_FromUnsignedLong(outbox->queues[i]);
        if (!number) {
            Py_CLEAR(tuple);
            break;
        }
        PyTuple_SET_ITEM(tuple, i, number);
    }
    return tuple;
}

static PyObject *held_tuple(const PySender *self)
{
    const struct outbox *held = &self->outboxes[WHEN_DURABLE];
    if (!self->held_end) {
        Py_RETURN_NONE;
    }
    PyObject *queues = queues_tuple(held);
    return queues ? Py_BuildValue("(Ky#NI)", (unsigned long long)self->held_end, (const char *)held->bytes,
                                  (Py_ssize_t)held->used, queues, held->frame_count)
                  : NULL;
}

static PyObject *doubted_tuple(struct feed *feed)
{
    return feed->doubt ? Py_BuildValue("(nN)", (Py_ssize_t)feed->doubted_at, feed->doubt) : Py_NewRef(Py_None);
}

static PyObject *sender_serve(PySender *self, PyObject *const *args, Py_ssize_t nargs)
{
    struct feed feed;
    if (nargs != 6) {
        PyErr_Format(PyExc_TypeError, "serve() takes data, at, frame_bytes_max, count_max, born_host, address (%zd given)",
                     nargs);
        return NULL;
    }
    if (!feed_open(self, args, &feed) || !store_check(self->producer->store)) {
        return NULL;
    }
    for (int i = 0; i < OUTBOXES; i++) {
        self->outboxes[i].used = self->outboxes[i].queue_count = self->outboxes[i].frame_count = 0;
    }
    self->held_end = 0;
    store_user_enter(self->producer->store); /* finding a topic runs code that may close it */
    while (feed.count < feed.count_max && feed.at < feed.bytes && serve_one(self, &feed)) {
    }
    if (self->held_end) {
        shmq_want_durable(&self->producer->store->core, self->held_end);
    }
    store_user_leave(self->producer->store);
    const struct outbox *now = &self->outboxes[AT_ONCE];
    PyObject *queues = queues_tuple(now), *held = queues ? held_tuple(self) : NULL;
    if (!held) {
        Py_XDECREF(feed.doubt);
    }
    PyObject *doubted = held ? doubted_tuple(&feed) : NULL;
    if (!doubted) {
        Py_XDECREF(queues);
        Py_XDECREF(held);
        return NULL;
    }
    return Py_BuildValue("(nIy#NNN)", (Py_ssize_t)feed.at, feed.count, (const char *)now->bytes, (Py_ssize_t)now->used,
                         queues, held, doubted);
}

/* ---- the type --------------------------------------------------------------------------------------- */
/* Pieces of one answer: bytes that stand as they are, numbers that say what comes between. */
static bool pieces_from(PySender *self, PyObject *items, enum shmq_codec codec)
{
    if (!PyTuple_Check(items) || PyTuple_GET_SIZE(items) > PIECES_MAX) {
        PyErr_Format(PyExc_TypeError, "an answer is a tuple of at most %d pieces", PIECES_MAX);
        return false;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items); i++) {
        PyObject *item = PyTuple_GET_ITEM(items, i);
        struct shmq_piece *piece = &self->pieces[codec][i];
        if (PyBytes_CheckExact(item)) {
            *piece = (struct shmq_piece){SHMQ_PIECE_LITERAL, (uint32_t)PyBytes_GET_SIZE(item),
                                         (const uint8_t *)PyBytes_AS_STRING(item)};
            continue;
        }
        unsigned long kind = PyLong_AsUnsignedLong(item);
        if (PyErr_Occurred()) {
            return false;
        }
        unsigned long text = kind & ~(unsigned long)SHMQ_PIECE_SIZED;
        bool known = kind > SHMQ_PIECE_LITERAL && (text <= SHMQ_PIECE_QUEUE_OFFSET ? text > SHMQ_PIECE_LITERAL
                                                                                   : kind <= SHMQ_PIECE_LENGTH_32);
        if (!known) {
            core_raise(self->state, SHMQ_BAD_ARGUMENT, "there is no piece %lu", kind);
            return false;
        }
        *piece = (struct shmq_piece){(uint32_t)kind, 0, NULL};
    }
    self->piece_count[codec] = (uint32_t)PyTuple_GET_SIZE(items);
    return true;
}

static void sender_dealloc(PySender *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->producer);
    Py_XDECREF(self->refused);
    Py_XDECREF(self->suffix);
    Py_XDECREF(self->literals);
    PyMem_Free(self->scratch);
    PyMem_Free(self->text);
    for (int i = 0; i < OUTBOXES; i++) {
        PyMem_Free(self->outboxes[i].bytes);
    }
    part_free(&self->part);
    PyMem_Free(self->texts);
    type->tp_free(self);
    Py_DECREF(type);
}

static int sender_traverse(PySender *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->producer);
    return 0;
}

static PyObject *sender_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"producer", "refused", "suffix", "body_bytes_max", "properties_bytes_max", "answers", NULL};
    struct core_state *state = PyType_GetModuleState(type);
    PyObject *producer, *refused, *suffix, *json, *binary;
    unsigned int body_bytes_max, properties_bytes_max;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!$O!SII(OO):Sender", names, state->producer_type, &producer,
                                     &PyFrozenSet_Type, &refused, &suffix, &body_bytes_max, &properties_bytes_max, &json,
                                     &binary)) {
        return NULL;
    }
    PySender *self = (PySender *)type->tp_alloc(type, 0);
    if (!self) {
        return NULL;
    }
    self->state = state;
    self->producer = (PyProducer *)Py_NewRef(producer);
    self->refused = Py_NewRef(refused);
    self->suffix = Py_NewRef(suffix);
    self->literals = Py_BuildValue("(OO)", json, binary);
    self->body_bytes_max = body_bytes_max;
    self->properties_bytes_max = properties_bytes_max;
    self->text_bytes_max = SHMQ_FRAME_HEADER_MAX + 1 + (uint32_t)PyBytes_GET_SIZE(suffix);
    self->scratch = PyMem_Malloc(SHMQ_FRAME_HEADER_MAX);
    self->text = PyMem_Malloc(self->text_bytes_max);
    bool room = outbox_reserve(&self->outboxes[AT_ONCE], OUTBOX_BYTES) &&
                outbox_reserve(&self->outboxes[WHEN_DURABLE], OUTBOX_BYTES);
    self->texts = PyMem_Malloc(SHMQ_BATCH_BYTES_MAX);
    if (!part_reserve(&self->part, SHMQ_BATCH_MAX) || !self->scratch || !self->text || !room || !self->texts) {
        PyErr_NoMemory();
    }
    if (PyErr_Occurred() || !pieces_from(self, json, SHMQ_CODEC_JSON) || !pieces_from(self, binary, SHMQ_CODEC_BINARY)) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static PyMethodDef sender_methods[] = {
    {"serve", (PyCFunction)(void (*)(void))sender_serve, METH_FASTCALL,
     "Store the plain sends at the front of a connection's bytes: (end, count, answers, queues, held, doubted)."},
    {NULL},
};

static PyType_Slot sender_slots[] = {
    {Py_tp_doc, "Stores plain sends of RocketMQ clients and answers them; one for all connections."},
    {Py_tp_new, sender_new},
    {Py_tp_dealloc, sender_dealloc},
    {Py_tp_traverse, sender_traverse},
    {Py_tp_methods, sender_methods},
    {0, NULL},
};

PyType_Spec sender_spec = {
    .name = "shmq.bindings._core.Sender",
    .basicsize = sizeof(PySender),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = sender_slots,
};
