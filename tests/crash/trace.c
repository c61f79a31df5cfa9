/* See trace.h. */
#include "trace.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "arena.h"

#ifndef __x86_64__
#error "the stepper reads x86-64 registers and plants x86-64 breakpoints"
#endif

#define BREAKPOINT 0xCCu
#define PASSES_MAX 12u

pid_t trace_spawn(void (*before)(void *), void (*start)(void *), void *argument)
{
    fflush(stdout);
    pid_t child = fork();
    ARENA_MUST(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        before(argument);
        ARENA_MUST(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
        raise(SIGSTOP);
        start(argument);
        _exit(0);
    }
    int status;
    ARENA_MUST(waitpid(child, &status, 0) == child && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
    ARENA_MUST(ptrace(PTRACE_SETOPTIONS, child, NULL, PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD) == 0);
    return child;
}

static int go_on(pid_t child, int request)
{
    int status;
    ARENA_MUST(ptrace(request, child, NULL, NULL) == 0);
    ARENA_MUST(waitpid(child, &status, 0) == child);
    return WIFSTOPPED(status) ? WSTOPSIG(status) : -1;
}

int trace_step(pid_t child)
{
    int signal = go_on(child, PTRACE_SINGLESTEP);
    return signal == SIGTRAP ? 0 : signal;
}

uint64_t trace_instruction(pid_t child)
{
    errno = 0;
    long address = ptrace(PTRACE_PEEKUSER, child, offsetof(struct user, regs.rip), NULL);
    ARENA_MUST(errno == 0);
    return (uint64_t)address;
}

bool trace_run_to(pid_t child, uint64_t address, uint32_t skipped)
{
    if (trace_instruction(child) == address && skipped-- == 0) {
        return true;
    }
    errno = 0;
    long code = ptrace(PTRACE_PEEKTEXT, child, address, NULL);
    ARENA_MUST(errno == 0);
    long planted = (long)(((unsigned long)code & ~0xFFul) | BREAKPOINT);
    for (;;) {
        if (trace_instruction(child) == address && trace_step(child) != 0) {
            return false; /* stepped off the place first: a breakpoint there would be hit at once */
        }
        ARENA_MUST(ptrace(PTRACE_POKETEXT, child, address, planted) == 0);
        int signal = trace_instruction(child) == address ? SIGTRAP : go_on(child, PTRACE_CONT);
        uint64_t at = signal == -1 ? 0 : trace_instruction(child);
        if (signal == -1) {
            return false;
        }
        ARENA_MUST(ptrace(PTRACE_POKETEXT, child, address, code) == 0);
        if (signal != SIGTRAP || (at != address && at != address + 1)) {
            return false;
        }
        ARENA_MUST(ptrace(PTRACE_POKEUSER, child, offsetof(struct user, regs.rip), address) == 0);
        if (skipped-- == 0) {
            return true;
        }
    }
}

void trace_record(pid_t child, const _Atomic uint32_t *done, struct trace_path *path)
{
    uint64_t room = 0;
    *path = (struct trace_path){.addresses = NULL, .count = 0};
    while (atomic_load(done) == 0) {
        if (path->count == room) {
            room = room * 2 + 4096;
            path->addresses = realloc(path->addresses, room * sizeof *path->addresses);
            ARENA_MUST(path->addresses != NULL);
        }
        path->addresses[path->count++] = trace_instruction(child);
        ARENA_MUST(trace_step(child) == 0);
    }
    trace_end(child, false);
}

bool trace_run_along(pid_t child, const struct trace_path *path, uint64_t at)
{
    uint32_t passed = 0;
    for (uint64_t i = 0; i < at; i++) {
        passed += path->addresses[i] == path->addresses[at];
    }
    return passed <= PASSES_MAX && trace_run_to(child, path->addresses[at], passed);
}

uint32_t trace_count_calls(pid_t child, const _Atomic uint32_t *counting, uint32_t value, long *last)
{
    uint32_t calls = 0;
    bool inside = false;
    for (int signal = 0; signal != -1;) {
        signal = go_on(child, PTRACE_SYSCALL);
        if (signal != (SIGTRAP | 0x80)) {
            continue;
        }
        inside = !inside;
        if (inside && atomic_load(counting) == value) {
            calls++;
            *last = ptrace(PTRACE_PEEKUSER, child, offsetof(struct user, regs.orig_rax), NULL);
        }
    }
    return calls;
}

void trace_end(pid_t child, bool by_force)
{
    int status = 0;
    if (by_force) {
        kill(child, SIGKILL);
    } else if (ptrace(PTRACE_CONT, child, NULL, NULL) != 0) {
        return; /* gone and reaped by the last step */
    }
    while (waitpid(child, &status, 0) == child && !WIFEXITED(status) && !WIFSIGNALED(status)) {
        ptrace(PTRACE_CONT, child, NULL, NULL);
    }
}

void trace_pin(void)
{
    cpu_set_t set;
    int processor = sched_getcpu();
    CPU_ZERO(&set);
    if (processor >= 0) {
        CPU_SET(processor, &set);
        (void)sched_setaffinity(0, sizeof set, &set);
    }
}
