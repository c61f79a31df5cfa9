/* Match: whether the bytes at some place of the log are the record they should be. All that hand out records ask here.
 *
 *   the record decodes; its size and position are those of the unit           else the unit, or the record's head, is bad
 *   its queue offset, queue id and topic are those of the queue it is read in
 *   its CRC holds                                                             else the record is bad, the unit is right
 *
 * Everything is judged on the mapped bytes themselves, without a copy in between: a program that writes to the
 * log file afterwards changes what its readers already see.
 */
#include <errno.h>
#include <string.h>

#include "core/read/reader.h"

void shmq_queue_name(const struct shmq_store *store, uint32_t queue, struct shmq_queue_name *out)
{
    const struct shmq_queue *entry = shmq_queue_place(store, queue);
    const struct shmq_topic *topic = shmq_topic_place(store, entry->topic);
    *out = (struct shmq_queue_name){.queue_id = entry->queue_id, .topic_bytes = UINT32_MAX};
    if (topic != NULL && topic->name_bytes <= SHMQ_TOPIC_BYTES_MAX) {
        out->topic = topic->name;
        out->topic_bytes = topic->name_bytes;
    }
}

enum shmq_match shmq_unit_match(const struct shmq_mapping *mapping, const struct shmq_unit *unit, uint64_t queue_offset,
                                const struct shmq_queue_name *name, bool verify, struct shmq_view *view)
{
    const uint64_t at = unit->log_position - mapping->base;
    if (at >= mapping->bytes || unit->record_bytes > mapping->bytes - at) {
        return SHMQ_MISMATCH;
    }
    const uint8_t *data = mapping->data + at;
    if (shmq_record_decode(data, unit->record_bytes, view) != SHMQ_OK || view->record_bytes != unit->record_bytes ||
        view->log_position != unit->log_position || view->queue_offset != queue_offset ||
        view->queue_id != name->queue_id || view->topic_bytes != name->topic_bytes ||
        memcmp(view->topic, name->topic, view->topic_bytes) != 0) {
        return SHMQ_MISMATCH;
    }
    return !verify || shmq_record_check(data, view) == SHMQ_OK ? SHMQ_MATCH : SHMQ_DAMAGED;
}

enum shmq_status shmq_record_at(struct shmq_store *store, uint64_t log_position, uint64_t record_bytes, uint64_t end,
                                bool verify, struct shmq_mapping **mapping, struct shmq_view *view)
{
    if (log_position < atomic_load_explicit(&store->log->begin, memory_order_acquire) || log_position >= end) {
        return SHMQ_GONE;
    }
    *mapping = shmq_mapping_get(store, log_position);
    if (*mapping == NULL) {
        return errno == ENOENT ? SHMQ_GONE : SHMQ_SYSTEM;
    }
    const uint64_t at = log_position - (*mapping)->base, left = (*mapping)->bytes - at;
    const uint8_t *data = (*mapping)->data + at;
    if (shmq_record_decode(data, end - log_position < left ? end - log_position : left, view) != SHMQ_OK ||
        view->log_position != log_position || (record_bytes != 0 && view->record_bytes != record_bytes)) {
        return SHMQ_EMPTY;
    }
    if (!verify || shmq_record_check(data, view) == SHMQ_OK) {
        return SHMQ_OK;
    }
    const struct shmq_unit place = {.log_position = log_position, .record_bytes = view->record_bytes};
    if (!shmq_unit_is_durable(store, &place)) {
        return SHMQ_EMPTY; /* not there yet */
    }
    (void)shmq_damage_report(store, SHMQ_DAMAGE_RECORD, SHMQ_NONE, view->queue_offset, &place);
    return SHMQ_CORRUPT;
}
