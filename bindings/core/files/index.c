/* The key index: RocketMQ's index files, filled behind the log by the keeper and searched by the bridge and the tools.
 *
 *   0    begin_ms 8 | end_ms 8 | begin position 8 | end position 8 | slots in use 4 | next entry 4       big-endian
 *   40   slots: number of the newest entry of each chain 4                                            0 is none
 *   …    entries: hash 4 | log position 8 | seconds since begin_ms 4 | previous entry of the chain 4     0 is unused
 *
 * A key is "topic#key" for UNIQ_KEY and for each blank-separated word of KEYS; its slot is its Java hash, made positive,
 * modulo the number of slots. One process fills a file; others may search it meanwhile.
 *
 * The log says where the index need not look: an append of a record with properties raises `described_end`, one word
 * beside the log end, so a log without keys costs the follower nothing. After a crash of the host the file that was open
 * is thrown away and built again behind the running broker, as RocketMQ does it.
 *
 * Invariants:
 *   1. `next entry` is stored last, once for each record: it is the commit of all keys of that record, and the file's
 *      last entry says which record that was. Killed before: the record is done again, over the same entries.
 *   2. A slot may name an entry that was never committed; its chain goes on from that entry, which was written first.
 *   3. No byte is stored where no block is reserved: the caller says how many entries have room.
 *   4. What is read from a file is input: numbers are range-checked, and no chain is followed further than asked.
 */
#include "core/bytes.h"
#include "core/files/files.h"
#include "core/files/index.h"
#include "core/record/record.h"

#define BEGIN_MS_AT 0
#define END_MS_AT 8
#define BEGIN_POSITION_AT 16
#define END_POSITION_AT 24
#define SLOTS_USED_AT 32
#define NEXT_AT 36
#define BARE_BYTES (91u + 1u + SHMQ_RECORD_CRC_BYTES) /* the shortest record whose only property is its CRC */
#define AHEAD 8u /* records asked for ahead of the walk */
#define SECONDS_MAX INT32_MAX

/* ---- big-endian words that a search may read while they are written, each stored and loaded whole ------ */
static inline uint32_t get32(const uint8_t *at)
{
    return be32toh(__atomic_load_n((const uint32_t *)(const void *)at, __ATOMIC_ACQUIRE));
}

static inline void put32(uint8_t *at, uint32_t value)
{
    __atomic_store_n((uint32_t *)(void *)at, htobe32(value), __ATOMIC_RELEASE);
}

/* ---- the file --------------------------------------------------------------------------------------- */
uint64_t shmq_index_bytes(uint32_t slot_max, uint32_t entry_max)
{
    return SHMQ_INDEX_HEAD_BYTES + (uint64_t)slot_max * SHMQ_INDEX_SLOT_BYTES +
           (uint64_t)entry_max * SHMQ_INDEX_ENTRY_BYTES;
}

static inline uint8_t *slot_at(const struct shmq_index *index, uint32_t hash)
{
    return index->data + SHMQ_INDEX_HEAD_BYTES + (uint64_t)(hash % index->slot_max) * SHMQ_INDEX_SLOT_BYTES;
}

static inline uint8_t *entry_at(const struct shmq_index *index, uint32_t number)
{
    return index->data + SHMQ_INDEX_HEAD_BYTES + (uint64_t)index->slot_max * SHMQ_INDEX_SLOT_BYTES +
           (uint64_t)number * SHMQ_INDEX_ENTRY_BYTES;
}

bool shmq_index_head(const struct shmq_index *index, struct shmq_index_head *head)
{
    const uint8_t *data = index->data;
    *head = (struct shmq_index_head){
        .begin_ms = shmq_load64(data + BEGIN_MS_AT),
        .end_ms = shmq_load64(data + END_MS_AT),
        .begin_position = shmq_load64(data + BEGIN_POSITION_AT),
        .end_position = shmq_load64(data + END_POSITION_AT),
        .slots_used = get32(data + SLOTS_USED_AT),
        .next = get32(data + NEXT_AT),
    };
    if (head->next == 0) {
        head->next = 1; /* a file that nothing was stored in */
    }
    if (head->next > index->entry_max || head->slots_used > index->slot_max || head->begin_ms > INT64_MAX ||
        head->end_ms > INT64_MAX || head->begin_position > INT64_MAX || head->end_position > INT64_MAX) {
        return false;
    }
    head->last_position = head->next > 1 ? shmq_load64(entry_at(index, head->next - 1) + 4) : 0;
    return head->last_position <= INT64_MAX;
}

static uint32_t key_hash(uint32_t topic_hash, const char *key, size_t bytes)
{
    int32_t hash = (int32_t)shmq_java_hash(topic_hash, key, bytes);
    return hash == INT32_MIN ? 0 : (uint32_t)(hash < 0 ? -hash : hash);
}

uint32_t shmq_index_hash(const char *topic, size_t topic_bytes, const char *key, size_t key_bytes)
{
    return key_hash(shmq_java_hash(shmq_java_hash(0, topic, topic_bytes), "#", 1), key, key_bytes);
}

/* ---- filling ---------------------------------------------------------------------------------------- */
struct keys { const char *unique, *words; size_t unique_bytes, words_bytes; };

static bool keys_find(const struct shmq_view *view, struct keys *keys)
{
    if ((view->sys_flag & SHMQ_SYS_FLAG_TRANSACTION) == SHMQ_SYS_FLAG_ROLLBACK) {
        return false;
    }
    keys->unique = shmq_property_find(view->properties, view->properties_bytes, "UNIQ_KEY", 8, &keys->unique_bytes);
    keys->words = shmq_property_find(view->properties, view->properties_bytes, "KEYS", 4, &keys->words_bytes);
    return keys->unique_bytes != 0 || keys->words_bytes != 0;
}

/* The next word of KEYS, or NULL. */
static const char *word_next(const char **at, const char *end, size_t *bytes)
{
    while (*at != end && **at == ' ') {
        ++*at;
    }
    const char *word = *at;
    while (*at != end && **at != ' ') {
        ++*at;
    }
    *bytes = (size_t)(*at - word);
    return *bytes != 0 ? word : NULL;
}

static uint32_t keys_count(const struct keys *keys)
{
    uint32_t count = keys->unique_bytes != 0;
    const char *at = keys->words, *end = at + keys->words_bytes;
    for (size_t bytes; word_next(&at, end, &bytes) != NULL;) {
        count++;
    }
    return count;
}

struct filling { struct shmq_index *index; uint64_t begin_ms, position, store_ms; uint32_t next, slots_used, topic_hash; };

static void put_entry(struct filling *filling, const char *key, size_t bytes)
{
    struct shmq_index *index = filling->index;
    uint32_t hash = key_hash(filling->topic_hash, key, bytes);
    uint8_t *slot = slot_at(index, hash), *entry = entry_at(index, filling->next);
    uint32_t previous = get32(slot);
    /* What a killed filler left behind the commit: each entry names an older one, so this ends. */
    while (previous >= filling->next && previous < index->entry_room) {
        uint32_t older = get32(entry_at(index, previous) + 16);
        previous = older < previous ? older : 0;
    }
    if (previous >= filling->next) {
        previous = 0;
    }
    uint64_t seconds = filling->store_ms > filling->begin_ms ? (filling->store_ms - filling->begin_ms) / 1000 : 0;
    put32(entry, hash);
    shmq_store64(entry + 4, filling->position);
    put32(entry + 12, seconds < SECONDS_MAX ? (uint32_t)seconds : SECONDS_MAX);
    put32(entry + 16, previous);
    put32(slot, filling->next);
    filling->next++;
    filling->slots_used += previous == 0;
}

static enum shmq_index_stop put_record(struct shmq_index *index, const struct shmq_view *view, const struct keys *keys)
{
    uint32_t count = keys_count(keys);
    if (count == 0) {
        return SHMQ_INDEX_DONE;
    }
    if (index->data == NULL) {
        return SHMQ_INDEX_NO_FILE;
    }
    if (index->next > 1 && view->log_position <= index->last_position) {
        return SHMQ_INDEX_DONE;
    }
    count = count < index->entry_max ? count : index->entry_max - 1; /* what no file can hold is left out */
    if (index->entry_max - index->next < count) {
        return SHMQ_INDEX_FULL;
    }
    if (index->entry_room < index->next + count) {
        return SHMQ_INDEX_NO_ROOM;
    }
    uint8_t *data = index->data;
    if (index->next == 1) {
        shmq_store64(data + BEGIN_POSITION_AT, view->log_position);
        shmq_store64(data + BEGIN_MS_AT, view->store_ms);
    }
    struct filling filling = {.index = index, .begin_ms = shmq_load64(data + BEGIN_MS_AT), .position = view->log_position,
                              .store_ms = view->store_ms, .next = index->next, .slots_used = get32(data + SLOTS_USED_AT)};
    filling.topic_hash = shmq_java_hash(shmq_java_hash(0, view->topic, view->topic_bytes), "#", 1);
    if (keys->unique_bytes != 0) {
        put_entry(&filling, keys->unique, keys->unique_bytes);
    }
    const char *at = keys->words, *end = at + keys->words_bytes, *word;
    for (size_t bytes; filling.next < index->next + count && (word = word_next(&at, end, &bytes)) != NULL;) {
        put_entry(&filling, word, bytes);
    }
    shmq_store64(data + END_POSITION_AT, view->log_position);
    shmq_store64(data + END_MS_AT, view->store_ms);
    put32(data + SLOTS_USED_AT, filling.slots_used);
    put32(data + NEXT_AT, filling.next);
    index->next = filling.next;
    index->last_position = view->log_position;
    return SHMQ_INDEX_DONE;
}

uint32_t shmq_index_keys(const struct shmq_view *view, uint32_t *hashes, uint32_t hash_max)
{
    struct keys keys;
    if (!keys_find(view, &keys)) {
        return 0;
    }
    const uint32_t topic_hash = shmq_java_hash(shmq_java_hash(0, view->topic, view->topic_bytes), "#", 1);
    uint32_t count = 0;
    if (keys.unique_bytes != 0 && count++ < hash_max) {
        hashes[0] = key_hash(topic_hash, keys.unique, keys.unique_bytes);
    }
    const char *at = keys.words, *end = at + keys.words_bytes, *word;
    for (size_t bytes; (word = word_next(&at, end, &bytes)) != NULL; count++) {
        if (count < hash_max) {
            hashes[count] = key_hash(topic_hash, word, bytes);
        }
    }
    return count;
}

/* ---- following the log ------------------------------------------------------------------------------- */
/* A record whose only property is its CRC has no keys; told from its first and its last bytes, which lie beside those of
 * its neighbours. With another property before it the CRC would stand behind a 0x02, not behind its own length. */
static inline uint32_t bare_bytes(const uint8_t *at, uint64_t room)
{
    uint32_t words[2];
    memcpy(words, at, sizeof words);
    uint32_t bytes = be32toh(words[0]);
    if (words[1] != htobe32(SHMQ_RECORD_MAGIC_V1) || bytes < BARE_BYTES || bytes > room) {
        return 0;
    }
    const uint8_t *tail = at + bytes - SHMQ_RECORD_CRC_BYTES;
    return tail[-2] == 0 && tail[-1] == SHMQ_RECORD_CRC_BYTES && memcmp(tail, SHMQ_CRC_KEY, 9) == 0 ? bytes : 0;
}

enum shmq_index_stop shmq_index_follow(struct shmq_index *index, const struct shmq_mapping *mapping,
                                       struct shmq_follow *follow)
{
    const uint64_t file_end = mapping->base + mapping->bytes, end = follow->end < file_end ? follow->end : file_end;
    while (follow->position < follow->until && end - follow->position >= SHMQ_RECORD_BLANK_BYTES) {
        const uint8_t *at = mapping->data + (follow->position - mapping->base);
        const uint64_t room = end - follow->position;
        const uint32_t bare = bare_bytes(at, room);
        follow->records++;
        if (bare != 0) {
            /* Records of one producer are alike; the guess is only an address to look at. */
            __builtin_prefetch(at + (uint64_t)AHEAD * bare - SHMQ_RECORD_CRC_BYTES);
            __builtin_prefetch(at + (uint64_t)AHEAD * bare + SHMQ_RECORD_CRC_BYTES);
            follow->position += bare;
            continue;
        }
        struct shmq_view view;
        const enum shmq_status status = shmq_record_decode(at, room, &view);
        if (status == SHMQ_EMPTY && view.record_bytes != 0) {
            follow->position = file_end; /* a BLANK */
            return SHMQ_INDEX_DONE;
        }
        if (status != SHMQ_OK || view.log_position != follow->position) {
            return SHMQ_INDEX_DAMAGE;
        }
        struct keys keys;
        if (keys_find(&view, &keys)) {
            follow->store_ms = view.store_ms;
            const enum shmq_index_stop stop = put_record(index, &view, &keys);
            if (stop != SHMQ_INDEX_DONE) {
                return stop;
            }
            follow->keyed++;
        }
        follow->position += view.record_bytes;
    }
    if (end == file_end && end - follow->position < SHMQ_RECORD_BLANK_BYTES) {
        follow->position = file_end;
    }
    return SHMQ_INDEX_DONE;
}

/* ---- proving ------------------------------------------------------------------------------------------ */
enum shmq_index_walked shmq_index_walk(const struct shmq_index *index, struct shmq_index_walk *walk)
{
    for (; walk->number < walk->end; walk->number++) {
        const uint8_t *entry = entry_at(index, walk->number);
        const uint64_t position = shmq_load64(entry + 4);
        if (position >= walk->until) {
            return SHMQ_INDEX_WALKED;
        }
        uint32_t *newest = &walk->newest[get32(entry) % index->slot_max];
        if (get32(entry + 16) != *newest) {
            return SHMQ_INDEX_BAD_CHAIN;
        }
        if (position < walk->reached && position >= walk->log_begin) {
            return SHMQ_INDEX_BAD_ORDER;
        }
        if (walk->key_count == walk->key_max) {
            return SHMQ_INDEX_WALKED;
        }
        *newest = walk->number;
        walk->reached = position > walk->reached ? position : walk->reached;
        memcpy(walk->keys + (size_t)SHMQ_INDEX_KEY_BYTES * walk->key_count++, entry, SHMQ_INDEX_KEY_BYTES);
    }
    return SHMQ_INDEX_WALKED;
}

/* ---- searching --------------------------------------------------------------------------------------- */
uint32_t shmq_index_find(const struct shmq_index *index, struct shmq_index_search *search, uint64_t *positions)
{
    struct shmq_index_head head;
    uint32_t found = 0;
    if (!shmq_index_head(index, &head)) {
        return 0;
    }
    uint32_t number = search->next != 0 ? search->next : get32(slot_at(index, search->hash));
    uint32_t steps = search->steps_max;
    search->next = 0;
    /* An entry that is not committed yet is whole all the same, and the chain goes on from it. */
    while (number != 0 && number < index->entry_max && found < search->count_max) {
        if (steps-- == 0) {
            search->next = number;
            break;
        }
        const uint8_t *entry = entry_at(index, number);
        uint32_t seconds = get32(entry + 12), previous = get32(entry + 16);
        if (seconds > SECONDS_MAX) {
            break;
        }
        uint64_t stored_ms = head.begin_ms + UINT64_C(1000) * seconds;
        if (get32(entry) == search->hash && stored_ms >= search->begin_ms && stored_ms <= search->end_ms) {
            positions[found++] = shmq_load64(entry + 4);
        }
        if (previous >= number || stored_ms < search->begin_ms) {
            break; /* older ones lie before the time asked for, as RocketMQ sees it */
        }
        number = previous;
    }
    return found;
}
