#include "kernels/sparse/sums.h"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "kernels/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sparse/sums.cc"
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

// One sum. Chains of additions: a multiply-add takes four cycles and two start in each, so eight
// must be under way at a time; a narrow sum has two chains.
template <int eights, int rows>
class OneSum {
 public:
  HWY_INLINE OneSum(const SumShape& shape, float* to, bool accumulate)
      : to_(to), dense_stride_(shape.dense_stride), out_stride_(shape.out_stride) {
    even_.clear();
    if (accumulate)
      even_.for_each([&](Floats& total, auto index)
                         HWY_ATTR { total = hn::LoadU(F32(), out(index)); });
    if constexpr (kTwoChains) odd_.clear();
  }

  HWY_INLINE void add(const SurvivorArrays& survivors, std::int64_t begin, std::int64_t end,
                      const float* dense) {
    const std::int32_t* offset = survivors.offsets + begin;
    const std::int32_t* const last = survivors.offsets + end;
    const float* value = survivors.values + begin;
    if constexpr (kTwoChains) {
      for (; offset + 1 < last; offset += 2, value += 2) {
        even_.template add<eights>(value[0], dense + offset[0], dense_stride_);
        odd_.template add<eights>(value[1], dense + offset[1], dense_stride_);
      }
    }
    for (; offset < last; ++offset, ++value)
      even_.template add<eights>(*value, dense + *offset, dense_stride_);
  }

  HWY_INLINE void store() {
    if constexpr (kTwoChains) {
      odd_.for_each([&](Floats& total, auto index)
                        HWY_ATTR { hn::StoreU(total, F32(), out(index)); });
      even_.for_each([&](Floats& total, auto index)
                         HWY_ATTR { total = hn::Add(total, hn::LoadU(F32(), out(index))); });
    }
    even_.for_each([&](Floats& total, auto index)
                       HWY_ATTR { hn::StoreU(total, F32(), out(index)); });
  }

 private:
  using AllTotals = Totals<eights * rows>;
  static constexpr bool kTwoChains = eights * rows <= 4;

  HWY_INLINE float* out(int index) const {
    return to_ + AllTotals::template place<eights>(index, out_stride_);
  }

  AllTotals even_, odd_;
  float* to_;
  std::int64_t dense_stride_, out_stride_;
};

template <int eights, int rows>
HWY_NOINLINE void all_lists(const SumShape& shape, const SurvivorLists& lists, const float* dense,
                            float* out, std::int64_t out_step, bool accumulate) {
  for (std::int64_t l = 0; l < lists.count; ++l, out += out_step) {
    const std::int64_t begin = lists.starts[l], end = lists.starts[l + 1];
    if (accumulate && begin == end) continue;
    OneSum<eights, rows> sum(shape, out, accumulate);
    sum.add(lists.survivors, begin, end, dense);
    sum.store();
  }
}

template <int rows, std::size_t... index>
constexpr auto list_widths(std::index_sequence<index...>) {
  return std::array{&all_lists<static_cast<int>(index) + 1, rows>...};
}
template <int rows>
constexpr auto list_widths() {
  return list_widths<rows>(std::make_index_sequence<kMaxEights / rows>());
}

void lists_sums(const SumShape& shape, const SurvivorLists& lists, const float* dense, float* out,
                std::int64_t out_step, bool accumulate) {
  static constexpr auto kOneRow = list_widths<1>();
  static constexpr auto kTwoRows = list_widths<2>();
  static constexpr auto kThreeRows = list_widths<3>();
  const auto width = static_cast<std::size_t>(shape.eights - 1);
  const auto function = shape.rows == 1   ? kOneRow[width]
                        : shape.rows == 2 ? kTwoRows[width]
                                          : kThreeRows[width];
  function(shape, lists, dense, out, out_step, accumulate);
}

template <int eights>
HWY_NOINLINE void all_reaches(const SurvivorArrays& survivors, std::span<const ListLine> lines,
                              std::span<const Reach> reaches, const float* dense, float* out,
                              std::int64_t out_step, bool accumulate) {
  for (const Reach& reach : reaches) {
    OneSum<eights, 1> sum({eights, 1, 0, 0}, out, accumulate);
    for (const ListLine& line : lines)
      sum.add(survivors, line.starts[reach.first], line.starts[reach.last],
              dense + (line.displacement + reach.displacement));
    sum.store();
    out += out_step;
  }
}

template <std::size_t... index>
constexpr auto reach_widths(std::index_sequence<index...>) {
  return std::array{&all_reaches<static_cast<int>(index) + 1>...};
}

void reaches_sums(int eights, const SurvivorArrays& survivors, std::span<const ListLine> lines,
                  std::span<const Reach> reaches, const float* dense, float* out,
                  std::int64_t out_step, bool accumulate) {
  static constexpr auto kWidths = reach_widths(std::make_index_sequence<kMaxEights>());
  kWidths[static_cast<std::size_t>(eights - 1)](survivors, lines, reaches, dense, out, out_step,
                                                accumulate);
}

#else  // Vectors of four would need twice the registers there are; the compiler does as well.

void lists_sums(const SumShape& shape, const SurvivorLists& lists, const float* dense, float* out,
                std::int64_t out_step, bool accumulate) {
  sum_lists_scalar(shape, lists, dense, out, out_step, accumulate);
}
void reaches_sums(int eights, const SurvivorArrays& survivors, std::span<const ListLine> lines,
                  std::span<const Reach> reaches, const float* dense, float* out,
                  std::int64_t out_step, bool accumulate) {
  sum_reaches_scalar(eights, survivors, lines, reaches, dense, out, out_step, accumulate);
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace slimgrad::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad::kernels {
namespace {

HWY_EXPORT(lists_sums);
HWY_EXPORT(reaches_sums);

void add_survivors(const SurvivorArrays& survivors, std::int64_t begin, std::int64_t end,
                   const float* dense, int columns, float* to) {
  for (std::int64_t s = begin; s < end; ++s)
    for (int c = 0; c < columns; ++c)
      to[c] += survivors.values[s] * dense[survivors.offsets[s] + c];
}

}  // namespace

void sum_lists_scalar(const SumShape& shape, const SurvivorLists& lists, const float* dense,
                      float* out, std::int64_t out_step, bool accumulate) noexcept {
  const int columns = 8 * shape.eights;
  for (std::int64_t l = 0; l < lists.count; ++l, out += out_step)
    for (int row = 0; row < shape.rows; ++row) {
      float* const to = out + row * shape.out_stride;
      if (!accumulate) std::fill(to, to + columns, 0.0f);
      add_survivors(lists.survivors, lists.starts[l], lists.starts[l + 1],
                    dense + row * shape.dense_stride, columns, to);
    }
}

void sum_reaches_scalar(int eights, const SurvivorArrays& survivors,
                        std::span<const ListLine> lines, std::span<const Reach> reaches,
                        const float* dense, float* out, std::int64_t out_step,
                        bool accumulate) noexcept {
  for (const Reach& reach : reaches) {
    if (!accumulate) std::fill(out, out + 8 * eights, 0.0f);
    for (const ListLine& line : lines)
      add_survivors(survivors, line.starts[reach.first], line.starts[reach.last],
                    dense + (line.displacement + reach.displacement), 8 * eights, out);
    out += out_step;
  }
}

void sum_lists(const SumShape& shape, const SurvivorLists& lists, const float* dense, float* out,
               std::int64_t out_step, bool accumulate) noexcept {
  if (use_scalar()) return sum_lists_scalar(shape, lists, dense, out, out_step, accumulate);
  HWY_DYNAMIC_DISPATCH(lists_sums)(shape, lists, dense, out, out_step, accumulate);
}

void sum_reaches(int eights, const SurvivorArrays& survivors, std::span<const ListLine> lines,
                 std::span<const Reach> reaches, const float* dense, float* out,
                 std::int64_t out_step, bool accumulate) noexcept {
  if (use_scalar())
    return sum_reaches_scalar(eights, survivors, lines, reaches, dense, out, out_step, accumulate);
  HWY_DYNAMIC_DISPATCH(reaches_sums)
  (eights, survivors, lines, reaches, dense, out, out_step, accumulate);
}

}  // namespace slimgrad::kernels
#endif  // HWY_ONCE
