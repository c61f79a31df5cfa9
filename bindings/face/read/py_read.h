/* Reads: messages, readers, filters, pulls of the broker's clients, and what came from another host. */
#ifndef SHMQ_PY_READ_H
#define SHMQ_PY_READ_H

#include "core/read/reader.h"
#include "face/store/py_store.h"

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
    PyObject *kept;            /* lives as long as the message, or NULL */
    const uint8_t *record;     /* in `holder` */
    struct shmq_view view;
    uint64_t serial;
    uint32_t cursor;
    uint32_t attempt;
    bool settled;
    bool requeued;
    PyObject *body, *properties, *value; /* made on first access */
} PyMessage;

/* ---- py_damage.c ---- */
PyObject *damage_raise(PyReader *self, const struct shmq_delivery *delivery); /* always NULL */

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

/* ---- py_settle.c ---- */
bool reader_check(PyReader *self);
bool reader_acknowledge(PyReader *self, const PyMessage *message); /* false with an exception */
void reader_count_settled(PyReader *self, int64_t change);

/* ---- py_poll.c, py_reader.c ---- */
bool reader_settle_last(PyReader *self);
PyObject *reader_poll(PyReader *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *reader_iternext(PyReader *self);
extern PyType_Spec reader_spec;

/* ---- py_filter.c ---- */
bool filter_from(struct core_state *state, PyObject *value, PyFilter **out); /* borrowed; None: NULL */
extern PyType_Spec filter_spec;

/* ---- py_puller.c, and module functions of py_foreign.c and py_body.c ---- */
extern PyType_Spec puller_spec;
extern PyMethodDef foreign_functions[], body_functions[];

#endif
