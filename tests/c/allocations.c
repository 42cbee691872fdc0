/* Counts calls of the allocator, which the linker leads through here, while steps run.
 * usage: allocations CHECKPOINT */

#include "mnist.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static int count;

void *__real_malloc(size_t n);
void *__real_calloc(size_t k, size_t n);
void *__real_realloc(void *p, size_t n);

void *__wrap_malloc(size_t n)
{
    count++;
    return __real_malloc(n);
}

void *__wrap_calloc(size_t k, size_t n)
{
    count++;
    return __real_calloc(k, n);
}

void *__wrap_realloc(void *p, size_t n)
{
    count++;
    return __real_realloc(p, n);
}

int main(int argc, char **argv)
{
    struct timespec begin, end;
    float pixels[4 * 64] = {0};
    int64_t labels[4] = {0, 1, 2, 3};
    const void *inputs[] = {pixels, labels};
    mnist *m;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    if (argc != 2 || mnist_create(&m, argv[1], NULL) || mnist_train_step(m, inputs, NULL))
        return 2;
    clock_gettime(CLOCK_MONOTONIC, &end);
    int created = count;
    for (int i = 0; i < 100; i++) {
        if (mnist_train_step(m, inputs, NULL) || mnist_optimizer_step(m)
            || mnist_eval_step(m, inputs, NULL) || mnist_infer(m, inputs, NULL))
            return 2;
        mnist_lazy_reset_grad(m);
    }
    double ms = 1e3 * (double)(end.tv_sec - begin.tv_sec);
    ms += 1e-6 * (double)(end.tv_nsec - begin.tv_nsec);
    printf("creation %d steps %d first step after %.3f ms\n", created, count - created, ms);
    mnist_destroy(m);
    return 0;
}
