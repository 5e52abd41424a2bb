// What backward keeps, as tensors: the ops behind slimgrad.saved_tensors().
//
// A dense tensor of any layout is packed in the order of its memory and comes back with its
// strides; whatever has holes is first copied into the layout that torch gives a result.
#include "torch/saved/ops.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <slimgrad/seed.h>
#include <torch/library.h>

#include "arrays/saved/saved.h"
#include "base/check.h"
#include "torch/checks.h"
#include "torch/device/device_ops.h"
#include "torch/elements.h"
#include "torch/errors.h"
#include "torch/fewbit/ops.h"
#include "torch/no_gradient.h"
#include "torch/recycled_memory.h"
#include "torch/threads.h"

namespace slimgrad::torch_ops {
namespace {

// ---- checks and sizes --------------------------------------------------------------------------

c10::SymInt num_saved_words(const c10::SymInt& num_values, const saved::Format& format) {
  constexpr auto kBlock = static_cast<std::int64_t>(saved::kBlockValues);
  const auto group = static_cast<std::int64_t>(format.group);
  return (num_values + (kBlock - 1)) / kBlock *
             static_cast<std::int64_t>(fewbit::block_words(format.bits)) +
         (num_values + (group - 1)) / group + 1;
}

void check_restored(const char* op, const at::Tensor& packed, at::ScalarType expected,
                    at::ScalarType dtype) {
  check(packed.scalar_type() == expected && packed.dim() == 1, op,
        std::string("packed words as a one-dimensional ") + c10::toString(expected) + " tensor",
        packed.toString(), " with ", packed.dim(), " dimensions");
  check(is_float_dtype(dtype), op, "dtype to be float32, bfloat16 or float16",
        c10::toString(dtype));
}

void check_words(const at::Tensor& packed, const c10::SymInt& num_values,
                 const saved::Format& format) {
  const c10::SymInt num_words = num_saved_words(num_values, format);
  check(packed.sym_numel() == num_words, "unpack_saved",
        "the size, bits and group that were given to pack_saved", packed.sym_numel(),
        " packed words, where ", num_values, " values at these bits and this group take ",
        num_words);
}

// Memory that the next result of the same size gets again: a backward pass unpacks tensor after
// tensor, and fresh pages would cost more than the arithmetic.
// (torch's allocators do that on devices.)
at::Tensor empty_result(const char* op, at::IntArrayRef size, at::IntArrayRef stride,
                        at::ScalarType dtype, c10::Device device) {
  at::Tensor result = device.is_cpu()
                          ? recycled_empty_unpacked(size, stride, dtype)
                          : at::empty_strided(size, stride, at::TensorOptions(device).dtype(dtype));
  check(result.is_non_overlapping_and_dense(), op, "strides of a dense tensor", stride);
  return result;
}

// ---- few bits ----------------------------------------------------------------------------------

}  // namespace

at::Tensor packed_saved(const at::Tensor& x, std::int64_t bits, std::int64_t group,
                        std::string_view rounding, std::int64_t seed, std::int64_t number) {
  check_float_dtype(x, "pack_saved");
  const saved::Format format = saved_format("pack_saved", bits, group, rounding);
  const at::Tensor dense = dense_like_result(x);
  const auto num_values = static_cast<std::size_t>(x.numel());
  const at::Tensor words =
      at::empty({static_cast<std::int64_t>(saved::num_words(num_values, format))},
                at::TensorOptions(x.device()).dtype(at::kInt));
  if (!x.is_cpu()) {
    pack_saved_on_device(
        dense, format,
        derive_seed(static_cast<std::uint64_t>(seed), {static_cast<std::uint64_t>(number)}), words);
    return words;
  }
  with_element_type(x.scalar_type(), [&]<typename T>() {
    pack_saved<T>(elements<T>(dense), format, static_cast<std::uint64_t>(seed),
                  static_cast<std::uint64_t>(number), for_tasks,
                  mutable_elements<std::uint32_t>(words));
  });
  return words;
}

namespace {

// A tensor that is not packed, in the order of its memory, and the words in its place. It lives as
// long as their storage does. Their last word says so, since no tensor has as many bad groups:
// copies of the words, as hooks of autograd may make, are without it.
struct HeldBeside {
  at::Tensor words, dense;
  std::int64_t version;  // of dense
};
constexpr std::uint32_t kHeldBeside = 0xffffffffu;
void delete_held(void* held) { delete static_cast<HeldBeside*>(held); }

at::Tensor pack_saved_in_graph_cpu(const at::Tensor& x, const at::Tensor& seed, std::int64_t number,
                                   std::int64_t bits, std::int64_t group,
                                   std::string_view rounding) {
  check(seed.scalar_type() == at::kLong && seed.numel() == 1 && seed.device().is_cpu(),
        "pack_saved_in_graph", "seed as an int64 tensor of one element on the CPU",
        seed.toString());
  // A leaf is an input of the graph, which lives anyway, and which only its run can tell.
  const bool is_leaf = x.requires_grad() && x.is_leaf() && x.is_non_overlapping_and_dense();
  at::Tensor words;
  if (is_leaf) {
    check_float_dtype(x, "pack_saved_in_graph");
    words = at::empty(
        {num_saved_words(x.numel(), saved_format("pack_saved_in_graph", bits, group, rounding))
             .expect_int()},
        at::TensorOptions().dtype(at::kInt));
  } else {
    words = packed_saved(x, bits, group, rounding, *seed.const_data_ptr<std::int64_t>(), number);
    if (elements<std::uint32_t>(words).back() == 0) return words;
  }
  mutable_elements<std::uint32_t>(words).back() = kHeldBeside;
  // A copy of what is no leaf: the graph may reuse the memory.
  const at::Tensor dense = is_leaf ? x : dense_like_result(x).clone();
  auto* const held = new HeldBeside{words, dense, dense._version()};
  return at::for_blob(held->words.mutable_data_ptr(), words.sizes())
      .context(held, &delete_held)
      .options(words.options())
      .make_tensor();
}

}  // namespace

at::Tensor unpacked_saved(const at::Tensor& packed, at::IntArrayRef size, at::IntArrayRef stride,
                          at::ScalarType dtype, std::int64_t bits, std::int64_t group) {
  check_restored("unpack_saved", packed, at::kInt, dtype);
  const saved::Format format = saved_format("unpack_saved", bits, group, "nearest");
  const at::Tensor result = empty_result("unpack_saved", size, stride, dtype, packed.device());
  check_words(packed, result.numel(), format);
  if (!packed.is_cpu()) {
    unpack_saved_on_device(packed, format, result);
    return result;
  }
  const at::Tensor words = packed.contiguous();
  const auto* const held = words.storage().data_ptr().cast_context<HeldBeside>(&delete_held);
  if (held != nullptr && held->dense.scalar_type() == dtype) {
    TORCH_CHECK(
        held->dense._version() == held->version,
        "[unpack_saved] a tensor that a compiled graph saved for backward has been modified "
        "by an inplace operation");
    return result.copy_(held->dense.as_strided(size, stride));
  }
  check(elements<std::uint32_t>(words).back() != kHeldBeside, "unpack_saved",
        "the tensor of words that pack_saved_in_graph gave, which holds NaN and Inf beside them",
        "a copy of it, or another dtype");
  with_element_type(dtype, [&]<typename T>() {
    unpack_saved<T>(elements<std::uint32_t>(words), format, for_tasks, mutable_elements<T>(result));
  });
  return result;
}

namespace {

at::Tensor pack_saved_meta(const at::Tensor& x, std::int64_t bits, std::int64_t group,
                           std::string_view rounding, c10::SymInt, c10::SymInt) {
  check_float_dtype(x, "pack_saved");
  const saved::Format format = saved_format("pack_saved", bits, group, rounding);
  return at::empty_symint({num_saved_words(x.sym_numel(), format)}, x.options().dtype(at::kInt));
}

at::Tensor pack_saved_in_graph_meta(const at::Tensor& x, const at::Tensor&, std::int64_t,
                                    std::int64_t bits, std::int64_t group,
                                    std::string_view rounding) {
  return pack_saved_meta(x, bits, group, rounding, 0, 0);
}

at::Tensor unpack_saved_meta(const at::Tensor& packed, c10::SymIntArrayRef size,
                             c10::SymIntArrayRef stride, at::ScalarType dtype, std::int64_t bits,
                             std::int64_t group) {
  check_restored("unpack_saved", packed, at::kInt, dtype);
  const saved::Format format = saved_format("unpack_saved", bits, group, "nearest");
  at::Tensor result = at::empty_strided_symint(size, stride, packed.options().dtype(dtype));
  check_words(packed, result.sym_numel(), format);
  return result;
}

}  // namespace

// ---- exactly -----------------------------------------------------------------------------------

namespace {

at::Tensor pack_bools_cpu(const at::Tensor& x) {
  check(x.scalar_type() == at::kBool, "pack_bools", "a bool tensor", x.toString());
  const at::Tensor dense = dense_like_result(x);
  const auto num_values = static_cast<std::size_t>(x.numel());
  const at::Tensor bits = at::empty({static_cast<std::int64_t>(bool_bytes(num_values))},
                                    at::TensorOptions().dtype(at::kByte));
  pack_bools({static_cast<const std::uint8_t*>(dense.const_data_ptr()), num_values}, for_tasks,
             mutable_elements<std::uint8_t>(bits));
  return bits;
}

at::Tensor unpack_bools_cpu(const at::Tensor& packed, at::IntArrayRef size,
                            at::IntArrayRef stride) {
  check(packed.scalar_type() == at::kByte && packed.dim() == 1, "unpack_bools",
        "bits as a one-dimensional uint8 tensor", packed.toString());
  const at::Tensor result = empty_result("unpack_bools", size, stride, at::kBool, packed.device());
  const auto num_values = static_cast<std::size_t>(result.numel());
  check(packed.numel() == static_cast<std::int64_t>(bool_bytes(num_values)), "unpack_bools",
        "the size that was given to pack_bools", packed.numel(), " bytes for ", num_values,
        " values");
  const at::Tensor bits = packed.contiguous();
  unpack_bools(elements<std::uint8_t>(bits), for_tasks,
               {static_cast<std::uint8_t*>(result.mutable_data_ptr()), num_values});
  return result;
}

at::Tensor pack_bools_meta(const at::Tensor& x) {
  return at::empty_symint({(x.sym_numel() + 7) / 8}, x.options().dtype(at::kByte));
}
at::Tensor unpack_bools_meta(const at::Tensor& packed, c10::SymIntArrayRef size,
                             c10::SymIntArrayRef stride) {
  return at::empty_strided_symint(size, stride, packed.options().dtype(at::kBool));
}

}  // namespace

at::Tensor packed_exact(const at::Tensor& x, bool only_masks) {
  check_float_dtype(x, "pack_exact");
  const at::Tensor dense = dense_like_result(x);
  if (!x.is_cpu()) return pack_exact_on_device(dense, only_masks);
  const auto num_values = static_cast<std::size_t>(x.numel());
  const auto width = static_cast<std::size_t>(x.element_size());
  const void* const values = dense.const_data_ptr();
  const auto empty_bytes = [](std::size_t size) {
    return at::empty({static_cast<std::int64_t>(size)}, at::TensorOptions().dtype(at::kByte));
  };
  if (const auto survivor = only_survivor(values, num_values, width, for_tasks)) {
    const at::Tensor bytes = empty_bytes(exact::mask_bytes(num_values));
    keep_mask(values, num_values, width, *survivor, for_tasks,
              mutable_elements<std::uint8_t>(bytes));
    return bytes;
  }
  if (only_masks) return empty_bytes(0);
  const ExactLayout layout = exact_layout(values, num_values, width, for_tasks);
  if (!saves_enough(layout.num_bytes(), num_values * width)) return empty_bytes(0);
  const at::Tensor bytes = empty_bytes(layout.num_bytes());
  pack_exactly(values, num_values, width, layout, for_tasks, mutable_elements<std::uint8_t>(bytes));
  return bytes;
}

at::Tensor unpacked_exact(const at::Tensor& packed, at::IntArrayRef size, at::IntArrayRef stride,
                          at::ScalarType dtype) {
  check_restored("unpack_exact", packed, at::kByte, dtype);
  const at::Tensor result = empty_result("unpack_exact", size, stride, dtype, packed.device());
  if (!packed.is_cpu()) {
    unpack_exact_on_device(packed, result);
    return result;
  }
  const at::Tensor bytes = packed.contiguous();
  restore_exactly(elements<std::uint8_t>(bytes), static_cast<std::size_t>(result.element_size()),
                  for_tasks, result.mutable_data_ptr(), static_cast<std::size_t>(result.numel()));
  return result;
}

namespace {

at::Tensor unpack_exact_meta(const at::Tensor& packed, c10::SymIntArrayRef size,
                             c10::SymIntArrayRef stride, at::ScalarType dtype) {
  check_restored("unpack_exact", packed, at::kByte, dtype);
  return at::empty_strided_symint(size, stride, packed.options().dtype(dtype));
}

}  // namespace

void register_saved_on_device(torch::Library& m) {
  m.impl("pack_saved", ValueErrors<&packed_saved>::call);
  m.impl("unpack_saved", ValueErrors<&unpacked_saved>::call);
  m.impl("pack_exact", ValueErrors<&packed_exact>::call);
  m.impl("unpack_exact", ValueErrors<&unpacked_exact>::call);
}

TORCH_LIBRARY_IMPL(slimgrad, CPU, m) {
  register_saved_on_device(m);
  m.impl("pack_saved_in_graph", ValueErrors<&pack_saved_in_graph_cpu>::call);
  m.impl("pack_bools", ValueErrors<&pack_bools_cpu>::call);
  m.impl("unpack_bools", ValueErrors<&unpack_bools_cpu>::call);
}
TORCH_LIBRARY_IMPL(slimgrad, Meta, m) {
  m.impl("pack_saved", ValueErrors<&pack_saved_meta>::call);
  m.impl("pack_saved_in_graph", ValueErrors<&pack_saved_in_graph_meta>::call);
  m.impl("unpack_saved", ValueErrors<&unpack_saved_meta>::call);
  m.impl("unpack_exact", ValueErrors<&unpack_exact_meta>::call);
  m.impl("pack_bools", pack_bools_meta);
  m.impl("unpack_bools", unpack_bools_meta);
}
TORCH_LIBRARY_IMPL(slimgrad, Autograd, m) {
  for (const char* name : {"pack_saved", "pack_saved_in_graph", "unpack_saved", "pack_exact",
                           "unpack_exact", "pack_bools", "unpack_bools"})
    m.impl(name, no_gradient());
}

}  // namespace slimgrad::torch_ops
