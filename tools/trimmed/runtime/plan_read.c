/* The reader of plans, which are constant data in a build, or a file for a library of kernels.
 *
 * The format is described in engine/plan/file_schema.py.  That file also declares the tables and
 * columns; their numbers are the enums T_... and C_... here.  A plan is a row of T_PLAN.  The first
 * row is the optimizer's plan.  Then come, for each batch size, the plans of training, evaluation
 * and inference; a plan has no steps if the model has no such phase.  A build with a decoder ends
 * with its two, of a step and of a prompt.  The steps, arguments and
 * ports of a plan are the rows of their tables that come after the rows of the plans before it.
 * A build has its steps apart from these tables: tools/trimmed/records.py describes them.
 *
 * Every offset and index in a file is checked against the size of the area or table that it points
 * into.  The plans inside a build are part of its code, and are not checked.
 *
 * The words of a step decide how much memory its kernel reads and writes, and are not checked here:
 * see "Prepared plans" in SECURITY.md. */

enum { MOST_ROWS = 1 << 24 };
/* The largest size or sum of sizes that is accepted, so that no sum overflows. */
#define LARGEST ((size_t)(SIZE_MAX > UINT32_MAX ? LARGEST_OF_64_BITS : LARGEST_OF_32_BITS))

_Static_assert(sizeof(struct parameter) <= PARAMETER_ROOM, "PARAMETER_ROOM is too small");
_Static_assert(sizeof(struct port) <= PORT_ROOM, "PORT_ROOM is too small");
_Static_assert(sizeof(struct plan) <= PLAN_ROOM, "PLAN_ROOM is too small");
#ifdef OWN_PLANS
_Static_assert(MODEL_MEMORY_BYTES <= LARGEST, "the model takes more memory than the target has");
#endif

struct column {
    const uint8_t *at;
    size_t width;
};

/* The tables of a file. */
struct tables {
    uint32_t rows[TABLES];
    struct column columns[COLUMNS];
    const uint8_t *constants;
    size_t constant_bytes;
    const kernel_row *kernels; /* of the library */
#ifdef OWN_PLANS
    const uint32_t *steps; /* of the library */
#endif
    const char *bad; /* the problem, or NULL; if `op` is set, the symbol of a missing kernel */
    const char *op;  /* the op that the missing kernel was made for, or NULL */
};

/* The sizes of the regions, and where the inputs and outputs of each phase begin. */
struct sizes {
    size_t param, grad, state, work, io[PHASES], io_at[PHASES];
};

/* Return the problem of a plan file, or NULL.  The plans of a build are constant data, made
 * and trusted together with its code, so a build has no code to check them. */
static const char *problem(const struct tables *t)
{
#ifdef OWN_PLANS
    (void)t;
    return NULL;
#else
    return t->bad;
#endif
}

static void reject(struct tables *t, const char *what)
{
#ifdef OWN_PLANS
    (void)t;
    (void)what;
#else
    if (!t->bad)
        t->bad = what;
#endif
}

static uint64_t little(const uint8_t *bytes, size_t n)
{
    uint64_t value = 0;
    while (n--)
        value = value << 8 | bytes[n];
    return value;
}

static uint64_t cell(const struct tables *t, int column, size_t row)
{
    const struct column *c = &t->columns[column];
    return little(c->at + row * c->width, c->width);
}

static const char *text(const struct tables *t, int column, size_t row)
{
    return (const char *)t->columns[C_TEXT_BYTE].at + cell(t, column, row);
}

/* Return a cell.  If it is larger than `limit`, reject the plan; return 0 for a rejected plan. */
static size_t limited(struct tables *t, int column, size_t row, size_t limit)
{
    uint64_t value = cell(t, column, row);
    if (value > limit)
        reject(t, "a number is too large");
    return problem(t) ? 0 : (size_t)value;
}

/* Find where the columns lie in the `size` bytes of the head and the tables. */
static void find_columns(struct tables *t, const uint8_t *data, size_t size)
{
    const uint8_t *rows = data + HEAD_BYTES, *widths = rows + 4 * TABLES;
    size_t at = HEAD_BYTES + 4 * TABLES + COLUMNS;
    if (at > size)
        reject(t, "it is cut short");
    if (problem(t))
        return;
    for (int i = 0; i < TABLES; i++) {
        t->rows[i] = (uint32_t)little(rows + 4 * i, 4);
        if (t->rows[i] > MOST_ROWS)
            reject(t, "a table is too large");
    }
    for (int c = 0; c < COLUMNS; c++) {
        size_t width = widths[c], count = t->rows[column_table[c]];
        int first = !c || column_table[c] != column_table[c - 1];
        if (width > 8 || (width & (width - 1)) || (first && count && !width))
            reject(t, "a column has no known width");
        if (width)
            at = (at + width - 1) / width * width;
        if (at > size || width * count > size - at)
            reject(t, "it is cut short");
        if (problem(t))
            return;
        t->columns[c].at = data + at;
        t->columns[c].width = width;
        at += width * count;
    }
}

#ifndef OWN_PLANS
/* Return 1 if the numbers of a column obey its rule, given the rows of the table they refer to. */
static int is_good_column(const struct tables *t, int column)
{
    uint64_t most = t->rows[column_of[column]], sum = 0;
    int rule = column_rule[column];
    for (size_t row = 0; rule != PLAIN && row < t->rows[column_table[column]]; row++) {
        uint64_t value = cell(t, column, row);
        if (value > most || (rule == ROW && value == most))
            return 0;
        sum += value;
    }
    return rule != ROW_COUNT || sum == most;
}

/* Check that every row that a number refers to exists. */
static void check_rows(struct tables *t)
{
    const uint8_t *texts = t->columns[C_TEXT_BYTE].at;
    uint64_t kernels = t->rows[T_KERNEL] ? t->rows[T_KERNEL] : KERNEL_COUNT;
    uint64_t pooled = (uint64_t)t->rows[T_NATURAL] + t->rows[T_WIDE], words = t->rows[T_WORD];
    int good = t->rows[T_TEXT] && !texts[t->rows[T_TEXT] - 1] && t->rows[T_HEAD] == 1
               && t->rows[T_MODEL] == 1 && t->rows[T_IO] == PHASES && t->rows[T_BATCH]
               && t->rows[T_ORDER] == t->rows[T_PARAMETER]
               && t->rows[T_PLAN] == 1 + OPTIMIZER * t->rows[T_BATCH];
    for (int c = 0; c < COLUMNS && good; c++)
        good = is_good_column(t, c);
    for (size_t row = 0; row < words && good; row++)
        good = cell(t, C_WORD_POOLED, row) < pooled;
    for (size_t row = 0; row < t->rows[T_CALL] && good; row++) {
        uint64_t first = cell(t, C_CALL_FIRST, row);
        good = cell(t, C_CALL_KERNEL, row) < kernels && first <= words
               && cell(t, C_CALL_WORDS, row) <= words - first;
    }
    if (!good)
        reject(t, "its tables do not fit each other");
}
#endif

#ifdef OWN_PLANS
/* Return the steps of a level: packed plans are in the model's memory, after its handle. */
static const uint32_t *find_block(const struct level *level, const uint8_t *memory)
{
    (void)memory;
    const void *block = PACKED_PLANS ? memory + HANDLE_BYTES + level->table_bytes : level->steps;
    return block;
}
#endif

static void open_tables(struct tables *t, const struct level *level, const uint8_t *data,
                        size_t size, const uint8_t *constants, size_t constant_bytes)
{
    zero(t, sizeof *t);
    find_columns(t, data, size);
#ifndef OWN_PLANS
    if (!problem(t))
        check_rows(t);
#endif
    t->kernels = level->kernels;
    t->constants = constants;
    t->constant_bytes = constant_bytes;
}

static size_t item_bytes(int dtype)
{
    static const uint8_t bytes[] = {TYPE_BYTES};
    return dtype >= 0 && dtype < (int)sizeof bytes ? bytes[dtype] : 0;
}

/* --- states */

/* Return the tensor that a state keeps for a parameter, and write its shape to `dims`. */
static model_tensor state_values(const struct state *s, const struct parameter *p, int64_t *dims)
{
    model_tensor t;
    copy(&t, &p->tensor, sizeof t);
    int rank = t.rank, rows = s->form == F_ROWS, dropped = rank - (rows ? 1 : 2);
    t.dims = dims;
    t.rank = 0;
    t.dtype = s->dtype ? s->dtype : p->tensor.dtype;
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

/* Return the bytes set aside for the tensor that a state keeps for a parameter. */
static size_t state_bytes(const struct state *s, const struct parameter *p)
{
    int64_t dims[MOST_DIMS];
    return ALIGNED(state_values(s, p, dims).bytes);
}

/* Read the table of states, and place the states one after another in `bytes` bytes; with none, no
 * plan reads a state. */
static void place_states(struct tables *t, struct design *d, size_t bytes)
{
    size_t used = 0;
    d->keeps_states = bytes > 0;
    for (int k = 0; k < d->state_count && !problem(t); k++) {
        struct state *s = &d->states[k];
        s->form = (int)limited(t, C_STATE_FORM, (size_t)k, FORMS - 1);
        s->dtype = (int)limited(t, C_STATE_DTYPE, (size_t)k, 15);
        s->initial = cell(t, C_STATE_INITIAL, (size_t)k);
        s->single = (uint32_t)cell(t, C_STATE_SINGLE, (size_t)k);
        s->at = d->state_at + used;
        if (s->dtype && !item_bytes(s->dtype))
            reject(t, "a state has no known type");
        for (int i = 0; i < d->parameter_count && !problem(t); i++) {
            const struct parameter *p = &d->parameters[i];
            size_t room = p->tensor.trainable && bytes ? state_bytes(s, p) : 0;
            if (room > bytes - used)
                reject(t, "the states are larger than it says");
            used += room;
        }
    }
}

/* --- the memory that a model takes */

/* Take the next area of the model's memory, for `items` items of `bytes` bytes, and return where it
 * begins. */
static size_t place(struct tables *t, size_t *used, uint64_t items, uint64_t bytes)
{
    size_t found = *used;
    if ((items && bytes > LARGEST / items) || ALIGNED(items * bytes) > LARGEST - found)
        reject(t, "it is too large");
    if (!problem(t))
        *used += (size_t)ALIGNED(items * bytes);
    return found;
}

struct areas {
    size_t parameters, sorted, places, seen, plans, batches, kernels, ports, dims, steps;
};

#if IN_PLACE
static uint64_t step_words(const struct tables *t)
{
    (void)t;
    return 0;
}
#elif defined(OWN_PLANS)
enum { TILING_WORDS = TILES_WORDS + CALL_WORDS * MOVE_WORDS };

/* Return the number of words in the tables that the executor reads. */
static uint64_t step_words(const struct tables *t)
{
    const uint32_t *count = t->steps;
    uint64_t words = (uint64_t)count[STEP_COUNT] * (STEP_WORDS + CALL_WORDS);
    if (count[TILING_COUNT])
        words += (uint64_t)count[TILING_COUNT] * TILING_WORDS + MODEL_THREADS * CALL_WORDS;
    return words;
}
#else
#define OTHER_ARGUMENTS "it has more or fewer arguments than its steps"

/* Return the number of words in the tables of steps that the executor reads.  Reject plans whose
 * steps have another number of arguments than the table of arguments. */
static uint64_t step_words(struct tables *t)
{
    uint64_t arguments = 0, words = 0;
    for (size_t row = 0; row < t->rows[T_STEP]; row++) {
        size_t call = (size_t)cell(t, C_STEP_CALL, row);
        uint64_t n = cell(t, C_CALL_ARGS, call);
        if (n > t->rows[T_ARG] - arguments)
            reject(t, OTHER_ARGUMENTS);
        if (problem(t))
            return 0;
        arguments += n;
        uint64_t own = n + cell(t, C_CALL_WORDS, call);
        words += STEP_WORDS + own;
        if (cell(t, C_STEP_TILES, row))
            words += TILES_WORDS + MOVE_WORDS * n + MODEL_THREADS * own;
    }
    if (arguments != t->rows[T_ARG])
        reject(t, OTHER_ARGUMENTS);
    return words;
}
#endif

/* Read all counts and sizes, and decide from them where everything lies in the model's memory.  Its
 * first `used` bytes are taken. */
static struct areas lay_out(struct tables *t, struct design *d, struct sizes *n, size_t used)
{
    struct areas a;
    zero(&a, sizeof a);
    if (problem(t))
        return a;
#ifndef OWN_PLANS
    const char *kernels = text(t, C_HEAD_KERNEL_SET, 0), *target = text(t, C_HEAD_TARGET, 0);
    if (compare(kernels, length(kernels), KERNELS, sizeof KERNELS - 1))
        reject(t, "it was made for other versions of the kernels");
    if (compare(target, length(target), TARGET, sizeof TARGET - 1))
        reject(t, "it was made for another target than " TARGET);
    if (cell(t, C_HEAD_THREAD_COUNT, 0) != MODEL_THREADS)
        reject(t, "it was made for another number of threads");
#endif
    if (t->rows[T_STATE] > MOST_STATES)
        reject(t, "an optimizer has too many states");
    d->state_count = (int)t->rows[T_STATE];
    n->param = limited(t, C_MODEL_PARAM, 0, LARGEST);
    n->grad = d->grad = limited(t, C_MODEL_GRAD, 0, LARGEST);
    n->state = limited(t, C_MODEL_STATE, 0, LARGEST);
    n->work = limited(t, C_MODEL_WORK, 0, LARGEST);
    d->kept = limited(t, C_MODEL_KEPT, 0, LARGEST / 64) * 64;
    d->copies = (int)limited(t, C_MODEL_COPIES, 0, 2);
    for (size_t i = 0; i < PHASES; i++)
        n->io[i] = limited(t, C_IO_SIZE, i, LARGEST);
    d->parameter_count = (int)t->rows[T_PARAMETER];
    d->batch_count = (int)t->rows[T_BATCH];
    size_t all = t->rows[T_PARAMETER];
    a.parameters = place(t, &used, all, PARAMETER_ROOM);
    a.sorted = place(t, &used, all, 4);
    a.places = place(t, &used, all + 1, 4);
    a.seen = place(t, &used, all + 1, 1);
    a.plans = place(t, &used, t->rows[T_PLAN], PLAN_ROOM);
    a.batches = place(t, &used, t->rows[T_BATCH], 8);
    a.kernels = place(t, &used, t->rows[T_KERNEL], 4);
    a.ports = place(t, &used, t->rows[T_PORT], PORT_ROOM);
    a.dims = place(t, &used, (uint64_t)t->rows[T_PARAMETER_DIM] + t->rows[T_PORT_DIM], 8);
    a.steps = place(t, &used, step_words(t), 8);
    d->properties_at = place(t, &used, MODEL_PROPERTY_BYTES + OWN_PROPERTY_ROOM, 1);
    d->param_at = place(t, &used, n->param, 1);
    d->grad_at = place(t, &used, n->grad, 1);
    d->state_at = place(t, &used, n->state, 1);
    d->kept_at = place(t, &used, (uint64_t)d->copies, d->kept);
    for (size_t i = 0; i < PHASES; i++)
        n->io_at[i] = place(t, &used, n->io[i], 1);
    d->work_at = place(t, &used, (uint64_t)n->work + 64, 1);
    d->total = used;
    return a;
}

/* --- kernels, parameters and plans */

/* Write the tensor of a parameter or port.  Its dimensions are read from column `from`, beginning
 * at *row, and written to the same rows of `to`. */
static void read_shape(struct tables *t, model_tensor *out, const char *name, uint64_t dtype,
                       uint64_t rank, int from, size_t *row, int64_t *to)
{
    out->name = name;
    out->dtype = (int)(dtype & 15);
    out->rank = (int)rank;
    out->dims = to + *row;
    out->trainable = 0;
    uint64_t bytes = item_bytes(out->dtype);
    if (!bytes || dtype > 15 || rank > MOST_DIMS)
        reject(t, "a tensor has no known type or too many dimensions");
    for (int i = 0; i < out->rank && !problem(t); i++) {
        size_t size = limited(t, from, *row, LARGEST);
        to[(*row)++] = (int64_t)size;
        if (size && bytes > LARGEST / size)
            reject(t, "a tensor is too large");
        bytes *= size;
    }
    out->bytes = (size_t)bytes;
}

/* Find each kernel that the plans name in the table of this library. */
static void read_kernels(struct tables *t, uint32_t *out)
{
#ifdef OWN_PLANS
    (void)t;
    (void)out; /* the plans already contain these numbers */
#else
    for (size_t i = 0; i < t->rows[T_KERNEL] && !problem(t); i++) {
        const char *symbol = text(t, C_KERNEL_SYMBOL, i), *name = kernel_names;
        for (out[i] = 0; *name && compare(name, length(name), symbol, length(symbol)); out[i]++)
            name += length(name) + 1;
        if (!*name) {
            t->bad = symbol;
            t->op = text(t, C_KERNEL_OP, i);
        }
    }
#endif
}

static void read_all_parameters(struct tables *t, struct design *d, const struct sizes *n,
                                struct parameter *out, uint32_t *sorted, int64_t *dims)
{
    size_t all = t->rows[T_PARAMETER], dim = 0, moved = 0;
    for (size_t i = 0; i < all && !problem(t); i++) {
        struct parameter p;
        zero(&p, sizeof p);
        read_shape(t, &p.tensor, text(t, C_PARAMETER_NAME, i), cell(t, C_PARAMETER_DTYPE, i),
                   cell(t, C_PARAMETER_RANK, i), C_PARAMETER_DIM_SIZE, &dim, dims);
        p.tensor.trainable = cell(t, C_PARAMETER_TRAINABLE, i) != 0;
        p.listed = cell(t, C_PARAMETER_LISTED, i) != 0;
        p.moved = cell(t, C_PARAMETER_MOVED, i) != 0;
        p.offset = limited(t, C_PARAMETER_LINE, i, LARGEST / 64) * 64;
        if (problem(t))
            return;
        p.elements = p.tensor.bytes / item_bytes(p.tensor.dtype);
        d->trainable += p.tensor.trainable;
        size_t room = p.tensor.trainable && n->grad && n->grad < n->param ? n->grad : n->param;
        if (p.offset > room || p.tensor.bytes > room - p.offset)
            reject(t, "a parameter is out of bounds");
        moved += p.moved ? ALIGNED(p.tensor.bytes) : 0;
        if (moved > (d->copies ? d->kept : 0))
            reject(t, "it has no room to keep what steps move");
        copy(&out[i], &p, sizeof p);
    }
    for (size_t i = 0; i < all && !problem(t); i++) {
        uint32_t k = sorted[i] = (uint32_t)cell(t, C_ORDER_PARAMETER, i);
        if (d->seen[k] || out[k].tensor.trainable != (i < (size_t)d->trainable))
            reject(t, "the order of the parameters is none");
        d->seen[k] = 1;
    }
}

/* The memory of a region of buffers.  `at` is NULL for a region that stripped plans do not use. */
struct region {
    const uint8_t *at;
    size_t bytes;
};

/* How many rows of each table belong to the plans read so far. */
struct taken {
    size_t ports, dims;
#if !IN_PLACE
    int64_t *table; /* where the steps of the next plan go */
#endif
#ifndef OWN_PLANS
    size_t steps, arguments;
#endif
};

/* Return the place of an input that the runtime fills.  The file has 0 if the plan has no such
 * input, otherwise 1 + the offset in the region of inputs and outputs. */
static size_t io_place(struct tables *t, int column, size_t row, const size_t *io, size_t bytes)
{
    size_t at = limited(t, column, row, LARGEST);
    if (at && (at - 1 > io[0] || bytes > io[0] - (at - 1) || (at - 1) % 8))
        reject(t, "an input is out of bounds");
    return at && !problem(t) ? io[1] + at - 1 : 0;
}

static void read_ports(struct tables *t, struct plan *p, size_t count, struct port *out,
                       int64_t *dims, struct taken *done, const size_t *io)
{
    p->ports = out + done->ports;
    for (; count && !problem(t); count--) {
        size_t row = done->ports++, buffer = (size_t)cell(t, C_PORT_BUFFER, row);
        read_shape(t, &out[row].tensor, text(t, C_PORT_NAME, row), cell(t, C_PORT_DTYPE, row),
                   cell(t, C_PORT_RANK, row), C_PORT_DIM_SIZE, &done->dims, dims);
        size_t at = limited(t, C_BUFFER_LINE, buffer, LARGEST / 64) * 64;
        if (cell(t, C_BUFFER_REGION, buffer) != R_IO || at > io[0]
            || out[row].tensor.bytes > io[0] - at)
            reject(t, "an input is out of bounds");
        out[row].at = io[1] + at;
    }
}

#ifdef OWN_PLANS
#if !IN_PLACE
/* Write the ways in which groups run tile by tile, and return where the steps go.  One call after
 * another moves to its tile, so all ways share the words for that. */
static int64_t *read_tilings(const struct tables *t, int64_t *words)
{
    struct steps s = find_steps(t->steps);
    int64_t *own = words + t->steps[TILING_COUNT] * TILING_WORDS;
    for (const uint32_t *tiling = s.tilings; words < own; tiling++, words += TILING_WORDS) {
        words[TILES_COUNT] = *tiling >> 1;
        words[TILES_NUMBERED] = *tiling & 1;
        words[TILES_POINTERS] = words[TILES_STRIDE] = CALL_WORDS;
        words[TILES_OWN] = (int64_t)(uintptr_t)own;
        words[TILES_WORDS + MOVE_WORDS * CALL_TILE + MOVE_TILE] = 1;
        words[TILES_WORDS + MOVE_WORDS * CALL_THREAD + MOVE_THREAD] = 1;
    }
    return t->steps[TILING_COUNT] ? own + MODEL_THREADS * CALL_WORDS : own;
}

/* Turn the steps of a plan into the words that the executor reads: the table of steps, then a call
 * for each.  Return their end. */
static int64_t *read_steps(const struct tables *t, struct plan *p, const uint16_t *next,
                           int64_t *tilings, const uint8_t *base)
{
    struct steps s = find_steps(t->steps);
    struct place here = {next, NULL, 0};
    int64_t *call = p->table + STEP_WORDS * p->steps;
    for (int64_t *step = p->table; step < p->table + STEP_WORDS * p->steps;
         step += STEP_WORDS, call += CALL_WORDS) {
        enter_run(&s, &here);
        next = here.next;
        unsigned head = *next++;
        step[STEP_KERNEL] = (int64_t)(uintptr_t)kernel_at(t->kernels, head & KIND);
        step[STEP_ARGUMENTS] = (int64_t)(uintptr_t)call;
        step[STEP_BARRIER] = head & IS_BARRIER;
        step[STEP_ALONE] = head & IS_ALONE;
        if (!step[STEP_ALONE])
            p->runners = MODEL_THREADS;
        if (head & IS_TILED)
            step[STEP_TILES] = (int64_t)(uintptr_t)(tilings + *next++ * TILING_WORDS);
        if (head & IS_GROUP)
            step[STEP_GROUP] = *next++;
        call[CALL_BASE] = (int64_t)(uintptr_t)base;
        call[CALL_RECORD] = (int64_t)(uintptr_t)next;
        here.next = next + s.sizes[head & KIND];
        leave_run(&here, 1);
    }
    return call;
}
#endif
#else
/* Write the words with which the executor runs a step of a group tile by tile: how its `pointers`
 * move, and arguments for each thread.  These words follow the step's arguments, which are `own`
 * words from `given` on, the first one described by row `first` of T_ARG.  Return the end. */
static int64_t *read_tiles(struct tables *t, size_t row, size_t first, size_t pointers,
                           int64_t *given, size_t own)
{
    int64_t *tiles = given + own, *move = tiles + TILES_WORDS;
    int64_t *word = move + MOVE_WORDS * pointers;
    int numbered = cell(t, C_STEP_NUMBERED, row) != 0;
    tiles[TILES_COUNT] = (int64_t)cell(t, C_STEP_TILES, row);
    tiles[TILES_NUMBERED] = numbered;
    tiles[TILES_POINTERS] = (int64_t)pointers;
    tiles[TILES_STRIDE] = (int64_t)own;
    tiles[TILES_OWN] = (int64_t)(uintptr_t)word;
    for (size_t i = 0; i < pointers; i++, move += MOVE_WORDS) {
        size_t cut = (size_t)cell(t, C_ARG_CUT, first + i);
        if (!cut)
            continue;
        move[MOVE_THREAD] = (int64_t)cell(t, C_CUT_THREAD, cut - 1);
        move[MOVE_TILE] = (int64_t)cell(t, C_CUT_TILE, cut - 1);
        if (numbered) /* the kernel finds the tile, which is all that a thread has of the whole */
            move[MOVE_TILE] = move[MOVE_THREAD] ? -move[MOVE_TILE] : 0;
    }
    for (size_t i = 0; i < MODEL_THREADS * own; i++)
        *word++ = given[i % own];
    return word;
}

/* Turn the steps of a plan into the words that the executor reads: the table of steps, then the
 * arguments of all steps.  `runners` becomes the number of threads, unless one thread runs all. */
static void read_steps(struct tables *t, struct taken *done, size_t steps, const uint32_t *kernels,
                       const struct region *regions, int64_t *runners)
{
    int64_t *step = done->table, *word = step + STEP_WORDS * steps;
    size_t inside = 0; /* steps left in the group */
    for (; steps && !problem(t); steps--, step += STEP_WORDS) {
        size_t row = done->steps++, call = (size_t)cell(t, C_STEP_CALL, row);
        size_t number = (size_t)cell(t, C_CALL_KERNEL, call);
        number = t->rows[T_KERNEL] ? kernels[number] : number;
        step[STEP_KERNEL] = (int64_t)(uintptr_t)kernel_at(t->kernels, number);
        step[STEP_ARGUMENTS] = (int64_t)(uintptr_t)word;
        step[STEP_BARRIER] = cell(t, C_STEP_BARRIER, row) != 0;
        step[STEP_ALONE] = cell(t, C_STEP_ALONE, row) != 0;
        if (step[STEP_ALONE] && cell(t, C_STEP_TILES, row))
            reject(t, "a step of one thread has tiles");
        if (!step[STEP_ALONE])
            *runners = MODEL_THREADS;
        size_t group = limited(t, C_STEP_GROUP, row, steps);
        step[STEP_GROUP] = (int64_t)group;
        inside = group ? group : inside;
        int64_t *given = word;
        size_t before = done->arguments;
        for (uint64_t n = cell(t, C_CALL_ARGS, call); n; n--) {
            size_t buffer = (size_t)cell(t, C_ARG_BUFFER, done->arguments++);
            *word++ = 0;
            if (!buffer)
                continue;
            uint64_t region = cell(t, C_BUFFER_REGION, buffer - 1);
            uint64_t line = cell(t, C_BUFFER_LINE, buffer - 1);
            if (region >= REGIONS || !regions[region].at || line > regions[region].bytes / 64)
                reject(t, "an argument is out of bounds");
            if (!problem(t))
                word[-1] = (int64_t)(uintptr_t)(regions[region].at + line * 64);
        }
        size_t first = (size_t)cell(t, C_CALL_FIRST, call), naturals = t->rows[T_NATURAL];
        for (uint64_t n = cell(t, C_CALL_WORDS, call); n; n--) {
            size_t pooled = (size_t)cell(t, C_WORD_POOLED, first++);
            *word++ = (int64_t)(pooled < naturals ? cell(t, C_NATURAL_VALUE, pooled)
                                                  : cell(t, C_WIDE_VALUE, pooled - naturals));
        }
        if (cell(t, C_STEP_TILES, row)) {
            step[STEP_TILES] = (int64_t)(uintptr_t)word;
            word = read_tiles(t, row, before, done->arguments - before, given,
                              (size_t)(word - given));
        } else if (inside) {
            reject(t, "a step of a group has no tiles");
        }
        inside -= inside > 0;
    }
    done->table = word;
}
#endif

/* Read the plan that is row `row` of T_PLAN. */
static void read_plan(struct tables *t, struct design *d, const struct sizes *n, int row,
                      const struct areas *a, uint8_t *memory, struct region *regions,
                      struct taken *done)
{
    int phase = row ? (row - 1) % OPTIMIZER : OPTIMIZER;
    if (MODEL_DECODES && row > OPTIMIZER * d->batch_count)
        phase = STEP + row - 1 - OPTIMIZER * d->batch_count;
    const size_t io[] = {n->io[phase], n->io_at[phase]}; /* the size of the region, and its place */
    size_t at = (size_t)row, steps = (size_t)cell(t, C_PLAN_STEPS, at);
    size_t ports = (size_t)cell(t, C_PLAN_PORTS, at);
    struct plan *p = &d->plans[row];
    regions[R_IO].bytes = io[0];
    regions[R_IO].at = memory + io[1];
    p->steps = (int64_t)steps;
    p->fault = io_place(t, C_PLAN_FAULT, at, io, 8 * STATUS_WORDS);
    p->reset = io_place(t, C_PLAN_RESET, at, io, 1);
    p->noise = io_place(t, C_PLAN_NOISE, at, io, 8 * RANDOM_WORDS);
    p->scale = io_place(t, C_PLAN_SCALE, at, io, 4);
    p->rate = io_place(t, C_PLAN_RATE, at, io, 8);
    p->step = io_place(t, C_PLAN_STEP, at, io, 8);
    p->done = io_place(t, C_PLAN_DONE, at, io, 1);
    p->inputs = (int)limited(t, C_PLAN_INPUTS, at, ports);
    p->outputs = (int)ports - p->inputs;
    int64_t *dims = (int64_t *)(void *)(memory + a->dims) + t->rows[T_PARAMETER_DIM];
    read_ports(t, p, ports, (struct port *)(void *)(memory + a->ports), dims, done, io);
    p->runners = 1;
#ifdef OWN_PLANS
    const uint16_t *code = find_steps(t->steps).code + t->steps[PLAN_STARTS + at];
#endif
#if IN_PLACE
    p->code = code;
#elif defined(OWN_PLANS)
    p->table = done->table;
    int64_t *tilings = (int64_t *)(void *)(memory + a->steps);
    done->table = read_steps(t, p, code, tilings, memory + d->param_at);
#else
    p->table = done->table;
    read_steps(t, done, steps, d->kernels, regions, &p->runners);
#endif
}

/* Read everything that was laid out into `memory`, which is zero there. */
static void read_plans(struct tables *t, struct design *d, const struct sizes *n,
                       const struct areas *a, uint8_t *memory)
{
    struct parameter *parameters = (void *)(memory + a->parameters);
    uint32_t *sorted = (void *)(memory + a->sorted), *kernels = (void *)(memory + a->kernels);
    int64_t *batches = (void *)(memory + a->batches);
    struct taken done;
    zero(&done, sizeof done);
#if !IN_PLACE
    done.table = (int64_t *)(void *)(memory + a->steps);
#endif
    struct region regions[REGIONS] = {
        [R_PARAM] = {memory + d->param_at, n->param},
        [R_GRAD] = {memory + d->grad_at, n->grad},
        [R_STATE] = {memory + d->state_at, n->state},
        [R_CONST] = {t->constants, t->constant_bytes},
        [R_WORK] = {memory + d->work_at, n->work},
    };
    d->parameters = parameters;
    d->sorted = sorted;
    d->batches = batches;
    d->kernels = kernels;
    d->places = (void *)(memory + a->places);
    d->seen = memory + a->seen;
    d->plans = (void *)(memory + a->plans);
#if defined(OWN_PLANS) && !IN_PLACE
    done.table = read_tilings(t, done.table);
#endif
    read_kernels(t, kernels);
    read_all_parameters(t, d, n, parameters, sorted, (void *)(memory + a->dims));
    place_states(t, d, n->state);
    for (int i = 0; i < d->batch_count; i++)
        batches[i] = (int64_t)cell(t, C_BATCH_SAMPLES, (size_t)i);
    for (int i = 0; i <= OPTIMIZER * d->batch_count + DECODER_PLANS && !problem(t); i++)
        read_plan(t, d, n, i, a, memory, regions, &done);
}
