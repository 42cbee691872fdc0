// Training from C++17: a model that ends with its scope, and errors as exceptions.
//
// Each member is the function of @name@.h that has its name after `@name@_`, with the contract that
// the comment there states.  Where that function returns an error code, the member throws Error.
// checkpoint(), parameters() and the like return what a function there writes to a buffer.
//
//     @name@_cpp::Model m = @name@_cpp::Model::create(@plan@"checkpoint");
//     m.train_step(inputs, outputs);
//     m.optimizer_step();
//
// Without exceptions, or without the standard library, as with -fno-exceptions or -ffreestanding,
// it returns an Outcome, and a model replaces an empty one.  Nothing then needs a heap.
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
// An error code of a call, and the message that says what was wrong.
class Error : public std::runtime_error {
  public:
    Error(int number, const char *message) : std::runtime_error(message), code(number) {}
    int code; // of enum @name@_error
};

using Outcome = void;
#else
// The error code of a call: true if it was not refused.
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
