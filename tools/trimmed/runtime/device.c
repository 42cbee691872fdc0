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

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "@name@.h"

enum { INPUTS = 16 };

static char why[@NAME@_MESSAGE_BYTES];

/* Read a file into memory; return NULL if that fails. */
static unsigned char *read_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    unsigned char *content = NULL;
    long end;
    if (file && !fseek(file, 0, SEEK_END) && (end = ftell(file)) >= 0
        && !fseek(file, 0, SEEK_SET)) {
        *size = (size_t)end;
        content = malloc(*size + 1);
        if (content && fread(content, 1, *size, file) != *size) {
            free(content);
            content = NULL;
        }
    }
    if (file)
        fclose(file);
    if (!content)
        snprintf(why, sizeof why, "cannot read %.200s", path);
    return content;
}

static double read_loss(@name@ *m, int phase)
{
    const void *loss = @name@_output(m, phase, 0);
    return @name@_output_info(m, phase, 0)->dtype == @NAME@_F32 ? (double)*(const float *)loss
                                                               : *(const double *)loss;
}

/* Train or evaluate on all samples; *loss becomes the mean over *count of them. */
static int work(@name@ *m, int phase, unsigned char **data, int64_t samples, int epochs,
                double *loss, int64_t *count)
{
    int64_t usual = @name@_get_batch(m);
    for (int epoch = 0; epoch < epochs; epoch++) {
        double sum = 0;
        *count = 0;
        while (*count < samples) {
            const void *inputs[INPUTS];
            int64_t batch = samples - *count < usual ? samples - *count : usual;
            if (@name@_set_batch(m, batch))
                break; /* a last batch whose size has no plans */
            for (int i = 0; i < @name@_input_count(m, phase); i++) {
                size_t each = @name@_input_info(m, phase, i)->bytes / (size_t)batch;
                inputs[i] = data[i] + (size_t)*count * each;
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
            double value = read_loss(m, phase);
            if (value - value != 0) {
                snprintf(why, sizeof why, "the loss is not finite");
                return 1;
            }
            sum += value * (double)batch;
            *count += batch;
        }
        if (!*count) {
            snprintf(why, sizeof why, "%ld samples are less than a batch", (long)samples);
            return 1;
        }
        *loss = sum / (double)*count;
    }
    return 0;
}

/* Carry out a request; return 0, or 1 with the reason in `why`, or 2 if it is not a request. */
static int obey(@name@ *m, const unsigned char *request, size_t request_size,
                const char *checkpoint, char **paths, int files, double *loss, int64_t *count)
{
    unsigned char *data[INPUTS] = {NULL};
    int phase, epochs, keeps_state, code;
    int64_t samples = 0;
    code = @name@_take_request(m, request, request_size, &phase, &epochs, &keeps_state);
    if (code) {
        snprintf(why, sizeof why, "%s", @name@_message(m));
        return code == @NAME@_BAD_INPUT ? 2 : 1;
    }
    code = 1;
    if (files != @name@_input_count(m, phase) || files > INPUTS) {
        snprintf(why, sizeof why, "%d files of data for %d inputs", files,
                 @name@_input_count(m, phase));
        return 1;
    }
    for (int i = 0; i < files; i++) {
        size_t size, each = @name@_input_info(m, phase, i)->bytes / (size_t)@name@_get_batch(m);
        data[i] = read_file(paths[i], &size);
        if (!data[i])
            goto end;
        if (!size || size % each || (i && (int64_t)(size / each) != samples)) {
            snprintf(why, sizeof why, "%.80s has %lu bytes, and a sample %lu; expected the same "
                     "number of samples in all files, at least one", paths[i],
                     (unsigned long)size, (unsigned long)each);
            goto end;
        }
        samples = (int64_t)(size / each);
    }
    code = work(m, phase, data, samples, epochs, loss, count);
    if (!code && keeps_state && @name@_save(m, checkpoint, 1)) {
        snprintf(why, sizeof why, "%s", @name@_message(m));
        code = 1;
    }
end:
    for (int i = 0; i < INPUTS; i++)
        free(data[i]);
    return code;
}

/* Write the answer under another name, then rename it, so that no reader sees a part of it. */
static int answer(@name@ *m, const unsigned char *request, size_t request_size, double loss,
                  int64_t count, const char *path)
{
    char temporary[4096];
    size_t size = @name@_answer_size(m, request, request_size, count, (float)loss, why);
    unsigned char *content = size ? malloc(size) : NULL;
    int n = snprintf(temporary, sizeof temporary, "%s.tmp", path), ok = 0;
    if (content && n > 0 && (size_t)n < sizeof temporary
        && !@name@_write_answer(m, request, request_size, count, (float)loss, why, content, size)) {
        FILE *file = fopen(temporary, "wb");
        ok = file && fwrite(content, 1, size, file) == size;
        if (file && fclose(file))
            ok = 0;
        ok = ok && !rename(temporary, path);
        if (file && !ok)
            remove(temporary);
    }
    free(content);
    if (!ok)
        fprintf(stderr, "cannot write %s\n", path);
    return !ok;
}

int main(int argc, char **argv)
{
    size_t size;
    int64_t count = 0;
    double loss = 0;
    @name@ *m;
    if (argc < 5) {
        fprintf(stderr, "usage: %s CHECKPOINT REQUEST ANSWER DATA...\n", argv[0]);
        return 2;
    }
    unsigned char *request = read_file(argv[2], &size);
    if (!request || @name@_create(&m, argv[1], why)) {
        fprintf(stderr, "%s\n", why);
        free(request);
        return 1;
    }
    int code = obey(m, request, size, argv[1], argv + 4, argc - 4, &loss, &count) == 2
            || answer(m, request, size, loss, count, argv[3]);
    if (why[0])
        fprintf(stderr, "%s\n", why);
    @name@_destroy(m);
    free(request);
    return code;
}
