/* PROGRAM [stride] [seed] [operation …]: exit status 1 after a violation. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "operations.h"
#include "trace.h"

int main(int argc, char **argv)
{
    const uint64_t stride = argc > 1 ? strtoull(argv[1], NULL, 10) : 1, seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
    uint64_t violations = 0;
    trace_pin();
    for (uint32_t i = 0; i < operation_count; i++) {
        bool chosen = argc <= 3;
        for (int k = 3; k < argc; k++) {
            chosen |= strcmp(argv[k], operation_names[i]) == 0;
        }
        violations += chosen ? operation_run(i, stride, seed) : 0;
    }
    return violations == 0 ? 0 : 1;
}
