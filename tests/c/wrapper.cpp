// The C++ class of a build: its values are C's, its errors are exceptions with C's messages, and
// models end with their scope.  usage: wrapper CHECKPOINT

#include "mnist.hpp"

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <type_traits>
#include <utility>

using mnist_cpp::Error;
using mnist_cpp::Model;

static_assert(std::is_move_constructible_v<Model> && !std::is_copy_constructible_v<Model>, "");

static int wrong;
#define EXPECT(what) expect(what, #what)

static void expect(bool good, const char *what)
{
    if (!good)
        wrong += std::printf("wrong: %s\n", what) > 0;
}

template <class F> static void expect_error(int code, const char *part, F call)
{
    try {
        call();
        wrong++;
        std::printf("no error: %s\n", part);
    } catch (const Error &error) {
        if (error.code != code || !std::strstr(error.what(), part)) {
            wrong++;
            std::printf("%d %s: expected %d %s\n", error.code, error.what(), code, part);
        }
    }
}

int main(int, char **argv)
{
    std::vector<float> x(4 * 64, 0.5f);
    std::int64_t labels[] = {0, 1, 2, 3};
    const void *inputs[] = {x.data(), labels};
    float loss = 0, again = 0;
    void *outputs[] = {&loss}, *others[] = {&again};
    Model m = Model::create(argv[1]);
    m.train_step(inputs, outputs);
    m.optimizer_step();
    m.lazy_reset_grad();
    EXPECT(loss > 0 && m.get_step() == 1 && m.parameter_count() > 0);
    EXPECT(!std::strcmp(Model::build(), mnist_build()));
    std::vector<unsigned char> kept = m.checkpoint(true);
    Model copy = Model::create_from(kept.data(), kept.size());
    m.train_step(inputs, outputs);
    copy.train_step(inputs, others);
    EXPECT(loss == again);
    Model moved = std::move(copy);
    EXPECT(moved.checkpoint(false) != kept);
    labels[3] = 99;
    expect_error(MNIST_BAD_LABEL, "label 99 at position 3",
                 [&] { moved.train_step(inputs, others); });
    expect_error(MNIST_BAD_INPUT, "is negative", [&] { moved.set_learning_rate(-1); });
    expect_error(MNIST_BAD_FILE, "cannot read '/nowhere'", [] { Model::create("/nowhere"); });
    for (int i = 0; i < 200; i++) /* the sanitizer counts what is not freed */
        expect_error(MNIST_BAD_CHECKPOINT, "checkpoint",
                     [&] { Model::create_from(kept.data(), kept.size() / 2); });
    for (int i = 0; i < 200; i++)
        EXPECT(Model::create_from(kept.data(), kept.size()).is_loaded());
    if (!wrong)
        std::puts("ok");
    return wrong != 0;
}
