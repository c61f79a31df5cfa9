/* Records, as the folders of the core use them beyond shmq.h. */
#ifndef SHMQ_RECORD_H
#define SHMQ_RECORD_H

#include "shmq.h"

/* crc.c: shmq_tag_hash of a text whose beginning has the hash given */
uint32_t shmq_java_hash(uint32_t hash, const char *utf8, size_t bytes);
/* Bytes of a record that may be appended, 0 when it is too large: a record may have a longer topic than a topic table. */
static inline uint32_t shmq_append_bytes(const struct shmq_spec *spec)
{
    return spec->topic_bytes > SHMQ_TOPIC_BYTES_MAX ? 0 : shmq_record_bytes(spec);
}
/* record.c: shmq_record_encode where the size is known already, and when a message without a time of its own was born */
void shmq_record_lay(uint8_t *out, const struct shmq_spec *spec, uint32_t record_bytes, uint64_t now_ms,
                     struct shmq_patch *patch);

#endif
