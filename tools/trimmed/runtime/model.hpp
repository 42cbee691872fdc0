// Training from C++17: a model that ends with its scope, and errors as exceptions.
//
// Each member calls the function of @name@.h with the same name after `@name@_`, whose comment
// describes it.  If that function returns an error code, the member throws Error.  checkpoint(),
// parameters() and similar members return what the function writes to a buffer.
//
//     @name@_cpp::Model m = @name@_cpp::Model::create(@plan@"checkpoint");
//     m.train_step(inputs, outputs);
//     m.optimizer_step();
//
// With -fno-exceptions or -ffreestanding, a member returns an Outcome instead, and create() fills
// an empty model.  Nothing then needs a heap.
//
//     using @name@_cpp::Model;
//     Model m;
//     char why[@NAME@_MESSAGE_BYTES];
//     if (!Model::create_in(m, memory, sizeof memory, checkpoint, bytes, why)) say(why);
//     if (!m.train_step(inputs, outputs)) say(m.message());
#ifndef @NAME@_HPP
#define @NAME@_HPP

#include "@name@.h"

#if defined(__cpp_exceptions) && __STDC_HOSTED__
#define @NAME@_CPP_THROWS 1
#include <stdexcept>
#include <vector>
#else
#define @NAME@_CPP_THROWS 0
#endif

namespace @name@_cpp {

#if @NAME@_CPP_THROWS
// The error of a refused call: its code and message.
class Error : public std::runtime_error {
  public:
    Error(int number, const char *message) : std::runtime_error(message), code(number) {}
    int code; // of enum @name@_error
};

using Outcome = void;
#else
// The error code of a call; converts to true if the call was not refused.
struct [[nodiscard]] Outcome {
    int code; // of enum @name@_error
    explicit operator bool() const { return code == @NAME@_OK; }
};
#endif

// A model can be moved and not copied.
class Model {
  public:
    // Make an empty model, which refuses calls until another one is moved to it.
    Model() = default;
    Model(Model &&other) noexcept : m(other.m) { other.m = nullptr; }
    Model &operator=(Model &&other) noexcept
    {
        ::@name@ *moved = other.m;
        other.m = nullptr;
        @name@_destroy(m);
        m = moved;
        return *this;
    }
    Model(const Model &) = delete;
    Model &operator=(const Model &) = delete;
    ~Model() { @name@_destroy(m); }

/*@members@*/

  private:
    explicit Model(::@name@ *made) : m(made) {}

    static Outcome check(int code, const char *message)
    {
#if @NAME@_CPP_THROWS
        if (code != @NAME@_OK)
            throw Error(code, message);
#else
        (void)message;
        return {code};
#endif
    }

    ::@name@ *m = nullptr;
};

} // namespace @name@_cpp
#endif
