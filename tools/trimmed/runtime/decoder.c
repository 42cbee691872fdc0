/* The decoder: a text that grows by tokens, whose keys and values stay in caches.
 *
 * A step adds a row to each cache, which lies among its inputs, in place.  Rows past the length of
 * the text are hidden by the mask, or by the number of rows that count, so they may hold anything:
 * a call that fails halfway has changed nothing. */

#if MODEL_DECODES

static const struct plan *decoder_plan(const model *m, int phase)
{
    return &m->d.plans[1 + OPTIMIZER * m->d.batch_count + phase - STEP];
}

/* Write a number to an input of whole numbers. */
static void put_whole(model *m, const struct port *p, int64_t i, int64_t value)
{
    uint8_t *to = at(m, p->at);
    if (p->tensor.dtype == MODEL_I32)
        ((int32_t *)(void *)to)[i] = (int32_t)value;
    else
        ((int64_t *)(void *)to)[i] = value;
    NO_LIBRARY_CALL();
}

/* Write all inputs but the caches, for tokens after the text.  Places beyond the tokens get
 * token 0 and the last position, and are hidden. */
static void put_tokens(model *m, const struct port *ports, const int32_t *tokens, int64_t count)
{
    const struct port *ids = ports + IN_IDS, *mask = ports + IN_MASK;
    for (int64_t i = 0; i < ids->tensor.dims[1]; i++) {
        put_whole(m, ids, i, i < count ? tokens[i] : 0);
        if (IN_PLACES)
            put_whole(m, ports + IN_PLACES, i, m->filled + (i < count ? i : count - 1));
    }
    for (int64_t i = 0; IN_MASK && i < mask->tensor.dims[1]; i++)
        put_whole(m, mask, i, i < m->filled + count);
}

/* Copy the first rows that a prompt has for the caches to where a step reads them. */
static void keep_rows(model *m, const struct port *made, int64_t count)
{
    const struct plan *step = decoder_plan(m, STEP);
    for (int i = IN_CACHES; i < step->inputs; i++, made++) {
        const struct port *cache = step->ports + i;
        size_t heads = (size_t)cache->tensor.dims[1];
        size_t from = made->tensor.bytes / heads, to = cache->tensor.bytes / heads;
        size_t rows = to / MODEL_POSITIONS * (size_t)count;
        for (size_t h = 0; h < heads; h++)
            copy(at(m, cache->at + h * to), at(m, made->at + h * from), rows);
    }
}

/* Add tokens to the text: the first ones by the plan for prompts, or one by a step. */
static int add_tokens(model *m, int phase, const int32_t *tokens, int64_t count)
{
    const struct plan *plan = decoder_plan(m, phase);
    const struct port *scores = plan->ports + plan->inputs;
    put_tokens(m, plan->ports, tokens, count);
    put_whole(m, plan->ports + IN_FILLED, 0, phase == STEP ? m->filled : count);
    int code = run(m, plan);
    if (code)
        return code;
    m->scores_at = scores->at;
    if (phase == PROMPT)
        keep_rows(m, scores + 1, count);
    m->filled += count;
    return MODEL_OK;
}

int model_append(model *m, const int32_t *tokens, size_t count)
{
    if (!m)
        return MODEL_BAD_INPUT;
    if (!tokens || !count)
        return fail(m, MODEL_BAD_INPUT, "there are no tokens to append");
    if (count > (size_t)(MODEL_POSITIONS - m->filled))
        return fail(m, MODEL_BAD_INPUT, "%d more tokens after %d: the caches hold %d",
                    (int64_t)(count < INT32_MAX ? count : INT32_MAX), m->filled,
                    (int64_t)MODEL_POSITIONS);
    for (size_t i = 0; i < count; i++)
        if (tokens[i] < 0)
            return fail(m, MODEL_BAD_LABEL, "token %d at position %d is negative",
                        (int64_t)tokens[i], (int64_t)i);
    if (need_values(m))
        return MODEL_BAD_STATE;
    int64_t before = m->filled, added = 0;
    int code = MODEL_OK;
    m->scores_at = 0;
    if (PROMPT_TOKENS > 1 && !before && count > 1) {
        added = count < PROMPT_TOKENS ? (int64_t)count : PROMPT_TOKENS;
        code = add_tokens(m, PROMPT, tokens, added);
    }
    for (; !code && added < (int64_t)count; added++)
        code = add_tokens(m, STEP, tokens + added, 1);
    if (code) {
        m->filled = before;
        m->scores_at = 0;
    }
    return code;
}

const void *model_scores(const model *m)
{
    return m && m->scores_at ? at(m, m->scores_at) : NULL;
}

const model_tensor *model_scores_info(const model *m)
{
    if (!m)
        return NULL;
    const struct plan *step = decoder_plan(m, STEP);
    return &step->ports[step->inputs].tensor;
}

int model_truncate(model *m, int64_t length)
{
    if (!m)
        return MODEL_BAD_INPUT;
    if (length < 0 || length > m->filled)
        return fail(m, MODEL_BAD_INPUT, "a length of %d tokens: give 0 to %d", length, m->filled);
    if (length < m->filled)
        m->scores_at = 0;
    m->filled = length;
    return MODEL_OK;
}

int64_t model_get_length(const model *m)
{
    return m ? m->filled : 0;
}

int64_t model_get_capacity(const model *m)
{
    return m ? MODEL_POSITIONS : 0;
}
#endif
