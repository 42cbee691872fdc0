// Training from C++: the same as example.c, with the model owned by a smart pointer.
//
//     c++ example.cpp -I.. -L.. -l@name@ -o example
//     LD_LIBRARY_PATH=.. ./example ../checkpoint out

#include "@name@.h"

#include <array>
#include <iostream>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

struct Destroy {
    void operator()(@name@ *m) const { @name@_destroy(m); }
};
using Model = std::unique_ptr<@name@, Destroy>;

Model open(const std::string &path)
{
    std::array<char, @NAME@_MESSAGE_BYTES> why{};
    @name@ *made = nullptr;
    if (@name@_create(&made, path.c_str(), why.data()) != @NAME@_OK)
        throw std::runtime_error(why.data());
    return Model(made);
}

void check(const Model &m, int code)
{
    if (code != @NAME@_OK)
        throw std::runtime_error(@name@_message(m.get()));
}

// Bytes of a batch for one input; a program would read its own here.
std::vector<unsigned char> batch(const @name@_tensor &t, std::mt19937 &random)
{
    std::vector<unsigned char> bytes(t.bytes);
    std::uniform_real_distribution<float> pixel(0.0f, 1.0f);
    if (t.dtype == @NAME@_F32)
        for (std::size_t i = 0; i < t.bytes / sizeof(float); i++)
            reinterpret_cast<float *>(bytes.data())[i] = pixel(random);
    if (t.dtype == @NAME@_I64)
        for (std::size_t i = 0; i < t.bytes / sizeof(std::int64_t); i++)
            reinterpret_cast<std::int64_t *>(bytes.data())[i] = random() % 2;
    return bytes;
}

void train(const std::string &from, const std::string &to)
{
    Model m = open(from);
    std::mt19937 random(1);
    check(m, @name@_set_learning_rate(m.get(), 0.01f));
    for (int step = 1; step <= 20; step++) {
        std::vector<std::vector<unsigned char>> data;
        std::vector<const void *> inputs;
        for (int i = 0; i < @name@_input_count(m.get(), @NAME@_TRAIN); i++) {
            data.push_back(batch(*@name@_input_info(m.get(), @NAME@_TRAIN, i), random));
            inputs.push_back(data.back().data());
        }
        float loss = 0;
        std::vector<void *> outputs(@name@_output_count(m.get(), @NAME@_TRAIN));
        outputs.at(0) = &loss;
        check(m, @name@_train_step(m.get(), inputs.data(), outputs.data()));
        if (!@name@_is_joined(m.get()))
            check(m, @name@_optimizer_step(m.get()));
        @name@_lazy_reset_grad(m.get());
        std::cout << "step " << step << ": loss " << loss << '\n';
    }
    check(m, @name@_save(m.get(), to.c_str(), 1));
}

} // namespace

int main(int argc, char **argv)
{
    if (argc != 3) {
        std::cerr << "usage: " << argv[0] << " CHECKPOINT NEW_CHECKPOINT\n";
        return 2;
    }
    try {
        train(argv[1], argv[2]);
    } catch (const std::exception &error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
    return 0;
}
