/* What a client sends: property text of unknown origin, and the body of SEND_BATCH_MESSAGE.
 *
 * Property text is stored as it came, but for record CRCs in it. A batch is records back to back, big-endian:
 *
 *    0 totalSize 4     12 flag 4          20 body            20 + n propertiesLength 2
 *    4 magic 4         16 bodyLength n 4                     22 + n properties
 *    8 bodyCRC 4
 *
 * (1) Every length is judged against what is left before it is used; totalSize must be what the parts add up to.
 * (2) magic and bodyCRC are not used: clients write zeros there.
 * (3) A later pair of a property text replaces an earlier one, as in RocketMQ's map.
 */
#include "core/bytes.h"
#include "shmq.h"

#define TAG_KEY "TAGS\x01"
#define KEY_BYTES(key) (sizeof(key) - 1)

enum { FLAG_AT = 12, BODY_BYTES_AT = 16, BODY_AT = 20, LEAST_BYTES = BODY_AT + 2 };

static bool starts_with(const char *text, size_t bytes, const char *key, size_t key_bytes)
{
    return bytes >= key_bytes && memcmp(text, key, key_bytes) == 0;
}

void shmq_text_look(const char *text, size_t bytes, struct shmq_text_facts *out)
{
    const char *end = text + bytes;
    *out = (struct shmq_text_facts){.tag = NULL};
    while (text < end) {
        const char *stop = memchr(text, SHMQ_VALUE_END, (size_t)(end - text));
        const size_t pair_bytes = (size_t)((stop == NULL ? end : stop) - text);
        if (starts_with(text, pair_bytes, TAG_KEY, KEY_BYTES(TAG_KEY))) {
            out->tag = text + KEY_BYTES(TAG_KEY);
            out->tag_bytes = pair_bytes - KEY_BYTES(TAG_KEY);
        } else if (starts_with(text, pair_bytes, SHMQ_CRC_KEY, KEY_BYTES(SHMQ_CRC_KEY))) {
            out->crc_bytes += pair_bytes + (stop != NULL);
        }
        text += pair_bytes + 1;
    }
}

size_t shmq_text_copy(char *out, const char *text, size_t bytes)
{
    const char *end = text + bytes;
    char *to = out;
    while (text < end) {
        const char *stop = memchr(text, SHMQ_VALUE_END, (size_t)(end - text));
        const size_t whole = (size_t)((stop == NULL ? end : stop + 1) - text);
        if (!starts_with(text, whole, SHMQ_CRC_KEY, KEY_BYTES(SHMQ_CRC_KEY))) {
            memcpy(to, text, whole);
            to += whole;
        }
        text += whole;
    }
    return (size_t)(to - out);
}

enum shmq_status shmq_batch_next(const uint8_t *data, size_t bytes, size_t *at, struct shmq_batch_record *out)
{
    const uint8_t *record = data + *at;
    const size_t left = bytes - *at;
    if (left == 0) {
        return SHMQ_EMPTY;
    }
    if (left < LEAST_BYTES) {
        out->reason = "the bytes left are fewer than the shortest message has";
        return SHMQ_BAD_ARGUMENT;
    }
    const uint32_t total = shmq_load32(record), body_bytes = shmq_load32(record + BODY_BYTES_AT);
    if (total > left || total < LEAST_BYTES) {
        out->reason = "its total size is not between the shortest message and the bytes left";
        return SHMQ_BAD_ARGUMENT;
    }
    if (body_bytes > total - LEAST_BYTES) {
        out->reason = "its body is longer than the message";
        return SHMQ_BAD_ARGUMENT;
    }
    const uint32_t properties_bytes = shmq_load16(record + BODY_AT + body_bytes);
    if (properties_bytes != total - LEAST_BYTES - body_bytes) {
        out->reason = "its lengths do not add up to its total size";
        return SHMQ_BAD_ARGUMENT;
    }
    out->flag = shmq_load32(record + FLAG_AT);
    out->body = record + BODY_AT;
    out->body_bytes = body_bytes;
    out->properties = (const char *)record + LEAST_BYTES + body_bytes;
    out->properties_bytes = properties_bytes;
    *at += total;
    return SHMQ_OK;
}
