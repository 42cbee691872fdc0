/* The least nanoseconds of a step, over blocks of steps: CHECKPOINT BLOCKS STEPS. */
#include "mlp.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static long long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int main(int argc, char **argv)
{
    mlp *m;
    char why[MLP_MESSAGE_BYTES];
    long long least = 1LL << 62;
    if (argc != 4 || mlp_create(&m, argv[1], why))
        return 1;
    long blocks = atol(argv[2]), steps = atol(argv[3]);
    void *x = calloc(1, mlp_input_info(m, MLP_TRAIN, 0)->bytes);
    void *y = calloc(1, mlp_input_info(m, MLP_TRAIN, 1)->bytes);
    const void *inputs[] = {x, y};
    for (long block = 0; block < blocks; block++) {
        long long begin = now();
        for (long k = 0; k < steps; k++) {
            float loss;
            void *outputs[] = {&loss};
            if (mlp_train_step(m, inputs, outputs) || mlp_optimizer_step(m))
                return 1;
            mlp_lazy_reset_grad(m);
        }
        long long took = (now() - begin) / steps;
        least = took < least ? took : least;
    }
    printf("%lld\n", least);
    mlp_destroy(m);
    free(x);
    free(y);
}
