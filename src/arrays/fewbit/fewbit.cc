#include "arrays/fewbit/fewbit.h"

#include <algorithm>
#include <cmath>

#include <slimgrad/fewbit.h>

#include "base/check.h"
#include "kernels/any_values.h"
#include "kernels/dispatch.h"
#include "kernels/fewbit/invertible.h"
#include "math/fewbit/inverse_table.h"

namespace slimgrad {
namespace {

// 1 to 4 bits for 2, 4, 8 or 16 levels.
int bits_of_levels(std::string_view op, std::size_t num_levels) {
  for (int bits = 1; bits <= fewbit::kMaxBits; ++bits)
    if (num_levels == std::size_t{1} << bits) return bits;
  throw_invalid(op, "2, 4, 8 or 16 levels, one more than borders", num_levels);
}

std::size_t code_words(std::size_t num_values, int bits) {
  return fewbit::packed_bytes(num_values, bits) / 4;
}

// The codes of a range.
template <typename Word>
std::span<Word> words_of(std::span<Word> codes, int bits, FewbitRange range) {
  return codes.subspan(code_words(range.first, bits), code_words(range.count, bits));
}

void check_sizes(std::string_view op, std::size_t num_values, std::size_t num_words, int bits) {
  check(num_words == code_words(num_values, bits), op,
        "num_code_words(values, table) words of codes", num_words, " for ", num_values,
        " values of ", bits, " bits");
}

void check_result(std::string_view op, std::size_t num_values, std::size_t num_results) {
  check(num_results == num_values, op, "as many results as gradients", num_results, " for ",
        num_values);
}

// The table as a whole, whichever half of it is needed.
int bits_of(std::string_view op, const StepTable& table) {
  check(table.borders.size() + 1 == table.levels.size(), op,
        "a table with one more level than borders", table.levels.size(), " levels and ",
        table.borders.size(), " borders");
  return bits_of_levels(op, table.levels.size());
}

template <typename T>
void codes_of_array(std::span<const T> in, const StepTable& table, std::span<std::uint32_t> codes) {
  kernels::obey_environment();
  check_sizes("stepwise_codes", in.size(), codes.size(), bits_of("stepwise_codes", table));
  const auto steps = lookup_of_borders("stepwise_codes", table.borders, table.even);
  pack_codes(in, steps, codes, {0, in.size()});
}

template <typename T>
void stepwise_array(std::span<const T> gradient, std::span<const std::uint32_t> codes,
                    const StepTable& table, std::span<T> result) {
  kernels::obey_environment();
  constexpr std::string_view kOp = "stepwise_backward";
  check_sizes(kOp, gradient.size(), codes.size(), bits_of(kOp, table));
  check_result(kOp, gradient.size(), result.size());
  multiply_levels(gradient, codes, lookup_of_levels(kOp, table.levels), result,
                  {0, gradient.size()});
}

template <typename T>
void invertible_array(std::span<const T> gradient, std::span<const T> output,
                      std::span<const std::uint32_t> codes, std::string_view activation,
                      std::span<T> result) {
  kernels::obey_environment();
  constexpr std::string_view kOp = "invertible_backward";
  check(output.size() == gradient.size(), kOp, "as many outputs as gradients", output.size(),
        " for ", gradient.size());
  check_sizes(kOp, gradient.size(), codes.size(), 1);
  check_result(kOp, gradient.size(), result.size());
  multiply_slopes(gradient, output, codes, inverse_table(activation), result, {0, gradient.size()});
}

}  // namespace

kernels::StepLookup lookup_of_borders(std::string_view op, std::span<const double> borders,
                                      bool even) {
  kernels::StepLookup steps{.bits = bits_of_levels(op, borders.size() + 1), .is_even = even};
  for (std::size_t i = 0; i < borders.size(); ++i) {
    check(!std::isnan(borders[i]) && (i == 0 || borders[i - 1] <= borders[i]), op,
          "borders in ascending order", borders[i], " as border ", i);
    steps.borders[i] = static_cast<float>(borders[i]);
  }
  return steps;
}

kernels::StepLookup lookup_of_levels(std::string_view op, std::span<const double> levels) {
  kernels::StepLookup steps{.bits = bits_of_levels(op, levels.size())};
  std::ranges::transform(levels, steps.levels,
                         [](double level) { return static_cast<float>(level); });
  return steps;
}

template <typename T>
void pack_codes(std::span<const T> values, const kernels::StepLookup& steps,
                std::span<std::uint32_t> codes, FewbitRange range) {
  kernels::pack_codes<T>(values.subspan(range.first, range.count), steps,
                         words_of(codes, steps.bits, range));
}

template <typename T>
void multiply_levels(std::span<const T> gradient, std::span<const std::uint32_t> codes,
                     const kernels::StepLookup& steps, std::span<T> result, FewbitRange range) {
  kernels::multiply_levels<T>(gradient.subspan(range.first, range.count),
                              words_of(codes, steps.bits, range), steps,
                              result.subspan(range.first, range.count));
}

template <typename T>
void multiply_slopes(std::span<const T> gradient, std::span<const T> outputs,
                     std::span<const std::uint32_t> codes, const InverseTable& table,
                     std::span<T> result, FewbitRange range) {
  kernels::multiply_slopes<T>(gradient.subspan(range.first, range.count),
                              outputs.subspan(range.first, range.count), words_of(codes, 1, range),
                              table, result.subspan(range.first, range.count));
}

std::size_t num_code_words(std::size_t num_values, const StepTable& table) {
  return code_words(num_values, bits_of("num_code_words", table));
}

StepTable side_of_minimum(std::string_view activation) {
  return {.borders = {inverse_table(activation).minimizer}, .levels = {0, 1}};
}

#define SLIMGRAD_INSTANTIATE(T)                                                                    \
  template void pack_codes(std::span<const T>, const kernels::StepLookup&,                         \
                           std::span<std::uint32_t>, FewbitRange);                                 \
  template void multiply_levels(std::span<const T>, std::span<const std::uint32_t>,                \
                                const kernels::StepLookup&, std::span<T>, FewbitRange);            \
  template void multiply_slopes(std::span<const T>, std::span<const T>,                            \
                                std::span<const std::uint32_t>, const InverseTable&, std::span<T>, \
                                FewbitRange);                                                      \
  void stepwise_codes(std::span<const T> in, const StepTable& table,                               \
                      std::span<std::uint32_t> codes) {                                            \
    codes_of_array(in, table, codes);                                                              \
  }                                                                                                \
  void stepwise_backward(std::span<const T> gradient, std::span<const std::uint32_t> codes,        \
                         const StepTable& table, std::span<T> result) {                            \
    stepwise_array(gradient, codes, table, result);                                                \
  }                                                                                                \
  void invertible_backward(std::span<const T> gradient, std::span<const T> output,                 \
                           std::span<const std::uint32_t> codes, std::string_view activation,      \
                           std::span<T> result) {                                                  \
    invertible_array(gradient, output, codes, activation, result);                                 \
  }
SLIMGRAD_FOR_ELEMENT_TYPES(SLIMGRAD_INSTANTIATE)
#undef SLIMGRAD_INSTANTIATE

}  // namespace slimgrad
