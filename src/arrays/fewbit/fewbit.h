// The functions of <slimgrad/fewbit.h> for callers with threads of their own: the table is made
// ready once, and each call works on some blocks of the array.
#ifndef SLIMGRAD_ARRAYS_FEWBIT_FEWBIT_H_
#define SLIMGRAD_ARRAYS_FEWBIT_FEWBIT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include <slimgrad/half.h>

#include "formats/fewbit.h"
#include "formats/inverse_table.h"
#include "kernels/fewbit/fewbit.h"

namespace slimgrad {

// The borders of a table, for codes. Throws InvalidArgument, in the name of `op`, unless there are
// 1, 3, 7 or 15, ascending and without NaN.
kernels::StepLookup lookup_of_borders(std::string_view op, std::span<const double> borders,
                                      bool even);
// The levels of a table, for a backward pass. Throws unless there are 2, 4, 8 or 16.
kernels::StepLookup lookup_of_levels(std::string_view op, std::span<const double> levels);

// Values from `first` on, a multiple of fewbit::kBlockValues. `count` is one too, or ends the
// array.
struct FewbitRange {
  std::size_t first, count;
};

// The spans are those of the whole array. REQUIRES: as in kernels/fewbit.
template <typename T>
void pack_codes(std::span<const T> values, const kernels::StepLookup& steps,
                std::span<std::uint32_t> codes, FewbitRange range);
template <typename T>
void multiply_levels(std::span<const T> gradient, std::span<const std::uint32_t> codes,
                     const kernels::StepLookup& steps, std::span<T> result, FewbitRange range);
template <typename T>
void multiply_slopes(std::span<const T> gradient, std::span<const T> outputs,
                     std::span<const std::uint32_t> codes, const InverseTable& table,
                     std::span<T> result, FewbitRange range);

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_FEWBIT_FEWBIT_H_
