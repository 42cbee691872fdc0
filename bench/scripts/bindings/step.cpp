// The least nanoseconds of a step, over blocks of steps: CHECKPOINT BLOCKS STEPS.
#include "mlp.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

int main(int, char **argv)
{
    using clock = std::chrono::steady_clock;
    auto m = mlp_cpp::Model::create(argv[1]);
    std::vector<char> x(m.input_info(MLP_TRAIN, 0)->bytes), y(m.input_info(MLP_TRAIN, 1)->bytes);
    const void *inputs[] = {x.data(), y.data()};
    long least = 1L << 62, steps = std::atol(argv[3]);
    for (long block = std::atol(argv[2]); block > 0; block--) {
        auto begin = clock::now();
        for (long k = 0; k < steps; k++) {
            float loss;
            void *outputs[] = {&loss};
            m.train_step(inputs, outputs);
            m.optimizer_step();
            m.lazy_reset_grad();
        }
        long took = std::chrono::nanoseconds(clock::now() - begin).count() / steps;
        least = std::min(least, took);
    }
    std::printf("%ld\n", least);
}
