/* Reader of plans: constant data of a build, or a file for a library of kernels.
 *
 *     file    "EGPB"  u32 version  u64 bytes of the plans  u64 bytes of all that follows the head
 *             u32 CRC-32 of that  zeros up to 64 bytes; the plans; what other readers want
 *     plans   texts: digest of the kernels, target, digest of the build
 *             numbers: threads, parameters, trainable ones, states, batches, ports, dimensions,
 *             kernels; bytes of parameters, gradients, work, constants, tables of steps, states,
 *             and of inputs and outputs of each phase
 *             states      numbers: form, element type, halves of the initial value
 *             kernels     texts: symbol, the op it was made for
 *             parameters  tensor, offset / 64, whether the training model reads it
 *             order       numbers of parameters
 *             batches     samples of each
 *             plans       of the optimizer, then for each batch of training, evaluation, inference:
 *                         steps; unless 0: words of arguments; 1 + place of the status words, of
 *                         the reset flag, of random numbers' seed, of rate and step, 0 for none; inputs, outputs, bytes of
 *                         code; tensor and 1 + place of each port; the code
 *             constants   at a multiple of 64
 *     tensor  text: name   numbers: element type, trainable, dimensions, then these
 *     text    number: bytes; the bytes, a 0
 *
 * Numbers have 7 bits a byte, the lowest first, the high bit set but in the last.  Every count and
 * place is checked against what it is of.  How far a kernel reaches, its constants say, which nobody
 * can check: a plan is code, and comes from where code comes from. */

enum { PARAMETER_ROOM = 64, PORT_ROOM = 48, PLAN_ROOM = 96, HEAD_BYTES = 64, REGIONS = 7 };
/* Of a size or a sum of them, so that none overflows. */
#define LARGEST ((size_t)(SIZE_MAX > UINT32_MAX ? (uint64_t)1 << 46 : 0x7FFFFFFF))

enum region { R_NULL, R_PARAM, R_GRAD, R_STATE, R_WORK, R_IO, R_CONST };

_Static_assert(sizeof(struct parameter) <= PARAMETER_ROOM, "PARAMETER_ROOM is too small");
_Static_assert(sizeof(struct port) <= PORT_ROOM, "PORT_ROOM is too small");
_Static_assert(sizeof(struct plan) <= PLAN_ROOM, "PLAN_ROOM is too small");

struct source {
    const uint8_t *start, *at, *end;
    const char *bad, *name; /* what is wrong, and of what */
};

/* What the head says beyond `struct design`. */
struct sizes {
    int kernels, ports, dims; /* how many are left */
    size_t param, grad, work, constants, tables, state, io[PHASES], io_at[PHASES];
    struct port *port; /* the next one */
    int64_t *dim;
};

static void reject(struct source *s, const char *what)
{
    if (!s->bad)
        s->bad = what;
    s->at = s->end;
}

static uint64_t number(struct source *s, uint64_t limit)
{
    uint64_t value = 0;
    for (int shift = 0; s->at < s->end && shift < 63; shift += 7) {
        uint8_t byte = *s->at++;
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            if (value > limit)
                reject(s, "a number is too large");
            return value > limit ? 0 : value;
        }
    }
    reject(s, "it is cut short");
    return 0;
}

/* A count of things that take a byte each at least. */
static int count(struct source *s)
{
    uint64_t left = (uint64_t)(s->end - s->at);
    return (int)number(s, left < 1 << 22 ? left : 1 << 22);
}

static size_t size(struct source *s)
{
    return (size_t)number(s, LARGEST);
}

static const char *text(struct source *s)
{
    uint64_t n = number(s, (uint64_t)(s->end - s->at));
    const char *found = (const char *)s->at;
    if (s->bad || n >= (uint64_t)(s->end - s->at) || found[n] || length(found) != n) {
        reject(s, "a text has no end");
        return "";
    }
    s->at += n + 1;
    return found;
}

static size_t item_bytes(int dtype)
{
    static const uint8_t bytes[] = {0, 4, 1, 1, 2, 2, 4, 8, 0, 1, 0, 8, 4, 8};
    return dtype >= 0 && dtype < (int)sizeof bytes ? bytes[dtype] : 0;
}

static model_tensor tensor(struct source *s, struct sizes *n)
{
    model_tensor t = {0};
    t.name = text(s);
    t.dtype = (int)number(s, 16);
    t.trainable = (int)number(s, 1);
    t.rank = count(s);
    t.dims = n->dim;
    uint64_t bytes = item_bytes(t.dtype);
    if (!bytes || t.rank > n->dims || t.rank > MOST_DIMS) {
        reject(s, "a tensor has no known type or shape");
        return t;
    }
    n->dims -= t.rank;
    for (int i = 0; i < t.rank; i++) {
        uint64_t d = number(s, (uint64_t)1 << 40);
        *n->dim++ = (int64_t)d;
        if (d && bytes > LARGEST / d)
            reject(s, "a tensor is too large");
        bytes = s->bad ? 0 : bytes * d;
    }
    t.bytes = (size_t)bytes;
    return t;
}

/* --- states */

/* The tensor that a state keeps of a parameter; `dims` becomes its shape. */
static model_tensor state_values(const struct state *s, const struct parameter *p, int64_t *dims)
{
    model_tensor t = p->tensor;
    int rank = t.rank, rows = s->form == F_ROWS, dropped = rank - (rows ? 1 : 2);
    t.dims = dims;
    t.rank = 0;
    t.dtype = s->dtype;
    t.bytes = item_bytes(t.dtype);
    if (s->form != F_PARAMETER && (!p->elements || (rows && rank < 2)))
        dims[t.rank++] = 0;
    else
        for (int i = 0; i < rank && s->form != F_SCALAR; i++)
            if (s->form == F_PARAMETER || i != dropped)
                dims[t.rank++] = p->tensor.dims[i];
    for (int i = 0; i < t.rank; i++)
        t.bytes *= (size_t)dims[i];
    return t;
}

/* The room that a state has for its tensor of a parameter. */
static size_t state_bytes(const struct state *s, const struct parameter *p)
{
    int64_t dims[MOST_DIMS];
    return ALIGNED(state_values(s, p, dims).bytes);
}

static struct state state_row(struct source *s)
{
    struct state row = {0};
    row.form = (int)number(s, FORMS - 1);
    row.dtype = (int)number(s, 16);
    row.initial = number(s, UINT32_MAX);
    row.initial |= number(s, UINT32_MAX) << 32;
    if (!item_bytes(row.dtype))
        reject(s, "a state has no known type");
    return row;
}

/* Find where states begin, one behind another. */
static void place_states(struct source *s, struct design *d, size_t bytes)
{
    size_t used = 0;
    for (int k = 0; k < d->state_count && !s->bad; k++) {
        d->states[k].at = d->state_at + used;
        for (int i = 0; i < d->parameter_count && !s->bad; i++) {
            const struct parameter *p = &d->parameters[i];
            size_t room = p->tensor.trainable ? state_bytes(&d->states[k], p) : 0;
            if (room > bytes - used)
                reject(s, "the states are larger than it says");
            used += s->bad ? 0 : room;
        }
    }
}

/* --- the head */

/* An area of the model's memory. */
static size_t place(struct source *s, size_t *used, uint64_t items, uint64_t bytes)
{
    size_t found = *used;
    if (items && bytes > LARGEST / items)
        reject(s, "it is too large");
    else if (ALIGNED(items * bytes) > LARGEST - found)
        reject(s, "it is too large");
    else
        *used += (size_t)ALIGNED(items * bytes);
    return found;
}

struct areas {
    size_t parameters, sorted, places, seen, plans, batches, kernels, ports, dims, tables;
};

/* Read all counts and sizes, which decide where everything lies; `used` bytes are taken before. */
static struct areas read_head(struct source *s, struct design *d, struct sizes *n, size_t used)
{
    struct areas a;
    const char *kernels = text(s), *target = text(s);
    d->build = text(s);
    if (compare(kernels, length(kernels), KERNELS, sizeof KERNELS - 1))
        reject(s, "it was made for other versions of the kernels");
    if (compare(target, length(target), TARGET, sizeof TARGET - 1))
        reject(s, "it was made for another target than " TARGET);
    if (number(s, 1 << 16) != MODEL_THREADS)
        reject(s, "it was made for another number of threads");
    d->parameter_count = count(s);
    d->trainable = (int)number(s, (uint64_t)d->parameter_count);
    d->state_count = (int)number(s, MOST_STATES);
    d->batch_count = (int)number(s, 1 << 10);
    n->ports = count(s);
    n->dims = count(s);
    n->kernels = count(s);
    size_t *bytes[] = {&n->param, &n->grad, &n->work, &n->constants, &n->tables,
                       &n->state};
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++)
        *bytes[i] = size(s);
    for (int i = 0; i < PHASES; i++)
        n->io[i] = size(s);
    for (int i = 0; i < d->state_count; i++)
        d->states[i] = state_row(s);
    if (!s->bad && !d->batch_count)
        reject(s, "it has no plans");
    size_t all = (size_t)d->parameter_count, plans = 1 + OPTIMIZER * (size_t)d->batch_count;
    a.parameters = place(s, &used, all, PARAMETER_ROOM);
    a.sorted = place(s, &used, all, 4);
    a.places = place(s, &used, all + 1, 4);
    a.seen = place(s, &used, all + 1, 1);
    a.plans = place(s, &used, plans, PLAN_ROOM);
    a.batches = place(s, &used, (size_t)d->batch_count, 8);
    a.kernels = place(s, &used, (size_t)n->kernels, 4);
    a.ports = place(s, &used, (size_t)n->ports, PORT_ROOM);
    a.dims = place(s, &used, (size_t)n->dims, 8);
    a.tables = place(s, &used, n->tables, 1);
    d->properties_at = place(s, &used, MODEL_PROPERTY_BYTES + 128, 1);
    d->param_at = place(s, &used, n->param, 1);
    d->grad_at = place(s, &used, n->grad, 1);
    d->state_at = place(s, &used, n->state, 1);
    for (int i = 0; i < PHASES; i++)
        n->io_at[i] = place(s, &used, n->io[i], 1);
    d->work_at = place(s, &used, (uint64_t)n->work + 64, 1);
    d->total = used;
    return a;
}

/* --- the parts */

/* Numbers of the kernels in this library; none: code has those already. */
static void read_kernels(struct source *s, struct design *d, const struct sizes *n, uint32_t *out)
{
    d->kernels = n->kernels ? out : NULL;
    for (int i = 0; i < n->kernels && !s->bad; i++) {
        const char *symbol = text(s);
        s->name = text(s);
#ifdef OWN_PLANS_BYTES
        (void)symbol;
        reject(s, "a kernel has a name");
#else
        const char *name = kernel_names;
        for (out[i] = 0; *name && compare(name, length(name), symbol, length(symbol)); out[i]++)
            name += length(name) + 1;
        if (!*name && !s->bad) {
            s->bad = symbol;
            return;
        }
#endif
    }
    s->name = NULL;
}

static void read_design_parameters(struct source *s, struct design *d, struct sizes *n,
                            struct parameter *out, uint32_t *sorted)
{
    int all = d->parameter_count, trainable = 0;
    for (int i = 0; i < all && !s->bad; i++) {
        struct parameter p = {tensor(s, n), 0, 0, 0};
        p.offset = (size_t)number(s, LARGEST / 64) * 64;
        p.listed = (int)number(s, 1);
        if (s->bad)
            return;
        p.elements = p.tensor.bytes / item_bytes(p.tensor.dtype);
        trainable += p.tensor.trainable;
        size_t room = p.tensor.trainable && n->grad < n->param ? n->grad : n->param;
        if (p.offset > room || p.tensor.bytes > room - p.offset)
            reject(s, "a parameter is out of bounds");
        out[i] = p;
    }
    if (trainable != d->trainable)
        reject(s, "the trainable parameters are not as many as it says");
    for (int i = 0; i < all && !s->bad; i++) {
        uint32_t k = sorted[i] = (uint32_t)number(s, (uint64_t)all - 1);
        if (d->seen[k] || out[k].tensor.trainable != (i < d->trainable))
            reject(s, "the order of the parameters is none");
        d->seen[k] = 1;
    }
}

/* Check the code of a plan: kernels, regions, places, and the number of words it makes. */
static void check_code(struct source *s, const size_t *limits, int64_t steps, uint64_t words,
                       uint64_t kernels)
{
    for (; steps && !s->bad; steps--) {
        number(s, kernels - 1);
        uint64_t arguments = number(s, 1 << 20) >> 1, constants = number(s, 1 << 20);
        if (arguments + constants > words)
            reject(s, "a plan has more arguments than it says");
        words -= s->bad ? 0 : arguments + constants;
        for (; arguments && !s->bad; arguments--) {
            uint64_t where = number(s, UINT64_MAX), region = where & 7;
            if (region == R_NULL ? where != 0 : region >= REGIONS
                || (where >> 3) > LARGEST / 64 || (where >> 3) * 64 > limits[region])
                reject(s, "an argument is out of bounds");
        }
        for (; constants && !s->bad; constants--)
            if (number(s, UINT64_MAX) & 1) {
                if (s->end - s->at < 8)
                    reject(s, "it is cut short");
                else
                    s->at += 8;
            }
    }
    if (words)
        reject(s, "a plan has fewer arguments than it says");
}

/* A place among inputs and outputs, in the file 1 + bytes; 0: none. */
static size_t io_place(struct source *s, size_t io, size_t io_at, size_t bytes)
{
    size_t at = size(s);
    if (at && (at - 1 > io || bytes > io - (at - 1) || (at - 1) % 8))
        reject(s, "an input is out of bounds");
    return at && !s->bad ? io_at + at - 1 : 0;
}

/* Read a plan; `table` is where its steps are put, returned as the next plan's. */
static size_t read_plan(struct source *s, struct design *d, struct sizes *n, int index, size_t table)
{
    struct plan p = {0};
    int phase = index ? (index - 1) % OPTIMIZER : OPTIMIZER;
    size_t io = n->io[phase], at = n->io_at[phase];
    p.io = at;
    p.table = table;
    p.steps = count(s);
    if (!p.steps || s->bad) {
        d->plans[index] = p;
        return table;
    }
    uint64_t words = number(s, LARGEST / 8);
    table += (size_t)ALIGNED(8 * (STEP_WORDS * (uint64_t)p.steps + words));
    p.fault = io_place(s, io, at, 8 * STATUS_WORDS);
    p.reset = io_place(s, io, at, 1);
    p.noise = io_place(s, io, at, 8 * RANDOM_WORDS);
    size_t rate = io_place(s, io, at, 8), step = io_place(s, io, at, 8);
    if (!index) {
        d->rate_at = rate;
        d->step_at = step;
    }
    p.inputs = count(s);
    p.outputs = count(s);
    size_t bytes = size(s);
    p.ports = n->port;
    if ((n->ports -= p.inputs + p.outputs) < 0)
        reject(s, "there are more inputs than it says");
    for (int i = 0; i < p.inputs + p.outputs && !s->bad; i++) {
        n->port->tensor = tensor(s, n);
        n->port->at = io_place(s, io, at, n->port->tensor.bytes);
        if (!n->port++->at)
            reject(s, "an input is nowhere");
    }
    p.code = s->at;
    const uint8_t *end = s->end;
    const size_t limits[REGIONS] = {
        0, n->param, n->grad, n->state, n->work, io, n->constants,
    };
    if (bytes > (size_t)(end - s->at))
        reject(s, "it is cut short");
    if (s->bad)
        return table;
    s->end = s->at + bytes;
    check_code(s, limits, p.steps, words, n->kernels ? (uint64_t)n->kernels : KERNEL_COUNT);
    if (!s->bad && s->at != s->end)
        reject(s, "a plan is longer than its steps");
    s->end = end;
    d->plans[index] = p;
    return table;
}

/* Read plans whose head was read; `memory` has zeros where tables come. */
static void read_plans(struct source *s, struct design *d, struct sizes *n, const struct areas *a,
                       uint8_t *memory)
{
    struct parameter *parameters = (void *)(memory + a->parameters);
    uint32_t *sorted = (void *)(memory + a->sorted);
    int64_t *batches = (void *)(memory + a->batches);
    size_t table = a->tables;
    d->parameters = parameters;
    d->sorted = sorted;
    d->batches = batches;
    d->places = (void *)(memory + a->places);
    d->seen = memory + a->seen;
    d->plans = (void *)(memory + a->plans);
    n->port = (void *)(memory + a->ports);
    n->dim = (void *)(memory + a->dims);
    read_kernels(s, d, n, (void *)(memory + a->kernels));
    read_design_parameters(s, d, n, parameters, sorted);
    place_states(s, d, n->state);
    for (int i = 0; i < d->batch_count && !s->bad; i++)
        batches[i] = (int64_t)number(s, INT64_MAX);
    for (int i = 0; i <= OPTIMIZER * d->batch_count && !s->bad; i++) {
        table = read_plan(s, d, n, i, table);
        if (table > a->tables + n->tables)
            reject(s, "the tables of steps are larger than it says");
    }
    size_t constants = (size_t)ALIGNED((size_t)(s->at - s->start));
    d->constants = s->start + constants;
    if (!s->bad && (size_t)(s->end - s->start) != constants + n->constants)
        reject(s, "the constants are not as many as it says");
}
