#include "kernels/compact_columns.h"

#include <algorithm>
#include <bit>
#include <vector>

#include <slimgrad/half.h>

#include "kernels/apply.h"
#include "kernels/dispatch.h"
#include "kernels/half_float.h"

#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/compact_columns.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#if HWY_TARGET != HWY_SCALAR
#include "kernels/compact-inl.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR && HWY_MAX_BYTES >= 32

// Rows of eight lanes to columns: pairs, then pairs of pairs inside 128-bit blocks, then blocks.
HWY_INLINE void turn(Integers (&rows)[8]) {
  const I32 i32;
  const hn::RepartitionToWide<I32> i64;
  Integers pairs[8], fours[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = hn::InterleaveLower(i32, rows[i], rows[i + 1]);
    pairs[i + 1] = hn::InterleaveUpper(i32, rows[i], rows[i + 1]);
  }
  // fours[4 h + k]: rows 4 h to 4 h + 3 of columns k and, in the upper block, k + 4.
#pragma GCC unroll 8
  for (int h = 0; h < 8; h += 4)
    for (int k = 0; k < 2; ++k) {
      const auto a = hn::BitCast(i64, pairs[h + k]), b = hn::BitCast(i64, pairs[h + 2 + k]);
      fours[h + 2 * k] = hn::BitCast(i32, hn::InterleaveLower(i64, a, b));
      fours[h + 2 * k + 1] = hn::BitCast(i32, hn::InterleaveUpper(i64, a, b));
    }
#pragma GCC unroll 8
  for (int k = 0; k < 4; ++k) {
    rows[k] = hn::ConcatLowerLower(i32, fours[4 + k], fours[k]);
    rows[k + 4] = hn::ConcatUpperUpper(i32, fours[4 + k], fours[k]);
  }
}

// Consecutive values with zeros for what vanishes; what survives gets its value later. Whole
// vectors are written, the last one with zeros at its end.
template <bool prunes, typename T>
HWY_INLINE void prune_values(const Pruned& pruned, const T* x, std::size_t count,
                             const float* draws, std::uint64_t index, std::int32_t* out) {
  const auto step = [&](Integers values, std::size_t i) HWY_ATTR {
    if constexpr (prunes) {
      const Integers magnitude = hn::And(values, splat(~kSignMask));
      const Floats excess = pruned.excess(magnitude, draws + i);
      const auto vanishes = hn::Lt(excess, hn::Set(F32(), 1.0f));
      // Undecided: not negative, so that the sign is not set, but below 1.
      const Floats open = hn::AndNot(excess, hn::VecFromMask(F32(), vanishes));
      if (HWY_LIKELY(bits_of(hn::MaskFromVec(open)) == 0))
        values = as_bits(hn::IfThenZeroElse(vanishes, as_floats(values)));
      else
        values = pruned.decide_lanes(values, index + i);
    }
    hn::StoreU(values, I32(), out + i);
  };
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) step(load(x + i), i);
  if (i < count) step(load_some(x + i, count - i), i);
}

// Copies a list to where it stays, and gives the survivors their values: they are few, so that this
// is not done for all elements. Whole vectors, beyond the end.
template <bool prunes>
HWY_INLINE void pack_list(const Pruned& pruned, const float* values, const std::int32_t* offsets,
                          std::int32_t count, float* to_values, std::int32_t* to_offsets) {
  for (std::int32_t i = 0; i < count; i += 8) {
    Integers x = load(values + i);
    if constexpr (prunes) x = pruned.survivor(x, hn::And(x, splat(~kSignMask)));
    store(x, to_values + i);
    hn::StoreU(hn::LoadU(I32(), offsets + i), I32(), to_offsets + i);
  }
}

// Appends eight rows of eight columns, or of those that there are.
HWY_INLINE void append_square(const std::int32_t* from, std::size_t step, Integers positions,
                              std::size_t num_columns, float* values, std::int32_t* offsets,
                              std::size_t stride, std::int32_t* counts) {
  Integers square[8];
#pragma GCC unroll 8
  for (std::size_t i = 0; i < 8; ++i) square[i] = hn::Load(I32(), from + i * step);
  turn(square);
  const auto append = [&](std::size_t c) HWY_ATTR {
    const std::uint8_t vanished = zeros_of(hn::And(square[c], splat(~kSignMask)));
    const auto order = order_of(vanished);
    const std::size_t to = c * stride + static_cast<std::size_t>(counts[c]);
    hn::StoreU(as_floats(hn::TableLookupLanes(square[c], order)), F32(), values + to);
    hn::StoreU(hn::TableLookupLanes(positions, order), I32(), offsets + to);
    counts[c] += 8 - std::popcount(vanished);
  };
  if (HWY_LIKELY(num_columns == 8)) {
#pragma GCC unroll 8
    for (std::size_t c = 0; c < 8; ++c) append(c);
  } else {
    for (std::size_t c = 0; c < num_columns; ++c) append(c);
  }
}

HWY_INLINE Integers load_positions(const std::int32_t* from, std::size_t count) {
  std::int32_t padded[8] = {};
  if (count < 8) from = std::copy(from, from + count, padded) - count;
  return hn::LoadU(I32(), from);
}

// Some columns of some rows, pruned, in half of the first-level cache: rows are read one after
// the other, as the CPU expects it, before they are turned. Of as many rows as there is room for,
// eight lists get the survivors before the next eight have their turn, so that few lists are
// written at a time.
class PrunedRows {
 public:
  HWY_INLINE PrunedRows(const Plan& plan, std::size_t num_columns)
      : pruned_(plan),
        drawing_(pruned_.rule.random()),
        num_columns_(num_columns),
        step_((num_columns + 7) / 8 * 8),
        most_rows_(kRoom / step_ / 8 * 8) {}

  const Pruned& pruned() const { return pruned_; }
  std::size_t step() const { return step_; }
  std::size_t most_rows() const { return most_rows_; }
  const std::int32_t* row(std::size_t r) const { return values_ + r * step_; }

  // With zeros behind the last column and, up to a multiple of eight, behind the last row.
  template <bool prunes, typename T>
  HWY_INLINE void fill(const T* x, std::size_t columns, std::size_t num_rows, std::uint64_t index) {
    if (step_ == columns) {
      fill_some<prunes>(x, num_rows * columns, index, values_);
    } else {
      for (std::size_t r = 0; r < num_rows; ++r)
        fill_some<prunes>(x + r * columns, num_columns_, index + r * columns, values_ + r * step_);
    }
    std::fill(values_ + num_rows * step_, values_ + (num_rows + 7) / 8 * 8 * step_, 0);
  }

 private:
  static constexpr std::size_t kRoom = 4096;
  static_assert(kRoom >= 8 * kMostColumns);

  template <bool prunes, typename T>
  HWY_INLINE void fill_some(const T* x, std::size_t count, std::uint64_t index, std::int32_t* out) {
    HWY_ALIGN float buffer[kPiece + 2 * Draws::kElements];
    for (std::size_t i = 0; i < count; i += kPiece) {
      const std::size_t size = std::min(kPiece, count - i);
      const float* draws = buffer;
      // The last vector reads beyond the end, and a draw that is not there could be anything.
      if constexpr (prunes) draws = draw(drawing_, index + i, (size + 7) / 8 * 8, buffer);
      prune_values<prunes>(pruned_, x + i, size, draws, index + i, out + i);
    }
  }

  HWY_ALIGN std::int32_t values_[kRoom];
  const Pruned pruned_;
  Draws drawing_;
  std::size_t num_columns_, step_, most_rows_;
};

// The elements that come as many squares later: while squares are turned nothing is read, and the
// CPU does not look so far ahead by itself.
template <typename T>
HWY_INLINE void prefetch(const T* x) {
  for (std::size_t i = 0; i < 64; i += 64 / sizeof(T)) hwy::Prefetch(x + i);
}

template <bool prunes, typename T>
HWY_NOINLINE void compact_all(const Plan& plan, const MatrixRows<T>& rows,
                              const ColumnLists& lists) {
  const auto columns = static_cast<std::size_t>(rows.columns);
  const auto num_rows = static_cast<std::size_t>(rows.count);
  const auto num_columns = static_cast<std::size_t>(lists.num_columns);
  const ListRoom& room = lists.room;
  const auto stride = static_cast<std::size_t>(room.stride);
  PrunedRows some(plan, num_columns);
  std::fill(room.counts, room.counts + num_columns, 0);
  for (std::size_t first = 0; first < num_rows; first += some.most_rows()) {
    const std::size_t count = std::min(num_rows - first, some.most_rows());
    const std::size_t at = first * columns + static_cast<std::size_t>(lists.first_column);
    some.template fill<prunes>(rows.data + at, columns, count, rows.first_index + at);
    // What the next round reads, as it comes: elements that follow each other, or parts of rows.
    const T* next = rows.data + at + count * columns;
    std::size_t left = num_columns == columns ? count * columns : num_columns;
    for (std::size_t c = 0; c < num_columns; c += 8)
      for (std::size_t r = 0; r < count; r += 8) {
        prefetch(next);
        next += 64;
        left -= std::min<std::size_t>(left, 64);
        if (left == 0) {
          next += columns - num_columns;
          left = num_columns;
        }
        append_square(some.row(r) + c, some.step(),
                      load_positions(lists.row_offsets + first + r, count - r),
                      std::min<std::size_t>(8, num_columns - c), room.values + c * stride,
                      room.offsets + c * stride, stride, room.counts + c);
      }
  }
  std::int64_t to = lists.starts[0];
  for (std::size_t c = 0; c < num_columns; ++c) {
    pack_list<prunes>(some.pruned(), room.values + c * stride, room.offsets + c * stride,
                      room.counts[c], lists.values + to, lists.offsets + to);
    lists.starts[c + 1] = to += room.counts[c];
  }
}

template <typename T>
HWY_INLINE void compact_matrix(const Plan& plan, const MatrixRows<T>& rows,
                               const ColumnLists& lists) {
  if (divides(plan)) return compact_columns_scalar(plan, rows, lists);
  plan.prunes ? compact_all<true>(plan, rows, lists) : compact_all<false>(plan, rows, lists);
}

#elif HWY_TARGET != HWY_SCALAR

template <typename T>
void compact_matrix(const Plan& plan, const MatrixRows<T>& rows, const ColumnLists& lists) {
  if (!plan.prunes) return compact_columns_scalar(plan, rows, lists);
  static thread_local std::vector<T> buffer;
  compact_columns_scalar(Plan{}, pruned_rows(plan, rows, buffer), lists);
}

#else

template <typename T>
void compact_matrix(const Plan& plan, const MatrixRows<T>& rows, const ColumnLists& lists) {
  compact_columns_scalar(plan, rows, lists);
}

#endif

void compact_columns_float32(const Plan& plan, const MatrixRows<float>& rows,
                             const ColumnLists& lists) {
  compact_matrix(plan, rows, lists);
}
void compact_columns_bfloat16(const Plan& plan, const MatrixRows<BFloat16Bits>& rows,
                              const ColumnLists& lists) {
  compact_matrix(plan, rows, lists);
}

}  // namespace HWY_NAMESPACE
}  // namespace slimgrad::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad::kernels {
namespace {

HWY_EXPORT(compact_columns_float32);
HWY_EXPORT(compact_columns_bfloat16);

}  // namespace

template <typename T>
void compact_columns_scalar(const Plan& plan, const MatrixRows<T>& rows,
                            const ColumnLists& lists) noexcept {
  const ValueRule rule(plan);
  ApplyCounts ignored;
  for (std::int64_t c = 0; c < lists.num_columns; ++c) {
    std::int64_t to = lists.starts[c];
    for (std::int64_t row = 0; row < rows.count; ++row) {
      const std::int64_t at = row * rows.columns + lists.first_column + c;
      std::uint32_t x = float_bits(rows.data[at]);
      if (plan.prunes)
        x = rule.apply(x, rows.first_index + static_cast<std::uint64_t>(at), ignored);
      if ((x & ~kSignMask) == 0) continue;
      lists.values[to] = std::bit_cast<float>(x);
      lists.offsets[to++] = lists.row_offsets[row];
    }
    lists.starts[c + 1] = to;
  }
}

template <>
void compact_columns(const Plan& plan, const MatrixRows<float>& rows,
                     const ColumnLists& lists) noexcept {
  if (use_scalar()) return compact_columns_scalar(plan, rows, lists);
  HWY_DYNAMIC_DISPATCH(compact_columns_float32)(plan, rows, lists);
}
template <>
void compact_columns(const Plan& plan, const MatrixRows<BFloat16Bits>& rows,
                     const ColumnLists& lists) noexcept {
  if (use_scalar()) return compact_columns_scalar(plan, rows, lists);
  HWY_DYNAMIC_DISPATCH(compact_columns_bfloat16)(plan, rows, lists);
}

template void compact_columns_scalar(const Plan&, const MatrixRows<float>&,
                                     const ColumnLists&) noexcept;
template void compact_columns_scalar(const Plan&, const MatrixRows<BFloat16Bits>&,
                                     const ColumnLists&) noexcept;

}  // namespace slimgrad::kernels
#endif  // HWY_ONCE
