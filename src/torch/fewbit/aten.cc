// The few-bit ops in ATen's operators, for devices without kernels of their own: the layout of
// formats/fewbit.h and the steps of kernels/fewbit/fewbit.h and kernels/fewbit/invertible.h on
// whole tensors. The bits are those of the kernels; the cost is some ten passes and 64-bit codes on
// the way.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <cstdint>
#include <vector>

#include "base/check.h"
#include "math/fewbit/inverse_table.h"
#include "torch/checks.h"
#include "torch/errors.h"
#include "torch/fewbit/ops.h"

namespace slimgrad::torch_ops {
namespace {

constexpr auto kRows = static_cast<std::int64_t>(fewbit::kNumRows);
constexpr auto kColumns = static_cast<std::int64_t>(fewbit::kNumColumns);
constexpr auto kBlock = static_cast<std::int64_t>(fewbit::kBlockValues);

at::Tensor in_memory_order(const at::Tensor& dense) {
  return dense.as_strided({dense.numel()}, {1});
}

at::Tensor on_device(const float* values, std::int64_t count, const at::Tensor& like) {
  return at::from_blob(const_cast<float*>(values), {count}, at::kFloat)
      .to(like.device(), at::kFloat,
          /*non_blocking=*/false,
          /*copy=*/true);
}

// 0, bits, 2 * bits, ...: how far the codes of a word's rows are shifted.
at::Tensor shifts_of_rows(std::int64_t num_rows, std::int64_t bits, const at::Tensor& like) {
  return at::arange(0, num_rows * bits, bits, like.options()).view({-1, 1});
}

// ---- codes -------------------------------------------------------------------------------------

at::Tensor packed(const at::Tensor& code, int bits) {
  const std::int64_t num_blocks = (code.numel() + kBlock - 1) / kBlock;
  const at::Tensor rows =
      at::constant_pad_nd(code, {0, num_blocks * kBlock - code.numel()}, (1 << bits) - 1)
          .view({num_blocks, kRows, kColumns});
  const auto word_rows = static_cast<std::int64_t>(fewbit::rows_per_word(bits));
  const at::Tensor shifts = shifts_of_rows(word_rows, bits, code);
  std::vector<at::Tensor> words;
  for (std::int64_t w = 0; w < bits; ++w) {
    at::Tensor word = rows.slice(1, w * word_rows, (w + 1) * word_rows)
                          .bitwise_left_shift(shifts)
                          .sum(at::IntArrayRef{1});
    if (bits == 3) {
      const at::Tensor tops = rows.select(1, 30) + rows.select(1, 31) * 8;
      word = word + (tops.bitwise_right_shift(2 * w) & 3).bitwise_left_shift(30);
    }
    words.push_back(word);
  }
  const at::Tensor all = at::stack(words, 1).view({-1});
  return at::where(all > INT32_MAX, all - (std::int64_t{1} << 32), all).to(at::kInt);
}

at::Tensor unpacked(const at::Tensor& codes, int bits, std::int64_t num_values) {
  const at::Tensor words = (codes.to(at::kLong) & 0xffffffff).view({-1, bits, kColumns});
  const auto word_rows = static_cast<std::int64_t>(fewbit::rows_per_word(bits));
  const at::Tensor shifts = shifts_of_rows(word_rows, bits, words);
  std::vector<at::Tensor> rows;
  for (std::int64_t w = 0; w < bits; ++w)
    rows.push_back(words.slice(1, w, w + 1).bitwise_right_shift(shifts));
  if (bits == 3) {
    const at::Tensor tops = words.bitwise_right_shift(30);
    const at::Tensor joined =
        tops.slice(1, 0, 1) + tops.slice(1, 1, 2) * 4 + tops.slice(1, 2, 3) * 16;
    rows.push_back(joined);
    rows.push_back(joined.bitwise_right_shift(3));
  }
  return (at::cat(rows, 1) & ((1 << bits) - 1)).view({-1}).slice(0, 0, num_values);
}

at::Tensor codes_of(const at::Tensor& x, const kernels::StepLookup& steps) {
  at::Tensor values = in_memory_order(dense_like_result(x)).to(at::kFloat);
  if (steps.is_even) values = values.abs();
  at::Tensor code = at::zeros({x.numel()}, x.options().dtype(at::kLong));
  for (int i = 0; i + 1 < 1 << steps.bits; ++i) code += (values <= steps.borders[i]).logical_not_();
  return packed(code, steps.bits);
}

at::Tensor stepwise_codes_aten(const at::Tensor& x, at::ArrayRef<double> borders, bool even) {
  check_float_dtype(x, "stepwise_codes");
  return codes_of(x, lookup_of_borders("stepwise_codes", borders, even));
}

// ---- backward ----------------------------------------------------------------------------------

// `grad` in the order of memory of a tensor with `strides`, as float32 times `factor`. Where that
// is zero, a step table lets nothing through (kernels/fewbit/fewbit.h); an inverted slope
// multiplies.
enum class Zero { kBlocks, kMultiplies };
at::Tensor multiplied(const at::Tensor& grad, at::IntArrayRef strides, const at::Tensor& factor,
                      Zero zero) {
  at::Tensor result = at::empty_strided(grad.sizes(), strides, grad.options());
  result.copy_(grad);
  at::Tensor flat = in_memory_order(result);
  flat.copy_(flat.to(at::kFloat) * factor);
  if (zero == Zero::kBlocks) flat.masked_fill_(factor == 0, 0);
  return result;
}

at::Tensor stepwise_backward_aten(const at::Tensor& grad, const at::Tensor& codes,
                                  at::ArrayRef<double> levels, at::IntArrayRef strides) {
  const kernels::StepLookup steps = checked_levels("stepwise_backward", grad, codes, levels);
  const at::Tensor code = unpacked(codes, steps.bits, grad.numel());
  const at::Tensor table = on_device(steps.levels, 1 << steps.bits, grad);
  return multiplied(grad, strides, table.index_select(0, code), Zero::kBlocks);
}

void stepwise_backward_inplace_aten(at::Tensor& grad, const at::Tensor& codes,
                                    at::ArrayRef<double> levels) {
  grad.copy_(stepwise_backward_aten(grad, codes, levels, grad.strides()));
}

// slope_from_output() of formats/inverse_table.h for every element.
at::Tensor slopes_of(const at::Tensor& y, const at::Tensor& is_right, const InverseTable& table) {
  const at::Tensor below = -y;
  const at::Tensor is_tail = ~is_right & (below < table.split);
  const at::Tensor w = at::where(is_tail, below, y - table.minimum);
  const at::Tensor smallest = at::where(is_tail, at::full_like(y, InverseTable::kSmallestV),
                                        at::full_like(y, InverseTable::kSmallestU));
  const at::Tensor is_large = w >= InverseTable::kLargest;
  const at::Tensor is_inside = ~is_large & (w >= smallest);
  const at::Tensor bits = at::where(is_inside, w, smallest).view(at::kInt);
  const at::Tensor offset =
      at::where(is_right, InverseTable::kRightOffset,
                at::where(is_tail, InverseTable::kTailOffset, InverseTable::kNearOffset));
  const at::Tensor piece = bits.bitwise_right_shift(InverseTable::kPieceShift) + offset;
  const at::Tensor fraction = (bits & 0xfffff).bitwise_left_shift(3);
  const at::Tensor f = (fraction | 0x3f800000).view(at::kFloat) - 1.0f;
  const at::Tensor coefficients =
      on_device(table.coefficients.data(), 4 * static_cast<std::int64_t>(InverseTable::kNumPieces),
                y)
          .view({-1, 4})
          .index_select(0, piece);
  at::Tensor slope = coefficients.select(1, 3);
  for (std::int64_t i = 2; i >= 0; --i) slope = coefficients.select(1, i) + f * slope;
  slope = at::where(is_inside, slope, is_large.to(at::kFloat));
  return at::where(y.isnan(), y, slope);
}

at::Tensor invertible_backward_aten(const at::Tensor& grad, const at::Tensor& y,
                                    const at::Tensor& codes, std::string_view name) {
  check_invertible("invertible_backward", grad, y, codes);
  check(y.is_non_overlapping_and_dense(), "invertible_backward", "a dense output", y.strides());
  const at::Tensor is_right = unpacked(codes, 1, y.numel()) != 0;
  const at::Tensor outputs = in_memory_order(y).to(at::kFloat);
  return multiplied(grad, y.strides(), slopes_of(outputs, is_right, inverse_table(name)),
                    Zero::kMultiplies);
}

void invertible_backward_inplace_aten(at::Tensor& grad, const at::Tensor& y,
                                      const at::Tensor& codes, std::string_view name) {
  grad.copy_(invertible_backward_aten(grad, y, codes, name));
}

}  // namespace

TORCH_LIBRARY_IMPL(slimgrad, CompositeExplicitAutograd, m) {
  m.impl("stepwise_codes", ValueErrors<&stepwise_codes_aten>::call);
  m.impl("stepwise_backward", ValueErrors<&stepwise_backward_aten>::call);
  m.impl("stepwise_backward_", ValueErrors<&stepwise_backward_inplace_aten>::call);
  m.impl("invertible_backward", ValueErrors<&invertible_backward_aten>::call);
  m.impl("invertible_backward_", ValueErrors<&invertible_backward_inplace_aten>::call);
}

}  // namespace slimgrad::torch_ops
