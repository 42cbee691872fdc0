/* A device of a federation: reads a request, trains or evaluates on its data, writes the answer.
 *
 *     cc -std=c99 device.c -I.. -L.. -l@name@ -o device
 *     LD_LIBRARY_PATH=.. ./device ../checkpoint request.safetensors answer.safetensors x.bin y.bin
 *
 * The data are one file for each input of a training step, with the samples one after another, in
 * the type of the input.  They are read in this order, in batches of batch-size or of the build's
 * first size.  A smaller last batch is left out unless the build has plans for its size.
 *
 * Options of a request: local-epochs, batch-size, learning-rate, proximal-mu, and optimizer-state,
 * which is "reset" or "keep"; kept states go into the checkpoint.  The exit status is 0 if there is
 * an answer, even one that explains why the device could not carry out the request.
 */

#include "message.h"
#include "@name@.h"

static char why[@NAME@_MESSAGE_BYTES > EDGEGRAD_WHY ? @NAME@_MESSAGE_BYTES : EDGEGRAD_WHY];

/* Read a file into memory; return NULL if that fails. */
static unsigned char *read_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    unsigned char *found = NULL;
    long end;
    if (file && !fseek(file, 0, SEEK_END) && (end = ftell(file)) >= 0
        && !fseek(file, 0, SEEK_SET)) {
        *size = (size_t)end;
        found = malloc(*size + 1);
        if (found && fread(found, 1, *size, file) != *size) {
            free(found);
            found = NULL;
        }
    }
    if (file)
        fclose(file);
    if (!found)
        snprintf(why, sizeof why, "cannot read %s", path);
    return found;
}

static const char *type_name(int dtype)
{
    static const char *const names[] = {"", "F32", "U8", "I8", "U16", "I16", "I32", "I64", "",
                                        "BOOL", "", "F64", "U32", "U64"};
    return names[dtype];
}

static double number_at(const @name@_tensor *t, const void *values, size_t index)
{
    return t->dtype == @NAME@_F32 ? (double)((const float *)values)[index]
                                  : ((const double *)values)[index];
}

/* Write the fingerprint of those parameters of the model that a request contains. */
static void fingerprint(const @name@ *m, const edgegrad_message *request, char out[17])
{
    const char *last = NULL;
    uint64_t hash = EDGEGRAD_HASH;
    edgegrad_tensor unused;
    for (;;) {
        const @name@_tensor *next = NULL;
        for (int i = 0; i < @name@_parameter_count(m); i++) {
            const @name@_tensor *t = @name@_parameter_info(m, i);
            if ((!last || strcmp(t->name, last) > 0) && (!next || strcmp(t->name, next->name) < 0)
                && edgegrad_find(request, t->name, &unused))
                next = t;
        }
        if (!next)
            break;
        hash = edgegrad_hash_parameter(hash, next->name, type_name(next->dtype), next->rank,
                                       next->dims);
        last = next->name;
    }
    snprintf(out, 17, "%016llx", (unsigned long long)hash);
}

static int is_finite(const @name@_tensor *like, const edgegrad_tensor *t)
{
    size_t each = like->dtype == @NAME@_F32 ? sizeof(float) : sizeof(double);
    if (like->dtype != @NAME@_F32 && like->dtype != @NAME@_F64)
        return 1;
    for (size_t k = 0; k < t->bytes; k += each) {
        double value; /* a float takes only its first bytes */
        memcpy(&value, (const char *)t->data + k, each);
        value = number_at(like, &value, 0);
        if (value - value != 0)
            return 0;
    }
    return 1;
}

/* Copy the parameters of a request to the model; nothing changes unless all of them fit. */
static int take(@name@ *m, const edgegrad_message *request)
{
    int known = 0;
    for (int put = 0; put < 2; put++)
        for (int i = 0; i < @name@_parameter_count(m); i++) {
            const @name@_tensor *mine = @name@_parameter_info(m, i);
            const char *wrong = NULL;
            edgegrad_tensor t;
            if (!edgegrad_find(request, mine->name, &t)) {
                if (!mine->trainable)
                    continue;
                wrong = "is missing";
            } else {
                int fits = !strcmp(t.dtype, type_name(mine->dtype)) && t.rank == mine->rank;
                for (int k = 0; fits && k < t.rank; k++)
                    fits = t.dims[k] == (uint64_t)mine->dims[k];
                wrong = !fits ? "has another shape or type"
                      : !put && !is_finite(mine, &t) ? "has values that are not finite" : NULL;
            }
            if (wrong) {
                snprintf(why, sizeof why, "parameter '%.80s' %s", mine->name, wrong);
                return 1;
            }
            if (put)
                memcpy(@name@_parameter(m, i), t.data, t.bytes);
            known += !put;
        }
    if (known == edgegrad_tensors(request))
        return 0;
    snprintf(why, sizeof why, "%d parameters, of which %d are known here",
             edgegrad_tensors(request), known);
    return 1;
}

/* Set the anchors and the weight mu of FedProx's proximal term (engine/training/proximal.py);
 * return 0, or 1 with the reason in `why`. */
static int set_anchors(@name@ *m, double mu)
{
    int weight = @name@_find_parameter(m, "proximal_mu");
    char name[512];
    if (!(mu >= 0 && mu <= 1e30) || (weight < 0 && mu > 0)) {
        snprintf(why, sizeof why, "proximal-mu is %g; %s", mu,
                 weight < 0 ? "this build has no such term" : "expected a number from 0 on");
        return 1;
    }
    for (int i = 0; weight >= 0 && i < @name@_parameter_count(m); i++) {
        const @name@_tensor *t = @name@_parameter_info(m, i);
        int anchor;
        if (!t->trainable)
            continue;
        snprintf(name, sizeof name, "%s.anchor", t->name);
        anchor = @name@_find_parameter(m, name);
        if (anchor < 0) {
            snprintf(why, sizeof why, "parameter '%.80s' has no anchor", t->name);
            return 1;
        }
        memcpy(@name@_parameter(m, anchor), @name@_parameter(m, i), t->bytes);
    }
    if (weight >= 0 && @name@_parameter_info(m, weight)->dtype == @NAME@_F32)
        *(float *)@name@_parameter(m, weight) = (float)mu;
    else if (weight >= 0)
        *(double *)@name@_parameter(m, weight) = mu;
    return 0;
}

/* Train or evaluate on all samples; *loss becomes the mean over *count of them. */
static int work(@name@ *m, int phase, int64_t usual, unsigned char **data, size_t samples,
                int epochs, double *loss, size_t *count)
{
    for (int epoch = 0; epoch < epochs; epoch++) {
        double sum = 0;
        *count = 0;
        while (*count < samples) {
            const void *inputs[16];
            int64_t batch = samples - *count < (size_t)usual ? (int64_t)(samples - *count) : usual;
            if (@name@_set_batch(m, batch))
                break; /* a last batch whose size has no plans */
            for (int i = 0; i < @name@_input_count(m, phase); i++) {
                size_t each = @name@_input_info(m, phase, i)->bytes / (size_t)batch;
                inputs[i] = data[i] + *count * each;
            }
            int code = phase == @NAME@_EVAL ? @name@_eval_step(m, inputs, NULL)
                                            : @name@_train_step(m, inputs, NULL);
            if (!code && phase == @NAME@_TRAIN && !@name@_is_joined(m))
                code = @name@_optimizer_step(m);
            if (code) {
                snprintf(why, sizeof why, "%s", @name@_message(m));
                return 1;
            }
            @name@_lazy_reset_grad(m);
            const @name@_tensor *made = @name@_output_info(m, phase, 0);
            double value = number_at(made, @name@_output(m, phase, 0), 0);
            if (value - value != 0) {
                snprintf(why, sizeof why, "the loss is not finite");
                return 1;
            }
            sum += value * (double)batch;
            *count += (size_t)batch;
        }
        if (!*count) {
            snprintf(why, sizeof why, "%lu samples are less than a batch", (unsigned long)samples);
            return 1;
        }
        *loss = sum / (double)*count;
    }
    return 0;
}

/* Carry out a request; return 0, or 1 with the reason in `why`. */
static int obey(@name@ *m, const edgegrad_message *request, const char *kind,
                const char *checkpoint, char **paths, int files, double *loss, size_t *count)
{
    int phase = strcmp(kind, "evaluate") ? @NAME@_TRAIN : @NAME@_EVAL, code = 1;
    char mine[17], theirs[17], text[16];
    unsigned char *data[16] = {NULL};
    size_t samples = 0;
    double epochs = 1, rate, batch = 0, mu = 0;
    fingerprint(m, request, mine);
    if (!edgegrad_text(request, "model", theirs, sizeof theirs) || strcmp(mine, theirs)) {
        snprintf(why, sizeof why, "asked for another model; of these parameters it has %s", mine);
        return 1;
    }
    if (take(m, request))
        return 1;
    if (edgegrad_text(request, "config.send", text, sizeof text)
        && strcmp(text, "\"parameters\"")) {
        snprintf(why, sizeof why, "send is %s; this device sends parameters", text);
        return 1;
    }
    edgegrad_number(request, "config.proximal-mu", &mu);
    if (set_anchors(m, mu))
        return 1;
    edgegrad_number(request, "config.batch-size", &batch);
    if (!(batch >= 0 && batch <= 1e9) || (batch > 0 && @name@_set_batch(m, (int64_t)batch))) {
        snprintf(why, sizeof why, "batch-size is %g, for which this build has no plans", batch);
        return 1;
    }
    edgegrad_number(request, "config.local-epochs", &epochs);
    if (!(epochs >= 1 && epochs <= 1e6) || epochs != (double)(int)epochs) {
        snprintf(why, sizeof why, "local-epochs is %g; expected a whole number from 1 on", epochs);
        return 1;
    }
    if (edgegrad_number(request, "config.learning-rate", &rate) && rate > 0
        && @name@_set_learning_rate(m, (float)rate)) {
        snprintf(why, sizeof why, "%s", @name@_message(m));
        return 1;
    }
    if (files != @name@_input_count(m, phase) || files > 16) {
        snprintf(why, sizeof why, "%d files of data for %d inputs", files,
                 @name@_input_count(m, phase));
        return 1;
    }
    for (int i = 0; i < files; i++) {
        size_t size, each = @name@_input_info(m, phase, i)->bytes / (size_t)@name@_get_batch(m);
        data[i] = read_file(paths[i], &size);
        if (!data[i])
            goto end;
        if (!size || size % each || (i && size / each != samples)) {
            snprintf(why, sizeof why, "%.80s: %lu bytes, of which a sample has %lu; expected the "
                     "same number of samples in all files, at least one", paths[i],
                     (unsigned long)size, (unsigned long)each);
            goto end;
        }
        samples = size / each;
    }
    code = work(m, phase, batch > 0 ? (int64_t)batch : @name@_batch_size(m, 0), data, samples,
                phase == @NAME@_EVAL ? 1 : (int)epochs, loss, count);
    if (!code && edgegrad_text(request, "config.optimizer-state", text, sizeof text)
        && !strcmp(text, "\"keep\"") && phase == @NAME@_TRAIN && @name@_save(m, checkpoint, 1)) {
        snprintf(why, sizeof why, "%s", @name@_message(m));
        code = 1;
    }
end:
    for (int i = 0; i < 16; i++)
        free(data[i]);
    return code;
}

/* Write the answer under another name, then rename it, so that no reader sees a part of it. */
static int answer(@name@ *m, const edgegrad_message *request, const char *kind, int failed,
                  double loss, size_t count, const char *path)
{
    int is_trained = !failed && !strcmp(kind, "train"), ok;
    size_t size = 1024 + 6 * sizeof why, length;
    char model[32] = "", round[32] = "", temporary[4096];
    edgegrad_tensor sent;
    edgegrad_writer w;
    for (int i = 0; i < @name@_parameter_count(m); i++)
        size += 256 + 6 * strlen(@name@_parameter_info(m, i)->name)
              + 24 * (size_t)@name@_parameter_info(m, i)->rank;
    char *header = malloc(size);
    if (!header)
        return 1;
    edgegrad_text(request, "model", model, sizeof model);
    edgegrad_text(request, "round", round, sizeof round);
    edgegrad_begin(&w, header, size);
    edgegrad_put_text(&w, "kind", failed ? "failed" : is_trained ? "trained" : "evaluated");
    edgegrad_put_text(&w, "model", model);
    edgegrad_put_text(&w, "round", round);
    if (failed) {
        edgegrad_put_text(&w, "reason", why);
    } else {
        edgegrad_put_number(&w, "metric.num-examples", (double)count);
        edgegrad_put_number(&w, is_trained ? "metric.train_loss" : "metric.eval_loss", loss);
    }
    for (int i = 0; is_trained && i < @name@_parameter_count(m); i++) {
        const @name@_tensor *t = @name@_parameter_info(m, i);
        if (edgegrad_find(request, t->name, &sent))
            edgegrad_add(&w, t->name, type_name(t->dtype), t->rank, t->dims, t->bytes);
    }
    length = edgegrad_end(&w);
    int n = snprintf(temporary, sizeof temporary, "%s.tmp", path);
    FILE *file = length && n > 0 && (size_t)n < sizeof temporary ? fopen(temporary, "wb") : NULL;
    ok = file && fwrite(header, 1, length, file) == length;
    for (int i = 0; ok && is_trained && i < @name@_parameter_count(m); i++) {
        const @name@_tensor *t = @name@_parameter_info(m, i);
        if (edgegrad_find(request, t->name, &sent))
            ok = fwrite(@name@_parameter(m, i), 1, t->bytes, file) == t->bytes;
    }
    free(header);
    if (file && fclose(file))
        ok = 0;
    if (ok && !rename(temporary, path))
        return 0;
    if (file)
        remove(temporary);
    fprintf(stderr, "cannot write %s\n", path);
    return 1;
}

int main(int argc, char **argv)
{
    edgegrad_message request;
    size_t size, count = 0;
    double loss = 0;
    char kind[16] = "";
    @name@ *m;
    if (argc < 5) {
        fprintf(stderr, "usage: %s CHECKPOINT REQUEST ANSWER DATA...\n", argv[0]);
        return 2;
    }
    unsigned char *bytes = read_file(argv[2], &size);
    if (!bytes || edgegrad_open(&request, bytes, size, why)
        || !edgegrad_text(&request, "kind", kind, sizeof kind)
        || (strcmp(kind, "train") && strcmp(kind, "evaluate"))) {
        fprintf(stderr, "%s: %s\n", argv[2], why[0] ? why : "no request");
        free(bytes);
        return 1;
    }
    if (@name@_create(&m, argv[1], why)) {
        fprintf(stderr, "%s: %s\n", argv[1], why);
        free(bytes);
        return 1;
    }
    int failed = obey(m, &request, kind, argv[1], argv + 4, argc - 4, &loss, &count);
    int code = answer(m, &request, kind, failed, loss, count, argv[3]);
    if (failed)
        fprintf(stderr, "%s\n", why);
    @name@_destroy(m);
    free(bytes);
    return code;
}
