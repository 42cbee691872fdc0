/* Training from C: reads a checkpoint, trains on random data, writes the checkpoint back.
 *
 *     cc example.c -I.. -L.. -l@name@ -o example
 *     LD_LIBRARY_PATH=.. ./example ../checkpoint out
 */

#include "@name@.h"

#include <stdio.h>
#include <stdlib.h>

enum { STEPS = 20 };

/* A batch of data; a program would read its own here. */
static void next_batch(const @name@_tensor *t, void *to)
{
    float *numbers = to;
    int64_t *labels = to;
    if (t->dtype == @NAME@_F32)
        for (size_t i = 0; i < t->bytes / sizeof *numbers; i++)
            numbers[i] = (float)rand() / (float)RAND_MAX;
    if (t->dtype == @NAME@_I64)
        for (size_t i = 0; i < t->bytes / sizeof *labels; i++)
            labels[i] = rand() % 2;
}

static int stop(@name@ *m)
{
    fprintf(stderr, "%s\n", @name@_message(m));
    @name@_destroy(m);
    return 1;
}

int main(int argc, char **argv)
{
    char why[@NAME@_MESSAGE_BYTES];
    @name@ *m;
    if (argc != 3) {
        fprintf(stderr, "usage: %s CHECKPOINT NEW_CHECKPOINT\n", argv[0]);
        return 2;
    }
    if (@name@_create(&m, argv[1], why)) {
        fprintf(stderr, "%s\n", why);
        return 1;
    }
    if (@name@_set_learning_rate(m, 0.01f))
        return stop(m);
    for (int step = 0; step < STEPS; step++) {
        /* Written where the step reads them, inputs need no copy: NULL in their place. */
        for (int i = 0; i < @name@_input_count(m, @NAME@_TRAIN); i++)
            next_batch(@name@_input_info(m, @NAME@_TRAIN, i), @name@_input(m, @NAME@_TRAIN, i));
        if (@name@_train_step(m, NULL, NULL)
            || (!@name@_is_joined(m) && @name@_optimizer_step(m)))
            return stop(m);
        @name@_lazy_reset_grad(m);
        const float *loss = @name@_output(m, @NAME@_TRAIN, 0);
        printf("step %d: loss %g\n", step + 1, (double)*loss);
    }
    if (@name@_save(m, argv[2], 1))
        return stop(m);
    @name@_destroy(m);
    return 0;
}
