/* What every file of the Python face knows: the module's state, errors, rows, and functions on records.
 *
 * The headers stand on each other, so that a face sees what it uses:
 *
 *   py_core.h <-- store/py_store.h <-- send/py_send.h
 *                                  <-- read/py_read.h
 *
 * Object lifetimes:
 *
 *   Producer, Reader, Slot, parts --> Store     a closed Store stays mapped until calls inside have left it
 *   Message --> shmq_mapping, Reader            a message outlives the Store: its file stays mapped
 *   memoryview --> Message or Slot              views are exports of the object, so the object cannot go first
 */
#ifndef SHMQ_PY_CORE_H
#define SHMQ_PY_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

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

/* ---- py_error.c ---- */
/* Raise CoreError(status, message[, errno]); always returns NULL. The format is PyUnicode_FromFormat's. */
PyObject *core_raise(struct core_state *state, enum shmq_status status, const char *format, ...);
/* The same with the meaning of the status as the message; `what` names the operation. */
PyObject *core_raise_status(struct core_state *state, enum shmq_status status, const char *what);
PyObject *core_raise_append(struct core_state *state, const struct shmq_store *store, enum shmq_status status,
                            const char *topic, uint32_t queue_id, uint32_t record_bytes, double timeout);

/* ---- py_row.c ---- */
bool row_types_add(PyObject *module, struct core_state *state);
/* A row of numbers; the place `named_at`, unless -1, holds `named` instead, whose reference is taken over. */
PyObject *row_new(struct core_state *state, enum row_kind kind, const int64_t *numbers, int named_at, PyObject *named);
/* A row of objects, whose references are taken over; NULL, and they are given up, when one is missing. */
PyObject *row_of(struct core_state *state, enum row_kind kind, PyObject *const *values);
bool row_append(PyObject *list, PyObject *row); /* takes the row over; false with an exception */

/* ---- py_record.c ---- */
PyObject *property_dict(const char *properties, size_t bytes);
PyObject *message_id_text(const uint8_t *host, uint32_t host_bytes, uint64_t log_position);
extern PyMethodDef record_functions[];

#endif
