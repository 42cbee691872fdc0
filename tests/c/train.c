/* Trains a build, or a library and a plan, on made-up data, and prints the losses in hexadecimal.
 * The data are the self-test's: see tools/trimmed/selftest.py.
 * usage: train CHECKPOINT STEPS LEARNING_RATE [PLAN] */

#include "mnist.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t seed = 1;

static uint32_t next(void)
{
    return seed = 1664525u * seed + 1013904223u;
}

static int fill(const mnist_tensor *t, void *to)
{
    if (t->dtype == MNIST_F32) {
        float *at = to;
        for (size_t i = 0; i < t->bytes / sizeof *at; i++)
            at[i] = (float)(next() >> 8) * 0x1p-24f;
    } else if (t->dtype == MNIST_I64) {
        int64_t *at = to;
        for (size_t i = 0; i < t->bytes / sizeof *at; i++)
            at[i] = next() >> 31;
    } else {
        return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    char why[MNIST_MESSAGE_BYTES];
    mnist *m;
    if (argc < 4)
        return 2;
#ifdef PLAN
    int code = mnist_create(&m, argv[4], argv[1], why);
#else
    int code = mnist_create(&m, argv[1], why);
#endif
    if (code) {
        fprintf(stderr, "%s\n", why);
        return 1;
    }
    mnist_set_learning_rate(m, strtof(argv[3], NULL));
    for (int step = 0; step < atoi(argv[2]); step++) {
        for (int i = 0; i < mnist_input_count(m, MNIST_TRAIN); i++)
            if (fill(mnist_input_info(m, MNIST_TRAIN, i), mnist_input(m, MNIST_TRAIN, i)))
                return 2;
        if (mnist_train_step(m, NULL, NULL)
            || (!mnist_is_joined(m) && mnist_optimizer_step(m))) {
            fprintf(stderr, "%s\n", mnist_message(m));
            return 1;
        }
        mnist_lazy_reset_grad(m);
        float loss;
        memcpy(&loss, mnist_output(m, MNIST_TRAIN, 0), sizeof loss);
        printf("%a\n", (double)loss);
        fflush(stdout);
    }
    mnist_destroy(m);
    return 0;
}
