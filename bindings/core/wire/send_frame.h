/* Frames that ask for plain messages to be stored, read without Python and answered by a template.
 *
 * Plain is what every client sends all day: SEND_MESSAGE (10), SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320) in
 * both header encodings. This path does to the letter what the broker's Python path would do, and leaves everything else
 * to it: SHMQ_EMPTY is "not mine", never an error. A test sends the same frames both ways and compares answers and
 * records to the byte. Python alone took 50 to 150 us a message, this takes 1.3 us with 64 in flight.
 *
 *   mine       flag 0 or 2 · no remark · known fields, each once · numbers in plain decimal · no transaction, no delay ·
 *              a batch only under its own code · ASCII but in the properties, which are UTF-8
 *   not mine   everything else, be it legal or not
 */
#ifndef SHMQ_SEND_FRAME_H
#define SHMQ_SEND_FRAME_H

#include "shmq.h"

#define SHMQ_FRAME_PREFIX_BYTES 8u
#define SHMQ_FRAME_HEADER_MAX (64u << 10)

enum shmq_codec { SHMQ_CODEC_JSON = 0, SHMQ_CODEC_BINARY = 1 };

struct shmq_frame_view { enum shmq_codec codec; const uint8_t *header; uint32_t header_bytes;
                         const uint8_t *body; uint32_t body_bytes; uint32_t frame_bytes; };
/* The frame at data. SHMQ_OK; SHMQ_EMPTY: not whole, or one the caller has to judge. */
enum shmq_status shmq_frame_split(const uint8_t *data, size_t bytes, uint32_t frame_bytes_max,
                                  struct shmq_frame_view *out);

struct shmq_send_request {
    int32_t opaque;
    bool oneway;
    bool batch;             /* the body is one, see batch.c */
    const char *topic;      uint32_t topic_bytes;
    const char *properties; uint32_t properties_bytes; /* decoded, in the caller's scratch */
    int32_t queue_id, sys_flag, flag, reconsume_times;
    int64_t born_ms;
};
/* Read a header; `scratch` has header_bytes of room for the properties. */
enum shmq_status shmq_send_read(const struct shmq_frame_view *frame, char *scratch, struct shmq_send_request *out);

/* The properties as they are stored: without WAIT, CLUSTER and a record CRC, each ended, `suffix` behind them. SHMQ_EMPTY
 * when one asks for more than storing, or the text is not one that reads back as it was written. *bytes: room, then what
 * was written. *waits: whether the answer waits for the disk where that is asked for; WAIT=false says no. */
enum shmq_status shmq_send_properties(const char *text, uint32_t text_bytes, const char *suffix, uint32_t suffix_bytes,
                                      char *out, uint32_t *bytes, bool *waits);

/* ---- the answer ---- */
enum shmq_piece_kind {         /* what stands between the literal parts of an answer */
    SHMQ_PIECE_LITERAL,
    SHMQ_PIECE_OPAQUE,         /* decimal */
    SHMQ_PIECE_MESSAGE_ID,
    SHMQ_PIECE_QUEUE_ID,
    SHMQ_PIECE_QUEUE_OFFSET,
    SHMQ_PIECE_OPAQUE_32,      /* four bytes */
    SHMQ_PIECE_LENGTH_32,      /* four bytes: how many follow in the header */
    SHMQ_PIECE_SIZED = 16,     /* added to a text: its length goes before it, in four bytes */
};
struct shmq_piece { uint32_t kind; uint32_t bytes; const uint8_t *data; };
struct shmq_answer {
    int32_t opaque;
    uint32_t queue_id;
    uint64_t queue_offset;
    const uint64_t *log_positions; /* one message id for each */
    uint32_t count;
    const char *address;       /* upper-case hexadecimal, the first half of the message id */
    uint32_t address_bytes;
};
#define SHMQ_ANSWER_FIELD_MAX 64u /* bytes one piece that is no literal can take */
/* What the message ids take beyond that. */
static inline size_t shmq_answer_ids_bytes(const struct shmq_answer *answer)
{
    return (size_t)answer->count * (answer->address_bytes + 17u);
}
/* Write a number as text, 20 bytes at most; returns where it ends. */
uint8_t *shmq_decimal_write(uint8_t *out, uint64_t value);
/* Write the frame of an answer; returns its bytes, 0 when there is not enough room. */
size_t shmq_answer_write(uint8_t *out, size_t room, enum shmq_codec codec, const struct shmq_piece *pieces,
                         uint32_t count, const struct shmq_answer *answer);

#endif
