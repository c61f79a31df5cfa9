/* A drive with a cache that a power cut empties: one file on a FUSE mount of this process, made for a loop device.
 *
 *   volatile_drive MOUNT BYTES        as root; prints "ready" and then obeys lines on its standard input
 *
 *   cut SEED MANNER PERCENT FILE      write to FILE what the medium may hold after a power cut now: of the cache the
 *                                     first PERCENT ("first"), or each block by itself with that chance ("each");
 *                                     answers how many blocks were in the cache
 *   slow MS                           from now on each flush takes up to that long
 *   (end of input)                    the drive is gone
 *
 *   medium   what was written before the last flush ended: it is there after every cut
 *   cache    what was written since, block by block and in order: each block may have reached the medium or not
 *
 * Readers see all writes. Rules: (1) one thread serves everything, so a cut is one moment between two requests; (2) a
 * block of 4096 bytes is written or not: what a file system does not checksum is not torn.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define BLOCK 4096u
#define WRITE_MAX (1u << 20)
#define CHUNK (64u << 10)
#define NODE 2u
#define NAME "drive"
#define MUST(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "volatile_drive: %s:%d: %s: %s\n", __FILE__, __LINE__, #condition, strerror(errno));        \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

struct block { uint64_t at; uint8_t *data; };

static uint8_t *medium, *live;
static uint64_t drive_bytes, random_state;
static struct block *cache;
static size_t cached, cache_room;
static uint32_t slow_ms;
static int device;

static uint32_t draw(uint32_t below)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((random_state >> 33) % below);
}

static void *memory(uint64_t bytes)
{
    void *found = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    MUST(found != MAP_FAILED);
    return found;
}

/* ---- the medium and its cache ---- */
static void drive_write(uint64_t at, const uint8_t *data, uint32_t bytes)
{
    memcpy(live + at, data, bytes);
    for (uint64_t block = at / BLOCK; block <= (at + bytes - 1) / BLOCK; block++) {
        if (cached == cache_room) {
            cache_room = cache_room ? 2 * cache_room : 1024;
            cache = realloc(cache, cache_room * sizeof *cache);
            MUST(cache);
        }
        uint8_t *copy = malloc(BLOCK);
        MUST(copy);
        memcpy(copy, live + block * BLOCK, BLOCK);
        cache[cached++] = (struct block){block * BLOCK, copy};
    }
}

static void drive_flush(void)
{
    if (slow_ms) {
        usleep(draw(slow_ms) * 1000);
    }
    for (size_t i = 0; i < cached; i++) {
        memcpy(medium + cache[i].at, cache[i].data, BLOCK);
        free(cache[i].data);
    }
    cached = 0;
}

static void image_write(int fd, const void *data, uint32_t bytes, uint64_t at)
{
    MUST(pwrite(fd, data, bytes, (off_t)at) == (ssize_t)bytes);
}

static void drive_cut(uint64_t seed, bool in_order, uint32_t percent, const char *path)
{
    static const uint8_t zeros[CHUNK];
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    MUST(fd >= 0 && ftruncate(fd, (off_t)drive_bytes) == 0);
    for (uint64_t at = 0; at < drive_bytes; at += CHUNK) {
        if (memcmp(medium + at, zeros, CHUNK) != 0) {
            image_write(fd, medium + at, CHUNK, at);
        }
    }
    random_state = seed;
    for (size_t i = 0; i < cached; i++) {
        if (in_order ? i * 100 < (uint64_t)percent * cached : draw(100) < percent) {
            image_write(fd, cache[i].data, BLOCK, cache[i].at);
        }
    }
    MUST(close(fd) == 0);
    printf("%zu\n", cached);
    fflush(stdout);
}

/* ---- FUSE ---- */
static void reply(uint64_t unique, int error, const void *data, size_t bytes)
{
    struct fuse_out_header head = {.len = (uint32_t)(sizeof head + bytes), .error = -error, .unique = unique};
    struct iovec parts[] = {{&head, sizeof head}, {(void *)(uintptr_t)data, bytes}};
    /* ENOENT: the request was interrupted meanwhile. */
    MUST(writev(device, parts, 2) == (ssize_t)head.len || errno == ENOENT);
}

static struct fuse_attr attributes(uint64_t node)
{
    struct fuse_attr found = {.ino = node, .nlink = 1, .blksize = BLOCK, .mode = S_IFDIR | 0700};
    if (node == NODE) {
        found.mode = S_IFREG | 0600;
        found.size = drive_bytes;
        found.blocks = drive_bytes / 512;
    }
    return found;
}

static void answer_init(uint64_t unique, const struct fuse_init_in *in)
{
    struct fuse_init_out out = {.major = FUSE_KERNEL_VERSION, .minor = FUSE_KERNEL_MINOR_VERSION,
                                .max_readahead = in->max_readahead, .flags = FUSE_BIG_WRITES | FUSE_MAX_PAGES,
                                .max_background = 64, .congestion_threshold = 48, .max_write = WRITE_MAX,
                                .time_gran = 1, .max_pages = WRITE_MAX / BLOCK};
    reply(unique, 0, &out, sizeof out);
}

static void answer_attributes(const struct fuse_in_header *head)
{
    if (head->opcode == FUSE_LOOKUP) {
        struct fuse_entry_out entry = {.nodeid = NODE, .entry_valid = 3600, .attr_valid = 3600, .attr = attributes(NODE)};
        reply(head->unique, 0, &entry, sizeof entry);
    } else {
        struct fuse_attr_out out = {.attr_valid = 3600, .attr = attributes(head->nodeid)};
        reply(head->unique, 0, &out, sizeof out);
    }
}

static void answer(const struct fuse_in_header *head, const void *body)
{
    const struct fuse_read_in *in = body;
    const struct fuse_write_in *write_in = body;
    struct fuse_open_out opened = {.open_flags = FOPEN_KEEP_CACHE};
    struct fuse_statfs_out space = {.st = {.bsize = BLOCK, .namelen = 255, .frsize = BLOCK}};
    struct fuse_write_out written = {0};
    switch (head->opcode) {
    case FUSE_INIT:
        answer_init(head->unique, body);
        break;
    case FUSE_LOOKUP:
        if (strcmp(body, NAME) != 0) {
            reply(head->unique, ENOENT, NULL, 0);
            break;
        }
        answer_attributes(head);
        break;
    case FUSE_GETATTR:
    case FUSE_SETATTR:
        answer_attributes(head);
        break;
    case FUSE_OPEN:
        reply(head->unique, 0, &opened, sizeof opened);
        break;
    case FUSE_READ:
        reply(head->unique, 0, live + in->offset, in->offset + in->size <= drive_bytes ? in->size : 0);
        break;
    case FUSE_WRITE:
        MUST(write_in->offset + write_in->size <= drive_bytes && write_in->size > 0);
        drive_write(write_in->offset, (const uint8_t *)body + sizeof *write_in, write_in->size);
        written.size = write_in->size;
        reply(head->unique, 0, &written, sizeof written);
        break;
    case FUSE_FSYNC:
        drive_flush();
        reply(head->unique, 0, NULL, 0);
        break;
    case FUSE_STATFS:
        reply(head->unique, 0, &space, sizeof space);
        break;
    case FUSE_FLUSH:
    case FUSE_RELEASE:
        reply(head->unique, 0, NULL, 0);
        break;
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
        break;
    case FUSE_FALLOCATE:
        reply(head->unique, EOPNOTSUPP, NULL, 0);
        break;
    default:
        reply(head->unique, ENOSYS, NULL, 0);
    }
}

static bool serve_device(void)
{
    static union { struct fuse_in_header head; uint8_t bytes[WRITE_MAX + 2 * BLOCK]; } request;
    ssize_t bytes = read(device, &request, sizeof request);
    if (bytes < 0) {
        return errno == EINTR || errno == EAGAIN || errno == ENOENT;
    }
    MUST((size_t)bytes >= sizeof request.head && (size_t)bytes == request.head.len);
    answer(&request.head, request.bytes + sizeof request.head);
    return true;
}

static bool serve_command(void)
{
    char line[4096], manner[16], path[4000];
    unsigned long seed;
    unsigned int number;
    size_t bytes = 0;
    while (bytes + 1 < sizeof line && read(STDIN_FILENO, line + bytes, 1) == 1 && line[bytes] != '\n') {
        bytes++;
    }
    if (line[bytes] != '\n') {
        return false;
    }
    line[bytes] = 0;
    if (sscanf(line, "cut %lu %15s %u %3999[^\n]", &seed, manner, &number, path) == 4) {
        drive_cut(seed, strcmp(manner, "first") == 0, number, path);
    } else if (sscanf(line, "slow %u", &number) == 1) {
        slow_ms = number;
    } else {
        fprintf(stderr, "volatile_drive: not understood: %s\n", line);
        return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    char options[100];
    if (argc != 3) {
        fprintf(stderr, "usage: %s MOUNT BYTES\n", argv[0]);
        return 2;
    }
    drive_bytes = strtoull(argv[2], NULL, 10);
    medium = memory(drive_bytes);
    live = memory(drive_bytes);
    device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    MUST(device >= 0 && drive_bytes % CHUNK == 0);
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", device);
    MUST(mount(NAME, argv[1], "fuse", MS_NOSUID | MS_NODEV, options) == 0);
    signal(SIGTERM, SIG_IGN); /* before our end the caller unmounts what lies on us */
    signal(SIGINT, SIG_IGN);
    puts("ready");
    fflush(stdout);
    struct pollfd both[] = {{device, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
    bool goes_on = true;
    while (goes_on) {
        MUST(poll(both, 2, -1) > 0 || errno == EINTR);
        goes_on = (both[0].revents == 0 || serve_device()) && (both[1].revents == 0 || serve_command());
    }
    umount2(argv[1], MNT_DETACH);
    return 0;
}
