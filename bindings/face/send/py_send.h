/* Sends: a producer's routes, parsed calls, the records one append stores, receipts and slots. */
#ifndef SHMQ_PY_SEND_H
#define SHMQ_PY_SEND_H

#include "face/store/py_store.h"

struct route {                 /* what a producer knows of one topic */
    PyObject *topic;
    const char *name;          /* UTF-8 inside `topic` */
    uint32_t name_bytes;
    uint32_t index;
    uint32_t version;          /* of the topic entry when it was read */
    uint32_t perm;
    uint32_t write_queues;     /* what send() goes round; 0 when the topic takes no messages */
    uint32_t queue_count;      /* what append() may name: all there are, to read or to write */
    uint32_t turn;
    uint32_t *queues;
};

typedef struct {
    PyObject_HEAD
    struct core_state *state;
    PyStore *store;
    PyObject *resolve;
    PyObject *special;         /* takes the sends with keywords that are not ours, or NULL */
    PyObject *routes;          /* topic -> index into route_list */
    struct route **route_list;
    uint32_t route_count;
    struct route *route_last;
    double timeout;
    bool wait_durable;
    struct shmq_spec blank;    /* hosts filled in */
    uint32_t seed;
    uint64_t beat_ms;
    PyObject *explain;         /* makes a better error from the arguments of a call that has failed, or NULL */
    PyObject *refused;         /* carries out the sends that the log refuses, or raises; or NULL */
} PyProducer;

typedef struct {
    PyObject_HEAD
    struct core_state *state;
    PyProducer *producer;
    struct route *route;
    PyObject *tag, *key, *group; /* options, or NULL */
    PyObject *properties;      /* dict */
    PyObject *view;            /* weak reference to the memoryview handed out, or NULL: a strong one would be a cycle */
    PyObject *receipt;
    struct shmq_claim_handle claim;
    Py_ssize_t exports;
    uint32_t queue_id;
    uint32_t size;
    double timeout;
    bool open;                 /* neither committed nor aborted */
    bool parked;               /* over, but a view of its memory is still held */
    bool uses_store;           /* which stays mapped for it, be it closed */
} PySlot;

/* ---- py_property.c ---- */
struct property_text { char *data; size_t bytes; size_t capacity; char fixed[512]; };
static inline void property_text_open(struct property_text *text)
{
    text->data = text->fixed;
    text->bytes = 0;
    text->capacity = sizeof text->fixed;
}
static inline void property_text_close(struct property_text *text)
{
    if (text->data != text->fixed)
        PyMem_Free(text->data);
}
/* Append everything the call's options say; *tag_hash is 0 without a tag. */
bool property_text_fill(const PyProducer *producer, PyObject *const *values, struct property_text *text,
                        int64_t *tag_hash);

/* ---- py_receipt.c ---- */
PyObject *receipt_new(PyProducer *producer, const struct route *route, uint32_t queue_id,
                      const struct shmq_appended *appended);
extern PyType_Spec receipt_spec;
extern PyMethodDef receipt_functions[];

/* ---- py_call.c, py_route.c, py_send.c, py_batch.c ---- */
struct call {                  /* one parsed call */
    PyObject *values[CALL_COUNT];
    struct route *route;
    uint32_t queue_id;
    uint32_t queue;
    double timeout;
};
/* `unknown` not NULL: a keyword that is none of ours sets it, and no exception. */
bool call_parse(struct core_state *state, const char *method, PyObject *second_name, uint32_t allowed,
                PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, PyObject **values, bool *unknown);
/* Topic, queue and timeout of a call. */
bool call_route(PyProducer *self, struct call *call);
struct route *producer_route(PyProducer *self, PyObject *topic);
void route_free(struct route *route);
struct body_buffer { const void *data; size_t bytes; bool held; Py_buffer buffer; };
/* NULL, with an error that says which argument of a failed call is to blame, if it is an error of arguments. */
__attribute__((cold, noinline))
PyObject *call_explain(PyProducer *self, PyObject *second_name, PyObject *const *args, Py_ssize_t nargs,
                       PyObject *kwnames);
/* What refused() makes of a send that has failed; NULL with an error otherwise. */
__attribute__((cold, noinline))
PyObject *call_refused(PyProducer *self, const char *method, PyObject *const *args, Py_ssize_t nargs,
                       PyObject *kwnames);
bool body_open(struct core_state *state, PyObject *body, struct body_buffer *out);
static inline void body_close(struct body_buffer *body)
{
    if (body->held)
        PyBuffer_Release(&body->buffer);
}
/* Append one record of any length; FACE_ERROR with an exception set, or SHMQ_OK. Wakes no reader. */
enum shmq_status producer_append(PyProducer *self, struct call *call, const struct shmq_spec *spec, bool body_constant,
                                 int64_t tag_hash, struct shmq_appended *out);
/* One claim: the lock tried with the GIL, then waited for on a lane. */
enum shmq_status claim_open(PyStore *store, uint32_t queue, uint32_t body_bytes, uint32_t tail_bytes, uint64_t deadline,
                            struct shmq_claim_handle *claim);
enum shmq_status claim_finish(PyStore *store, struct shmq_claim_handle *claim, const struct shmq_spec *spec,
                              int64_t tag_hash, uint64_t deadline, struct shmq_appended *out);
void claim_drop(PyStore *store, struct shmq_claim_handle *claim);
/* Note in our client slot that we are alive and have sent. */
void producer_count(PyProducer *self, const struct shmq_appended *out, uint64_t count);
bool producer_waits(const PyProducer *self, uint32_t queue); /* for the disk, after a send to this queue */
/* Wake readers, count, and with `durable` wait for the disk where the queue's messages count only there. */
bool producer_published(PyProducer *self, const struct call *call, const struct shmq_appended *out, uint64_t count,
                        uint64_t end, bool durable);
PyObject *producer_send(PyProducer *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *producer_send_oneway(PyProducer *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *producer_send_batch(PyProducer *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
extern PyType_Spec producer_spec;

/* ---- py_sender.c ---- */
extern PyType_Spec sender_spec;

/* ---- py_part.c: the records one append stores ---- */
struct batch_part {
    uint32_t count, bytes;
    uint32_t room;             /* of both arrays */
    struct shmq_spec *specs;
    int64_t *tag_hashes;
};
bool part_reserve(struct batch_part *part, uint32_t room); /* false with an exception */
void part_free(struct batch_part *part);
/* The spec is at specs[count] already. */
void part_add(struct batch_part *part, uint32_t record_bytes, int64_t tag_hash);
/* As producer_append with a constant body: each record's body is bytes that its caller cannot change. */
enum shmq_status part_append(PyProducer *producer, struct call *call, const struct batch_part *part,
                             struct shmq_appended *first);

/* ---- py_append.c, py_append_batch.c: records whose every field the caller decides ---- */
struct append_form {           /* what one of the methods takes */
    const char *method;
    const enum append_name *positions;
    int position_count;
    uint32_t needed, allowed;  /* bits of append_name */
};
struct append_call {
    struct call call;          /* route, queue and timeout; no values */
    struct shmq_spec base;     /* every field but body and properties */
    bool has_tag;
    int64_t tag_code;          /* what the unit says instead of the tag's hash */
};
bool append_call_open(PyProducer *self, const struct append_form *form, PyObject *const *args, Py_ssize_t nargs,
                      PyObject *kwnames, PyObject **values, struct append_call *call);
int64_t text_tag_hash(const struct append_call *call, const struct shmq_text_facts *facts);
PyObject *appended_tuple(const struct shmq_appended *appended); /* (queue offset, log position, store_ms, end) */
PyObject *producer_append_record(PyProducer *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *producer_append_batch(PyProducer *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *producer_append_encoded_batch(PyProducer *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);

/* ---- py_together.c ---- */
PyObject *producer_append_together(PyProducer *self, PyObject *args);

/* ---- py_reserve.c, py_slot.c ---- */
PyObject *producer_reserve(PyProducer *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
extern PyType_Spec slot_spec;

#endif
