/* See shapes.h. This file: the table and what the victim does. scenes.c: the stores. */
#include "shapes.h"

#include <stdlib.h>
#include <string.h>

#define TAGS "TAGS\001red\002KEYS\001k1 k2\002"
#define DEADLINE_NS UINT64_C(20000000000)

/* clang-format off */
const struct shape shapes[] = {
    {"append-0", OPERATION_APPEND, SCENE_PLAIN, 0, 1, NULL, 0},
    {"append-1", OPERATION_APPEND, SCENE_PLAIN, 1, 1, NULL, 0},
    {"append-15", OPERATION_APPEND, SCENE_PLAIN, 15, 1, NULL, 0},
    {"append-16", OPERATION_APPEND, SCENE_PLAIN, 16, 1, NULL, 0},
    {"append-17", OPERATION_APPEND, SCENE_PLAIN, 17, 1, NULL, 0},
    {"append-100", OPERATION_APPEND, SCENE_PLAIN, 100, 1, NULL, 0},
    {"append-256", OPERATION_APPEND, SCENE_PLAIN, 256, 1, NULL, 0},
    {"append-1024", OPERATION_APPEND, SCENE_PLAIN, 1024, 1, NULL, 0},
    {"append-4095", OPERATION_APPEND, SCENE_PLAIN, 4095, 1, NULL, 0},
    {"append-4096", OPERATION_APPEND, SCENE_PLAIN, 4096, 1, NULL, 0},
    {"append-4097", OPERATION_APPEND, SCENE_PLAIN, 4097, 1, NULL, 0},
    {"append-0-tags", OPERATION_APPEND, SCENE_PLAIN, 0, 1, TAGS, 0},
    {"append-17-tags", OPERATION_APPEND, SCENE_PLAIN, 17, 1, TAGS, 0},
    {"append-256-tags", OPERATION_APPEND, SCENE_PLAIN, 256, 1, TAGS, 0},
    {"append-4096-tags", OPERATION_APPEND, SCENE_PLAIN, 4096, 1, TAGS, 0},
    {"append-first", OPERATION_APPEND, SCENE_EMPTY, 100, 1, NULL, 0},
    {"append-file-start", OPERATION_APPEND, SCENE_FILE_START, 100, 1, NULL, 0},
    {"append-exact", OPERATION_APPEND, SCENE_EXACT, 100, 1, NULL, 0},
    {"append-roll", OPERATION_APPEND, SCENE_ROLL, 100, 1, NULL, 0},
    {"append-roll-blank", OPERATION_APPEND, SCENE_ROLL_BLANK, 100, 1, NULL, 0},
    {"append-roll-unmapped", OPERATION_APPEND, SCENE_ROLL_UNMAPPED, 100, 1, NULL, 0},
    {"append-frame-new", OPERATION_APPEND, SCENE_FRAME_EDGE, 20, 1, NULL, 0},
    {"append-frame-chained", OPERATION_APPEND, SCENE_FRAME_CHAIN, 20, 1, NULL, 0},
    {"append-frame-free-one", OPERATION_APPEND, SCENE_FRAME_FREE_ONE, 20, 1, NULL, 0},
    {"append-frame-free-two", OPERATION_APPEND, SCENE_FRAME_FREE_TWO, 20, 1, NULL, 0},
    {"append-frame-grow", OPERATION_APPEND, SCENE_FRAME_GROW, 20, 1, NULL, 0},
    {"release-one", OPERATION_RELEASE, SCENE_FRAME_PERSISTED, 0, 1, NULL, 0},
    {"release-three", OPERATION_RELEASE, SCENE_FRAME_PERSISTED, 0, 3, NULL, 0},
    {"release-onto-free", OPERATION_RELEASE, SCENE_FRAME_FREE_TWO, 0, 3, NULL, 0},
    {"release-chain-head", OPERATION_RELEASE, SCENE_CHAIN_PERSISTED, 0, 5, NULL, 0},
    {"release-chain-tail", OPERATION_RELEASE, SCENE_CHAIN_PERSISTED, 0, 1, NULL, 1},
    {"batch-1", OPERATION_BATCH, SCENE_PLAIN, 33, 1, NULL, 0},
    {"batch-3", OPERATION_BATCH, SCENE_PLAIN, 33, 3, TAGS, 0},
    {"batch-3-frames", OPERATION_BATCH, SCENE_FRAME_EDGE, 33, 3, NULL, 0},
    {"batch-300", OPERATION_BATCH, SCENE_FRAME_FREE_ONE, 9, 300, NULL, 0},
    {"batch-roll", OPERATION_BATCH, SCENE_ROLL, 33, 3, NULL, 0},
    {"together-1", OPERATION_TOGETHER, SCENE_PLAIN, 33, 1, NULL, 0},
    {"together-2", OPERATION_TOGETHER, SCENE_PLAIN, 33, 2, TAGS, 0},
    {"together-4", OPERATION_TOGETHER, SCENE_PLAIN, 9, 4, NULL, 0},
    {"together-roll", OPERATION_TOGETHER, SCENE_ROLL, 33, 2, NULL, 0},
    {"together-exact", OPERATION_TOGETHER, SCENE_EXACT, 100, 2, NULL, 0},
    {"together-frames", OPERATION_TOGETHER, SCENE_FRAME_EDGE, 20, 3, NULL, 0},
    {"together-frame-free", OPERATION_TOGETHER, SCENE_FRAME_FREE_ONE, 20, 2, NULL, 0},
    {"together-frame-grow", OPERATION_TOGETHER, SCENE_FRAME_GROW, 20, 2, NULL, 0},
    {"together-after-death", OPERATION_TOGETHER, SCENE_CLAIM_DEAD, 33, 2, NULL, 0},
    {"claim-open", OPERATION_CLAIM_OPEN, SCENE_PLAIN, 500, 1, NULL, 0},
    {"claim-open-roll", OPERATION_CLAIM_OPEN, SCENE_ROLL, 500, 1, NULL, 0},
    {"claim-commit", OPERATION_CLAIM_COMMIT, SCENE_PLAIN, 500, 1, TAGS, 0},
    {"claim-commit-frame", OPERATION_CLAIM_COMMIT, SCENE_FRAME_EDGE, 500, 1, NULL, 0},
    {"claim-abort", OPERATION_CLAIM_ABORT, SCENE_PLAIN, 500, 1, NULL, 0},
    {"claim-whole-roll", OPERATION_CLAIM_WHOLE, SCENE_ROLL, 500, 1, NULL, 0},
    {"claim-evicted", OPERATION_CLAIM_EVICTED, SCENE_PLAIN, 300, 1, NULL, 0},
    {"append-evicts", OPERATION_APPEND, SCENE_CLAIM_SLOW, 100, 1, NULL, 0},
    {"append-frees-orphan", OPERATION_APPEND, SCENE_CLAIM_DEAD, 100, 1, NULL, 0},
    {"append-17000", OPERATION_APPEND, SCENE_PLAIN, 17000, 1, NULL, 0},
    {"append-17000-roll", OPERATION_APPEND, SCENE_ROLL, 17000, 1, TAGS, 0},
    {"append-wake", OPERATION_WAKE, SCENE_SLEEPERS, 100, 1, NULL, 0},
    {"errand", OPERATION_ERRAND, SCENE_ERRAND, 0, 1, NULL, 0},
    {"topic-put", OPERATION_TOPIC_PUT, SCENE_PLAIN, 0, 1, NULL, 0},
    {"topic-grow", OPERATION_TOPIC_GROW, SCENE_PLAIN, 0, 1, NULL, 0},
    {"topic-delete", OPERATION_TOPIC_DELETE, SCENE_PLAIN, 0, 1, NULL, 0},
    {"group-put", OPERATION_GROUP_PUT, SCENE_PLAIN, 0, 1, NULL, 0},
    {"group-put-again", OPERATION_GROUP_PUT, SCENE_GROUP_DELETED, 0, 1, NULL, 0},
    {"group-delete", OPERATION_GROUP_DELETE, SCENE_PLAIN, 0, 1, NULL, 0},
    {"offset-put", OPERATION_OFFSET_PUT, SCENE_PLAIN, 0, 1, NULL, 0},
    {"offset-put-moved", OPERATION_OFFSET_PUT, SCENE_TOPIC_ANEW, 0, 1, NULL, 0},
    {"topic-put-again", OPERATION_TOPIC_PUT, SCENE_TOPIC_FREED, 0, 1, NULL, 0},
    {"queues-close", OPERATION_QUEUES_CLOSE, SCENE_TOPIC_DELETED, 0, 1, NULL, 0},
    {"queue-free", OPERATION_QUEUE_FREE, SCENE_TOPIC_CLOSED, 0, 1, NULL, 0},
    {"topic-free", OPERATION_TOPIC_FREE, SCENE_TOPIC_FREED, 0, 1, NULL, 0},
    {"topic-put-renamed", OPERATION_TOPIC_PUT, SCENE_TOPIC_EMPTY, 0, 1, NULL, 0},
    {"client-put", OPERATION_CLIENT_PUT, SCENE_PLAIN, 0, 1, NULL, 0},
    {"owner", OPERATION_OWNER, SCENE_PLAIN, 0, 1, NULL, 0},
    {"queue-publish", OPERATION_QUEUE_PUBLISH, SCENE_PLAIN, 0, 1, NULL, 0},
    {"confirm", OPERATION_CONFIRM, SCENE_PLAIN, 0, 1, NULL, 0},
    {"flush", OPERATION_FLUSH, SCENE_PLAIN, 0, 1, NULL, 0},
    {"lock", OPERATION_LOCK, SCENE_PLAIN, 0, 1, NULL, 0},
    {"replicate-0", OPERATION_REPLICATE, SCENE_PLAIN, 0, 1, NULL, 0},
    {"replicate-100", OPERATION_REPLICATE, SCENE_PLAIN, 100, 1, NULL, 0},
    {"replicate-256-tags", OPERATION_REPLICATE, SCENE_PLAIN, 256, 1, TAGS, 0},
    {"replicate-first", OPERATION_REPLICATE, SCENE_EMPTY, 100, 1, NULL, 0},
    {"replicate-begins", OPERATION_REPLICATE, SCENE_EMPTY, 100, 1, NULL, 1}, /* the heir appends to queue 0 */
    {"replicate-file-start", OPERATION_REPLICATE, SCENE_FILE_START, 100, 1, NULL, 0},
    {"replicate-exact", OPERATION_REPLICATE, SCENE_EXACT, 100, 1, NULL, 0},
    {"replicate-roll", OPERATION_REPLICATE, SCENE_ROLL, 100, 1, TAGS, 0},
    {"replicate-roll-blank", OPERATION_REPLICATE, SCENE_ROLL_BLANK, 100, 1, NULL, 0},
    {"replicate-frame-new", OPERATION_REPLICATE, SCENE_FRAME_EDGE, 20, 1, NULL, 0},
    {"replicate-frame-free-one", OPERATION_REPLICATE, SCENE_FRAME_FREE_ONE, 20, 1, NULL, 0},
    {"replicate-frame-grow", OPERATION_REPLICATE, SCENE_FRAME_GROW, 20, 1, NULL, 0},
    {"fence", OPERATION_FENCE, SCENE_PLAIN, 0, 1, NULL, 0},
    {"lead", OPERATION_LEAD, SCENE_PLAIN, 0, 1, NULL, 0},
    {"fence-off", OPERATION_FENCE_OFF, SCENE_PLAIN, 0, 1, NULL, 0},
    {"append-leased", OPERATION_APPEND, SCENE_LEASED, 100, 1, NULL, 0},
    {"together-leased", OPERATION_TOGETHER, SCENE_LEASED, 24, 2, NULL, 0},
    {"claim-whole-leased", OPERATION_CLAIM_WHOLE, SCENE_LEASED, 300, 1, NULL, 0},
};
/* clang-format on */
const uint32_t shape_count = sizeof shapes / sizeof shapes[0];

struct shape shape_repairer(const struct shape *shape, bool appends)
{
    struct shape repairer = {.name = "repairer", .operation = shape->operation, .scene = SCENE_PLAIN, .count = 1};
    repairer.scene = shape->operation == OPERATION_OFFSET_PUT ? shape->scene : SCENE_PLAIN;
    bool claims = (shape->operation >= OPERATION_CLAIM_OPEN && shape->operation <= OPERATION_CLAIM_EVICTED) ||
                  shape->scene == SCENE_CLAIM_DEAD || shape->scene == SCENE_CLAIM_SLOW ||
                  shape->body_bytes > SHMQ_INLINE_BYTES_MAX;
    if (shape->operation == OPERATION_REPLICATE) {
        repairer.operation = OPERATION_LOCK; /* no writer appends to a follower's log */
        return repairer;
    }
    if ((shape->operation >= OPERATION_TOPIC_PUT && shape->operation <= OPERATION_FLUSH) ||
        shape->operation == OPERATION_ERRAND || shape->operation == OPERATION_LEAD ||
        shape->operation == OPERATION_FENCE_OFF) {
        return repairer;
    }
    /* Where the victim's record would have filled the file, the repairer's rolls over at the same log end. */
    bool rolls = shape->scene == SCENE_EXACT;
    repairer.operation = claims || appends || rolls ? OPERATION_APPEND : OPERATION_LOCK;
    repairer.body_bytes = rolls ? shape->body_bytes + 1 : 24;
    return repairer;
}

/* ---- the victim ---------------------------------------------------------------------------------- */
static uint64_t deadline(void)
{
    return shmq_io_posix.monotonic_ns() + DEADLINE_NS;
}

static void open_claim(struct actor *actor)
{
    const struct shmq_spec *spec = &actor->specs[0];
    uint32_t tail = shmq_record_bytes(spec) - SHMQ_RECORD_BODY_AT - spec->body_bytes;
    ARENA_MUST(shmq_claim_open(&actor->store, actor->first.queue, spec->body_bytes, tail, deadline(), &actor->claim) ==
               SHMQ_OK);
}

static void write_body(struct actor *actor)
{
    struct shmq_spec *spec = &actor->specs[0];
    spec->body_crc_raw = shmq_crc32_copy_raw(UINT32_MAX, actor->claim.body, spec->body, spec->body_bytes);
}

/* Another process, played by a second attachment, takes the claim away and appends behind the hole. */
static void let_evict(struct actor *actor)
{
    uint8_t body[16];
    struct shmq_store other;
    struct shmq_appended out;
    struct message message = {.id = 77, .queue = 1, .body_bytes = sizeof body};
    struct shmq_spec spec = message_spec(&message, body);
    actor->store.log->claim.opened_ns = 1;
    arena_attach(actor->arena, &other, true);
    ARENA_MUST(shmq_append(&other, 1, &spec, message_tag(&message), deadline(), &out) == SHMQ_OK);
    ARENA_MUST(out.log_position > actor->claim.log_position);
    shmq_store_detach(&other);
}

/* The record as a master at the same log end has it; store times run ahead of this host's clock. Its queue begins at
 * `begins_at` if that is not 0. */
static void ship(struct actor *actor, uint64_t begins_at)
{
    const struct shmq_store *store = &actor->store;
    const uint64_t next = shmq_load_acquire(&store->queues[actor->first.queue].offset_max);
    struct shmq_spec *spec = &actor->specs[0];
    struct shmq_patch patch;
    const uint64_t end = shmq_load_acquire(&store->log->end), file_bytes = store->sizes.file_bytes;
    const uint32_t bytes = shmq_record_bytes(spec);
    const bool fits = end % file_bytes + bytes + SHMQ_RECORD_BLANK_BYTES <= file_bytes;
    actor->shipped_position = fits ? end : (end / file_bytes + 1) * file_bytes;
    actor->shipped_bytes = bytes;
    actor->shipped = malloc(bytes);
    ARENA_MUST(actor->shipped != NULL);
    shmq_record_encode(actor->shipped, spec, &patch);
    shmq_record_patch(actor->shipped, &patch, begins_at != 0 ? begins_at : next, actor->shipped_position,
                      shmq_io_posix.wall_ms() + 5000);
}

void actor_prepare(struct actor *actor, const struct shape *shape, struct scenery *scenery, struct notes *notes,
                   const struct message *first)
{
    uint32_t count = shape->count;
    size_t body_bytes = first->body_bytes;
    *actor = (struct actor){.shape = shape, .arena = &scenery->arena, .notes = notes, .first = *first};
    arena_attach(&scenery->arena, &actor->store, true);
    actor->store.processors = 1; /* no spinning: each pause would be a step without a change */
    actor->specs = calloc(count, sizeof *actor->specs);
    actor->tags = calloc(count, sizeof *actor->tags);
    actor->bodies = malloc(count * body_bytes + 1);
    ARENA_MUST(actor->specs != NULL && actor->tags != NULL && actor->bodies != NULL);
    for (uint32_t i = 0; i < count; i++) {
        struct message message = *first;
        message.id += i;
        message.queue += shape->operation == OPERATION_TOGETHER ? i : 0;
        actor->specs[i] = message_spec(&message, actor->bodies + i * body_bytes);
        actor->tags[i] = message_tag(&message);
    }
    uint64_t end = shmq_load_acquire(&actor->store.log->end), file_bytes = scenery->arena.options.file_bytes;
    ARENA_MUST(shmq_mapping_get(&actor->store, end) != NULL);
    if (shape->scene != SCENE_ROLL_UNMAPPED && (end / file_bytes + 1) < scenery->arena.options.file_count) {
        ARENA_MUST(shmq_mapping_get(&actor->store, end + file_bytes) != NULL);
    }
    if (shape->operation == OPERATION_CLAIM_COMMIT || shape->operation == OPERATION_CLAIM_ABORT ||
        shape->operation == OPERATION_CLAIM_EVICTED) {
        open_claim(actor);
        write_body(actor);
    }
    if (shape->operation == OPERATION_OWNER) {
        uint64_t client;
        ARENA_MUST(shmq_client_put(&actor->store, actor->store.self_pid, actor->store.self_start, 3, &client) == SHMQ_OK);
        actor->store.client = client;
    }
    if (shape->operation == OPERATION_REPLICATE) {
        ship(actor, scenery->ledger.begins_at[first->queue]);
    }
    if (shape->operation == OPERATION_CLAIM_EVICTED) {
        let_evict(actor);
        actor->claim.body[7] ^= 0xFF; /* the owner did not notice and went on writing */
        actor->claim.body[7] ^= 0xFF;
    }
}

static enum shmq_status act_confirm(struct actor *actor)
{
    const struct shmq_in_sync none = {.end = UINT64_MAX}, joins = {.end = 0, .count = 1},
                              whole = {.end = UINT64_MAX, .count = 1};
    enum shmq_status status = shmq_confirm(&actor->store, &none, deadline(), NULL);
    if (status == SHMQ_OK) {
        status = shmq_confirm(&actor->store, &joins, deadline(), NULL);
    }
    if (status == SHMQ_OK) {
        status = shmq_flush(&actor->store, NULL);
    }
    return status == SHMQ_OK ? shmq_confirm(&actor->store, &whole, deadline(), NULL) : status;
}

static enum shmq_status act_replicate(struct actor *actor)
{
    struct shmq_store *store = &actor->store;
    const uint64_t end = shmq_load_acquire(&store->log->end);
    struct shmq_replicated out;
    if (end != actor->shipped_position) {
        const uint32_t words[2] = {__builtin_bswap32((uint32_t)(actor->shipped_position - end)),
                                   __builtin_bswap32(SHMQ_RECORD_MAGIC_BLANK)};
        uint8_t blank[sizeof words];
        memcpy(blank, words, sizeof words);
        const struct shmq_shipped shipped = {.data = blank, .bytes = sizeof blank, .log_position = end};
        ARENA_MUST(shmq_replicate(store, &shipped, deadline(), &out) == SHMQ_OK && out.end == actor->shipped_position);
    }
    const struct shmq_shipped shipped = {
        .data = actor->shipped, .bytes = actor->shipped_bytes, .log_position = actor->shipped_position};
    enum shmq_status status = shmq_replicate(store, &shipped, deadline(), &out);
    ARENA_MUST(status != SHMQ_OK || out.records == 1);
    return status;
}

static enum shmq_status act_claim(struct actor *actor)
{
    struct shmq_appended out;
    struct shmq_spec in_place;
    enum shmq_status status;
    switch (actor->shape->operation) {
    case OPERATION_CLAIM_OPEN: {
        const struct shmq_spec *spec = &actor->specs[0];
        return shmq_claim_open(&actor->store, actor->first.queue, spec->body_bytes, 64, deadline(), &actor->claim);
    }
    case OPERATION_CLAIM_ABORT:
        shmq_claim_abort(&actor->store, &actor->claim);
        return SHMQ_OK;
    case OPERATION_CLAIM_WHOLE:
        open_claim(actor);
        write_body(actor);
        break;
    default:
        break;
    }
    in_place = actor->specs[0];
    in_place.body = NULL;
    status = shmq_claim_commit(&actor->store, &actor->claim, &in_place, actor->tags[0], deadline(), &out);
    if (status == SHMQ_EVICTED) {
        struct shmq_spec copy = actor->specs[0];
        copy.body = actor->claim.body;
        status = shmq_append(&actor->store, actor->first.queue, &copy, actor->tags[0], deadline(), &out);
        shmq_claim_abort(&actor->store, &actor->claim);
    }
    return status;
}

/* The process after a victim does the same, and does not mind a refusal: check_tables looks at what is left. */
static enum shmq_status act_owner(struct actor *actor)
{
    struct shmq_store *store = &actor->store;
    const uint64_t place = SHAPE_OFFSET_PLACE;
    struct shmq_offset *entry = &store->offsets[shmq_offset_find(store, 0, SHAPE_OFFSET_QUEUE)];
    const struct shmq_owner_lock lock = {.holder = 7, .now_ms = 1000, .life_ms = 500}, /* over, by the real clock */
                                 again = {.holder = 7, .now_ms = 1400, .life_ms = 500};
    (void)shmq_owner_take(store, entry, place);
    shmq_owner_leave(store, entry, place);
    shmq_owner_show(store, entry, place, 5);
    (void)shmq_owner_lock(store, entry, place, &lock);
    (void)shmq_owner_lock(store, entry, place, &again);
    shmq_owner_unlock(entry, place, lock.holder);
    shmq_owner_show(store, entry, place, 6);
    (void)shmq_owner_take(store, entry, place);
    shmq_owner_free(entry, place);
    return SHMQ_OK;
}

static enum shmq_status act_publish(struct actor *actor)
{
    const uint32_t queue = scene_restored_queue(&actor->store);
    const uint64_t known = shmq_load_acquire(&shmq_queue_place(&actor->store, queue)->offset_max), least = SHAPE_PUBLISHED - 4;
    for (uint64_t end = known > least ? known : least; end <= SHAPE_PUBLISHED; end++) {
        const enum shmq_status status = shmq_queue_publish(&actor->store, queue, end - 2, end - 1, end);
        if (status != SHMQ_OK) {
            return status;
        }
    }
    return SHMQ_OK;
}

static enum shmq_status act_table(struct actor *actor)
{
    uint32_t out;
    uint64_t client;
    enum shmq_status status;
    struct shmq_leaving leaving[8];
    switch (actor->shape->operation) {
    case OPERATION_QUEUES_CLOSE:
        return shmq_queues_close(&actor->store, deadline(), 8, leaving, &out);
    case OPERATION_QUEUE_FREE:
        return shmq_queue_free(&actor->store, ARENA_QUEUES);
    case OPERATION_TOPIC_FREE:
        status = shmq_topic_free(&actor->store, 1, actor->store.topics[1].version);
        return status == SHMQ_NO_TOPIC ? SHMQ_OK : status; /* the victim has freed it */
    case OPERATION_TOPIC_PUT:
        return shmq_topic_put(&actor->store, "beta", 4, 4, 6, 0, 0, &out);
    case OPERATION_TOPIC_GROW:
        return shmq_topic_put(&actor->store, ARENA_TOPIC, 7, 6, 6, 0, 0, &out);
    case OPERATION_TOPIC_DELETE:
        return shmq_topic_delete(&actor->store, ARENA_TOPIC);
    case OPERATION_GROUP_PUT:
        return shmq_group_put(&actor->store, "workers", &out);
    case OPERATION_GROUP_DELETE:
        status = shmq_group_delete(&actor->store, "workers");
        return status == SHMQ_NO_TOPIC ? SHMQ_OK : status; /* a repairer comes to what the victim has deleted */
    case OPERATION_OFFSET_PUT:
        return shmq_offset_put(&actor->store, 0, scene_offset_queue(&actor->store, actor->shape), &out);
    case OPERATION_OWNER:
        return act_owner(actor);
    case OPERATION_QUEUE_PUBLISH:
        return act_publish(actor);
    default:
        return shmq_client_put(&actor->store, actor->store.self_pid, actor->store.self_start, 3, &client);
    }
}

static enum shmq_status act_together(struct actor *actor)
{
    struct shmq_entry entries[SHMQ_TOGETHER_MAX];
    struct shmq_appended out[SHMQ_TOGETHER_MAX];
    for (uint32_t i = 0; i < actor->shape->count; i++) {
        entries[i] = (struct shmq_entry){
            .queue = actor->first.queue + i, .tag_hash = actor->tags[i], .spec = actor->specs[i]};
    }
    return shmq_append_together(&actor->store, entries, actor->shape->count, UINT64_MAX, deadline(), out);
}

static enum shmq_status act(struct actor *actor)
{
    struct shmq_appended out;
    uint32_t queue = actor->first.queue;
    enum shmq_status status;
    switch (actor->shape->operation) {
    case OPERATION_APPEND:
        return shmq_append(&actor->store, queue, &actor->specs[0], actor->tags[0], deadline(), &out);
    case OPERATION_WAKE:
        status = shmq_append(&actor->store, queue, &actor->specs[0], actor->tags[0], deadline(), &out);
        shmq_wake(&actor->store, queue);
        return status;
    case OPERATION_ERRAND:
        shmq_errand_run(&actor->store, 0);
        return SHMQ_OK;
    case OPERATION_BATCH:
        return shmq_append_batch(&actor->store, queue, actor->specs, actor->tags, actor->shape->count, deadline(), &out);
    case OPERATION_TOGETHER:
        return act_together(actor);
    case OPERATION_REPLICATE:
        return act_replicate(actor);
    case OPERATION_FENCE:
        return shmq_fence_raise(&actor->store, 1, deadline());
    case OPERATION_LEAD:
        return shmq_lead(&actor->store, SHAPE_EPOCH, deadline());
    case OPERATION_FENCE_OFF:
        return shmq_fence_off(&actor->store, "other:10911", deadline());
    case OPERATION_RELEASE:
        return shmq_frames_release(&actor->store, queue, 0, actor->shape->count, deadline()) > 0 ? SHMQ_OK : SHMQ_EMPTY;
    case OPERATION_CONFIRM:
        return act_confirm(actor);
    case OPERATION_FLUSH:
        return shmq_flush(&actor->store, NULL);
    case OPERATION_LOCK:
        status = shmq_lock(&actor->store, deadline());
        if (status == SHMQ_OK) {
            shmq_unlock(&actor->store);
        }
        return status;
    case OPERATION_TOPIC_PUT:
    case OPERATION_TOPIC_GROW:
    case OPERATION_TOPIC_DELETE:
    case OPERATION_GROUP_PUT:
    case OPERATION_GROUP_DELETE:
    case OPERATION_OFFSET_PUT:
    case OPERATION_QUEUES_CLOSE:
    case OPERATION_QUEUE_FREE:
    case OPERATION_TOPIC_FREE:
    case OPERATION_CLIENT_PUT:
    case OPERATION_OWNER:
    case OPERATION_QUEUE_PUBLISH:
        return act_table(actor);
    default:
        return act_claim(actor);
    }
}

void actor_act(struct actor *actor)
{
    atomic_store(&actor->notes->phase, PHASE_RUNNING);
    enum shmq_status status = act(actor);
    atomic_store(&actor->notes->status, (uint32_t)status);
    atomic_store(&actor->notes->acked, status == SHMQ_OK);
    atomic_store(&actor->notes->phase, PHASE_DONE);
}
