/* What the files of the segments share: lookups, names, and the table lock. */
#ifndef SHMQ_SEGMENTS_H
#define SHMQ_SEGMENTS_H

#include "core/log/log.h"

/* lookup.c: entries below `count` only; SHMQ_NONE when there is none */
bool shmq_lookups_open(struct shmq_store *store);
void shmq_lookups_close(struct shmq_store *store);
bool shmq_lookup_is_group(const struct shmq_store *store, uint32_t index, const char *name); /* lives, and has that name */
uint32_t shmq_lookup_group(const struct shmq_store *store, const char *name, bool live_only, uint32_t count);
uint32_t shmq_lookup_offset(const struct shmq_store *store, uint64_t place, uint32_t count);
/* An entry below the count has another name now. */
void shmq_lookup_renamed(const struct shmq_store *store, uint32_t group);
/* names.c; all but the first under the table lock. The first: the entry that has that name, without the lock a guess. */
uint32_t shmq_name_entry(const struct shmq_store *store, const char *name, size_t bytes);
void shmq_name_link(struct shmq_store *store, uint32_t index);
void shmq_name_unlink(struct shmq_store *store, uint32_t index);
bool shmq_topic_is_named(const struct shmq_store *store, uint32_t index);
void shmq_names_repair(struct shmq_store *store);
/* queue.c: table lock held. Let `wanted` queues of a topic live in free entries, from `queue_id` on; fills extents from
 * the first on. SHMQ_TABLE_FULL: they do not suffice, and nothing is taken. */
enum shmq_status shmq_queues_take(struct shmq_store *store, uint32_t topic, uint32_t queue_id, uint32_t wanted,
                                  struct shmq_extent *extents, uint32_t extent_count);
void shmq_queues_repair(struct shmq_store *store);
/* offset.c: table lock held. Leave nothing of a group's progress, and no owner that could still write to it. */
void shmq_offsets_forget(struct shmq_store *store, uint32_t group);
enum shmq_status shmq_table_enter(struct shmq_store *store); /* take the table lock; repairs after a dead holder */
enum shmq_status shmq_table_leave(struct shmq_store *store, enum shmq_status status); /* returns `status` */
void shmq_table_exit(struct shmq_store *store); /* as shmq_table_leave, no reader has to look again */

#endif
