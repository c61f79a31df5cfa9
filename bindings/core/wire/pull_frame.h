/* Pulls that repeat: the header of one is that of the last but for three numbers, so what the last one was found to ask
 * for holds for the next.
 *
 *   {"code":11,"extFields":{…,"queueOffset":"64","commitOffset":"32",…},…,"opaque":7,…}      a header
 *   {"code":11,"extFields":{…,"queueOffset":"\2","commitOffset":"\3",…},…,"opaque":\1,…}     its key
 *
 * The broker's Python path reads a header once and says what requests of this key get (pull_path.py); nothing here knows
 * what a field means. (1) A number is taken only in the one form that needs no interpretation, as decimal digits. (2) Two
 * headers of one key differ in these digits and in nothing else. (3) No byte behind the frame is read.
 */
#ifndef SHMQ_PULL_FRAME_H
#define SHMQ_PULL_FRAME_H

#include "core/wire/send_frame.h"

#define SHMQ_PULL_HEADER_MAX 1024u

enum shmq_pull_number { SHMQ_PULL_OPAQUE, SHMQ_PULL_OFFSET, SHMQ_PULL_COMMIT, SHMQ_PULL_NUMBERS };
struct shmq_pull_key {
    uint8_t text[SHMQ_PULL_HEADER_MAX];
    uint32_t bytes, hash;
    uint64_t numbers[SHMQ_PULL_NUMBERS];
};
/* Read the key of a header; SHMQ_EMPTY: it has none, and is for the caller to judge. */
enum shmq_status shmq_pull_key_read(const uint8_t *header, uint32_t bytes, struct shmq_pull_key *out);

/* ---- the answer ---- */
enum shmq_pull_piece {         /* what stands between the literal parts of the header of an answer, all in decimal */
    SHMQ_PULL_PIECE_LITERAL,
    SHMQ_PULL_PIECE_OPAQUE,
    SHMQ_PULL_PIECE_NEXT,
    SHMQ_PULL_PIECE_MIN,
    SHMQ_PULL_PIECE_MAX,
    SHMQ_PULL_PIECES,
};
/* The most that an answer takes in front of its body. */
size_t shmq_pull_answer_room(const struct shmq_piece *pieces, uint32_t count);
/* Write prefix and header of an answer, `numbers` by kind of piece; returns their bytes. The body comes behind, and
 * shmq_pull_answer_end then says how long it is. */
size_t shmq_pull_answer_write(uint8_t *out, const struct shmq_piece *pieces, uint32_t count,
                              const uint64_t numbers[SHMQ_PULL_PIECES]);
void shmq_pull_answer_end(uint8_t *out, size_t head_bytes, size_t body_bytes);

#endif
