/* Store: the three segments of one broker mapped into this process, and the lanes for calls without the GIL.
 *
 * close() takes effect for every later call at once; the memory itself goes when the last call that runs other code or
 * waits without the GIL has come back and the last slot is gone, so no thread loses it under its feet. Of segments that
 * were given up later calls say that, and not who closed them: their user goes on with those that came after them.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <unistd.h>

#include "face/store/py_store.h"

/* ---- helpers of every file ------------------------------------------------------------------------- */
bool store_raise_closed(PyStore *self)
{
    if (self->retired) {
        core_raise_status(self->state, SHMQ_RETIRED, "the connection to the store is closed");
    } else {
        core_raise(self->state, SHMQ_BAD_ARGUMENT, "the connection to the store is closed");
    }
    return false;
}

bool store_check_writable(PyStore *self)
{
    if (!store_check(self)) {
        return false;
    }
    if (self->core.writable) {
        return true;
    }
    core_raise(self->state, SHMQ_READ_ONLY, "this process mapped the store read-only");
    return false;
}

bool store_check_readers(PyStore *self)
{
    if (!store_check(self)) {
        return false;
    }
    if (!self->observing) {
        return true;
    }
    core_raise(self->state, SHMQ_READ_ONLY, "this process only looks at the store");
    return false;
}

uint64_t deadline_after(const PyStore *self, double seconds)
{
    const double seconds_max = 1e9; /* thirty years; keeps the product below far from overflow */
    if (seconds > seconds_max) {
        seconds = seconds_max;
    }
    return self->core.io->monotonic_ns() + (seconds > 0 ? (uint64_t)(seconds * 1e9) : 0) + 1;
}

bool seconds_from(struct core_state *state, PyObject *value, const char *name, double *seconds)
{
    if (!value || value == Py_None) {
        return true;
    }
    if (PyBool_Check(value)) {
        PyErr_Format(PyExc_TypeError, "%s is seconds, not a bool", name);
        return false;
    }
    double number = PyFloat_AsDouble(value);
    if (number == -1.0 && PyErr_Occurred()) {
        int sign = 0;
        if (!PyErr_ExceptionMatches(PyExc_OverflowError) || !PyLong_Check(value)) {
            return false;
        }
        PyErr_Clear(); /* an int that is no double any more is longer than any wait, or below 0 */
        (void)PyLong_AsLongAndOverflow(value, &sign);
        number = sign > 0 ? HUGE_VAL : -HUGE_VAL;
    }
    if (!(number >= 0)) {
        core_raise(state, SHMQ_BAD_ARGUMENT, "%s is %R seconds; it must be 0 or more", name, value);
        return false;
    }
    *seconds = number;
    return true;
}

PyObject *whole_from(PyObject *value)
{
    if (PyLong_CheckExact(value)) {
        return Py_NewRef(value);
    }
    if (PyBool_Check(value)) {
        PyErr_SetString(PyExc_TypeError, "a whole number is needed, not a bool");
        return NULL;
    }
    return PyNumber_Index(value);
}

bool whole_in(struct core_state *state, PyObject *value, const char *name, uint64_t most, uint64_t *out)
{
    const bool is_int = PyLong_CheckExact(value);
    PyObject *whole = is_int ? value : whole_from(value);
    if (!whole) {
        return false;
    }
    *out = PyLong_AsUnsignedLongLong(whole);
    const bool fits = *out != UINT64_MAX || !PyErr_Occurred();
    if (!is_int) {
        Py_DECREF(whole);
    }
    if (fits && *out <= most) {
        return true;
    }
    if (fits || PyErr_ExceptionMatches(PyExc_OverflowError)) {
        PyErr_Clear();
        core_raise(state, SHMQ_BAD_ARGUMENT, "%s is %R; it must be 0 to %llu", name, value, (unsigned long long)most);
    }
    return false;
}

/* ---- mapping --------------------------------------------------------------------------------------- */
static void *map_descriptor(int descriptor, bool writable, size_t *bytes)
{
    struct stat status;
    if (fstat(descriptor, &status) != 0) {
        return NULL;
    }
    *bytes = (size_t)status.st_size;
    if (!*bytes) {
        errno = ENODATA;
        return NULL;
    }
    void *address = mmap(NULL, *bytes, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, descriptor, 0);
    return address == MAP_FAILED ? NULL : address;
}

static void *map_sysv(int identifier, bool writable, size_t *bytes)
{
    struct shmid_ds status;
    if (shmctl(identifier, IPC_STAT, &status) != 0) {
        return NULL;
    }
    *bytes = status.shm_segsz;
    void *address = shmat(identifier, NULL, writable ? 0 : SHM_RDONLY);
    return (intptr_t)address == -1 ? NULL : address;
}

static void store_unmap(PyStore *self)
{
    for (struct store_lane *lane = self->lanes, *next; lane; lane = next) {
        next = lane->next;
        shmq_store_detach(&lane->core);
        PyMem_RawFree(lane);
    }
    self->lanes = NULL;
    if (self->mapped) {
        shmq_store_detach(&self->core);
    }
    self->mapped = false;
    for (int i = 0; i < 3; i++) {
        if (self->maps[i]) {
            (void)(self->sysv ? shmdt(self->maps[i]) : munmap(self->maps[i], self->map_bytes[i]));
        }
        self->maps[i] = NULL;
    }
    if (self->units_fd >= 0) {
        close(self->units_fd);
    }
    self->units_fd = -1;
}

void store_user_leave(PyStore *self)
{
    if (--self->users == 0 && !self->open) {
        store_unmap(self);
    }
}

/* ---- lanes ----------------------------------------------------------------------------------------- */
static enum shmq_status attach(PyStore *self, struct shmq_store *core, bool writable)
{
    enum shmq_status status =
        shmq_store_attach(core, self->maps[0], self->map_bytes[0], self->maps[1], self->map_bytes[1], self->maps[2],
                          self->map_bytes[2], writable, self->units_fd, &shmq_io_posix);
    core->observing = self->observing;
    return status;
}

struct store_lane *store_lane_take(PyStore *self)
{
    struct store_lane *lane = self->lanes;
    if (lane) {
        self->lanes = lane->next; /* last in, first out: one caller at a time keeps one mapping cache */
    } else {
        lane = PyMem_RawMalloc(sizeof *lane);
        if (!lane) {
            PyErr_NoMemory();
            return NULL;
        }
        enum shmq_status status = attach(self, &lane->core, self->core.writable);
        if (status != SHMQ_OK) {
            PyMem_RawFree(lane);
            core_raise_status(self->state, status, "a second handle on the segments");
            return NULL;
        }
        if (lane->core.log_directory < 0 && self->core.log_directory >= 0) { /* another lies at its path just now */
            lane->core.log_directory = fcntl(self->core.log_directory, F_DUPFD_CLOEXEC, 3);
        }
    }
    store_user_enter(self);
    return lane;
}

void store_lane_give(PyStore *self, struct store_lane *lane)
{
    int reason = errno;
    lane->next = self->lanes;
    self->lanes = lane;
    store_user_leave(self);
    errno = reason;
}

/* ---- construction ---------------------------------------------------------------------------------- */
static bool store_map(PyStore *self, const int *segments, bool writable)
{
    static const char *const names[] = {"control", "units", "readers"};
    for (int i = 0; i < 3; i++) {
        bool write = writable || (i == 2 && !self->observing); /* every process writes waiter bits and offsets */
        self->maps[i] = self->sysv ? map_sysv(segments[i], write, &self->map_bytes[i])
                                   : map_descriptor(segments[i], write, &self->map_bytes[i]);
        if (!self->maps[i]) {
            core_raise(self->state, SHMQ_SYSTEM, "mapping the %s segment: %s", names[i], strerror(errno));
            return false;
        }
    }
    if (!self->sysv && writable && (self->units_fd = fcntl(segments[1], F_DUPFD_CLOEXEC, 3)) < 0) {
        core_raise_status(self->state, SHMQ_SYSTEM, "duplicating the units descriptor");
        return false;
    }
    return true;
}

PyObject *store_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"control", "units", "readers", "writable", "sysv", "format", "observing", NULL};
    int segments[3], writable = -1, sysv = 0, observing = 0;
    PyObject *format = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iii|$ppOp:Store", names, &segments[0], &segments[1], &segments[2],
                                     &writable, &sysv, &format, &observing)) {
        return NULL;
    }
    if (writable < 0) {
        PyErr_SetString(PyExc_TypeError, "Store() missing required keyword-only argument: 'writable'");
        return NULL;
    }
    PyStore *self = (PyStore *)type->tp_alloc(type, 0);
    if (!self) {
        return NULL;
    }
    self->state = PyType_GetModuleState(type);
    self->units_fd = -1;
    self->sysv = sysv;
    self->observing = observing && !writable;
    bool ok = store_map(self, segments, writable) && (format == Py_None || store_format(self, format));
    if (ok) {
        enum shmq_status status = attach(self, &self->core, writable);
        ok = self->mapped = self->open = status == SHMQ_OK;
        if (!ok) {
            core_raise_status(self->state, status, "attaching to the segments");
        }
    }
    if (!ok) {
        Py_DECREF(self);
        return NULL;
    }
    self->errands_seen = atomic_load_explicit(&self->core.log->keeper_errands, memory_order_relaxed);
    return (PyObject *)self;
}

void store_dealloc(PyStore *self)
{
    PyTypeObject *type = Py_TYPE(self);
    store_unmap(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *store_close(PyStore *self, PyObject *unused)
{
    (void)unused;
    if (self->open) {
        self->retired = atomic_load_explicit(&self->core.log->retired, memory_order_acquire) != 0;
    }
    self->open = false;
    if (!self->users) {
        store_unmap(self);
    }
    Py_RETURN_NONE;
}

static bool wait_durable(PyStore *self, uint64_t log_position, double seconds)
{
    const uint64_t slice_ns = 200000000, last_flush_ns = UINT64_C(10000000000);
    uint64_t deadline = deadline_after(self, seconds), given_up_ns = 0;
    enum shmq_status status;
    do {
        struct store_lane *lane = store_lane_take(self); /* it may take the flush itself, and a flush maps files */
        if (!lane) {
            return false;
        }
        uint64_t slice = self->core.io->monotonic_ns() + slice_ns;
        bool last = slice >= deadline;
        Py_BEGIN_ALLOW_THREADS
        status = shmq_wait_durable(&lane->core, log_position, last ? deadline : slice);
        Py_END_ALLOW_THREADS
        store_lane_give(self, lane);
        if (PyErr_CheckSignals() < 0 || !store_check(self)) {
            return false;
        }
        if (last) {
            break;
        }
        /* A keeper that ends flushes once more; of one that died in these segments no receipt comes any more. */
        if (given_up_ns == 0 && atomic_load_explicit(&self->core.log->retired, memory_order_acquire) != 0) {
            given_up_ns = slice;
        }
        if (given_up_ns != 0 && slice - given_up_ns > last_flush_ns && status != SHMQ_OK) {
            status = SHMQ_RETIRED;
        }
    } while (status == SHMQ_TIMED_OUT || status == SHMQ_UNCONFIRMED);
    if (status == SHMQ_OK) {
        return true;
    }
    if (status == SHMQ_TIMED_OUT || status == SHMQ_UNCONFIRMED) {
        core_raise(self->state, status,
                   "the record is in the log up to position %llu, but %s only up to %llu after %d ms",
                   (unsigned long long)log_position, status == SHMQ_UNCONFIRMED ? "its slaves confirm it" : "the disk has it",
                   (unsigned long long)shmq_safe_end(&self->core),
                   (int)(seconds * 1000));
    } else {
        core_raise_status(self->state, status, "waiting for the disk");
    }
    return false;
}

/* An exception is set, after an append: what was stored before is there still, or comes back with the log. */
static void mark_as_stored(void)
{
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (PyObject_SetAttrString(error, "maybe_stored", Py_True) < 0) {
        PyErr_Clear();
    }
    PyErr_Restore(type, error, traceback);
}

bool store_wait_durable(PyStore *self, uint64_t log_position, double seconds)
{
    const bool is_durable = wait_durable(self, log_position, seconds);
    if (!is_durable) {
        mark_as_stored();
    }
    return is_durable;
}

static PyObject *call_wait_durable(PyStore *self, PyObject *args)
{
    unsigned long long position;
    double timeout;
    if (!PyArg_ParseTuple(args, "Kd:wait_durable", &position, &timeout) || !store_check_writable(self)) {
        return NULL;
    }
    return store_wait_durable(self, position, timeout) ? Py_NewRef(Py_None) : NULL;
}

static PyObject *store_forget_pages(PyStore *self, PyObject *Py_UNUSED(ignored))
{
    if (!store_check(self)) {
        return NULL;
    }
    shmq_mapping_forget(&self->core); /* with the GIL, which guards the cache of mappings */
    Py_RETURN_NONE;
}

static PyObject *store_log_file(PyStore *self, PyObject *value)
{
    uint64_t position;
    if (!store_check(self) || !whole_in(self->state, value, "log_position", UINT64_MAX - 1, &position)) {
        return NULL;
    }
    const int fd = shmq_log_file_open(&self->core, position);
    return fd >= 0 ? PyLong_FromLong(fd) : core_raise_status(self->state, SHMQ_SYSTEM, "opening a log file");
}

PyMethodDef store_methods[] = {
    {"log_file", (PyCFunction)store_log_file, METH_O, "Open the log file that holds a position, for reading."},
    {"forget_pages", (PyCFunction)store_forget_pages, METH_NOARGS,
     "Drop this process' page-table entries of the log far behind its end."},
    {"wait_durable", (PyCFunction)call_wait_durable, METH_VARARGS,
     "Wait until the log is on the disk up to a position."},
    {"close", (PyCFunction)store_close, METH_NOARGS, "Detach; messages and their views stay readable."},
    {NULL},
};
