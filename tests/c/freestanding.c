/* A freestanding build: memory and threads are the caller's.  usage: freestanding CHECKPOINT */

#include "mnist.h"

#include <pthread.h>
#include <stdio.h>

static _Alignas(64) unsigned char memory[MNIST_MEMORY_BYTES];

#if MNIST_THREADS > 1
static void *live(void *m)
{
    mnist_worker(m, 1);
    return NULL;
}
#endif

int main(int argc, char **argv)
{
    static unsigned char data[1 << 20], saved[1 << 20];
    static float pixels[4 * 64];
    int64_t labels[4] = {0, 1, 2, 3};
    const void *inputs[] = {pixels, labels};
    char why[MNIST_MESSAGE_BYTES];
    mnist *m;
    FILE *file = argc == 2 ? fopen(argv[1], "rb") : NULL;
    if (!file)
        return 2;
    size_t size = fread(data, 1, sizeof data, file);
    fclose(file);
    for (int i = 0; i < 4 * 64; i++)
        pixels[i] = (float)(i % 7) / 7;
    if (mnist_create_in(&m, memory, sizeof memory, data, size, why)) {
        puts(why);
        return 1;
    }
#if MNIST_THREADS > 1
    pthread_t other;
    if (pthread_create(&other, NULL, live, m))
        return 2;
#endif
    for (int i = 0; i < 5; i++) {
        float loss;
        void *outputs[] = {&loss};
        if (mnist_train_step(m, inputs, outputs) || mnist_optimizer_step(m))
            return 1;
        mnist_lazy_reset_grad(m);
        printf("%a\n", (double)loss);
    }
    size = mnist_checkpoint_size(m, 1);
    if (size > sizeof saved || mnist_save_to(m, saved, size, 1))
        return 1;
    mnist_destroy(m);
#if MNIST_THREADS > 1
    pthread_join(other, NULL);
#endif
    return 0;
}
