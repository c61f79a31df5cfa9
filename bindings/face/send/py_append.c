/* Producer.append and its batches: records whose every field the caller decides, for a broker that stores for others.
 *
 *   send()     a user's message: options become properties, a queue is chosen, rights are looked at
 *   append()   a record: properties are stored as they are, the queue is named, the broker has looked already
 *
 * (1) What may not be stored is refused before anything is. (2) Nothing here waits for the disk: the answer says where
 * the record ends. (3) A batch longer than one part (py_part.c) may be stored up to a part when the log runs full.
 */
#include <string.h>

#include "face/send/py_send.h"

/* ---- arguments ------------------------------------------------------------------------------------- */
static int name_index(const struct core_state *state, PyObject *name)
{
    for (int i = 0; i < APPEND_COUNT; i++) {
        if (name == state->append_names[i]) {
            return i;
        }
    }
    for (int i = 0; i < APPEND_COUNT; i++) { /* a name made at run time need not be interned */
        if (PyUnicode_Compare(name, state->append_names[i]) == 0) {
            return i;
        }
    }
    return -1;
}

/* The names of `positions` come first, in that order; every one of `needed` must be there. */
static bool arguments_parse(const struct append_form *form, struct core_state *state, PyObject *const *args,
                            Py_ssize_t nargs, PyObject *kwnames, PyObject **values)
{
    memset(values, 0, APPEND_COUNT * sizeof *values);
    if (nargs > form->position_count) {
        PyErr_Format(PyExc_TypeError, "%s() takes %d arguments by position, the rest by name (%zd given)", form->method,
                     form->position_count, nargs);
        return false;
    }
    for (Py_ssize_t i = 0; i < nargs; i++) {
        values[form->positions[i]] = args[i];
    }
    for (Py_ssize_t i = 0; kwnames && i < PyTuple_GET_SIZE(kwnames); i++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, i);
        int index = name_index(state, name);
        if (index < 0 || !(form->allowed >> index & 1) || values[index]) {
            PyErr_Format(PyExc_TypeError, "%s() got an unexpected or repeated argument '%U'", form->method, name);
            return false;
        }
        values[index] = args[nargs + i];
    }
    for (int i = 0; i < APPEND_COUNT; i++) {
        if (form->needed >> i & 1 && !values[i]) {
            PyErr_Format(PyExc_TypeError, "%s() missing required argument '%U'", form->method, state->append_names[i]);
            return false;
        }
    }
    return true;
}

static bool number_from(struct core_state *state, PyObject *const *values, enum append_name name, int64_t least,
                        int64_t most, int64_t *out)
{
    if (!values[name]) {
        return true; /* *out keeps its default */
    }
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(values[name], &overflow);
    if (number == -1 && !overflow && PyErr_Occurred()) {
        return false;
    }
    *out = number;
    if (!overflow && number >= least && number <= most) {
        return true;
    }
    core_raise(state, SHMQ_BAD_ARGUMENT, "%U is %R; it must be %lld to %lld", state->append_names[name], values[name],
               (long long)least, (long long)most);
    return false;
}

static bool host_from(struct core_state *state, PyObject *value, struct shmq_spec *spec)
{
    if (!value) {
        return true;
    }
    if (!PyBytes_CheckExact(value)) {
        PyErr_Format(PyExc_TypeError, "born_host must be bytes, not %.100s", Py_TYPE(value)->tp_name);
        return false;
    }
    Py_ssize_t bytes = PyBytes_GET_SIZE(value);
    if (bytes != SHMQ_HOST_BYTES && bytes != SHMQ_HOST_BYTES_V6) {
        core_raise(state, SHMQ_BAD_ARGUMENT, "born_host has %zd bytes; an IPv4 address and port are %u, IPv6 %u", bytes,
                   SHMQ_HOST_BYTES, SHMQ_HOST_BYTES_V6);
        return false;
    }
    memcpy(spec->born_host, PyBytes_AS_STRING(value), (size_t)bytes);
    spec->born_host_bytes = (uint8_t)bytes;
    return true;
}

/* The fields that are numbers. On the wire they are Java's signed ints and longs; unsigned ones are taken too. */
static bool numbers_from(struct core_state *state, PyObject *const *values, struct shmq_spec *spec,
                         struct append_call *call)
{
    int64_t flag = 0, sys_flag = 0, reconsume_times = 0, born_ms = 0, prepared_position = 0;
    if (!number_from(state, values, APPEND_FLAG, INT32_MIN, UINT32_MAX, &flag) ||
        !number_from(state, values, APPEND_SYS_FLAG, INT32_MIN, UINT32_MAX, &sys_flag) ||
        !number_from(state, values, APPEND_RECONSUME, INT32_MIN, UINT32_MAX, &reconsume_times) ||
        !number_from(state, values, APPEND_BORN, INT64_MIN, INT64_MAX, &born_ms) ||
        !number_from(state, values, APPEND_PREPARED, INT64_MIN, INT64_MAX, &prepared_position)) {
        return false;
    }
    spec->flag = (uint32_t)flag;
    spec->sys_flag = (uint32_t)sys_flag;
    spec->reconsume_times = (uint32_t)reconsume_times;
    spec->born_ms = (uint64_t)born_ms;
    spec->prepared_position = (uint64_t)prepared_position;
    call->has_tag = values[APPEND_TAG_CODE] && values[APPEND_TAG_CODE] != Py_None;
    return !call->has_tag || number_from(state, values, APPEND_TAG_CODE, INT64_MIN, INT64_MAX, &call->tag_code);
}

static bool queue_from(PyProducer *self, PyObject *const *values, struct append_call *call)
{
    if (!store_check(self->store)) {
        return false;
    }
    struct route *route = call->call.route = producer_route(self, values[APPEND_TOPIC]);
    if (!route) {
        return false;
    }
    int64_t queue_id = 0;
    if (!number_from(self->state, values, APPEND_QUEUE_ID, INT64_MIN, INT64_MAX, &queue_id)) {
        return false;
    }
    if (queue_id < 0 || queue_id >= (int64_t)route->queue_count) {
        core_raise(self->state, SHMQ_NO_QUEUE, "topic '%s' has %u queues; there is no queue_id %lld", route->name,
                   route->queue_count, (long long)queue_id);
        return false;
    }
    call->call.queue_id = (uint32_t)queue_id;
    call->call.queue = route->queues[queue_id];
    call->call.timeout = self->timeout;
    return seconds_from(self->state, values[APPEND_TIMEOUT], "timeout", &call->call.timeout);
}

bool append_call_open(PyProducer *self, const struct append_form *form, PyObject *const *args, Py_ssize_t nargs,
                      PyObject *kwnames, PyObject **values, struct append_call *call)
{
    call->base = self->blank;
    if (!arguments_parse(form, self->state, args, nargs, kwnames, values) || !queue_from(self, values, call) ||
        !numbers_from(self->state, values, &call->base, call) ||
        !host_from(self->state, values[APPEND_BORN_HOST], &call->base)) {
        return false;
    }
    call->base.topic = call->call.route->name;
    call->base.topic_bytes = call->call.route->name_bytes;
    call->base.queue_id = call->call.queue_id;
    return true;
}

int64_t text_tag_hash(const struct append_call *call, const struct shmq_text_facts *facts)
{
    if (call->has_tag) {
        return call->tag_code;
    }
    return facts->tag_bytes ? shmq_tag_hash(facts->tag, facts->tag_bytes) : 0;
}

PyObject *appended_tuple(const struct shmq_appended *appended)
{
    const uint64_t numbers[] = {appended->queue_offset, appended->log_position, appended->store_ms, appended->end};
    PyObject *tuple = PyTuple_New(4);
    for (int i = 0; tuple && i < 4; i++) {
        PyObject *number = PyLong_FromUnsignedLongLong(numbers[i]);
        if (!number) {
            Py_CLEAR(tuple);
            break;
        }
        PyTuple_SET_ITEM(tuple, i, number);
    }
    return tuple;
}

/* ---- append ---------------------------------------------------------------------------------------- */
static const enum append_name append_positions[] = {APPEND_TOPIC, APPEND_BODY, APPEND_PROPERTIES};
static const struct append_form append_form = {
    .method = "append",
    .positions = append_positions,
    .position_count = 3,
    .needed = 1u << APPEND_TOPIC | 1u << APPEND_BODY | 1u << APPEND_QUEUE_ID,
    .allowed = 1u << APPEND_TOPIC | 1u << APPEND_BODY | 1u << APPEND_PROPERTIES | 1u << APPEND_QUEUE_ID |
               1u << APPEND_FLAG | 1u << APPEND_SYS_FLAG | 1u << APPEND_BORN | 1u << APPEND_BORN_HOST |
               1u << APPEND_RECONSUME | 1u << APPEND_PREPARED | 1u << APPEND_TAG_CODE | 1u << APPEND_TIMEOUT,
};

/* Property text as a spec takes it; *clean holds a copy when a record CRC had to go. */
static bool text_open(PyObject *properties, struct shmq_spec *spec, struct shmq_text_facts *facts, PyObject **clean)
{
    if (!properties) {
        return true;
    }
    if (!PyBytes_CheckExact(properties)) {
        PyErr_Format(PyExc_TypeError, "properties must be bytes, not %.100s", Py_TYPE(properties)->tp_name);
        return false;
    }
    const char *text = PyBytes_AS_STRING(properties);
    size_t bytes = (size_t)PyBytes_GET_SIZE(properties);
    if (bytes > UINT32_MAX) {
        bytes = UINT32_MAX; /* refused as too large, with that number */
    }
    shmq_text_look(text, bytes, facts);
    if (facts->crc_bytes) {
        *clean = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes);
        if (!*clean) {
            return false;
        }
        bytes = shmq_text_copy(PyBytes_AS_STRING(*clean), text, bytes);
        text = PyBytes_AS_STRING(*clean);
    }
    spec->properties = text;
    spec->properties_bytes = (uint32_t)bytes;
    return true;
}

PyObject *producer_append_record(PyProducer *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *values[APPEND_COUNT], *clean = NULL, *answer = NULL;
    struct append_call call;
    struct shmq_text_facts facts = {.tag_bytes = 0};
    struct body_buffer body;
    struct shmq_appended appended;
    if (!append_call_open(self, &append_form, args, nargs, kwnames, values, &call) ||
        !text_open(values[APPEND_PROPERTIES], &call.base, &facts, &clean)) {
        return NULL;
    }
    if (body_open(self->state, values[APPEND_BODY], &body)) {
        call.base.body = body.data;
        call.base.body_bytes = (uint32_t)body.bytes;
        bool constant = !body.held || body.buffer.readonly;
        int64_t tag_hash = text_tag_hash(&call, &facts);
        if (producer_append(self, &call.call, &call.base, constant, tag_hash, &appended) == SHMQ_OK &&
            producer_published(self, &call.call, &appended, 1, appended.end, false)) {
            answer = appended_tuple(&appended);
        }
        body_close(&body);
    }
    Py_XDECREF(clean);
    return answer;
}
