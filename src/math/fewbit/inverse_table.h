// Makes the table of formats/inverse_table.h by inverting the activation in double.
#ifndef SLIMGRAD_MATH_FEWBIT_INVERSE_TABLE_H_
#define SLIMGRAD_MATH_FEWBIT_INVERSE_TABLE_H_

#include <string_view>

#include "formats/inverse_table.h"

namespace slimgrad {

// For "gelu", "gelu_tanh", "silu" and "mish". Some ten milliseconds. Throws InvalidArgument for
// other names. The result is kept for the life of the program; any thread may ask.
const InverseTable& inverse_table(std::string_view activation);

}  // namespace slimgrad

#endif  // SLIMGRAD_MATH_FEWBIT_INVERSE_TABLE_H_
