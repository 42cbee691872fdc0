// Continues a text with the class of C++: tokens CHECKPOINT SCORES, as tokens.c does.

#include "mnist.hpp"

#include <cstdio>
#include <vector>

namespace {
std::FILE *file;

void append(mnist_cpp::Model &model, const std::vector<std::int32_t> &tokens)
{
    model.append(tokens.data(), tokens.size());
    std::fwrite(model.scores(), 1, model.scores_info()->bytes, file);
}

template <typename Call> void refuse(Call call)
{
    try {
        call();
        std::puts("not refused");
    } catch (const mnist_cpp::Error &error) {
        const char *name = error.code == MNIST_BAD_LABEL ? "BAD_LABEL" : "BAD_INPUT";
        std::printf("refused %s: %s\n", name, error.what());
    }
}
} // namespace

int main(int argc, char **argv)
{
    file = argc == 3 ? std::fopen(argv[2], "wb") : nullptr;
    if (!file)
        return 2;
    auto model = mnist_cpp::Model::create(argv[1]);
    append(model, {5, 7, 9, 11, 13});
    for (std::int32_t token = 3; token < 13; token++)
        append(model, {token});
    const std::vector<std::int32_t> many(26), bad{100};
    refuse([&] { model.append(bad.data(), 1); });
    refuse([&] { model.append(many.data(), 26); });
    refuse([&] { model.append(nullptr, 0); });
    refuse([&] { model.truncate(16); });
    std::printf("length %d of %d\n", static_cast<int>(model.get_length()),
                static_cast<int>(model.get_capacity()));
    model.truncate(7);
    std::printf("forgotten %s\n", model.scores() ? "false" : "true");
    append(model, {8});
    std::fclose(file);
    return 0;
}
