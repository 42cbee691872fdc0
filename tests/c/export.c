/* Trains two steps, and writes the inference model in every way: to a file, whole, and in pieces of
 * sizes that divide nothing.  All must be equal.  Then the inputs and outputs of inference on
 * made-up data go to a file, as the bytes of all inputs and then of all outputs.
 * usage: export CHECKPOINT MODEL VALUES */

#include "mnist.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t seed = 1;

static void fill(const mnist_tensor *t, void *to)
{
    for (size_t i = 0; i < t->bytes; i += t->dtype == MNIST_F32 ? 4 : 8) {
        seed = 1664525u * seed + 1013904223u;
        float number = (float)(seed >> 8) * 0x1p-24f;
        int64_t label = seed >> 31;
        if (t->dtype == MNIST_F32)
            memcpy((char *)to + i, &number, 4);
        else
            memcpy((char *)to + i, &label, 8);
    }
}

static void need(int good, const char *what)
{
    if (!good) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    char why[MNIST_MESSAGE_BYTES];
    mnist *m;
    if (argc != 4)
        return 2;
    need(!mnist_create_from(&m, NULL, 0, why), "no model without values");
    need(!mnist_export_model_size(m), "a size without values");
    need(mnist_export_model(m, argv[2]) == MNIST_BAD_STATE, "a file without values");
    need(!strcmp(mnist_message(m), "the parameters have no values: set them all first"), "message");
    mnist_destroy(m);
    need(mnist_export_model(NULL, argv[2]) == MNIST_BAD_INPUT && !mnist_export_model_size(NULL),
         "a file of no model");
    need(!mnist_create(&m, argv[1], why), why);
    for (int step = 0; step < 2; step++) {
        for (int i = 0; i < mnist_input_count(m, MNIST_TRAIN); i++)
            fill(mnist_input_info(m, MNIST_TRAIN, i), mnist_input(m, MNIST_TRAIN, i));
        need(!mnist_train_step(m, NULL, NULL) && !mnist_optimizer_step(m), mnist_message(m));
        mnist_lazy_reset_grad(m);
    }
    size_t size = mnist_export_model_size(m);
    unsigned char *whole = malloc(size), *again = malloc(size);
    need(!mnist_export_model_to(m, whole, size), mnist_message(m));
    for (size_t most = 1; most < size; most = 7 * most + 1) {
        memset(again, 0, size);
        for (size_t at = 0; at < size; at += most) {
            size_t n = size - at < most ? size - at : most;
            need(!mnist_export_model_part(m, at, again + at, n), mnist_message(m));
        }
        need(!memcmp(whole, again, size), "pieces differ");
    }
    need(mnist_export_model_to(m, whole, size - 1) == MNIST_BAD_INPUT, "a small buffer");
    need(strstr(mnist_message(m), "the model has") != NULL, "message of a small buffer");
    need(mnist_export_model_part(m, size, whole, 1) == MNIST_BAD_INPUT, "a piece past the end");
    need(mnist_export_model_part(m, 1, whole, SIZE_MAX) == MNIST_BAD_INPUT, "a long piece");
    need(mnist_export_model_to(m, NULL, size) == MNIST_BAD_INPUT, "no buffer");
    need(mnist_export_model(m, NULL) == MNIST_BAD_INPUT, "no path");
    need(mnist_export_model(m, "/nowhere/model.onnx") == MNIST_BAD_FILE, "no folder");
    need(strstr(mnist_message(m), "cannot write model '/nowhere") != NULL, "message of no folder");
    need(!mnist_export_model(m, argv[2]), mnist_message(m));
    FILE *file = fopen(argv[2], "rb");
    need(file && fread(again, 1, size, file) == size && fgetc(file) == EOF, "the file's size");
    fclose(file);
    need(!memcmp(whole, again, size), "the file differs");
    file = fopen(argv[3], "wb");
    need(file != NULL, "no file for values");
    for (int i = 0; i < mnist_input_count(m, MNIST_INFER); i++) {
        const mnist_tensor *t = mnist_input_info(m, MNIST_INFER, i);
        fill(t, mnist_input(m, MNIST_INFER, i));
        fwrite(mnist_input(m, MNIST_INFER, i), 1, t->bytes, file);
    }
    need(!mnist_infer(m, NULL, NULL), mnist_message(m));
    for (int i = 0; i < mnist_output_count(m, MNIST_INFER); i++)
        fwrite(mnist_output(m, MNIST_INFER, i), 1, mnist_output_info(m, MNIST_INFER, i)->bytes,
               file);
    fclose(file);
    free(whole);
    free(again);
    mnist_destroy(m);
    return 0;
}
