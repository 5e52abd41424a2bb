// Exceptions of the exchange, for methods of classes that Python holds. A mark in front of the text
// tells the Python package which of its own to raise.
#ifndef SLIMGRAD_RUNTIME_EXCHANGE_PYTHON_ERRORS_H_
#define SLIMGRAD_RUNTIME_EXCHANGE_PYTHON_ERRORS_H_

#include <c10/util/Exception.h>

#include <string>

#include <slimgrad/exchange.h>
#include <slimgrad/stages.h>

#include "torch/errors.h"

namespace slimgrad::exchange {

// call(), with exceptions that Python knows.
template <typename Call>
auto in_python(const Call& call) {
  try {
    return torch_ops::value_errors(call);
  } catch (const ExchangeError& error) {
    C10_THROW_ERROR(Error, std::string("ExchangeError: ") + error.what());
  } catch (const BoundaryError& error) {
    C10_THROW_ERROR(Error, std::string("BoundaryError: ") + error.what());
  }
}

}  // namespace slimgrad::exchange

#endif  // SLIMGRAD_RUNTIME_EXCHANGE_PYTHON_ERRORS_H_
