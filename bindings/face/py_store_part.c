/* The types of the Store and of its parts: what one kind of user does with it, each a type over the same mapping.
 *
 *   type            used by                                  its methods are in
 *   KeeperStore     the keeper, recovery                     py_keeper.c, py_flush.c, py_offsets.c, py_damage.c;
 *                                                            py_scan.c, py_record_batch.c, py_index.c
 *   BrokerTables    the bridge's tables, recovery           py_tables.c, py_members.c, py_offsets.c
 *   BrokerLog       the bridge's log                         py_pull.c, py_scan.c, py_together.c
 *   StoreFigures    metrics, tools, the bridge's tables      py_figures.c
 *   ReplicaStore    a slave's stream from its master         py_replica.c
 *   ColumnReader    readers of records as Arrow columns      py_columns.c
 *
 * Invariants: (1) A part holds its Store and nothing else, so it works exactly as long as the Store is open. (2) A part
 * that changes what is shared is made only of a Store that is mapped writable, and a Store never stops being that;
 * its methods therefore ask only whether the Store is open.
 */
#include "face/store/py_store.h"

/* tp_methods takes one table, the methods live where their subject does: they are joined when the module loads. */
static PyMethodDef *const store_method_tables[] = {store_methods, unit_methods, table_methods, member_methods,
                                                   offset_methods, look_methods, visible_methods};
static PyMethodDef joined_methods[96];

static PyType_Slot store_slots[] = {
    {Py_tp_doc, "The segments of one broker, mapped. Segments are file descriptors, or SysV ids with sysv=True."},
    {Py_tp_new, store_new},
    {Py_tp_dealloc, store_dealloc},
    {Py_tp_methods, joined_methods},
    {Py_tp_getset, store_getset},
    {0, NULL},
};

PyType_Spec store_spec = {
    .name = "shmq.bindings._core.Store",
    .basicsize = sizeof(PyStore),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = store_slots,
};

/* Makes one table of many, its end included; NULL ends `tables` early. false with an exception. */
static bool methods_join(PyMethodDef *const *tables, size_t table_count, PyMethodDef *joined, size_t room)
{
    size_t count = 0;
    for (size_t table = 0; table < table_count && tables[table]; table++) {
        for (const PyMethodDef *method = tables[table]; method->ml_name; method++) {
            if (count + 1 == room) {
                PyErr_Format(PyExc_SystemError, "a type has more than %zu methods", count);
                return false;
            }
            joined[count++] = *method;
        }
    }
    return true;
}

bool store_methods_join(void)
{
    return methods_join(store_method_tables, sizeof store_method_tables / sizeof *store_method_tables, joined_methods,
                        sizeof joined_methods / sizeof *joined_methods);
}

enum { TABLES_MAX = 8, METHODS_MAX = 36 };

static const struct part_kind {
    const char *name, *doc;
    bool changes;              /* what is shared */
    PyMethodDef *tables[TABLES_MAX];
    PyGetSetDef *getset;       /* or NULL */
} parts[] = {
    {"shmq.bindings._core.KeeperStore", "What the keeper of a store's files and its recovery do to the segments.", true,
     {keeper_methods, flush_methods, loss_methods, damage_methods, scan_methods, batch_methods, index_methods,
      state_methods}, NULL},
    {"shmq.bindings._core.BrokerTables", "Topics, groups, offset slots and client slots, to be changed.", true,
     {broker_topic_methods, broker_member_methods, broker_offset_methods}, NULL},
    {"shmq.bindings._core.BrokerLog", "What the broker reads of the log for its clients.", true,
     {pull_methods, scan_methods, together_methods}, NULL},
    {"shmq.bindings._core.StoreFigures", "Counters and states of a store, for monitoring.", false,
     {figure_methods, state_methods}, figure_getset},
    {"shmq.bindings._core.ReplicaStore", "A log that follows a master's on another host, or waits for its replicas.", true, {replica_methods}, NULL},
    {"shmq.bindings._core.ColumnReader", "Records of a store as Arrow columns.", false, {column_methods}, NULL},
};
enum { PART_COUNT = sizeof parts / sizeof *parts };

static PyObject *part_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"store", NULL};
    struct core_state *state = PyType_GetModuleState(type);
    PyObject *store;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!", names, state->store_type, &store) ||
        !store_check((PyStore *)store)) {
        return NULL;
    }
    PyStorePart *self = (PyStorePart *)type->tp_alloc(type, 0);
    if (self) {
        self->store = (PyStore *)Py_NewRef(store);
    }
    return (PyObject *)self;
}

static PyObject *changing_part_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *self = part_new(type, args, kwargs);
    if (self && !store_check_writable(((PyStorePart *)self)->store)) {
        Py_CLEAR(self);
    }
    return self;
}

static void part_dealloc(PyStorePart *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(self->store);
    type->tp_free(self);
    Py_DECREF(type);
}

static bool type_add(PyObject *module, const struct part_kind *part, PyMethodDef *methods)
{
    PyType_Slot slots[] = {
        {Py_tp_doc, (void *)part->doc},
        {Py_tp_new, part->changes ? changing_part_new : part_new},
        {Py_tp_dealloc, part_dealloc},
        {Py_tp_methods, methods},
        {part->getset ? Py_tp_getset : 0, part->getset},
        {0, NULL},
    };
    PyType_Spec spec = {
        .name = part->name,
        .basicsize = sizeof(PyStorePart),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
        .slots = slots,
    };
    PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);
    bool ok = type && PyModule_AddType(module, (PyTypeObject *)type) == 0;
    Py_XDECREF(type);
    return ok;
}

bool store_parts_add(PyObject *module)
{
    static PyMethodDef joined[PART_COUNT][METHODS_MAX]; /* a type keeps its table; each load writes the same */
    bool ok = true;
    for (size_t i = 0; ok && i < PART_COUNT; i++) {
        ok = methods_join(parts[i].tables, TABLES_MAX, joined[i], METHODS_MAX) &&
             type_add(module, &parts[i], joined[i]);
    }
    return ok;
}
