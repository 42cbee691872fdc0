// Training from C++17: a model that ends with its scope, and errors as exceptions.
//
// Each member is the function of @name@.h that has its name after `@name@_`, with the contract that
// the comment there states.  Where that function returns an error code, the member throws Error.
//
//     @name@_cpp::Model m = @name@_cpp::Model::create(@plan@"checkpoint");
//     m.train_step(inputs, outputs);
//     m.optimizer_step();
#ifndef @NAME@_HPP
#define @NAME@_HPP

#include "@name@.h"

#include <memory>
#include <stdexcept>
#include <vector>

namespace @name@_cpp {

// An error code of a call, and the message that says what was wrong.
class Error : public std::runtime_error {
  public:
    Error(int number, const char *message) : std::runtime_error(message), code(number) {}
    int code; // of enum @name@_error
};

// A model can be moved and not copied.
class Model {
  public:
/*@members@*/

#if @NAME@_TRAINS
    // The content of a checkpoint file.
    std::vector<unsigned char> checkpoint(bool include_optimizer_state)
    {
        std::vector<unsigned char> bytes(checkpoint_size(include_optimizer_state));
        save_to(bytes.data(), bytes.size(), include_optimizer_state);
        return bytes;
    }
#endif

  private:
    struct Destroy {
        void operator()(::@name@ *made) const { @name@_destroy(made); }
    };

    explicit Model(::@name@ *made) : m(made) {}

    static void check(int code, const char *message)
    {
        if (code != @NAME@_OK)
            throw Error(code, message);
    }

    std::unique_ptr<::@name@, Destroy> m;
};

} // namespace @name@_cpp
#endif
