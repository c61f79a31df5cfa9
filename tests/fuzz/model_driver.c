/* Runs the core step by step for test_model.py: one command a line on standard input, one answer a line on standard output.
 *
 *   append QUEUE BYTES ID WAIT       -> status queue_offset log_position
 *   batch QUEUE COUNT BYTES ID       -> status queue_offset log_position
 *   die QUEUE BYTES ID NTH           -> name of the named point at which a child appending this was killed, or "alive"
 *   open QUEUE BYTES TAIL WAIT       -> status log_position
 *   commit BYTES ID                  -> status queue_offset log_position; on EVICTED it aborts
 *   abort | age                      -> 0; let the claim look as if its owner had had its time
 *   persist QUEUE N                  -> 0; units below N count as written to files
 *   release QUEUE ORDINAL COUNT      -> frames released
 *   units QUEUE FIRST COUNT          -> how many units were read
 *   topic NAME QUEUES | find NAME | queue NAME ID | delete NAME     -> status | index | queue | status (-1: none)
 *   flush | reattach | state | check -> status | 0 | log end, offset_max of each queue | violations and the first
 *
 * WAIT is in milliseconds; 0 never blocks. It does not know what the answers should be.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "check.h"

#ifndef SHMQ_TEST_POINTS
#error "compile with -DSHMQ_TEST_POINTS"
#endif

#define BODY_MAX (64u << 10)
#define BATCH_MAX 300u

struct death { uint32_t nth; uint32_t seen; bool armed; char name[40]; };

static struct arena arena;
static struct shmq_store store;
static struct shmq_claim_handle claim;
static struct death *death; /* shared with the child that dies */

void shmq_test_point(const char *name)
{
    if (death != NULL && death->armed && death->seen++ == death->nth) {
        snprintf(death->name, sizeof death->name, "%s", name);
        raise(SIGKILL);
    }
}

static uint64_t deadline(uint64_t wait_ms)
{
    return wait_ms == 0 ? 0 : shmq_io_posix.monotonic_ns() + wait_ms * UINT64_C(1000000);
}

static enum shmq_status append(uint32_t queue, uint32_t bytes, uint32_t id, uint64_t wait_ms, struct shmq_appended *out)
{
    static uint8_t body[BODY_MAX];
    struct message message = {.id = id, .queue = queue, .body_bytes = bytes};
    struct shmq_spec spec = message_spec(&message, body);
    return shmq_append(&store, queue, &spec, message_tag(&message), deadline(wait_ms), out);
}

static void run_batch(uint32_t queue, uint32_t count, uint32_t bytes, uint32_t id)
{
    static uint8_t bodies[BATCH_MAX * 256];
    static struct shmq_spec specs[BATCH_MAX];
    static int64_t tags[BATCH_MAX];
    struct shmq_appended out = {0};
    ARENA_MUST(count <= BATCH_MAX && bytes <= 256);
    for (uint32_t i = 0; i < count; i++) {
        struct message message = {.id = id + i, .queue = queue, .body_bytes = bytes};
        specs[i] = message_spec(&message, bodies + (size_t)i * 256);
        tags[i] = message_tag(&message);
    }
    enum shmq_status status = shmq_append_batch(&store, queue, specs, tags, count, deadline(0), &out);
    printf("%d %" PRIu64 " %" PRIu64 "\n", status, out.queue_offset, out.log_position);
}

static void run_death(uint32_t queue, uint32_t bytes, uint32_t id, uint32_t nth)
{
    int status;
    *death = (struct death){.nth = nth, .armed = false};
    pid_t child = fork();
    ARENA_MUST(child >= 0);
    if (child == 0) {
        struct shmq_appended out;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        arena_attach(&arena, &store, true);
        death->armed = true;
        _exit(append(queue, bytes, id, 0, &out) == SHMQ_OK ? 0 : 1);
    }
    ARENA_MUST(waitpid(child, &status, 0) == child);
    death->armed = false;
    if (shmq_lock(&store, deadline(1000)) == SHMQ_OK) { /* the next process repairs */
        shmq_unlock(&store);
    }
    printf("%s\n", WIFSIGNALED(status) ? death->name : WEXITSTATUS(status) == 0 ? "alive" : "refused");
}

static void run_commit(uint32_t bytes, uint32_t id)
{
    static uint8_t body[BODY_MAX];
    struct shmq_appended out = {0};
    struct message message = {.id = id, .queue = claim.queue, .body_bytes = bytes};
    struct shmq_spec spec = message_spec(&message, body);
    memcpy(claim.body, body, bytes);
    spec.body = NULL;
    spec.body_crc_raw = shmq_crc32_raw(UINT32_MAX, body, bytes);
    enum shmq_status status = shmq_claim_commit(&store, &claim, &spec, message_tag(&message), deadline(1000), &out);
    if (status == SHMQ_EVICTED) {
        shmq_claim_abort(&store, &claim);
    }
    printf("%d %" PRIu64 " %" PRIu64 "\n", status, out.queue_offset, out.log_position);
}

static void run_units(uint32_t queue, uint64_t first, uint32_t count)
{
    static uint8_t units[1000 * SHMQ_UNIT_BYTES];
    ARENA_MUST(count <= 1000);
    printf("%u\n", shmq_units_read(&store, queue, first, count, units));
}

/* One record of the log against its unit; counts per queue. */
static void check_one(const struct shmq_view *view, const uint8_t *data, uint64_t next[ARENA_QUEUES],
                      struct verdict *verdict)
{
    uint8_t bytes[SHMQ_UNIT_BYTES];
    struct shmq_unit unit;
    if (view->sys_flag == SHMQ_SYS_FLAG_ROLLBACK) {
        return;
    }
    if (shmq_record_verify(data, view) != SHMQ_OK || view->queue_id >= ARENA_QUEUES ||
        view->queue_offset != next[view->queue_id]++) {
        verdict_add(verdict, 3, "record at %" PRIu64, view->log_position);
        return;
    }
    if (shmq_units_read(&store, view->queue_id, view->queue_offset, 1, bytes) == 1) {
        shmq_unit_unpack(bytes, &unit);
        if (unit.log_position != view->log_position || unit.record_bytes != view->record_bytes) {
            verdict_add(verdict, 4, "unit of the record at %" PRIu64, view->log_position);
        }
    }
}

static void run_check(void)
{
    uint64_t next[ARENA_QUEUES] = {0}, end = shmq_load_acquire(&store.log->end), file_bytes = arena.options.file_bytes;
    struct verdict verdict = {0};
    for (uint64_t at = 0; at < end;) {
        struct shmq_view view;
        enum shmq_status status = shmq_record_decode(arena_log(&arena, at), file_bytes - at % file_bytes, &view);
        if (status == SHMQ_EMPTY && arena_log(&arena, at)[0] + arena_log(&arena, at)[1] + arena_log(&arena, at)[2] +
                                            arena_log(&arena, at)[3] != 0) {
            at += file_bytes - at % file_bytes;
            continue;
        }
        if (status != SHMQ_OK || view.log_position != at) {
            verdict_add(&verdict, 2, "no record at %" PRIu64, at);
            break;
        }
        check_one(&view, arena_log(&arena, at), next, &verdict);
        at += view.record_bytes;
    }
    printf("%" PRIu64 " %s\n", verdict.violations, verdict.first);
}

static void run_state(void)
{
    printf("%" PRIu64, shmq_load_acquire(&store.log->end));
    for (uint32_t queue = 0; queue < ARENA_QUEUES; queue++) {
        printf(" %" PRIu64, shmq_load_acquire(&store.queues[queue].offset_max));
    }
    printf("\n");
}

static bool run_table(const char *line)
{
    char name[100];
    uint32_t number, index;
    if (sscanf(line, "topic %99s %u", name, &number) == 2) {
        printf("%d\n", shmq_topic_put(&store, name, number, number, 6, 0, 0, &index));
    } else if (sscanf(line, "find %99s", name) == 1) {
        printf("%d\n", (int)shmq_topic_find(&store, name, strlen(name)));
    } else if (sscanf(line, "queue %99s %u", name, &number) == 2) {
        printf("%d\n", (int)shmq_topic_queue(&store, shmq_topic_find(&store, name, strlen(name)), number));
    } else if (sscanf(line, "delete %99s", name) == 1) {
        printf("%d\n", shmq_topic_delete(&store, name));
    } else {
        return false;
    }
    return true;
}

static void run_plain(const char *line)
{
    if (strncmp(line, "abort", 5) == 0) {
        shmq_claim_abort(&store, &claim);
        printf("0\n");
    } else if (strncmp(line, "age", 3) == 0) {
        store.log->claim.opened_ns = 1;
        printf("0\n");
    } else if (strncmp(line, "flush", 5) == 0) {
        printf("%d\n", shmq_flush(&store, NULL));
    } else if (strncmp(line, "reattach", 8) == 0) {
        shmq_store_detach(&store);
        arena_attach(&arena, &store, true);
        printf("0\n");
    } else if (strncmp(line, "state", 5) == 0) {
        run_state();
    } else if (strncmp(line, "check", 5) == 0) {
        run_check();
    } else {
        arena_die("unknown command: %s", line);
    }
}

static void run_line(const char *line)
{
    uint64_t a, b, c, d;
    struct shmq_appended out = {0};
    enum shmq_status status;
    if (sscanf(line, "append %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64, &a, &b, &c, &d) == 4) {
        status = append((uint32_t)a, (uint32_t)b, (uint32_t)c, d, &out);
        printf("%d %" PRIu64 " %" PRIu64 "\n", status, out.queue_offset, out.log_position);
    } else if (sscanf(line, "batch %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64, &a, &b, &c, &d) == 4) {
        run_batch((uint32_t)a, (uint32_t)b, (uint32_t)c, (uint32_t)d);
    } else if (sscanf(line, "die %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64, &a, &b, &c, &d) == 4) {
        run_death((uint32_t)a, (uint32_t)b, (uint32_t)c, (uint32_t)d);
    } else if (sscanf(line, "open %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64, &a, &b, &c, &d) == 4) {
        status = shmq_claim_open(&store, (uint32_t)a, (uint32_t)b, (uint32_t)c, deadline(d), &claim);
        printf("%d %" PRIu64 "\n", status, status == SHMQ_OK ? claim.log_position : 0);
    } else if (sscanf(line, "commit %" SCNu64 " %" SCNu64, &a, &b) == 2) {
        run_commit((uint32_t)a, (uint32_t)b);
    } else if (sscanf(line, "persist %" SCNu64 " %" SCNu64, &a, &b) == 2) {
        atomic_store(&store.queues[a].persisted, b);
        printf("0\n");
    } else if (sscanf(line, "release %" SCNu64 " %" SCNu64 " %" SCNu64, &a, &b, &c) == 3) {
        printf("%u\n", shmq_frames_release(&store, (uint32_t)a, b, (uint32_t)c, deadline(1000)));
    } else if (sscanf(line, "units %" SCNu64 " %" SCNu64 " %" SCNu64, &a, &b, &c) == 3) {
        run_units((uint32_t)a, b, (uint32_t)c);
    } else if (!run_table(line)) {
        run_plain(line);
    }
}

int main(int argc, char **argv)
{
    char line[200];
    const struct arena_options options = {.file_bytes = argc > 1 ? strtoull(argv[1], NULL, 10) : 64u << 10,
                                          .file_count = 4, .frame_max = 8, .frame_ready = 3};
    death = mmap(NULL, sizeof *death, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ARENA_MUST(death != MAP_FAILED);
    arena_create(&arena, &options);
    arena_attach(&arena, &store, true);
    store.processors = 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin) != NULL) {
        run_line(line);
    }
    arena_destroy(&arena);
    return 0;
}
