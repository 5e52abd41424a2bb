// Carries slimgrad's exceptions across the dispatcher: a C++ exception that torch does not know
// becomes a RuntimeError in Python, but misuse should be a ValueError. So should damaged bytes; the
// mark in front of their text tells the Python package to raise its PayloadError.
#ifndef SLIMGRAD_TORCH_ERRORS_H_
#define SLIMGRAD_TORCH_ERRORS_H_

#include <c10/util/Exception.h>

#include <string>
#include <utility>

#include <slimgrad/error.h>

namespace slimgrad::torch_ops {

inline constexpr char kPayloadErrorMark[] = "PayloadError: ";

// call(), with c10::ValueError for InvalidArgument and PayloadError.
template <typename Call>
auto value_errors(const Call& call) {
  try {
    return call();
  } catch (const InvalidArgument& error) {
    C10_THROW_ERROR(ValueError, error.what());
  } catch (const PayloadError& error) {
    C10_THROW_ERROR(ValueError, std::string(kPayloadErrorMark) + error.what());
  }
}

// ValueErrors<&f>::call is f with the same.
template <auto function>
struct ValueErrors;

template <typename Result, typename... Args, Result (*function)(Args...)>
struct ValueErrors<function> {
  static Result call(Args... args) {
    return value_errors([&] { return function(std::forward<Args>(args)...); });
  }
};

// The way back, for functions of C++ that call an op: call(), with InvalidArgument for ValueError.
template <typename Call>
auto invalid_arguments(const Call& call) {
  try {
    return call();
  } catch (const c10::ValueError& error) {
    throw InvalidArgument(error.what_without_backtrace());
  }
}

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_ERRORS_H_
