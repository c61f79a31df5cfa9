/* What the files of the Python face share: module state, object layouts, error raising.
 *
 * Knows CPython and the C core; owns no rule of the log. Object lifetimes:
 *
 *   Producer, Reader, Slot, parts --> Store     a closed Store stays mapped until calls without the GIL have left it
 *   Message --> shmq_mapping, Reader            a message outlives the Store: its file stays mapped
 *   memoryview --> Message or Slot              views are exports of the object, so the object cannot go first
 *
 * Threads: `Store.core` is used only with the GIL held. A call that has to release it takes a lane: a second handle on
 * the same segments with its own scratch buffer and mapping cache, exclusively for that call. shmq_wait, shmq_lock and
 * the wake functions touch neither, so they may use `core` without the GIL; `users` counts them against close().
 */
#ifndef SHMQ_PY_CORE_H
#define SHMQ_PY_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "core/read/reader.h"
#include "shmq.h"

#if PY_VERSION_HEX < 0x030B0000
#error "shmq needs Python 3.11 or later"
#endif

#define FREE_LIST_MAX 128 /* messages and receipts kept for reuse: more than one poll(max=64) in flight */
#define FACE_ERROR ((enum shmq_status)-1) /* a Python exception is set already */

/* Arguments of send, send_oneway, send_batch and reserve; the order of `call.values`. */
enum call_name {
    CALL_TOPIC, CALL_SECOND, CALL_TAG, CALL_KEY, CALL_KEYS, CALL_PROPERTIES, CALL_GROUP, CALL_QUEUE_ID, CALL_FLAG,
    CALL_TIMEOUT, CALL_TAG_CODE, CALL_COUNT,
};

/* Arguments of append, append_batch and append_encoded_batch; the order of their `values`. */
enum append_name {
    APPEND_TOPIC, APPEND_BODY, APPEND_PROPERTIES, APPEND_QUEUE_ID, APPEND_FLAG, APPEND_SYS_FLAG, APPEND_BORN,
    APPEND_BORN_HOST, APPEND_RECONSUME, APPEND_PREPARED, APPEND_TAG_CODE, APPEND_TIMEOUT, APPEND_RECORDS,
    APPEND_BATCH_BODY, APPEND_EXTRA, APPEND_COUNT,
};

/* Tuples with named places; py_row.c has the names. */
enum row_kind {
    ROW_QUEUE, ROW_UNPERSISTED, ROW_OFFSET, ROW_CLIENT, ROW_ASSIGNMENT, ROW_SCANNED, ROW_INDEX_PROGRESS, ROW_DAMAGE,
    ROW_UNIT_RUN, ROW_RECORD_BATCH, ROW_COUNT,
};

struct py_message;
struct py_receipt;

struct core_state {
    PyObject *error;           /* CoreError */
    PyObject *error_factory;   /* makes the exception from CoreError's arguments; NULL: CoreError itself */
    PyObject *damage_factory;  /* makes the exception for a message that was left out, see module.c; or NULL */
    PyTypeObject *store_type, *receipt_type, *producer_type, *slot_type, *message_type, *reader_type, *sender_type,
        *puller_type, *durable_watch_type,
        *filter_type, *row_types[ROW_COUNT];
    PyObject *call_names[CALL_COUNT]; /* interned; CALL_SECOND is "body" */
    PyObject *append_names[APPEND_COUNT];
    PyObject *name_bodies, *name_size, *name_ack, *name_nack, *name_extend, *name_idle, *name_stray;
    struct py_message *message_free[FREE_LIST_MAX];
    struct py_receipt *receipt_free[FREE_LIST_MAX];
    int message_free_count, receipt_free_count;
};

struct store_lane { struct shmq_store core; struct store_lane *next; };

typedef struct {
    PyObject_HEAD
    struct core_state *state;
    struct shmq_store core;
    struct store_lane *lanes;  /* idle ones */
    bool open;
    bool mapped;
    bool sysv;
    bool observing;            /* nothing is mapped writable, not even the readers segment */
    int units_fd;              /* our duplicate, or -1 */
    int users;                 /* calls that are inside without the GIL */
    uint32_t errands_seen;     /* by keep_flushed */
    uint64_t flush_due_ns;
    uint32_t interrupts_seen;  /* by wait_queues */
    void *maps[3];             /* control, units, readers */
    size_t map_bytes[3];
} PyStore;

typedef struct { PyObject_HEAD PyStore *store; } PyStorePart; /* py_store_part.c */

typedef struct py_receipt {
    PyObject_HEAD
    struct core_state *state;
    PyObject *topic;
    PyObject *message_id;      /* text of another host, or NULL: made from store_host */
    PyObject *recall_handle;   /* str, or what has encode() for it; NULL for a message that cannot be taken back */
    uint32_t queue_id;
    uint64_t queue_offset;
    uint64_t log_position;
    uint64_t store_ms;
    uint8_t store_host[8];
} PyReceipt;

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
} PySlot;

typedef struct {
    PyObject_HEAD
    struct shmq_filter *core;
} PyFilter;

typedef struct {
    PyObject_HEAD
    struct core_state *state;
    PyStore *store;
    PyObject *owner;
    PyObject *codec;
    PyFilter *where;           /* or NULL; core.filter is its program */
    PyObject *last;            /* auto_ack: what the next take settles, a Message or a list of them */
    PyObject *requeued;        /* list, delivered from the front */
    PyObject *deferred;        /* exception that came behind messages of one poll; the next take raises it */
    struct shmq_reader core;
    double slice;
    uint32_t spin_us;
    bool auto_ack;
    bool open;
    bool stopped;
    bool woken;
} PyReader;

typedef struct py_message {
    PyObject_HEAD
    struct core_state *state;
    PyReader *reader;          /* or NULL */
    struct shmq_mapping *mapping; /* or NULL: the record lies in `holder` */
    PyObject *holder, *owner, *codec; /* py_foreign.c; NULL for a message of the log */
    const uint8_t *record;     /* in `holder` */
    struct shmq_view view;
    uint64_t serial;
    uint32_t cursor;
    uint32_t attempt;
    bool settled;
    bool requeued;
    PyObject *body, *properties, *value; /* made on first access */
} PyMessage;

/* ---- py_error.c ---- */
/* Raise CoreError(status, message[, errno]); always returns NULL. The format is PyUnicode_FromFormat's. */
PyObject *core_raise(struct core_state *state, enum shmq_status status, const char *format, ...);
/* The same with the meaning of the status as the message; `what` names the operation. */
PyObject *core_raise_status(struct core_state *state, enum shmq_status status, const char *what);
PyObject *core_raise_append(PyStore *store, enum shmq_status status, const char *topic, uint32_t queue_id,
                            uint32_t record_bytes, double timeout);

/* ---- py_row.c ---- */
bool row_types_add(PyObject *module, struct core_state *state);
/* A row of numbers; the place `named_at`, unless -1, holds `named` instead, whose reference is taken over. */
PyObject *row_new(struct core_state *state, enum row_kind kind, const int64_t *numbers, int named_at, PyObject *named);
/* A row of objects, whose references are taken over; NULL, and they are given up, when one is missing. */
PyObject *row_of(struct core_state *state, enum row_kind kind, PyObject *const *values);
bool row_append(PyObject *list, PyObject *row); /* takes the row over; false with an exception */

/* ---- py_store.c ---- */
bool store_raise_closed(PyStore *self); /* false */
static inline bool store_check(PyStore *self) /* open, or raises */
{
    return self->open || store_raise_closed(self);
}
/* Our client slot, to count in; NULL without one, and when it was taken back. */
static inline struct shmq_client *store_client(const PyStore *self)
{
    const uint64_t client = self->open ? shmq_client_own(&self->core) : 0;
    return client ? &self->core.clients[shmq_client_slot(client)] : NULL;
}
bool store_check_readers(PyStore *self); /* and its readers segment may be written to */
bool store_check_writable(PyStore *self);
struct store_lane *store_lane_take(PyStore *self);
void store_lane_give(PyStore *self, struct store_lane *lane);
/* status = call, without the GIL; the call's store is &lane->core. FACE_ERROR when there is no lane. */
#define ON_LANE(store, status, call)                                                                                   \
    do {                                                                                                               \
        struct store_lane *lane = store_lane_take(store);                                                              \
        (status) = FACE_ERROR;                                                                                         \
        if (lane) {                                                                                                    \
            Py_BEGIN_ALLOW_THREADS                                                                                     \
            (status) = (call);                                                                                         \
            Py_END_ALLOW_THREADS                                                                                       \
            store_lane_give(store, lane);                                                                              \
        }                                                                                                              \
    } while (0)
void store_user_leave(PyStore *self);
uint64_t deadline_after(const PyStore *self, double seconds);
/* Without the GIL, looking at signals between slices; false with an exception. */
bool store_wait_durable(PyStore *self, uint64_t log_position, double seconds);
/* None or NULL leaves *seconds as it is. */
bool seconds_from(struct core_state *state, PyObject *value, const char *name, double *seconds);
/* A new reference to an int, of any library's; NULL with an exception for what is none, True and False included. */
PyObject *whole_from(PyObject *value);
/* A whole number from 0 to `most`; false with an exception that names it. */
bool whole_in(struct core_state *state, PyObject *value, const char *name, uint64_t most, uint64_t *out);
bool store_format(PyStore *self, PyObject *format); /* py_format.c: fill mapped, zeroed segments */
bool store_methods_join(void); /* before the type is made */
extern PyType_Spec store_spec;
extern PyMethodDef unit_methods[], table_methods[], member_methods[], offset_methods[], look_methods[],
    visible_methods[];                                        /* of Store */
extern PyMethodDef keeper_methods[], flush_methods[], loss_methods[], damage_methods[], broker_topic_methods[],
    broker_member_methods[], broker_offset_methods[], pull_methods[], together_methods[], scan_methods[],
    batch_methods[], index_methods[], state_methods[], replica_methods[],
    figure_methods[], column_methods[];                       /* of its parts */
extern PyGetSetDef store_getset[], figure_getset[];

/* ---- py_store_part.c ---- */
bool store_parts_add(PyObject *module); /* after the type of the store */
/* Makes one table of many, its end included; NULL ends `tables` early. false with an exception. */
bool methods_join(PyMethodDef *const *tables, size_t table_count, PyMethodDef *joined, size_t room);

/* ---- py_damage.c ---- */
PyObject *damage_raise(PyReader *self, const struct shmq_delivery *delivery); /* always NULL */

/* ---- py_property.c: RocketMQ's property text ---- */
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
PyObject *property_dict(const char *properties, size_t bytes);

/* ---- py_receipt.c ---- */
PyObject *receipt_new(PyProducer *producer, const struct route *route, uint32_t queue_id,
                      const struct shmq_appended *appended);
PyReceipt *receipt_blank(struct core_state *state); /* everything but hosts and numbers is NULL */
PyObject *message_id_text(const uint8_t *host, uint32_t host_bytes, uint64_t log_position);
extern PyType_Spec receipt_spec;

/* ---- py_call.c, py_producer.c, py_send.c, py_batch.c ---- */
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
struct body_buffer { const void *data; size_t bytes; bool held; Py_buffer buffer; };
/* NULL, with an error that says which argument of a failed call is to blame, if it is an error of arguments. */
__attribute__((cold, noinline))
PyObject *call_explain(PyProducer *self, PyObject *second_name, PyObject *const *args, Py_ssize_t nargs,
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

/* ---- py_puller.c ---- */
extern PyType_Spec puller_spec;

/* ---- py_durable_watch.c ---- */
extern PyType_Spec durable_watch_spec;

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

/* ---- py_message.c, py_body.c ---- */
/* Takes a hold of the mapping. */
PyObject *message_new(struct core_state *state, PyReader *reader, const struct shmq_view *view,
                      struct shmq_mapping *mapping, uint32_t cursor, uint64_t serial);
void message_free_list_clear(struct core_state *state);
bool message_acknowledge(PyMessage *self);
PyObject *message_body(PyMessage *self, void *closure);
PyObject *message_size(PyMessage *self, void *closure);
bool message_is_packed(const PyMessage *self);
extern PyType_Spec message_spec;

/* ---- py_reader.c, py_poll.c ---- */
bool reader_check(PyReader *self);
bool reader_settle_last(PyReader *self);
bool reader_acknowledge(PyReader *self, const PyMessage *message); /* false with an exception */
void reader_count_settled(PyReader *self, int64_t change);
PyObject *reader_poll(PyReader *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *reader_iternext(PyReader *self);
extern PyType_Spec reader_spec;

/* ---- py_foreign.c: module functions on what came from another host ---- */
extern PyMethodDef foreign_functions[];

/* ---- py_record.c: module functions on records ---- */
extern PyMethodDef record_functions[];

/* ---- py_record_batch.c: module functions on many records ---- */
extern PyMethodDef batch_functions[];

/* ---- py_filter.c ---- */
extern PyType_Spec filter_spec;
bool filter_from(struct core_state *state, PyObject *value, PyFilter **out); /* borrowed; None: NULL */

/* ---- py_index.c, py_columns.c, py_body.c, py_figures.c ---- */
extern PyMethodDef index_functions[], columns_functions[], body_functions[], figure_functions[];

#endif
