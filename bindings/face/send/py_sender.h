/* The object behind Sender, for py_sender.c, which serves frames, and py_sender_store.c, which stores their messages. */
#ifndef SHMQ_PY_SENDER_H
#define SHMQ_PY_SENDER_H

#include "face/send/py_send.h"
#include "core/wire/send_frame.h"

#define ROUTES 1024u /* places, by a hash of the topic's name; a topic that finds its place taken takes it */
#define PIECES_MAX 32
#define QUEUES_MAX 1024 /* and frames of one call */

/* What one call has to say: frames of answers, and the queues that got messages. */
struct outbox {
    uint8_t *bytes;
    size_t used, room;
    uint32_t queues[QUEUES_MAX];
    uint32_t queue_count, frame_count;
};
enum { AT_ONCE, WHEN_DURABLE, OUTBOXES };

typedef struct {
    PyObject_HEAD
    struct core_state *state;
    PyProducer *producer;
    PyObject *refused;         /* frozenset of topics that are not plain */
    PyObject *suffix;          /* bytes behind the properties of each message */
    PyObject *literals;        /* what the pieces point into */
    struct shmq_piece pieces[2][PIECES_MAX]; /* by codec */
    uint32_t piece_count[2];
    uint32_t body_bytes_max, properties_bytes_max;
    struct route *routes[ROUTES];
    char *scratch, *text;      /* properties as they came, and as they are stored */
    uint32_t text_bytes_max;
    struct outbox outboxes[OUTBOXES];
    uint64_t held_end;         /* the log position that lets the answers WHEN_DURABLE go; 0: there are none */
    uint64_t positions[SHMQ_BATCH_MAX]; /* of the messages of one frame */
    uint32_t positions_count;
    struct batch_part part;    /* of at most SHMQ_BATCH_MAX records */
    char *texts;               /* the properties of a batch, SHMQ_BATCH_BYTES_MAX */
} PySender;

struct stored { struct shmq_appended appended; bool waits; }; /* `waits`: its answer is for WHEN_DURABLE */

#define NOT_PLAIN SHMQ_WOULD_BLOCK

/* Store what a request brings, in the queue it names. SHMQ_DOUBTED: it is stored, the log was fenced meanwhile, and nothing
 * else is filled in. Any other status but SHMQ_OK: it is not plain or something went wrong, and nothing has happened.
 * `spec` has the hosts filled in; positions and queues of the sender say what was stored, and where. */
enum shmq_status sender_store(PySender *self, const struct shmq_frame_view *frame,
                              const struct shmq_send_request *request, struct shmq_spec *spec, struct stored *stored);

#endif
