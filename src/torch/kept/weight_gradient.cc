// The weight gradient of a linear layer from a packed input, without the input: gradient^T x, some
// rows of x at a time.
//
// Rows are unpacked into a buffer that the product then finds in the cache. Tiles are added in
// their order, so that the result depends on threads no more than torch's own product does. Of
// 16-bit types each tile's product is rounded to the type; their sum is kept in float32 until the
// end.
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>

#include "arrays/kept/kept.h"
#include "base/check.h"
#include "torch/checks.h"
#include "torch/elements.h"
#include "torch/errors.h"
#include "torch/no_gradient.h"
#include "torch/recycled_memory.h"
#include "torch/threads.h"

namespace slimgrad::torch_ops {
namespace {

// Of a tile. Reading and writing the result for each of them costs 2 % of a float32 product; those
// of 16 bits are faster, and what is read and written is not. Any multiple of a block begins at a
// block, whatever the columns.
constexpr std::int64_t tile_rows(at::ScalarType type) { return type == at::kFloat ? 1024 : 2048; }
static_assert(tile_rows(at::kFloat) % kept::kBlockValues == 0);

kept::Format check_arguments(const at::Tensor& gradient, const at::Tensor& packed,
                             std::int64_t bits, std::int64_t group) {
  constexpr const char* kOp = "kept_weight_gradient";
  check_float_dtype(gradient, kOp);
  check(gradient.dim() >= 2, kOp, "a gradient with rows and columns", gradient.dim(),
        " dimensions");
  check(packed.scalar_type() == at::kInt && packed.dim() == 1, kOp,
        "packed words as a one-dimensional Int tensor", packed.toString(), " with ", packed.dim(),
        " dimensions");
  return kept_format(kOp, bits, group, "nearest");
}

class Tiles {
 public:
  Tiles(const at::Tensor& gradient, const at::Tensor& packed, std::int64_t columns,
        const kept::Format& format)
      : gradient_(gradient.reshape({-1, gradient.size(-1)})),
        words_(packed.contiguous()),
        columns_(columns),
        format_(format),
        tile_rows_(tile_rows(gradient.scalar_type())),
        buffer_(recycled_empty_unpacked({std::min(tile_rows_, gradient_.size(0)), columns},
                                        {columns, 1}, gradient.scalar_type())) {}

  std::int64_t count() const { return (gradient_.size(0) + tile_rows_ - 1) / tile_rows_; }

  // The rows of a tile: of the gradient, transposed; and of x, until the next call.
  at::Tensor gradient(std::int64_t tile) const {
    return gradient_.narrow(0, first(tile), rows(tile)).t();
  }
  at::Tensor x(std::int64_t tile) {
    const at::Tensor part = buffer_.narrow(0, 0, rows(tile));
    with_element_type(part.scalar_type(), [&]<typename T>() {
      restore_part<T>(elements<std::uint32_t>(words_), format_,
                      static_cast<std::size_t>(gradient_.size(0) * columns_),
                      static_cast<std::size_t>(first(tile) * columns_), for_tasks,
                      mutable_elements<T>(part));
    });
    return part;
  }

 private:
  std::int64_t first(std::int64_t tile) const { return tile * tile_rows_; }
  std::int64_t rows(std::int64_t tile) const {
    return std::min(tile_rows_, gradient_.size(0) - first(tile));
  }

  at::Tensor gradient_, words_;
  std::int64_t columns_;
  kept::Format format_;
  std::int64_t tile_rows_;
  at::Tensor buffer_;
};

at::Tensor kept_weight_gradient_cpu(const at::Tensor& gradient, const at::Tensor& packed,
                                    std::int64_t columns, std::int64_t bits, std::int64_t group) {
  const kept::Format format = check_arguments(gradient, packed, bits, group);
  check(columns > 0, "kept_weight_gradient", "a positive number of columns", columns);
  const std::int64_t outputs = gradient.size(-1);
  if (gradient.numel() == 0) return at::zeros({outputs, columns}, gradient.options());
  const auto num_values = static_cast<std::size_t>(gradient.numel() / outputs * columns);
  check(static_cast<std::size_t>(packed.numel()) == kept::num_words(num_values, format),
        "kept_weight_gradient",
        "as many words as rows of the gradient, these columns, bits and groups have",
        packed.numel());
  Tiles tiles(gradient, packed, columns, format);
  at::Tensor sum = at::mm(tiles.gradient(0), tiles.x(0));
  if (tiles.count() == 1) return sum;
  const bool is_float = gradient.scalar_type() == at::kFloat;
  if (!is_float) sum = sum.to(at::kFloat);
  for (std::int64_t tile = 1; tile < tiles.count(); ++tile) {
    if (is_float)
      sum.addmm_(tiles.gradient(tile), tiles.x(tile));
    else
      sum.add_(at::mm(tiles.gradient(tile), tiles.x(tile)));
  }
  return sum.to(gradient.scalar_type());
}

at::Tensor kept_weight_gradient_meta(const at::Tensor& gradient, const at::Tensor& packed,
                                     c10::SymInt columns, std::int64_t bits, std::int64_t group) {
  check_arguments(gradient, packed, bits, group);
  return at::empty_symint({gradient.sym_size(-1), columns}, gradient.options());
}

}  // namespace

TORCH_LIBRARY_IMPL(slimgrad, CPU, m) {
  m.impl("kept_weight_gradient", ValueErrors<&kept_weight_gradient_cpu>::call);
}
TORCH_LIBRARY_IMPL(slimgrad, Meta, m) {
  m.impl("kept_weight_gradient", ValueErrors<&kept_weight_gradient_meta>::call);
}
TORCH_LIBRARY_IMPL(slimgrad, Autograd, m) { m.impl("kept_weight_gradient", no_gradient()); }

}  // namespace slimgrad::torch_ops
