/* Bytes from the network into the parts of the core that read them, each in a buffer of exactly its size.
 *
 *   wire frame|batch ROUNDS SEED
 *
 * Good frames and batches are built, damaged in a few places, cut, and read; the sanitizers watch every access,
 * readers.c that what was accepted is what stands there. One line of JSON: how many were accepted, how many were not.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/wire/send_frame.h"
#include "readers.h"

static uint64_t state;

static uint32_t draw(uint32_t below)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((state >> 33) % below);
}

static void put32(uint8_t *out, uint32_t value)
{
    out[0] = (uint8_t)(value >> 24);
    out[1] = (uint8_t)(value >> 16);
    out[2] = (uint8_t)(value >> 8);
    out[3] = (uint8_t)value;
}

static const char *const properties[] = {
    "", "KEYS\\u0001k\\u0002WAIT\\u0001true", "TAGS\\u0001a\\u0002", "DELAY\\u00013", "a\\u0001b\\u0002a\\u0001c",
    "CLUSTER\\u0001x\\u0002__CRC32#\\u00010123456789\\u0002", "n\\u0001\\\"\\\\\\/\\b\\n\xc3\xa4\xe6\x95\xb0"};

static size_t json_header(char *out, size_t room)
{
    return (size_t)snprintf(out, room,
                            "{\"code\":%d,\"extFields\":{\"a\":\"g\",\"b\":\"orders\",\"c\":\"TBW102\",\"d\":\"4\",\"e\":%s,"
                            "\"f\":\"0\",\"g\":\"17\",\"h\":\"-1\",\"i\":\"%s\",\"j\":\"0\",\"k\":\"false\",\"m\":false},"
                            "\"flag\":%u,\"language\":\"JAVA\",\"opaque\":%d,\"serializeTypeCurrentRPC\":\"JSON\","
                            "\"version\":409}%s",
                            draw(2) ? 310 : 320, draw(2) ? "\"1\"" : "12", properties[draw(7)], draw(2) * 2, (int)draw(1000) - 500,
                            draw(2) ? "\n" : "");
}

static size_t binary_field(uint8_t *out, const char *name, const char *value)
{
    size_t name_bytes = strlen(name), value_bytes = strlen(value);
    out[0] = 0;
    out[1] = (uint8_t)name_bytes;
    memcpy(out + 2, name, name_bytes);
    put32(out + 2 + name_bytes, (uint32_t)value_bytes);
    memcpy(out + 6 + name_bytes, value, value_bytes);
    return 6 + name_bytes + value_bytes;
}

static size_t binary_header(uint8_t *out)
{
    static const char *const values[][2] = {{"a", "g"}, {"b", "orders"}, {"c", "TBW102"}, {"d", "4"}, {"e", "1"}, {"f", "0"},
                                            {"g", "17"}, {"h", "0"}, {"m", "false"}, {"i", "TAGS\001a\002x\001\xc3\xa4\002"}};
    size_t bytes = 21;
    memset(out, 0, bytes);
    out[0] = 310 >> 8;
    out[1] = 310 & 255;
    put32(out + 5, draw(1000));
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        bytes += binary_field(out + bytes, values[i][0], values[i][1]);
    }
    put32(out + 17, (uint32_t)bytes - 21);
    return bytes;
}

/* Damage a few bytes, cut the end off sometimes, and move it where every neighbour is poisoned. */
static uint8_t *spoiled(const uint8_t *data, size_t *bytes)
{
    static const uint8_t nasty[] = "\0\1\2\"\\u{}[]:,-09az \x7f\x80\xc2\xe0\xed\xf0\xf4\xff";
    size_t left = draw(4) ? *bytes : draw((uint32_t)*bytes + 1);
    uint8_t *copy = malloc(left ? left : 1);
    memcpy(copy, data, left);
    for (uint32_t i = draw(4); i > 0 && left > 0; i--) {
        copy[draw((uint32_t)left)] = nasty[draw(sizeof nasty - 1)];
    }
    *bytes = left;
    return copy;
}

static bool frame_round(void)
{
    uint8_t whole[2048];
    enum shmq_codec codec = draw(2);
    size_t header = codec == SHMQ_CODEC_JSON ? json_header((char *)whole + 8, sizeof whole - 8) : binary_header(whole + 8);
    size_t body = draw(2) * 5, bytes = 8 + header + body;
    put32(whole, (uint32_t)bytes - 4);
    put32(whole + 4, (uint32_t)header);
    whole[4] = codec;
    memcpy(whole + 8 + header, "hello", body);
    uint8_t *data = spoiled(whole, &bytes);
    bool accepted = frame_is_read(data, bytes);
    free(data);
    return accepted;
}

static bool batch_round(void)
{
    uint8_t whole[2048];
    size_t bytes = 0;
    for (uint32_t count = draw(5); count > 0; count--) {
        uint32_t body = draw(60), text = draw(40);
        uint8_t *record = whole + bytes;
        memset(record, 0, 20);
        put32(record, 22 + body + text);
        put32(record + 16, body);
        memset(record + 20, 'b', body);
        record[20 + body] = 0;
        record[21 + body] = (uint8_t)text;
        memset(record + 22 + body, 't', text);
        memcpy(record + 22 + body, "__CRC32#\0017\002", text < 11 ? text : 11);
        bytes += 22 + body + text;
    }
    uint8_t *data = spoiled(whole, &bytes);
    bool accepted = batch_is_read(data, bytes);
    free(data);
    return accepted;
}

int main(int argc, char **argv)
{
    uint64_t counts[2] = {0, 0};
    if (argc != 4) {
        fprintf(stderr, "usage: %s frame|batch ROUNDS SEED\n", argv[0]);
        return 2;
    }
    state = strtoull(argv[3], NULL, 10);
    for (long round = atol(argv[2]); round > 0; round--) {
        counts[strcmp(argv[1], "frame") == 0 ? frame_round() : batch_round()]++;
    }
    printf("{\"accepted\": %llu, \"left\": %llu}\n", (unsigned long long)counts[1], (unsigned long long)counts[0]);
    return 0;
}
