/* CoreError: what happened, why, which number; the status says it to shmq.shm, the text to people. */
#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "face/py_core.h"

static const char *const meanings[] = {
    [SHMQ_OK] = "no error",
    [SHMQ_WOULD_BLOCK] = "the append lock is taken",
    [SHMQ_BROKER_BUSY] = "another process held a lock of the segments, or a claim, until the deadline",
    [SHMQ_LOG_FULL] = "no preallocated log file is left",
    [SHMQ_UNITS_FULL] = "no unit frame is left",
    [SHMQ_READ_ONLY] = "the store is read-only",
    [SHMQ_TOO_LARGE] = "a length is beyond its limit",
    [SHMQ_NO_TOPIC] = "there is no such topic",
    [SHMQ_NO_QUEUE] = "there is no such queue",
    [SHMQ_TABLE_FULL] = "a table of the segments is full; more entries need a larger segment",
    [SHMQ_TIMED_OUT] = "the deadline passed",
    [SHMQ_UNCONFIRMED] = "the deadline passed, and not all slaves in sync have it",
    [SHMQ_EMPTY] = "nothing is stored there",
    [SHMQ_CORRUPT] = "stored bytes contradict themselves",
    [SHMQ_GONE] = "retention has deleted what was asked for",
    [SHMQ_BAD_ARGUMENT] = "an argument is outside its range",
    [SHMQ_SYSTEM] = "a system call failed",
    [SHMQ_FOREIGN_ABI] = "the segments have another layout, or were made by another C library",
    [SHMQ_FOREIGN_NAMESPACE] = "the segments were made in another PID namespace, where the append lock is unsafe",
    [SHMQ_RETIRED] = "this generation of segments was given up; attach again",
    [SHMQ_EVICTED] = "the claim was taken away",
    [SHMQ_FENCED] = "another process decides about the record this was done for",
    [SHMQ_NOT_MASTER] = "this broker is not the master",
    [SHMQ_DETACHED] = "the broker took our client slot back; attach again",
    [SHMQ_DOUBTED] = "it is stored here, but this broker is the master no more, and the new one may lack it",
};

static const char *const read_only_reasons[] = {
    [SHMQ_WRITABLE] = "this process mapped it read-only",
    [SHMQ_READ_ONLY_FLUSH_FAILED] = "the disk refused to write; repair it and restart the broker, it recovers from the disk",
    [SHMQ_READ_ONLY_POISONED] = "several lock holders died in a row",
    [SHMQ_READ_ONLY_STOPPED_HOLDER] = "a stopped process holds the append lock",
    [SHMQ_READ_ONLY_DISK_FULL] = "the disk is full",
    [SHMQ_READ_ONLY_OPERATOR] = "an operator asked for it",
    [SHMQ_READ_ONLY_FOLLOWER] = "its records come from its master",
    [SHMQ_READ_ONLY_FENCED] = "another broker may be the master now",
    [SHMQ_READ_ONLY_FILES_LOST] = "files of the store were removed or replaced; restart the broker, `shmq health` says more",
    [SHMQ_READ_ONLY_FEW_REPLICAS] = "fewer replicas are in sync than --in-sync-min asks for; start a slave, or start this "
                                    "broker with --in-sync-min 1",
};

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

/* What an error measured: how much of what there is was used, and the process that holds it (0: none, or not known). */
struct measured {
    unsigned long long used, limit;
    uint32_t holder_pid;
};

static PyObject *raise_measured(struct core_state *state, enum shmq_status status, PyObject *text, int reason,
                                struct measured found)
{
    if (!text) {
        return NULL;
    }
    PyObject *args = NULL;
    if (state->error_factory && (found.limit || found.holder_pid)) {
        args = Py_BuildValue("(iOiKKI)", (int)status, text, 0, found.used, found.limit, found.holder_pid);
    } else {
        args = status == SHMQ_SYSTEM ? Py_BuildValue("(iOi)", (int)status, text, reason)
                                     : Py_BuildValue("(iO)", (int)status, text);
    }
    Py_DECREF(text);
    if (args && state->error_factory) {
        PyObject *error = PyObject_CallObject(state->error_factory, args);
        if (error) {
            PyErr_SetObject((PyObject *)Py_TYPE(error), error);
            Py_DECREF(error);
        }
    } else if (args) {
        PyErr_SetObject(state->error, args);
    }
    Py_XDECREF(args);
    return NULL;
}

static PyObject *raise_text(struct core_state *state, enum shmq_status status, PyObject *text, int reason)
{
    return raise_measured(state, status, text, reason, (struct measured){0});
}

PyObject *core_raise(struct core_state *state, enum shmq_status status, const char *format, ...)
{
    int reason = errno;
    va_list arguments;
    va_start(arguments, format);
    PyObject *text = PyUnicode_FromFormatV(format, arguments);
    va_end(arguments);
    return raise_text(state, status, text, reason);
}

static const char *system_meaning(int reason)
{
    return reason != ESTALE ? strerror(reason) : "another directory lies at the path of the log; the keeper puts the broker's "
                                                 "back where it can, `shmq health` says what it found";
}

PyObject *core_raise_status(struct core_state *state, enum shmq_status status, const char *what)
{
    int reason = errno;
    const char *meaning = (size_t)status < COUNT_OF(meanings) ? meanings[status] : "unknown status";
    PyObject *text = status == SHMQ_SYSTEM ? PyUnicode_FromFormat("%s: %s", what, system_meaning(reason))
                                           : PyUnicode_FromFormat("%s: %s", what, meaning);
    return raise_text(state, status, text, reason);
}

static bool is_claimed(const struct shmq_store *store)
{
    return atomic_load_explicit(&store->log->claim.state, memory_order_relaxed) == SHMQ_CLAIM_OPEN;
}

static struct measured measured_of(const struct shmq_store *store, enum shmq_status status, double timeout)
{
    struct shmq_log *log = store->log;
    uint32_t word = atomic_load_explicit(&log->read_only, memory_order_relaxed);
    struct measured found = {0};
    if (status == SHMQ_BROKER_BUSY) {
        found.used = found.limit = (unsigned long long)(timeout * 1000);
        found.holder_pid = is_claimed(store) ? log->claim.owner_pid : log->holder_pid;
    } else if (status == SHMQ_LOG_FULL) {
        found.used = atomic_load_explicit(&log->end, memory_order_relaxed);
        found.limit = atomic_load_explicit(&log->allocated_end, memory_order_relaxed);
    } else if (status == SHMQ_UNITS_FULL) {
        found.used = atomic_load_explicit(&log->frame_ready, memory_order_relaxed);
        found.limit = store->sizes.frame_max;
    } else if (status == SHMQ_READ_ONLY) {
        found.used = SHMQ_READ_ONLY_USED(word);
        found.limit = SHMQ_READ_ONLY_LIMIT(word);
    }
    return found;
}

static PyObject *busy_text(const struct shmq_store *store, double timeout)
{
    const struct shmq_log *log = store->log;
    bool claimed = is_claimed(store);
    uint32_t pid = claimed ? log->claim.owner_pid : log->holder_pid;
    const char *what = claimed ? "a claim" : "the append lock";
    const char *hint = pid == store->self_pid ? " (this process: leave the reserve() block first)" : "";
    return PyUnicode_FromFormat("%s was not free within %d ms; pid %u held it last%s", what, (int)(timeout * 1000), pid,
                                hint);
}

static PyObject *not_master_text(const struct shmq_log *log)
{
    const bool follows = atomic_load_explicit(&log->standing, memory_order_acquire) == SHMQ_READ_ONLY_FOLLOWER;
    if (follows && log->leader[0]) {
        return PyUnicode_FromFormat("this broker is a slave, the master that takes messages is %.263s", log->leader);
    }
    return log->leader[0] ? PyUnicode_FromFormat("this broker is the master no more, the one that takes messages is %.263s",
                                                 log->leader)
           : follows ? PyUnicode_FromString("no broker of this name has been elected to take messages yet")
                     : PyUnicode_FromString("this broker is the master no more, and the new one is not known here");
}

static PyObject *append_text(const struct shmq_store *store, enum shmq_status status, uint32_t record_bytes, double timeout)
{
    struct shmq_log *log = store->log;
    unsigned long long end = atomic_load_explicit(&log->end, memory_order_relaxed);
    unsigned long long allocated = atomic_load_explicit(&log->allocated_end, memory_order_relaxed);
    uint32_t word = atomic_load_explicit(&log->read_only, memory_order_relaxed);
    uint32_t reason = SHMQ_READ_ONLY_REASON(word);
    switch (status) {
    case SHMQ_BROKER_BUSY:
        return busy_text(store, timeout);
    case SHMQ_LOG_FULL:
        return PyUnicode_FromFormat("no log space for %u bytes: the log ends at %llu and is allocated up to %llu; the "
                                    "store keeper is dead or the disk is full",
                                    record_bytes, end, allocated);
    case SHMQ_UNITS_FULL:
        return PyUnicode_FromFormat("no unit frame is left: all %u of at most %u are in use",
                                    atomic_load_explicit(&log->frame_ready, memory_order_relaxed),
                                    store->sizes.frame_max);
    case SHMQ_READ_ONLY:
        if (SHMQ_READ_ONLY_LIMIT(word)) {
            return PyUnicode_FromFormat("the disk of %.500s is %u %% full, above %u %% nothing is stored",
                                        store->head->store_path, SHMQ_READ_ONLY_USED(word),
                                        SHMQ_READ_ONLY_LIMIT(word));
        }
        return PyUnicode_FromFormat("the store is read-only: %s", reason < COUNT_OF(read_only_reasons)
                                                                      ? read_only_reasons[reason]
                                                                      : "unknown reason");
    case SHMQ_NOT_MASTER:
        return not_master_text(log);
    case SHMQ_TOO_LARGE:
        if (record_bytes == 0) { /* one of its lengths has no place in a record, so it has no length */
            return PyUnicode_FromFormat("the message does not fit into a record: at most %u bytes of body and %u of "
                                        "properties, tag, keys, what RocketMQ adds and a checksum included",
                                        SHMQ_BODY_BYTES_MAX, SHMQ_PROPERTIES_BYTES_MAX);
        }
        return PyUnicode_FromFormat(
            "a record of %u bytes does not fit: at most %u bytes of body, %u of properties, and "
            "less than one log file of %llu",
            record_bytes, SHMQ_BODY_BYTES_MAX, SHMQ_PROPERTIES_BYTES_MAX,
            (unsigned long long)store->sizes.file_bytes);
    default:
        return PyUnicode_FromString((size_t)status < COUNT_OF(meanings) ? meanings[status] : "unknown status");
    }
}

PyObject *core_raise_append(struct core_state *state, const struct shmq_store *store, enum shmq_status status,
                            const char *topic, uint32_t queue_id, uint32_t record_bytes, double timeout)
{
    int reason = errno;
    if (status == FACE_ERROR) {
        return NULL;
    }
    PyObject *why = status == SHMQ_SYSTEM ? PyUnicode_FromString(system_meaning(reason))
                                          : append_text(store, status, record_bytes, timeout);
    if (!why) {
        return NULL;
    }
    PyObject *text = PyUnicode_FromFormat("topic '%s', queue %u: %U", topic, queue_id, why);
    Py_DECREF(why);
    return raise_measured(state, status, text, reason, measured_of(store, status, timeout));
}
