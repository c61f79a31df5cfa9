/* Test only: decode bytes into every column, hand them over, and look at each value as an importer would. */
#include <string.h>

#include "core/columns/columns.h"

void shmq_test_point(const char *name)
{
    (void)name;
}

static uint64_t sum_of(const uint8_t *data, int64_t bytes)
{
    uint64_t sum = 0;
    for (int64_t i = 0; i < bytes; i++) {
        sum += data[i];
    }
    return sum;
}

/* Touches every byte the array claims to have, under the sanitizer's eyes. */
static uint64_t array_sum(const struct ArrowSchema *schema, const struct ArrowArray *array)
{
    const int32_t *offsets = array->n_buffers > 1 ? array->buffers[1] : NULL;
    uint64_t sum = array->n_buffers && array->buffers[0] ? sum_of(array->buffers[0], (array->length + 7) / 8) : 0;
    switch (schema->format[0]) {
    case 'i': sum += sum_of(array->buffers[1], array->length * 4); break;
    case 'l':
    case 't': sum += sum_of(array->buffers[1], array->length * 8); break;
    case 'u':
    case 'z': sum += sum_of(array->buffers[2], offsets[array->length]); break;
    default: break;
    }
    if (strcmp(schema->format, "+m") == 0 && offsets[array->length] != array->children[0]->length) {
        __builtin_trap();
    }
    for (int64_t i = 0; i < array->n_children; i++) {
        sum += array_sum(schema->children[i], array->children[i]);
    }
    return sum;
}

__attribute__((visibility("default"))) int check_columns(const uint8_t *data, size_t bytes, uint32_t rows_max)
{
    uint8_t order[SHMQ_COLUMN_COUNT];
    struct shmq_columns columns;
    struct ArrowSchema schema;
    struct ArrowArray array;
    struct shmq_gather gather = {.rows_max = rows_max, .bytes_max = UINT64_MAX, .ms_end = UINT64_MAX};
    size_t consumed;
    for (int i = 0; i < SHMQ_COLUMN_COUNT; i++) {
        order[i] = (uint8_t)(SHMQ_COLUMN_COUNT - 1 - i);
    }
    if (shmq_columns_init(&columns, order, SHMQ_COLUMN_COUNT) != SHMQ_OK) {
        return -1;
    }
    columns.topic = columns.broker = (struct shmq_slice){.data = "orders", .bytes = 6};
    (void)shmq_gather_bytes(data, bytes, &gather, &columns, &consumed);
    int rows = (int)columns.rows;
    if (shmq_arrow_schema(order, SHMQ_COLUMN_COUNT, &schema) != SHMQ_OK) {
        return -2;
    }
    if (shmq_arrow_array(&columns, &array) != SHMQ_OK) {
        return -3;
    }
    (void)array_sum(&schema, &array);
    struct ArrowArray taken = *array.children[0]; /* an importer may move a child out */
    array.children[0]->release = NULL;
    array.release(&array);
    (void)array_sum(schema.children[0], &taken);
    taken.release(&taken);
    schema.release(&schema);
    return consumed <= bytes ? rows : -4;
}
