/* Tells a file descriptor when the log is safe up to a position, or, for shipping, when it is that long: for processes
 * that wait for descriptors, not for words. */
#ifndef SHMQ_DURABLE_WATCH_H
#define SHMQ_DURABLE_WATCH_H

#include "shmq.h"

#define SHMQ_NOT_WANTED UINT64_MAX

struct shmq_durable_watch {
    struct shmq_store *store;  /* mapped writable, and longer than the watch lives */
    int descriptor;            /* an eventfd of the caller's */
    bool ships;                /* it waits for the log end, not for the safe end */
    _Atomic uint64_t wanted;   /* SHMQ_NOT_WANTED: no request */
    _Atomic uint32_t turn;     /* futex word of the thread, which waits for a request */
    _Atomic bool stopping;
    pthread_t thread;
};

/* 0, or the errno of what failed. */
int shmq_durable_watch_start(struct shmq_durable_watch *watch, struct shmq_store *store, int descriptor,
                             bool ships);
/* Tell the descriptor, once, when the log is that far, or will never be. Replaces the wish before. */
void shmq_durable_watch_want(struct shmq_durable_watch *watch, uint64_t position);
void shmq_durable_watch_stop(struct shmq_durable_watch *watch);

#endif
