// What every binding is put through, in C++: drill CHECKPOINT STEPS OUT SESSIONS.

#include "mnist.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>

using mnist_cpp::Error;
using mnist_cpp::Model;
using Bytes = std::vector<unsigned char>;

namespace {

const char *NAMES[] = {"OK",       "BAD_INPUT", "BAD_LABEL", "BAD_CHECKPOINT", "BAD_FILE",
                       "BAD_STATE", "NO_MEMORY", "NO_NAME",   "BAD_PLAN",       "BAD_CPU"};

struct Step {
    float rate;
    std::vector<float> x;
    std::vector<std::int64_t> y;

    std::vector<const void *> inputs() const { return {x.data(), y.data()}; }
};

struct Steps {
    Bytes content;
    std::size_t samples, labels;

    Step read(std::size_t k) const
    {
        const unsigned char *at = content.data() + k * (4 + 4 * samples + 8 * labels);
        Step step{0, std::vector<float>(samples), std::vector<std::int64_t>(labels)};
        std::memcpy(&step.rate, at, 4);
        std::memcpy(step.x.data(), at + 4, 4 * samples);
        std::memcpy(step.y.data(), at + 4 + 4 * samples, 8 * labels);
        return step;
    }

    int train(Model &model, std::size_t k) const
    {
        const Step step = read(k);
        model.set_learning_rate(step.rate);
        float loss = 0;
        void *outputs[] = {&loss};
        model.train_step(step.inputs().data(), outputs);
        if (!model.is_joined() && k != 3) { // the fifth step adds to the gradients of the fourth
            model.optimizer_step();
            model.lazy_reset_grad();
        }
        return bits(loss);
    }

    static int bits(float value)
    {
        int made;
        std::memcpy(&made, &value, sizeof made);
        return made;
    }
};

Bytes read_file(const char *path)
{
    std::ifstream file(path, std::ios::binary);
    return Bytes(std::istreambuf_iterator<char>(file), {});
}

std::size_t count(const mnist_tensor *info)
{
    std::size_t whole = 1;
    for (int k = 0; k < info->rank; k++)
        whole *= static_cast<std::size_t>(info->dims[k]);
    return whole;
}

const char *say(bool fact) { return fact ? "true" : "false"; }

template <typename Call> void refuse(Call call)
{
    try {
        call();
        std::puts("not refused");
    } catch (const Error &error) {
        std::printf("refused %s: %s\n", NAMES[error.code], error.what());
    }
}

long resident()
{
    long whole, pages;
    std::ifstream("/proc/self/statm") >> whole >> pages;
    return pages * 4096;
}

} // namespace

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    Model model = Model::create(argv[1]);
    const Steps steps{read_file(argv[2]), count(model.input_info(MNIST_TRAIN, 0)),
                      count(model.input_info(MNIST_TRAIN, 1))};
    for (std::size_t k = 0; k < 9; k++)
        std::printf("loss %d\n", steps.train(model, k));
    Step last = steps.read(9);
    float loss = 0;
    void *outputs[] = {&loss};
    model.eval_step(last.inputs().data(), outputs);
    std::printf("eval %d\n", Steps::bits(loss));
    model.infer(last.inputs().data(), nullptr);
    std::printf("predicted %d\n", static_cast<int>(count(model.output_info(MNIST_INFER, 0))));
    model.set_property_string("note", "gr\xc3\xbc\xc3\x9f");
    model.set_property_int("count", 9007199254740993);
    const char *text;
    std::int64_t whole;
    model.get_property(1, nullptr, nullptr, nullptr, nullptr, &text);
    model.get_property(0, nullptr, nullptr, &whole, nullptr, nullptr);
    std::printf("property %s %s\n", text, std::to_string(whole).c_str());

    const Bytes before = model.checkpoint(true);
    const Step wrong{0, last.x, std::vector<std::int64_t>(steps.labels, 10)};
    const float one = 0;
    refuse([&] { model.train_step(wrong.inputs().data(), nullptr); });
    refuse([&] { model.set_learning_rate(std::numeric_limits<float>::quiet_NaN()); });
    refuse([&] { model.set_parameters(&one, 1, 1); });
    refuse([&] { Model::create_from(before.data(), before.size() / 2); });
    refuse([&] { Model::create("missing"); });
    std::printf("unchanged %s\n", say(before == model.checkpoint(true)));

    Model resumed = Model::create_from(before.data(), before.size());
    refuse([&] { resumed.optimizer_step(); });
    std::printf("round trip %s\n", say(before == resumed.checkpoint(true)));
    model.save(argv[3], 1);
    Model opened = Model::create(argv[3]);
    const int now = steps.train(model, 9);
    std::printf("loss %d\n", now);
    const bool alike = steps.train(resumed, 9) == now && steps.train(opened, 9) == now;
    std::printf("alike %s\n", say(alike));
    model.save(argv[3], 1);
    const std::vector<float> values = model.parameters(1);
    resumed.set_parameters(values.data(), values.size(), 1);
    const bool same = values == resumed.parameters(1);
    std::printf("parameters %d %s\n", static_cast<int>(values.size()), say(same));
    refuse([&] { model.parameters_f64(1); });
    const Bytes exported = model.export_model();
    std::ofstream(argv[3] + std::string(".onnx"), std::ios::binary)
        .write(reinterpret_cast<const char *>(exported.data()), static_cast<long>(exported.size()));
    model.set_step(10);
    model.set_linear_rate(0.5f, 20, 40);
    std::printf("rate %g\n", static_cast<double>(model.get_learning_rate()));

    const int sessions = std::stoi(argv[4]);
    long first = 0;
    for (int k = 0; k < sessions; k++) {
        Model::create_from(before.data(), before.size());
        first = k == sessions / 2 ? resident() : first;
    }
    std::printf("grown %ld\n", std::max(0l, resident() - first) >> 20);
    return 0;
}
