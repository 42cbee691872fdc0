/* The model: its memory, its plans, its steps. */

struct property {
    /* The size of this record, a multiple of 8.  The name follows the struct, then the text. */
    uint32_t bytes;
    uint32_t kind, name, text; /* lengths, without the zero byte */
    int64_t integer;
    float number;
    uint32_t table; /* where the checkpoint writer put the property's table */
};

struct model {
    const struct level *level; /* whose code it runs */
    uint8_t *memory;
    void *allocation; /* to free at the end; NULL: the memory is the caller's */
    int64_t step, seed, draws; /* draws: how many steps have drawn random numbers */
    int64_t skipped;           /* updates that were skipped */
    int64_t good_steps;        /* updates in a row since the loss scale changed */
    float scale;               /* the loss scale of the next step; 0: no step had one yet */
    float initial_rate, rate;
    int loaded, overwrite;
    int has_gradients; /* a step computed them, or the caller may have written them */
    int is_waiting;    /* steps wait for an update; statistics from before the first are kept */
    int batch; /* the index of the batch size that was set last */
    size_t property_bytes;
    struct design d;
    char message[MODEL_MESSAGE_BYTES];
#if !IN_PLACE
    struct team team;
    _Alignas(64) int64_t words[CONTEXT_WORDS + CLAIM_WORDS * MODEL_THREADS];
#endif
};

enum { HANDLE_BYTES = IN_PLACE ? 768 : 1344 + 128 * MODEL_THREADS };
_Static_assert(sizeof(struct model) <= HANDLE_BYTES, "HANDLE_BYTES is too small");
_Static_assert(sizeof(struct property) <= PROPERTY_HEAD, "PROPERTY_HEAD is too small");

static int read_checkpoint(model *m, const void *data, size_t size);

/* Return the level whose code a model runs; of one level, compilers then know all about it. */
static const struct level *level_of(const model *m)
{
    return LEVELS > 1 ? m->level : levels;
}

#define NO_RATE "is NaN, negative or infinite"

/* Return what is wrong with a learning rate, or NULL. */
static const char *bad_rate(float rate)
{
    if (rate >= 0 && rate - rate == 0)
        return NULL;
    return rate != rate ? "NaN" : rate < 0 ? "negative" : "infinite";
}

/* Return 1 if a loss scale may have this value. */
static int is_scale(float scale)
{
    return scale >= LEAST_SCALE && scale <= MOST_SCALE;
}

/* Return 1 if the optimizer's plan or the training step updates the parameters. */
static int has_optimizer(const model *m)
{
    return m->d.plans[0].steps > 0 || m->d.plans[1 + MODEL_TRAIN].rate != 0;
}

#if MODEL_TRAINS
int model_is_joined(const model *m)
{
    return m && m->d.plans[1 + MODEL_TRAIN].rate != 0;
}
#endif

static int fail(model *m, int code, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    write_line(m->message, sizeof m->message, format, values);
    va_end(values);
    return code;
}

static uint8_t *at(const model *m, size_t offset)
{
    return m->memory + offset;
}

/* Return the address of the tensor that a state keeps for a parameter; NULL if nothing reads it, as
 * the moment of plain descent: then it is no more than zeros in checkpoints. */
static uint8_t *state_of(const model *m, const struct state *s, const struct parameter *p)
{
    if (!m->d.keeps_states)
        return NULL;
    size_t found = s->at;
    for (int i = 0; i < m->d.parameter_count; i++) {
        const struct parameter *q = &m->d.parameters[i];
        if (q->tensor.trainable && q->offset < p->offset)
            found += state_bytes(s, q);
    }
    return at(m, found);
}

/* Give all states their initial values.  Their memory is zero before. */
static void fill_states(model *m)
{
    for (int k = 0; k < m->d.state_count && m->d.keeps_states; k++) {
        const struct state *s = &m->d.states[k];
        for (int i = 0; s->initial && i < m->d.parameter_count; i++) {
            const struct parameter *p = &m->d.parameters[i];
            int64_t dims[MOST_DIMS];
            model_tensor t = state_values(s, p, dims);
            const void *from = t.dtype == MODEL_F32 ? (const void *)&s->single : &s->initial;
            size_t item = item_bytes(t.dtype);
            uint8_t *to = state_of(m, s, p);
            for (size_t b = 0; p->tensor.trainable && b < t.bytes; b += item)
                copy(to + b, from, item);
        }
    }
}

/* --- plans */

#if IN_PLACE
/* Run a plan as the executor does, from where the library has its steps: the steps of a group one
 * after another on each tile.  Nothing after a barrier depends on bad data. */
static void walk(const model *m, const struct plan *plan, const int64_t *status)
{
    const struct level *level = level_of(m);
    struct steps s = find_steps((const uint32_t *)(const void *)level->steps);
    int64_t call[CALL_WORDS];
    call[CALL_BASE] = (int64_t)(uintptr_t)at(m, m->d.param_at);
    call[CALL_THREAD] = 0;
    const uint16_t *next = plan->code;
    for (int64_t left = plan->steps, steps; left; left -= steps) {
        const uint16_t *first = next;
        int64_t tiles = 1;
        steps = 1;
        if ((*first & IS_BARRIER) && status[STATUS_KIND])
            break;
        if (*first & IS_GROUP) {
            tiles = s.tilings[first[1]] >> 1;
            steps = first[2];
        }
        for (int64_t tile = 0; tile < tiles; tile++) {
            next = first;
            for (int64_t i = 0; i < steps; i++) {
                unsigned head = *next++;
                int64_t part = 0, parts = 1;
                if (head & IS_TILED) {
                    uint32_t tiling = s.tilings[*next++];
                    if (tiling & 1) {
                        part = tile;
                        parts = tiling >> 1;
                    }
                }
                next += (head & IS_GROUP) != 0;
                call[CALL_RECORD] = (int64_t)(uintptr_t)next;
                call[CALL_TILE] = tile;
                level->kernels[head & KIND](call, part, parts);
                next += s.sizes[head & KIND];
            }
        }
    }
}
#endif

static int run(model *m, const struct plan *plan)
{
    int64_t none[STATUS_WORDS]; /* for a plan that reports nothing */
    int64_t *status = plan->fault ? (int64_t *)(void *)at(m, plan->fault) : none;
    status[STATUS_KIND] = 0;
    if (plan->noise) {
        int64_t *noise = (int64_t *)(void *)at(m, plan->noise);
        noise[RANDOM_SEED] = m->seed;
        noise[RANDOM_STEP] = m->draws;
    }
#if IN_PLACE
    walk(m, plan, status);
#else
    m->words[CONTEXT_TABLE] = (int64_t)(uintptr_t)plan->table;
    m->words[CONTEXT_STEPS] = plan->steps;
    m->words[CONTEXT_STATUS] = (int64_t)(uintptr_t)status;
    level_of(m)->runners[0](m->words, 0, plan->runners);
#endif
    int64_t kind = status[STATUS_KIND], limit = status[STATUS_LIMIT];
    if (!kind) {
        m->draws += plan->noise != 0;
        return MODEL_OK;
    }
    return fail(m, MODEL_BAD_LABEL, "%s %d at position %d is outside [%d, %d)",
                kind == LABEL ? "label" : kind == INDEX ? "index" : "length",
                status[STATUS_VALUE], status[STATUS_POSITION], kind == INDEX ? -limit : (int64_t)0,
                limit);
}

/* --- creating and destroying */

/* Write an error message to the caller's buffer, if there is one. */
static void report(char *message, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    if (message)
        write_line(message, MODEL_MESSAGE_BYTES, format, values);
    va_end(values);
}

static int bad_plan(const struct tables *t, char *message)
{
    if (t->op)
        report(message, "the plan needs kernel %s, made for %s: rebuild with this op in the config",
               t->bad, t->op);
    else
        report(message, "the plan cannot be used: %s", t->bad);
    return MODEL_BAD_PLAN;
}

/* Check the caller's memory. */
static int check_memory(const void *memory, size_t size, size_t needed, char *message)
{
    if (!memory)
        report(message, "memory is NULL: %d bytes are needed", (int64_t)needed);
    else if ((uintptr_t)memory % 64)
        report(message, "memory begins %d bytes after a multiple of 64",
               (int64_t)((uintptr_t)memory % 64));
    else if (size < needed)
        report(message, "memory has %d bytes: %d are needed", (int64_t)size, (int64_t)needed);
    else
        return MODEL_OK;
    return MODEL_NO_MEMORY;
}

/* Check the arguments that all functions to create a model share, set *out to NULL, and choose the
 * code that the model will run. */
static int begin(model **out, const struct level **level, const void *checkpoint, size_t bytes,
                 char *message)
{
    report(message, "");
    if (!out) {
        report(message, "out is NULL: it must point to where the model goes");
        return MODEL_BAD_INPUT;
    }
    *out = NULL;
    if (!checkpoint && bytes) {
        report(message, "the checkpoint of %d bytes is NULL: give 0 bytes for none",
               (int64_t)bytes);
        return MODEL_BAD_INPUT;
    }
    return choose_level(level, message);
}

/* Make a model that runs the code of a level, in `memory`, from the plans in the tables.  The first
 * `used` bytes of the memory are already taken. */
static int make_model(model **out, const struct level *level, uint8_t *memory, size_t size,
                      size_t used, struct tables *t, const void *checkpoint,
                      size_t checkpoint_bytes, char *message)
{
    struct sizes n;
    struct design d;
    zero(&d, sizeof d);
    struct areas a = lay_out(t, &d, &n, used);
    if (problem(t))
        return bad_plan(t, message);
    int code = check_memory(memory, size, d.total, message);
    if (code)
        return code;
    model *m = (model *)(void *)memory;
    zero(m, HANDLE_BYTES);
    zero(memory + used, d.work_at - used); /* steps write work memory first */
    read_plans(t, &d, &n, &a, memory);
    if (problem(t))
        return bad_plan(t, message);
    m->level = level;
    m->memory = memory;
    copy(&m->d, &d, sizeof d);
    m->rate = m->initial_rate = 0.001f;
#if !IN_PLACE
    m->words[CONTEXT_TEAM] = MODEL_THREADS;
    team_words(&m->team, m->words);
#endif
    zero(d.seen, (size_t)d.parameter_count);
    fill_states(m);
    code = checkpoint ? read_checkpoint(m, checkpoint, checkpoint_bytes) : MODEL_OK;
#if !IN_PLACE
    if (!code && (code = start_team(&m->team, m->words, level_of(m)->runners)))
        fail(m, code, "the system gave fewer than %d threads", (int64_t)MODEL_THREADS);
#endif
    if (code)
        report(message, "%s", m->message);
    else
        *out = m;
    return code;
}

#ifdef OWN_PLANS
int model_create_in(model **out, void *memory, size_t size, const void *checkpoint, size_t bytes,
                    char *message)
{
    const struct level *level;
    int code = begin(out, &level, checkpoint, bytes, message);
    if (code)
        return code;
    struct tables t;
    open_tables(&t, level, level->tables, level->table_bytes, level->constants,
                level->constant_bytes);
    return make_model(out, level, memory, size, HANDLE_BYTES, &t, checkpoint, bytes, message);
}
#else
/* Check the head of a plan file.  On success *size is the size of the head and the tables, and
 * *constants the size of the constants after them. */
static int check_head(const uint8_t *f, size_t bytes, size_t *size, size_t *constants,
                      char *message)
{
    const char *bad = NULL;
    if (!f) {
        report(message, "plan is NULL: it must be the content of a plan file");
        return MODEL_BAD_INPUT;
    }
    if (bytes < HEAD_BYTES || f[0] != 'E' || f[1] != 'G' || f[2] != 'P' || f[3] != 'L') {
        report(message, "this is no plan file of edgegrad plan");
        return MODEL_BAD_PLAN;
    }
    uint64_t tables = little(f + 16, 8), rest = little(f + 24, 8);
    if (little(f + 4, 4) != PLAN_VERSION)
        bad = "the plan file is of another version";
    else if (tables < HEAD_BYTES || tables % 64 || tables > bytes || rest > bytes - tables)
        bad = "the plan file is cut short";
    else if (little(f + 8, 4) != crc32(f + SEALED, bytes - SEALED))
        bad = "the plan file is damaged, its checksum is wrong";
    else if (little(f + 12, 4) != PLAN_STRIPPED)
        bad = "the plan file is for the engine, not for libraries: make one by edgegrad plan";
    if (bad) {
        report(message, "%s", bad);
        return MODEL_BAD_PLAN;
    }
    *size = (size_t)tables;
    *constants = (size_t)rest;
    return MODEL_OK;
}

/* Find how many bytes a model takes.  The head of its plan file must have passed `check_head`. */
static int measure(const void *plan, size_t tables, size_t constants, size_t *size, char *message)
{
    struct sizes n;
    struct design d;
    struct tables t;
    open_tables(&t, levels, plan, tables, (const uint8_t *)plan + tables, constants);
    zero(&d, sizeof d);
    lay_out(&t, &d, &n, HANDLE_BYTES + ALIGNED(tables + constants));
    if (problem(&t))
        return bad_plan(&t, message);
    *size = d.total;
    return MODEL_OK;
}

int model_plan_memory(const void *plan, size_t bytes, size_t *size, char *message)
{
    size_t tables, constants;
    report(message, "");
    if (!size) {
        report(message, "size is NULL: it must point to where the number of bytes goes");
        return MODEL_BAD_INPUT;
    }
    int code = check_head(plan, bytes, &tables, &constants, message);
    return code ? code : measure(plan, tables, constants, size, message);
}

int model_create_in(model **out, void *memory, size_t size, const void *plan, size_t plan_bytes,
                    const void *checkpoint, size_t bytes, char *message)
{
    size_t tables, constants, needed;
    const struct level *level;
    int code = begin(out, &level, checkpoint, bytes, message);
    if (!code)
        code = check_head(plan, plan_bytes, &tables, &constants, message);
    if (!code)
        code = measure(plan, tables, constants, &needed, message);
    if (!code)
        code = check_memory(memory, size, needed, message);
    if (code)
        return code;
    size_t kept = tables + constants; /* bytes of the file that the model copies and keeps */
    uint8_t *mine = (uint8_t *)memory + HANDLE_BYTES; /* plans point to names and constants there */
    copy(mine, plan, kept);
    struct tables t;
    open_tables(&t, level, mine, tables, mine + tables, constants);
    return make_model(out, level, memory, size, HANDLE_BYTES + ALIGNED(kept), &t, checkpoint,
                      bytes, message);
}
#endif

void model_destroy(model *m)
{
    if (!m)
        return;
#if !IN_PLACE
    stop_team(&m->team, m->words);
#endif
#ifndef EDGEGRAD_FREESTANDING
    free(m->allocation);
#endif
}

const char *model_message(const model *m)
{
    return m ? m->message : "the model is NULL";
}

const char *model_build(void)
{
    return BUILD;
}

const char *model_cpu(const model *m)
{
    return m ? level_of(m)->cpu : "";
}

/* --- inputs and outputs */

static const struct plan *plan_of(const model *m, int phase)
{
    if (!m || phase < MODEL_TRAIN || phase > MODEL_INFER)
        return NULL;
    const struct plan *found = &m->d.plans[1 + OPTIMIZER * m->batch + phase];
    return found->steps ? found : NULL;
}

int model_has_phase(const model *m, int phase)
{
    return plan_of(m, phase) != NULL;
}

int model_input_count(const model *m, int phase)
{
    const struct plan *plan = plan_of(m, phase);
    return plan ? plan->inputs : 0;
}

int model_output_count(const model *m, int phase)
{
    const struct plan *plan = plan_of(m, phase);
    return plan ? plan->outputs : 0;
}

static const struct port *port(const model *m, int phase, int index, int output)
{
    const struct plan *plan = plan_of(m, phase);
    if (!plan || index < 0 || index >= (output ? plan->outputs : plan->inputs))
        return NULL;
    return &plan->ports[index + (output ? plan->inputs : 0)];
}

const model_tensor *model_input_info(const model *m, int phase, int index)
{
    const struct port *p = port(m, phase, index, 0);
    return p ? &p->tensor : NULL;
}

const model_tensor *model_output_info(const model *m, int phase, int index)
{
    const struct port *p = port(m, phase, index, 1);
    return p ? &p->tensor : NULL;
}

void *model_input(model *m, int phase, int index)
{
    const struct port *p = port(m, phase, index, 0);
    return p ? at(m, p->at) : NULL;
}

const void *model_output(model *m, int phase, int index)
{
    const struct port *p = port(m, phase, index, 1);
    return p ? at(m, p->at) : NULL;
}

/* --- batches */

int model_batch_count(const model *m)
{
    return m ? m->d.batch_count : 0;
}

int64_t model_batch_size(const model *m, int index)
{
    return m && index >= 0 && index < m->d.batch_count ? m->d.batches[index] : 0;
}

int64_t model_get_batch(const model *m)
{
    return m ? m->d.batches[m->batch] : 0;
}

int model_set_batch(model *m, int64_t samples)
{
    if (!m)
        return MODEL_BAD_INPUT;
    for (int i = 0; i < m->d.batch_count; i++)
        if (m->d.batches[i] == samples) {
            m->batch = i;
            return MODEL_OK;
        }
    fail(m, 0, "batch %d: there are plans for", samples);
    struct text t = {m->message, sizeof m->message, length(m->message)};
    for (int i = 0; i < m->d.batch_count; i++) {
        put_string(&t, i ? ", " : " ", 2);
        put_number(&t, m->d.batches[i]);
    }
    t.out[t.used] = 0;
    return MODEL_BAD_INPUT;
}

/* --- steps */

static int need_values(model *m)
{
    if (m->loaded)
        return MODEL_OK;
    return fail(m, MODEL_BAD_STATE, "the parameters have no values: set them all first");
}

/* Write the inputs of the formulas of a plan that updates parameters. */
static int begin_update(model *m, const struct plan *plan)
{
    if (m->step == INT64_MAX)
        return fail(m, MODEL_BAD_STATE, "the optimizer has done all the steps it can count");
    if (plan->rate)
        *(float *)(void *)at(m, plan->rate) = m->rate;
    if (plan->step)
        *(int64_t *)(void *)at(m, plan->step) = m->step + 1;
    return MODEL_OK;
}

/* Return the loss scale of the next step; 0 if the loss is not scaled. */
static float loss_scale(const model *m)
{
    if (!SCALES_LOSS || !m->d.plans[1 + MODEL_TRAIN].scale)
        return 0;
    return m->scale > 0 ? m->scale : FIRST_SCALE;
}

/* Find the loss scale of the next step after one that was done or skipped, as
 * engine/training/loss_scale.py does. */
static void count_scale(model *m, float scale, int done)
{
    int grows = done && m->good_steps >= GROWTH_INTERVAL - 1;
    m->good_steps = done && !grows ? m->good_steps + 1 : 0;
    if (!done)
        scale /= GROWTH_SCALE;
    else if (grows)
        scale *= GROWTH_SCALE;
    m->scale = scale < LEAST_SCALE ? LEAST_SCALE : scale > MOST_SCALE ? MOST_SCALE : scale;
}

/* Count the update of a plan that has run, as done or as skipped; return whether it was skipped. */
static int count_update(model *m, const struct plan *plan)
{
    if (!plan->done)
        return 0;
    int done = *at(m, plan->done) != 0;
    m->step += done;
    m->skipped += !done;
    float scale = loss_scale(m);
    if (scale > 0)
        count_scale(m, scale, done);
    return !done;
}

/* A build whose model has no running statistics has no code to copy them. */
#ifdef OWN_PLANS
#define HAS_STATISTICS (MODEL_TRAINS && MODEL_KEPT_BYTES > 0)
#else
#define HAS_STATISTICS 1
#endif

/* Copy the statistics that training steps move, to copy `number` or `back` from it. */
static void copy_statistics(model *m, int number, int back)
{
    if (!HAS_STATISTICS)
        return;
    uint8_t *kept = at(m, m->d.kept_at + (size_t)number * m->d.kept);
    for (int i = 0; i < m->d.parameter_count; i++) {
        const struct parameter *p = &m->d.parameters[i];
        if (!p->moved)
            continue;
        uint8_t *value = at(m, m->d.param_at + p->offset);
        copy(back ? value : kept, back ? kept : value, p->tensor.bytes);
        kept += ALIGNED(p->tensor.bytes);
    }
}

static int step(model *m, int phase, const void *const *inputs, void *const *outputs)
{
    const struct plan *plan = plan_of(m, phase);
    if (!m)
        return MODEL_BAD_INPUT;
    if (!plan)
        return fail(m, MODEL_BAD_STATE, "the model has no %s phase",
                    phase == MODEL_EVAL    ? "evaluation"
                    : phase == MODEL_INFER ? "inference"
                                           : "training");
    if (need_values(m))
        return MODEL_BAD_STATE;
    for (int i = 0; inputs && i < plan->inputs; i++)
        if (inputs[i] && inputs[i] != at(m, plan->ports[i].at))
            copy(at(m, plan->ports[i].at), inputs[i], plan->ports[i].tensor.bytes);
    if (plan->reset)
        *at(m, plan->reset) = (uint8_t)m->overwrite;
    if (plan->scale)
        *(float *)(void *)at(m, plan->scale) = loss_scale(m);
    int code = plan->rate ? begin_update(m, plan) : MODEL_OK;
    if (code)
        return code;
    if (phase == MODEL_TRAIN)
        copy_statistics(m, 0, 0);
    code = run(m, plan);
    if (phase == MODEL_TRAIN && (code || count_update(m, plan)))
        copy_statistics(m, 0, 1);
    if (code)
        return code;
    if (phase == MODEL_TRAIN) {
        if (HAS_STATISTICS && m->d.copies > 1 && (m->overwrite || !m->is_waiting))
            copy(at(m, m->d.kept_at + m->d.kept), at(m, m->d.kept_at), m->d.kept);
        m->is_waiting = 1;
        m->overwrite = 0;
        m->has_gradients = 1;
    }
    const struct port *results = plan->ports + plan->inputs;
    for (int i = 0; outputs && i < plan->outputs; i++)
        if (outputs[i] && outputs[i] != at(m, results[i].at))
            copy(outputs[i], at(m, results[i].at), results[i].tensor.bytes);
    return MODEL_OK;
}

#if MODEL_ANSWERS
int model_infer(model *m, const void *const *inputs, void *const *outputs)
{
    return step(m, MODEL_INFER, inputs, outputs);
}
#endif

#if MODEL_TRAINS && MODEL_ANSWERS
int model_eval_step(model *m, const void *const *inputs, void *const *outputs)
{
    return step(m, MODEL_EVAL, inputs, outputs);
}
#endif

#if MODEL_TRAINS
int model_train_step(model *m, const void *const *inputs, void *const *outputs)
{
    return step(m, MODEL_TRAIN, inputs, outputs);
}

int model_optimizer_step(model *m)
{
    if (!m)
        return MODEL_BAD_INPUT;
    const struct plan *plan = &m->d.plans[0];
    if (model_is_joined(m))
        return fail(m, MODEL_BAD_STATE, "training steps update the parameters themselves");
    if (!plan->steps)
        return fail(m, MODEL_BAD_STATE, "the model has no optimizer");
    if (need_values(m))
        return MODEL_BAD_STATE;
    if (!m->has_gradients)
        return fail(m, MODEL_BAD_STATE, "there are no gradients yet: train a step first");
    int code = begin_update(m, plan);
    if (!code)
        code = run(m, plan);
    if (!code) {
        if (count_update(m, plan) && m->is_waiting && m->d.copies > 1)
            copy_statistics(m, 1, 1);
        m->is_waiting = 0;
    }
    return code;
}

void model_lazy_reset_grad(model *m)
{
    if (m)
        m->overwrite = 1;
}

void model_set_seed(model *m, int64_t seed)
{
    if (m)
        m->seed = seed;
}

int64_t model_get_draws(const model *m)
{
    return m ? m->draws : 0;
}

int model_set_draws(model *m, int64_t value)
{
    if (!m)
        return MODEL_BAD_INPUT;
    if (value < 0)
        return fail(m, MODEL_BAD_INPUT, "draws %d is negative: give at least 0", value);
    m->draws = value;
    return MODEL_OK;
}

float model_get_learning_rate(const model *m)
{
    return m ? m->rate : 0;
}

int model_set_learning_rate(model *m, float rate)
{
    if (!m)
        return MODEL_BAD_INPUT;
    const char *bad = bad_rate(rate);
    if (bad)
        return fail(m, MODEL_BAD_INPUT, "the learning rate is %s: give a number of at least 0",
                    bad);
    m->rate = rate;
    return MODEL_OK;
}

int model_set_linear_rate(model *m, float peak, int64_t warmup, int64_t total)
{
    if (!m)
        return MODEL_BAD_INPUT;
    if (warmup < 0 || warmup > total || total > INT32_MAX)
        return fail(m, MODEL_BAD_INPUT, "a warm-up of %d steps of %d: give 0 <= warm-up <= total",
                    warmup, total);
    int is_rising = m->step < warmup;
    int32_t whole = (int32_t)(is_rising ? warmup : total - warmup);
    int64_t part = is_rising ? m->step : m->step < total ? total - m->step : 0;
    float factor = whole ? (float)(int32_t)part / (float)whole : 0;
    return bad_rate(peak) ? model_set_learning_rate(m, peak)
                          : model_set_learning_rate(m, peak * factor);
}

int64_t model_get_step(const model *m)
{
    return m ? m->step : 0;
}

int64_t model_get_skipped(const model *m)
{
    return m ? m->skipped : 0;
}

float model_get_loss_scale(const model *m)
{
    return m ? loss_scale(m) : 0;
}

int model_set_loss_scale(model *m, float scale)
{
    if (!m)
        return MODEL_BAD_INPUT;
    if (!(loss_scale(m) > 0))
        return fail(m, MODEL_BAD_STATE, "the training steps of this model do not scale the loss");
    if (!is_scale(scale))
        return fail(m, MODEL_BAD_INPUT, "the loss scale is out of range: give %d to %d",
                    (int64_t)LEAST_SCALE, (int64_t)MOST_SCALE);
    m->scale = scale;
    return MODEL_OK;
}

int model_set_step(model *m, int64_t value)
{
    if (!m)
        return MODEL_BAD_INPUT;
    if (value < 0)
        return fail(m, MODEL_BAD_INPUT, "step %d is negative: give at least 0", value);
    m->step = value;
    return MODEL_OK;
}
#endif
