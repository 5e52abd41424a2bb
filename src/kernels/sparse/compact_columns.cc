#include "kernels/sparse/compact_columns.h"

#include <algorithm>
#include <bit>

#include <slimgrad/half.h>

#include "kernels/dispatch.h"
#include "kernels/half_float.h"
#include "kernels/sparse/compact_order.h"
#include "kernels/sparse/pruned_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sparse/compact_columns.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#if HWY_TARGET != HWY_SCALAR
#include "kernels/sparse/survivor_bits-inl.h"
#include "kernels/sparse/transpose-inl.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR && HWY_MAX_BYTES >= 32

// Bit c of byte r becomes bit r of byte c: blocks of four, two and one bits change places.
HWY_INLINE std::uint64_t transpose_bits(std::uint64_t x) {
  const auto swap = [&](std::uint64_t mask, int distance) HWY_ATTR {
    const std::uint64_t difference = (x ^ x >> distance) & mask;
    x ^= difference ^ difference << distance;
  };
  swap(0x00000000f0f0f0f0u, 28);
  swap(0x0000cccc0000ccccu, 14);
  swap(0x00aa00aa00aa00aau, 7);
  return x;
}

// Eight rows of eight columns at a time: transposed, and what survives of each column put at the
// end of its list. That costs the same however many survive.
template <typename T>
HWY_INLINE void append_square(const SurvivorBits& bits, std::size_t first, std::size_t columns,
                              const T* x, Integers offsets, const ListRoom& room,
                              std::int64_t* ends) {
  std::uint64_t rows = 0;
  Integers square[8];
#pragma GCC unroll 8
  for (std::size_t r = 0; r < 8; ++r) {
    rows |= std::uint64_t{bits.eight(first + r * columns)} << 8 * r;
    square[r] = load(x + first + r * columns);
  }
  transpose_square(I32(), square);
  const std::uint64_t survive = transpose_bits(rows);
#pragma GCC unroll 8
  for (std::size_t c = 0; c < 8; ++c) {
    const auto lanes = static_cast<std::uint8_t>(survive >> 8 * c);
    const auto order = hn::IndicesFromVec(I32(), hn::LoadU(I32(), kLanes[lanes].data()));
    store(hn::TableLookupLanes(square[c], order), room.values + ends[c]);
    hn::StoreU(hn::TableLookupLanes(offsets, order), I32(), room.offsets + ends[c]);
    ends[c] += std::popcount(lanes);
  }
}

// Survivors one by one, each to the end of its list.
template <typename T>
HWY_INLINE void append_row(const SurvivorBits& bits, std::size_t first, std::size_t count,
                           const T* x, std::int32_t offset, const ListRoom& room) {
  float* const values = room.values;
  std::int32_t* const offsets = room.offsets;
  std::int64_t* const ends = room.ends;
  bits.for_each(first, count, [=](std::size_t i) HWY_ATTR {
    const std::int64_t to = ends[i]++;
    values[to] = to_float(x[i]);
    offsets[to] = offset;
  });
}

// The same for whole rows of a width that is a power of two: words of bits may hold several.
template <typename T>
HWY_INLINE void append_rows(const SurvivorBits& bits, std::size_t count, std::size_t width,
                            const T* x, const std::int32_t* row_offsets, const ListRoom& room) {
  const int shift = std::countr_zero(width);
  float* const values = room.values;
  std::int32_t* const offsets = room.offsets;
  std::int64_t* const ends = room.ends;
  bits.for_each(0, count * width, [=](std::size_t i) HWY_ATTR {
    const std::int64_t to = ends[i & (width - 1)]++;
    values[to] = to_float(x[i]);
    offsets[to] = row_offsets[i >> shift];
  });
}

// Copies a list to where it stays, and gives the survivors their values: they are few, so that this
// is not done for all elements. Whole vectors, beyond the end.
HWY_INLINE void pack_list(const Raised& raised, const float* values, const std::int32_t* offsets,
                          std::int64_t size, std::int32_t offset, float* to_values,
                          std::int32_t* to_offsets) {
  const Integers more = hn::Set(I32(), offset);
  for (std::int64_t i = 0; i < size; i += 8) {
    store(raised(load(values + i)), to_values + i);
    hn::StoreU(hn::Add(hn::LoadU(I32(), offsets + i), more), I32(), to_offsets + i);
  }
}

template <typename T>
HWY_INLINE void compact_matrix(const LoopTreatment& treatment, const MatrixRows<T>& rows,
                               const ColumnLists& lists) {
  if (divides(treatment)) return compact_columns_scalar(treatment, rows, lists);
  SurvivorBits bits(treatment);
  const Raised raised(treatment);
  const ListRoom& room = lists.room;
  for (std::int64_t c = 0; c < lists.num_columns; ++c) room.ends[c] = c * room.stride;
  // Whole rows several at a time; of some columns among many, row by row.
  static_assert(SurvivorBits::kMost >= kMostColumns);
  const bool whole = lists.num_columns == rows.columns && !rows.has_gaps();
  const std::int64_t rows_at_once =
      whole ? static_cast<std::int64_t>(SurvivorBits::kMost) / lists.num_columns : 1;
  const auto num_columns = static_cast<std::size_t>(lists.num_columns);
  const bool squares = lists.many && whole && num_columns % 8 == 0 && rows.first_index % 8 == 0;
  for (std::int64_t first = 0; first < rows.count; first += rows_at_once) {
    const std::int64_t count = std::min(rows_at_once, rows.count - first);
    const std::int32_t* const row_offsets = lists.row_offsets + first;
    const T* const x = rows.data + first * rows.stride + lists.first_column;
    bits.find(x, static_cast<std::size_t>(count) * num_columns,
              rows.first_index + static_cast<std::uint64_t>(x - rows.data));
    std::int64_t r = 0;
    if (squares) {
      for (; r + 8 <= count; r += 8)
        for (std::size_t c = 0; c < num_columns; c += 8)
          append_square(bits, static_cast<std::size_t>(r) * num_columns + c, num_columns, x,
                        hn::LoadU(I32(), row_offsets + r), room, room.ends + c);
    } else if (whole && std::has_single_bit(num_columns)) {
      append_rows(bits, static_cast<std::size_t>(count), num_columns, x, row_offsets, room);
      r = count;
    }
    for (; r < count; ++r)
      append_row(bits, static_cast<std::size_t>(r) * num_columns, num_columns, x + r * rows.stride,
                 row_offsets[r], room);
  }
  std::int64_t to = lists.starts[0];
  for (std::int64_t c = 0; c < lists.num_columns; ++c) {
    const std::int64_t from = c * room.stride, size = room.ends[c] - from;
    pack_list(raised, room.values + from, room.offsets + from, size,
              lists.column_offsets != nullptr ? lists.column_offsets[c] : 0, lists.values + to,
              lists.offsets + to);
    lists.starts[c + 1] = to += size;
  }
}

#else

template <typename T>
void compact_matrix(const LoopTreatment& treatment, const MatrixRows<T>& rows,
                    const ColumnLists& lists) {
  if (!treatment.prunes()) return compact_columns_scalar(treatment, rows, lists);
  const ListRoom& room = lists.room;
  for (std::int64_t c = 0; c < lists.num_columns; ++c) room.ends[c] = c * room.stride;
  const MatrixRows<T> wanted = {rows.data + lists.first_column, rows.count, lists.num_columns,
                                rows.first_index + static_cast<std::uint64_t>(lists.first_column),
                                rows.stride};
  for_pruned_rows(treatment, wanted,
                  [&](const T* x, std::int64_t row, std::int64_t column, std::int64_t count) {
                    const std::int32_t offset = lists.row_offsets[row];
                    for (std::int64_t i = 0; i < count; ++i) {
                      const std::uint32_t bits = float_bits(x[i]);
                      if ((bits & ~kSignMask) == 0) continue;
                      const std::int64_t end = room.ends[column + i]++;
                      room.values[end] = std::bit_cast<float>(bits);
                      room.offsets[end] = offset;
                    }
                  });
  std::int64_t to = lists.starts[0];
  for (std::int64_t c = 0; c < lists.num_columns; ++c) {
    const std::int32_t more = lists.column_offsets != nullptr ? lists.column_offsets[c] : 0;
    for (std::int64_t i = c * room.stride; i < room.ends[c]; ++i, ++to) {
      lists.values[to] = room.values[i];
      lists.offsets[to] = room.offsets[i] + more;
    }
    lists.starts[c + 1] = to;
  }
}

#endif

void compact_columns_float32(const LoopTreatment& treatment, const MatrixRows<float>& rows,
                             const ColumnLists& lists) {
  compact_matrix(treatment, rows, lists);
}
void compact_columns_bfloat16(const LoopTreatment& treatment, const MatrixRows<BFloat16Bits>& rows,
                              const ColumnLists& lists) {
  compact_matrix(treatment, rows, lists);
}
void compact_columns_float16(const LoopTreatment& treatment, const MatrixRows<Float16Bits>& rows,
                             const ColumnLists& lists) {
  compact_matrix(treatment, rows, lists);
}

}  // namespace HWY_NAMESPACE
}  // namespace slimgrad::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad::kernels {
namespace {

HWY_EXPORT(compact_columns_float32);
HWY_EXPORT(compact_columns_bfloat16);
HWY_EXPORT(compact_columns_float16);

}  // namespace

template <typename T>
void compact_columns_scalar(const LoopTreatment& treatment, const MatrixRows<T>& rows,
                            const ColumnLists& lists) noexcept {
  const ValueRule rule(treatment);
  ApplyCounts ignored;
  for (std::int64_t c = 0; c < lists.num_columns; ++c) {
    const std::int32_t more = lists.column_offsets != nullptr ? lists.column_offsets[c] : 0;
    std::int64_t to = lists.starts[c];
    for (std::int64_t row = 0; row < rows.count; ++row) {
      const std::int64_t at = row * rows.stride + lists.first_column + c;
      std::uint32_t x = float_bits(rows.data[at]);
      if (treatment.prunes())
        x = rule.apply(x, rows.first_index + static_cast<std::uint64_t>(at), ignored);
      if ((x & ~kSignMask) == 0) continue;
      lists.values[to] = std::bit_cast<float>(x);
      lists.offsets[to++] = lists.row_offsets[row] + more;
    }
    lists.starts[c + 1] = to;
  }
}

template <>
void compact_columns(const LoopTreatment& treatment, const MatrixRows<float>& rows,
                     const ColumnLists& lists) noexcept {
  if (use_scalar()) return compact_columns_scalar(treatment, rows, lists);
  HWY_DYNAMIC_DISPATCH(compact_columns_float32)(treatment, rows, lists);
}
template <>
void compact_columns(const LoopTreatment& treatment, const MatrixRows<BFloat16Bits>& rows,
                     const ColumnLists& lists) noexcept {
  if (use_scalar()) return compact_columns_scalar(treatment, rows, lists);
  HWY_DYNAMIC_DISPATCH(compact_columns_bfloat16)(treatment, rows, lists);
}
template <>
void compact_columns(const LoopTreatment& treatment, const MatrixRows<Float16Bits>& rows,
                     const ColumnLists& lists) noexcept {
  if (use_scalar()) return compact_columns_scalar(treatment, rows, lists);
  HWY_DYNAMIC_DISPATCH(compact_columns_float16)(treatment, rows, lists);
}

template void compact_columns_scalar(const LoopTreatment&, const MatrixRows<float>&,
                                     const ColumnLists&) noexcept;
template void compact_columns_scalar(const LoopTreatment&, const MatrixRows<BFloat16Bits>&,
                                     const ColumnLists&) noexcept;
template void compact_columns_scalar(const LoopTreatment&, const MatrixRows<Float16Bits>&,
                                     const ColumnLists&) noexcept;

}  // namespace slimgrad::kernels
#endif  // HWY_ONCE
