//@if train_step@
/* Training from C: reads a checkpoint, trains on random data, writes the checkpoint back.
 *
 *     cc example.c -I.. -L.. -l@name@ -o example
 *     LD_LIBRARY_PATH=.. ./example ../checkpoint out
 */
//@end@
//@if infer !train_step@
/* Inference from C: reads a checkpoint, and runs inference on random data.
 *
 *     cc example.c -I.. -L.. -l@name@ -o example
 *     LD_LIBRARY_PATH=.. ./example ../checkpoint
 */
//@end@
//@if append !train_step !infer@
/* Text generation from C; pass a checkpoint only if the library does not contain the values.
 *
 *     cc example.c -I.. -L.. -l@name@ -o example
 *     LD_LIBRARY_PATH=.. ./example [../checkpoint]
 */
//@end@

#include "@name@.h"

#include <stdio.h>
#include <stdlib.h>

//@if train_step@
enum { STEPS = 20 };

//@end@
//@if train_step or infer@
/* Make up a batch for one input; a real program reads its data here. */
static void next_batch(const @name@_tensor *t, void *to)
{
    size_t count = 1;
    for (int axis = 0; axis < t->rank; axis++)
        count *= (size_t)t->dims[axis];
    for (size_t i = 0; i < count; i++) {
        if (t->dtype == @NAME@_F32)
            ((float *)to)[i] = (float)rand() / (float)RAND_MAX;
        else if (t->dtype == @NAME@_F64)
            ((double *)to)[i] = (double)rand() / (double)RAND_MAX;
        else /* the lowest byte of an integer, in little-endian order; the others are 0 */
            ((unsigned char *)to)[i * (t->bytes / count)] = (unsigned char)(rand() % 2);
    }
}

/* Write the inputs where the step reads them; the step then gets NULL, and copies nothing. */
static void next_batches(@name@ *m, int phase)
{
    for (int i = 0; i < @name@_input_count(m, phase); i++)
        next_batch(@name@_input_info(m, phase, i), @name@_input(m, phase, i));
}

//@end@
static int stop(@name@ *m)
{
    fprintf(stderr, "%s\n", @name@_message(m));
    @name@_destroy(m);
    return 1;
}

//@if append@
/* Continue a text: append the token with the largest score, again and again.  Return an error
 * code. */
static int continue_text(@name@ *m)
{
    int32_t token = 0;
    printf("text:");
    for (int k = 0; k < 10 && @name@_get_length(m) < @name@_get_capacity(m); k++) {
        printf(" %d", (int)token);
        int code = @name@_append(m, &token, 1);
        if (code)
            return code;
        const float *scores = @name@_scores(m);
        int32_t count = (int32_t)(@name@_scores_info(m)->bytes / sizeof *scores);
        token = 0;
        for (int32_t i = 1; i < count; i++)
            if (scores[i] > scores[token])
                token = i;
    }
    printf("\n");
    return 0;
}

//@end@
int main(int argc, char **argv)
{
    char why[@NAME@_MESSAGE_BYTES];
    @name@ *m;
//@if train_step@
    if (argc != 3) {
        fprintf(stderr, "usage: %s CHECKPOINT NEW_CHECKPOINT\n", argv[0]);
        return 2;
    }
    if (@name@_create(&m, argv[1], why)) {
//@end@
//@if !train_step@
    if (@name@_create(&m, argc > 1 ? argv[1] : NULL, why)) {
//@end@
        fprintf(stderr, "%s\n", why);
        return 1;
    }
//@if train_step@
    if (@name@_set_learning_rate(m, 0.01f))
        return stop(m);
    for (int step = 0; step < STEPS; step++) {
        next_batches(m, @NAME@_TRAIN);
        if (@name@_train_step(m, NULL, NULL)
            || (!@name@_is_joined(m) && @name@_optimizer_step(m)))
            return stop(m);
        @name@_lazy_reset_grad(m);
        const void *loss = @name@_output(m, @NAME@_TRAIN, 0);
        int is_double = @name@_output_info(m, @NAME@_TRAIN, 0)->dtype == @NAME@_F64;
        double value = is_double ? *(const double *)loss : (double)*(const float *)loss;
        printf("step %d: loss %g\n", step + 1, value);
    }
    if (@name@_save(m, argv[2], 1))
        return stop(m);
//@end@
//@if infer !train_step@
    next_batches(m, @NAME@_INFER);
    if (@name@_infer(m, NULL, NULL))
        return stop(m);
    for (int i = 0; i < @name@_output_count(m, @NAME@_INFER); i++) {
        const @name@_tensor *t = @name@_output_info(m, @NAME@_INFER, i);
        const float *values = @name@_output(m, @NAME@_INFER, i);
        if (t->dtype == @NAME@_F32)
            printf("%s: %g %g ...\n", t->name, (double)values[0], (double)values[1]);
    }
//@end@
//@if append@
    if (continue_text(m))
        return stop(m);
//@end@
    @name@_destroy(m);
    return 0;
}
