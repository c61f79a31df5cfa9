/* What the core opens and maps, as its other folders use it. */
#ifndef SHMQ_FILES_H
#define SHMQ_FILES_H

#include "core/internal.h"

/* descriptors.c: what is opened between hold and release lies above 2, as what shmq_open returns does */
void shmq_standard_hold(void);
void shmq_standard_release(void);
int shmq_open_at(int directory, const char *path, int flags); /* O_CLOEXEC */

/* mapping.c: the file that holds a position, to store into it; the first one only if this process has mapped it so */
struct shmq_mapping *shmq_mapping_cached_writable(const struct shmq_store *store, uint64_t log_position);
struct shmq_mapping *shmq_mapping_get_writable(struct shmq_store *store, uint64_t log_position);
void shmq_mapping_populate(const struct shmq_store *store, struct shmq_mapping *mapping, uint64_t log_position,
                           uint64_t bytes);

#endif
