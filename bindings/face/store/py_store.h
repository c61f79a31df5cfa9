/* The Store: its object, the calls that leave the GIL, and the tables of methods that it and its parts are made of.
 *
 * Threads: `Store.core` is used only with the GIL held. A call that has to release it takes a lane: a second handle on
 * the same segments with its own scratch buffer and mapping cache, exclusively for that call. shmq_wait, shmq_lock and
 * the wake functions touch neither, so they may use `core` without the GIL; `users` counts them against close().
 */
#ifndef SHMQ_PY_STORE_H
#define SHMQ_PY_STORE_H

#include "face/py_core.h"

struct store_lane { struct shmq_store core; struct store_lane *next; };

typedef struct {
    PyObject_HEAD
    struct core_state *state;
    struct shmq_store core;
    struct store_lane *lanes;  /* idle ones */
    bool open;
    bool mapped;
    bool retired;              /* when it was closed */
    bool sysv;
    bool observing;            /* nothing is mapped writable, not even the readers segment */
    int units_fd;              /* our duplicate, or -1 */
    int users;                 /* calls that run other code or let the GIL go, and open slots */
    uint32_t errands_seen;     /* by keep_flushed */
    uint64_t flush_due_ns;
    uint32_t interrupts_seen;  /* by wait_queues */
    void *maps[3];             /* control, units, readers */
    size_t map_bytes[3];
} PyStore;

typedef struct { PyObject_HEAD PyStore *store; } PyStorePart; /* py_store_part.c */

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
/* Between these the segments stay mapped, closed or not. */
static inline void store_user_enter(PyStore *self)
{
    self->users++;
}
void store_user_leave(PyStore *self);
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
PyObject *store_new(PyTypeObject *type, PyObject *args, PyObject *kwargs);
void store_dealloc(PyStore *self);
extern PyMethodDef store_methods[], unit_methods[], table_methods[], member_methods[], offset_methods[], look_methods[],
    visible_methods[];                                        /* of Store */
extern PyMethodDef keeper_methods[], flush_methods[], loss_methods[], damage_methods[], broker_topic_methods[],
    broker_member_methods[], broker_offset_methods[], pull_methods[], together_methods[], scan_methods[],
    batch_methods[], index_methods[], state_methods[], replica_methods[],
    figure_methods[], column_methods[];                       /* of its parts */
extern PyGetSetDef store_getset[], figure_getset[];

/* ---- py_store_part.c ---- */
bool store_methods_join(void); /* before the type is made */
extern PyType_Spec store_spec;
bool store_parts_add(PyObject *module); /* after the type of the store */

/* ---- types and module functions ---- */
extern PyType_Spec durable_watch_spec;
extern PyMethodDef batch_functions[], index_functions[], columns_functions[], figure_functions[];

#endif
