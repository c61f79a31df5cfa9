/* Walks over records whose bytes were changed, cut off or are those of another place: the walk ends, and reads nothing
 * outside. Every part of a log lies in a buffer of exactly its size, so a step outside is seen by the sanitizer.
 *
 *   scan ROUNDS SEED
 *
 * Prints one JSON line: how often a walk ended for each reason, and how many records it went over.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/read/scan.h"

#define RECORDS_MAX 30u
#define ROOM (64u << 10)

static uint64_t seed;

static void require(bool holds)
{
    if (!holds) {
        abort();
    }
}

static uint32_t roll(uint32_t below)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(seed >> 33) % below;
}

static size_t fill(uint8_t *out, uint64_t base)
{
    static const char *const topics[] = {"a", "orders", "a-topic-of-a-longer-name", "watched"};
    char text[256], body[300] = {0};
    uint64_t offsets[4] = {0};
    size_t bytes = 0;
    for (uint32_t left = roll(RECORDS_MAX); left != 0; left--) {
        const uint32_t topic = roll(4);
        int length = roll(2) ? snprintf(text, sizeof text, "TAGS\1t%u\2", roll(3)) : 0;
        length += roll(2) ? snprintf(text + length, sizeof text - (size_t)length, "KEYS\1 k%u  k%u \2", roll(3), roll(9)) : 0;
        length += roll(2) ? snprintf(text + length, sizeof text - (size_t)length, "UNIQ_KEY\1u%u\2", roll(99)) : 0;
        const struct shmq_spec spec = {
            .body = body, .body_bytes = roll(sizeof body), .topic = topics[topic],
            .topic_bytes = (uint32_t)strlen(topics[topic]), .properties = text, .properties_bytes = (uint32_t)length,
            .queue_id = roll(3), .sys_flag = roll(5) == 0 ? 4 * roll(4) : 0};
        struct shmq_patch patch;
        shmq_record_encode(out + bytes, &spec, &patch);
        offsets[topic] += roll(3);
        shmq_record_patch(out + bytes, &patch, offsets[topic], base + bytes, roll(1u << 30));
        bytes += patch.record_bytes;
    }
    for (uint32_t flips = roll(4); bytes != 0 && flips != 0; flips--) {
        out[roll((uint32_t)bytes)] ^= (uint8_t)(1u << roll(8));
    }
    return roll(2) ? bytes : bytes - roll((uint32_t)bytes + 1);
}

static void check_runs(const struct shmq_scan *scan)
{
    uint32_t rows = 0;
    for (uint32_t i = 0; i < scan->run_count; i++) {
        uint32_t count = 0;
        for (uint32_t number = scan->runs[i].first + 1; number != 0; number = scan->rows[number - 1].next) {
            count++;
        }
        require(count == scan->runs[i].count);
        rows += count;
    }
    require(rows == scan->row_count);
    require(scan->row_count <= scan->records && scan->records <= scan->record_max);
}

int main(int argc, char **argv)
{
    require(argc == 3);
    seed = strtoull(argv[2], NULL, 10);
    uint64_t ends[SHMQ_FOUND_BAD_END + 1] = {0}, records = 0;
    static uint8_t log[ROOM];
    for (uint64_t round = strtoull(argv[1], NULL, 10); round != 0; round--) {
        const uint64_t base = 4096 * (uint64_t)roll(1000);
        const size_t bytes = fill(log, base);
        uint8_t *exact = malloc(bytes + 1);
        require(exact != NULL);
        memcpy(exact + 1, log, bytes); /* and at an odd address */
        const struct shmq_scan_name names[] = {{"watched", 7}};
        struct shmq_scan scan = {.position = base, .names = names, .name_count = 1, .record_max = 1 + roll(40)};
        scan.end = roll(3) ? UINT64_MAX : base + roll((uint32_t)bytes + 2);
        scan.gathers = roll(4) != 0;
        scan.gathers_keys = roll(2) != 0;
        require(shmq_scan_open(&scan));
        const struct shmq_log_part part = {exact + 1, base, bytes};
        shmq_scan_run(&scan, &part);
        if (scan.gathers) {
            check_runs(&scan);
        }
        ends[scan.found]++;
        records += scan.records;
        shmq_scan_close(&scan);
        free(exact);
    }
    printf("{\"records\": %" PRIu64 ", \"ends\": [", records);
    for (size_t i = 0; i <= SHMQ_FOUND_BAD_END; i++) {
        printf("%s%" PRIu64, i ? ", " : "", ends[i]);
    }
    puts("]}");
    return 0;
}
