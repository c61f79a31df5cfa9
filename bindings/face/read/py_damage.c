/* Damaged messages: the exception of a reader that left one out, and the reports of readers as the keeper takes them. */
#include "face/read/py_read.h"

/* The record's bytes as they lie in the log, and its body where that is whole; empty and None where there is nothing. */
static bool remains(PyReader *self, const struct shmq_delivery *delivery, PyObject **record, PyObject **body)
{
    struct shmq_store *core = self->core.store;
    const struct shmq_unit unit = {.log_position = delivery->log_position, .record_bytes = delivery->record_bytes};
    struct shmq_mapping *mapping = NULL;
    struct shmq_view view;
    *body = Py_NewRef(Py_None);
    if (unit.record_bytes <= SHMQ_RECORD_BYTES_MAX && shmq_unit_is_stored(core, &unit)) {
        mapping = shmq_mapping_get(core, unit.log_position);
    }
    const uint64_t at = mapping ? unit.log_position - mapping->base : 0;
    const bool is_inside = mapping && unit.record_bytes <= mapping->bytes - at;
    *record = PyBytes_FromStringAndSize(is_inside ? (const char *)mapping->data + at : NULL,
                                        is_inside ? (Py_ssize_t)unit.record_bytes : 0);
    if (!*record) {
        return false;
    }
    const uint8_t *copy = (const uint8_t *)PyBytes_AS_STRING(*record);
    if (shmq_record_decode(copy, (size_t)PyBytes_GET_SIZE(*record), &view) == SHMQ_OK &&
        (shmq_crc32(view.body, view.body_bytes) & INT32_MAX) == view.body_crc) {
        Py_SETREF(*body, PyBytes_FromStringAndSize((const char *)view.body, view.body_bytes));
    }
    return *body != NULL;
}

static PyObject *sentence(const struct shmq_delivery *delivery, PyObject *topic, uint32_t queue_id)
{
    typedef unsigned long long u64;
    if (delivery->record_bytes) {
        return PyUnicode_FromFormat("topic '%U', queue %u (queue index %u), offset %llu: the %u bytes at log position %llu "
                                    "are not the record that was stored there; it is left out",
                                    topic, queue_id, delivery->queue, (u64)delivery->queue_offset,
                                    delivery->record_bytes, (u64)delivery->log_position);
    }
    return PyUnicode_FromFormat("topic '%U', queue %u (queue index %u): its units from offset %llu on are neither in "
                                "memory nor in ConsumeQueue files; seek() past them to go on",
                                topic, queue_id, delivery->queue, (u64)delivery->queue_offset);
}

PyObject *damage_raise(PyReader *self, const struct shmq_delivery *delivery)
{
    const struct shmq_cursor *cursor = self->core.cursors[delivery->cursor];
    PyObject *topic = Py_NewRef((PyObject *)cursor->context), *record = NULL, *body = NULL;
    PyObject *text = sentence(delivery, topic, cursor->queue_id);
    PyObject *factory = self->state->damage_factory;
    if (text && !factory) {
        core_raise(self->state, SHMQ_CORRUPT, "%U", text);
    } else if (text && remains(self, delivery, &record, &body)) {
        PyObject *error = PyObject_CallFunction(factory, "iOOIKLOO", (int)SHMQ_CORRUPT, text, topic, cursor->queue_id,
                                                (unsigned long long)delivery->queue_offset,
                                                (long long)delivery->log_position, record, body);
        if (error) {
            PyErr_SetObject((PyObject *)Py_TYPE(error), error);
            Py_DECREF(error);
        }
    }
    Py_XDECREF(text);
    Py_XDECREF(record);
    Py_XDECREF(body);
    Py_DECREF(topic);
    return NULL;
}

/* ---- the keeper's side ----------------------------------------------------------------------------- */
static PyObject *keeper_damage_take(PyStorePart *part, PyObject *unused)
{
    (void)unused;
    PyStore *self = part->store;
    struct shmq_damage_report report;
    if (!store_check(self)) {
        return NULL;
    }
    enum shmq_status status = shmq_damage_take(&self->core, &report);
    if (status == SHMQ_EMPTY) {
        Py_RETURN_NONE;
    }
    if (status != SHMQ_OK) {
        report = (struct shmq_damage_report){.queue = SHMQ_NONE, .log_position = UINT64_MAX};
    }
    const int64_t numbers[] = {report.kind, report.queue == SHMQ_NONE ? -1 : (int64_t)report.queue,
                               (int64_t)report.queue_offset, (int64_t)report.log_position, report.record_bytes};
    return row_new(self->state, ROW_DAMAGE, numbers, -1, NULL);
}

static PyObject *keeper_damage_settle(PyStorePart *part, PyObject *unused)
{
    (void)unused;
    PyStore *self = part->store;
    if (!store_check(self)) {
        return NULL;
    }
    shmq_damage_settle(&self->core);
    Py_RETURN_NONE;
}

PyMethodDef damage_methods[] = {
    {"damage_take", (PyCFunction)keeper_damage_take, METH_NOARGS, "The oldest report that is not settled, or None."},
    {"damage_settle", (PyCFunction)keeper_damage_settle, METH_NOARGS, "The oldest report is dealt with."},
    {NULL},
};
