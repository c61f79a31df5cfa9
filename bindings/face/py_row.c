/* Rows: what the core says of a queue, an offset slot, a client, ... as tuples whose places have names.
 *
 * `entry.committed` instead of `entry[3]`; unpacking and indexes work as with any tuple. One table has the names of every
 * kind of row, in the order of the numbers that row_new takes.
 */
#include "face/py_core.h"

#define FIELDS(...) (PyStructSequence_Field[]){__VA_ARGS__, {NULL, NULL}}

static PyStructSequence_Desc rows[ROW_COUNT] = {
    [ROW_QUEUE] = {"shmq.bindings._core.QueueEntry", "One queue of the queue table.",
                   FIELDS({"offset_min", "first queue offset whose record still exists"},
                          {"offset_max", "next queue offset"}, {"persisted", "units below it are in files"},
                          {"topic", "topic index"}, {"queue_id", "number in its topic"}, {"bytes", "of all records"}),
                   6},
    [ROW_UNPERSISTED] = {"shmq.bindings._core.UnpersistedQueue", "A queue whose units are not all in files.",
                         FIELDS({"queue", "queue index"}, {"persisted", "units below it are in files"},
                                {"offset_max", "next queue offset"}),
                         3},
    [ROW_OFFSET] = {"shmq.bindings._core.OffsetEntry", "Progress of one group on one queue.",
                    FIELDS({"slot", "offset slot"}, {"group", "group index"}, {"queue", "queue index"},
                           {"committed", "next queue offset to deliver, -1 when never set"},
                           {"owner", "client slot, -1 when none reads"}, {"updated_ms", "time of the last commit"}),
                    6},
    [ROW_CLIENT] = {"shmq.bindings._core.ClientEntry", "One attached process.",
                    FIELDS({"slot", "client slot"}, {"state", "1 awake, 2 asleep"}, {"pid", "process"},
                           {"start", "start time of the process"}, {"role", "1 reads, 2 writes, 3 both"},
                           {"received", "messages"}, {"sent", "messages"}, {"beat_ns", "last poll or send"},
                           {"settled", "of received"}),
                    9},
    [ROW_ASSIGNMENT] = {"shmq.bindings._core.Assignment", "One queue that a reader reads.",
                        FIELDS({"topic", "name"}, {"queue", "queue index"}, {"queue_id", "number in its topic"},
                               {"next_offset", "next queue offset to deliver"},
                               {"committed", "lowest unacknowledged queue offset"}),
                        5},
    [ROW_SCANNED] = {"shmq.bindings._core.ScannedRecord", "One record found by a walk over the log.",
                     FIELDS({"log_position", "where it lies"}, {"record_bytes", "its size"}, {"topic", "name"},
                            {"queue_id", "number in its topic"}, {"queue_offset", "in its queue"},
                            {"store_ms", "when it was stored"}, {"tag_hash", "what its unit says"},
                            {"sys_flag", "RocketMQ's sysFlag"},
                            {"prepared_position", "the record that it was made from"}),
                     9},
    [ROW_INDEX_PROGRESS] = {"shmq.bindings._core.IndexProgress", "How far keys were put into an index file.",
                            FIELDS({"position", "next log position"}, {"stop", "why: INDEX_*"},
                                   {"store_ms", "of the last keys"}, {"records", "passed"}, {"keyed", "with keys"}),
                            5},
    [ROW_DAMAGE] = {"shmq.bindings._core.DamageReport", "What a reader could not hand out; all -1 and 0 when half written.",
                    FIELDS({"kind", "DAMAGE_UNIT or DAMAGE_RECORD, 0 when its writer has not finished it"},
                           {"queue", "queue index, -1 when not known"}, {"queue_offset", "in that queue"},
                           {"log_position", "where its unit says it is, -1 without one"}, {"record_bytes", "its size"}),
                    5},
    [ROW_UNIT_RUN] = {"shmq.bindings._core.UnitRun", "Records of one queue whose queue offsets follow each other.",
                      FIELDS({"topic", "name"}, {"queue_id", "number in its topic"}, {"queue_offset", "of the first"},
                             {"units", "20 bytes each"}, {"store_ms", "of each, 8 bytes, if the topic is watched; or None"}),
                      5},
    [ROW_RECORD_BATCH] = {"shmq.bindings._core.RecordBatch", "What a walk over many records of the log found.",
                          FIELDS({"position", "next log position"}, {"records", "whole ones"},
                                 {"record_bytes", "of all"}, {"store_ms", "of the last"}, {"runs", "of units"},
                                 {"watched", "(log position, bytes) of records to be looked at one by one"},
                                 {"keys", "of the index: hash 4, log position 8, big-endian"},
                                 {"stop", "why it ended there"}),
                          8},
};

bool row_types_add(PyObject *module, struct core_state *state)
{
    for (int kind = 0; kind < ROW_COUNT; kind++) {
        state->row_types[kind] = PyStructSequence_NewType(&rows[kind]);
        if (!state->row_types[kind] || PyModule_AddType(module, state->row_types[kind]) < 0) {
            return false;
        }
    }
    return true;
}

PyObject *row_new(struct core_state *state, enum row_kind kind, const int64_t *numbers, int named_at, PyObject *named)
{
    PyObject *row = PyStructSequence_New(state->row_types[kind]);
    for (int i = 0; row && i < rows[kind].n_in_sequence; i++) {
        PyObject *value = i == named_at ? Py_XNewRef(named) : PyLong_FromLongLong(numbers[i]);
        if (!value) {
            Py_CLEAR(row);
        } else {
            PyStructSequence_SetItem(row, i, value);
        }
    }
    Py_XDECREF(named_at >= 0 ? named : NULL);
    return row;
}

PyObject *row_of(struct core_state *state, enum row_kind kind, PyObject *const *values)
{
    const int count = rows[kind].n_in_sequence;
    bool whole = true;
    for (int i = 0; i < count; i++) {
        whole &= values[i] != NULL;
    }
    PyObject *row = whole ? PyStructSequence_New(state->row_types[kind]) : NULL;
    for (int i = 0; i < count; i++) {
        if (row) {
            PyStructSequence_SetItem(row, i, values[i]);
        } else {
            Py_XDECREF(values[i]);
        }
    }
    return row;
}

bool row_append(PyObject *list, PyObject *row)
{
    bool ok = row && PyList_Append(list, row) == 0;
    Py_XDECREF(row);
    return ok;
}
