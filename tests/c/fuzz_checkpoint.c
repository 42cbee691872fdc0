/* The reader of checkpoints: bytes make a model, or an error that says why. */

#include "fuzz.h"
#include "mnist.h"

#include <stdlib.h>
#include <string.h>

const char *const fuzz_words[] = {"ODTC", "edgegrad.learning_rate", "epoch", NULL};

static _Alignas(64) unsigned char memory[MNIST_MEMORY_BYTES];

void fuzz_mend(unsigned char *data, size_t size)
{
    (void)data;
    (void)size;
}

int fuzz_take(const unsigned char *data, size_t size)
{
    char why[MNIST_MESSAGE_BYTES];
    const char *name, *text;
    mnist *m;
    int code = mnist_create_in(&m, memory, sizeof memory, data, size, why);
    if (code) {
        if (m || !why[0] || strlen(why) >= sizeof why)
            abort();
        return code;
    }
    size_t length = 0;
    for (int i = 0; i < mnist_property_count(m); i++) {
        int kind;
        int64_t whole;
        float number;
        if (mnist_get_property(m, i, &name, &kind, &whole, &number, &text))
            abort();
        length += strlen(name) + (kind == MNIST_STRING ? strlen(text) : 0);
    }
    /* A checkpoint that was read can be written, and read again. */
    size_t need = mnist_checkpoint_size(m, 1);
    unsigned char *out = malloc(need + length + 1);
    code = mnist_save_to(m, out, need, 1);
    int loaded = mnist_is_loaded(m);
    if (!out || code != (loaded ? MNIST_OK : MNIST_BAD_STATE))
        abort();
    mnist_destroy(m);
    if (loaded && mnist_create_in(&m, memory, sizeof memory, out, need, why))
        abort();
    if (loaded)
        mnist_destroy(m);
    free(out);
    return 0;
}
