/* Producer.append_together, and what a transaction service needs of BrokerLog beside it: the fence, and which offsets op records name.
 *
 * (1) All records are looked at before one is stored. (2) With a store that waits for the disk, so does this; without,
 * it does not wait. (3) An op record that is damaged or says something else names no offset.
 */
#include <string.h>

#include "core/read/reader.h"
#include "face/send/py_send.h"

#define FIELDS "a record is (topic, queue_id, body, properties, flag, sys_flag, born_ms, born_host, reconsume_times, " \
               "prepared_position, tag_code)"
#define DIGITS_MAX 19u /* a queue offset is a signed 64-bit number everywhere else */

struct together_call {
    struct shmq_entry entries[SHMQ_TOGETHER_MAX];
    struct shmq_appended out[SHMQ_TOGETHER_MAX];
    uint32_t count, bytes;
    const struct route *route; /* of the first: what errors name */
    double timeout;
};

/* ---- arguments ------------------------------------------------------------------------------------- */
static bool host_from(PyProducer *self, PyObject *host, struct shmq_spec *spec)
{
    const Py_ssize_t bytes = PyBytes_GET_SIZE(host);
    if (bytes == 0) {
        return true; /* ours: no port */
    }
    if (bytes != SHMQ_HOST_BYTES && bytes != SHMQ_HOST_BYTES_V6) {
        core_raise(self->state, SHMQ_BAD_ARGUMENT, "born_host has %zd bytes; an IPv4 address and port are %u, IPv6 %u",
                   bytes, SHMQ_HOST_BYTES, SHMQ_HOST_BYTES_V6);
        return false;
    }
    memcpy(spec->born_host, PyBytes_AS_STRING(host), (size_t)bytes);
    spec->born_host_bytes = (uint8_t)bytes;
    return true;
}

static bool text_from(PyProducer *self, PyObject *properties, PyObject *tag_code, struct shmq_entry *entry)
{
    struct shmq_text_facts facts;
    const size_t bytes = (size_t)PyBytes_GET_SIZE(properties);
    shmq_text_look(PyBytes_AS_STRING(properties), bytes, &facts);
    if (facts.crc_bytes || bytes > SHMQ_PROPERTIES_BYTES_MAX) {
        core_raise(self->state, facts.crc_bytes ? SHMQ_BAD_ARGUMENT : SHMQ_TOO_LARGE,
                   facts.crc_bytes ? "the properties hold the CRC of another record"
                                   : "the properties are longer than a record holds");
        return false;
    }
    entry->spec.properties = PyBytes_AS_STRING(properties);
    entry->spec.properties_bytes = (uint32_t)bytes;
    if (tag_code == Py_None) {
        entry->tag_hash = facts.tag_bytes ? shmq_tag_hash(facts.tag, facts.tag_bytes) : 0;
        return true;
    }
    entry->tag_hash = PyLong_AsLongLong(tag_code);
    return entry->tag_hash != -1 || !PyErr_Occurred();
}

static bool entry_from(PyProducer *self, PyObject *record, struct together_call *call)
{
    PyObject *topic, *body, *properties, *host, *tag_code;
    Py_ssize_t queue_id;
    unsigned long flag, sys_flag, reconsume_times;
    unsigned long long born_ms, prepared_position;
    if (!PyTuple_CheckExact(record)) {
        PyErr_SetString(PyExc_TypeError, FIELDS);
        return false;
    }
    if (!PyArg_ParseTuple(record, "UnSSkkKSkKO;" FIELDS, &topic, &queue_id, &body, &properties, &flag, &sys_flag,
                          &born_ms, &host, &reconsume_times, &prepared_position, &tag_code)) {
        return false;
    }
    struct route *route = producer_route(self, topic);
    if (!route) {
        return false;
    }
    if (queue_id < 0 || queue_id >= (Py_ssize_t)route->queue_count) {
        core_raise(self->state, SHMQ_NO_QUEUE, "topic '%s' has %u queues; there is no queue_id %zd", route->name,
                   route->queue_count, queue_id);
        return false;
    }
    struct shmq_entry *entry = &call->entries[call->count++];
    *entry = (struct shmq_entry){.queue = route->queues[queue_id], .spec = self->blank};
    struct shmq_spec *spec = &entry->spec;
    spec->topic = route->name;
    spec->topic_bytes = route->name_bytes;
    spec->queue_id = (uint32_t)queue_id;
    spec->body = PyBytes_AS_STRING(body);
    spec->body_bytes = PyBytes_GET_SIZE(body) > UINT32_MAX ? UINT32_MAX : (uint32_t)PyBytes_GET_SIZE(body);
    spec->flag = (uint32_t)flag;
    spec->sys_flag = (uint32_t)sys_flag;
    spec->reconsume_times = (uint32_t)reconsume_times;
    spec->born_ms = born_ms;
    spec->prepared_position = prepared_position;
    if (call->count == 1) {
        call->route = route;
    }
    if (!host_from(self, host, spec) || !text_from(self, properties, tag_code, entry)) {
        return false;
    }
    call->bytes += shmq_record_bytes(spec);
    return true;
}

/* ---- append_together ------------------------------------------------------------------------------- */
static enum shmq_status append(PyProducer *self, struct together_call *call, uint64_t because_of)
{
    PyStore *store = self->store;
    enum shmq_status status =
        shmq_append_together(&store->core, call->entries, call->count, because_of, 0, call->out);
    if (status == SHMQ_WOULD_BLOCK) {
        const uint64_t deadline = deadline_after(store, call->timeout);
        ON_LANE(store, status,
                shmq_append_together(&lane->core, call->entries, call->count, because_of, deadline, call->out));
    }
    if (status == FACE_ERROR) {
        return status;
    }
    if (status != SHMQ_OK && status != SHMQ_FENCED) {
        core_raise_append(store->state, &store->core, status, call->route->name, call->entries[0].spec.queue_id, call->bytes, call->timeout);
        return FACE_ERROR;
    }
    return status;
}

static PyObject *answers_of(const struct together_call *call)
{
    PyObject *list = PyList_New(call->count);
    for (uint32_t i = 0; list && i < call->count; i++) {
        PyObject *answer = appended_tuple(&call->out[i]);
        if (!answer) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, i, answer);
    }
    return list;
}

PyObject *producer_append_together(PyProducer *self, PyObject *args)
{
    PyObject *records, *because = Py_None, *timeout = NULL, *answers = NULL;
    int durable = 1;
    struct together_call call = {.timeout = self->timeout};
    if (!PyArg_ParseTuple(args, "O!|OOp:append_together", &PyTuple_Type, &records, &because, &timeout, &durable) ||
        !seconds_from(self->state, timeout, "timeout", &call.timeout) || !store_check(self->store)) {
        return NULL;
    }
    const unsigned long long because_of = because == Py_None ? ULLONG_MAX : PyLong_AsUnsignedLongLong(because);
    if (because_of == ULLONG_MAX && PyErr_Occurred()) {
        return NULL;
    }
    const Py_ssize_t count = PyTuple_GET_SIZE(records);
    if (count < 1 || count > (Py_ssize_t)SHMQ_TOGETHER_MAX) {
        return core_raise(self->state, SHMQ_BAD_ARGUMENT, "%zd records at once; 1 to %u are possible", count,
                          SHMQ_TOGETHER_MAX);
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!entry_from(self, PyTuple_GET_ITEM(records, i), &call)) {
            return NULL;
        }
    }
    if (!store_check(self->store)) { /* finding a topic may have run code that closed it */
        return NULL;
    }
    enum shmq_status status = append(self, &call, because_of);
    if (status == SHMQ_FENCED) {
        Py_RETURN_NONE;
    }
    if (status == SHMQ_OK) {
        bool waits = false;
        for (uint32_t i = 0; i < call.count; i++) {
            shmq_wake(&self->store->core, call.entries[i].queue);
            waits = waits || (durable && producer_waits(self, call.entries[i].queue));
        }
        const struct shmq_appended *last = &call.out[call.count - 1];
        producer_count(self, last, call.count);
        if (!waits || store_wait_durable(self->store, last->end, call.timeout)) {
            answers = answers_of(&call);
        }
    }
    return answers;
}

/* ---- the fence ------------------------------------------------------------------------------------- */
static PyObject *log_raise_fence(PyStorePart *part, PyObject *args)
{
    PyStore *self = part->store;
    unsigned long long position;
    double timeout;
    if (!PyArg_ParseTuple(args, "Kd:raise_fence", &position, &timeout) || !store_check(self)) {
        return NULL;
    }
    enum shmq_status status = shmq_fence_raise(&self->core, position, 0);
    if (status == SHMQ_WOULD_BLOCK) {
        const uint64_t deadline = deadline_after(self, timeout);
        ON_LANE(self, status, shmq_fence_raise(&lane->core, position, deadline));
    }
    if (status == FACE_ERROR) {
        return NULL;
    }
    if (status != SHMQ_OK) {
        return core_raise_status(self->state, status, "raising the fence");
    }
    Py_RETURN_NONE;
}

/* ---- offsets in op records -------------------------------------------------------------------------- */
struct offsets { uint64_t *data; size_t count, room; };

static bool offset_add(struct offsets *offsets, uint64_t offset)
{
    if (offsets->count == offsets->room) {
        const size_t room = offsets->room ? 2 * offsets->room : 256;
        uint64_t *data = PyMem_Realloc(offsets->data, room * sizeof *data);
        if (!data) {
            return false;
        }
        offsets->data = data;
        offsets->room = room;
    }
    offsets->data[offsets->count++] = offset;
    return true;
}

/* "12" of RocketMQ 4, "12,15,16," of 5. */
static bool offsets_of(const struct shmq_view *view, struct offsets *offsets)
{
    uint64_t number = 0;
    uint32_t digits = 0;
    for (uint32_t i = 0; i <= view->body_bytes; i++) {
        const uint8_t c = i < view->body_bytes ? view->body[i] : ',';
        if (c >= '0' && c <= '9' && digits < DIGITS_MAX) {
            number = number * 10 + (uint64_t)(c - '0');
            digits++;
        } else if (c == ',') {
            if (digits && !offset_add(offsets, number)) {
                return false;
            }
            number = digits = 0;
        } else {
            return true; /* no number: the rest says nothing */
        }
    }
    return true;
}

/* What the op record says that a unit names; nothing when it is damaged, or the unit names another record. */
static bool offsets_at(PyStore *self, const struct shmq_unit *unit, uint64_t queue_offset,
                       const struct shmq_queue_name *name, struct offsets *offsets)
{
    struct shmq_view view;
    if (unit->log_position >= atomic_load_explicit(&self->core.log->end, memory_order_acquire)) {
        return true;
    }
    const struct shmq_mapping *mapping = shmq_mapping_get(&self->core, unit->log_position);
    const bool verify = !self->core.head->trusts_reads;
    return !mapping || shmq_unit_match(mapping, unit, queue_offset, name, verify, &view) != SHMQ_MATCH ||
           offsets_of(&view, offsets);
}

static PyObject *log_settled(PyStorePart *part, PyObject *args)
{
    PyStore *self = part->store;
    enum { UNITS = SHMQ_FRAME_UNITS };
    uint8_t units[UNITS * SHMQ_UNIT_BYTES];
    struct offsets offsets = {.data = NULL};
    struct shmq_queue_name name;
    unsigned int queue;
    unsigned long long offset;
    if (!PyArg_ParseTuple(args, "IK:settled", &queue, &offset) || !store_check(self)) {
        return NULL;
    }
    if (!shmq_queue_is_number(&self->core, queue)) {
        return core_raise(self->state, SHMQ_NO_QUEUE, "queue index %u of %u", queue, self->core.sizes.queue_max);
    }
    shmq_queue_name(&self->core, queue, &name);
    uint32_t count = shmq_units_stored(&self->core, queue, offset, UNITS, units);
    bool ok = true;
    for (uint32_t i = 0; ok && i < count; i++) {
        struct shmq_unit unit;
        shmq_unit_unpack(units + (size_t)i * SHMQ_UNIT_BYTES, &unit);
        ok = offsets_at(self, &unit, offset + i, &name, &offsets);
    }
    PyObject *bytes = ok ? PyBytes_FromStringAndSize((const char *)offsets.data,
                                                     (Py_ssize_t)(offsets.count * sizeof *offsets.data))
                         : PyErr_NoMemory();
    PyMem_Free(offsets.data);
    return bytes ? Py_BuildValue("(KN)", (unsigned long long)(offset + count), bytes) : NULL;
}

PyMethodDef together_methods[] = {
    {"raise_fence", (PyCFunction)log_raise_fence, METH_VARARGS,
     "Let nothing more be done on account of a record below a log position."},
    {"settled", (PyCFunction)log_settled, METH_VARARGS, "The queue offsets that op records name."},
    {NULL},
};
