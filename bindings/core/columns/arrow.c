/* Handing columns over through the Arrow C data interface: the buffers change their owner, nothing is copied.
 *
 *   struct of the batch ── child a column ── map: entries struct ── names, values
 *
 * Each node frees its own buffers, and its children that are still there: an importer may take a child out, which then
 * lives on (its `release` is moved away). What is handed over is freed by its new owner, on any thread.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/columns/columns.h"

#define NULLABLE INT64_C(2) /* ARROW_FLAG_NULLABLE */
#define BUFFERS_MAX 3

/* ---- schema ---------------------------------------------------------------------------------------------- */
struct schema_node { struct ArrowSchema **pointers; struct ArrowSchema *children; };

static void schema_release(struct ArrowSchema *schema)
{
    struct schema_node *node = schema->private_data;
    for (int64_t i = 0; i < schema->n_children; i++) {
        if (node->children[i].release) {
            node->children[i].release(&node->children[i]);
        }
    }
    free(node->pointers);
    free(node->children);
    free(node);
    schema->release = NULL;
}

static bool schema_make(struct ArrowSchema *out, const char *format, const char *name, int64_t flags, uint32_t children)
{
    struct schema_node *node = calloc(1, sizeof *node);
    *out = (struct ArrowSchema){.format = format, .name = name, .flags = flags};
    if (!node) {
        return false;
    }
    node->pointers = calloc(children + 1, sizeof *node->pointers);
    node->children = calloc(children + 1, sizeof *node->children);
    out->private_data = node;
    out->release = schema_release;
    if (!node->pointers || !node->children) {
        out->release(out);
        return false;
    }
    for (uint32_t i = 0; i < children; i++) {
        node->pointers[i] = &node->children[i];
    }
    out->n_children = children;
    out->children = node->pointers;
    return true;
}

static bool map_schema(struct ArrowSchema *map)
{
    return schema_make(map->children[0], "+s", "entries", 0, 2) &&
           schema_make(map->children[0]->children[0], "u", "key", 0, 0) &&
           schema_make(map->children[0]->children[1], "u", "value", NULLABLE, 0);
}

enum shmq_status shmq_arrow_schema(const uint8_t *order, uint32_t count, struct ArrowSchema *out)
{
    static const char *const formats[] = {
        [SHMQ_KIND_INT] = "i", [SHMQ_KIND_LONG] = "l", [SHMQ_KIND_TIME] = "tsu:UTC",
        [SHMQ_KIND_TEXT] = "u", [SHMQ_KIND_BYTES] = "z", [SHMQ_KIND_MAP] = "+m",
    };
    bool ok = schema_make(out, "+s", "", 0, count);
    for (uint32_t i = 0; ok && i < count; i++) {
        const struct shmq_column_type *type = &shmq_column_types[order[i]];
        bool map = type->kind == SHMQ_KIND_MAP;
        ok = schema_make(out->children[i], formats[type->kind], type->name, NULLABLE, map ? 1 : 0) &&
             (!map || map_schema(out->children[i]));
    }
    if (!ok && out->release) {
        out->release(out);
    }
    errno = ENOMEM;
    return ok ? SHMQ_OK : SHMQ_SYSTEM;
}

/* ---- array ------------------------------------------------------------------------------------------------ */
struct array_node {
    const void *buffers[BUFFERS_MAX];
    void *owned[BUFFERS_MAX];
    struct ArrowArray **pointers;
    struct ArrowArray *children;
};

static void array_release(struct ArrowArray *array)
{
    struct array_node *node = array->private_data;
    for (int64_t i = 0; i < array->n_children; i++) {
        if (node->children[i].release) {
            node->children[i].release(&node->children[i]);
        }
    }
    for (int i = 0; i < BUFFERS_MAX; i++) {
        free(node->owned[i]);
    }
    free(node->pointers);
    free(node->children);
    free(node);
    array->release = NULL;
}

static bool array_make(struct ArrowArray *out, int64_t rows, int64_t buffers, uint32_t children)
{
    struct array_node *node = calloc(1, sizeof *node);
    *out = (struct ArrowArray){.length = rows, .n_buffers = buffers};
    if (!node) {
        return false;
    }
    node->pointers = calloc(children + 1, sizeof *node->pointers);
    node->children = calloc(children + 1, sizeof *node->children);
    out->private_data = node;
    out->buffers = node->buffers;
    out->release = array_release;
    if (!node->pointers || !node->children) {
        out->release(out);
        return false;
    }
    for (uint32_t i = 0; i < children; i++) {
        node->pointers[i] = &node->children[i];
    }
    out->n_children = children;
    out->children = node->pointers;
    return true;
}

static void buffer_move(struct ArrowArray *out, int at, struct shmq_bytes *bytes)
{
    struct array_node *node = out->private_data;
    node->buffers[at] = node->owned[at] = bytes->data;
    *bytes = (struct shmq_bytes){0};
}

/* Offsets have one number even where there is no row. */
static bool offsets_ready(struct shmq_array *array)
{
    static const int32_t zero = 0;
    return array->fixed.bytes || shmq_bytes_put(&array->fixed, &zero, sizeof zero);
}

static bool array_move(struct ArrowArray *out, struct shmq_array *array, bool has_bytes, uint32_t children)
{
    bool has_offsets = has_bytes || children;
    /* A buffer of no bytes is a pointer all the same: some readers take NULL for "not there". */
    if ((has_offsets && !offsets_ready(array)) || !shmq_bytes_put(&array->fixed, NULL, 0) ||
        (has_bytes && !shmq_bytes_put(&array->bytes, NULL, 0)) ||
        !array_make(out, array->rows, has_bytes ? 3 : 2, children)) {
        return false;
    }
    out->null_count = array->null_count;
    buffer_move(out, 0, &array->nulls);
    buffer_move(out, 1, &array->fixed);
    if (has_bytes) {
        buffer_move(out, 2, &array->bytes);
    }
    return true;
}

static bool column_move(struct ArrowArray *out, struct shmq_columns *columns, enum shmq_column column)
{
    enum shmq_column_kind kind = shmq_column_types[column].kind;
    struct shmq_array *array = &columns->arrays[column];
    if (kind != SHMQ_KIND_MAP) {
        return array_move(out, array, kind == SHMQ_KIND_TEXT || kind == SHMQ_KIND_BYTES, 0);
    }
    return array_move(out, array, false, 1) && array_make(out->children[0], columns->map_names.rows, 1, 2) &&
           array_move(out->children[0]->children[0], &columns->map_names, true, 0) &&
           array_move(out->children[0]->children[1], &columns->map_values, true, 0);
}

enum shmq_status shmq_arrow_array(struct shmq_columns *columns, struct ArrowArray *out)
{
    bool ok = array_make(out, columns->rows, 1, columns->order_count) && shmq_columns_finish(columns);
    for (uint32_t i = 0; ok && i < columns->order_count; i++) {
        ok = column_move(out->children[i], columns, columns->order[i]);
    }
    if (!ok && out->release) {
        out->release(out);
    }
    shmq_columns_clear(columns);
    errno = ENOMEM;
    return ok ? SHMQ_OK : SHMQ_SYSTEM;
}
