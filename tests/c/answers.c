/* Answers with a library for inference alone: reads a checkpoint, runs inference on made-up inputs,
 * and writes the bytes of all inputs and then of all outputs.
 * usage: answers CHECKPOINT VALUES */

#include "mnist.h"

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    char why[MNIST_MESSAGE_BYTES];
    mnist *m;
    FILE *file = argc == 3 ? fopen(argv[2], "wb") : NULL;
    if (!file)
        return 2;
    if (mnist_create(&m, argv[1], why)) {
        fprintf(stderr, "%s\n", why);
        return 1;
    }
    if (mnist_has_phase(m, MNIST_TRAIN) || mnist_has_phase(m, MNIST_EVAL)
        || !mnist_has_phase(m, MNIST_INFER) || MNIST_TRAINS || !MNIST_ANSWERS)
        return 3;
    uint32_t seed = 1;
    for (int i = 0; i < mnist_input_count(m, MNIST_INFER); i++) {
        const mnist_tensor *t = mnist_input_info(m, MNIST_INFER, i);
        float *x = mnist_input(m, MNIST_INFER, i);
        for (size_t k = 0; k < t->bytes / 4; k++) {
            seed = 1664525u * seed + 1013904223u;
            x[k] = (float)(seed >> 8) * 0x1p-24f;
        }
        fwrite(x, 1, t->bytes, file);
    }
    if (mnist_infer(m, NULL, NULL)) {
        fprintf(stderr, "%s\n", mnist_message(m));
        return 1;
    }
    for (int i = 0; i < mnist_output_count(m, MNIST_INFER); i++)
        fwrite(mnist_output(m, MNIST_INFER, i), 1, mnist_output_info(m, MNIST_INFER, i)->bytes,
               file);
    fclose(file);
    mnist_destroy(m);
    return 0;
}
