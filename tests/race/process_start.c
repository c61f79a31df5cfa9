/* Prints the number and the start time of this process as it sees them itself, and stays until its input ends. */
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "core/internal.h"

int main(void)
{
    printf("%d %" PRIu64 "\n", (int)getpid(), shmq_process_start((uint32_t)getpid()));
    fflush(stdout);
    return getchar() == EOF ? 0 : 1;
}
