/* Every truncation of a checkpoint and many random changes: an error, or a model; never a crash.
 * usage: hostile CHECKPOINT STEP CHANGES; takes one of STEP truncations. */

#include "mnist.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Alignas(64) unsigned char memory[MNIST_MEMORY_BYTES];
static unsigned accepted, refused;

/* Read bytes from a block of exactly their size, which the sanitizer guards. */
static void attempt(const unsigned char *data, size_t size)
{
    char why[MNIST_MESSAGE_BYTES];
    unsigned char *exact = malloc(size ? size : 1), *out;
    mnist *m;
    memcpy(exact, data, size);
    int code = mnist_create_in(&m, memory, sizeof memory, exact, size, why);
    if (code) {
        refused++;
        if (m || !why[0] || strlen(why) >= sizeof why)
            abort();
    } else {
        accepted++;
        size_t need = mnist_checkpoint_size(m, 1);
        out = malloc(need);
        if (mnist_save_to(m, out, need, 1) != (mnist_is_loaded(m) ? MNIST_OK : MNIST_BAD_STATE))
            abort(); /* a mutation can make the checkpoint nominal */
        free(out);
        mnist_destroy(m);
    }
    free(exact);
}

int main(int argc, char **argv)
{
    FILE *file = argc == 4 ? fopen(argv[1], "rb") : NULL;
    if (!file)
        return 2;
    static unsigned char data[1 << 20], changed[1 << 20];
    size_t size = fread(data, 1, sizeof data, file);
    fclose(file);
    for (size_t n = 0; n < size; n += (size_t)atoi(argv[2])) {
        attempt(data, n);
        if (accepted && n + 8 <= size)
            abort(); /* a truncated checkpoint is none; up to 7 bytes of padding may end a file */
    }
    srand(1);
    for (int i = 0; i < atoi(argv[3]); i++) {
        memcpy(changed, data, size);
        for (int k = rand() % 4; k >= 0; k--) {
            size_t place = (size_t)rand() % size;
            /* every second change hits a number of the structure; a file has few of them */
            if (i % 2)
                place = place / 4096 * 4096 + place % 64 < size ? place % 256 : place;
            int value = rand() % 3 ? rand() : rand() % 2 ? 0 : 255;
            changed[place] = (unsigned char)value;
        }
        attempt(changed, size);
    }
    attempt(data, size);
    printf("accepted %u refused %u\n", accepted, refused);
    return 0;
}
