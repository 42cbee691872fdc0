/* The self-test of a build: continues a made-up text if there is a decoder; trains a few steps on
 * made-up data if there are training steps, and otherwise answers on them; and compares the scores,
 * the losses and the answers with those recorded when the library was built.  The exit status is 0
 * if they are equal up to rounding.
 *
 *     selftest [CHECKPOINT]
 *
 * CHECKPOINT is the build's file `checkpoint`, by default the one in the program's folder; a
 * decoder alone has none. */

/*@recorded@*/

#define JUST_INFERS (MODEL_ANSWERS && !MODEL_TRAINS)

#if MODEL_TRAINS || JUST_INFERS
/* Return the next number of the generator that tools/trimmed/selftest.py describes. */
static uint32_t next(uint32_t *seed)
{
    return *seed = 1664525u * *seed + 1013904223u;
}
#endif

static size_t width(int dtype)
{
    switch (dtype) {
    case MODEL_F64: case MODEL_I64: case MODEL_U64: return 8;
    case MODEL_F32: case MODEL_I32: case MODEL_U32: return 4;
    case MODEL_I16: case MODEL_U16: return 2;
    default: return 1;
    }
}

#if MODEL_TRAINS || JUST_INFERS
static void fill(const model_tensor *t, void *to, uint32_t *seed)
{
    size_t size = width(t->dtype);
    for (size_t i = 0; i < t->bytes / size; i++) {
        uint32_t word = next(seed);
        unsigned char *at = (unsigned char *)to + i * size;
        if (t->dtype == MODEL_F32) {
            *(float *)(void *)at = (float)(word >> 8) * 0x1p-24f;
        } else if (t->dtype == MODEL_F64) {
            *(double *)(void *)at = (double)(word >> 8) * 0x1p-24;
        } else {
            for (size_t k = 0; k < size; k++)
                at[k] = 0;
            at[0] = (unsigned char)(word >> 31); /* little-endian */
        }
    }
}

/* Take the plans of the next batch size, and make up the inputs of a phase. */
static void prepare(model *m, int phase, int call, uint32_t *seed)
{
    model_set_batch(m, model_batch_size(m, call % model_batch_count(m)));
    for (int i = 0; i < model_input_count(m, phase); i++)
        fill(model_input_info(m, phase, i), model_input(m, phase, i), seed);
}
#endif

/* Return whether two numbers are the same: also if both are infinite, or both are NaN. */
static int same(double value, double expected)
{
    return value == expected || (value != value && expected != expected);
}

/* Return whether a number is within a tolerance, relative to what is expected. */
static int close_to(double value, double expected, double tolerance)
{
    double bound = tolerance * (expected < 0 ? -expected : expected) + 1e-6;
    int is_near = value - expected < bound && expected - value < bound;
    return is_near || same(value, expected);
}

static double first_number(const model_tensor *t, const void *at)
{
    switch (t->dtype) {
    case MODEL_F32: return (double)*(const float *)at;
    case MODEL_F64: return *(const double *)at;
    case MODEL_I64: return (double)*(const int64_t *)at;
    case MODEL_U64: return (double)*(const uint64_t *)at;
    case MODEL_I32: return *(const int32_t *)at; /* integers that are trained in place, too */
    case MODEL_U32: return *(const uint32_t *)at;
    case MODEL_I16: return *(const int16_t *)at;
    case MODEL_U16: return *(const uint16_t *)at;
    case MODEL_I8: return *(const int8_t *)at;
    default: return *(const uint8_t *)at;
    }
}

/* Return the sum of the squares of a tensor. */
static double sum_squares(const model_tensor *t, const char *at)
{
    double sum = 0;
    for (size_t place = 0; place < t->bytes; place += width(t->dtype)) {
        double value = first_number(t, at + place);
        sum += value * value;
    }
    return sum;
}

#if CHECKPOINT_BYTES
static uint32_t crc32_of(const unsigned char *bytes, size_t n)
{
    uint32_t crc = 0xFFFFFFFF;
    while (n--) {
        crc ^= *bytes++;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320 : 0);
    }
    return ~crc;
}

/* Return the content of the file at `path`, by default `checkpoint` in the program's folder; the
 * caller frees it.  Unless it is the checkpoint that the losses were recorded with, print a message
 * and return NULL. */
static unsigned char *read_checkpoint(const char *program, const char *path)
{
    const char *end = program ? program + strlen(program) : "";
    while (program && end > program && end[-1] != '/' && end[-1] != '\\')
        end--;
    size_t folder = path || !program ? 0 : (size_t)(end - program);
    const char *name = path ? path : "checkpoint";
    char *whole = malloc(folder + strlen(name) + 1);
    unsigned char *data = malloc(CHECKPOINT_BYTES + 1u);
    size_t found = 0;
    if (whole && data) {
        memcpy(whole, program ? program : "", folder);
        strcpy(whole + folder, name);
        FILE *file = fopen(whole, "rb");
        if (file) {
            found = fread(data, 1, CHECKPOINT_BYTES + 1u, file);
            fclose(file);
        }
        if (found == CHECKPOINT_BYTES && crc32_of(data, found) == CHECKPOINT_CRC32) {
            free(whole);
            return data;
        }
    }
    if (!whole || !data)
        fprintf(stderr, "no memory for the checkpoint\n");
    else if (!found)
        fprintf(stderr, "cannot read '%s': give the checkpoint of this build\n", whole);
    else
        fprintf(stderr, "'%s' is not as this build made it, but trained since or another file: "
                "give the build's own\n", whole);
    free(whole);
    free(data);
    return NULL;
}

#endif

/* Print what a call computed beside what was recorded; return whether it is wrong. */
static int tell(const char *call, int number, const char *what, double value, double expected,
                double tolerance, clock_t begin)
{
    double ms = 1e3 * (double)(clock() - begin) / CLOCKS_PER_SEC;
    int good = close_to(value, expected, tolerance);
    int equal = same((double)(float)value, (double)(float)expected);
    const char *verdict = equal ? "equal" : good ? "close" : "WRONG";
    printf("%s %d: %s %.9g, recorded %.9g, %s; %.3f ms of processor time\n", call, number, what,
           value, expected, verdict, ms);
    return !good;
}

#if MODEL_DECODES
/* Continue a text by its first tokens at once and then one by one; return how many answers are
 * wrong, or -1 after an error. */
static int continue_text(model *m)
{
    int bad = 0, answers = (int)(sizeof recorded_sums / sizeof *recorded_sums);
    const int32_t *at = text;
    for (int k = 0; k < answers; k++) {
        size_t count = k ? 1 : FIRST_TOKENS;
        clock_t begin = clock();
        if (model_append(m, at, count))
            return -1;
        double sum = sum_squares(model_scores_info(m), model_scores(m));
        bad += tell("answer", k + 1, "squares of the scores", sum, recorded_sums[k],
                    SCORES_TOLERANCE, begin);
        at += count;
    }
    return bad;
}
#endif

#if MODEL_TRAINS
/* Train a few steps; return how many losses are wrong, and whether the parameters are, or -1 after
 * an error. */
static int train(model *m)
{
    int bad = 0, steps = (int)(sizeof recorded / sizeof *recorded);
    uint32_t seed = 1;
    model_set_learning_rate(m, LEARNING_RATE);
    if (LOSS_SCALE > 0)
        model_set_loss_scale(m, LOSS_SCALE);
    for (int s = 0; s < steps; s++) {
        prepare(m, MODEL_TRAIN, s, &seed);
        clock_t begin = clock();
        int code = model_train_step(m, NULL, NULL);
#if HAS_OPTIMIZER
        if (!code && !model_is_joined(m))
            code = model_optimizer_step(m);
        model_lazy_reset_grad(m);
#endif
        if (code)
            return -1;
        const model_tensor *info = model_output_info(m, MODEL_TRAIN, 0);
        double loss = first_number(info, model_output(m, MODEL_TRAIN, 0));
        bad += tell("step", s + 1, "loss", loss, recorded[s], TOLERANCE, begin);
    }
    double sum = 0;
    for (int i = 0; i < model_parameter_count(m); i++) {
        const model_tensor *t = model_parameter_info(m, i);
        const char *at = model_parameter(m, i);
        if (at && t->trainable)
            sum += sum_squares(t, at);
    }
    if (!close_to(sum, recorded_square_sum, TOLERANCE)) {
        printf("squares of the parameters: %.9g, recorded %.9g, WRONG\n", sum,
               recorded_square_sum);
        bad++;
    }
    return bad;
}
#endif

#if JUST_INFERS
/* Answer on made-up inputs; return how many outputs are wrong, or -1 after an error. */
static int answer(model *m)
{
    int bad = 0, outputs = model_output_count(m, MODEL_INFER);
    int sums = (int)(sizeof recorded_outputs / sizeof *recorded_outputs);
    uint32_t seed = 1;
    for (int k = 0; k < sums / outputs; k++) {
        prepare(m, MODEL_INFER, k, &seed);
        clock_t begin = clock();
        if (model_infer(m, NULL, NULL))
            return -1;
        for (int i = 0; i < outputs; i++) {
            const model_tensor *info = model_output_info(m, MODEL_INFER, i);
            char what[128];
            snprintf(what, sizeof what, "squares of '%.100s'", info->name);
            double sum = sum_squares(info, model_output(m, MODEL_INFER, i));
            bad += tell("inference", k + 1, what, sum, recorded_outputs[k * outputs + i],
                        OUTPUTS_TOLERANCE, begin);
        }
    }
    return bad;
}
#endif

/* Run a test unless one before it ended with an error; return the number of wrong results of all,
 * or -1 after an error. */
static int run(int (*test)(model *), model *m, int bad)
{
    int more = bad < 0 ? 0 : test(m);
    return more < 0 ? -1 : bad + more;
}

int main(int argc, char **argv)
{
    char why[MODEL_MESSAGE_BYTES];
    model *m;
    unsigned char *checkpoint = NULL;
#if CHECKPOINT_BYTES
    checkpoint = read_checkpoint(argc ? argv[0] : NULL, argc > 1 ? argv[1] : NULL);
    if (!checkpoint)
        return 2;
#else
    (void)argc, (void)argv;
#endif
    clock_t begin = clock();
    int failed = model_create_from(&m, checkpoint, CHECKPOINT_BYTES, why);
    free(checkpoint);
    if (failed) {
        fprintf(stderr, "%s\n", why);
        return 2;
    }
    double start = 1e3 * (double)(clock() - begin) / CLOCKS_PER_SEC;
    int bad = 0;
#if MODEL_DECODES
    bad = run(continue_text, m, bad); /* before the parameters are trained, which it reads */
#endif
#if MODEL_TRAINS
    bad = run(train, m, bad);
#endif
#if JUST_INFERS
    bad = run(answer, m, bad);
#endif
    if (bad < 0) {
        fprintf(stderr, "%s\n", model_message(m));
        model_destroy(m);
        return 2;
    }
    printf("%s: created in %.3f ms, with code for %s\n", bad ? "FAILED" : "passed", start,
           model_cpu(m));
    model_destroy(m);
    return bad != 0;
}
