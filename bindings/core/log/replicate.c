/* Replication: records that a master has appended, put into this host's log at the same position.
 *
 *   judge the record: lengths, its own position, both CRCs · find its queue                       no lock
 *   lock · still a follower, still at this log end · the queue's next offset is the record's · a frame for the unit
 *   commit (commit.c) · unlock · wake                                                              as an append
 *
 * A record is taken whole or not at all, so the log end is a record border or the beginning of a file, and what is killed
 * anywhere in it is finished, or never happened, by the same repair. Nothing is patched: the bytes are the master's, and so
 * are queue offset and store time. A BLANK rolls this log over as it did the master's; the padding behind it is not looked
 * at.
 *
 * Only a follower's log takes records this way (state.c), and no other way: so its end stands still, a place is judged
 * before the lock is taken, and there is no claim.
 *
 * The first record of a queue may be one of a topic that was deleted and made again on the master, whose queues here are
 * those of the deleted one. The bytes do not say so: the caller is asked (SHMQ_NO_QUEUE), unless it has judged that.
 *
 * A hole (claim.c) may have been shipped while its evicted owner still wrote into the body, which is never read. Where its
 * CRCs do not hold it is laid out again as it was before, with a body of zeros.
 */
#include <string.h>

#include "core/bytes.h"
#include "core/log/log.h"
#include "core/read/scan.h"

#define SCHEDULE_TOPIC "SCHEDULE_TOPIC_XXXX" /* its units say due times */
#define RECORD_BYTES_MIN 91u                 /* nothing in it, two IPv4 hosts */
#define DELAY_MS_UNKNOWN 1000u               /* of a level that does not exist here, as the rebuild takes it */
#define QUEUE_OFFSET_MAX ((uint64_t)UINT32_MAX * SHMQ_FRAME_UNITS)

struct arrival {               /* one record on its way into the log */
    struct shmq_view view;
    const uint8_t *data;
    uint32_t queue;            /* SHMQ_NONE: it belongs to none */
    int64_t code;              /* of its unit */
    bool is_open_hole;         /* its body may change yet */
};

static bool text_is(const char *text, uint32_t bytes, const char *wanted)
{
    return bytes == strlen(wanted) && memcmp(text, wanted, bytes) == 0;
}

/* Lock held: whether the log is a follower's, of no younger master than this one, and ends where the next record belongs. */
static enum shmq_status follower_check(struct shmq_store *store, uint64_t position, uint64_t epoch)
{
    struct shmq_log *log = store->log;
    if (atomic_load_explicit(&log->retired, memory_order_relaxed) != 0) {
        return SHMQ_RETIRED;
    }
    if (atomic_load_explicit(&log->read_only, memory_order_relaxed) != SHMQ_READ_ONLY_FOLLOWER) {
        return SHMQ_READ_ONLY;
    }
    const uint64_t known = atomic_load_explicit(&log->epoch, memory_order_relaxed);
    if (epoch < known) {
        return SHMQ_FENCED;
    }
    if (atomic_load_explicit(&log->end, memory_order_relaxed) != position) {
        return SHMQ_BAD_ARGUMENT;
    }
    if (epoch != known) {
        atomic_store_explicit(&log->epoch, epoch, memory_order_release);
    }
    return SHMQ_OK;
}

/* Not a byte may be stored before the file is there; the keeper is asked to make the next one. */
static enum shmq_status place_get(struct shmq_store *store, uint64_t position, uint64_t until,
                                  struct shmq_mapping **mapping)
{
    if (shmq_load_acquire(&store->log->allocated_end) < until) {
        shmq_ring_keeper(store);
        return SHMQ_LOG_FULL;
    }
    *mapping = shmq_mapping_get_writable(store, position);
    return *mapping != NULL ? SHMQ_OK : SHMQ_SYSTEM;
}

/* ---- the end of a file ------------------------------------------------------------------------------- */
static enum shmq_status roll(struct shmq_store *store, uint64_t position, uint64_t file_end, uint64_t epoch,
                             uint64_t deadline_ns)
{
    struct shmq_mapping *mapping;
    enum shmq_status status = place_get(store, position, file_end + 1, &mapping); /* the next file, too */
    if (status == SHMQ_OK) {
        status = shmq_lock(store, deadline_ns);
    }
    if (status != SHMQ_OK) {
        return status;
    }
    status = follower_check(store, position, epoch);
    if (status == SHMQ_OK) {
        shmq_roll(store, mapping, position);
    }
    shmq_unlock(store);
    return status;
}

/* ---- one record -------------------------------------------------------------------------------------- */
/* What evict (claim.c) made of the claim. False: nothing it could have made has these lengths. */
static bool hole_spec(const struct shmq_view *view, struct shmq_spec *hole)
{
    if (!text_is(view->topic, view->topic_bytes, SHMQ_HOLE_TOPIC) || view->sys_flag != SHMQ_SYS_FLAG_ROLLBACK ||
        view->body_bytes > SHMQ_BODY_BYTES_MAX || view->store_host_bytes != sizeof hole->store_host) {
        return false;
    }
    *hole = (struct shmq_spec){.topic = view->topic, .topic_bytes = view->topic_bytes, .sys_flag = view->sys_flag,
                               .body_bytes = view->body_bytes, .born_ms = view->born_ms};
    hole->body_crc_raw = shmq_crc32_multiply(UINT32_MAX, shmq_crc32_shift(hole->body_bytes));
    memcpy(hole->store_host, view->store_host, sizeof hole->store_host);
    memcpy(hole->born_host, view->born_host, view->born_host_bytes);
    return shmq_record_bytes(hole) == view->record_bytes;
}

/* The bytes that the commit copies; NULL: a hole whose body may change yet was laid in its place already. */
static const uint8_t *record_bytes(uint8_t *record, const struct arrival *arrival)
{
    struct shmq_spec hole;
    struct shmq_patch patch;
    if (!arrival->is_open_hole || !hole_spec(&arrival->view, &hole)) {
        return arrival->data;
    }
    shmq_record_encode(record, &hole, &patch);
    memset(record + shmq_record_body_at(&hole), 0, hole.body_bytes);
    shmq_record_patch(record, &patch, 0, arrival->view.log_position, arrival->view.store_ms);
    return NULL;
}

static bool has_properties(const struct shmq_view *view)
{
    static const char key[] = SHMQ_CRC_KEY;
    return view->properties_bytes > SHMQ_RECORD_CRC_BYTES ||
           (view->properties_bytes != 0 && memcmp(view->properties, key, sizeof key - 1) != 0);
}

/* Lock held. The record's offset is the queue's next one; a queue that never had any begins where the record says, for the
 * master may not have its first ones any more. */
static enum shmq_status queue_ready(struct shmq_store *store, const struct arrival *arrival)
{
    struct shmq_queue *queue = shmq_queue_entry(store, arrival->queue);
    const uint64_t offset = arrival->view.queue_offset;
    if (queue == NULL) {
        return SHMQ_NO_QUEUE;
    }
    const uint64_t next = atomic_load_explicit(&queue->offset_max, memory_order_relaxed);
    if (offset >= QUEUE_OFFSET_MAX || (offset != next && next != 0)) {
        return SHMQ_CORRUPT;
    }
    if (offset != next) { /* killed in between, it is done again: offset_max is the last */
        atomic_store_explicit(&queue->offset_min, offset, memory_order_release);
        atomic_store_explicit(&queue->persisted, offset, memory_order_release);
        SHMQ_POINT("replicate.begins");
        atomic_store_explicit(&queue->offset_max, offset, memory_order_release);
    }
    return shmq_frames_ensure(store, arrival->queue, offset, 1);
}

/* Lock held, frame there, and the log ends where the record begins. */
static enum shmq_status record_commit(struct shmq_store *store, struct shmq_mapping *mapping,
                                      const struct arrival *arrival)
{
    const struct shmq_view *view = &arrival->view;
    const struct shmq_commit commit = {.queues = &arrival->queue,
                                       .queue_count = 1,
                                       .count = 1,
                                       .units = arrival->queue != SHMQ_NONE,
                                       .bytes = view->record_bytes,
                                       .data = record_bytes(mapping->data + (view->log_position - mapping->base), arrival),
                                       .described = has_properties(view),
                                       .tag_hashes = &arrival->code,
                                       .now_ms = view->store_ms,
                                       .mapping = mapping,
                                       .log_position = view->log_position};
    struct shmq_appended out;
    return shmq_commit(store, &commit, &out);
}

static enum shmq_status record_apply(struct shmq_store *store, const struct arrival *arrival, uint64_t epoch,
                                     uint64_t deadline_ns)
{
    const uint64_t position = arrival->view.log_position;
    struct shmq_mapping *mapping;
    bool grown = false;
    enum shmq_status status = place_get(store, position, position + 1, &mapping);
    if (status != SHMQ_OK) {
        return status;
    }
    shmq_mapping_populate(store, mapping, position, arrival->view.record_bytes);
    for (;;) {
        status = shmq_lock(store, deadline_ns);
        if (status != SHMQ_OK) {
            return status;
        }
        status = follower_check(store, position, epoch);
        if (status == SHMQ_OK && arrival->queue != SHMQ_NONE) {
            status = queue_ready(store, arrival);
        }
        const bool lacks_frame = status == SHMQ_UNITS_FULL;
        if (status == SHMQ_OK) {
            status = record_commit(store, mapping, arrival);
        }
        shmq_unlock(store);
        if (!lacks_frame) {
            return status;
        }
        status = shmq_frames_grow_once(store, status, &grown);
        if (status != SHMQ_OK) {
            return status;
        }
    }
}

/* ---- the walk ---------------------------------------------------------------------------------------- */
static enum shmq_status refuse(struct shmq_replicated *out, const char *reason)
{
    out->reason = reason;
    return SHMQ_CORRUPT;
}

/* The record that begins here. SHMQ_EMPTY: more has to come first. */
static enum shmq_status arrival_judge(const struct shmq_shipped *shipped, size_t at, uint64_t room,
                                      struct arrival *arrival, struct shmq_replicated *out)
{
    const uint32_t bytes = shmq_load32(shipped->data + at);
    if (bytes < RECORD_BYTES_MIN || bytes > SHMQ_RECORD_BYTES_MAX) {
        return refuse(out, "the size of a record is out of bounds");
    }
    if ((uint64_t)bytes + SHMQ_RECORD_BLANK_BYTES > room) {
        return refuse(out, "a record reaches over the end of its file");
    }
    if (shipped->bytes - at < bytes) {
        return SHMQ_EMPTY;
    }
    const uint64_t position = shipped->log_position + at;
    const struct shmq_log_part part = {shipped->data + at, position, bytes};
    const enum shmq_found found = shmq_record_find(&part, position, position + bytes, &arrival->view);
    struct shmq_spec hole;
    arrival->is_open_hole = found == SHMQ_FOUND_BAD_CRC && hole_spec(&arrival->view, &hole);
    if (found != SHMQ_FOUND_RECORD && !arrival->is_open_hole) {
        return refuse(out, shmq_found_reason(found) != NULL ? shmq_found_reason(found) : "there is no record");
    }
    const struct shmq_view *view = &arrival->view;
    if (view->properties_bytes != 0 && view->properties[view->properties_bytes - 1] == 0) {
        return refuse(out, shmq_found_reason(SHMQ_FOUND_BAD_END));
    }
    arrival->data = shipped->data + at;
    return SHMQ_OK;
}

static enum shmq_status queue_find(const struct shmq_store *store, const struct shmq_shipped *shipped,
                                   struct arrival *arrival, struct shmq_replicated *out)
{
    const struct shmq_view *view = &arrival->view;
    arrival->queue = SHMQ_NONE;
    arrival->code = 0;
    if (!shmq_is_queued(view->sys_flag)) {
        return SHMQ_OK;
    }
    out->topic = view->topic;
    out->topic_bytes = view->topic_bytes;
    out->queue_id = view->queue_id;
    const uint32_t topic = shmq_topic_find(store, view->topic, view->topic_bytes);
    if (topic == SHMQ_NONE) {
        return SHMQ_NO_TOPIC;
    }
    arrival->queue = shmq_topic_queue(store, topic, view->queue_id);
    const bool is_judged = shipped->judged_end == 0 || view->log_position < shipped->judged_end;
    if (arrival->queue == SHMQ_NONE || (view->queue_offset == 0 && !is_judged)) {
        return SHMQ_NO_QUEUE;
    }
    if (text_is(view->topic, view->topic_bytes, SCHEDULE_TOPIC)) {
        const uint64_t delay = view->queue_id < shipped->delay_count ? shipped->delays_ms[view->queue_id] : DELAY_MS_UNKNOWN;
        arrival->code = (int64_t)(view->store_ms + delay);
        return SHMQ_OK;
    }
    size_t bytes;
    const char *tag = shmq_property_find(view->properties, view->properties_bytes, "TAGS", 4, &bytes);
    arrival->code = tag != NULL && bytes != 0 ? shmq_tag_hash(tag, bytes) : 0;
    return SHMQ_OK;
}

enum shmq_status shmq_replicate(struct shmq_store *store, const struct shmq_shipped *shipped, uint64_t deadline_ns,
                                struct shmq_replicated *out)
{
    const uint64_t file_bytes = store->sizes.file_bytes;
    *out = (struct shmq_replicated){.end = shipped->log_position};
    size_t at = 0;
    while (shipped->bytes - at >= SHMQ_RECORD_BLANK_BYTES) {
        const uint64_t position = shipped->log_position + at, room = file_bytes - position % file_bytes;
        struct arrival arrival;
        if (shmq_load32(shipped->data + at + sizeof(uint32_t)) == SHMQ_RECORD_MAGIC_BLANK) {
            if (shmq_load32(shipped->data + at) != room) {
                return refuse(out, "the size of a BLANK is not what is left of its file");
            }
            const enum shmq_status status = roll(store, position, position + room, shipped->epoch, deadline_ns);
            out->end += status == SHMQ_OK ? room : 0;
            return status;
        }
        enum shmq_status status = arrival_judge(shipped, at, room, &arrival, out);
        if (status == SHMQ_EMPTY) {
            return SHMQ_OK;
        }
        status = status != SHMQ_OK ? status : queue_find(store, shipped, &arrival, out);
        status = status != SHMQ_OK ? status : record_apply(store, &arrival, shipped->epoch, deadline_ns);
        if (status != SHMQ_OK) {
            if (status == SHMQ_CORRUPT && out->reason == NULL) {
                out->reason = "the record's queue offset is not the next one of its queue";
            }
            return status;
        }
        out->topic = NULL;
        if (arrival.queue != SHMQ_NONE) {
            shmq_wake(store, arrival.queue);
        }
        at += arrival.view.record_bytes;
        out->end += arrival.view.record_bytes;
        out->records++;
    }
    return SHMQ_OK;
}
