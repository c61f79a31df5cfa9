/* The stores of shapes.h, built with the core itself, and what must hold for the tables afterwards. */
#include "shapes.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define FILE_BYTES (128u << 10)
#define EDGE SHMQ_FRAME_UNITS
#define CHAINED 4u
#define VICTIM_ID 100u
#define BEGINS_AT (SHMQ_FRAME_UNITS + 96u) /* of a queue whose master has its first messages no more */
#define SLEEPERS 10u
#define SLEEPER_ELSEWHERE 4u

static uint64_t deadline(void)
{
    return shmq_io_posix.monotonic_ns() + UINT64_C(5000000000);
}

static uint32_t record_bytes(uint32_t body_bytes, const char *properties)
{
    uint8_t *body = malloc(body_bytes + 1);
    struct message message = {.id = 1, .body_bytes = body_bytes, .properties = properties};
    struct shmq_spec spec = message_spec(&message, body);
    uint32_t bytes = shmq_record_bytes(&spec);
    free(body);
    return bytes;
}

static void put(struct arena *arena, uint32_t queue, uint32_t body_bytes, uint32_t count)
{
    static uint8_t bodies[EDGE * 64];
    static uint8_t large[FILE_BYTES];
    struct shmq_spec specs[EDGE];
    int64_t tags[EDGE];
    struct shmq_appended out;
    struct message message = {.id = 1, .queue = queue, .body_bytes = body_bytes};
    if (count == 1) {
        struct shmq_spec spec = message_spec(&message, large);
        ARENA_MUST(shmq_append(&arena->store, queue, &spec, message_tag(&message), deadline(), &out) == SHMQ_OK);
        return;
    }
    ARENA_MUST(count <= EDGE && body_bytes <= 64);
    for (uint32_t i = 0; i < count; i++, message.id++) {
        specs[i] = message_spec(&message, bodies + i * body_bytes);
        tags[i] = message_tag(&message);
    }
    ARENA_MUST(shmq_append_batch(&arena->store, queue, specs, tags, count, deadline(), &out) == SHMQ_OK);
}

/* Append to queue 1 until exactly `room` bytes of the current file are left. */
static void fill_up(struct arena *arena, uint64_t room)
{
    for (;;) {
        uint64_t left = arena->options.file_bytes -
                        shmq_load_acquire(&arena->store.log->end) % arena->options.file_bytes;
        ARENA_MUST(left >= room);
        uint64_t gap = left - room;
        if (gap == 0) {
            return;
        }
        uint32_t overhead = record_bytes(0, NULL);
        ARENA_MUST(gap >= overhead);
        put(arena, 1, gap > 12000 ? 8000 : (uint32_t)gap - overhead, 1);
    }
}

static void full_frames(struct arena *arena, uint32_t queue, uint32_t frames)
{
    uint64_t have = shmq_load_acquire(&arena->store.queues[queue].offset_max) % EDGE;
    if (have != 0) {
        put(arena, queue, 0, EDGE - (uint32_t)have);
    }
    for (uint32_t i = have != 0; i < frames; i++) {
        put(arena, queue, 0, EDGE);
    }
}

/* Frames (queue 1, ordinal 0) and (queue 0, ordinal CHAINED) share a hash bucket. */
static void build_chain(struct scenery *scenery, const struct shape *shape)
{
    struct arena *arena = &scenery->arena;
    struct shmq_store *store = &arena->store;
    uint32_t mask = store->frame_bucket_count - 1;
    uint32_t bucket = shmq_hash64(shmq_frame_tag(0, CHAINED)) & mask;
    ARENA_MUST(bucket == (shmq_hash64(shmq_frame_tag(1, 0)) & mask));
    full_frames(arena, 1, 1);
    full_frames(arena, 0, CHAINED);
    if (shape->scene == SCENE_CHAIN_PERSISTED) {
        full_frames(arena, 0, 1);
        atomic_store(&store->queues[0].persisted, (CHAINED + 1) * EDGE);
        atomic_store(&store->queues[1].persisted, EDGE);
        scenery->ledger.kept_from[shape->queue] = shape->count * EDGE;
    }
    uint32_t head = atomic_load(&store->frame_buckets[bucket]);
    ARENA_MUST(head != 0 && (atomic_load(&store->frames[head - 1].next) != 0) == (shape->scene == SCENE_CHAIN_PERSISTED));
}

static pid_t claim_by_child(struct arena *arena, bool lives)
{
    pid_t child = fork();
    ARENA_MUST(child >= 0);
    if (child == 0) {
        struct shmq_store store;
        struct shmq_claim_handle claim;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        arena_attach(arena, &store, true);
        ARENA_MUST(shmq_claim_open(&store, 2, 3000, 64, deadline(), &claim) == SHMQ_OK);
        memset(claim.body, 0x5A, 3000);
        if (lives) {
            raise(SIGSTOP);
        }
        _exit(0);
    }
    int status;
    ARENA_MUST(waitpid(child, &status, WUNTRACED) == child);
    ARENA_MUST(lives ? WIFSTOPPED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0);
    if (lives) {
        arena->store.log->claim.opened_ns = 1;
    }
    return lives ? child : 0;
}

/* A group that has read queue 1 up to offset 5. */
static void put_group(struct shmq_store *store, const char *name)
{
    uint32_t group, slot;
    ARENA_MUST(shmq_group_put(store, name, &group) == SHMQ_OK && shmq_offset_put(store, group, SHAPE_OFFSET_QUEUE, &slot) == SHMQ_OK);
    atomic_store(&store->offsets[slot].committed, 6);
}

#define RESTORED "restored"
uint32_t scene_restored_queue(const struct shmq_store *store)
{
    return shmq_topic_queue(store, shmq_topic_find(store, RESTORED, strlen(RESTORED)), 0);
}

/* What OPERATION_OWNER and OPERATION_QUEUE_PUBLISH begin with. */
static void put_parts(struct shmq_store *store, enum operation operation)
{
    uint32_t topic;
    if (operation == OPERATION_OWNER) {
        struct shmq_offset *entry = &store->offsets[shmq_offset_find(store, 0, SHAPE_OFFSET_QUEUE)];
        atomic_store(&entry->owner, UINT64_C(99) << 32 | 3u); /* of a life of client slot 2 that is over */
        atomic_store(&entry->taken, 4);
    } else if (operation == OPERATION_QUEUE_PUBLISH) {
        ARENA_MUST(shmq_topic_put(store, RESTORED, 1, 1, 6, 0, 0, &topic) == SHMQ_OK);
    }
}

static void put_to_sleep(struct arena *arena)
{
    struct shmq_store *store = &arena->store;
    uint64_t client;
    for (uint32_t i = 0; i <= 64; i++) {
        ARENA_MUST(shmq_client_put(store, store->self_pid, store->self_start, 1, &client) == SHMQ_OK);
        ARENA_MUST(shmq_client_slot(client) == i);
    }
    for (uint32_t i = 0; i <= 64; i += 64) {
        atomic_store(&store->clients[i].watched, 1);
        atomic_store(&store->clients[i].state, SHMQ_CLIENT_ASLEEP);
    }
    atomic_store(&store->waiters[0], 1);
}

#define GONE_QUEUES 3u
uint32_t scene_offset_queue(const struct shmq_store *store, const struct shape *shape)
{
    return shape->scene == SCENE_TOPIC_ANEW ? shmq_topic_queue(store, shmq_topic_find(store, "beta", 4), 0) : 2;
}

static void free_queues(struct shmq_store *store)
{
    struct shmq_leaving leaving[24];
    uint32_t count;
    ARENA_MUST(shmq_queues_close(store, deadline(), 24, leaving, &count) == SHMQ_OK);
    for (uint32_t i = 0; i < count; i++) {
        ARENA_MUST(shmq_queue_free(store, leaving[i].queue) == SHMQ_OK);
    }
}

static void build_deleted(struct arena *arena, enum scene scene)
{
    struct shmq_store *store = &arena->store;
    struct shmq_leaving leaving[GONE_QUEUES];
    uint32_t topic, count, group, slot;
    ARENA_MUST(shmq_topic_put(store, "gone", GONE_QUEUES, GONE_QUEUES, 6, 0, 0, &topic) == SHMQ_OK);
    uint32_t first = shmq_topic_queue(store, topic, 0);
    if (scene == SCENE_TOPIC_ANEW) {
        ARENA_MUST(shmq_group_put(store, "workers", &group) == SHMQ_OK && group == 0);
        ARENA_MUST(shmq_offset_put(store, group, first, &slot) == SHMQ_OK);
        ARENA_MUST(shmq_offset_commit(&store->offsets[slot], shmq_offset_place(group, first), 6));
        atomic_store(&store->offsets[slot].owner, UINT64_C(0x500000001));
    }
    ARENA_MUST(shmq_topic_delete(store, "gone") == SHMQ_OK);
    if (scene == SCENE_TOPIC_CLOSED) {
        ARENA_MUST(shmq_queues_close(store, deadline(), GONE_QUEUES, leaving, &count) == SHMQ_OK && count == GONE_QUEUES);
    } else if (scene != SCENE_TOPIC_DELETED) {
        free_queues(store);
    }
    if (scene == SCENE_TOPIC_EMPTY) {
        char name[] = "passes0";
        for (uint32_t i = 2; i < store->sizes.topic_max; i++, name[6]++) {
            ARENA_MUST(shmq_topic_put(store, name, 0, 0, 6, 0, 0, &topic) == SHMQ_OK && topic == i);
        }
        for (name[6] = '0'; shmq_topic_find(store, name, 7) != SHMQ_NONE; name[6]++) { /* room for what comes after */
            topic = shmq_topic_find(store, name, 7);
            ARENA_MUST(shmq_topic_delete(store, name) == SHMQ_OK);
            ARENA_MUST(name[6] == '4' || shmq_topic_free(store, topic, store->topics[topic].version) == SHMQ_OK);
        }
        ARENA_MUST(shmq_topic_free(store, 1, store->topics[1].version) == SHMQ_OK);
    }
    if (scene == SCENE_TOPIC_ANEW) {
        ARENA_MUST(shmq_topic_put(store, "beta", 4, 4, 6, 0, 0, &topic) == SHMQ_OK);
        ARENA_MUST(shmq_queue_place(store, first) == shmq_queue_place(store, shmq_topic_queue(store, topic, 0)));
    }
}

static void give_errand(struct arena *arena)
{
    struct shmq_store *store = &arena->store;
    uint64_t client;
    for (uint32_t i = 0; i < SLEEPERS; i++) {
        ARENA_MUST(shmq_client_put(store, store->self_pid, store->self_start, 1, &client) == SHMQ_OK);
        ARENA_MUST(shmq_client_slot(client) == i);
        atomic_store(&store->clients[i].watched, i == SLEEPER_ELSEWHERE ? 2 : 1);
        atomic_store(&store->clients[i].state, i == 0 ? SHMQ_CLIENT_AWAKE : SHMQ_CLIENT_ASLEEP);
    }
    atomic_store(&store->clients[0].errand_hands, UINT64_MAX);
    atomic_store(&store->clients[0].errand, 1u << 16 | (SLEEPERS - 1));
}

static void build_frames(struct scenery *scenery, const struct shape *shape)
{
    struct arena *arena = &scenery->arena;
    struct shmq_store *store = &arena->store;
    if (shape->scene == SCENE_FRAME_EDGE || shape->scene == SCENE_FRAME_GROW) {
        full_frames(arena, 0, 1);
        if (shape->scene == SCENE_FRAME_GROW) {
            atomic_store(&store->log->frame_ready, store->log->frame_bump);
        }
        return;
    }
    uint32_t free_frames = shape->scene == SCENE_FRAME_PERSISTED ? 0 : shape->scene == SCENE_FRAME_FREE_ONE ? 1 : 2;
    full_frames(arena, 0, 3);
    full_frames(arena, 1, free_frames == 0 ? 1 : free_frames);
    atomic_store(&store->queues[0].persisted, 3 * EDGE);
    atomic_store(&store->queues[1].persisted, 3 * EDGE);
    ARENA_MUST(shmq_frames_release(store, 1, 0, free_frames, deadline()) == free_frames);
    scenery->ledger.kept_from[1] = free_frames * EDGE;
    scenery->ledger.kept_from[0] = shape->operation == OPERATION_RELEASE ? shape->count * EDGE : 0;
}

static void build(struct scenery *scenery, const struct shape *shape)
{
    struct arena *arena = &scenery->arena;
    uint32_t bytes = record_bytes(shape->body_bytes, shape->properties) * shape->count;
    for (uint32_t i = 0; i < 4 && shape->scene != SCENE_EMPTY; i++) {
        put(arena, i % 3, 50 + i, 1);
    }
    switch (shape->scene) {
    case SCENE_EXACT:
        fill_up(arena, bytes + SHMQ_RECORD_BLANK_BYTES);
        break;
    case SCENE_ROLL:
    case SCENE_ROLL_UNMAPPED:
        fill_up(arena, bytes + SHMQ_RECORD_BLANK_BYTES - 1);
        break;
    case SCENE_ROLL_BLANK:
        fill_up(arena, SHMQ_RECORD_BLANK_BYTES);
        break;
    case SCENE_FILE_START:
        fill_up(arena, 700);
        put(arena, 1, 1000, 1);
        atomic_store(&arena->store.log->end, FILE_BYTES); /* as if a victim had died right after rolling over … */
        atomic_store(&arena->store.queues[1].offset_max, shmq_load_acquire(&arena->store.queues[1].offset_max) - 1);
        break;
    case SCENE_FRAME_CHAIN:
    case SCENE_CHAIN_PERSISTED:
        build_chain(scenery, shape);
        break;
    case SCENE_CLAIM_DEAD:
    case SCENE_CLAIM_SLOW:
        scenery->ledger.holes_allowed = shape->scene == SCENE_CLAIM_SLOW;
        scenery->slow_owner = claim_by_child(arena, shape->scene == SCENE_CLAIM_SLOW);
        break;
    case SCENE_GROUP_DELETED:
        put_group(&arena->store, "former");
        for (char name[] = "passes1"; atomic_load(&arena->store.readers->group_count) < arena->store.sizes.group_max; name[6]++) {
            put_group(&arena->store, name);
        }
        ARENA_MUST(shmq_group_delete(&arena->store, "former") == SHMQ_OK);
        break;
    case SCENE_SLEEPERS:
        put_to_sleep(arena);
        break;
    case SCENE_TOPIC_DELETED:
    case SCENE_TOPIC_CLOSED:
    case SCENE_TOPIC_FREED:
    case SCENE_TOPIC_EMPTY:
    case SCENE_TOPIC_ANEW:
        build_deleted(arena, shape->scene);
        break;
    case SCENE_ERRAND:
        give_errand(arena);
        break;
    case SCENE_LEASED:
        ARENA_MUST(shmq_lease(&arena->store, shmq_io_posix.boottime_ns() + UINT64_C(86400000000000)) == SHMQ_OK);
        break;
    case SCENE_PLAIN:
    case SCENE_EMPTY:
        break;
    default:
        build_frames(scenery, shape);
        break;
    }
}

void scenery_open(struct scenery *scenery, const struct shape *shape)
{
    const struct arena_options options = {.file_bytes = FILE_BYTES,
                                          .file_count = 3,
                                          .frame_max = 16,
                                          .frame_ready = 16,
                                          .confirmed = shape->operation == OPERATION_CONFIRM};
    memset(scenery, 0, sizeof *scenery);
    arena_create(&scenery->arena, &options);
    struct message first = {
        .id = VICTIM_ID, .queue = shape->queue, .body_bytes = shape->body_bytes, .properties = shape->properties};
    build(scenery, shape);
    if ((shape->operation == OPERATION_OFFSET_PUT && shape->scene == SCENE_PLAIN) ||
        shape->operation == OPERATION_GROUP_DELETE || shape->operation == OPERATION_OWNER) {
        put_group(&scenery->arena.store, "workers");
    }
    put_parts(&scenery->arena.store, shape->operation);
    bool stores = shape->operation <= OPERATION_REPLICATE || shape->operation == OPERATION_WAKE;
    bool drops = shape->operation == OPERATION_CLAIM_OPEN || shape->operation == OPERATION_CLAIM_ABORT;
    scenery->ledger.parties[0] = (struct party){.first = first,
                                                .count = stores && !drops ? shape->count : 0,
                                                .across = shape->operation == OPERATION_TOGETHER};
    scenery->ledger.party_count = 1;
    if (shape->operation == OPERATION_LEAD) {
        ARENA_MUST(shmq_follow(&scenery->arena.store, "master:10911", deadline()) == SHMQ_OK);
    }
    if (shape->operation == OPERATION_REPLICATE) {
        ARENA_MUST(shmq_follow(&scenery->arena.store, "master:10911", deadline()) == SHMQ_OK);
        scenery->ledger.replicated_id = VICTIM_ID;
        scenery->ledger.begins_at[shape->queue] = shape->queue == 0 ? 0 : BEGINS_AT;
    }
    if (shape->scene != SCENE_CLAIM_SLOW) {
        arena_litter(&scenery->arena);
    }
}

void scenery_close(struct scenery *scenery)
{
    if (scenery->slow_owner > 0) {
        int status;
        kill(scenery->slow_owner, SIGKILL);
        waitpid(scenery->slow_owner, &status, 0);
    }
    arena_destroy(&scenery->arena);
}

/* ---- tables ------------------------------------------------------------------------------------- */
static void check_topic(struct arena *arena, const char *name, uint32_t queues, uint8_t used[64],
                        struct verdict *verdict)
{
    struct shmq_store *store = &arena->store;
    uint32_t topic = shmq_topic_find(store, name, strlen(name));
    if (topic == SHMQ_NONE) {
        verdict_add(verdict, 6, "topic %s is not found", name);
        return;
    }
    for (uint32_t id = 0; id < queues; id++) {
        uint32_t queue = shmq_topic_queue(store, topic, id), index = queue & store->queue_mask;
        const struct shmq_queue *entry = shmq_queue_entry(store, queue);
        if (index >= atomic_load(&store->log->queue_count) || index >= 64 || used[index]++ != 0 || entry == NULL ||
            entry->topic != topic || entry->queue_id != id) {
            verdict_add(verdict, 8, "queue %u of topic %s is wrong", id, name);
        }
    }
}

/* What is given back can be had again: all of it. `named` queues have a topic. */
static void check_entries(struct arena *arena, uint32_t named, struct verdict *verdict)
{
    struct shmq_store *store = &arena->store;
    const uint32_t left = store->sizes.queue_max - named;
    uint8_t used[64] = {0};
    uint32_t index;
    free_queues(store);
    if (atomic_load(&store->log->queue_used) != named) {
        verdict_add(verdict, 8, "%u entries are used, %u have a topic", atomic_load(&store->log->queue_used), named);
    }
    if (shmq_topic_put(store, "rest", left, left, 6, 0, 0, &index) != SHMQ_OK) {
        verdict_add(verdict, 8, "%u of %u entries cannot be had", left, store->sizes.queue_max);
        return;
    }
    check_topic(arena, "rest", left, used, verdict);
    check_topic(arena, ARENA_TOPIC, ARENA_QUEUES, used, verdict);
}

static void check_topics(struct arena *arena, const struct shape *shape, bool acked, struct verdict *verdict)
{
    struct shmq_store *store = &arena->store;
    uint8_t used[64] = {0};
    uint32_t index, alpha = ARENA_QUEUES;
    bool found = shmq_topic_find(store, ARENA_TOPIC, strlen(ARENA_TOPIC)) != SHMQ_NONE;
    if (shape->operation == OPERATION_TOPIC_DELETE ? acked && found : !found) {
        verdict_add(verdict, 6, "topic %s is %s", ARENA_TOPIC, found ? "still there" : "gone");
    }
    if (shape->operation == OPERATION_TOPIC_PUT && acked) {
        check_topic(arena, "beta", 4, used, verdict);
    }
    if (shape->operation == OPERATION_TOPIC_GROW && acked) {
        check_topic(arena, ARENA_TOPIC, 7, used, verdict);
    }
    memset(used, 0, sizeof used);
    alpha = shape->operation == OPERATION_TOPIC_GROW ? 7 : alpha;
    if (shmq_topic_put(store, "beta", 4, 4, 6, 0, 0, &index) != SHMQ_OK ||
        shmq_topic_put(store, "gamma", 2, 2, 6, 0, 0, &index) != SHMQ_OK ||
        shmq_topic_put(store, ARENA_TOPIC, alpha, alpha, 6, 0, 0, &index) != SHMQ_OK) {
        verdict_add(verdict, 10, "a topic cannot be put after the death");
    }
    uint32_t count = atomic_load(&store->log->topic_count);
    for (uint32_t i = 0; i < count && i < store->sizes.topic_max; i++) {
        for (uint32_t k = 0; k < i; k++) {
            if (shmq_topic_is_named(store, i) && shmq_topic_is_named(store, k) && strcmp(store->topics[i].name, store->topics[k].name) == 0) {
                verdict_add(verdict, 8, "topic %s has two entries", store->topics[i].name);
            }
        }
    }
    check_topic(arena, ARENA_TOPIC, alpha, used, verdict);
    check_topic(arena, "beta", 4, used, verdict);
    check_topic(arena, "gamma", 2, used, verdict);
    check_entries(arena, alpha + 4 + 2, verdict);
}

/* Every entry can be had again and is found by its name, and no bucket leads to an entry that has none. */
static void check_freed(struct shmq_store *store, struct verdict *verdict)
{
    uint32_t topic, links = 0, free = 0;
    (void)shmq_topic_free(store, 1, store->topics[1].version);
    for (uint32_t i = 0; i < store->topic_bucket_count; i++) {
        links += store->topic_buckets[i] != 0 && store->topic_buckets[i] <= store->sizes.topic_max;
        free += store->topic_buckets[i] == 0;
    }
    if (links != 1 || free != store->topic_bucket_count - 1) {
        verdict_add(verdict, 8, "%u buckets lead to the one topic there is, %u are empty", links, free);
    }
    char name[] = "passes0";
    for (uint32_t i = 1; i < store->sizes.topic_max; i++, name[6]++) {
        if (shmq_topic_put(store, name, 1, 1, 6, 0, 0, &topic) != SHMQ_OK || shmq_topic_find(store, name, 7) != topic) {
            verdict_add(verdict, 10, "topic %s, of %u, cannot be put", name, store->sizes.topic_max);
        }
    }
    if (shmq_topic_find(store, "gone", 4) != SHMQ_NONE || shmq_topic_queue(store, 1, 0) != SHMQ_NONE) {
        verdict_add(verdict, 8, "a topic whose entry another has is found");
    }
}

static void check_groups(struct arena *arena, const struct shape *shape, bool acked, struct verdict *verdict)
{
    struct shmq_store *store = &arena->store;
    uint32_t group = shmq_group_find(store, "workers"), again, slot, same, other;
    bool deletes = shape->operation == OPERATION_GROUP_DELETE;
    if (acked && (group == SHMQ_NONE) != deletes) {
        verdict_add(verdict, 6, "group is %s", deletes ? "still there" : "not found");
    }
    if (shmq_group_put(store, "workers", &again) != SHMQ_OK || (group != SHMQ_NONE && again != group) ||
        shmq_offset_put(store, again, 2, &slot) != SHMQ_OK || shmq_offset_put(store, again, 2, &same) != SHMQ_OK ||
        shmq_offset_put(store, again, 3, &other) != SHMQ_OK || slot != same || other == slot ||
        atomic_load(&store->offsets[slot].place) != shmq_offset_place(again, 2)) {
        verdict_add(verdict, 10, "groups and offsets cannot be put after the death");
        return;
    }
    /* What a deleted group had read is not what the next one has. */
    if (shmq_offset_put(store, again, 1, &slot) == SHMQ_OK && atomic_load(&store->offsets[slot].committed) != 0 &&
        (shape->scene == SCENE_GROUP_DELETED || (deletes && acked))) {
        verdict_add(verdict, 8, "a new group starts where a deleted one was");
    }
    if (shape->scene == SCENE_GROUP_DELETED &&
        (again == 0 || shmq_offset_find(store, 0, SHAPE_OFFSET_QUEUE) != SHMQ_NONE)) {
        verdict_add(verdict, 8, "a group whose slot another has has it still");
    }
}

/* A slot that was a deleted queue's is the next queue's, whole: at the start, and without an owner. */
static void check_moved(struct arena *arena, const struct shape *shape, struct verdict *verdict)
{
    struct shmq_store *store = &arena->store;
    uint32_t queue = scene_offset_queue(store, shape), slot;
    ARENA_MUST(shmq_group_put(store, "others", &slot) == SHMQ_OK); /* a slot that is there takes no lock, nor repairs it */
    if (shmq_offset_put(store, 0, queue, &slot) != SHMQ_OK || slot != 0 || shmq_offset_find(store, 0, queue) != 0) {
        verdict_add(verdict, 10, "an offset cannot be put after the death");
    } else if (atomic_load(&store->offsets[slot].committed) != 0 || atomic_load(&store->offsets[slot].owner) != 0) {
        verdict_add(verdict, 8, "a new queue begins where a deleted one was");
    }
    if (atomic_load(&store->readers->offset_count) != 1) {
        verdict_add(verdict, 8, "a group has two slots for one entry");
    }
}

/* What the bridge does when a process is gone, and then each process that was woken: none may be left asleep. */
static void check_sleepers(struct shmq_store *store, bool was_writer, struct verdict *verdict)
{
    uint32_t high = atomic_load(&store->readers->client_high);
    if (was_writer) { /* the sleepers have no errand to rely on, only their own next look: their hands go up again */
        atomic_fetch_or(&store->waiters[0], 1);
        shmq_wake(store, 0);
    } else {
        shmq_client_drop(store, 0);
    }
    for (uint32_t round = 0; round < high; round++) {
        for (uint32_t slot = 0; slot < high; slot++) {
            shmq_errand_run(store, slot);
        }
    }
    for (uint32_t slot = 0; slot < high; slot++) {
        const struct shmq_client *client = &store->clients[slot];
        const bool asleep = atomic_load(&client->state) == SHMQ_CLIENT_ASLEEP;
        if (asleep != (!was_writer && slot == SLEEPER_ELSEWHERE) || atomic_load(&client->errand) != 0) {
            verdict_add(verdict, 10, "slot %u is %s, errand %llx", slot, asleep ? "asleep" : "awake",
                        (unsigned long long)atomic_load(&client->errand));
        }
    }
}

/* `at_least`: what was confirmed when the victim ended in order. */
static void check_confirmed(struct shmq_store *store, uint64_t at_least, struct verdict *verdict)
{
    const struct shmq_in_sync whole = {.end = UINT64_MAX, .count = 1};
    uint64_t end = shmq_load_acquire(&store->log->end), confirmed = shmq_load_acquire(&store->log->confirmed_end);
    if (confirmed > shmq_load_acquire(&store->log->durable_end) || confirmed < at_least) {
        verdict_add(verdict, 6, "confirmed end %llu", (unsigned long long)confirmed);
    }
    if (shmq_flush(store, NULL) != SHMQ_OK || shmq_confirm(store, &whole, deadline(), &confirmed) != SHMQ_OK ||
        confirmed != end) {
        verdict_add(verdict, 10, "nothing is confirmed after the death");
    }
}

/* Done, or killed before: in each state no record is taken while the word says that none is, and the next call does it. */
void check_role(struct shmq_store *store, const struct shape *shape, bool acked, struct verdict *verdict)
{
    if (shape->operation != OPERATION_LEAD && shape->operation != OPERATION_FENCE_OFF) {
        return;
    }
    const struct shmq_log *log = store->log;
    const bool leads = shape->operation == OPERATION_LEAD;
    const uint32_t from = leads ? SHMQ_READ_ONLY_FOLLOWER : SHMQ_WRITABLE, to = leads ? SHMQ_WRITABLE : SHMQ_READ_ONLY_FENCED;
    uint32_t word = atomic_load(&log->read_only);
    if ((word != from && word != to) || (acked && word != to)) {
        verdict_add(verdict, 9, "read-only for the reason %u", word);
    }
    const bool open = leads && word == SHMQ_WRITABLE;
    if (open && (atomic_load(&log->epoch) != SHAPE_EPOCH || atomic_load(&log->fence) != atomic_load(&log->end))) {
        verdict_add(verdict, 8, "records are taken in epoch %llu", (unsigned long long)atomic_load(&log->epoch));
    }
    const enum shmq_status status =
        leads ? shmq_lead(store, SHAPE_EPOCH, deadline()) : shmq_fence_off(store, "other:10911", deadline());
    word = atomic_load(&log->read_only);
    if (status != SHMQ_OK || word != to || atomic_load(&log->standing) != to) {
        verdict_add(verdict, 10, "after the next call: status %d, read-only for the reason %u", status, word);
    }
}

/* The next member gets the queue exactly where no living one has it. */
static void check_owner(struct shmq_store *store, bool acked, struct verdict *verdict)
{
    struct shmq_offset *entry = &store->offsets[shmq_offset_find(store, 0, SHAPE_OFFSET_QUEUE)];
    const uint64_t word = atomic_load(&entry->owner);
    const bool is_owned = shmq_owner_find(store, entry, SHAPE_OFFSET_PLACE) != SHMQ_NONE;
    uint64_t client;
    ARENA_MUST(shmq_client_put(store, store->self_pid, store->self_start, 3, &client) == SHMQ_OK);
    store->client = client;
    const bool takes = shmq_owner_take(store, entry, SHAPE_OFFSET_PLACE);
    if (takes == is_owned || (acked && is_owned) || atomic_load(&entry->committed) != 6) {
        verdict_add(verdict, 10, "owner %llx, and the next member %s it", (unsigned long long)word,
                    takes ? "takes" : "does not take");
    }
    shmq_owner_leave(store, entry, SHAPE_OFFSET_PLACE);
    if (takes && atomic_load(&entry->owner) != 0) {
        verdict_add(verdict, 10, "the queue was left, and has an owner");
    }
    store->client = 0;
}

/* A reader that sees an end sees the beginning, and what is on disk, that were published with it. */
static void check_published(struct shmq_store *store, bool acked, struct verdict *verdict)
{
    const uint32_t queue = scene_restored_queue(store);
    const struct shmq_queue *entry = shmq_queue_place(store, queue);
    const uint64_t end = atomic_load(&entry->offset_max), first = atomic_load(&entry->offset_min),
                   persisted = atomic_load(&entry->persisted);
    if (first + 2 < end || persisted + 1 < end || (acked && end != SHAPE_PUBLISHED)) {
        verdict_add(verdict, 5, "end %llu was published before %llu and %llu", (unsigned long long)end,
                    (unsigned long long)first, (unsigned long long)persisted);
    }
    if (shmq_queue_publish(store, queue, 6, 6, 8) != SHMQ_OK || shmq_queue_publish(store, queue, 9, 6, 8) == SHMQ_OK) {
        verdict_add(verdict, 10, "the queue cannot be published after the death");
    }
}

void check_tables(struct scenery *scenery, const struct shape *shape, bool acked, struct verdict *verdict)
{
    struct arena *arena = &scenery->arena;
    struct shmq_store *store = &arena->store;
    uint64_t durable = shmq_load_acquire(&store->log->durable_end);
    uint64_t one, two;
    switch (shape->operation) {
    case OPERATION_TOPIC_PUT:
    case OPERATION_TOPIC_GROW:
    case OPERATION_TOPIC_DELETE:
        check_topics(arena, shape, acked, verdict);
        break;
    case OPERATION_GROUP_PUT:
    case OPERATION_GROUP_DELETE:
    case OPERATION_OFFSET_PUT:
        if (shape->scene == SCENE_TOPIC_ANEW) {
            check_moved(arena, shape, verdict);
        } else {
            check_groups(arena, shape, acked, verdict);
        }
        break;
    case OPERATION_TOPIC_FREE:
        check_freed(store, verdict);
        break;
    case OPERATION_QUEUES_CLOSE:
    case OPERATION_QUEUE_FREE:
        check_entries(arena, ARENA_QUEUES, verdict);
        break;
    case OPERATION_CLIENT_PUT:
        if (shmq_client_put(store, 1, 1, 1, &one) != SHMQ_OK || shmq_client_put(store, 2, 2, 1, &two) != SHMQ_OK ||
            shmq_client_slot(one) == shmq_client_slot(two) ||
            shmq_client_slot(two) >= atomic_load(&store->readers->client_high)) {
            verdict_add(verdict, 10, "client slots cannot be put after the death");
        }
        break;
    case OPERATION_OWNER:
        check_owner(store, acked, verdict);
        break;
    case OPERATION_QUEUE_PUBLISH:
        check_published(store, acked, verdict);
        break;
    case OPERATION_WAKE:
    case OPERATION_ERRAND:
        check_sleepers(store, shape->operation == OPERATION_WAKE, verdict);
        break;
    case OPERATION_CONFIRM:
        check_confirmed(store, acked ? scenery->ledger.end : 0, verdict);
        break;
    case OPERATION_FLUSH:
        if (durable > scenery->ledger.end || (acked && durable != scenery->ledger.end)) {
            verdict_add(verdict, 6, "durable end %llu", (unsigned long long)durable);
        }
        if (shmq_flush(store, &durable) != SHMQ_OK || durable != shmq_load_acquire(&store->log->end)) {
            verdict_add(verdict, 10, "no flush after the death");
        }
        break;
    default:
        break;
    }
    if (store->log->table_lock.__data.__lock != 0 || store->log->flush_lock.__data.__lock != 0) {
        verdict_add(verdict, 9, "a table or flush lock is still taken");
    }
}
