/* Training from C: reads a checkpoint, trains on random data, writes the checkpoint back.
 *
 *     cc example.c -I.. -L.. -lmodel -o example && LD_LIBRARY_PATH=.. ./example ../checkpoint out
 */

#include "model.h"

#include <stdio.h>
#include <stdlib.h>

enum { STEPS = 20 };

/* A batch of data; a program would read its own here. */
static void next_batch(const model_tensor *t, void *to)
{
    float *numbers = to;
    int64_t *labels = to;
    if (t->dtype == MODEL_F32)
        for (size_t i = 0; i < t->bytes / sizeof *numbers; i++)
            numbers[i] = (float)rand() / (float)RAND_MAX;
    if (t->dtype == MODEL_I64)
        for (size_t i = 0; i < t->bytes / sizeof *labels; i++)
            labels[i] = rand() % 2;
}

static int stop(model *m)
{
    fprintf(stderr, "%s\n", model_message(m));
    model_destroy(m);
    return 1;
}

int main(int argc, char **argv)
{
    char why[MODEL_MESSAGE_BYTES];
    model *m;
    if (argc != 3) {
        fprintf(stderr, "usage: %s CHECKPOINT NEW_CHECKPOINT\n", argv[0]);
        return 2;
    }
    if (model_create(&m, argv[1], why)) {
        fprintf(stderr, "%s\n", why);
        return 1;
    }
    if (model_set_learning_rate(m, 0.01f))
        return stop(m);
    for (int step = 0; step < STEPS; step++) {
        /* Written where the step reads them, inputs need no copy: NULL in their place. */
        for (int i = 0; i < model_input_count(m, MODEL_TRAIN); i++)
            next_batch(model_input_info(m, MODEL_TRAIN, i), model_input(m, MODEL_TRAIN, i));
        if (model_train_step(m, NULL, NULL) || model_optimizer_step(m))
            return stop(m);
        model_lazy_reset_grad(m);
        const float *loss = model_output(m, MODEL_TRAIN, 0);
        printf("step %d: loss %g\n", step + 1, (double)*loss);
    }
    if (model_save(m, argv[2], 1))
        return stop(m);
    model_destroy(m);
    return 0;
}
