/* The model: its memory, its plans, its steps.
 *
 * A plan is constant data, a stream of numbers of 7 bits a byte, the last with the high bit clear:
 *
 *     step      kernel, 2 * (pointers) + (1: all threads meet before it), constants, then these
 *     pointer   8 * (offset / 64) + region; 0 is the null pointer
 *     constant  2 * zigzag(value), or 1 and the 8 bytes of a word
 *
 * At creation it becomes what kernels read: words of arguments, and a table of 4 words a step.
 */

enum region { R_NULL, R_PARAM, R_GRAD, R_STATE, R_WORK, R_IO, R_CONST, REGIONS };

enum { GENERATION = 16, SLEEPERS = 40, WORDS = 48 }; /* of the executor, kernels/executor.py */

struct property {
    uint32_t bytes; /* of this record, a multiple of 8; the name follows, then the text */
    uint32_t kind, name, text; /* lengths, without the zero byte */
    int64_t integer;
    float number;
    uint32_t table; /* where the writer put it */
};

struct model {
    uint8_t *memory;
    void *allocation; /* NULL: the caller's memory */
    int64_t step, seed, draws; /* draws: steps that drew random numbers */
    float initial_rate, rate;
    int loaded, overwrite;
    size_t property_bytes;
    uint32_t places[MODEL_PARAMETERS + 1]; /* scratch of the checkpoint's reader and writer */
    uint8_t seen[MODEL_PARAMETERS + 1];
    char message[MODEL_MESSAGE_BYTES];
    struct team team;
    _Alignas(64) int64_t words[WORDS];
};

_Static_assert(sizeof(struct model) <= MODEL_HANDLE_BYTES, "MODEL_HANDLE_BYTES is too small");

static int read_checkpoint(model *m, const void *data, size_t size);

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

/* --- plans */

static uint64_t number(const uint8_t **code)
{
    uint64_t value = 0;
    int shift = 0;
    do
        value |= (uint64_t)(**code & 0x7F) << shift;
    while (shift += 7, *(*code)++ & 0x80);
    return value;
}

static uint64_t constant(const uint8_t **code)
{
    uint64_t word = number(code);
    if (!(word & 1)) {
        word >>= 1;
        return (word >> 1) ^ (0 - (word & 1));
    }
    word = 0;
    for (int i = 0; i < 8; i++)
        word |= (uint64_t)*(*code)++ << 8 * i;
    return word;
}

static void bind_plan(model *m, const struct plan *plan)
{
    const uint8_t *base[REGIONS] = {
        NULL, at(m, PARAM_AT), at(m, GRAD_AT), at(m, STATE_AT), at(m, WORK_AT), at(m, plan->io),
        model_constants,
    };
    int64_t *table = (int64_t *)(void *)at(m, plan->table);
    int64_t *word = table + 4 * plan->steps;
    const uint8_t *code = plan->code;
    for (int64_t s = 0; s < plan->steps; s++, table += 4) {
        table[0] = (int64_t)(uintptr_t)model_kernels[number(&code)];
        table[1] = (int64_t)(uintptr_t)word;
        uint64_t head = number(&code), constants = number(&code);
        table[2] = (int64_t)(head & 1);
        for (head >>= 1; head; head--) {
            uint64_t place = number(&code);
            *word++ = place ? (int64_t)(uintptr_t)(base[place & 7] + (place >> 3) * 64) : 0;
        }
        for (; constants; constants--)
            *word++ = (int64_t)constant(&code);
    }
}

static int run(model *m, const struct plan *plan)
{
    int64_t none[4] = {0, 0, 0, 0};
    int64_t *fault = plan->fault ? (int64_t *)(void *)at(m, plan->fault) : none;
    fault[0] = 0;
    if (plan->noise) {
        int64_t *noise = (int64_t *)(void *)at(m, plan->noise);
        noise[0] = m->seed;
        noise[1] = m->draws++;
    }
    m->words[1] = (int64_t)(uintptr_t)at(m, plan->table);
    m->words[2] = plan->steps;
    m->words[11] = (int64_t)(uintptr_t)fault;
    model_kernels[LAUNCH](m->words, 0, MODEL_THREADS);
    if (!fault[0])
        return MODEL_OK;
    int label = fault[0] == 1;
    return fail(m, MODEL_BAD_LABEL, "%s %d at position %d is outside [%d, %d)",
                label ? "label" : "index", fault[2], fault[1], label ? (int64_t)0 : -fault[3],
                fault[3]);
}

/* --- life */

static void start_words(model *m)
{
    m->words[0] = MODEL_THREADS;
    team_words(&m->team, m->words);
}

int model_create_in(model **out, void *memory, size_t size, const void *checkpoint, size_t bytes,
                    char *message)
{
    char unused[1];
    struct text why = {message ? message : unused, message ? MODEL_MESSAGE_BYTES : 1, 0};
    why.out[0] = 0;
    if (!out)
        return MODEL_BAD_INPUT;
    *out = NULL;
    if (!memory || (uintptr_t)memory % 64 || size < MODEL_MEMORY_BYTES) {
        put_string(&why, "memory must be aligned to 64 bytes and hold MODEL_MEMORY_BYTES", 80);
        why.out[why.used] = 0;
        return MODEL_NO_MEMORY;
    }
    model *m = memory;
    zero(m, WORK_AT); /* all but the work memory, which every step fills before it reads */
    m->memory = memory;
    m->rate = m->initial_rate = 0.001f;
    start_words(m);
    for (int i = 0; i < PLANS; i++)
        bind_plan(m, &plans[i]);
    int code = checkpoint ? read_checkpoint(m, checkpoint, bytes) : MODEL_OK;
    if (!code && (code = start_team(&m->team, m->words)))
        fail(m, code, "the threads could not be started");
    if (code) {
        put_string(&why, m->message, MODEL_MESSAGE_BYTES);
        why.out[why.used] = 0;
        return code;
    }
    *out = m;
    return MODEL_OK;
}

void model_destroy(model *m)
{
    if (!m)
        return;
    stop_team(&m->team, m->words);
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

/* --- inputs and outputs */

static const struct plan *plan_of(int phase)
{
    return phase >= MODEL_TRAIN && phase <= MODEL_INFER && plans[phase].steps ? &plans[phase] : NULL;
}

int model_has_phase(int phase)
{
    return plan_of(phase) != NULL;
}

int model_input_count(int phase)
{
    return plan_of(phase) ? plans[phase].inputs : 0;
}

int model_output_count(int phase)
{
    return plan_of(phase) ? plans[phase].outputs : 0;
}

static const struct port *port(int phase, int index, int output)
{
    const struct plan *plan = plan_of(phase);
    if (!plan || index < 0 || index >= (output ? plan->outputs : plan->inputs))
        return NULL;
    return &plan->ports[index + (output ? plan->inputs : 0)];
}

const model_tensor *model_input_info(int phase, int index)
{
    const struct port *p = port(phase, index, 0);
    return p ? &p->tensor : NULL;
}

const model_tensor *model_output_info(int phase, int index)
{
    const struct port *p = port(phase, index, 1);
    return p ? &p->tensor : NULL;
}

void *model_input(model *m, int phase, int index)
{
    const struct port *p = port(phase, index, 0);
    return m && p ? at(m, p->at) : NULL;
}

const void *model_output(model *m, int phase, int index)
{
    const struct port *p = port(phase, index, 1);
    return m && p ? at(m, p->at) : NULL;
}

/* --- steps */

static int need_values(model *m)
{
    return m->loaded ? MODEL_OK
                     : fail(m, MODEL_BAD_STATE, "the parameters have no values: set them all first");
}

static int step(model *m, int phase, const void *const *inputs, void *const *outputs)
{
    const struct plan *plan = plan_of(phase);
    if (!m)
        return MODEL_BAD_INPUT;
    if (!plan)
        return fail(m, MODEL_BAD_STATE, "this build has no %s phase",
                    phase == MODEL_EVAL ? "evaluation" : phase == MODEL_INFER ? "inference" : "training");
    if (need_values(m))
        return MODEL_BAD_STATE;
    for (int i = 0; inputs && i < plan->inputs; i++)
        if (inputs[i] && inputs[i] != at(m, plan->ports[i].at))
            copy(at(m, plan->ports[i].at), inputs[i], plan->ports[i].tensor.bytes);
    if (plan->reset)
        *at(m, plan->reset) = (uint8_t)m->overwrite;
    int code = run(m, plan);
    if (code)
        return code;
    if (phase == MODEL_TRAIN)
        m->overwrite = 0;
    const struct port *results = plan->ports + plan->inputs;
    for (int i = 0; outputs && i < plan->outputs; i++)
        if (outputs[i] && outputs[i] != at(m, results[i].at))
            copy(outputs[i], at(m, results[i].at), results[i].tensor.bytes);
    return MODEL_OK;
}

int model_train_step(model *m, const void *const *inputs, void *const *outputs)
{
    return step(m, MODEL_TRAIN, inputs, outputs);
}

int model_eval_step(model *m, const void *const *inputs, void *const *outputs)
{
    return step(m, MODEL_EVAL, inputs, outputs);
}

int model_infer(model *m, const void *const *inputs, void *const *outputs)
{
    return step(m, MODEL_INFER, inputs, outputs);
}

int model_optimizer_step(model *m)
{
    const struct plan *plan = &plans[OPTIMIZER];
    if (!m)
        return MODEL_BAD_INPUT;
    if (!plan->steps)
        return fail(m, MODEL_BAD_STATE, "this build has no optimizer");
    if (need_values(m))
        return MODEL_BAD_STATE;
    if (m->step == INT64_MAX)
        return fail(m, MODEL_BAD_STATE, "the optimizer has done all the steps it can count");
    *(float *)(void *)at(m, RATE_AT) = m->rate;
    *(int64_t *)(void *)at(m, STEP_AT) = m->step + 1;
    int code = run(m, plan);
    if (!code)
        m->step++;
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

float model_get_learning_rate(const model *m)
{
    return m ? m->rate : 0;
}

int model_set_learning_rate(model *m, float rate)
{
    if (!m)
        return MODEL_BAD_INPUT;
    if (!(rate - rate == 0))
        return fail(m, MODEL_BAD_INPUT, "the learning rate is not finite");
    m->rate = rate;
    return MODEL_OK;
}

int64_t model_get_step(const model *m)
{
    return m ? m->step : 0;
}

int model_set_step(model *m, int64_t value)
{
    if (!m)
        return MODEL_BAD_INPUT;
    if (value < 0)
        return fail(m, MODEL_BAD_INPUT, "step %d is negative", value);
    m->step = value;
    return MODEL_OK;
}
