// What backward keeps, by the kernels of src/device.
#include "device/saved.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "base/check.h"
#include "device/exact.h"
#include "torch/device/launch.h"
#include "torch/saved/ops.h"

namespace slimgrad::torch_ops {
namespace {

// function.template operator()<bits>() for a width of saved values.
template <typename Function>
void with_saved_width(int bits, const Function& function) {
  switch (bits) {
    case 8:
      return function.template operator()<8>();
    case 4:
      return function.template operator()<4>();
    default:
      return function.template operator()<2>();
  }
}

}  // namespace

void pack_saved_on_device(const at::Tensor& dense, const saved::Format& format, std::uint64_t seed,
                          const at::Tensor& words) {
  fill_bytes(words.slice(0, words.numel() - 1), 0);  // what counts bad groups
  with_element_type(dense.scalar_type(), [&]<typename T>() {
    with_saved_width(format.bits, [&]<int bits>() {
      start<device::PackSaved<T, bits>>({.in = read_by_kernel<T>(dense),
                                         .words = written_by_kernel<std::uint32_t>(words),
                                         .size = static_cast<std::uint64_t>(dense.numel()),
                                         .seed = seed,
                                         .group = static_cast<std::uint32_t>(format.group),
                                         .is_stochastic = format.is_stochastic},
                                        dense);
    });
  });
}

void unpack_saved_on_device(const at::Tensor& words, const saved::Format& format,
                            const at::Tensor& result) {
  const at::Tensor plain = aligned(words);
  with_element_type(result.scalar_type(), [&]<typename T>() {
    with_saved_width(format.bits, [&]<int bits>() {
      start<device::UnpackSaved<T, bits>>({.words = read_by_kernel<std::uint32_t>(plain),
                                           .out = written_by_kernel<T>(result),
                                           .size = static_cast<std::uint64_t>(result.numel()),
                                           .group = static_cast<std::uint32_t>(format.group)},
                                          result);
    });
  });
}

// ---- exactly -----------------------------------------------------------------------------------

namespace {

// function.template operator()<Word>() with the unsigned integer of a value's width.
template <typename Function>
void with_word(const at::Tensor& x, const Function& function) {
  if (x.element_size() == 2) return function.template operator()<std::uint16_t>();
  return function.template operator()<std::uint32_t>();
}

at::Tensor empty_bytes(std::size_t size, const at::Tensor& like) {
  return at::empty({static_cast<std::int64_t>(size)},
                   at::TensorOptions(like.device()).dtype(at::kByte));
}

// What the host has to know before it can ask for memory: it waits for it.
std::vector<device::ExactCount> count_survivors(const at::Tensor& dense) {
  const auto size = static_cast<std::size_t>(dense.numel());
  std::vector<device::ExactCount> found(exact::num_tasks(size));
  const at::Tensor counts = empty_bytes(found.size() * sizeof found[0], dense);
  with_word(dense, [&]<typename Word>() {
    start<device::CountSurvivors<Word>>({.in = read_by_kernel<Word>(dense),
                                         .size = size,
                                         .counts = written_by_kernel<device::ExactCount>(counts)},
                                        dense);
  });
  const at::Tensor here = counts.cpu();
  std::memcpy(found.data(), here.const_data_ptr(), here.nbytes());
  return found;
}

// The value of all survivors, if they have one; 0 if there are none.
std::optional<std::uint32_t> only_survivor_of(const std::vector<device::ExactCount>& counts) {
  device::ExactCount all = {0, 0xffffffffu, 0};
  for (const device::ExactCount& count : counts) {
    all.smallest = std::min(all.smallest, count.smallest);
    all.largest = std::max(all.largest, count.largest);
  }
  if (all.largest == 0) return 0;
  return all.smallest == all.largest ? std::optional(all.largest) : std::nullopt;
}

// `head` is what lies before the masks; is_one: all survivors are the same.
at::Tensor split_exact(const at::Tensor& dense, const std::vector<std::uint64_t>& head, bool is_one,
                       std::size_t num_bytes) {
  const at::Tensor bytes = empty_bytes(num_bytes, dense);
  const std::size_t head_bytes = head.size() * sizeof head[0];
  const at::Tensor here = at::empty({static_cast<std::int64_t>(head_bytes)}, at::kByte);
  std::memcpy(here.mutable_data_ptr(), head.data(), head_bytes);
  bytes.slice(0, 0, here.numel()).copy_(here, true);
  with_word(dense, [&]<typename Word>() {
    auto* const to = written_by_kernel<std::uint8_t>(bytes);
    start<device::SplitExact<Word>>(
        {.in = read_by_kernel<Word>(dense),
         .size = static_cast<std::uint64_t>(dense.numel()),
         .begins = is_one ? nullptr : reinterpret_cast<const std::uint64_t*>(to),
         .bytes = to},
        dense);
  });
  return bytes;
}

}  // namespace

at::Tensor pack_exact_on_device(const at::Tensor& dense, bool only_masks) {
  const auto num_values = static_cast<std::size_t>(dense.numel());
  const auto width = static_cast<std::size_t>(dense.element_size());
  const std::vector<device::ExactCount> counts = count_survivors(dense);
  if (const auto survivor = only_survivor_of(counts))
    return split_exact(dense, {exact::kOneSurvivor, *survivor}, true,
                       exact::mask_bytes(num_values));
  std::vector<std::uint64_t> begins = {exact::first_begin(num_values)};
  for (const device::ExactCount& count : counts)
    begins.push_back(begins.back() + exact::survivor_bytes(count.num_survivors, width));
  if (only_masks || !saves_enough(begins.back(), num_values * width)) return empty_bytes(0, dense);
  return split_exact(dense, begins, false, begins.back());
}

// The kernel looks at what the bytes hold, since the host would wait for it.
void unpack_exact_on_device(const at::Tensor& bytes, const at::Tensor& result) {
  const auto size = static_cast<std::size_t>(bytes.numel());
  const auto num_values = static_cast<std::size_t>(result.numel());
  check(size == exact::mask_bytes(num_values) || size >= exact::first_begin(num_values),
        "unpack_exact", "the bytes that pack_exact gave for a tensor of this size", size, " bytes");
  const at::Tensor plain = aligned(bytes);
  with_word(result, [&]<typename Word>() {
    start<device::MergeExact<Word>>({.bytes = read_by_kernel<std::uint8_t>(plain),
                                     .num_bytes = static_cast<std::uint64_t>(plain.numel()),
                                     .out = written_by_kernel<Word>(result),
                                     .size = static_cast<std::uint64_t>(result.numel())},
                                    result);
  });
}

}  // namespace slimgrad::torch_ops
