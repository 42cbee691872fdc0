/* Creating and destroying a model. */

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
static int begin(model **out, int *level, const void *checkpoint, size_t bytes, char *message)
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
static int make_model(model **out, int level, uint8_t *memory, size_t size, size_t used,
                      struct tables *t, const void *checkpoint, size_t checkpoint_bytes,
                      char *message)
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
    if (MODEL_DECODES)
        m->loaded = !d.parameter_count; /* a decoder alone has constants */
    code = checkpoint ? read_checkpoint(m, checkpoint, checkpoint_bytes) : MODEL_OK;
#if !IN_PLACE
    const struct level *own = level_of(m);
    if (!code && (code = start_team(&m->team, m->words, kernel_at(own->kernels, own->runner + 1))))
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
    int level, code = begin(out, &level, checkpoint, bytes, message);
    if (code)
        return code;
    struct tables t;
    const struct level *own = level_at(level);
    const uint8_t *tables = own->tables;
    size_t used = HANDLE_BYTES;
#if PACKED_PLANS
    code = check_memory(memory, size, own->memory, message);
    if (code)
        return code;
    uint8_t *mine = (uint8_t *)memory + used;
    unpack(mine, own->table_bytes, tables);
    unpack(mine + own->table_bytes, own->step_bytes, own->steps);
    tables = mine;
    used += ALIGNED(own->table_bytes + own->step_bytes);
#endif
    open_tables(&t, own, tables, own->table_bytes, own->constants, own->constant_bytes);
    t.steps = find_block(own, memory);
    return make_model(out, level, memory, size, used, &t, checkpoint, bytes, message);
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
    if (bytes < HEAD_BYTES || little(f, 4) != PLAN_MAGIC) {
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
    int level, code = begin(out, &level, checkpoint, bytes, message);
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
    open_tables(&t, level_at(level), mine, tables, mine + tables, constants);
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
