// The training of firmware.c in C++17, without exceptions, type information, heap and library: with
// refused calls, which return their codes, and a model that is moved.

#define EDGEGRAD_FREESTANDING
#include "mnist.hpp"

#include "checkpoint.h" // static const unsigned char checkpoint[]
#include "firmware.h"

using mnist_cpp::Model;
using mnist_cpp::Outcome;

namespace {

enum { STEPS = 4 };
alignas(64) unsigned char memory[MNIST_MEMORY_BYTES];

void need(bool so, const char *what)
{
    if (!so) {
        say(what);
        stop(1);
    }
}

// Inputs as firmware.c makes them up.
void fill(const mnist_tensor &t, void *to)
{
    for (uint32_t i = 0; t.dtype == MNIST_F32 && i < t.bytes / sizeof(float); i++)
        static_cast<float *>(to)[i] = static_cast<float>(i % 7) / 7;
    for (uint32_t i = 0; t.dtype != MNIST_F32 && i < t.bytes / sizeof(int64_t); i++)
        static_cast<int64_t *>(to)[i] = i % 2;
}

} // namespace

extern "C" void train(void)
{
    char why[MNIST_MESSAGE_BYTES];
    Model empty;
    need(empty.train_step(nullptr, nullptr).code == MNIST_BAD_INPUT, "an empty model\n");
    Outcome refused = Model::create_in(empty, memory, 64, checkpoint, sizeof checkpoint, why);
    need(!refused && refused.code == MNIST_NO_MEMORY && why[0], "too little memory\n");
    Model made;
    Outcome done = Model::create_in(
        made, memory, sizeof memory, checkpoint, sizeof checkpoint, why);
    need(bool(done), why);
    need(made.optimizer_step().code == MNIST_BAD_STATE && made.message()[0], "too early a step\n");
    Model m = static_cast<Model &&>(made);
    need(!made.infer(nullptr, nullptr), "a model that was moved\n");
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < m.input_count(MNIST_TRAIN); i++)
            fill(*m.input_info(MNIST_TRAIN, i), m.input(MNIST_TRAIN, i));
        need(m.train_step(nullptr, nullptr) && m.optimizer_step(), m.message());
        m.lazy_reset_grad();
        say_bits(*static_cast<const float *>(m.output(MNIST_TRAIN, 0)));
    }
    say("done\n");
    stop(0);
}
