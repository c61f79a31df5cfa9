/* Attaching to a store that is not ours to use: another PID namespace, another ABI, damaged or cut segments.
 *
 * Each attempt must get its own answer, and leave every byte of the three segments as it was. With the argument `fuzz N SEED`
 * it instead attaches N times to segments whose head was damaged at random, in mappings of exactly their size.
 * Prints one JSON line a case. Exit status 1: a wrong answer; 77: the host does not let us make a PID namespace.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "arena.h"

static struct arena arena;
static uint8_t *before;
static uint32_t wrong;

static enum shmq_status attach(size_t control_bytes, size_t units_bytes, size_t readers_bytes)
{
    struct shmq_store store;
    enum shmq_status status = shmq_store_attach(&store, arena.control, control_bytes, arena.units, units_bytes,
                                                arena.readers, readers_bytes, true, arena.units_fd, &shmq_io_posix);
    if (status == SHMQ_OK) {
        shmq_store_detach(&store);
    }
    return status;
}

static size_t all_bytes(void)
{
    return arena.layout.control_bytes + arena.layout.units_bytes + arena.layout.readers_bytes;
}

static void copy_all(uint8_t *out)
{
    memcpy(out, arena.control, arena.layout.control_bytes);
    memcpy(out + arena.layout.control_bytes, arena.units, arena.layout.units_bytes);
    memcpy(out + arena.layout.control_bytes + arena.layout.units_bytes, arena.readers, arena.layout.readers_bytes);
}

static void expect(const char *name, enum shmq_status expected, enum shmq_status got)
{
    uint8_t *now = malloc(all_bytes());
    ARENA_MUST(now != NULL);
    copy_all(now);
    bool untouched = memcmp(now, before, all_bytes()) == 0;
    printf("{\"case\": \"%s\", \"expected\": %d, \"got\": %d, \"untouched\": %s}\n", name, expected, got,
           untouched ? "true" : "false");
    wrong += expected != got || !untouched;
    free(now);
}

/* Change some bytes of a segment, attach, and put them back. */
static void expect_with(const char *name, void *at, const void *value, size_t bytes, enum shmq_status expected)
{
    uint8_t kept[128];
    ARENA_MUST(bytes <= sizeof kept);
    memcpy(kept, at, bytes);
    memcpy(at, value, bytes);
    copy_all(before);
    enum shmq_status got =
        attach(arena.layout.control_bytes, arena.layout.units_bytes, arena.layout.readers_bytes);
    expect(name, expected, got);
    memcpy(at, kept, bytes);
    copy_all(before);
}

static void expect_word(const char *name, void *at, uint64_t value, size_t bytes, enum shmq_status expected)
{
    expect_with(name, at, &value, bytes, expected);
}

static void damaged_heads(void)
{
    struct shmq_head *head = arena.store.head;
    struct shmq_readers_head *readers = arena.store.readers;
    char unterminated[128];
    memset(unterminated, 'x', sizeof unterminated);
    expect_word("no magic", &head->magic, 0, 8, SHMQ_CORRUPT);
    expect_word("another magic", &head->magic, SHMQ_MAGIC ^ 1, 8, SHMQ_CORRUPT);
    expect_word("another ABI", &head->abi, SHMQ_ABI + 1, 4, SHMQ_FOREIGN_ABI);
    expect_word("another mutex size", &head->mutex_bytes, sizeof(pthread_mutex_t) + 8, 4, SHMQ_FOREIGN_ABI);
    expect_with("another libc", head->libc, "musl 1.2.5", 11, SHMQ_FOREIGN_ABI);
    expect_word("another PID namespace in the head", &head->pid_namespace, 1, 8, SHMQ_FOREIGN_NAMESPACE);
    expect_word("a namespace its creator could not tell", &head->pid_namespace, 0, 8, SHMQ_FOREIGN_NAMESPACE);
    expect_word("files of no size", &head->sizes.file_bytes, 0, 8, SHMQ_CORRUPT);
    expect_word("files of an odd size", &head->sizes.file_bytes, (1 << 20) + 1, 8, SHMQ_CORRUPT);
    expect_word("files of an absurd size", &head->sizes.file_bytes, UINT64_MAX & ~4095ull, 8, SHMQ_CORRUPT);
    expect_word("no queues", &head->sizes.queue_max, 0, 4, SHMQ_CORRUPT);
    expect_word("clients the tables were not laid out for", &head->sizes.client_max, 1, 4, SHMQ_CORRUPT);
    expect_word("too many queues", &head->sizes.queue_max, UINT32_MAX, 4, SHMQ_CORRUPT);
    expect_word("more frames than units", &head->sizes.frame_max, arena.sizes.frame_max + 1, 4, SHMQ_CORRUPT);
    expect_word("more topics than control", &head->sizes.topic_max, 1 << 20, 4, SHMQ_CORRUPT);
    expect_word("more clients than readers", &head->sizes.client_max, 1 << 20, 4, SHMQ_CORRUPT);
    expect_word("readers of another generation", &readers->generation, 99, 8, SHMQ_CORRUPT);
    expect_with("broker name without an end", head->broker_name, unterminated, 128, SHMQ_CORRUPT);
    expect("control cut to its head", SHMQ_CORRUPT,
           attach(SHMQ_PAGE_BYTES, arena.layout.units_bytes, arena.layout.readers_bytes));
    expect("control cut to nothing", SHMQ_CORRUPT, attach(0, arena.layout.units_bytes, arena.layout.readers_bytes));
    expect("units cut by one frame", SHMQ_CORRUPT,
           attach(arena.layout.control_bytes, arena.layout.units_bytes - SHMQ_FRAME_BYTES, arena.layout.readers_bytes));
    expect("readers cut by one byte", SHMQ_CORRUPT,
           attach(arena.layout.control_bytes, arena.layout.units_bytes, arena.layout.readers_bytes - 1));
    expect("nothing wrong", SHMQ_OK,
           attach(arena.layout.control_bytes, arena.layout.units_bytes, arena.layout.readers_bytes));
}

/* A child whose children live in a PID namespace of their own attaches from there. */
static int other_namespace(void)
{
    int status;
    pid_t outer = fork();
    ARENA_MUST(outer >= 0);
    if (outer == 0) {
        if (unshare(CLONE_NEWPID) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) {
            _exit(77);
        }
        pid_t inner = fork();
        if (inner == 0) {
            _exit(attach(arena.layout.control_bytes, arena.layout.units_bytes, arena.layout.readers_bytes));
        }
        _exit(inner < 0 || waitpid(inner, &status, 0) != inner || !WIFEXITED(status) ? 99 : WEXITSTATUS(status));
    }
    ARENA_MUST(waitpid(outer, &status, 0) == outer && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static uint64_t mix(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 16;
}

/* Whatever the head says, attaching ends with an answer, and what it accepts can be looked up and read. */
static void fuzz(uint64_t rounds, uint64_t seed)
{
    uint32_t accepted = 0;
    uint8_t *kept = malloc(SHMQ_PAGE_BYTES);
    ARENA_MUST(kept != NULL);
    memcpy(kept, arena.control, SHMQ_PAGE_BYTES);
    for (uint64_t round = 0; round < rounds; round++) {
        struct shmq_store store;
        uint8_t units[SHMQ_UNIT_BYTES];
        for (uint64_t flips = 1 + mix(&seed) % 4; flips > 0; flips--) {
            arena.control[mix(&seed) % 400] ^= (uint8_t)(1u << (mix(&seed) % 8));
        }
        if (shmq_store_attach(&store, arena.control, arena.layout.control_bytes, arena.units, arena.layout.units_bytes,
                              arena.readers, arena.layout.readers_bytes, false, -1, &shmq_io_posix) == SHMQ_OK) {
            accepted++;
            (void)shmq_topic_find(&store, ARENA_TOPIC, strlen(ARENA_TOPIC));
            (void)shmq_units_read(&store, 0, 0, 1, units);
            (void)shmq_mapping_get(&store, 0);
            shmq_store_detach(&store);
        }
        memcpy(arena.control, kept, SHMQ_PAGE_BYTES);
    }
    free(kept);
    printf("{\"case\": \"fuzz\", \"rounds\": %llu, \"accepted\": %u}\n", (unsigned long long)rounds, accepted);
}

int main(int argc, char **argv)
{
    const struct arena_options options = {.file_bytes = 1 << 20, .file_count = 1, .frame_max = 16, .frame_ready = 16};
    arena_create(&arena, &options);
    before = malloc(all_bytes());
    ARENA_MUST(before != NULL);
    copy_all(before);
    int namespace = 0;
    if (argc == 4 && strcmp(argv[1], "fuzz") == 0) {
        fuzz(strtoull(argv[2], NULL, 10), strtoull(argv[3], NULL, 10));
    } else {
        damaged_heads();
        fflush(stdout);
        namespace = other_namespace();
        if (namespace != 77) {
            expect("a process in another PID namespace", SHMQ_FOREIGN_NAMESPACE, (enum shmq_status)namespace);
        }
    }
    free(before);
    arena_destroy(&arena);
    return wrong != 0 ? 1 : namespace == 77 ? 77 : 0;
}
