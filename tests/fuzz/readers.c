/* See readers.h. */
#include "readers.h"

#include "core/files/index.h"
#include "core/wire/send_frame.h"

static bool inside(const void *part, size_t part_bytes, const void *whole, size_t whole_bytes)
{
    return (const char *)part >= (const char *)whole &&
           (const char *)part + part_bytes <= (const char *)whole + whole_bytes;
}

/* A number that follows from the input, so that the same input does the same. */
static uint32_t chosen(const uint8_t *data, size_t bytes, uint32_t salt, uint32_t below)
{
    return (shmq_crc32(data, bytes) * UINT32_C(2654435761) + salt * UINT32_C(40503)) % below;
}

static uint8_t *room_of(size_t bytes)
{
    uint8_t *room = malloc(bytes != 0 ? bytes : 1);
    MUST(room != NULL);
    return room;
}

/* ---- frames ---- */
static void answer_check(const struct shmq_send_request *request, enum shmq_codec codec, size_t room)
{
    const struct shmq_piece pieces[] = {{SHMQ_PIECE_LITERAL, 2, (const uint8_t *)"{}"},
                                        {SHMQ_PIECE_OPAQUE, 0, NULL},
                                        {SHMQ_PIECE_LENGTH_32, 0, NULL},
                                        {SHMQ_PIECE_OPAQUE_32, 0, NULL},
                                        {SHMQ_PIECE_SIZED + SHMQ_PIECE_MESSAGE_ID, 0, NULL},
                                        {SHMQ_PIECE_QUEUE_ID, 0, NULL},
                                        {SHMQ_PIECE_SIZED + SHMQ_PIECE_QUEUE_OFFSET, 0, NULL}};
    static const uint64_t positions[3] = {UINT64_MAX, 0, 77};
    const struct shmq_answer answer = {.opaque = room % 2 != 0 ? INT32_MIN : request->opaque,
                                       .queue_id = UINT32_MAX,
                                       .queue_offset = UINT64_MAX,
                                       .log_positions = positions,
                                       .count = (uint32_t)room % 4,
                                       .address = "0123456789012345678901234567890123456789",
                                       .address_bytes = 40};
    uint8_t *out = room_of(room);
    size_t bytes = shmq_answer_write(out, room, codec, pieces, sizeof pieces / sizeof *pieces, &answer);
    MUST(bytes <= room);
    struct shmq_frame_view view;
    MUST(bytes == 0 || (shmq_frame_split(out, bytes, 1 << 20, &view) == SHMQ_OK && view.frame_bytes == bytes));
    free(out);
}

static void properties_check(const struct shmq_send_request *request, uint32_t room)
{
    uint32_t text = room;
    char *out = (char *)room_of(room);
    bool waits;
    if (shmq_send_properties(request->properties, request->properties_bytes, "CLUSTER\1c", 9, out, &text, &waits) ==
        SHMQ_OK) {
        struct shmq_text_facts facts;
        MUST(text <= room && memcmp(out + text - 9, "CLUSTER\1c", 9) == 0);
        shmq_text_look(out, text, &facts);
        MUST(facts.crc_bytes == 0);
    }
    free(out);
}

bool frame_is_read(const uint8_t *data, size_t bytes)
{
    struct shmq_frame_view frame;
    struct shmq_send_request request;
    if (shmq_frame_split(data, bytes, 1 << 20, &frame) != SHMQ_OK) {
        return false;
    }
    MUST(inside(frame.header, frame.header_bytes, data, bytes) && inside(frame.body, frame.body_bytes, data, bytes));
    char *scratch = (char *)room_of(frame.header_bytes);
    bool accepted = shmq_send_read(&frame, scratch, &request) == SHMQ_OK;
    if (accepted) {
        MUST(inside(request.topic, request.topic_bytes, frame.header, frame.header_bytes));
        MUST(request.properties_bytes == 0 ||
             inside(request.properties, request.properties_bytes, scratch, frame.header_bytes) ||
             inside(request.properties, request.properties_bytes, frame.header, frame.header_bytes));
        properties_check(&request, request.properties_bytes + 1 + 9);
        properties_check(&request, chosen(data, bytes, 1, 64));
        answer_check(&request, frame.codec, chosen(data, bytes, 2, 600));
    }
    free(scratch);
    return accepted;
}

/* ---- batches and properties ---- */
bool batch_is_read(const uint8_t *data, size_t bytes)
{
    struct shmq_batch_record record;
    enum shmq_status status;
    size_t at = 0, read = 0;
    while ((status = shmq_batch_next(data, bytes, &at, &record)) == SHMQ_OK) {
        MUST(inside(record.body, record.body_bytes, data, bytes));
        MUST(inside(record.properties, record.properties_bytes, data, bytes));
        read += 22 + record.body_bytes + record.properties_bytes;
        MUST(read == at);
        properties_are_read((const uint8_t *)record.properties, record.properties_bytes);
    }
    MUST(status == SHMQ_EMPTY ? at == bytes : record.reason != NULL);
    return status == SHMQ_EMPTY;
}

bool properties_are_read(const uint8_t *data, size_t bytes)
{
    static const char *const keys[] = {"KEYS", "TAGS", "__CRC32#", "a", ""};
    const char *text = (const char *)data;
    struct shmq_text_facts facts;
    shmq_text_look(text, bytes, &facts);
    MUST(facts.crc_bytes <= bytes);
    MUST(facts.tag == NULL || inside(facts.tag, facts.tag_bytes, text, bytes));
    if (facts.tag != NULL) {
        (void)shmq_tag_hash(facts.tag, facts.tag_bytes);
    }
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        size_t value_bytes = 0;
        const char *value = shmq_property_find(text, bytes, keys[i], strlen(keys[i]), &value_bytes);
        MUST(value == NULL || inside(value, value_bytes, text, bytes));
    }
    char *copy = (char *)room_of(bytes - facts.crc_bytes);
    MUST(shmq_text_copy(copy, text, bytes) == bytes - facts.crc_bytes);
    free(copy);
    return facts.tag != NULL;
}

/* ---- records ---- */
bool record_is_read(const uint8_t *data, size_t bytes)
{
    struct shmq_view view;
    if (shmq_record_decode(data, bytes, &view) != SHMQ_OK) {
        return false;
    }
    MUST(view.record_bytes <= bytes && inside(view.body, view.body_bytes, data, view.record_bytes));
    MUST(inside(view.topic, view.topic_bytes, data, view.record_bytes));
    MUST(inside(view.properties, view.properties_bytes, data, view.record_bytes));
    MUST(inside(view.born_host, view.born_host_bytes, data, view.record_bytes));
    MUST(inside(view.store_host, view.store_host_bytes, data, view.record_bytes));
    char id[SHMQ_MESSAGE_ID_BYTES_MAX];
    MUST(shmq_message_id(id, view.store_host, view.store_host_bytes, view.log_position) <= sizeof id);
    bool is_whole = shmq_record_verify(data, &view) == SHMQ_OK && shmq_record_check(data, &view) == SHMQ_OK;
    uint8_t *exact = room_of(view.properties_bytes);
    memcpy(exact, view.properties, view.properties_bytes);
    properties_are_read(exact, view.properties_bytes);
    free(exact);
    uint8_t *copy = room_of(view.record_bytes);
    memcpy(copy, data, view.record_bytes);
    uint32_t trimmed = shmq_record_trim(copy, view.record_bytes);
    struct shmq_view after;
    MUST(trimmed <= view.record_bytes);
    MUST(!is_whole || (shmq_record_decode(copy, trimmed, &after) == SHMQ_OK && after.body_bytes == view.body_bytes));
    free(copy);
    return is_whole;
}

bool record_is_written(const uint8_t *data, size_t bytes)
{
    if (bytes < 8) {
        return false;
    }
    size_t topic_bytes = 1 + data[0] % SHMQ_TOPIC_BYTES_MAX, text_bytes = data[1] % 64, rest = bytes - 8;
    if (topic_bytes + text_bytes > rest) {
        return false;
    }
    const char *topic = (const char *)data + 8, *text = topic + topic_bytes;
    struct shmq_text_facts facts;
    shmq_text_look(text, text_bytes, &facts);
    struct shmq_spec spec = {.body = text + text_bytes, .body_bytes = (uint32_t)(rest - topic_bytes - text_bytes),
                             .topic = topic, .topic_bytes = (uint32_t)topic_bytes, .properties = text,
                             .properties_bytes = (uint32_t)text_bytes, .queue_id = data[2], .flag = data[3],
                             .reconsume_times = data[4], .born_ms = 1 + (uint64_t)data[5]};
    spec.born_host_bytes = data[6] % 2 != 0 ? SHMQ_HOST_BYTES_V6 : SHMQ_HOST_BYTES;
    if (facts.crc_bytes != 0) {
        return false; /* the callers take it off */
    }
    uint32_t record_bytes = shmq_record_bytes(&spec);
    struct shmq_patch patch;
    struct shmq_view view;
    uint8_t *record = room_of(record_bytes);
    MUST(record_bytes > 0);
    shmq_record_encode(record, &spec, &patch);
    shmq_record_patch(record, &patch, data[7], UINT64_C(1) << data[7] % 63, 1 + (uint64_t)data[6]);
    MUST(shmq_record_decode(record, record_bytes, &view) == SHMQ_OK && view.record_bytes == record_bytes);
    MUST(shmq_record_verify(record, &view) == SHMQ_OK && shmq_record_check(record, &view) == SHMQ_OK);
    MUST(view.body_bytes == spec.body_bytes && memcmp(view.body, spec.body, spec.body_bytes) == 0);
    MUST(view.topic_bytes == topic_bytes && memcmp(view.topic, topic, topic_bytes) == 0);
    MUST(view.properties_bytes >= text_bytes && memcmp(view.properties, text, text_bytes) == 0);
    MUST(view.queue_offset == data[7] && view.queue_id == data[2] && view.reconsume_times == data[4]);
    free(record);
    return true;
}

/* ---- units and index files ---- */
bool units_are_read(const uint8_t *data, size_t bytes)
{
    for (size_t at = 0; at + SHMQ_UNIT_BYTES <= bytes; at += SHMQ_UNIT_BYTES) {
        uint8_t again[SHMQ_UNIT_BYTES];
        struct shmq_unit unit;
        shmq_unit_unpack(data + at, &unit);
        shmq_unit_pack(again, &unit);
        MUST(memcmp(again, data + at, SHMQ_UNIT_BYTES) == 0);
    }
    return bytes >= SHMQ_UNIT_BYTES;
}

bool index_is_read(const uint8_t *data, size_t bytes)
{
    if (bytes < 2) {
        return false;
    }
    struct shmq_index index = {.slot_max = 1 + data[0] % 8u, .entry_max = 2 + data[1] % 16u};
    uint64_t file_bytes = shmq_index_bytes(index.slot_max, index.entry_max);
    index.data = room_of(file_bytes);
    memset(index.data, 0, file_bytes);
    memcpy(index.data, data + 2, bytes - 2 < file_bytes ? bytes - 2 : file_bytes);
    index.entry_room = index.entry_max;
    struct shmq_index_head head;
    bool accepted = shmq_index_head(&index, &head);
    if (accepted) {
        MUST(head.next <= index.entry_max);
        index.next = head.next;
        index.last_position = head.last_position;
    }
    for (uint32_t hash = 0; hash < 8; hash++) {
        uint64_t positions[4];
        struct shmq_index_search search = {.end_ms = UINT64_MAX, .hash = hash, .count_max = 4, .steps_max = 64};
        for (uint32_t round = 0; round < 4; round++) {
            MUST(shmq_index_find(&index, &search, positions) <= 4);
            if (search.next == 0) {
                break;
            }
        }
    }
    free(index.data);
    return accepted;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static bool (*const readers[])(const uint8_t *, size_t) = {
        frame_is_read, batch_is_read, record_is_read, record_is_written, properties_are_read, units_are_read, index_is_read};
    if (bytes == 0) {
        return 0;
    }
    uint8_t *exact = room_of(bytes - 1); /* every neighbour of it is poisoned */
    memcpy(exact, data + 1, bytes - 1);
    readers[data[0] % (sizeof readers / sizeof *readers)](exact, bytes - 1);
    free(exact);
    return 0;
}
