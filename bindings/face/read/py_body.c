/* Message.body: a copy of the stored body, inflated when the sender compressed it.
 *
 *   sysFlag   bit 0 compressed · bits 8 to 10 how: 0 or 3 zlib, 1 LZ4 frame, 2 Zstandard
 *
 * Inflating is Python's zlib, lz4 and zstd's work, always through a call that takes a limit: a few stored bytes must
 * not become more than SHMQ_BODY_BYTES_MAX in memory.
 */
#include "face/read/py_read.h"

#define SYS_FLAG_COMPRESSED 1u
#define LIMIT ((Py_ssize_t)SHMQ_BODY_BYTES_MAX + 1) /* one byte more tells "too long" from "just fits" */

static PyObject *missing(struct core_state *state, const char *how, const char *install)
{
    if (!PyErr_ExceptionMatches(PyExc_ImportError)) {
        return NULL;
    }
    PyErr_Clear();
    return core_raise(state, SHMQ_BAD_ARGUMENT,
                      "the body is compressed with %s, which this Python cannot inflate; pip "
                      "install %s",
                      how, install);
}

/* module.factory().decompress(data, LIMIT); an end that never came is an error the libraries leave to us. */
static PyObject *decompress(PyObject *module, const char *factory, PyObject *data)
{
    PyObject *inflater = PyObject_CallMethod(module, factory, NULL);
    PyObject *body = inflater ? PyObject_CallMethod(inflater, "decompress", "On", data, LIMIT) : NULL;
    PyObject *eof = body ? PyObject_GetAttrString(inflater, "eof") : NULL;
    if (body && (!eof || (eof != Py_True && PyBytes_Check(body) && PyBytes_GET_SIZE(body) < LIMIT))) {
        Py_CLEAR(body);
        if (eof) {
            PyErr_SetString(PyExc_EOFError, "the compressed data ends too early");
        }
    }
    Py_XDECREF(eof);
    Py_XDECREF(inflater);
    return body;
}

static PyObject *inflate_zlib(struct core_state *state, PyObject *data)
{
    PyObject *module = PyImport_ImportModule("zlib");
    if (!module) {
        return missing(state, "zlib", "a Python built with zlib");
    }
    PyObject *body = decompress(module, "decompressobj", data);
    Py_DECREF(module);
    return body;
}

static PyObject *inflate_lz4(struct core_state *state, PyObject *data)
{
    PyObject *module = PyImport_ImportModule("lz4.frame");
    if (!module) {
        return missing(state, "LZ4", "'shmq[compression]'");
    }
    PyObject *body = decompress(module, "LZ4FrameDecompressor", data);
    Py_DECREF(module);
    return body;
}

static PyObject *import_first(const char *const *names)
{
    PyObject *module = NULL;
    for (; *names && !module; names++) {
        if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_ImportError)) {
            return NULL;
        }
        PyErr_Clear();
        module = PyImport_ImportModule(*names);
    }
    return module;
}

static PyObject *inflate_zstd(struct core_state *state, PyObject *data)
{
    static const char *const names[] = {"compression.zstd", "backports.zstd", NULL};
    PyObject *module = import_first(names);
    if (module) {
        PyObject *body = decompress(module, "ZstdDecompressor", data);
        Py_DECREF(module);
        return body;
    }
    if (!PyErr_ExceptionMatches(PyExc_ImportError)) {
        return NULL;
    }
    PyErr_Clear();
    module = PyImport_ImportModule("zstandard");
    if (!module) {
        return missing(state, "Zstandard", "'shmq[compression]'");
    }
    /* Its decompress() believes the length in the frame; only the stream reader takes a limit. */
    PyObject *inflater = PyObject_CallMethod(module, "ZstdDecompressor", NULL);
    PyObject *stream = inflater ? PyObject_CallMethod(inflater, "stream_reader", "O", data) : NULL;
    PyObject *body = stream ? PyObject_CallMethod(stream, "read", "n", LIMIT) : NULL;
    Py_XDECREF(stream);
    Py_XDECREF(inflater);
    Py_DECREF(module);
    return body;
}

/* Damaged data makes each library raise its own error: one status for all, the library's words kept. */
static PyObject *inflate_failed(struct core_state *state, uint64_t log_position, const char *how)
{
    PyObject *type, *value, *traceback;
    if (PyErr_ExceptionMatches(state->error) || !PyErr_ExceptionMatches(PyExc_Exception) ||
        PyErr_ExceptionMatches(PyExc_MemoryError)) {
        return NULL;
    }
    PyErr_Fetch(&type, &value, &traceback);
    core_raise(state, SHMQ_CORRUPT, "the body at log position %llu does not inflate with %s: %S",
               (unsigned long long)log_position, how, value ? value : Py_None);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    return NULL;
}

static PyObject *inflate(struct core_state *state, PyObject *data, uint32_t sys_flag, uint64_t log_position)
{
    uint32_t how = sys_flag >> 8 & 7;
    static const char *const names[] = {"zlib", "LZ4", "Zstandard", "zlib"};
    PyObject *body = NULL;
    if (how == 1) {
        body = inflate_lz4(state, data);
    } else if (how == 2) {
        body = inflate_zstd(state, data);
    } else if (how == 0 || how == 3) {
        body = inflate_zlib(state, data);
    } else {
        core_raise(state, SHMQ_CORRUPT, "the body is compressed in a way this version does not know (type %u)",
                   how);
    }
    if (!body) {
        return inflate_failed(state, log_position, how < 4 ? names[how] : "it");
    }
    if (PyBytes_Check(body) && PyBytes_GET_SIZE(body) < LIMIT) {
        return body;
    }
    Py_DECREF(body);
    return core_raise(state, SHMQ_TOO_LARGE, "the body at log position %llu inflates to more than %u bytes",
                      (unsigned long long)log_position, SHMQ_BODY_BYTES_MAX);
}

static PyObject *message_inflate(PyMessage *self)
{
    PyObject *data = PyMemoryView_FromObject((PyObject *)self);
    PyObject *body = data ? inflate(self->state, data, self->view.sys_flag, self->view.log_position) : NULL;
    Py_XDECREF(data);
    return body;
}

bool message_is_packed(const PyMessage *self)
{
    return self->view.sys_flag & SYS_FLAG_COMPRESSED;
}

PyObject *message_body(PyMessage *self, void *closure)
{
    (void)closure;
    if (!self->body) {
        self->body = message_is_packed(self)
                         ? message_inflate(self)
                         : PyBytes_FromStringAndSize((const char *)self->view.body, self->view.body_bytes);
    }
    return Py_XNewRef(self->body);
}

PyObject *message_size(PyMessage *self, void *closure)
{
    if (!message_is_packed(self)) {
        return PyLong_FromUnsignedLong(self->view.body_bytes);
    }
    PyObject *body = message_body(self, closure);
    PyObject *size = body ? PyLong_FromSsize_t(PyObject_Size(body)) : NULL;
    Py_XDECREF(body);
    return size;
}

/* ---- bodies that are no message's ------------------------------------------------------------------- */
static PyObject *core_body_inflate(PyObject *module, PyObject *args)
{
    PyObject *data;
    unsigned int sys_flag;
    unsigned long long log_position = 0;
    if (!PyArg_ParseTuple(args, "OI|K:body_inflate", &data, &sys_flag, &log_position)) {
        return NULL;
    }
    return inflate(PyModule_GetState(module), data, sys_flag, log_position);
}

PyMethodDef body_functions[] = {
    {"body_inflate", core_body_inflate, METH_VARARGS, "A compressed body as it was sent; the sysFlag says how."},
    {NULL},
};
