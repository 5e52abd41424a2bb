// What slimgrad throws. Misuse is an InvalidArgument whose text reads "[op] expected X, got Y", so
// that a user sees which call, which argument, what would have been right and what came. In Python
// it is a ValueError. The library never prints and never aborts.
#ifndef SLIMGRAD_ERROR_H_
#define SLIMGRAD_ERROR_H_

#include <stdexcept>
#include <string>

namespace slimgrad {

class InvalidArgument : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

}  // namespace slimgrad

#endif  // SLIMGRAD_ERROR_H_
