// How a kernel for the three element types passes Highway's run-time dispatch. Its tables hold
// plain functions, not templates: the arrays go through as a pointer that knows its type, and the
// function for the chosen target asks for the type once a call.
#ifndef SLIMGRAD_KERNELS_ANY_VALUES_H_
#define SLIMGRAD_KERNELS_ANY_VALUES_H_

#include <variant>

#include <slimgrad/half.h>

namespace slimgrad::kernels {

using AnyValues = std::variant<const float*, const BFloat16Bits*, const Float16Bits*>;

}  // namespace slimgrad::kernels

// X(T) for every element type.
#define SLIMGRAD_FOR_ELEMENT_TYPES(X) X(float) X(BFloat16Bits) X(Float16Bits)

#endif  // SLIMGRAD_KERNELS_ANY_VALUES_H_
