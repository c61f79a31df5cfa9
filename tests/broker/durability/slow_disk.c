/* A disk whose syncs take their time: preloaded into a broker's processes. The file SLOW_DISK says how many milliseconds a
 * sync takes; without it the disk is as fast as it is. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void wait_for_disk(void)
{
    const char *path = getenv("SLOW_DISK");
    FILE *file = path ? fopen(path, "re") : NULL;
    long ms = 0;
    if (file) {
        if (fscanf(file, "%ld", &ms) != 1) {
            ms = 0;
        }
        fclose(file);
    }
    struct timespec left = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    while (nanosleep(&left, &left) != 0) {
    }
}

typedef int (*sync_call)(int descriptor);

int fdatasync(int descriptor)
{
    wait_for_disk();
    return ((sync_call)dlsym(RTLD_NEXT, "fdatasync"))(descriptor);
}

int fsync(int descriptor)
{
    wait_for_disk();
    return ((sync_call)dlsym(RTLD_NEXT, "fsync"))(descriptor);
}
