/* Every function with every argument that it refuses: an error code, and a message that names what
 * was found and what is expected.  Prints what differs from the table; the status is 0 if nothing.
 * usage: refusals CHECKPOINT FOLDER [PLAN] */

#include "mnist.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char why[MNIST_MESSAGE_BYTES];
static unsigned char data[1 << 22];
static _Alignas(64) unsigned char memory[1 << 22];
static float values[1 << 16];
static int wrong, rows;

static void expect(const char *call, int code, int expected, const char *said, const char *part)
{
    rows++;
    if (code == expected && strstr(said, part))
        return;
    printf("%s: code %d, expected %d; message '%s', expected '%s'\n", call, code, expected, said,
           part);
    wrong++;
}

/* A function that makes models, and one of a model. */
#define MAKES(call, code, part) (strcpy(why, "?"), expect(#call, call, code, why, part))
#define REFUSES(call, code, part) expect(#call, call, code, mnist_message(m), part)
#define NO_MODEL(call) expect(#call, call, MNIST_BAD_INPUT, mnist_message(NULL), "model is NULL")

static size_t read_file(const char *path, unsigned char *to)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        exit(2);
    size_t n = fread(to, 1, 1 << 22, file);
    fclose(file);
    return n;
}

static void without_a_model(void)
{
    NO_MODEL(mnist_set_batch(NULL, 4));
    NO_MODEL(mnist_train_step(NULL, NULL, NULL));
    NO_MODEL(mnist_eval_step(NULL, NULL, NULL));
    NO_MODEL(mnist_infer(NULL, NULL, NULL));
    NO_MODEL(mnist_optimizer_step(NULL));
    NO_MODEL(mnist_set_learning_rate(NULL, 1));
    NO_MODEL(mnist_set_step(NULL, 1));
    NO_MODEL(mnist_set_draws(NULL, 1));
    NO_MODEL(mnist_set_loss_scale(NULL, 1));
    NO_MODEL(mnist_get_parameters(NULL, values, 1, 0));
    NO_MODEL(mnist_set_parameters(NULL, values, 1, 0));
    NO_MODEL(mnist_get_parameters_f64(NULL, NULL, 1, 0));
    NO_MODEL(mnist_set_parameters_f64(NULL, NULL, 1, 0));
    NO_MODEL(mnist_save_to(NULL, data, 1, 0));
    NO_MODEL(mnist_save_part(NULL, 0, data, 1, 0));
    NO_MODEL(mnist_save(NULL, "x", 0));
    NO_MODEL(mnist_set_property_int(NULL, "x", 1));
    NO_MODEL(mnist_set_property_float(NULL, "x", 1));
    NO_MODEL(mnist_set_property_string(NULL, "x", "x"));
    NO_MODEL(mnist_get_property(NULL, 0, NULL, NULL, NULL, NULL, NULL));
    /* A function without an error code returns the value that its comment names for errors. */
    expect("of NULL", mnist_find_parameter(NULL, "x") == -1, 1, "", "");
    expect("of NULL", !mnist_parameter(NULL, 0) && !mnist_gradient(NULL, 0), 1, "", "");
    expect("of NULL", !mnist_input(NULL, 0, 0) && !mnist_output(NULL, 0, 0), 1, "", "");
    expect("of NULL", !mnist_input_info(NULL, 0, 0) && !mnist_output_info(NULL, 0, 0), 1, "", "");
    expect("of NULL", !mnist_parameter_info(NULL, 0) && !mnist_parameter_count(NULL), 1, "", "");
    expect("of NULL", !mnist_batch_count(NULL) && !mnist_batch_size(NULL, 0), 1, "", "");
    expect("of NULL", !mnist_get_batch(NULL) && !mnist_checkpoint_size(NULL, 0), 1, "", "");
    expect("of NULL", !mnist_property_count(NULL) && !mnist_is_loaded(NULL), 1, "", "");
    expect("of NULL", !mnist_has_phase(NULL, 0) && !mnist_parameters_size(NULL, 0), 1, "", "");
    expect("of NULL", mnist_get_learning_rate(NULL) == 0 && !mnist_get_step(NULL), 1, "", "");
    expect("of NULL", !mnist_get_skipped(NULL) && !mnist_get_draws(NULL), 1, "", "");
    expect("of NULL", mnist_get_loss_scale(NULL) == 0, 1, "", "");
    mnist_lazy_reset_grad(NULL);
    mnist_set_seed(NULL, 1);
    mnist_destroy(NULL);
}

#ifdef MNIST_MEMORY_BYTES
static void makers(const char *path, size_t n, const char *folder, const char *plan_path)
{
    mnist *m;
    (void)plan_path;
    MAKES(mnist_create(NULL, path, why), MNIST_BAD_INPUT, "out is NULL");
    MAKES(mnist_create(&m, "/nowhere", why), MNIST_BAD_FILE, "cannot read '/nowhere': missing");
    MAKES(mnist_create(&m, "", why), MNIST_BAD_FILE, "cannot read ''");
    MAKES(mnist_create(&m, folder, why), MNIST_BAD_FILE, "no regular file");
    MAKES(mnist_create_from(NULL, data, n, why), MNIST_BAD_INPUT, "out is NULL");
    MAKES(mnist_create_from(&m, NULL, 7, why), MNIST_BAD_INPUT, "checkpoint of 7 bytes is NULL");
    MAKES(mnist_create_from(&m, data, 0, why), MNIST_BAD_CHECKPOINT, "not a checkpoint");
    MAKES(mnist_create_from(&m, data, n / 2, why), MNIST_BAD_CHECKPOINT, "checkpoint");
    MAKES(mnist_create_in(NULL, memory, sizeof memory, data, n, why), MNIST_BAD_INPUT,
          "out is NULL");
    MAKES(mnist_create_in(&m, memory, sizeof memory, NULL, 1, why), MNIST_BAD_INPUT, "is NULL");
    MAKES(mnist_create_in(&m, NULL, 0, data, n, why), MNIST_NO_MEMORY, "memory is NULL");
    MAKES(mnist_create_in(&m, memory, 0, data, n, why), MNIST_NO_MEMORY, "memory has 0 bytes");
    MAKES(mnist_create_in(&m, memory, MNIST_MEMORY_BYTES - 1, data, n, why), MNIST_NO_MEMORY,
          "are needed");
    MAKES(mnist_create_in(&m, memory + 8, MNIST_MEMORY_BYTES, data, n, why), MNIST_NO_MEMORY,
          "8 bytes after a multiple of 64");
}

static int make(mnist **m, const char *path)
{
    return path ? mnist_create(m, path, why) : mnist_create_from(m, NULL, 0, why);
}

/* Replace the learning rate in a checkpoint by rates that no training can use. */
static void rates(mnist *m)
{
    static const float rate = 0.78125f, bad[] = {NAN, -1, INFINITY};
    mnist *again;
    REFUSES(mnist_set_learning_rate(m, rate), MNIST_OK, "");
    size_t size = mnist_checkpoint_size(m, 1), place = 0;
    REFUSES(mnist_save_to(m, data, size, 1), MNIST_OK, "");
    while (place + 4 < size && memcmp(data + place, &rate, 4))
        place++;
    for (int i = 0; i < 3; i++) {
        memcpy(data + place, &bad[i], 4);
        MAKES(mnist_create_from(&again, data, size, why), MNIST_BAD_CHECKPOINT,
              "edgegrad.learning_rate: is NaN, negative or infinite");
    }
}
#else
static unsigned char plan[1 << 22];
static size_t plan_bytes;

static void makers(const char *path, size_t n, const char *folder, const char *plan_path)
{
    mnist *m;
    size_t size;
    plan_bytes = read_file(plan_path, plan);
    MAKES(mnist_create(NULL, plan_path, path, why), MNIST_BAD_INPUT, "out is NULL");
    MAKES(mnist_create(&m, NULL, path, why), MNIST_BAD_INPUT, "plan is NULL");
    MAKES(mnist_create(&m, "/nowhere", path, why), MNIST_BAD_FILE, "cannot read '/nowhere'");
    MAKES(mnist_create(&m, folder, path, why), MNIST_BAD_FILE, "no regular file");
    MAKES(mnist_create(&m, plan_path, "/nowhere", why), MNIST_BAD_FILE, "cannot read '/nowhere'");
    MAKES(mnist_create(&m, path, path, why), MNIST_BAD_PLAN, "no plan file");
    MAKES(mnist_create_from_plan(NULL, plan, plan_bytes, data, n, why), MNIST_BAD_INPUT,
          "out is NULL");
    MAKES(mnist_create_from_plan(&m, NULL, 5, data, n, why), MNIST_BAD_INPUT, "plan is NULL");
    MAKES(mnist_create_from_plan(&m, plan, 5, data, n, why), MNIST_BAD_PLAN, "no plan file");
    MAKES(mnist_create_from_plan(&m, plan, plan_bytes, NULL, 3, why), MNIST_BAD_INPUT,
          "checkpoint of 3 bytes is NULL");
    MAKES(mnist_plan_memory(plan, plan_bytes, NULL, why), MNIST_BAD_INPUT, "size is NULL");
    MAKES(mnist_plan_memory(NULL, 1, &size, why), MNIST_BAD_INPUT, "plan is NULL");
    MAKES(mnist_plan_memory(plan, plan_bytes, &size, why), MNIST_OK, "");
    MAKES(mnist_create_in(NULL, memory, size, plan, plan_bytes, data, n, why), MNIST_BAD_INPUT,
          "out is NULL");
    MAKES(mnist_create_in(&m, NULL, size, plan, plan_bytes, data, n, why), MNIST_NO_MEMORY,
          "memory is NULL");
    MAKES(mnist_create_in(&m, memory, size - 1, plan, plan_bytes, data, n, why), MNIST_NO_MEMORY,
          "are needed");
    MAKES(mnist_create_in(&m, memory + 8, size, plan, plan_bytes, data, n, why), MNIST_NO_MEMORY,
          "8 bytes after a multiple of 64");
}

static int make(mnist **m, const char *path)
{
    unsigned char *checkpoint = path ? data : NULL;
    return mnist_create_from_plan(m, plan, plan_bytes, checkpoint,
                                  path ? read_file(path, data) : 0, why);
}
#endif

static void without_values(const char *path)
{
    mnist *m;
    if (make(&m, NULL))
        exit(2);
    size_t count = mnist_parameters_size(m, 0);
    REFUSES(mnist_train_step(m, NULL, NULL), MNIST_BAD_STATE, "no values");
    REFUSES(mnist_eval_step(m, NULL, NULL), MNIST_BAD_STATE, "no values");
    REFUSES(mnist_infer(m, NULL, NULL), MNIST_BAD_STATE, "no values");
    REFUSES(mnist_optimizer_step(m), MNIST_BAD_STATE, "no values");
    REFUSES(mnist_get_parameters(m, values, count, 0), MNIST_BAD_STATE, "no values");
    REFUSES(mnist_set_parameters(m, values, mnist_parameters_size(m, 1), 1), MNIST_BAD_STATE,
            "takes all parameters");
    REFUSES(mnist_save_to(m, data, sizeof data, 0), MNIST_BAD_STATE, "no values");
    REFUSES(mnist_save_part(m, 0, data, 1, 0), MNIST_BAD_STATE, "no values");
    REFUSES(mnist_save(m, path, 1), MNIST_BAD_STATE, "no values");
    mnist_set_batch(m, 3); /* another message */
    expect("checkpoint_size", mnist_checkpoint_size(m, 0) == 0, 1, mnist_message(m), "no values");
    expect("parameter", !mnist_parameter(m, 0), 1, "", "");
    mnist_destroy(m);
}

static void arguments(mnist *m, const char *folder)
{
    static char large[MNIST_PROPERTY_BYTES + 2];
    char inside[4096];
    size_t count = mnist_parameters_size(m, 0), size = mnist_checkpoint_size(m, 1);
    REFUSES(mnist_optimizer_step(m), MNIST_BAD_STATE, "no gradients yet");
    REFUSES(mnist_set_batch(m, -4), MNIST_BAD_INPUT, "batch -4: there are plans for 4");
    REFUSES(mnist_set_batch(m, INT64_MIN), MNIST_BAD_INPUT, "batch -9223372036854775808");
    REFUSES(mnist_set_learning_rate(m, -1), MNIST_BAD_INPUT, "is negative: give a number");
    REFUSES(mnist_set_learning_rate(m, -INFINITY), MNIST_BAD_INPUT, "is negative");
    REFUSES(mnist_set_learning_rate(m, INFINITY), MNIST_BAD_INPUT, "is infinite");
    REFUSES(mnist_set_learning_rate(m, NAN), MNIST_BAD_INPUT, "is NaN");
    REFUSES(mnist_set_linear_rate(m, NAN, 1, 2), MNIST_BAD_INPUT, "is NaN");
    REFUSES(mnist_set_linear_rate(m, 1, -1, 2), MNIST_BAD_INPUT, "a warm-up of -1 steps of 2");
    REFUSES(mnist_set_linear_rate(m, 1, 5, INT64_C(1) << 31), MNIST_BAD_INPUT, "total < 2^31");
    REFUSES(mnist_set_step(m, -1), MNIST_BAD_INPUT, "step -1 is negative");
    REFUSES(mnist_set_draws(m, -1), MNIST_BAD_INPUT, "draws -1 is negative");
    REFUSES(mnist_set_loss_scale(m, 1024), MNIST_BAD_STATE, "do not scale the loss");
    REFUSES(mnist_get_parameters(m, NULL, count, 0), MNIST_BAD_INPUT, "is NULL");
    REFUSES(mnist_get_parameters(m, values, count + 1, 0), MNIST_BAD_INPUT, "the buffer");
    REFUSES(mnist_set_parameters(m, NULL, count, 0), MNIST_BAD_INPUT, "is NULL");
    REFUSES(mnist_set_parameters(m, values, SIZE_MAX, 0), MNIST_BAD_INPUT, "elements, the buffer");
    REFUSES(mnist_save_to(m, NULL, size, 1), MNIST_BAD_INPUT, "is NULL");
    REFUSES(mnist_save_to(m, data, size - 1, 1), MNIST_BAD_INPUT, "bytes, the buffer");
    REFUSES(mnist_get_parameters_f64(m, (double *)data, count, 0), MNIST_BAD_INPUT,
            "is not float64");
    REFUSES(mnist_set_parameters_f64(m, (double *)data, count, 0), MNIST_BAD_INPUT,
            "is not float64");
    REFUSES(mnist_save_part(m, 0, NULL, 1, 1), MNIST_BAD_INPUT, "is NULL");
    REFUSES(mnist_save_part(m, 1, data, size, 1), MNIST_BAD_INPUT,
            "from byte 1 on: the checkpoint");
    REFUSES(mnist_save_part(m, size + 1, data, 0, 1), MNIST_BAD_INPUT, "from byte");
    REFUSES(mnist_save_part(m, 8, data, SIZE_MAX, 1), MNIST_BAD_INPUT, "from byte 8 on");
    REFUSES(mnist_save(m, NULL, 1), MNIST_BAD_INPUT, "path is NULL");
    REFUSES(mnist_save(m, "", 1), MNIST_BAD_FILE, "cannot write checkpoint ''");
    REFUSES(mnist_save(m, folder, 1), MNIST_BAD_FILE, "not a regular file");
    REFUSES(mnist_save(m, "/nowhere/at/all", 1), MNIST_BAD_FILE, "'/nowhere/at/all': No such file");
    memset(inside, 'x', sizeof inside - 1);
    inside[sizeof inside - 1] = 0;
    REFUSES(mnist_save(m, inside, 1), MNIST_BAD_FILE, "cannot write checkpoint");
    memset(large, 'x', sizeof large - 1);
    REFUSES(mnist_set_property_int(m, NULL, 1), MNIST_BAD_INPUT, "name of a property is NULL");
    REFUSES(mnist_set_property_float(m, NULL, 1), MNIST_BAD_INPUT, "name of a property is NULL");
    REFUSES(mnist_set_property_string(m, "x", NULL), MNIST_BAD_INPUT, "text of a property is NULL");
    REFUSES(mnist_set_property_string(m, large, "x"), MNIST_NO_MEMORY, "larger than");
    REFUSES(mnist_set_property_string(m, "x", large), MNIST_NO_MEMORY, "larger than");
    REFUSES(mnist_set_property_string(m, "\xff", "x"), MNIST_BAD_INPUT, "not UTF-8");
    REFUSES(mnist_set_property_int(m, "edgegrad.learning_rate", 1), MNIST_BAD_INPUT,
            "cannot be named");
    REFUSES(mnist_set_property_int(m, "edgegrad.draws", 1), MNIST_BAD_INPUT, "cannot be named");
    int n = mnist_property_count(m);
    REFUSES(mnist_get_property(m, -1, NULL, NULL, NULL, NULL, NULL), MNIST_BAD_INPUT,
            "no property -1: there are");
    REFUSES(mnist_get_property(m, n, NULL, NULL, NULL, NULL, NULL), MNIST_NO_NAME,
            "counted from 0");
    expect("gradient", mnist_gradient(m, 0) != NULL, 1, "", "");
    expect("a step from the caller's gradients", mnist_optimizer_step(m), MNIST_OK, "", "");
}

int main(int argc, char **argv)
{
    mnist *m;
    if (argc < 3)
        return 2;
    without_a_model();
    makers(argv[1], read_file(argv[1], data), argv[2], argc > 3 ? argv[3] : NULL);
    without_values(argv[1]);
    if (make(&m, argv[1]))
        return 2;
    arguments(m, argv[2]);
#ifdef MNIST_MEMORY_BYTES
    rates(m);
#endif
    mnist_destroy(m);
    printf("%d rows, %d wrong\n", rows, wrong);
    return wrong != 0;
}
