/* The commit (commit.h) for any number of records and queues, and the commit point alone for a hole (claim.c). */
#include "core/log/commit.h"

bool shmq_end_move(struct shmq_store *store, const struct shmq_mapping *mapping, uint64_t end)
{
    return shmq_end_move_inline(store->log, mapping, end);
}

enum shmq_status shmq_commit(struct shmq_store *store, const struct shmq_commit *commit, struct shmq_appended *out)
{
    return shmq_commit_inline(store, *commit, commit->queue_count, commit->count, commit->patches == NULL, out);
}
