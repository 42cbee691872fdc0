/* Steps of a model: their inputs and outputs, and the updates that they count. */

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

#if MODEL_TRAINS || MODEL_ANSWERS
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
#endif

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
        return fail(m, MODEL_BAD_INPUT,
                    "a warm-up of %d steps of %d: give 0 <= warm-up <= total < 2^31", warmup,
                    total);
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
