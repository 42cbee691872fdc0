/* The model: its memory, its errors, the states of its optimizer. */

struct property {
    /* The size of this record, a multiple of 8.  The name follows the struct, then the text. */
    uint32_t bytes;
    uint32_t kind, name, text; /* lengths, without the zero byte */
    int64_t integer;
    float number;
    uint32_t table; /* where the checkpoint writer put the property's table */
};

struct model {
    int level; /* the number of the one whose code it runs */
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
#if MODEL_DECODES
    int64_t filled;   /* tokens of the text: the rows of the caches that count */
    size_t scores_at; /* the scores after the last token; 0: there are none */
#endif
    struct design d;
    char message[MODEL_MESSAGE_BYTES];
#if !IN_PLACE
    struct team team;
    _Alignas(64) int64_t words[CONTEXT_WORDS + CLAIM_WORDS * MODEL_THREADS];
#endif
};

_Static_assert(sizeof(struct model) <= HANDLE_BYTES, "HANDLE_BYTES is too small");
_Static_assert(sizeof(struct property) <= PROPERTY_HEAD, "PROPERTY_HEAD is too small");

static int read_checkpoint(model *m, const void *data, size_t size);

/* Return the level whose code a model runs. */
static const struct level *level_of(const model *m)
{
    return level_at(m->level);
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
