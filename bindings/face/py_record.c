/* Functions of the module that need no store: checksums, tag hash, layout, and one record to and from bytes. */
#include <string.h>

#include "face/py_core.h"

static PyObject *core_crc32(PyObject *module, PyObject *data)
{
    (void)module;
    Py_buffer buffer;
    if (PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    uint32_t crc;
    Py_BEGIN_ALLOW_THREADS
    crc = shmq_crc32(buffer.buf, (size_t)buffer.len);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&buffer);
    return PyLong_FromUnsignedLong(crc);
}

static PyObject *core_tag_hash(PyObject *module, PyObject *tag)
{
    (void)module;
    Py_ssize_t bytes;
    const char *text = PyUnicode_AsUTF8AndSize(tag, &bytes);
    return text ? PyLong_FromLong(shmq_tag_hash(text, (size_t)bytes)) : NULL;
}

static PyObject *core_process_start(PyObject *module, PyObject *pid)
{
    (void)module;
    unsigned long number = PyLong_AsUnsignedLong(pid);
    if (number == (unsigned long)-1 && PyErr_Occurred()) {
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(number > UINT32_MAX ? 0 : shmq_process_start((uint32_t)number));
}

static PyObject *core_process_died(PyObject *module, PyObject *args)
{
    (void)module;
    unsigned long pid;
    unsigned long long start;
    if (!PyArg_ParseTuple(args, "kK:process_died", &pid, &start)) {
        return NULL;
    }
    return PyBool_FromLong(pid > INT32_MAX || shmq_process_died((uint32_t)pid, start));
}

/* PyArg_ParseTupleAndKeywords cannot say "required and keyword-only". */
static bool keyword_only(PyObject *args, const char *function)
{
    if (!PyTuple_GET_SIZE(args)) {
        return true;
    }
    PyErr_Format(PyExc_TypeError, "%s() takes keyword arguments only", function);
    return false;
}

static PyObject *core_layout_bytes(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"file_bytes", "topic_max", "queue_max",  "frame_max",
                            "client_max", "group_max", "offset_max", NULL};
    struct shmq_sizes sizes = {0};
    unsigned long long file_bytes;
    if (!keyword_only(args, "layout_bytes") ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "KIIIIII:layout_bytes", names, &file_bytes, &sizes.topic_max,
                                     &sizes.queue_max, &sizes.frame_max, &sizes.client_max, &sizes.group_max,
                                     &sizes.offset_max)) {
        return NULL;
    }
    sizes.file_bytes = file_bytes;
    struct shmq_layout layout;
    enum shmq_status status = shmq_layout_compute(&sizes, &layout);
    if (status != SHMQ_OK) {
        return core_raise_status(PyModule_GetState(module), status, "layout of the segments");
    }
    return Py_BuildValue("(KKK)", (unsigned long long)layout.control_bytes, (unsigned long long)layout.units_bytes,
                         (unsigned long long)layout.readers_bytes);
}

struct encode_numbers {
    unsigned long long queue_offset, log_position, born_ms, store_ms, prepared_position;
};

static PyObject *encode(struct core_state *state, const struct shmq_spec *spec, const struct encode_numbers *numbers)
{
    if (spec->topic_bytes == 0 || spec->topic_bytes > SHMQ_TOPIC_BYTES_MAX || spec->body_bytes > SHMQ_BODY_BYTES_MAX ||
        spec->properties_bytes > SHMQ_PROPERTIES_BYTES_MAX - SHMQ_RECORD_CRC_BYTES - 1) {
        return core_raise(state, SHMQ_TOO_LARGE,
                          "topic of %u bytes (1 to %u), body of %u (at most %u) or properties of %u "
                          "(at most %u)",
                          spec->topic_bytes, SHMQ_TOPIC_BYTES_MAX, spec->body_bytes, SHMQ_BODY_BYTES_MAX,
                          spec->properties_bytes, SHMQ_PROPERTIES_BYTES_MAX - SHMQ_RECORD_CRC_BYTES - 1);
    }
    PyObject *out = PyBytes_FromStringAndSize(NULL, shmq_record_bytes(spec));
    if (!out) {
        return NULL;
    }
    struct shmq_patch patch;
    uint8_t *data = (uint8_t *)PyBytes_AS_STRING(out);
    shmq_record_encode(data, spec, &patch);
    shmq_record_patch(data, &patch, numbers->queue_offset, numbers->log_position, numbers->store_ms);
    return out;
}

static PyObject *core_record_encode(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"body",      "topic",      "properties", "queue_id", "queue_offset",    "log_position",
                            "flag",      "sys_flag",   "born_ms",    "store_ms", "reconsume_times", "prepared_position",
                            "born_host", "store_host", NULL};
    struct core_state *state = PyModule_GetState(module);
    Py_buffer body = {0}, topic = {0}, properties = {0};
    Py_buffer hosts[2] = {{0}, {0}};
    struct encode_numbers numbers = {0};
    struct shmq_spec spec = {.born_host = {127, 0, 0, 1}, .store_host = {127, 0, 0, 1}};
    PyObject *out = NULL;
    if (!keyword_only(args, "record_encode") ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "y*y*|y*IKKIIKKIKy*y*:record_encode", names, &body, &topic,
                                     &properties, &spec.queue_id, &numbers.queue_offset, &numbers.log_position,
                                     &spec.flag, &spec.sys_flag, &numbers.born_ms, &numbers.store_ms,
                                     &spec.reconsume_times, &numbers.prepared_position, &hosts[0], &hosts[1])) {
        return NULL;
    }
    if ((hosts[0].obj && hosts[0].len != SHMQ_HOST_BYTES && hosts[0].len != SHMQ_HOST_BYTES_V6) ||
        (hosts[1].obj && hosts[1].len != SHMQ_HOST_BYTES)) {
        core_raise(state, SHMQ_BAD_ARGUMENT, "a host is 8 bytes, IPv4 address and port; a born host of IPv6 20");
    } else if (body.len > UINT32_MAX || topic.len > UINT32_MAX || properties.len > UINT32_MAX) {
        core_raise(state, SHMQ_TOO_LARGE, "a record holds at most %u bytes of body", SHMQ_BODY_BYTES_MAX);
    } else {
        if (hosts[0].obj) {
            memcpy(spec.born_host, hosts[0].buf, (size_t)hosts[0].len);
            spec.born_host_bytes = (uint8_t)hosts[0].len;
        }
        if (hosts[1].obj) {
            memcpy(spec.store_host, hosts[1].buf, 8);
        }
        spec.body = body.len ? body.buf : "";
        spec.body_bytes = (uint32_t)body.len;
        spec.topic = topic.buf;
        spec.topic_bytes = (uint32_t)topic.len;
        spec.properties = properties.buf;
        spec.properties_bytes = (uint32_t)properties.len;
        spec.born_ms = numbers.born_ms;
        spec.prepared_position = numbers.prepared_position;
        out = encode(state, &spec, &numbers);
    }
    Py_buffer *held[] = {&body, &topic, &properties, &hosts[0], &hosts[1]};
    for (size_t i = 0; i < sizeof held / sizeof *held; i++) {
        if (held[i]->obj) {
            PyBuffer_Release(held[i]);
        }
    }
    return out;
}

static PyObject *view_dict(const struct shmq_view *view)
{
    typedef unsigned long long u64;
    return Py_BuildValue("{s:I,s:I,s:I,s:I,s:I,s:K,s:K,s:I,s:K,s:K,s:i,s:K,s:y#,s:y#,s:y#,s:y#,s:y#}", "record_bytes",
                         view->record_bytes, "magic", view->magic, "body_crc", view->body_crc, "queue_id",
                         view->queue_id, "flag", view->flag, "queue_offset", (u64)view->queue_offset, "log_position",
                         (u64)view->log_position, "sys_flag", view->sys_flag, "born_ms", (u64)view->born_ms, "store_ms",
                         (u64)view->store_ms, "reconsume_times", (int)view->reconsume_times, "prepared_position",
                         (u64)view->prepared_position, "born_host", view->born_host, (Py_ssize_t)view->born_host_bytes,
                         "store_host", view->store_host, (Py_ssize_t)view->store_host_bytes, "body",
                         view->body_bytes ? (const char *)view->body : "", (Py_ssize_t)view->body_bytes, "topic",
                         view->topic, (Py_ssize_t)view->topic_bytes, "properties",
                         view->properties_bytes ? view->properties : "", (Py_ssize_t)view->properties_bytes);
}

/* Parse (data, position) and decode there; on true the caller releases *data. */
static const uint8_t *record_open(struct core_state *state, PyObject *args, const char *format, Py_buffer *data,
                                  struct shmq_view *view)
{
    Py_ssize_t position = 0;
    if (!PyArg_ParseTuple(args, format, data, &position)) {
        return NULL;
    }
    const uint8_t *at = (const uint8_t *)data->buf + position;
    enum shmq_status status = SHMQ_BAD_ARGUMENT;
    if (position >= 0 && position <= data->len) {
        status = shmq_record_decode(at, (size_t)(data->len - position), view);
    }
    if (status == SHMQ_OK) {
        return at;
    }
    core_raise(state, status, "%s at byte %zd of %zd",
               status == SHMQ_EMPTY ? "no record (a zero size or a BLANK)" : "no whole, consistent record", position,
               data->len);
    PyBuffer_Release(data);
    return NULL;
}

static PyObject *core_record_decode(PyObject *module, PyObject *args)
{
    Py_buffer data;
    struct shmq_view view;
    if (!record_open(PyModule_GetState(module), args, "y*|n:record_decode", &data, &view)) {
        return NULL;
    }
    PyObject *fields = view_dict(&view);
    PyBuffer_Release(&data);
    return fields;
}

static PyObject *core_record_verify(PyObject *module, PyObject *args)
{
    Py_buffer data;
    struct shmq_view view;
    const uint8_t *at = record_open(PyModule_GetState(module), args, "y*|n:record_verify", &data, &view);
    if (!at) {
        return NULL;
    }
    bool whole = shmq_record_verify(at, &view) == SHMQ_OK;
    PyBuffer_Release(&data);
    return PyBool_FromLong(whole);
}

PyObject *message_id_text(const uint8_t *host, uint32_t host_bytes, uint64_t log_position)
{
    char text[SHMQ_MESSAGE_ID_BYTES_MAX];
    return PyUnicode_FromStringAndSize(text, (Py_ssize_t)shmq_message_id(text, host, host_bytes, log_position));
}

PyObject *property_dict(const char *properties, size_t bytes)
{
    PyObject *dict = PyDict_New();
    const char *at = properties, *end = properties + bytes;
    while (dict && at < end) {
        const char *pair_end = memchr(at, SHMQ_VALUE_END, (size_t)(end - at));
        if (!pair_end) {
            pair_end = end; /* RocketMQ 4.9 leaves the last separator out */
        }
        const char *name_end = memchr(at, SHMQ_NAME_END, (size_t)(pair_end - at));
        size_t name_bytes = name_end ? (size_t)(name_end - at) : 0;
        bool crc = name_bytes == strlen(SHMQ_CRC_NAME) && !memcmp(at, SHMQ_CRC_NAME, name_bytes);
        if (name_bytes && !crc) {
            PyObject *name = PyUnicode_DecodeUTF8(at, (Py_ssize_t)name_bytes, "replace");
            PyObject *value = PyUnicode_DecodeUTF8(name_end + 1, pair_end - name_end - 1, "replace");
            if (!name || !value || PyDict_SetItem(dict, name, value) < 0) {
                Py_CLEAR(dict);
            }
            Py_XDECREF(name);
            Py_XDECREF(value);
        }
        at = pair_end + 1;
    }
    return dict;
}

PyMethodDef record_functions[] = {
    {"crc32", core_crc32, METH_O, "CRC-32 as zlib computes it."},
    {"tag_hash", core_tag_hash, METH_O,
     "Java's String.hashCode, which RocketMQ stores in the unit of a tagged message."},
    {"process_start", core_process_start, METH_O,
     "Field 22 of /proc/pid/stat, or 0 when there is no such process, it is a zombie, or /proc hides it."},
    {"process_died", core_process_died, METH_VARARGS,
     "process_died(pid, start)\n--\n\n"
     "Whether this process has ended: proven, never for want of a look. A start of 0 is any process of that number."},
    {"layout_bytes", (PyCFunction)(void (*)(void))core_layout_bytes, METH_VARARGS | METH_KEYWORDS,
     "Sizes of the control, units and readers segments."},
    {"record_encode", (PyCFunction)(void (*)(void))core_record_encode, METH_VARARGS | METH_KEYWORDS,
     "One stored record, exactly the bytes the append path writes."},
    {"record_decode", core_record_decode, METH_VARARGS, "Fields of the record at a position of some bytes."},
    {"record_verify", core_record_verify, METH_VARARGS, "Whether body CRC and record CRC hold."},
    {NULL},
};
