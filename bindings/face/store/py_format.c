/* Store(format=...): a mapping of Python numbers into struct shmq_format_options, checked against the segments' sizes.
 */
#include <string.h>

#include "face/store/py_store.h"

/* One number of the format mapping; leaves *out alone when the key is missing and not `required`. */
static bool format_number(struct core_state *state, PyObject *format, const char *key, bool required,
                          unsigned long long most, unsigned long long *out)
{
    PyObject *value = PyMapping_GetItemString(format, key);
    if (!value) {
        if (!PyErr_ExceptionMatches(PyExc_KeyError)) {
            return false;
        }
        PyErr_Clear();
        if (required) {
            core_raise(state, SHMQ_BAD_ARGUMENT, "format lacks '%s'", key);
        }
        return !required;
    }
    unsigned long long number = PyLong_AsUnsignedLongLong(value);
    bool ok = !PyErr_Occurred();
    if (ok && number > most) {
        core_raise(state, SHMQ_BAD_ARGUMENT, "format: '%s' is %llu, at most %llu fits", key, number, most);
        ok = false;
    }
    Py_DECREF(value);
    if (ok) {
        *out = number;
    }
    return ok;
}

static bool format_sizes(struct core_state *state, PyObject *format, struct shmq_format_options *options)
{
    struct {
        const char *key;
        uint32_t *out;
    } counts[] = {
        {"topic_max", &options->sizes.topic_max}, {"queue_max", &options->sizes.queue_max},
        {"frame_max", &options->sizes.frame_max}, {"client_max", &options->sizes.client_max},
        {"group_max", &options->sizes.group_max}, {"offset_max", &options->sizes.offset_max},
    };
    unsigned long long number = 0;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        if (!format_number(state, format, counts[i].key, true, UINT32_MAX, &number)) {
            return false;
        }
        *counts[i].out = (uint32_t)number;
    }
    if (!format_number(state, format, "file_bytes", true, UINT64_MAX, &number)) {
        return false;
    }
    options->sizes.file_bytes = number;
    if (!format_number(state, format, "generation", true, UINT64_MAX, &number)) {
        return false;
    }
    options->generation = number;
    number = 0;
    if (!format_number(state, format, "frame_ready", false, UINT32_MAX, &number)) {
        return false;
    }
    options->frame_ready = (uint32_t)number;
    number = 0;
    if (!format_number(state, format, "ack_rule", false, SHMQ_ACK_CONFIRMED, &number)) {
        return false;
    }
    options->ack_rule = (enum shmq_ack_rule)number;
    number = 0;
    if (!format_number(state, format, "trusts_reads", false, 1, &number)) {
        return false;
    }
    options->trusts_reads = number != 0;
    number = 0;
    if (!format_number(state, format, "clock_stands_ms", false, INT64_MAX, &number)) {
        return false;
    }
    options->clock_stands_ms = number;
    return true;
}

static bool format_host(struct core_state *state, PyObject *format, uint8_t out[8])
{
    PyObject *host = PyMapping_GetItemString(format, "store_host");
    bool ok = host && PyBytes_Check(host) && PyBytes_GET_SIZE(host) == 8;
    if (ok) {
        memcpy(out, PyBytes_AS_STRING(host), 8);
    } else if (host) {
        core_raise(state, SHMQ_BAD_ARGUMENT, "format: 'store_host' is bytes of length 8, IPv4 address and port");
    }
    Py_XDECREF(host);
    return ok;
}

bool store_format(PyStore *self, PyObject *format)
{
    struct shmq_format_options options = {0};
    struct shmq_layout layout;
    if (!format_sizes(self->state, format, &options) || !format_host(self->state, format, options.store_host)) {
        return false;
    }
    enum shmq_status status = shmq_layout_compute(&options.sizes, &layout);
    if (status == SHMQ_OK && (layout.control_bytes > self->map_bytes[0] || layout.units_bytes > self->map_bytes[1] ||
                              layout.readers_bytes > self->map_bytes[2])) {
        core_raise(self->state, SHMQ_BAD_ARGUMENT,
                   "segments of %zu, %zu and %zu bytes are too small for this format, see "
                   "layout_bytes()",
                   self->map_bytes[0], self->map_bytes[1], self->map_bytes[2]);
        return false;
    }
    PyObject *name = PyMapping_GetItemString(format, "broker_name");
    PyObject *path = name ? PyMapping_GetItemString(format, "store_path") : NULL;
    options.broker_name = name ? PyUnicode_AsUTF8(name) : NULL;
    options.store_path = path ? PyUnicode_AsUTF8(path) : NULL;
    bool ok = options.broker_name && options.store_path;
    if (ok && status == SHMQ_OK) {
        status = shmq_store_format(self->maps[0], self->maps[2], &options);
    }
    Py_XDECREF(name);
    Py_XDECREF(path);
    if (ok && status != SHMQ_OK) {
        core_raise_status(self->state, status, "formatting the segments");
    }
    return ok && status == SHMQ_OK;
}
