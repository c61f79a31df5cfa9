/* Loading a filter program: every byte is checked here, once; filter.h has the format and the rules. */
#include "core/filter/filter.h"

#include <stdlib.h>
#include <string.h>

struct cursor { const uint8_t *at; size_t left; bool short_of; };

static uint32_t take(struct cursor *in, unsigned bytes)
{
    uint32_t value = 0;
    if (in->left < bytes) {
        in->short_of = true;
        in->left = 0;
        return 0;
    }
    for (unsigned i = 0; i < bytes; i++) {
        value |= (uint32_t)in->at[i] << (8 * i);
    }
    in->at += bytes;
    in->left -= bytes;
    return value;
}

static const uint8_t *take_text(struct cursor *in, uint32_t bytes)
{
    const uint8_t *text = in->at;
    if (in->left < bytes) {
        in->short_of = true;
        in->left = 0;
        return text;
    }
    in->at += bytes;
    in->left -= bytes;
    return text;
}

/* ---- one instruction ------------------------------------------------------------------------------- */
struct step { uint32_t pops, pushes; uint32_t target; bool jumps; };

static bool name_ok(struct cursor *in, uint32_t name_count)
{
    return take(in, 2) < name_count;
}

static bool texts_ok(struct cursor *in, uint32_t count)
{
    while (count-- && !in->short_of) {
        take_text(in, take(in, 2));
    }
    return true;
}

static bool map_ok(struct cursor *in)
{
    bool ok = true;
    for (int i = 0; i < 3; i++) {
        ok = take(in, 1) <= SHMQ_FAILED && ok;
    }
    return take(in, 1) == SHMQ_FAILED && ok;
}

/* Operands of the instructions that push a truth of their own. */
static bool leaf_ok(uint32_t code, struct cursor *in, uint32_t names)
{
    switch (code) {
    case SHMQ_FILTER_PUSH:
        return take(in, 1) <= SHMQ_UNKNOWN;
    case SHMQ_FILTER_FAIL:
        return true;
    case SHMQ_FILTER_MISSING:
    case SHMQ_FILTER_BARE:
        return name_ok(in, names);
    case SHMQ_FILTER_NUMBER:
        return name_ok(in, names) && take(in, 1) < SHMQ_RELATIONS && take(in, 1) <= SHMQ_UNKNOWN &&
               take(in, 1) < SHMQ_CLASSES && take_text(in, 8);
    case SHMQ_FILTER_TEXT:
        return name_ok(in, names) && take(in, 1) <= SHMQ_UNKNOWN && texts_ok(in, 1);
    case SHMQ_FILTER_PAIR:
        return name_ok(in, names) && name_ok(in, names) && take(in, 1) < SHMQ_RELATIONS;
    case SHMQ_FILTER_IN:
        return name_ok(in, names) && take(in, 1) <= 1 && texts_ok(in, take(in, 2));
    case SHMQ_FILTER_PART:
        return name_ok(in, names) && take(in, 1) < SHMQ_PARTS && take(in, 1) <= 1 && texts_ok(in, 1);
    default:
        return false;
    }
}

static bool step_read(struct cursor *in, uint32_t names, struct step *out)
{
    uint32_t code = take(in, 1);
    *out = (struct step){.pops = 1, .pushes = 1};
    switch (code) {
    case SHMQ_FILTER_NOT:
        return true;
    case SHMQ_FILTER_AND:
    case SHMQ_FILTER_OR:
    case SHMQ_FILTER_EQUAL:
        out->pops = 2;
        return true;
    case SHMQ_FILTER_JUMP_FALSE:
    case SHMQ_FILTER_JUMP_TRUE:
        out->target = take(in, 4);
        out->jumps = true;
        return true;
    case SHMQ_FILTER_TRUTH_NAME:
    case SHMQ_FILTER_NAME_TRUTH:
        return name_ok(in, names);
    case SHMQ_FILTER_MAP:
        return map_ok(in);
    default:
        out->pops = 0;
        return leaf_ok(code, in, names);
    }
}

/* ---- the code: depths[i] is the depth at the instruction that starts at i, plus one; 0 where none starts ---- */
static const char *depths_fill(const uint8_t *code, uint32_t bytes, uint32_t names, uint32_t depth_max, uint8_t *depths)
{
    struct cursor in = {.at = code, .left = bytes};
    uint32_t depth = 0;
    while (in.left) {
        struct step step;
        depths[in.at - code] = (uint8_t)(depth + 1);
        if (!step_read(&in, names, &step) || in.short_of) {
            return "an instruction is not one, or its operands are not";
        }
        if (depth < step.pops) {
            return "an instruction takes more than the stack has";
        }
        depth += step.pushes - step.pops;
        if (depth > depth_max) {
            return "the stack grows beyond its depth";
        }
    }
    depths[bytes] = (uint8_t)(depth + 1);
    return depth == 1 ? NULL : "the end leaves other than one value";
}

static const char *jumps_check(const uint8_t *code, uint32_t bytes, uint32_t names, const uint8_t *depths)
{
    struct cursor in = {.at = code, .left = bytes};
    while (in.left) {
        struct step step;
        uint32_t at = (uint32_t)(in.at - code);
        (void)step_read(&in, names, &step);
        if (step.jumps && (step.target <= at || step.target > bytes || depths[step.target] != depths[at])) {
            return "a jump does not go forward to an instruction, with the same stack";
        }
    }
    return NULL;
}

static const char *code_check(const uint8_t *code, uint32_t bytes, uint32_t names, uint32_t depth_max)
{
    uint8_t *depths = calloc((size_t)bytes + 1, 1);
    const char *reason;
    if (!depths) {
        return "";
    }
    reason = depths_fill(code, bytes, names, depth_max, depths);
    if (!reason) {
        reason = jumps_check(code, bytes, names, depths);
    }
    free(depths);
    return reason;
}

/* ---- names ----------------------------------------------------------------------------------------- */
static const char *names_fill(struct shmq_filter *filter, struct cursor *in)
{
    for (uint32_t i = 0; i < filter->name_count; i++) {
        struct shmq_filter_name *name = &filter->names[i];
        name->text.bytes = take(in, 2);
        name->text.data = take_text(in, name->text.bytes);
        if (in->short_of || !name->text.bytes) {
            return "the names are not as long as they say";
        }
        uint8_t *bucket = &filter->buckets[shmq_filter_bucket(name->text.data, name->text.bytes)];
        name->next = *bucket;
        *bucket = (uint8_t)(i + 1);
    }
    return in->left ? "the names are not as long as they say" : NULL;
}

static const char *head_check(struct cursor *in, uint32_t *names, uint32_t *depth, uint32_t *names_bytes,
                              uint32_t *code_bytes)
{
    if (in->left > SHMQ_FILTER_BYTES_MAX) {
        return "it is too long";
    }
    bool known = take(in, 4) == SHMQ_FILTER_MAGIC;
    *names = take(in, 2);
    *depth = take(in, 2);
    *names_bytes = take(in, 4);
    *code_bytes = take(in, 4);
    if (in->short_of || !known) {
        return "it does not begin as a program of this version";
    }
    if (*names > SHMQ_FILTER_NAMES_MAX || *depth > SHMQ_FILTER_DEPTH_MAX) {
        return "too many names, or too deep";
    }
    return *names_bytes <= in->left && *code_bytes == in->left - *names_bytes ? NULL
                                                                              : "its parts do not add up to its length";
}

struct shmq_filter *shmq_filter_load(const uint8_t *program, size_t bytes, const char **reason)
{
    struct cursor in = {.at = program, .left = bytes};
    uint32_t names, depth, names_bytes, code_bytes;
    *reason = head_check(&in, &names, &depth, &names_bytes, &code_bytes);
    if (*reason) {
        return NULL;
    }
    size_t table_bytes = names * sizeof(struct shmq_filter_name);
    struct shmq_filter *filter = calloc(1, sizeof *filter + table_bytes + in.left);
    if (!filter) {
        return NULL;
    }
    uint8_t *copy = (uint8_t *)(filter + 1) + table_bytes;
    memcpy(copy, in.at, in.left);
    filter->name_count = names;
    filter->names = (struct shmq_filter_name *)(filter + 1);
    filter->code = copy + names_bytes;
    filter->code_bytes = code_bytes;
    struct cursor named = {.at = copy, .left = names_bytes};
    *reason = names_fill(filter, &named);
    if (!*reason) {
        *reason = code_check(filter->code, code_bytes, names, depth);
    }
    if (*reason) {
        *reason = **reason ? *reason : NULL; /* "": no memory */
        free(filter);
        return NULL;
    }
    return filter;
}

void shmq_filter_free(struct shmq_filter *filter)
{
    free(filter);
}
