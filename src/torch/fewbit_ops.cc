// The few-bit ops below autograd: forward with codes, codes alone, and the gradient from codes.
//
// Codes follow the storage order of a dense tensor: contiguous, channels-last, transposed. Whatever
// has holes or overlaps is first copied into the layout that torch gives the result.
#include "torch/fewbit_ops.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/check.h"
#include "formats/fewbit.h"
#include "kernels/dispatch.h"
#include "torch/activation.h"
#include "torch/checks.h"
#include "torch/errors.h"

namespace slimgrad::torch_ops {
namespace {

// Runs f(T()) with the kernels' type for a dtype.
template <typename F>
auto with_type(const at::Tensor& x, F&& f) {
  switch (x.scalar_type()) {
    case at::kBFloat16:
      return f(BFloat16Bits());
    case at::kHalf:
      return f(Float16Bits());
    default:
      return f(float());
  }
}

template <typename T>
std::span<const T> values_of(const at::Tensor& dense) {
  return {static_cast<const T*>(dense.const_data_ptr()), static_cast<std::size_t>(dense.numel())};
}
template <typename T>
std::span<T> mutable_values_of(const at::Tensor& dense) {
  return {static_cast<T*>(dense.mutable_data_ptr()), static_cast<std::size_t>(dense.numel())};
}

at::Tensor empty_codes(const at::Tensor& x, int bits) {
  return at::empty_symint({num_code_words(x.sym_numel(), bits)}, x.options().dtype(at::kInt));
}

std::span<std::uint32_t> words_of(const at::Tensor& codes) {
  return {static_cast<std::uint32_t*>(codes.mutable_data_ptr()),
          static_cast<std::size_t>(codes.numel())};
}

// Codes of the blocks [first, last) of a dense array.
template <typename T>
void pack_range(std::span<const T> values, const kernels::StepLookup& steps,
                std::span<std::uint32_t> words, std::size_t first, std::size_t last) {
  if (first >= last) return;
  const std::size_t begin = first * fewbit::kBlockValues;
  const std::size_t end = std::min(last * fewbit::kBlockValues, values.size());
  const std::size_t block_words = fewbit::block_words(steps.bits);
  kernels::pack_codes<T>(values.subspan(begin, end - begin), steps,
                         words.subspan(first * block_words, (last - first) * block_words));
}

constexpr std::int64_t kGrainBlocks = 64;  // 32 Ki elements a thread are worth waking it up

void pack_dense(const at::Tensor& x, const kernels::StepLookup& steps, const at::Tensor& codes) {
  with_type(x, [&]<typename T>(T) {
    const auto values = values_of<T>(x);
    const auto words = words_of(codes);
    at::parallel_for(0, static_cast<std::int64_t>(fewbit::num_blocks(values.size())), kGrainBlocks,
                     [&](std::int64_t first, std::int64_t last) {
                       pack_range(values, steps, words, static_cast<std::size_t>(first),
                                  static_cast<std::size_t>(last));
                     });
  });
}

at::Tensor dense_like_result(const at::Tensor& x) {
  return x.is_non_overlapping_and_dense() ? x : at::empty_like(x).copy_(x);
}

// ---- forward and codes in one pass through memory ----------------------------------------------

// How torch splits n elements over threads (at::parallel_for with TensorIterator's grain). It
// matters to the last bit: torch computes the few elements that do not fill a vector at the end of
// each thread's part with scalar functions, which may round otherwise than the vector ones.
std::vector<std::int64_t> torch_parts(std::int64_t num_values) {
  std::int64_t num_threads = 1;
  if (num_values > at::internal::GRAIN_SIZE && !at::in_parallel_region())
    num_threads = std::min<std::int64_t>(at::get_num_threads(),
                                         at::divup(num_values, at::internal::GRAIN_SIZE));
  const std::int64_t part = at::divup(num_values, num_threads);
  std::vector<std::int64_t> bounds;
  for (std::int64_t begin = 0; begin < num_values; begin += part) bounds.push_back(begin);
  bounds.push_back(num_values);
  return bounds;
}

// A slice stays in a cache between coding and forward: 256 KiB of float32. Much smaller ones would
// pay for the set-up of the op, some ten microseconds for oneDNN. A multiple of
// every vector length, so that only the end of a part has a scalar rest, as in torch.
constexpr std::int64_t kSliceValues = 64 * 1024;

at::Tensor slice_of(const at::Tensor& dense, std::int64_t begin, std::int64_t end) {
  char* data = static_cast<char*>(dense.data_ptr());
  return at::from_blob(data + begin * static_cast<std::int64_t>(dense.element_size()),
                       {end - begin}, dense.options());
}

// One thread's part. Codes run ahead of the forward pass, which may overwrite x: before a slice is
// computed, all blocks that begin in it are coded. The first and the last block are the caller's if
// the part cuts them.
template <typename T>
void forward_part(const Activation& activation, const at::Tensor& x, const at::Tensor& y,
                  const kernels::StepLookup& steps, std::span<std::uint32_t> words,
                  std::int64_t begin, std::int64_t end) {
  // Neither autograd's state nor its exclusion reaches the threads of a parallel region.
  c10::impl::ExcludeDispatchKeyGuard below_autograd(
      c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  const auto values = values_of<T>(x);
  const auto num_whole = static_cast<std::size_t>(end) / fewbit::kBlockValues;
  const bool is_last = static_cast<std::size_t>(end) == values.size();
  const std::size_t last_block = is_last ? fewbit::num_blocks(values.size()) : num_whole;
  std::size_t coded = fewbit::num_blocks(static_cast<std::size_t>(begin));
  for (std::int64_t slice = begin; slice < end; slice += kSliceValues) {
    const std::int64_t slice_end = std::min(slice + kSliceValues, end);
    const std::size_t until =
        std::min(fewbit::num_blocks(static_cast<std::size_t>(slice_end)), last_block);
    pack_range(values, steps, words, coded, until);
    coded = std::max(coded, until);
    at::Tensor out = slice_of(y, slice, slice_end);
    activation.apply(x.is_same(y) ? out : slice_of(x, slice, slice_end), out);
  }
}

// REQUIRES: x and y are dense with equal strides, and y may be x.
void forward_dense(const Activation& activation, const at::Tensor& x, const at::Tensor& y,
                   const kernels::StepLookup& steps, const at::Tensor& codes) {
  const std::vector<std::int64_t> bounds = torch_parts(x.numel());
  with_type(x, [&]<typename T>(T) {
    const auto words = words_of(codes);
    // Blocks that a boundary between parts cuts.
    for (std::size_t i = 1; i + 1 < bounds.size(); ++i) {
      const auto bound = static_cast<std::size_t>(bounds[i]);
      if (bound % fewbit::kBlockValues != 0)
        pack_range(values_of<T>(x), steps, words, bound / fewbit::kBlockValues,
                   bound / fewbit::kBlockValues + 1);
    }
    at::parallel_for(0, static_cast<std::int64_t>(bounds.size()) - 1, 1,
                     [&](std::int64_t first, std::int64_t last) {
                       for (std::int64_t i = first; i < last; ++i) {
                         const auto part = static_cast<std::size_t>(i);
                         forward_part<T>(activation, x, y, steps, words, bounds[part],
                                         bounds[part + 1]);
                       }
                     });
  });
}

constexpr const char* kForward = "fewbit_forward";

std::tuple<at::Tensor, at::Tensor> fewbit_forward(const at::Tensor& x, std::string_view name,
                                                  at::ArrayRef<double> params,
                                                  at::ArrayRef<double> borders, bool even) {
  kernels::obey_environment();
  check_float_dtype(x, kForward);
  const Activation activation(kForward, name, params);
  const kernels::StepLookup steps = lookup_of_borders(kForward, borders, even);
  at::Tensor y = at::empty_like(x);
  at::Tensor codes = empty_codes(x, steps.bits);
  if (x.is_non_overlapping_and_dense() && activation.is_flat(x)) {
    forward_dense(activation, x, y, steps, codes);
  } else {
    pack_dense(dense_like_result(x), steps, codes);
    activation.apply(x, y);
  }
  return {y, codes};
}

at::Tensor fewbit_forward_(at::Tensor& x, std::string_view name, at::ArrayRef<double> params,
                           at::ArrayRef<double> borders, bool even) {
  kernels::obey_environment();
  check_float_dtype(x, "fewbit_forward_");
  const Activation activation("fewbit_forward_", name, params);
  check(activation.has_inplace(), "fewbit_forward_", "an activation that torch has in place", name);
  const kernels::StepLookup steps = lookup_of_borders("fewbit_forward_", borders, even);
  at::Tensor codes = empty_codes(x, steps.bits);
  if (x.is_non_overlapping_and_dense() && activation.is_flat(x)) {
    forward_dense(activation, x, x, steps, codes);
  } else {
    pack_dense(dense_like_result(x), steps, codes);
    activation.apply(x, x);
  }
  return codes;
}

at::Tensor stepwise_codes(const at::Tensor& x, at::ArrayRef<double> borders, bool even) {
  kernels::obey_environment();
  check_float_dtype(x, "stepwise_codes");
  const kernels::StepLookup steps = lookup_of_borders("stepwise_codes", borders, even);
  at::Tensor codes = empty_codes(x, steps.bits);
  pack_dense(dense_like_result(x), steps, codes);
  return codes;
}

// ---- backward ----------------------------------------------------------------------------------

constexpr const char* kBackward = "stepwise_backward";

kernels::StepLookup check_backward(const at::Tensor& grad, const at::Tensor& codes,
                                   at::ArrayRef<double> levels) {
  check_float_dtype(grad, kBackward);
  kernels::StepLookup steps{.bits = bits_of_levels(kBackward, levels.size())};
  std::transform(levels.begin(), levels.end(), steps.levels,
                 [](double level) { return static_cast<float>(level); });
  check(codes.scalar_type() == at::kInt && codes.dim() == 1, kBackward,
        "codes to be a one-dimensional int32 tensor", codes.toString());
  const c10::SymInt expected = num_code_words(grad.sym_numel(), steps.bits);
  check(codes.sym_numel() == expected, kBackward,
        "as many codes as the gradient has elements: int32 words", codes.sym_numel());
  return steps;
}

void multiply_dense(const at::Tensor& grad, const at::Tensor& codes,
                    const kernels::StepLookup& steps, const at::Tensor& result) {
  const at::Tensor plain_codes = codes.contiguous();
  with_type(grad, [&]<typename T>(T) {
    const auto from = values_of<T>(grad);
    const auto to = mutable_values_of<T>(result);
    const std::span<const std::uint32_t> words = words_of(plain_codes);
    const std::size_t block_words = fewbit::block_words(steps.bits);
    at::parallel_for(0, static_cast<std::int64_t>(fewbit::num_blocks(from.size())), kGrainBlocks,
                     [&](std::int64_t first_block, std::int64_t last_block) {
                       const auto first = static_cast<std::size_t>(first_block);
                       const auto last = static_cast<std::size_t>(last_block);
                       const std::size_t begin = first * fewbit::kBlockValues;
                       const std::size_t count =
                           std::min(last * fewbit::kBlockValues, from.size()) - begin;
                       kernels::multiply_levels<T>(
                           from.subspan(begin, count),
                           words.subspan(first * block_words, (last - first) * block_words), steps,
                           to.subspan(begin, count));
                     });
  });
}

// `strides` are those of the tensor whose storage order the codes have.
at::Tensor stepwise_backward(const at::Tensor& grad, const at::Tensor& codes,
                             at::ArrayRef<double> levels, at::IntArrayRef strides) {
  kernels::obey_environment();
  const kernels::StepLookup steps = check_backward(grad, codes, levels);
  at::Tensor result = at::empty_strided(grad.sizes(), strides, grad.options());
  check(result.is_non_overlapping_and_dense(), kBackward, "strides of a dense tensor", strides);
  if (grad.strides() == strides) {
    multiply_dense(grad, codes, steps, result);
  } else {
    result.copy_(grad);
    multiply_dense(result, codes, steps, result);
  }
  return result;
}

void stepwise_backward_(at::Tensor& grad, const at::Tensor& codes, at::ArrayRef<double> levels) {
  kernels::obey_environment();
  const kernels::StepLookup steps = check_backward(grad, codes, levels);
  check(grad.is_non_overlapping_and_dense(), "stepwise_backward_", "a dense gradient",
        grad.strides());
  multiply_dense(grad, codes, steps, grad);
}

// ---- shapes, for tracing -----------------------------------------------------------------------

std::tuple<at::Tensor, at::Tensor> fewbit_forward_meta(const at::Tensor& x, std::string_view name,
                                                       at::ArrayRef<double> params,
                                                       at::ArrayRef<double> borders, bool even) {
  check_float_dtype(x, kForward);
  const Activation activation(kForward, name, params);
  return {at::empty_like(x), empty_codes(x, lookup_of_borders(kForward, borders, even).bits)};
}

at::Tensor fewbit_forward_inplace_meta(at::Tensor& x, std::string_view name,
                                       at::ArrayRef<double> params, at::ArrayRef<double> borders,
                                       bool even) {
  return std::get<1>(fewbit_forward_meta(x, name, params, borders, even));
}

at::Tensor stepwise_codes_meta(const at::Tensor& x, at::ArrayRef<double> borders, bool even) {
  check_float_dtype(x, "stepwise_codes");
  return empty_codes(x, lookup_of_borders("stepwise_codes", borders, even).bits);
}

at::Tensor stepwise_backward_meta(const at::Tensor& grad, const at::Tensor& codes,
                                  at::ArrayRef<double> levels, c10::SymIntArrayRef strides) {
  check_backward(grad, codes, levels);
  return at::empty_strided_symint(grad.sym_sizes(), strides, grad.options());
}

void stepwise_backward_inplace_meta(at::Tensor& grad, const at::Tensor& codes,
                                    at::ArrayRef<double> levels) {
  check_backward(grad, codes, levels);
}

}  // namespace

int bits_of_levels(std::string_view op, std::size_t num_levels) {
  for (int bits = 1; bits <= fewbit::kMaxBits; ++bits)
    if (num_levels == std::size_t{1} << bits) return bits;
  throw_invalid(op, "2, 4, 8 or 16 levels, one more than borders", num_levels);
}

kernels::StepLookup lookup_of_borders(std::string_view op, at::ArrayRef<double> borders,
                                      bool even) {
  kernels::StepLookup steps{.bits = bits_of_levels(op, borders.size() + 1), .is_even = even};
  for (std::size_t i = 0; i < borders.size(); ++i) {
    check(!std::isnan(borders[i]) && (i == 0 || borders[i - 1] <= borders[i]), op,
          "borders in ascending order", borders);
    steps.borders[i] = static_cast<float>(borders[i]);
  }
  return steps;
}

c10::SymInt num_code_words(const c10::SymInt& num_values, int bits) {
  constexpr auto kBlock = static_cast<std::int64_t>(fewbit::kBlockValues);
  return (num_values + (kBlock - 1)) / kBlock *
         static_cast<std::int64_t>(fewbit::block_words(bits));
}

TORCH_LIBRARY_IMPL(slimgrad, CPU, m) {
  m.impl("fewbit_forward", ValueErrors<&fewbit_forward>::call);
  m.impl("fewbit_forward_", ValueErrors<&fewbit_forward_>::call);
  m.impl("stepwise_codes", ValueErrors<&stepwise_codes>::call);
  m.impl("stepwise_backward", ValueErrors<&stepwise_backward>::call);
  m.impl("stepwise_backward_", ValueErrors<&stepwise_backward_>::call);
}

TORCH_LIBRARY_IMPL(slimgrad, Meta, m) {
  m.impl("fewbit_forward", ValueErrors<&fewbit_forward_meta>::call);
  m.impl("fewbit_forward_", ValueErrors<&fewbit_forward_inplace_meta>::call);
  m.impl("stepwise_codes", ValueErrors<&stepwise_codes_meta>::call);
  m.impl("stepwise_backward", ValueErrors<&stepwise_backward_meta>::call);
  m.impl("stepwise_backward_", ValueErrors<&stepwise_backward_inplace_meta>::call);
}

}  // namespace slimgrad::torch_ops
