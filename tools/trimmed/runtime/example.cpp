// Training from C++17 by @name@.hpp: the same as example.c.
//
//     c++ -std=c++17 example.cpp -I.. -L.. -l@name@ -o example
//     LD_LIBRARY_PATH=.. ./example ../checkpoint out

#include "@name@.hpp"

#include <cstdint>
#include <iostream>
#include <random>
#include <string>
#include <vector>

namespace {

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
    auto m = @name@_cpp::Model::create(from.c_str());
    std::mt19937 random(1);
    m.set_learning_rate(0.01f);
    for (int step = 1; step <= 20; step++) {
        std::vector<std::vector<unsigned char>> data;
        std::vector<const void *> inputs;
        for (int i = 0; i < m.input_count(@NAME@_TRAIN); i++) {
            data.push_back(batch(*m.input_info(@NAME@_TRAIN, i), random));
            inputs.push_back(data.back().data());
        }
        float loss = 0;
        std::vector<void *> outputs(m.output_count(@NAME@_TRAIN));
        outputs.at(0) = &loss;
        m.train_step(inputs.data(), outputs.data());
        if (!m.is_joined())
            m.optimizer_step();
        m.lazy_reset_grad();
        std::cout << "step " << step << ": loss " << loss << '\n';
    }
    m.save(to.c_str(), 1);
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
    } catch (const @name@_cpp::Error &error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
    return 0;
}
