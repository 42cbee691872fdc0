/* Calls in the wrong order and with wrong arguments: an error code each, and training goes on.
 * usage: calls CHECKPOINT FOLDER */

#include "mnist.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(what)                                                                               \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "line %d: %s\n", __LINE__, #what);                                     \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static float pixels[4 * 64], buffer[1 << 16];
static int64_t labels[4] = {0, 1, 2, 3};
static const void *const inputs[] = {pixels, labels};

static void null_arguments(void)
{
    mnist *m;
    char why[MNIST_MESSAGE_BYTES];
    mnist_destroy(NULL);
    mnist_lazy_reset_grad(NULL);
    EXPECT(mnist_create(NULL, "x", why) == MNIST_BAD_INPUT);
    EXPECT(mnist_create_from(NULL, "x", 1, why) == MNIST_BAD_INPUT);
    EXPECT(mnist_create(&m, "/nowhere", NULL) == MNIST_BAD_FILE && !m);
    EXPECT(mnist_create(&m, "/", why) == MNIST_BAD_FILE && strstr(why, "regular"));
    EXPECT(mnist_create_from(&m, "", 0, why) == MNIST_BAD_CHECKPOINT && !m);
    EXPECT(mnist_create_in(&m, NULL, 0, NULL, 0, why) == MNIST_NO_MEMORY && why[0]);
    EXPECT(mnist_train_step(NULL, inputs, NULL) == MNIST_BAD_INPUT);
    EXPECT(mnist_optimizer_step(NULL) == MNIST_BAD_INPUT);
    EXPECT(mnist_set_learning_rate(NULL, 1) == MNIST_BAD_INPUT);
    EXPECT(mnist_set_step(NULL, 1) == MNIST_BAD_INPUT);
    EXPECT(mnist_get_parameters(NULL, buffer, 1, 0) == MNIST_BAD_INPUT);
    EXPECT(mnist_save(NULL, "x", 0) == MNIST_BAD_INPUT);
    EXPECT(mnist_save_to(NULL, buffer, 1, 0) == MNIST_BAD_INPUT);
    EXPECT(mnist_checkpoint_size(NULL, 0) == 0);
    EXPECT(mnist_set_property_int(NULL, "a", 1) == MNIST_BAD_INPUT);
    EXPECT(!mnist_parameter(NULL, 0) && !mnist_gradient(NULL, 0) && !mnist_input(NULL, 0, 0));
    EXPECT(strlen(mnist_message(NULL)) > 0);
    EXPECT(mnist_find_parameter(NULL, "x") == -1);
    EXPECT(!mnist_parameter_info(NULL, 0) && mnist_parameter_count(NULL) == 0);
    EXPECT(!mnist_input_info(NULL, 0, 0) && mnist_input_count(NULL, 0) == 0);
    EXPECT(!mnist_has_phase(NULL, 0) && mnist_parameters_size(NULL, 0) == 0);
    EXPECT(mnist_set_batch(NULL, 1) == MNIST_BAD_INPUT && mnist_get_batch(NULL) == 0);
}

/* A model without values: only setting all of them is allowed. */
static void without_values(const char *folder)
{
    mnist *m;
    EXPECT(mnist_create_from(&m, NULL, 0, NULL) == MNIST_OK && !mnist_is_loaded(m));
    size_t count = mnist_parameters_size(m, 0);
    EXPECT(mnist_find_parameter(m, NULL) == -1 && mnist_find_parameter(m, "nothing") == -1);
    EXPECT(!mnist_parameter_info(m, -1) && !mnist_parameter_info(m, MNIST_PARAMETERS));
    EXPECT(!mnist_input_info(m, 3, 0) && !mnist_input_info(m, -1, 0) && !mnist_input_info(m, 0, 9));
    EXPECT(mnist_input_count(m, 7) == 0);
    EXPECT(!mnist_has_phase(m, 3) && mnist_has_phase(m, MNIST_INFER));
    EXPECT(mnist_batch_count(m) == 1 && mnist_batch_size(m, 0) == 4 && mnist_batch_size(m, 1) == 0);
    EXPECT(mnist_set_batch(m, 5) == MNIST_BAD_INPUT && strstr(mnist_message(m), "for 4"));
    EXPECT(mnist_set_batch(m, 4) == MNIST_OK && mnist_get_batch(m) == 4);
    EXPECT(mnist_train_step(m, inputs, NULL) == MNIST_BAD_STATE);
    EXPECT(mnist_eval_step(m, inputs, NULL) == MNIST_BAD_STATE);
    EXPECT(mnist_optimizer_step(m) == MNIST_BAD_STATE && strlen(mnist_message(m)) > 0);
    EXPECT(mnist_get_parameters(m, buffer, count, 0) == MNIST_BAD_STATE);
    EXPECT(mnist_set_parameters(m, buffer, count, 1) == MNIST_BAD_STATE);
    EXPECT(!mnist_parameter(m, 0));
    EXPECT(mnist_checkpoint_size(m, 1) == 0 && strstr(mnist_message(m), "no values"));
    EXPECT(mnist_save_to(m, buffer, sizeof buffer, 1) == MNIST_BAD_STATE);
    EXPECT(mnist_save(m, folder, 1) == MNIST_BAD_STATE);
    EXPECT(mnist_set_parameters(m, buffer, count - 1, 0) == MNIST_BAD_INPUT);
    EXPECT(mnist_set_parameters(m, buffer, count, 0) == MNIST_OK && mnist_is_loaded(m));
    EXPECT(mnist_train_step(m, inputs, NULL) == MNIST_OK);
    mnist_destroy(m);
}

static void properties(mnist *m)
{
    char name[16], large[MNIST_PROPERTY_BYTES + 1];
    const char *text;
    int kind;
    int64_t whole;
    memset(large, 'x', sizeof large - 1);
    large[sizeof large - 1] = 0;
    EXPECT(mnist_set_property_string(m, "s", large) == MNIST_NO_MEMORY);
    EXPECT(mnist_set_property_string(m, "s", "\xff") == MNIST_BAD_INPUT);
    EXPECT(mnist_set_property_int(m, "edgegrad.learning_rate", 1) == MNIST_BAD_INPUT);
    int n = 0, code = MNIST_OK, before = mnist_property_count(m);
    for (; !code && n < 1000; n++) {
        snprintf(name, sizeof name, "p%d", (n * 7919) % 1000);
        code = mnist_set_property_int(m, name, n);
    }
    EXPECT(code == MNIST_NO_MEMORY && mnist_property_count(m) == before + n - 1);
    EXPECT(mnist_get_property(m, before - 1, &text, &kind, &whole, NULL, NULL) == MNIST_OK);
    EXPECT(!strcmp(text, "note") && kind == MNIST_STRING && whole == 0);
    EXPECT(mnist_get_property(m, before, &text, &kind, NULL, NULL, NULL) == MNIST_OK);
    EXPECT(!strcmp(text, "p0") && kind == MNIST_INT);
    EXPECT(mnist_get_property(m, before + n, NULL, NULL, NULL, NULL, NULL) == MNIST_NO_NAME);
    size_t size = mnist_checkpoint_size(m, 1); /* the learning rate still has room */
    void *data = malloc(size);
    EXPECT(mnist_save_to(m, data, size, 1) == MNIST_OK);
    EXPECT(mnist_save_to(m, data, size - 1, 1) == MNIST_BAD_INPUT);
    mnist *again;
    EXPECT(mnist_create_from(&again, data, size, NULL) == MNIST_OK);
    EXPECT(mnist_property_count(again) == before + n - 1);
    mnist_destroy(again);
    free(data);
}

/* Checkpoints in pieces of every size, in any order, and through a file. */
static void pieces(mnist *m, const char *folder)
{
    char path[4096];
    for (int state = 0; state < 2; state++) {
        size_t size = mnist_checkpoint_size(m, state);
        unsigned char *whole = malloc(size), *parts = malloc(size);
        EXPECT(mnist_save_to(m, whole, size, state) == MNIST_OK);
        for (size_t most = 1; most <= size; most = most < 70 ? most + 23 : most * 9) {
            memset(parts, 7, size);
            for (size_t end = size; end; end -= end < most ? end : most) {
                size_t n = end < most ? end : most;
                EXPECT(mnist_save_part(m, end - n, parts + end - n, n, state) == MNIST_OK);
            }
            EXPECT(!memcmp(whole, parts, size));
        }
        EXPECT(mnist_save_part(m, size, parts, 0, state) == MNIST_OK);
        snprintf(path, sizeof path, "%s/pieces", folder);
        EXPECT(mnist_save(m, path, state) == MNIST_OK);
        FILE *file = fopen(path, "rb");
        EXPECT(file && fread(parts, 1, size, file) == size && fgetc(file) == EOF);
        EXPECT(!memcmp(whole, parts, size) && !fclose(file) && !remove(path));
        free(whole);
        free(parts);
    }
}

int main(int argc, char **argv)
{
    mnist *m;
    float loss = 0, scores[4 * 10];
    void *outputs[] = {&loss};
    void *inferred[] = {scores};
    if (argc != 3)
        return 2;
    for (int i = 0; i < 4 * 64; i++)
        pixels[i] = (float)i / 256;
    null_arguments();
    without_values(argv[2]);
    EXPECT(mnist_create(&m, argv[1], NULL) == MNIST_OK);
    EXPECT(mnist_optimizer_step(m) == MNIST_BAD_STATE && strstr(mnist_message(m), "train a step"));
    EXPECT(mnist_infer(m, inputs, inferred) == MNIST_OK);
    EXPECT(mnist_train_step(m, inputs, outputs) == MNIST_OK && loss > 0);
    labels[1] = -1;
    EXPECT(mnist_train_step(m, inputs, outputs) == MNIST_BAD_LABEL);
    EXPECT(strstr(mnist_message(m), "label -1 at position 1"));
    labels[1] = INT64_MIN;
    EXPECT(mnist_eval_step(m, inputs, outputs) == MNIST_BAD_LABEL);
    labels[1] = 1;
    EXPECT(mnist_eval_step(m, inputs, outputs) == MNIST_OK);
    EXPECT(mnist_set_learning_rate(m, NAN) == MNIST_BAD_INPUT);
    EXPECT(mnist_set_learning_rate(m, INFINITY) == MNIST_BAD_INPUT);
    EXPECT(mnist_set_step(m, -1) == MNIST_BAD_INPUT);
    EXPECT(mnist_set_step(m, INT64_MAX) == MNIST_OK);
    EXPECT(mnist_optimizer_step(m) == MNIST_BAD_STATE);
    EXPECT(mnist_set_step(m, 1) == MNIST_OK && mnist_optimizer_step(m) == MNIST_OK);
    EXPECT(mnist_get_step(m) == 2);
    EXPECT(mnist_save(m, NULL, 0) == MNIST_BAD_INPUT);
    EXPECT(mnist_save(m, "/nowhere/at/all", 0) == MNIST_BAD_FILE);
    properties(m);
    pieces(m, argv[2]);
    mnist_destroy(m);
    puts("ok");
    return 0;
}
