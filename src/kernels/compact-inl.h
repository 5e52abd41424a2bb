// What compact_rows.cc and compact_columns.cc have in common, for one CPU target with vectors of
// eight lanes. Included once per target.
#if defined(SLIMGRAD_KERNELS_COMPACT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLIMGRAD_KERNELS_COMPACT_INL_H_
#undef SLIMGRAD_KERNELS_COMPACT_INL_H_
#else
#define SLIMGRAD_KERNELS_COMPACT_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/apply-inl.h"
#include "kernels/compact_order.h"
#include "kernels/compact_rows.h"

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels {
namespace HWY_NAMESPACE {

using Draws = Drawing<kPruneStrata>;

#if HWY_MAX_BYTES >= 32

// How many elements are drawn for at a time: their draws stay in the first-level cache.
constexpr std::size_t kPiece = 1024;

HWY_INLINE std::uint8_t bits_of(hn::Mask<F32> mask) {
  std::uint8_t bits[8];  // Highway writes one byte and wants room for eight.
  hn::StoreMaskBits(F32(), mask, bits);
  return bits[0];
}

HWY_INLINE std::uint8_t zeros_of(Integers x) {
  return bits_of(hn::RebindMask(F32(), hn::Eq(x, hn::Zero(I32()))));
}

// Moves the lanes that do not vanish to the front of a vector.
HWY_INLINE auto order_of(std::uint8_t vanished) {
  return hn::IndicesFromVec(I32(), hn::LoadU(I32(), kOtherLanes[vanished].data()));
}

// The last few values of a row, then zeros.
template <typename T>
HWY_INLINE Integers load_some(const T* from, std::size_t count) {
  T padded[8] = {};
  std::copy(from, from + count, padded);
  return load(padded);
}

// prune_value() of eight elements. A value that survives is the larger of its magnitude and the
// threshold: what is larger has a share of more than one, hence stays for certain. So do Inf and,
// because it compares like nothing, NaN. Zeros vanish.
struct Pruned {
  const ValueRule rule;
  Floats scaled_inverse;
  Integers threshold;

  HWY_INLINE explicit Pruned(const Plan& plan) : rule(plan) {
    scaled_inverse = hn::Set(F32(), inverse_of(plan.threshold) * 0x1p16f);
    threshold = as_bits(hn::Set(F32(), plan.threshold));
  }

  // Below 1 the element vanishes, unless it is not negative either: then the specification decides.
  HWY_INLINE Floats excess(Integers magnitude, const float* draws) const {
    return hn::Sub(hn::Mul(as_floats(magnitude), scaled_inverse), hn::LoadU(F32(), draws));
  }
  HWY_INLINE Integers survivor(Integers x, Integers magnitude) const {
    return hn::Or(hn::Xor(x, magnitude), hn::Max(magnitude, threshold));
  }
  HWY_INLINE Integers decide_lanes(Integers x, std::uint64_t index) const {
    ApplyCounts ignored;
    return apply_lanes(rule, x, index, ignored);
  }
};

// The draws of `count` elements from `index` on, in a buffer of count + 2 * Draws::kElements.
HWY_INLINE const float* draw(Draws& drawing, std::uint64_t index, std::size_t count,
                             float* buffer) {
  constexpr std::uint64_t kStep = Draws::kElements;
  const std::uint64_t begin = index / kStep * kStep, end = index + count;
  for (std::uint64_t i = begin; i < end; i += kStep) drawing.fill(i, buffer + (i - begin));
  return buffer + (index - begin);
}

#else

// Vectors of four are not worth tables of their own; but draws by vectors are worth a buffer: the
// rows pruned, and with zeros for what vanishes.
template <typename T>
MatrixRows<T> pruned_rows(const Plan& plan, const MatrixRows<T>& rows, std::vector<T>& buffer) {
  constexpr std::uint64_t kStep = Draws::kElements;
  const auto size = static_cast<std::size_t>(rows.count * rows.columns);
  const std::uint64_t begin = rows.first_index / kStep * kStep;
  const auto before = static_cast<std::size_t>(rows.first_index - begin);
  buffer.assign(before, T{});
  buffer.insert(buffer.end(), rows.data, rows.data + size);
  apply_values(plan, buffer.data(), buffer.data(), buffer.size(), begin);
  return {buffer.data() + before, rows.count, rows.columns, rows.first_index};
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace slimgrad::kernels
HWY_AFTER_NAMESPACE();

#endif  // include guard, once per target
