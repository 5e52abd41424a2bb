// What backward keeps, at 8, 4 and 2 bits a value: formats/saved.h has the layout and the rules. A
// warp has a block of 512 values, a thread four neighbours of four of its rows.
#ifndef SLIMGRAD_DEVICE_SAVED_H_
#define SLIMGRAD_DEVICE_SAVED_H_

#include <cstddef>
#include <cstdint>

#include "base/rng.h"
#include "device/block.h"
#include "device/fewbit.h"
#include "formats/fewbit.h"
#include "formats/saved.h"
#include "kernels/half_float.h"

namespace slimgrad::device {

template <typename T>
struct PackSavedArguments {
  const T* in;
  std::uint32_t* words;  // saved::num_words(size, format); the last one, `bad`, is added to
  std::uint64_t size;
  std::uint64_t seed;  // derived for this tensor
  std::uint32_t group;
  std::uint32_t is_stochastic;
};
static_assert(sizeof(PackSavedArguments<float>) == 40);

// The rows of a block, as one of its warps sees them.
struct SavedRows {
  static constexpr int kThreads = 128;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kRowsEach = 4;  // rows of a thread
  static constexpr int kRowWidth = static_cast<int>(fewbit::kNumColumns);

  std::uint64_t block;
  int warp, lane, column;

  SLIMGRAD_HD SavedRows(std::uint64_t grid_block, int thread)
      : block(grid_block * kWarps + static_cast<std::uint64_t>(thread / kWarp)),
        warp(thread / kWarp),
        lane(thread % kWarp),
        column(lane % kColumns * kColumns) {}

  SLIMGRAD_HD int row(int i) const { return i * (kWarp / kColumns) + lane / kColumns; }
  SLIMGRAD_HD std::uint64_t at(int i) const {
    return block * saved::kBlockValues + static_cast<std::uint64_t>(row(i) * kRowWidth + column);
  }
};

constexpr std::uint64_t saved_bytes(std::uint64_t size, int bits, std::uint32_t group) {
  return saved::num_words(size, {.bits = bits, .group = group}) * sizeof(std::uint32_t);
}

template <typename T, int kBits>
struct PackSaved {
  static constexpr int kThreads = SavedRows::kThreads;
  static constexpr int kRows = static_cast<int>(fewbit::kNumRows);
  static constexpr int kDrawBlocks = 16;  // of Philox: they serve the windows of 512 values
  using Arguments = PackSavedArguments<T>;
  struct Warp {
    std::uint32_t draws[4 * kDrawBlocks];
    // Four columns each; a fifth that is not used keeps rows in different banks.
    saved::Range parts[kRows][kColumns + 1];
    saved::Scale scales[kRows];
    std::uint32_t codes[saved::kBlockValues / 4];  // a byte each
  };
  struct Shared {
    Warp warps[SavedRows::kWarps];
  };

  static SLIMGRAD_HD std::uint64_t num_blocks(const Arguments& a) {
    return (fewbit::num_blocks(a.size) + SavedRows::kWarps - 1) / SavedRows::kWarps;
  }
  static Traffic traffic(const Arguments& a) {
    return {a.size * sizeof(T), saved_bytes(a.size, kBits, a.group)};
  }

  static SLIMGRAD_HD void run(const Block<kThreads>& block, const Arguments& a, Shared& shared) {
    const std::uint64_t count = fewbit::num_blocks(a.size);
    typename Block<kThreads>::template PerThread<Values> values;
    block.each([&](int thread) {
      const SavedRows rows(block.index, thread);
      if (rows.block >= count) return;
      Warp& warp = shared.warps[rows.warp];
      load(rows, a, values[thread], warp);
      if (a.is_stochastic != 0 && rows.lane < kDrawBlocks) draw(rows, a.seed, warp);
    });
    find_scales(block, a, shared);
    block.each([&](int thread) {
      const SavedRows rows(block.index, thread);
      if (rows.block < count)
        code(rows, a.is_stochastic != 0, values[thread], shared.warps[rows.warp]);
    });
    block.each([&](int thread) {
      const SavedRows rows(block.index, thread);
      if (rows.block < count) store(rows, a.words, shared.warps[rows.warp]);
    });
  }

 private:
  struct Values {
    float of[SavedRows::kRowsEach][kColumns];
  };

  // Behind the end is the last value.
  static SLIMGRAD_HD void load(const SavedRows& rows, const Arguments& a, Values& values,
                               Warp& warp) {
    const bool aligned = is_aligned(a.in, sizeof(Columns<T>));
    SLIMGRAD_UNROLL
    for (int i = 0; i < SavedRows::kRowsEach; ++i) {
      const std::uint64_t at = rows.at(i);
      const Columns<T> x =
          load_columns(a.in, at, a.size, aligned && at + kColumns <= a.size, a.in[a.size - 1]);
      SLIMGRAD_UNROLL
      for (int c = 0; c < kColumns; ++c) values.of[i][c] = kernels::to_float(x.values[c]);
      saved::Range range(values.of[i][0]);
      SLIMGRAD_UNROLL
      for (int c = 1; c < kColumns; ++c) range.join(saved::Range(values.of[i][c]));
      warp.parts[rows.row(i)][rows.lane % kColumns] = range;
    }
  }

  // Words of two tiles, as RandomStream::window() reads them. A lane a Philox block.
  static SLIMGRAD_HD void draw(const SavedRows& rows, std::uint64_t seed, Warp& warp) {
    const RandomStream random(seed, Stream::kSaved);
    const std::uint64_t first = rows.block * kDrawBlocks;
    const PhiloxWords words =
        random.block(first + static_cast<std::uint64_t>(rows.lane), random.stream);
    const int tile = rows.lane / 4, lanes = rows.lane % 4;
    std::uint32_t* const to = warp.draws + tile * 16 + 2 * lanes;
    SLIMGRAD_UNROLL
    for (int w = 0; w < 4; ++w) to[w / 2 * 8 + w % 2] = words[w] ^ 0x80008000u;
  }
  // RandomStream::window() of a block's element e.
  static SLIMGRAD_HD std::uint32_t window(const Warp& warp, int e) {
    constexpr int kWindow = static_cast<int>(kWindowElements);
    const std::uint32_t word = warp.draws[e / kWindow * 32 + e % 32];
    const int from = e / 32 % 4 * 8;
    const std::uint32_t flipped = e % kWindow < kWindow / 2 ? 0 : 0x8000u;
    return ((from == 0 ? word : word >> from | word << (32 - from)) & 0xffffu) ^ flipped;
  }

  // A lane a row; then all rows of a group have the group's range.
  static SLIMGRAD_HD void find_scales(const Block<kThreads>& block, const Arguments& a,
                                      Shared& shared) {
    const std::uint64_t count = fewbit::num_blocks(a.size);
    typename Block<kThreads>::template PerThread<float> minimum, maximum, least;
    typename Block<kThreads>::template PerThread<std::uint32_t> is_finite;
    block.each([&](int thread) {
      const SavedRows rows(block.index, thread);
      minimum[thread] = maximum[thread] = least[thread] = 0;
      is_finite[thread] = 1;
      if (rows.block >= count) return;
      const saved::Range* const parts = shared.warps[rows.warp].parts[rows.lane];
      saved::Range range = parts[0];
      SLIMGRAD_UNROLL
      for (int i = 1; i < kColumns; ++i) range.join(parts[i]);
      minimum[thread] = range.minimum;
      maximum[thread] = range.maximum;
      least[thread] = range.least_positive;
      is_finite[thread] = range.is_finite ? 1 : 0;
    });
    const int size = static_cast<int>(a.group) / SavedRows::kRowWidth;
    block.reduce(minimum, size, [](float x, float y) { return y < x ? y : x; });
    block.reduce(maximum, size, [](float x, float y) { return y > x ? y : x; });
    block.reduce(least, size, [](float x, float y) { return saved::Range::lesser_positive(x, y); });
    block.reduce(is_finite, size, [](std::uint32_t x, std::uint32_t y) { return x & y; });

    const std::uint64_t groups = saved::num_groups(a.size, a.group);
    std::uint32_t* const words = a.words + saved::code_words(a.size, kBits);
    block.each([&](int thread) {
      const SavedRows rows(block.index, thread);
      if (rows.block >= count) return;
      const saved::Scale scale =
          is_finite[thread] != 0
              ? saved::make_scale(minimum[thread], maximum[thread], least[thread], kBits)
              : saved::Scale{};
      shared.warps[rows.warp].scales[rows.lane] = scale;
      const std::uint64_t group = (rows.block * saved::kBlockValues +
                                   static_cast<std::uint64_t>(rows.lane * SavedRows::kRowWidth)) /
                                  a.group;
      if (rows.lane % size != 0 || group >= groups) return;
      words[group] = scale.word;
      if (scale.is_bad()) add_to(words + groups, 1u);
    });
  }

  static SLIMGRAD_HD void code(const SavedRows& rows, bool is_stochastic, const Values& values,
                               Warp& warp) {
    SLIMGRAD_UNROLL
    for (int i = 0; i < SavedRows::kRowsEach; ++i) {
      const saved::Scale& scale = warp.scales[rows.row(i)];
      const int e = rows.row(i) * SavedRows::kRowWidth + rows.column;
      std::uint32_t codes = 0;
      SLIMGRAD_UNROLL
      for (int c = 0; c < kColumns; ++c) {
        const std::uint32_t r = is_stochastic ? window(warp, e + c) : saved::kOne / 2;
        codes |= saved::code_of(values.of[i][c], scale, r, kBits) << 8 * c;
      }
      warp.codes[e / 4] = codes;
    }
  }

  // A word a lane at a time: the codes of some rows of one column.
  static SLIMGRAD_HD void store(const SavedRows& rows, std::uint32_t* words, const Warp& warp) {
    constexpr int kWords = static_cast<int>(fewbit::block_words(kBits));
    constexpr int kWordRows = static_cast<int>(fewbit::rows_per_word(kBits));
    std::uint32_t* const to = words + rows.block * kWords;
    SLIMGRAD_UNROLL
    for (int i = 0; i < kWords; i += kWarp) {
      const int word = i + rows.lane, column = word % SavedRows::kRowWidth;
      const int first = word / SavedRows::kRowWidth * kWordRows;
      std::uint32_t joined = 0;
      SLIMGRAD_UNROLL
      for (int k = 0; k < kWordRows; ++k) {
        const std::uint32_t four = warp.codes[((first + k) * SavedRows::kRowWidth + column) / 4];
        joined |= (four >> 8 * (column % 4) & 0xffu) << kBits * k;
      }
      to[word] = joined;
    }
  }
};

// ---- and back ----------------------------------------------------------------------------------

template <typename T>
struct UnpackSavedArguments {
  const std::uint32_t* words;  // as above, aligned to 16
  T* out;
  std::uint64_t size;
  std::uint32_t group;
};
static_assert(sizeof(UnpackSavedArguments<float>) == 32);

// A thread has four columns.
template <typename T, int kBits>
struct UnpackSaved {
  static constexpr int kThreads = 128;
  using Arguments = UnpackSavedArguments<T>;
  struct Shared {};
  static SLIMGRAD_HD std::uint64_t num_blocks(const Arguments& a) {
    return ColumnsPlace::num_grid_blocks<kThreads>(a.size);
  }
  static Traffic traffic(const Arguments& a) {
    return {saved_bytes(a.size, kBits, a.group), a.size * sizeof(T)};
  }

  static SLIMGRAD_HD void run(const Block<kThreads>& block, const Arguments& a, Shared&) {
    block.each([&](int thread) {
      const ColumnsPlace place(block.index * kThreads + static_cast<std::uint64_t>(thread), a.size);
      if (!place.exists) return;
      const bool whole = place.is_whole(a.size) && is_aligned(a.out, sizeof(Columns<T>));
      const saved::RowGroups groups(a.group);
      const std::uint32_t* const scales = a.words + saved::code_words(a.size, kBits) +
                                          place.block * (saved::kBlockValues / a.group);
      constexpr int kRows = static_cast<int>(fewbit::rows_per_word(kBits));
      for (int w = 0; w < kBits; ++w) {
        const Pack<std::uint32_t> word = load_pack(a.words + place.word(w, kBits));
        SLIMGRAD_UNROLL_4
        for (int k = 0; k < kRows; ++k) {
          const int row = w * kRows + k;
          if (place.at(row) >= a.size) return;
          const saved::Levels levels(scales[groups.of(static_cast<std::size_t>(row))]);
          Columns<T> x;
          SLIMGRAD_UNROLL
          for (int c = 0; c < kColumns; ++c)
            x.values[c] = kernels::from_float_in_range<T>(
                levels.at(word.values[c] >> kBits * k & ((1u << kBits) - 1)));
          store_columns(x, a.out, place.at(row), a.size, whole);
        }
      }
    });
  }
};

}  // namespace slimgrad::device

#endif  // SLIMGRAD_DEVICE_SAVED_H_
