/* Every truncation of a plan file and many random changes, with the checksum made good again: an
 * error, or a model that answers questions; never a crash.
 * usage: plans PLAN CHECKPOINT STEP CHANGES; takes one of STEP truncations. */

#include "mnist.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEAD = 32 }; /* bytes, as engine/plan/file_schema.py describes them */

static unsigned char plan[1 << 20], changed[1 << 20], checkpoint[1 << 20];
static size_t plan_bytes, checkpoint_bytes;
static unsigned accepted, refused;

static size_t read_file(const char *path, unsigned char *data)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        exit(2);
    size_t size = fread(data, 1, 1 << 20, file);
    fclose(file);
    return size;
}

static void seal(unsigned char *file, size_t size)
{
    unsigned long crc = 0xFFFFFFFF;
    for (size_t i = 12; i < size; i++) {
        crc ^= file[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320 : 0);
    }
    crc = ~crc & 0xFFFFFFFF;
    for (int i = 0; i < 4; i++)
        file[8 + i] = (unsigned char)(crc >> 8 * i);
}

static size_t read_size(const unsigned char *at)
{
    size_t value = 0;
    for (int i = 8; i--;)
        value = value << 8 | at[i];
    return value;
}

static void write_size(unsigned char *at, size_t value)
{
    for (int i = 0; i < 8; i++)
        at[i] = (unsigned char)(value >> 8 * i);
}

/* Ask a model for all it knows, without running a step: how far that reaches, its plan decides. */
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
    for (int i = 0; i < mnist_parameter_count(m); i++)
        if (mnist_gradient(m, i))
            memset(mnist_gradient(m, i), (int)bytes, mnist_parameter_info(m, i)->bytes);
    size_t need = mnist_checkpoint_size(m, 1);
    void *out = malloc(need + 1);
    if (need && mnist_save_to(m, out, need, 1))
        abort();
    free(out);
}

static void attempt(const unsigned char *data, size_t size, int with_values)
{
    char why[MNIST_MESSAGE_BYTES];
    unsigned char *exact = malloc(size ? size : 1);
    size_t memory = 0;
    mnist *m = NULL;
    memcpy(exact, data, size);
    int code = mnist_plan_memory(exact, size, &memory, why);
    if (!code && memory < (1 << 26)) { /* what asks for more would be a matter of memory alone */
        code = mnist_create_from_plan(&m, exact, size, with_values ? checkpoint : NULL,
                                      checkpoint_bytes, why);
        if (!code)
            question(m);
        mnist_destroy(m);
    }
    accepted += !code;
    refused += code != 0;
    if (code && (!why[0] || strlen(why) >= sizeof why))
        abort();
    free(exact);
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    plan_bytes = read_file(argv[1], plan);
    checkpoint_bytes = read_file(argv[2], checkpoint);
    attempt(plan, plan_bytes, 1);
    if (accepted != 1)
        return 1;
    size_t tables = read_size(plan + 16);
    for (size_t n = 0; n < plan_bytes; n += (size_t)atoi(argv[3])) {
        attempt(plan, n, 0);
        memcpy(changed, plan, n);
        if (n > HEAD && n < tables) { /* a head that agrees with what is left */
            write_size(changed + 16, n / 64 * 64);
            write_size(changed + 24, n % 64);
            seal(changed, n);
            attempt(changed, n, 0);
        }
    }
    if (accepted != 1)
        return 1;
    srand(1);
    for (int i = 0; i < atoi(argv[4]); i++) {
        memcpy(changed, plan, plan_bytes);
        size_t most = i % 2 ? HEAD + 1024 : plan_bytes - HEAD;
        for (int k = rand() % 3; k >= 0; k--)
            changed[(i % 8 ? HEAD : 0) + (size_t)rand() % most % (plan_bytes - HEAD)] =
                rand() % 3 ? (unsigned char)rand() : (unsigned char)(rand() % 2 ? 0 : 255);
        if (i % 16)
            seal(changed, plan_bytes);
        attempt(changed, plan_bytes, i % 3 == 0);
    }
    printf("accepted %u refused %u\n", accepted, refused);
    return 0;
}
