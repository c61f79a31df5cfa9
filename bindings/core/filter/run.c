/* Running a filter program over property text; filter.h has the instructions and the rules.
 *
 * The values a program can meet are properties (text, or missing) and the truths of what was compared; constants are
 * part of the instructions. What Java would throw ends the run as FAILED, as RocketMQ's broker takes it: no match.
 */
#include "core/filter/filter.h"

#include <math.h>
#include <string.h>

#include "shmq.h"

#define WORK_MAX (UINT32_C(2) << 20) /* bytes looked at and instructions together: a few milliseconds at the worst */
#define STEP_WORK 16u

struct run {
    const uint8_t *at;         /* operands of the instruction */
    uint32_t work;
    struct shmq_text values[SHMQ_FILTER_NAMES_MAX];
};

static inline uint32_t read16(struct run *run)
{
    uint16_t value;
    memcpy(&value, run->at, 2);
    run->at += 2;
    return value;
}

static inline uint32_t read8(struct run *run)
{
    return *run->at++;
}

static inline struct shmq_text read_text(struct run *run)
{
    struct shmq_text text = {.bytes = read16(run)};
    text.data = run->at;
    run->at += text.bytes;
    return text;
}

static inline const struct shmq_text *read_name(struct run *run)
{
    return &run->values[read16(run)];
}

static inline bool same(const struct shmq_text *left, const struct shmq_text *right)
{
    return left->bytes == right->bytes && !memcmp(left->data, right->data, left->bytes);
}

/* ---- properties ------------------------------------------------------------------------------------ */
/* A later pair replaces an earlier one, as in RocketMQ's map; one without a name or a value does not count. */
static void pair_keep(const struct shmq_filter *filter, struct run *run, const uint8_t *pair, size_t bytes)
{
    const uint8_t *name_end = bytes ? memchr(pair, SHMQ_NAME_END, bytes) : NULL;
    size_t name_bytes = name_end ? (size_t)(name_end - pair) : 0;
    if (!name_bytes || name_bytes + 1 == bytes) {
        return;
    }
    uint32_t number = filter->buckets[shmq_filter_bucket(pair, name_bytes)];
    for (; number; number = filter->names[number - 1].next) {
        const struct shmq_text *name = &filter->names[number - 1].text;
        if (name->bytes == name_bytes && !memcmp(name->data, pair, name_bytes)) {
            run->values[number - 1] =
                (struct shmq_text){.data = name_end + 1, .bytes = (uint32_t)(bytes - name_bytes - 1)};
            return;
        }
    }
}

static void values_read(const struct shmq_filter *filter, struct run *run, const uint8_t *text, size_t bytes)
{
    const uint8_t *end = text + bytes;
    while (text != end) {
        const uint8_t *stop = memchr(text, SHMQ_VALUE_END, (size_t)(end - text));
        const uint8_t *pair_end = stop ? stop : end;
        pair_keep(filter, run, text, (size_t)(pair_end - text));
        text = stop ? stop + 1 : end;
    }
}

/* ---- comparing ------------------------------------------------------------------------------------- */
static enum shmq_truth judge(int order, uint32_t relation)
{
    switch (relation) {
    case SHMQ_RELATION_LESS:
        return order < 0;
    case SHMQ_RELATION_LESS_EQUAL:
        return order <= 0;
    case SHMQ_RELATION_GREATER:
        return order > 0;
    case SHMQ_RELATION_GREATER_EQUAL:
        return order >= 0;
    default:
        return order == 0;
    }
}

/* Double.compareTo: -0.0 below 0.0, NaN equal to itself and above everything. */
static int double_order(double left, double right)
{
    if (left < right || left > right) {
        return left < right ? -1 : 1;
    }
    int64_t bits[2];
    left = isnan(left) ? NAN : left;
    right = isnan(right) ? NAN : right;
    memcpy(&bits[0], &left, 8);
    memcpy(&bits[1], &right, 8);
    return bits[0] == bits[1] ? 0 : bits[0] < bits[1] ? -1 : 1;
}

static enum shmq_truth number_compare(struct run *run)
{
    const struct shmq_text *value = read_name(run);
    uint32_t relation = read8(run), missing = read8(run), class = read8(run);
    int64_t whole, given;
    double real, limit;
    memcpy(&whole, run->at, 8);
    memcpy(&limit, run->at, 8);
    run->at += 8;
    if (!value->data) {
        return missing;
    }
    run->work += value->bytes;
    if (class == SHMQ_CLASS_DOUBLE) {
        return shmq_text_double(value->data, value->bytes, &real) ? judge(double_order(real, limit), relation)
                                                                  : SHMQ_FAILED;
    }
    int64_t least = class == SHMQ_CLASS_INTEGER ? INT32_MIN : INT64_MIN;
    int64_t most = class == SHMQ_CLASS_INTEGER ? INT32_MAX : INT64_MAX;
    if (!shmq_text_integer(value->data, value->bytes, least, most, &given)) {
        return SHMQ_FAILED;
    }
    return judge(given < whole ? -1 : given > whole, relation);
}

static enum shmq_truth pair_compare(struct run *run)
{
    const struct shmq_text *left = read_name(run), *right = read_name(run);
    uint32_t relation = read8(run);
    double first, second;
    run->work += left->bytes + right->bytes;
    if (relation == SHMQ_RELATION_EQUAL) {
        if (!left->data) {
            return right->data ? SHMQ_UNKNOWN : SHMQ_TRUE; /* null = null holds there, as it does in Java */
        }
        return right->data && same(left, right);
    }
    if (!left->data || !right->data) {
        return SHMQ_UNKNOWN;
    }
    if (!shmq_text_double(left->data, left->bytes, &first) || !shmq_text_double(right->data, right->bytes, &second)) {
        return SHMQ_FAILED;
    }
    return judge(double_order(first, second), relation);
}

static enum shmq_truth text_compare(struct run *run)
{
    const struct shmq_text *value = read_name(run);
    uint32_t missing = read8(run);
    struct shmq_text wanted = read_text(run);
    return value->data ? same(value, &wanted) : missing;
}

static enum shmq_truth in_list(struct run *run)
{
    const struct shmq_text *value = read_name(run);
    bool negated = read8(run);
    bool found = false;
    run->work += value->bytes;
    for (uint32_t count = read16(run); count; count--) {
        struct shmq_text each = read_text(run);
        found = found || (value->data && same(value, &each));
        run->work++;
    }
    return value->data ? (enum shmq_truth)(found != negated) : SHMQ_UNKNOWN;
}

static enum shmq_truth part_of(struct run *run)
{
    const struct shmq_text *value = read_name(run);
    uint32_t where = read8(run);
    bool negated = read8(run);
    struct shmq_text part = read_text(run);
    bool found = false;
    if (!value->data || !part.bytes) {
        return SHMQ_FALSE; /* negated or not */
    }
    run->work += value->bytes;
    if (part.bytes <= value->bytes) {
        const uint8_t *tail = value->data + (value->bytes - part.bytes);
        found = where == SHMQ_PART_ANYWHERE ? memmem(value->data, value->bytes, part.data, part.bytes) != NULL
                                            : !memcmp(where == SHMQ_PART_START ? value->data : tail, part.data, part.bytes);
    }
    return found != negated;
}

/* Boolean.valueOf(text) */
static enum shmq_truth text_truth(const struct shmq_text *text)
{
    static const char word[] = "true";
    bool is = text->bytes == 4;
    for (uint32_t i = 0; is && i < 4; i++) {
        is = (text->data[i] | 0x20) == (uint8_t)word[i];
    }
    return is;
}

static enum shmq_truth property_is_truth(const struct shmq_text *left, enum shmq_truth right)
{
    if (!left->data) {
        return right == SHMQ_UNKNOWN ? SHMQ_TRUE : SHMQ_UNKNOWN;
    }
    return right != SHMQ_UNKNOWN && text_truth(left) == right;
}

static enum shmq_truth truth_is_property(enum shmq_truth left, const struct shmq_text *right)
{
    if (left == SHMQ_UNKNOWN) {
        return right->data ? SHMQ_UNKNOWN : SHMQ_TRUE;
    }
    return right->data ? SHMQ_FAILED : SHMQ_FALSE; /* Java casts the truth to text there, and throws */
}

static enum shmq_truth truth_is_truth(enum shmq_truth left, enum shmq_truth right)
{
    return left == right ? SHMQ_TRUE : left == SHMQ_UNKNOWN ? SHMQ_UNKNOWN : SHMQ_FALSE;
}

static enum shmq_truth both(enum shmq_truth left, enum shmq_truth right)
{
    if (left == SHMQ_FALSE || right == SHMQ_FALSE) {
        return SHMQ_FALSE;
    }
    return left == SHMQ_UNKNOWN || right == SHMQ_UNKNOWN ? SHMQ_UNKNOWN : SHMQ_TRUE;
}

static enum shmq_truth either(enum shmq_truth left, enum shmq_truth right)
{
    if (left == SHMQ_TRUE || right == SHMQ_TRUE) {
        return SHMQ_TRUE;
    }
    return left == SHMQ_UNKNOWN || right == SHMQ_UNKNOWN ? SHMQ_UNKNOWN : SHMQ_FALSE;
}

/* ---- the loop -------------------------------------------------------------------------------------- */
static enum shmq_truth leaf(struct run *run, uint32_t code)
{
    switch (code) {
    case SHMQ_FILTER_PUSH:
        return read8(run);
    case SHMQ_FILTER_MISSING:
        return !read_name(run)->data;
    case SHMQ_FILTER_BARE:
        return read_name(run)->data ? SHMQ_FALSE : SHMQ_UNKNOWN;
    case SHMQ_FILTER_NUMBER:
        return number_compare(run);
    case SHMQ_FILTER_TEXT:
        return text_compare(run);
    case SHMQ_FILTER_PAIR:
        return pair_compare(run);
    case SHMQ_FILTER_IN:
        return in_list(run);
    case SHMQ_FILTER_PART:
        return part_of(run);
    default:
        return SHMQ_FAILED;
    }
}

static void jump(const struct shmq_filter *filter, struct run *run, bool taken)
{
    uint32_t target;
    memcpy(&target, run->at, 4);
    run->at = taken ? filter->code + target : run->at + 4;
}

/* One instruction that works on the top; what becomes of the top. */
static enum shmq_truth combine(const struct shmq_filter *filter, struct run *run, uint32_t code, enum shmq_truth top)
{
    switch (code) {
    case SHMQ_FILTER_NOT:
        return top == SHMQ_UNKNOWN ? top : !top;
    case SHMQ_FILTER_JUMP_FALSE:
        jump(filter, run, top == SHMQ_FALSE);
        return top;
    case SHMQ_FILTER_JUMP_TRUE:
        jump(filter, run, top == SHMQ_TRUE);
        return top;
    case SHMQ_FILTER_TRUTH_NAME:
        return truth_is_property(top, read_name(run));
    case SHMQ_FILTER_NAME_TRUTH:
        return property_is_truth(read_name(run), top);
    default: /* SHMQ_FILTER_MAP */
        run->at += 4;
        return run->at[(int)top - 4];
    }
}

enum shmq_truth shmq_filter_run(const struct shmq_filter *filter, const char *properties, size_t bytes)
{
    uint8_t stack[SHMQ_FILTER_DEPTH_MAX + 1] = {SHMQ_FAILED}; /* one below the first: every depth has a top */
    uint8_t *top = stack;
    struct run run = {.at = filter->code, .work = (uint32_t)bytes};
    const uint8_t *end = filter->code + filter->code_bytes;
    memset(run.values, 0, filter->name_count * sizeof run.values[0]);
    values_read(filter, &run, (const uint8_t *)properties, bytes);
    while (run.at != end) {
        uint32_t code = *run.at++;
        enum shmq_truth truth;
        if (code < SHMQ_FILTER_NOT) {
            truth = leaf(&run, code);
            top++;
        } else if (code == SHMQ_FILTER_AND || code == SHMQ_FILTER_OR || code == SHMQ_FILTER_EQUAL) {
            top--;
            truth = code == SHMQ_FILTER_AND  ? both(top[0], top[1])
                    : code == SHMQ_FILTER_OR ? either(top[0], top[1])
                                             : truth_is_truth(top[0], top[1]);
        } else {
            truth = combine(filter, &run, code, *top);
        }
        run.work += STEP_WORK;
        if (truth == SHMQ_FAILED || run.work > WORK_MAX) {
            return SHMQ_FAILED;
        }
        *top = (uint8_t)truth;
    }
    return *top;
}
