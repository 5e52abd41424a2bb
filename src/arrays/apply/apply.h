// A treatment, applied to an array: checks, then one kernel call. The public functions, and
// callers that report errors under another op's name, end up here.
#ifndef SLIMGRAD_ARRAYS_APPLY_APPLY_H_
#define SLIMGRAD_ARRAYS_APPLY_APPLY_H_

#include <cstdint>
#include <span>
#include <string_view>

#include <slimgrad/half.h>
#include <slimgrad/treatment.h>

namespace slimgrad {

// slimgrad::apply() with errors in the name of `op`.
template <typename T>
ApplyCounts apply_as(std::string_view op, const Treatment& treatment, std::span<const T> in,
                     std::span<T> out, std::uint64_t first_index);

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_APPLY_APPLY_H_
