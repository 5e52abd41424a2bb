#include "kernels/sparse_sums.h"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "kernels/dispatch.h"

#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sparse_sums.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels {
namespace HWY_NAMESPACE {

#if HWY_MAX_BYTES >= 32

namespace hn = hwy::HWY_NAMESPACE;
using F32 = hn::CappedTag<float, 8>;
using Floats = hn::Vec<F32>;

// `count` totals. Twelve members and not an array: compilers keep members in registers, and arrays
// on the stack.
template <int count>
struct Totals {
  Floats t0, t1, t2, t3, t4, t5, t6, t7, t8, t9, t10, t11;

  template <int index>
  using Index = std::integral_constant<int, index>;

  template <typename Visit>
  HWY_INLINE void for_each(const Visit& visit) {
    visit(t0, Index<0>());
    if constexpr (count > 1) visit(t1, Index<1>());
    if constexpr (count > 2) visit(t2, Index<2>());
    if constexpr (count > 3) visit(t3, Index<3>());
    if constexpr (count > 4) visit(t4, Index<4>());
    if constexpr (count > 5) visit(t5, Index<5>());
    if constexpr (count > 6) visit(t6, Index<6>());
    if constexpr (count > 7) visit(t7, Index<7>());
    if constexpr (count > 8) visit(t8, Index<8>());
    if constexpr (count > 9) visit(t9, Index<9>());
    if constexpr (count > 10) visit(t10, Index<10>());
    if constexpr (count > 11) visit(t11, Index<11>());
  }

  HWY_INLINE void clear() {
    for_each([](Floats& total, auto) HWY_ATTR { total = hn::Zero(F32()); });
  }
  template <int eights>
  HWY_INLINE void add(float value, const float* row, std::int64_t stride) {
    const Floats factor = hn::Set(F32(), value);
    for_each([&](Floats& total, auto index) HWY_ATTR {
      total = hn::MulAdd(factor, hn::LoadU(F32(), row + place<eights>(index, stride)), total);
    });
  }
  template <int eights>
  static HWY_INLINE std::int64_t place(int index, std::int64_t stride) {
    return index / eights * stride + index % eights * 8;
  }
};

// Chains of additions: a multiply-add takes four cycles and two start in each, so eight must be
// under way at a time.
template <int eights, int rows>
HWY_INLINE void one_sum(const SumShape& shape, Survivors survivors, const float* dense,
                        std::span<const Run> runs, const Sum& sum, float* totals, bool accumulate) {
  using AllTotals = Totals<eights * rows>;
  constexpr bool kTwoChains = eights * rows <= 4;
  const auto out = [&](int index) {
    return totals + sum.out + AllTotals::template place<eights>(index, shape.out_stride);
  };
  const std::int64_t stride = shape.dense_stride;
  AllTotals even, odd;
  even.clear();
  if (accumulate)
    even.for_each([&](Floats& total, auto index)
                      HWY_ATTR { total = hn::LoadU(F32(), out(index)); });
  if constexpr (kTwoChains) odd.clear();
  for (std::int64_t r = sum.first_run; r < sum.last_run; ++r) {
    const Run& run = runs[static_cast<std::size_t>(r)];
    const std::int32_t* offset = survivors.offsets + run.begin;
    const std::int32_t* const last = survivors.offsets + run.end;
    const float* value = survivors.values + run.begin;
    if constexpr (kTwoChains) {
      for (; offset + 1 < last; offset += 2, value += 2) {
        even.template add<eights>(value[0], dense + (run.displacement + offset[0]), stride);
        odd.template add<eights>(value[1], dense + (run.displacement + offset[1]), stride);
      }
    }
    for (; offset < last; ++offset, ++value)
      even.template add<eights>(*value, dense + (run.displacement + *offset), stride);
  }
  if constexpr (kTwoChains) {
    odd.for_each([&](Floats& total, auto index) HWY_ATTR { hn::StoreU(total, F32(), out(index)); });
    even.for_each([&](Floats& total, auto index)
                      HWY_ATTR { total = hn::Add(total, hn::LoadU(F32(), out(index))); });
  }
  even.for_each([&](Floats& total, auto index) HWY_ATTR { hn::StoreU(total, F32(), out(index)); });
}

template <int eights, int rows>
HWY_NOINLINE void all_sums(const SumShape& shape, Survivors survivors, const float* dense,
                           std::span<const Run> runs, std::span<const Sum> sums, float* out,
                           bool accumulate) {
  for (const Sum& sum : sums)
    one_sum<eights, rows>(shape, survivors, dense, runs, sum, out, accumulate);
}

template <int rows, std::size_t... index>
constexpr auto all_widths(std::index_sequence<index...>) {
  return std::array{&all_sums<static_cast<int>(index) + 1, rows>...};
}
template <int rows>
constexpr auto all_widths() {
  return all_widths<rows>(std::make_index_sequence<kMaxEights / rows>());
}

void sums_of(const SumShape& shape, Survivors survivors, const float* dense,
             std::span<const Run> runs, std::span<const Sum> sums, float* out, bool accumulate) {
  static constexpr auto kOneRow = all_widths<1>();
  static constexpr auto kTwoRows = all_widths<2>();
  static constexpr auto kThreeRows = all_widths<3>();
  const auto width = static_cast<std::size_t>(shape.eights - 1);
  const auto function = shape.rows == 1   ? kOneRow[width]
                        : shape.rows == 2 ? kTwoRows[width]
                                          : kThreeRows[width];
  function(shape, survivors, dense, runs, sums, out, accumulate);
}

#else  // Vectors of four would need twice the registers there are; the compiler does as well.

void sums_of(const SumShape& shape, Survivors survivors, const float* dense,
             std::span<const Run> runs, std::span<const Sum> sums, float* out, bool accumulate) {
  sparse_sums_scalar(shape, survivors, dense, runs, sums, out, accumulate);
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace slimgrad::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad::kernels {
namespace {

HWY_EXPORT(sums_of);

}  // namespace

void sparse_sums_scalar(const SumShape& shape, Survivors survivors, const float* dense,
                        std::span<const Run> runs, std::span<const Sum> sums, float* out,
                        bool accumulate) noexcept {
  const int columns = 8 * shape.eights;
  for (const Sum& sum : sums) {
    for (int row = 0; row < shape.rows; ++row) {
      float* const to = out + sum.out + row * shape.out_stride;
      float totals[8 * kMaxEights] = {};
      if (accumulate) std::copy(to, to + columns, totals);
      for (std::int64_t r = sum.first_run; r < sum.last_run; ++r) {
        const Run& run = runs[static_cast<std::size_t>(r)];
        for (std::int64_t s = run.begin; s < run.end; ++s) {
          const float* const from =
              dense + run.displacement + survivors.offsets[s] + row * shape.dense_stride;
          for (int c = 0; c < columns; ++c) totals[c] += survivors.values[s] * from[c];
        }
      }
      std::copy(totals, totals + columns, to);
    }
  }
}

void sparse_sums(const SumShape& shape, Survivors survivors, const float* dense,
                 std::span<const Run> runs, std::span<const Sum> sums, float* out,
                 bool accumulate) noexcept {
  if (use_scalar()) return sparse_sums_scalar(shape, survivors, dense, runs, sums, out, accumulate);
  HWY_DYNAMIC_DISPATCH(sums_of)(shape, survivors, dense, runs, sums, out, accumulate);
}

}  // namespace slimgrad::kernels
#endif  // HWY_ONCE
