/* Processes: who is who after a pid was used again, and the proof that one has died.
 *
 * A process is its pid and its start time, field 22 of /proc/<pid>/stat. Words in shared memory name their owner by both
 * (claims, client slots), so memory of a living process is never taken for that of a dead one that had its number.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/segments/segments.h"

/* Start time from /proc, 0 for a process that has ended and was not reaped; false when it cannot be read. */
static bool read_start(uint32_t pid, uint64_t *start)
{
    char path[40], text[1024];
    /* Two slashes: qemu, which runs the programs of other processors, makes up the file of a process that asks for its
     * own, with a start time that the others do not see. */
    snprintf(path, sizeof path, "/proc//%u/stat", pid);
    int fd = shmq_open_at(AT_FDCWD, path, O_RDONLY);
    if (fd < 0) {
        return false;
    }
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    text[got > 0 ? got : 0] = 0;
    char *field = strrchr(text, ')'); /* the command name may hold anything, also ')' */
    if (field == NULL || field[1] == 0) {
        return false;
    }
    bool ended = field[2] == 'Z' || field[2] == 'X';
    for (int number = 2; number < 20 && field != NULL; number++) {
        field = strchr(field + 1, ' ');
    }
    /* A first thread that has ended is a zombie too, while the others go on. */
    ended = ended && (field == NULL || strtoul(field + 1, NULL, 10) <= 1);
    for (int number = 20; number < 22 && field != NULL; number++) {
        field = strchr(field + 1, ' ');
    }
    *start = ended || field == NULL ? 0 : strtoull(field + 1, NULL, 10);
    return true;
}

uint64_t shmq_process_start(uint32_t pid)
{
    uint64_t start;
    return read_start(pid, &start) ? start : 0;
}

/* `start` is 0 where it is not known: then any process of that number will do. */
bool shmq_process_died(uint32_t pid, uint64_t start)
{
    uint64_t now;
    if ((int32_t)pid <= 0) {
        return true;
    }
    /* Not to be able to look, for want of a descriptor or because /proc hides it, proves nothing. */
    if (read_start(pid, &now)) {
        return now == 0 || (start != 0 && now != start);
    }
    return kill((pid_t)pid, 0) != 0 && errno == ESRCH;
}
