// The same program as example.c in C++17, using @name@.hpp.
//
//     c++ -std=c++17 example.cpp -I.. -L.. -l@name@ -o example
//     LD_LIBRARY_PATH=.. ./example [../checkpoint [out]]

#include "@name@.hpp"

//@if append@
#include <algorithm>
//@end@
#include <cstdint>
//@if infer !train_step@
#include <cstring>
//@end@
#include <iostream>
//@if train_step or infer@
#include <random>
//@end@
#include <string>
//@if train_step or infer@
#include <vector>
//@end@

namespace {

//@if append@
// Continue a text: append the token with the largest score, again and again.
void continue_text(@name@_cpp::Model &m)
{
    std::int32_t token = 0;
    std::cout << "text:";
    for (int k = 0; k < 10 && m.get_length() < m.get_capacity(); k++) {
        std::cout << ' ' << token;
        m.append(&token, 1);
        const auto *scores = static_cast<const float *>(m.scores());
        const auto *end = scores + m.scores_info()->bytes / sizeof(float);
        token = static_cast<std::int32_t>(std::max_element(scores, end) - scores);
    }
    std::cout << '\n';
}

//@end@
//@if train_step or infer@
// Make up the bytes of a batch for one input; a real program reads its data here.
std::vector<unsigned char> batch(const @name@_tensor &t, std::mt19937 &random)
{
    std::vector<unsigned char> bytes(t.bytes);
    std::uniform_real_distribution<float> pixel(0.0f, 1.0f);
    std::size_t count = 1;
    for (int axis = 0; axis < t.rank; axis++)
        count *= static_cast<std::size_t>(t.dims[axis]);
    for (std::size_t i = 0; i < count; i++) {
        if (t.dtype == @NAME@_F32)
            reinterpret_cast<float *>(bytes.data())[i] = pixel(random);
        else if (t.dtype == @NAME@_F64)
            reinterpret_cast<double *>(bytes.data())[i] = pixel(random);
        else // the lowest byte of an integer, in little-endian order
            bytes[i * (t.bytes / count)] = static_cast<unsigned char>(random() % 2);
    }
    return bytes;
}

//@end@
//@if train_step@
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
        m.train_step(inputs.data(), nullptr);
        const void *value = m.output(@NAME@_TRAIN, 0);
        const bool is_double = m.output_info(@NAME@_TRAIN, 0)->dtype == @NAME@_F64;
        const double loss = is_double ? *static_cast<const double *>(value)
                                      : *static_cast<const float *>(value);
        if (!m.is_joined())
            m.optimizer_step();
        m.lazy_reset_grad();
        std::cout << "step " << step << ": loss " << loss << '\n';
    }
    m.save(to.c_str(), 1);
//@if append@
    continue_text(m);
//@end@
}

//@end@
//@if !train_step@
void answer(const char *from)
{
    auto m = @name@_cpp::Model::create(from);
//@if infer@
    std::mt19937 random(1);
    for (int i = 0; i < m.input_count(@NAME@_INFER); i++) {
        const auto data = batch(*m.input_info(@NAME@_INFER, i), random);
        std::memcpy(m.input(@NAME@_INFER, i), data.data(), data.size());
    }
    m.infer(nullptr, nullptr);
    for (int i = 0; i < m.output_count(@NAME@_INFER); i++) {
        const auto *values = static_cast<const float *>(m.output(@NAME@_INFER, i));
        if (m.output_info(@NAME@_INFER, i)->dtype == @NAME@_F32)
            std::cout << m.output_info(@NAME@_INFER, i)->name << ": " << values[0] << ' '
                      << values[1] << " ...\n";
    }
//@end@
//@if append@
    continue_text(m);
//@end@
}

//@end@
} // namespace

int main(int argc, char **argv)
{
//@if train_step@
    if (argc != 3) {
        std::cerr << "usage: " << argv[0] << " CHECKPOINT NEW_CHECKPOINT\n";
        return 2;
    }
    try {
        train(argv[1], argv[2]);
//@end@
//@if !train_step@
    try {
        answer(argc > 1 ? argv[1] : nullptr);
//@end@
    } catch (const @name@_cpp::Error &error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
    return 0;
}
