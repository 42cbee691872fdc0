/* Devices of a federation: what a request asks for, and what the answer says. */

#if MODEL_FEDERATED

static const char *type_name(int dtype)
{
    static const char names[][5] = {TYPE_NAMES};
    return names[dtype];
}

static uint64_t hash_bytes(uint64_t hash, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ (uint8_t)bytes[i]) * (uint64_t)0x100000001b3;
    return hash;
}

/* Write the fingerprint of those parameters of the model that a request contains: 64-bit FNV-1a
 * over a line for each, `name\0F32,3,20\n`, in the order of the names. */
static void write_fingerprint(const model *m, const struct request *asked, char out[17])
{
    static const char hex[] = "0123456789abcdef";
    uint64_t hash = 0xcbf29ce484222325u;
    const model_tensor *last = NULL;
    struct entry unused;
    for (;;) {
        const model_tensor *next = NULL;
        for (int i = 0; i < m->d.parameter_count; i++) {
            const model_tensor *t = &m->d.parameters[i].tensor;
            size_t n = length(t->name);
            if ((!last || compare(t->name, n, last->name, length(last->name)) > 0)
                && (!next || compare(t->name, n, next->name, length(next->name)) < 0)
                && message_find(asked, t->name, &unused))
                next = t;
        }
        if (!next)
            break;
        char number[24];
        hash = hash_bytes(hash, next->name, length(next->name) + 1);
        hash = hash_bytes(hash, type_name(next->dtype), length(type_name(next->dtype)));
        for (int k = 0; k < next->rank; k++) {
            struct text t = {number, sizeof number, 0};
            put_char(&t, ',');
            put_number(&t, next->dims[k]);
            hash = hash_bytes(hash, number, t.used);
        }
        hash = hash_bytes(hash, "\n", 1);
        last = next;
    }
    for (int i = 0; i < 16; i++)
        out[i] = hex[hash >> (60 - 4 * i) & 15];
    out[16] = 0;
}

/* Return 1 if an entry has the type and shape of a parameter. */
static int is_like(const struct entry *t, const model_tensor *mine)
{
    int fits = is_text(t->dtype, length(t->dtype), type_name(mine->dtype)) && t->rank == mine->rank;
    for (int k = 0; fits && k < t->rank; k++)
        fits = t->dims[k] == (uint64_t)mine->dims[k];
    return fits;
}

/* Return 1 if no value of an entry is NaN or infinite. */
static int has_finite(const struct entry *t, int dtype)
{
    size_t item = dtype == MODEL_F32 ? 4 : 8;
    uint32_t word, mask = dtype == MODEL_F32 ? 0x7F800000 : 0x7FF00000;
    if (dtype != MODEL_F32 && dtype != MODEL_F64)
        return 1;
    for (size_t k = item - 4; k < t->bytes; k += item) {
        copy(&word, (const uint8_t *)t->data + k, sizeof word);
        if ((word & mask) == mask)
            return 0;
    }
    return 1;
}

/* Check that the parameters of a request are the model's. */
static int check_parameters(model *m, const struct request *asked)
{
    int known = 0, count = message_tensors(asked);
    for (int i = 0; i < m->d.parameter_count; i++) {
        const model_tensor *mine = &m->d.parameters[i].tensor;
        struct entry t;
        int is_there = message_find(asked, mine->name, &t);
        known += is_there;
        const char *wrong = !is_there && mine->trainable ? "is missing"
                          : is_there && !is_like(&t, mine) ? "has another shape or type"
                          : is_there && !has_finite(&t, mine->dtype)
                              ? "has values that are not finite" : NULL;
        if (wrong)
            return fail(m, MODEL_BAD_STATE, "parameter '%s' %s", mine->name, wrong);
    }
    if (known == count)
        return MODEL_OK;
    return fail(m, MODEL_BAD_STATE, "the request has %d parameters; this model knows %d of them",
                (int64_t)count, (int64_t)known);
}

/* --- FedProx: the anchors and the weight of the proximal term (engine/training/proximal.py) */

/* Return the index of a parameter's anchor; -1: there is none. */
static int find_anchor(const model *m, const model_tensor *owner)
{
    size_t n = length(owner->name);
    for (int i = 0; i < m->d.parameter_count; i++) {
        const char *name = m->d.parameters[i].tensor.name;
        if (length(name) > n && !compare(name, n, owner->name, n)
            && is_text(name + n, length(name + n), ANCHOR))
            return i;
    }
    return -1;
}

/* Check the weight of the proximal term, and that every trained parameter has an anchor if the
 * model has the term; *weight is the parameter with it, or -1. */
static int check_proximal(model *m, float mu, int *weight)
{
    *weight = model_find_parameter(m, PROXIMAL_WEIGHT);
    if (!(mu >= 0 && mu <= 1e30f) || (*weight < 0 && mu > 0))
        return fail(m, MODEL_BAD_STATE, "proximal-mu: %s",
                    *weight < 0 ? "this build has no such term" : "expected 0 to 1e30");
    for (int i = 0; *weight >= 0 && i < m->d.parameter_count; i++) {
        const model_tensor *t = &m->d.parameters[i].tensor;
        if (t->trainable && find_anchor(m, t) < 0)
            return fail(m, MODEL_BAD_STATE, "parameter '%s' has no anchor", t->name);
    }
    return MODEL_OK;
}

/* Return the bits of a double with the value of a float that is not negative: small CPUs have no
 * double.  Numbers that are too small for a normal float become 0. */
static uint64_t widen_float(float value)
{
    uint32_t word;
    copy(&word, &value, sizeof word);
    return word >> 23 ? ((uint64_t)word << 29) + ((uint64_t)(1023 - 127) << 52) : 0;
}

/* Let the anchors be the parameters as they are now. */
static void set_anchors(model *m, float mu, int weight)
{
    for (int i = 0; weight >= 0 && i < m->d.parameter_count; i++) {
        const model_tensor *t = &m->d.parameters[i].tensor;
        if (t->trainable)
            copy(model_parameter(m, find_anchor(m, t)), model_parameter(m, i), t->bytes);
    }
    if (weight < 0)
        return;
    if (m->d.parameters[weight].tensor.dtype == MODEL_F32) {
        copy(model_parameter(m, weight), &mu, sizeof mu);
    } else {
        uint64_t wide = widen_float(mu);
        copy(model_parameter(m, weight), &wide, sizeof wide);
    }
}

/* --- requests */

struct options {
    int is_training, epochs, keeps_state, weight;
    int64_t batch;
    float rate, mu; /* rate: negative if it stays as it is */
};

/* Read an option; return MODEL_OK too if there is none. */
static int read_option(model *m, const struct request *asked, const char *name, float *value)
{
    char text[64];
    if (!message_text(asked, name, text, sizeof text) || read_number(text, value))
        return MODEL_OK;
    return fail(m, MODEL_BAD_STATE, "%s is %s; expected a number", name, text);
}

/* Read the options of a request, and check that this model can carry it out. */
static int read_options(model *m, const struct request *asked, struct options *o)
{
    char mine[17], theirs[24], text[24];
    float batch = 0, epochs = 1;
    int code;
    write_fingerprint(m, asked, mine);
    if (!message_text(asked, "model", theirs, sizeof theirs)
        || !is_text(theirs, length(theirs), mine))
        return fail(m, MODEL_BAD_STATE,
                    "asked for another model; of these parameters it has %s", mine);
    if ((code = check_parameters(m, asked)))
        return code;
    if (message_text(asked, "config.send", text, sizeof text)
        && !is_text(text, length(text), "\"parameters\""))
        return fail(m, MODEL_BAD_STATE, "send is %s; this device sends parameters", text);
    o->mu = 0;
    o->rate = -1;
    if ((code = read_option(m, asked, "config.proximal-mu", &o->mu))
        || (code = read_option(m, asked, "config.learning-rate", &o->rate))
        || (code = read_option(m, asked, "config.batch-size", &batch))
        || (code = read_option(m, asked, "config.local-epochs", &epochs))
        || (code = check_proximal(m, o->mu, &o->weight)))
        return code;
    if (!(epochs >= 1 && epochs <= 1e6f) || epochs != (float)(int32_t)epochs)
        return fail(m, MODEL_BAD_STATE,
                    "local-epochs: expected a whole number from 1 to 1,000,000");
    if (!(batch >= 0 && batch <= 1e6f) || batch != (float)(int32_t)batch)
        return fail(m, MODEL_BAD_STATE, "batch-size: expected a whole number from 0 to 1,000,000");
    o->epochs = (int32_t)epochs;
    o->batch = batch > 0 ? (int32_t)batch : model_batch_size(m, 0);
    o->keeps_state = message_text(asked, "config.optimizer-state", text, sizeof text)
                  && is_text(text, length(text), "\"keep\"");
    return MODEL_OK;
}

/* Return 1 if a text of a request is a whole number of at most `most` digits, to a base. */
static int has_digits(const struct request *asked, const char *name, int base, size_t most)
{
    char text[24];
    size_t n = 0;
    if (!message_text(asked, name, text, sizeof text))
        return 0;
    while ((text[n] >= '0' && text[n] <= '9') || (base == 16 && text[n] >= 'a' && text[n] <= 'f'))
        n++;
    return !text[n] && n && n <= most && (base == 16 ? n == most : n == 1 || text[0] != '0');
}

/* Open a request and read whether it is one of training, of evaluation, or neither. */
static int open_request(model *m, struct request *asked, const void *bytes, size_t size,
                        int *is_training)
{
    char kind[16];
    const char *wrong = bytes ? message_open(asked, bytes, size) : "NULL";
    if (wrong)
        return fail(m, MODEL_BAD_INPUT, "request: %s", wrong);
    if (!message_text(asked, "kind", kind, sizeof kind))
        kind[0] = 0;
    *is_training = is_text(kind, length(kind), "train");
    if (!*is_training && !is_text(kind, length(kind), "evaluate"))
        return fail(m, MODEL_BAD_INPUT, "request: kind '%s'; expected train or evaluate", kind);
    if (!has_digits(asked, "model", 16, 16) || !has_digits(asked, "round", 10, 18))
        return fail(m, MODEL_BAD_INPUT,
                    "request: expected 16 hexadecimal digits as model, and a number as round");
    if (!message_checks(asked))
        return fail(m, MODEL_BAD_INPUT, "request: unknown text in the metadata, or an option that "
                                        "is not a number, true, false or a quoted text");
    return MODEL_OK;
}

int model_take_request(model *m, const void *request, size_t size, int *phase, int *epochs,
                       int *keeps_state)
{
    struct request asked;
    struct options o;
    int code;
    if (!m || !phase || !epochs || !keeps_state)
        return MODEL_BAD_INPUT;
    if ((code = open_request(m, &asked, request, size, &o.is_training)) || (code = need_values(m))
        || (code = read_options(m, &asked, &o)))
        return code;
    if (model_set_batch(m, o.batch))
        return MODEL_BAD_STATE;
    if (o.rate > 0)
        m->rate = o.rate;
    for (int i = 0; i < m->d.parameter_count; i++) {
        struct entry t;
        if (message_find(&asked, m->d.parameters[i].tensor.name, &t))
            copy(model_parameter(m, i), t.data, t.bytes);
    }
    m->is_waiting = 0;
    set_anchors(m, o.mu, o.weight);
    *phase = o.is_training ? MODEL_TRAIN : MODEL_EVAL;
    *epochs = o.is_training ? o.epochs : 1;
    *keeps_state = o.is_training && o.keeps_state;
    return MODEL_OK;
}

/* --- answers */

/* Write an answer, or count its bytes. */
static void put_answer(const model *m, struct letter *w, const struct request *asked,
                       int is_training, int64_t samples, float loss, const char *reason)
{
    const int failed = reason && *reason, sends = is_training && !failed;
    char text[32];
    struct entry unused;
    size_t end = 0;
    uint64_t header;
    add_bytes(w, "\0\0\0\0\0\0\0\0", MESSAGE_START);
    add_plain(w, "{\"__metadata__\":{\"edgegrad.message\":\"1\"");
    add_pair(w, "kind", failed ? "failed" : is_training ? "trained" : "evaluated");
    add_pair(w, "model", message_text(asked, "model", text, sizeof text) ? text : "");
    add_pair(w, "round", message_text(asked, "round", text, sizeof text) ? text : "");
    if (failed) {
        add_pair(w, "reason", reason);
    } else {
        struct text t = {text, sizeof text, 0};
        add_plain(w, ",\"metric.num-examples\":\"");
        add_integer(w, samples);
        add_plain(w, is_training ? "\",\"metric.train_loss\":\"" : "\",\"metric.eval_loss\":\"");
        put_float(&t, loss);
        add_bytes(w, text, t.used);
        add_plain(w, "\"");
    }
    add_plain(w, "}");
    for (int i = 0; sends && i < m->d.parameter_count; i++) {
        const model_tensor *t = &m->d.parameters[i].tensor;
        if (!message_find(asked, t->name, &unused))
            continue;
        add_plain(w, ",");
        add_quoted(w, t->name);
        add_plain(w, ":{\"dtype\":\"");
        add_plain(w, type_name(t->dtype));
        add_plain(w, "\",\"shape\":[");
        for (int k = 0; k < t->rank; k++) {
            add_plain(w, k ? "," : "");
            add_integer(w, t->dims[k]);
        }
        add_plain(w, "],\"data_offsets\":[");
        add_integer(w, (int64_t)end);
        add_plain(w, ",");
        add_integer(w, (int64_t)(end += t->bytes));
        add_plain(w, "]}");
    }
    add_plain(w, "}");
    while (w->used % 8)
        add_plain(w, " ");
    header = w->used - MESSAGE_START;
    for (int i = 0; w->out && i < MESSAGE_START; i++)
        w->out[i] = (uint8_t)(header >> 8 * i);
    for (int i = 0; sends && i < m->d.parameter_count; i++)
        if (message_find(asked, m->d.parameters[i].tensor.name, &unused))
            add_bytes(w, at(m, m->d.param_at + m->d.parameters[i].offset),
                      m->d.parameters[i].tensor.bytes);
}

/* Check what an answer is made of, and open the request again. */
static int check_answer(model *m, struct request *asked, const void *request, size_t size,
                        int64_t samples, float loss, const char *reason, int *is_training)
{
    int code = m ? open_request(m, asked, request, size, is_training) : MODEL_BAD_INPUT;
    if (code || (reason && *reason))
        return code;
    if (samples < 1 || loss - loss != 0)
        return fail(m, MODEL_BAD_INPUT, "the answer has %d samples and a loss that is %s", samples,
                    loss - loss != 0 ? "not finite" : "finite");
    return need_values(m);
}

size_t model_answer_size(model *m, const void *request, size_t size, int64_t samples, float loss,
                         const char *reason)
{
    struct request asked;
    struct letter w = {NULL, 0};
    int is_training;
    if (check_answer(m, &asked, request, size, samples, loss, reason, &is_training))
        return 0;
    put_answer(m, &w, &asked, is_training, samples, loss, reason);
    return w.used;
}

int model_write_answer(model *m, const void *request, size_t size, int64_t samples, float loss,
                       const char *reason, void *answer, size_t answer_size)
{
    struct request asked;
    struct letter w = {NULL, 0};
    int is_training, code;
    code = check_answer(m, &asked, request, size, samples, loss, reason, &is_training);
    if (code)
        return code;
    put_answer(m, &w, &asked, is_training, samples, loss, reason);
    if (!answer || answer_size != w.used)
        return fail(m, MODEL_BAD_INPUT, "the answer has %d bytes, the buffer %d", (int64_t)w.used,
                    (int64_t)(answer ? answer_size : 0));
    w.out = answer;
    w.used = 0;
    put_answer(m, &w, &asked, is_training, samples, loss, reason);
    return MODEL_OK;
}
#endif
