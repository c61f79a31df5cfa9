/* The extension module `shmq.bindings._core`: types, constants and functions, nothing else.
 *
 * Multi-phase initialisation, no global state: everything lives in the module's state, so several interpreters may load
 * it. It relies on the GIL (see py_core.h), so it asks a free-threaded interpreter to keep it.
 */
#include "core/columns/columns.h"
#include "core/files/files.h"
#include "core/files/index.h"
#include "face/read/py_read.h"
#include "face/send/py_send.h"

#ifndef SHMQ_SOURCES /* a build that is no installation */
#define SHMQ_SOURCES ""
#endif

static int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **out)
{
    *out = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *out ? PyModule_AddType(module, *out) : -1;
}

static int add_constants(PyObject *module)
{
    static const struct {
        const char *name;
        long value;
    } constants[] = {
        {"OK", SHMQ_OK},
        {"BROKER_BUSY", SHMQ_BROKER_BUSY},
        {"LOG_FULL", SHMQ_LOG_FULL},
        {"UNITS_FULL", SHMQ_UNITS_FULL},
        {"READ_ONLY", SHMQ_READ_ONLY},
        {"TOO_LARGE", SHMQ_TOO_LARGE},
        {"NO_TOPIC", SHMQ_NO_TOPIC},
        {"NO_QUEUE", SHMQ_NO_QUEUE},
        {"TABLE_FULL", SHMQ_TABLE_FULL},
        {"TIMED_OUT", SHMQ_TIMED_OUT},
        {"UNCONFIRMED", SHMQ_UNCONFIRMED},
        {"EMPTY", SHMQ_EMPTY},
        {"CORRUPT", SHMQ_CORRUPT},
        {"GONE", SHMQ_GONE},
        {"BAD_ARGUMENT", SHMQ_BAD_ARGUMENT},
        {"SYSTEM", SHMQ_SYSTEM},
        {"FOREIGN_ABI", SHMQ_FOREIGN_ABI},
        {"FOREIGN_NAMESPACE", SHMQ_FOREIGN_NAMESPACE},
        {"RETIRED", SHMQ_RETIRED},
        {"NOT_MASTER", SHMQ_NOT_MASTER},
        {"DOUBTED", SHMQ_DOUBTED},
        {"DETACHED", SHMQ_DETACHED},
        {"FENCED", SHMQ_FENCED},
        {"ABI", SHMQ_ABI},
        {"INDEX_DONE", SHMQ_INDEX_DONE},
        {"INDEX_NO_FILE", SHMQ_INDEX_NO_FILE},
        {"INDEX_NO_ROOM", SHMQ_INDEX_NO_ROOM},
        {"INDEX_FULL", SHMQ_INDEX_FULL},
        {"INDEX_DAMAGE", SHMQ_INDEX_DAMAGE},
        {"DAMAGE_UNIT", SHMQ_DAMAGE_UNIT},
        {"DAMAGE_RECORD", SHMQ_DAMAGE_RECORD},
        {"UNIT_BYTES", SHMQ_UNIT_BYTES},
        {"UNIT_DELAY_BASE", SHMQ_UNIT_DELAY_BASE},
        {"STAMP_AGE_MS", SHMQ_STAMP_AGE_MS},
        {"RETRY_QUEUE_BASE", SHMQ_RETRY_QUEUE_BASE},
        {"FRAME_UNITS", SHMQ_FRAME_UNITS},
        {"FRAME_BYTES", SHMQ_FRAME_BYTES},
        {"TOPIC_BYTES_MAX", SHMQ_TOPIC_BYTES_MAX},
        {"BODY_BYTES_MAX", SHMQ_BODY_BYTES_MAX},
        {"PROPERTIES_BYTES_MAX", SHMQ_PROPERTIES_BYTES_MAX},
        {"BATCH_MAX", SHMQ_BATCH_MAX},
        {"COLUMN_ROWS_MAX", SHMQ_COLUMN_ROWS_MAX},
        {"COLUMN_BATCH_BYTES_MAX", SHMQ_COLUMN_BATCH_BYTES_MAX},
        {"GROUP_SETTINGS_BYTES_MAX", SHMQ_GROUP_SETTINGS_BYTES_MAX},
    };
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++) {
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) < 0) {
            return -1;
        }
    }
    return 0;
}

static bool intern(PyObject **names, const char *const *texts, int count)
{
    for (int i = 0; i < count; i++) {
        if (!(names[i] = PyUnicode_InternFromString(texts[i]))) {
            return false;
        }
    }
    return true;
}

static int intern_names(struct core_state *state)
{
    static const char *const calls[CALL_COUNT] = {
        [CALL_TOPIC] = "topic",
        [CALL_SECOND] = "body",
        [CALL_TAG] = "tag",
        [CALL_KEY] = "key",
        [CALL_KEYS] = "keys",
        [CALL_PROPERTIES] = "properties",
        [CALL_GROUP] = "message_group",
        [CALL_QUEUE_ID] = "queue_id",
        [CALL_FLAG] = "flag",
        [CALL_TIMEOUT] = "timeout",
        [CALL_TAG_CODE] = "tag_code",
    };
    static const char *const appends[APPEND_COUNT] = {
        [APPEND_TOPIC] = "topic",
        [APPEND_BODY] = "body",
        [APPEND_PROPERTIES] = "properties",
        [APPEND_QUEUE_ID] = "queue_id",
        [APPEND_FLAG] = "flag",
        [APPEND_SYS_FLAG] = "sys_flag",
        [APPEND_BORN] = "born_ms",
        [APPEND_BORN_HOST] = "born_host",
        [APPEND_RECONSUME] = "reconsume_times",
        [APPEND_PREPARED] = "prepared_position",
        [APPEND_TAG_CODE] = "tag_code",
        [APPEND_TIMEOUT] = "timeout",
        [APPEND_RECORDS] = "records",
        [APPEND_BATCH_BODY] = "batch_body",
        [APPEND_EXTRA] = "properties_extra",
    };
    if (!intern(state->call_names, calls, CALL_COUNT) || !intern(state->append_names, appends, APPEND_COUNT)) {
        return -1;
    }
    state->name_bodies = PyUnicode_InternFromString("bodies");
    state->name_size = PyUnicode_InternFromString("size");
    state->name_ack = PyUnicode_InternFromString("_ack");
    state->name_nack = PyUnicode_InternFromString("_nack");
    state->name_extend = PyUnicode_InternFromString("_extend");
    state->name_idle = PyUnicode_InternFromString("_idle");
    state->name_stray = PyUnicode_InternFromString("_stray");
    return state->name_bodies && state->name_size && state->name_ack && state->name_nack && state->name_extend &&
                   state->name_idle && state->name_stray
               ? 0
               : -1;
}

static PyObject *module_set_error_factory(PyObject *module, PyObject *factory)
{
    struct core_state *state = PyModule_GetState(module);
    Py_XSETREF(state->error_factory, factory == Py_None ? NULL : Py_NewRef(factory));
    Py_RETURN_NONE;
}

static PyObject *module_set_damage_factory(PyObject *module, PyObject *factory)
{
    struct core_state *state = PyModule_GetState(module);
    Py_XSETREF(state->damage_factory, factory == Py_None ? NULL : Py_NewRef(factory));
    Py_RETURN_NONE;
}

static PyObject *module_standard_hold(PyObject *module, PyObject *nothing)
{
    (void)module, (void)nothing;
    shmq_standard_hold();
    Py_RETURN_NONE;
}

static PyObject *module_standard_release(PyObject *module, PyObject *nothing)
{
    (void)module, (void)nothing;
    shmq_standard_release();
    Py_RETURN_NONE;
}

static PyMethodDef module_functions[] = {
    {"standard_hold", module_standard_hold, METH_NOARGS,
     "Occupy what is missing of descriptors 0 to 2, so that what is opened next lies above them."},
    {"standard_release", module_standard_release, METH_NOARGS,
     "End a standard_hold(); the last one frees those descriptors again."},
    {"set_damage_factory", module_set_damage_factory, METH_O,
     "Let factory(status, message, topic, queue id, offset, log position, record, body) make the exception for a message "
     "that a reader left out; None: CoreError."},
    {"set_error_factory", module_set_error_factory, METH_O,
     "Let factory(status, message[, errno[, used, limit, holder_pid]]) make every exception the core raises; None: "
     "CoreError itself."},
    {NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *module)
{
    struct core_state *state = PyModule_GetState(module);
    state->error = PyErr_NewExceptionWithDoc(
        "shmq.bindings._core.CoreError",
        "args = (status, message); the status is one of this module's numbers. args[2] is errno for SYSTEM.", NULL,
        NULL);
    if (!state->error || PyModule_AddObjectRef(module, "CoreError", state->error) < 0) {
        return -1;
    }
    if (!store_methods_join() || add_type(module, &store_spec, &state->store_type) < 0 ||
        add_type(module, &receipt_spec, &state->receipt_type) < 0 ||
        add_type(module, &producer_spec, &state->producer_type) < 0 ||
        add_type(module, &slot_spec, &state->slot_type) < 0 ||
        add_type(module, &message_spec, &state->message_type) < 0 ||
        add_type(module, &reader_spec, &state->reader_type) < 0 ||
        add_type(module, &sender_spec, &state->sender_type) < 0 ||
        add_type(module, &puller_spec, &state->puller_type) < 0 ||
        add_type(module, &durable_watch_spec, &state->durable_watch_type) < 0 ||
        add_type(module, &filter_spec, &state->filter_type) < 0) {
        return -1;
    }
    if (!store_parts_add(module) || !row_types_add(module, state)) {
        return -1;
    }
    if (PyModule_AddStringConstant(module, "SOURCES", SHMQ_SOURCES) < 0) { /* what was built, see sources.py */
        return -1;
    }
    if (add_constants(module) < 0 || intern_names(state) < 0 || PyModule_AddFunctions(module, record_functions) < 0 ||
        PyModule_AddFunctions(module, foreign_functions) < 0 || PyModule_AddFunctions(module, receipt_functions) < 0 ||
        PyModule_AddFunctions(module, batch_functions) < 0 ||
        PyModule_AddFunctions(module, index_functions) < 0 || PyModule_AddFunctions(module, columns_functions) < 0 ||
        PyModule_AddFunctions(module, body_functions) < 0 || PyModule_AddFunctions(module, figure_functions) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, module_functions);
}

#define EACH_OBJECT(state, action)                                                                                     \
    do {                                                                                                               \
        action((state)->error);                                                                                        \
        action((state)->error_factory);                                                                                \
        action((state)->damage_factory);                                                                               \
        action((state)->store_type);                                                                                   \
        action((state)->receipt_type);                                                                                 \
        action((state)->producer_type);                                                                                \
        action((state)->slot_type);                                                                                    \
        action((state)->message_type);                                                                                 \
        action((state)->reader_type);                                                                                  \
        action((state)->sender_type);                                                                                  \
        action((state)->puller_type);                                                                                  \
        action((state)->durable_watch_type);                                                                           \
        action((state)->filter_type);                                                                                  \
        for (int kind = 0; kind < ROW_COUNT; kind++) {                                                                 \
            action((state)->row_types[kind]);                                                                          \
        }                                                                                                              \
    } while (0)

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    struct core_state *state = PyModule_GetState(module);
    EACH_OBJECT(state, Py_VISIT);
    return 0;
}

static int module_clear(PyObject *module)
{
    struct core_state *state = PyModule_GetState(module);
    EACH_OBJECT(state, Py_CLEAR);
    return 0;
}

static void module_free(void *module)
{
    struct core_state *state = PyModule_GetState(module);
    if (!state) {
        return;
    }
    module_clear(module);
    while (state->receipt_free_count) {
        PyObject_Free(state->receipt_free[--state->receipt_free_count]);
    }
    message_free_list_clear(state);
    for (int i = 0; i < CALL_COUNT; i++) {
        Py_CLEAR(state->call_names[i]);
    }
    for (int i = 0; i < APPEND_COUNT; i++) {
        Py_CLEAR(state->append_names[i]);
    }
    Py_CLEAR(state->name_bodies);
    Py_CLEAR(state->name_size);
    Py_CLEAR(state->name_ack);
    Py_CLEAR(state->name_nack);
    Py_CLEAR(state->name_extend);
    Py_CLEAR(state->name_idle);
    Py_CLEAR(state->name_stray);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef module_definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "shmq.bindings._core",
    .m_doc = "The shared-memory log: append, read, wait. Types are in _core.pyi; shmq.shm is the only user.",
    .m_size = sizeof(struct core_state),
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&module_definition);
}
