// Every member in C++ with values that nobody should pass: walk CHECKPOINT CALLS ROUNDS.
#include "mnist.hpp"
#include "walk.h"

#include <map>
#include <string>
#include <utility>

using mnist_cpp::Error;
using mnist_cpp::Model;

namespace {

using Call = void (*)(Model &m, char **w);

const std::map<std::string, Call> calls = {
/*@rows@*/
};

void make(row &row, Model &m)
{
    try {
        calls.at(row.name)(m, row.words);
    } catch (const Error &error) {
        tell_error(error.code, error.what());
    }
    drop_blocks();
}

/* All that a checkpoint holds: a refused call leaves it as it was. */
auto keep(Model &m)
{
#if MNIST_TRAINS
    auto kept = m.checkpoint(1);
#else
    auto kept = m.parameters(0);
#endif
#if MNIST_DECODES
    kept.push_back(static_cast<decltype(kept)::value_type>(m.get_length()));
#endif
    return kept;
}

} // namespace

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    const char *path = std::string(argv[1]) == "-" ? nullptr : argv[1]; // values of its own
    Model live = Model::create(path), bare = Model::create_from(nullptr, 0), ended;
    ended = Model::create(path);
    const Model moved = std::move(ended);
    const int count = read_rows(argv[2], rows);
    const auto find = [&](const row &row) -> Model & {
        return row.state[0] == 'l' ? live : row.state[0] == 'b' ? bare : ended;
    };
    for (int i = 0; i < count; i++) {
        const auto before = keep(live);
        make(rows[i], find(rows[i]));
        const bool is_same = before == keep(live);
        std::printf("%d %s%s\n", i, said, said[0] == 'o' || is_same ? "" : " changed");
    }
    long first = 0;
    const int rounds = std::stoi(argv[3]);
    for (int turn = 0; turn < rounds; turn++) {
        for (int i = 0; i < count; i++)
            make(rows[i], find(rows[i]));
        first = turn == rounds / 2 ? read_resident() : first;
    }
    std::printf("grown %ld\n", (read_resident() - first) >> 20);
    live = Model();
    live = Model(); // a second end
    return 0;
}
