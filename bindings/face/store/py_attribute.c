/* Attributes of Store: words of the segments, read once each. */
#include <string.h>

#include "core/log/log.h"
#include "face/store/py_store.h"

#define VALUE(name, value)                                                                                             \
    static PyObject *get_##name(PyStore *self, void *closure)                                                          \
    {                                                                                                                  \
        (void)closure;                                                                                                 \
        return store_check(self) ? (value) : NULL;                                                                     \
    }
#define WORD(field) atomic_load_explicit(&self->core.log->field, memory_order_acquire)
#define LOG_WORD(name, field, meaning) VALUE(name, PyLong_FromUnsignedLongLong(WORD(field)))
#define LOG_WORD_ENTRY(name, field, meaning) {#name, (getter)get_##name, NULL, meaning, NULL},
/* Attributes that are one word of the log: name, word, what it says. */
#define LOG_WORDS(X)                                                                                                   \
    X(log_end, end, "Commit point of every append.")                                                                   \
    X(described_end, described_end, "No record from here to the log's end has properties.")                            \
    X(log_begin, begin, "First byte retention has left.")                                                              \
    X(durable_end, durable_end, "Bytes below it are on the disk.")                                                     \
    X(confirmed_end, confirmed_end, "Bytes below it are on the replicas' disks, too.")                                 \
    X(in_sync_end, in_sync_end, "What every replica in sync has on its disk; all ones: none is needed.")               \
    X(in_sync_count, in_sync_count, "How many replicas are in sync.")                                                  \
    X(allocated_end, allocated_end, "All files below it exist and are reserved.")                                      \
    X(epoch, epoch, "Of the master whose records come now.")                                                           \
    X(lease_until_ns, lease_until_ns, "CLOCK_BOOTTIME until which records are taken; 0: without end.")                 \
    X(standing, standing, "The reason where nothing else forbids records; 0 of a master.")                             \
    X(keeper_beat_ns, keeper_beat_ns, "CLOCK_MONOTONIC of the keeper's last round.")                                   \
    X(table_version, table_version, "Grows with each topic or group change.")
LOG_WORDS(LOG_WORD)

VALUE(read_only, PyLong_FromUnsignedLong(SHMQ_READ_ONLY_REASON(WORD(read_only))))
VALUE(retired, PyBool_FromLong(WORD(retired) != 0))
VALUE(has_sync_topics, PyBool_FromLong(WORD(has_sync_topics)))
VALUE(visible_end, PyLong_FromUnsignedLongLong(shmq_visible_end(&self->core)))
VALUE(safe_end, PyLong_FromUnsignedLongLong(shmq_safe_end(&self->core)))
VALUE(lease_lasts, PyBool_FromLong(shmq_lease_lasts(&self->core)))
VALUE(clock_ms, PyLong_FromUnsignedLongLong(shmq_clock_ms(&self->core)))

static PyObject *get_leader(PyStore *self, void *closure)
{
    (void)closure;
    if (!store_check(self)) {
        return NULL;
    }
    const struct shmq_log *log = self->core.log;
    const bool has_one = atomic_load_explicit(&log->standing, memory_order_acquire) != SHMQ_WRITABLE;
    return PyUnicode_DecodeASCII(log->leader, has_one ? (Py_ssize_t)strnlen(log->leader, sizeof log->leader) : 0,
                                 "replace");
}

static PyObject *get_clock_ahead_ms(PyStore *self, void *closure)
{
    (void)closure;
    if (!store_check(self)) {
        return NULL;
    }
    const uint64_t word = atomic_load_explicit(&self->core.head->clock, memory_order_relaxed);
    return word & SHMQ_CLOCK_STANDS ? Py_NewRef(Py_None) : PyLong_FromUnsignedLongLong(word);
}

static PyObject *get_writable(PyStore *self, void *closure)
{
    (void)closure;
    return PyBool_FromLong(self->core.writable);
}

static PyObject *get_client_slot(PyStore *self, void *closure)
{
    (void)closure;
    const uint64_t client = atomic_load_explicit(&self->core.client, memory_order_relaxed);
    return PyLong_FromLong(client ? (long)shmq_client_slot(client) : -1);
}

static PyObject *get_has_log_directory(PyStore *self, void *closure)
{
    (void)closure;
    return store_check(self) ? PyBool_FromLong(shmq_log_directory_hold(&self->core)) : NULL;
}

static PyObject *text_of(const char *text, size_t bytes_max)
{
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strnlen(text, bytes_max), "surrogateescape");
}

static PyObject *get_head(PyStore *self, void *closure)
{
    (void)closure;
    typedef unsigned long long u64;
    if (!store_check(self)) {
        return NULL;
    }
    const struct shmq_head *head = self->core.head;
    const struct shmq_sizes *sizes = &self->core.sizes;
    return Py_BuildValue("{s:K,s:I,s:I,s:K,s:K,s:K,s:K,s:K,s:K,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:N,s:N,s:y#,s:N,s:N,s:N,s:N}",
                         "magic", (u64)SHMQ_MAGIC, "abi", head->abi, "mutex_bytes", head->mutex_bytes, "generation",
                         (u64)head->generation, "pid_namespace", (u64)head->pid_namespace, "control_bytes",
                         (u64)head->control_bytes, "units_bytes", (u64)head->units_bytes, "readers_bytes",
                         (u64)head->readers_bytes, "file_bytes", (u64)sizes->file_bytes, "topic_max", sizes->topic_max,
                         "queue_max", sizes->queue_max, "frame_max", sizes->frame_max, "client_max", sizes->client_max,
                         "group_max", sizes->group_max, "offset_max", sizes->offset_max, "queue_mask",
                         self->core.queue_mask, "group_mask", self->core.group_mask, "ack_rule", head->ack_rule, "flush_sync",
                         PyBool_FromLong(head->ack_rule != SHMQ_ACK_END), "trusts_reads",
                         PyBool_FromLong(head->trusts_reads != 0), "store_host", (const char *)head->store_host,
                         (Py_ssize_t)sizeof head->store_host, "libc", text_of(head->libc, sizeof head->libc), "boot_id",
                         text_of(head->boot_id, sizeof head->boot_id), "broker_name",
                         text_of(head->broker_name, sizeof head->broker_name), "store_path",
                         text_of(head->store_path, sizeof head->store_path));
}

PyGetSetDef store_getset[] = {
    LOG_WORDS(LOG_WORD_ENTRY)
    {"head", (getter)get_head, NULL, "Copy of struct shmq_head, its sizes beside the other fields.", NULL},
    {"writable", (getter)get_writable, NULL, "Whether this process may append.", NULL},
    {"clock_ms", (getter)get_clock_ms, NULL, "The broker's clock, which stamps records: ms since the epoch.", NULL},
    {"clock_ahead_ms", (getter)get_clock_ahead_ms, NULL, "How far it is ahead of the host's; None where it stands.", NULL},
    {"client_slot", (getter)get_client_slot, NULL, "Our client slot, -1 before use_client().", NULL},
    {"safe_end", (getter)get_safe_end, NULL, "What senders wait for: the confirmed or the durable end.", NULL},
    {"lease_lasts", (getter)get_lease_lasts, NULL, "Whether the log has no lease, or one that is not over.", NULL},
    {"has_sync_topics", (getter)get_has_sync_topics, NULL, "Some topic is flushed synchronously, or was once.", NULL},
    {"visible_end", (getter)get_visible_end, NULL, "Readers see records that end at or below it.", NULL},
    {"read_only", (getter)get_read_only, NULL, "enum shmq_read_only_reason; 0 takes appends.", NULL},
    {"leader", (getter)get_leader, NULL, "host:port of the master instead of this broker, or empty.", NULL},
    {"has_log_directory", (getter)get_has_log_directory, NULL, "Whether the commitlog/ of the broker is found.", NULL},
    {"retired", (getter)get_retired, NULL, "This generation was given up; attach again.", NULL},
    {NULL},
};
