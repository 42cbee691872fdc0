/* The reader of plan files: bytes make a model that answers questions, or an error that says why.
 * No step is run: what kernels do with the numbers of a plan is not the reader's. */

#include "fuzz.h"
#include "mnist.h"

#include <stdlib.h>
#include <string.h>

const char *const fuzz_words[] = {NULL};

enum { HEAD = 32 }; /* bytes, as engine/plan/file_schema.py describes them */

void fuzz_mend(unsigned char *data, size_t size)
{
    static unsigned long table[256];
    unsigned long crc = 0xFFFFFFFF;
    if (!table[1])
        for (unsigned i = 0; i < 256; i++) {
            table[i] = i;
            for (int bit = 0; bit < 8; bit++)
                table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xEDB88320 : 0);
        }
    if (size < HEAD)
        return;
    unsigned long long rest = size; /* the head says the sizes of both parts */
    for (int i = 0; i < 8; i++)
        rest -= (unsigned long long)data[16 + i] << 8 * i;
    if (rest <= size)
        for (int i = 0; i < 8; i++)
            data[24 + i] = (unsigned char)(rest >> 8 * i);
    for (size_t i = 12; i < size; i++)
        crc = crc >> 8 ^ table[(crc ^ data[i]) & 255];
    crc = ~crc & 0xFFFFFFFF;
    for (int i = 0; i < 4; i++)
        data[8 + i] = (unsigned char)(crc >> 8 * i);
}

/* Ask a model for all its facts, and touch the memory that it gives to its caller. */
static void question(mnist *m)
{
    size_t bytes = 0;
    for (int b = 0; b < mnist_batch_count(m); b++) {
        if (mnist_set_batch(m, mnist_batch_size(m, b)))
            abort();
        for (int phase = MNIST_TRAIN; phase <= MNIST_INFER; phase++)
            for (int i = 0; i < mnist_input_count(m, phase); i++) {
                const mnist_tensor *t = mnist_input_info(m, phase, i);
                bytes += strlen(t->name);
                for (int d = 0; d < t->rank; d++)
                    bytes += (size_t)t->dims[d];
                memset(mnist_input(m, phase, i), 0, t->bytes);
            }
    }
    size_t count = mnist_parameters_size(m, 0);
    float *values = calloc(count + 1, sizeof *values);
    int code = mnist_set_parameters(m, values, count, 0);
    free(values);
    for (int i = 0; i < mnist_parameter_count(m); i++)
        if (mnist_gradient(m, i))
            memset(mnist_gradient(m, i), (int)bytes, mnist_parameter_info(m, i)->bytes);
    size_t need = mnist_checkpoint_size(m, 1);
    void *out = malloc(need + 1);
    if (!code && need && mnist_save_to(m, out, need, 1))
        abort();
    free(out);
}

int fuzz_take(const unsigned char *data, size_t size)
{
    char why[MNIST_MESSAGE_BYTES];
    size_t memory = 0;
    mnist *m = NULL;
    int code = mnist_plan_memory(data, size, &memory, why);
    if (!code && memory < 1 << 22) { /* what asks for more is a matter of memory alone */
        code = mnist_create_from_plan(&m, data, size, NULL, 0, why);
        if (!code)
            question(m);
        else if (m)
            abort();
        mnist_destroy(m);
    }
    if (code && (!why[0] || strlen(why) >= sizeof why))
        abort();
    return code;
}
