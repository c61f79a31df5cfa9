/* Watching one child: start it stopped, step it, run it to a chosen instruction, count its system calls, end it.
 *
 * Owns ptrace. It does not know stores. x86-64 Linux; the child is a fork of this process, so both have the same addresses.
 */
#ifndef SHMQ_TEST_TRACE_H
#define SHMQ_TEST_TRACE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Run `start` in a child that is stopped before and dies with this process; what `before` does is not watched. */
pid_t trace_spawn(void (*before)(void *), void (*start)(void *), void *argument);
/* One instruction. 0: done; otherwise the signal the child got, or -1 when it ended. */
int trace_step(pid_t child);
uint64_t trace_instruction(pid_t child);
/* Run until the instruction at `address` is about to execute for the (skipped + 1)th time; false: the child got there
 * never. */
bool trace_run_to(pid_t child, uint64_t address, uint32_t skipped);
/* The instructions of a child from where it stands until *done is not 0; the child is ended. */
struct trace_path { uint64_t *addresses, count; };
void trace_record(pid_t child, const _Atomic uint32_t *done, struct trace_path *path);
/* Run until the path's instruction `at` is about to execute. False: that is inside a long loop, whose first rounds are
 * enough, or the child got there never. */
bool trace_run_along(pid_t child, const struct trace_path *path, uint64_t at);
/* Let it run to its end, counting the system calls it enters while *counting holds `value`; the last one's number too. */
uint32_t trace_count_calls(pid_t child, const _Atomic uint32_t *counting, uint32_t value, long *last);
/* By force: SIGKILL. Otherwise: go on to the end. Reaps the child. */
void trace_end(pid_t child, bool by_force);
/* Watcher and child on one processor: a step is a switch between the two, and waking another processor costs more. */
void trace_pin(void);

#endif
