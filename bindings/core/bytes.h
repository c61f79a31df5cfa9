/* Big-endian numbers at any address: the one byte order of records, units, index files and the wire.
 *
 * memcpy keeps an unaligned access defined; compilers make one load or store and a byte swap of it. A store returns the
 * address behind it, so that fields that follow each other are written as they are read.
 */
#ifndef SHMQ_BYTES_H
#define SHMQ_BYTES_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t shmq_load16(const void *at)
{
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return be16toh(value);
}

static inline uint32_t shmq_load32(const void *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return be32toh(value);
}

static inline uint64_t shmq_load64(const void *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return be64toh(value);
}

static inline uint8_t *shmq_store16(uint8_t *at, uint16_t value)
{
    value = htobe16(value);
    memcpy(at, &value, sizeof value);
    return at + sizeof value;
}

static inline uint8_t *shmq_store32(uint8_t *at, uint32_t value)
{
    value = htobe32(value);
    memcpy(at, &value, sizeof value);
    return at + sizeof value;
}

static inline uint8_t *shmq_store64(uint8_t *at, uint64_t value)
{
    value = htobe64(value);
    memcpy(at, &value, sizeof value);
    return at + sizeof value;
}

#endif
