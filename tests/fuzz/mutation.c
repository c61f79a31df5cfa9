/* A fuzzer for where libFuzzer is not: it changes inputs that reached new code, and calls LLVMFuzzerTestOneInput.
 *
 *   mutation SECONDS SEED INPUT CORPUS…
 *
 * INPUT is a file that holds the input under way, so it is there after a crash; with CORPUS naming only that file, the
 * crash is repeated (SECONDS 0 runs the corpus and nothing else). One line of JSON at the end.
 *
 * The core is compiled with -fsanitize-coverage=trace-pc, which calls us at each branch. An edge is a pair of such
 * places, hashed; an input that meets a new edge joins the pool. This file itself is compiled without.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "readers.h"

#define INPUT_MAX 4096u
#define EDGES (1u << 16)
#define POOL_MAX 20000u
#define QUIET __attribute__((no_sanitize_coverage))

struct input { uint8_t *data; size_t bytes; };

static struct input pool[POOL_MAX];
static size_t pooled;
static uint8_t met[EDGES];
static uint32_t edges, edges_new;
static uintptr_t place_before;
static uint64_t state;

void __sanitizer_cov_trace_pc(void);

QUIET void __sanitizer_cov_trace_pc(void)
{
    uintptr_t place = (uintptr_t)__builtin_return_address(0) - (uintptr_t)&__sanitizer_cov_trace_pc;
    uint32_t edge = (uint32_t)((place ^ place_before) * UINT64_C(0x9E3779B97F4A7C15) >> 48);
    place_before = place >> 1;
    if (!met[edge]) {
        met[edge] = 1;
        edges_new++;
    }
}

QUIET static uint32_t draw(uint32_t below)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((state >> 33) % below);
}

QUIET static void pool_add(const uint8_t *data, size_t bytes)
{
    if (pooled < POOL_MAX) {
        pool[pooled].data = malloc(bytes + 1);
        MUST(pool[pooled].data != NULL);
        memcpy(pool[pooled].data, data, bytes);
        pool[pooled++].bytes = bytes;
    }
}

QUIET static void read_file(const char *path)
{
    uint8_t data[INPUT_MAX];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    MUST(fd >= 0);
    ssize_t bytes = read(fd, data, sizeof data);
    MUST(bytes >= 0 && close(fd) == 0);
    pool_add(data, (size_t)bytes);
}

QUIET static void read_corpus(const char *path)
{
    DIR *directory = opendir(path);
    if (directory == NULL) {
        MUST(errno == ENOTDIR);
        read_file(path);
        return;
    }
    for (const struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        char file[4096];
        if (entry->d_name[0] != '.') {
            MUST((size_t)snprintf(file, sizeof file, "%s/%s", path, entry->d_name) < sizeof file);
            read_file(file);
        }
    }
    closedir(directory);
}

QUIET static void spread(uint8_t *data, size_t *bytes, size_t at, size_t more)
{
    memmove(data + at + more, data + at, *bytes - at);
    *bytes += more;
}

/* One change: a bit, a byte that parsers dislike, a number, bytes taken out, doubled, or from another input. */
QUIET static void change(uint8_t *data, size_t *bytes)
{
    static const uint8_t nasty[] = "\0\1\2\"\\u{}[]:,-09az \x7f\x80\xc2\xe0\xed\xf0\xf4\xff";
    static const uint32_t numbers[] = {0, 1, 255, 65535, 1 << 20, INT32_MAX, UINT32_C(1) << 31, UINT32_MAX};
    size_t at = *bytes > 0 ? draw((uint32_t)*bytes) : 0, run = 1 + draw(16);
    const struct input *other = &pool[draw((uint32_t)pooled)];
    uint32_t number = __builtin_bswap32(numbers[draw(8)] - draw(2));
    switch (*bytes == 0 ? 6 : draw(7)) {
    case 0:
        data[at] ^= (uint8_t)(1u << draw(8));
        break;
    case 1:
        data[at] = nasty[draw(sizeof nasty - 1)];
        break;
    case 2:
        memcpy(data + at, &number, *bytes - at < 4 ? *bytes - at : 4);
        break;
    case 3:
        data[at] = (uint8_t)(data[at] + draw(35) - 17);
        break;
    case 4:
        run = run < *bytes - at ? run : *bytes - at;
        memmove(data + at, data + at + run, *bytes - at - run);
        *bytes -= run;
        break;
    case 5:
        run = run < *bytes - at ? run : *bytes - at;
        if (*bytes + run <= INPUT_MAX) {
            spread(data, bytes, at, run);
        }
        break;
    default:
        if (other->bytes > 0) {
            size_t from = draw((uint32_t)other->bytes), part = 1 + draw((uint32_t)(other->bytes - from));
            if (*bytes + part <= INPUT_MAX) {
                spread(data, bytes, at, part);
                memcpy(data + at, other->data + from, part);
            }
        }
    }
}

QUIET static void run_one(uint8_t *shown, const uint8_t *data, size_t bytes)
{
    uint32_t length = (uint32_t)bytes;
    memcpy(shown, &length, sizeof length);
    memcpy(shown + sizeof length, data, bytes);
    edges_new = 0;
    place_before = 0;
    LLVMFuzzerTestOneInput(data, bytes);
    edges += edges_new;
}

QUIET int main(int argc, char **argv)
{
    if (argc < 5) {
        fprintf(stderr, "usage: %s SECONDS SEED INPUT CORPUS...\n", argv[0]);
        return 2;
    }
    state = strtoull(argv[2], NULL, 10);
    for (int i = 4; i < argc; i++) {
        read_corpus(argv[i]);
    }
    int fd = open(argv[3], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    MUST(fd >= 0 && ftruncate(fd, INPUT_MAX + 4) == 0 && pooled > 0);
    uint8_t *shown = mmap(NULL, INPUT_MAX + 4, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(shown != MAP_FAILED);
    size_t seeds = pooled;
    for (size_t i = 0; i < seeds; i++) {
        run_one(shown, pool[i].data, pool[i].bytes);
    }
    uint32_t edges_of_seeds = edges;
    uint64_t runs = seeds;
    time_t until = time(NULL) + atoi(argv[1]);
    for (; time(NULL) < until; runs++) {
        /* Newer ones more often: they are where the front is. */
        const struct input *from = &pool[draw(2) != 0 ? draw((uint32_t)pooled) : pooled - 1 - draw((uint32_t)pooled / 4 + 1)];
        uint8_t data[INPUT_MAX];
        size_t bytes = from->bytes;
        memcpy(data, from->data, bytes);
        for (uint32_t i = 1 + draw(6); i > 0; i--) {
            change(data, &bytes);
        }
        run_one(shown, data, bytes);
        if (edges_new > 0) {
            pool_add(data, bytes);
        }
    }
    printf("{\"runs\": %" PRIu64 ", \"seeds\": %zu, \"pool\": %zu, \"edges_of_seeds\": %u, \"edges\": %u}\n", runs, seeds,
           pooled, edges_of_seeds, edges);
    return 0;
}
