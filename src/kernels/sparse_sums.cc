#include "kernels/sparse_sums.h"

#include <algorithm>
#include <array>
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

// Totals of 8 * eights columns. Twelve members and not an array: compilers keep members in
// registers, and arrays on the stack.
template <int eights>
struct Totals {
  Floats t0, t1, t2, t3, t4, t5, t6, t7, t8, t9, t10, t11;

  template <typename Visit>
  HWY_INLINE void for_each(const Visit& visit) {
    visit(t0, 0);
    if constexpr (eights > 1) visit(t1, 8);
    if constexpr (eights > 2) visit(t2, 16);
    if constexpr (eights > 3) visit(t3, 24);
    if constexpr (eights > 4) visit(t4, 32);
    if constexpr (eights > 5) visit(t5, 40);
    if constexpr (eights > 6) visit(t6, 48);
    if constexpr (eights > 7) visit(t7, 56);
    if constexpr (eights > 8) visit(t8, 64);
    if constexpr (eights > 9) visit(t9, 72);
    if constexpr (eights > 10) visit(t10, 80);
    if constexpr (eights > 11) visit(t11, 88);
  }

  HWY_INLINE void clear() {
    for_each([](Floats& total, int) HWY_ATTR { total = hn::Zero(F32()); });
  }
  HWY_INLINE void add(float value, const float* row) {
    const Floats factor = hn::Set(F32(), value);
    for_each([&](Floats& total, int column)
                 HWY_ATTR { total = hn::MulAdd(factor, hn::LoadU(F32(), row + column), total); });
  }
};

// Chains of additions: a multiply-add takes four cycles and two start in each, so eight must be
// under way at a time.
template <int eights>
HWY_INLINE void one_sum(Survivors survivors, const float* dense, std::span<const Run> runs,
                        const Sum& sum, bool accumulate) {
  constexpr bool kTwoChains = eights <= 4;
  Totals<eights> even, odd;
  even.clear();
  if (accumulate)
    even.for_each([&](Floats& total, int column)
                      HWY_ATTR { total = hn::LoadU(F32(), sum.out + column); });
  if constexpr (kTwoChains) odd.clear();
  for (std::int64_t r = sum.first_run; r < sum.last_run; ++r) {
    const Run& run = runs[static_cast<std::size_t>(r)];
    const std::int32_t* offset = survivors.offsets + run.begin;
    const std::int32_t* const last = survivors.offsets + run.end;
    const float* value = survivors.values + run.begin;
    if constexpr (kTwoChains) {
      for (; offset + 1 < last; offset += 2, value += 2) {
        even.add(value[0], dense + (run.displacement + offset[0]));
        odd.add(value[1], dense + (run.displacement + offset[1]));
      }
    }
    for (; offset < last; ++offset, ++value) even.add(*value, dense + (run.displacement + *offset));
  }
  even.for_each([&](Floats& total, int column)
                    HWY_ATTR { hn::StoreU(total, F32(), sum.out + column); });
  if constexpr (kTwoChains) {
    odd.for_each([&](Floats& total, int column) HWY_ATTR {
      hn::StoreU(hn::Add(hn::LoadU(F32(), sum.out + column), total), F32(), sum.out + column);
    });
  }
}

template <int eights>
HWY_NOINLINE void all_sums(Survivors survivors, const float* dense, std::span<const Run> runs,
                           std::span<const Sum> sums, bool accumulate) {
  for (const Sum& sum : sums) one_sum<eights>(survivors, dense, runs, sum, accumulate);
}

template <std::size_t... index>
constexpr auto all_widths(std::index_sequence<index...>) {
  return std::array{&all_sums<static_cast<int>(index) + 1>...};
}

void sums_of(int eights, Survivors survivors, const float* dense, std::span<const Run> runs,
             std::span<const Sum> sums, bool accumulate) {
  static constexpr auto kWidths = all_widths(std::make_index_sequence<kMaxEights>());
  kWidths[static_cast<std::size_t>(eights - 1)](survivors, dense, runs, sums, accumulate);
}

#else  // Vectors of four would need twice the registers there are; the compiler does as well.

void sums_of(int eights, Survivors survivors, const float* dense, std::span<const Run> runs,
             std::span<const Sum> sums, bool accumulate) {
  sparse_sums_scalar(eights, survivors, dense, runs, sums, accumulate);
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

void sparse_sums_scalar(int eights, Survivors survivors, const float* dense,
                        std::span<const Run> runs, std::span<const Sum> sums,
                        bool accumulate) noexcept {
  const int columns = 8 * eights;
  for (const Sum& sum : sums) {
    float totals[8 * kMaxEights] = {};
    if (accumulate) std::copy(sum.out, sum.out + columns, totals);
    for (std::int64_t r = sum.first_run; r < sum.last_run; ++r) {
      const Run& run = runs[static_cast<std::size_t>(r)];
      for (std::int64_t s = run.begin; s < run.end; ++s) {
        const float* row = dense + (run.displacement + survivors.offsets[s]);
        for (int c = 0; c < columns; ++c) totals[c] += survivors.values[s] * row[c];
      }
    }
    std::copy(totals, totals + columns, sum.out);
  }
}

void sparse_sums(int eights, Survivors survivors, const float* dense, std::span<const Run> runs,
                 std::span<const Sum> sums, bool accumulate) noexcept {
  if (use_scalar()) return sparse_sums_scalar(eights, survivors, dense, runs, sums, accumulate);
  HWY_DYNAMIC_DISPATCH(sums_of)(eights, survivors, dense, runs, sums, accumulate);
}

}  // namespace slimgrad::kernels
#endif  // HWY_ONCE
