/* Sender: from a request that was read to records in the log, one or a batch.
 *
 * What is stored is what the broker's own path stores. Nothing waits: when the lock is taken, or space is missing, the
 * answer is "not plain", and the path that may wait comes next. What was stored and may not be acknowledged is never left
 * to that path, which would store it again. `route` pointers stay valid for the life of the producer; what they say is
 * checked before each use.
 */
#include <string.h>

#include "face/send/py_send.h"
#include "face/send/py_sender.h"

#define RETRY_PREFIX "%RETRY%"

static uint32_t place_of(const char *name, uint32_t bytes)
{
    uint32_t hash = bytes;
    for (uint32_t i = 0; i < bytes; i++) {
        hash = hash * 31u + (uint8_t)name[i];
    }
    return (hash ^ hash >> 15) % ROUTES;
}

/* The topic's route as the producer believes it now; NULL when the slow path has to look. */
static struct route *route_of(PySender *self, const char *name, uint32_t bytes)
{
    struct route **place = &self->routes[place_of(name, bytes)], *route = *place;
    PyObject *topic;
    if (route && route->name_bytes == bytes && memcmp(route->name, name, bytes) == 0) {
        topic = Py_NewRef(route->topic);
    } else {
        topic = PyUnicode_DecodeASCII(name, bytes, NULL);
        int refused = topic ? PySet_Contains(self->refused, topic) : -1;
        if (refused != 0 || (bytes >= strlen(RETRY_PREFIX) && memcmp(name, RETRY_PREFIX, strlen(RETRY_PREFIX)) == 0)) {
            Py_XDECREF(topic);
            PyErr_Clear();
            return NULL;
        }
    }
    route = producer_route(self->producer, topic); /* may run Python code, for a topic that it does not know */
    Py_DECREF(topic);
    if (!route || !self->producer->store->open) {
        PyErr_Clear();
        return NULL;
    }
    return *place = route;
}

/* Route, queue and everything but body and properties of a request's records. */
static struct route *spec_open(PySender *self, const struct shmq_send_request *request, struct shmq_spec *spec)
{
    struct route *route = route_of(self, request->topic, request->topic_bytes);
    if (!route || (uint32_t)request->queue_id >= route->queue_count) {
        return NULL;
    }
    spec->topic = route->name;
    spec->topic_bytes = route->name_bytes;
    spec->queue_id = (uint32_t)request->queue_id;
    spec->flag = (uint32_t)request->flag;
    spec->sys_flag = (uint32_t)request->sys_flag;
    spec->reconsume_times = (uint32_t)request->reconsume_times;
    spec->born_ms = (uint64_t)request->born_ms;
    return route;
}

static int64_t tag_hash_of(const struct shmq_spec *spec)
{
    struct shmq_text_facts facts;
    shmq_text_look(spec->properties, spec->properties_bytes, &facts);
    return facts.tag_bytes ? shmq_tag_hash(facts.tag, facts.tag_bytes) : 0;
}

static enum shmq_status message_append(PySender *self, const struct shmq_frame_view *frame, const struct shmq_spec *base,
                                       uint32_t queue, struct shmq_appended *appended)
{
    struct shmq_spec spec = *base;
    spec.body = frame->body;
    spec.body_bytes = frame->body_bytes;
    uint32_t bytes = shmq_record_bytes(&spec);
    if (bytes == 0 || bytes > SHMQ_INLINE_BYTES_MAX) {
        return SHMQ_TOO_LARGE;
    }
    self->positions_count = 1;
    return shmq_append(&self->producer->store->core, queue, &spec, tag_hash_of(&spec), 0, appended);
}

/* The next record's own properties and the batch's, which `spec` holds, in the room at *text. */
static void text_join(const struct shmq_batch_record *record, struct shmq_spec *spec, char **text)
{
    size_t bytes = shmq_text_copy(*text, record->properties, record->properties_bytes);
    if (bytes > 0 && (*text)[bytes - 1] != '\x02') {
        (*text)[bytes++] = '\x02';
    }
    memcpy(*text + bytes, spec->properties, spec->properties_bytes);
    spec->properties = *text;
    spec->properties_bytes += (uint32_t)bytes;
    *text += spec->properties_bytes;
}

/* A batch that needs no memory of its own; others are not plain. */
static enum shmq_status batch_append(PySender *self, const struct shmq_frame_view *frame, const struct shmq_spec *base,
                                     uint32_t queue, struct shmq_appended *appended)
{
    struct batch_part *part = &self->part;
    struct shmq_batch_record record;
    enum shmq_status status;
    size_t at = 0, room = 0;
    for (part->count = 0; (status = shmq_batch_next(frame->body, frame->body_bytes, &at, &record)) == SHMQ_OK;) {
        room += record.properties_bytes + 1 + base->properties_bytes;
        if (++part->count > SHMQ_BATCH_MAX || room > SHMQ_BATCH_BYTES_MAX) {
            return SHMQ_TOO_LARGE;
        }
    }
    char *text = self->texts;
    part->count = part->bytes = 0;
    for (at = 0; status == SHMQ_EMPTY && shmq_batch_next(frame->body, frame->body_bytes, &at, &record) == SHMQ_OK;) {
        struct shmq_spec *spec = &part->specs[part->count];
        *spec = *base;
        spec->flag = record.flag;
        spec->body = record.body;
        spec->body_bytes = record.body_bytes;
        text_join(&record, spec, &text);
        uint32_t bytes = spec->properties_bytes > SHMQ_PROPERTIES_BYTES_MAX ? 0 : shmq_record_bytes(spec);
        if (bytes == 0 || bytes > SHMQ_BATCH_BYTES_MAX - part->bytes) {
            return SHMQ_TOO_LARGE;
        }
        self->positions[part->count] = part->bytes; /* for now, from where the first begins */
        part_add(part, bytes, tag_hash_of(spec));
    }
    self->positions_count = part->count;
    return part->count > 0 ? shmq_append_batch(&self->producer->store->core, queue, part->specs, part->tag_hashes,
                                               part->count, 0, appended)
                           : SHMQ_BAD_ARGUMENT;
}

static void queue_note(struct outbox *outbox, uint32_t queue)
{
    if (outbox->queue_count == 0 || outbox->queues[outbox->queue_count - 1] != queue) {
        outbox->queues[outbox->queue_count++] = queue;
    }
}

enum shmq_status sender_store(PySender *self, const struct shmq_frame_view *frame,
                              const struct shmq_send_request *request, struct shmq_spec *spec, struct stored *stored)
{
    uint32_t text_bytes = self->text_bytes_max;
    if (frame->body_bytes > self->body_bytes_max || request->properties_bytes > self->properties_bytes_max ||
        shmq_send_properties(request->properties, request->properties_bytes, PyBytes_AS_STRING(self->suffix),
                             (uint32_t)PyBytes_GET_SIZE(self->suffix), self->text, &text_bytes,
                             &stored->waits) != SHMQ_OK) {
        return NOT_PLAIN;
    }
    struct route *route = spec_open(self, request, spec);
    if (!route) {
        return NOT_PLAIN;
    }
    struct shmq_store *core = &self->producer->store->core;
    const uint32_t queue = route->queues[request->queue_id];
    const bool sync = shmq_queue_is_sync(core, queue);
    spec->properties = self->text;
    spec->properties_bytes = text_bytes;
    self->positions[0] = 0;
    const enum shmq_status status =
        (request->batch ? batch_append : message_append)(self, frame, spec, queue, &stored->appended);
    if (status != SHMQ_OK) {
        return status;
    }
    for (uint32_t i = 0; i < self->positions_count; i++) {
        self->positions[i] += stored->appended.log_position;
    }
    if (sync) {
        self->held_end = stored->appended.end; /* asked for once, behind the last frame: they ride on one flush */
    } else {
        shmq_wake_others(core, queue); /* the caller serves its own waiters itself */
    }
    stored->waits = stored->waits && sync;
    queue_note(&self->outboxes[sync ? WHEN_DURABLE : AT_ONCE], queue);
    return SHMQ_OK;
}
