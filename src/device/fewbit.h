// Few-bit codes of step tables and backward from them, and backward of invertible activations from
// their output: formats/fewbit.h has the layout, kernels/fewbit the rules. A thread has four
// columns of a block of 512 values, so that it loads and stores four neighbours of a row at a time.
// Four rows are unrolled: their loads overlap, and the code stays in the instruction cache.
#ifndef SLIMGRAD_DEVICE_FEWBIT_H_
#define SLIMGRAD_DEVICE_FEWBIT_H_

#include <cstddef>
#include <cstdint>
#include <limits>

#include "device/block.h"
#include "formats/fewbit.h"
#include "formats/inverse_table.h"
#include "kernels/fewbit/fewbit.h"
#include "kernels/half_float.h"

namespace slimgrad::device {

inline constexpr int kColumns = 4;  // of a thread

template <typename T>
struct alignas(kColumns * sizeof(T)) Columns {
  T values[kColumns];
};

// Where a thread works.
struct ColumnsPlace {
  static constexpr int kThreadsABlock = static_cast<int>(fewbit::kNumColumns) / kColumns;

  std::uint64_t block;  // of 512 values
  int column;
  bool exists;

  SLIMGRAD_HD ColumnsPlace(std::uint64_t thread, std::uint64_t size)
      : block(thread / kThreadsABlock),
        column(static_cast<int>(thread % kThreadsABlock) * kColumns),
        exists(block < fewbit::num_blocks(size)) {}

  SLIMGRAD_HD std::uint64_t at(int row) const {
    return block * fewbit::kBlockValues +
           static_cast<std::uint64_t>(row * static_cast<int>(fewbit::kNumColumns) + column);
  }
  SLIMGRAD_HD std::uint64_t word(int w, int bits) const {
    return block * fewbit::block_words(bits) +
           static_cast<std::uint64_t>(w * static_cast<int>(fewbit::kNumColumns) + column);
  }
  SLIMGRAD_HD bool is_whole(std::uint64_t size) const {
    return (block + 1) * fewbit::kBlockValues <= size;
  }

  template <int kThreads>
  static SLIMGRAD_HD std::uint64_t num_grid_blocks(std::uint64_t size) {
    return (fewbit::num_blocks(size) * kThreadsABlock + kThreads - 1) / kThreads;
  }
};

// Four neighbours. `whole`: all are there, at an address for one load. Behind the end: `padding`.
template <typename T>
SLIMGRAD_HD Columns<T> load_columns(const T* data, std::uint64_t at, std::uint64_t size, bool whole,
                                    T padding) {
  if (whole) return *reinterpret_cast<const Columns<T>*>(data + at);
  Columns<T> x;
  SLIMGRAD_UNROLL
  for (int c = 0; c < kColumns; ++c)
    x.values[c] = at + static_cast<std::uint64_t>(c) < size
                      ? data[at + static_cast<std::uint64_t>(c)]
                      : padding;
  return x;
}
template <typename T>
SLIMGRAD_HD void store_columns(const Columns<T>& x, T* data, std::uint64_t at, std::uint64_t size,
                               bool whole) {
  if (whole) {
    *reinterpret_cast<Columns<T>*>(data + at) = x;
    return;
  }
  SLIMGRAD_UNROLL
  for (int c = 0; c < kColumns; ++c)
    if (at + static_cast<std::uint64_t>(c) < size)
      data[at + static_cast<std::uint64_t>(c)] = x.values[c];
}

// ---- codes -------------------------------------------------------------------------------------

template <typename T>
struct StepCodesArguments {
  const T* in;
  std::uint32_t* codes;  // fewbit::packed_bytes(size, bits) bytes, aligned to 16
  std::uint64_t size;
  kernels::StepLookup steps;
};
static_assert(sizeof(kernels::StepLookup) == 132 && sizeof(StepCodesArguments<float>) == 160);
static_assert(offsetof(StepCodesArguments<float>, steps) == 24);

// REQUIRES: steps.bits is kBits.
template <typename T, int kBits>
struct StepCodes {
  static constexpr int kThreads = 128;
  using Arguments = StepCodesArguments<T>;
  struct Shared {};
  static SLIMGRAD_HD std::uint64_t num_blocks(const Arguments& a) {
    return ColumnsPlace::num_grid_blocks<kThreads>(a.size);
  }
  static Traffic traffic(const Arguments& a) {
    return {a.size * sizeof(T), fewbit::packed_bytes(a.size, kBits)};
  }

  static SLIMGRAD_HD void run(const Block<kThreads>& block, const Arguments& a, Shared&) {
    block.each([&](int thread) {
      const ColumnsPlace place(block.index * kThreads + static_cast<std::uint64_t>(thread), a.size);
      if (!place.exists) return;
      const bool whole = place.is_whole(a.size) && is_aligned(a.in, sizeof(Columns<T>));
      const T padding = kernels::from_float<T>(std::numeric_limits<float>::quiet_NaN());
      Pack<std::uint32_t> words[kBits] = {};
      const auto code_row = [&](int row, auto put) {
        const Columns<T> x = load_columns(a.in, place.at(row), a.size, whole, padding);
        SLIMGRAD_UNROLL
        for (int c = 0; c < kColumns; ++c)
          put(c, kernels::code_of(kernels::to_float(x.values[c]), a.steps, kBits));
      };
      constexpr int kRows = static_cast<int>(fewbit::rows_per_word(kBits));
      SLIMGRAD_UNROLL
      for (int w = 0; w < kBits; ++w) {
        SLIMGRAD_UNROLL_4
        for (int k = 0; k < kRows; ++k)
          code_row(w * kRows + k,
                   [&](int c, std::uint32_t code) { words[w].values[c] |= code << kBits * k; });
      }
      if constexpr (kBits == 3) {
        SLIMGRAD_UNROLL
        for (int row = 30; row < 32; ++row)
          code_row(row, [&](int c, std::uint32_t code) {
            const std::uint32_t tops = code << 3 * (row - 30);
            SLIMGRAD_UNROLL
            for (int w = 0; w < 3; ++w) words[w].values[c] |= (tops >> 2 * w & 3u) << 30;
          });
      }
      SLIMGRAD_UNROLL
      for (int w = 0; w < kBits; ++w) store_pack(words[w], a.codes + place.word(w, kBits));
    });
  }
};

// ---- backward ----------------------------------------------------------------------------------

template <typename T>
struct StepBackwardArguments {
  const T* gradient;
  const std::uint32_t* codes;  // as above
  T* result;                   // may be `gradient`
  std::uint64_t size;
  kernels::StepLookup steps;
};
static_assert(sizeof(StepBackwardArguments<float>) == 168);
static_assert(offsetof(StepBackwardArguments<float>, steps) == 32);

// REQUIRES: steps.bits is kBits.
template <typename T, int kBits>
struct StepBackward {
  static constexpr int kThreads = 128;
  using Arguments = StepBackwardArguments<T>;
  struct Shared {
    float levels[1 << kBits];
  };
  static SLIMGRAD_HD std::uint64_t num_blocks(const Arguments& a) {
    return ColumnsPlace::num_grid_blocks<kThreads>(a.size);
  }
  static Traffic traffic(const Arguments& a) {
    return {a.size * sizeof(T) + fewbit::packed_bytes(a.size, kBits), a.size * sizeof(T)};
  }

  static SLIMGRAD_HD void run(const Block<kThreads>& block, const Arguments& a, Shared& shared) {
    block.each([&](int thread) {
      if (thread < 1 << kBits) shared.levels[thread] = a.steps.levels[thread];
    });
    block.each([&](int thread) {
      const ColumnsPlace place(block.index * kThreads + static_cast<std::uint64_t>(thread), a.size);
      if (!place.exists) return;
      const bool whole = place.is_whole(a.size) && is_aligned(a.gradient, sizeof(Columns<T>)) &&
                         is_aligned(a.result, sizeof(Columns<T>));
      Pack<std::uint32_t> words[kBits];
      SLIMGRAD_UNROLL
      for (int w = 0; w < kBits; ++w) words[w] = load_pack(a.codes + place.word(w, kBits));
      const auto multiply_row = [&](int row, auto code_of) {
        Columns<T> x = load_columns(a.gradient, place.at(row), a.size, whole, T{});
        SLIMGRAD_UNROLL
        for (int c = 0; c < kColumns; ++c) {
          const float level = shared.levels[code_of(c) & ((1u << kBits) - 1)];
          x.values[c] =
              kernels::from_float<T>(kernels::multiplied(kernels::to_float(x.values[c]), level));
        }
        store_columns(x, a.result, place.at(row), a.size, whole);
      };
      constexpr int kRows = static_cast<int>(fewbit::rows_per_word(kBits));
      SLIMGRAD_UNROLL
      for (int w = 0; w < kBits; ++w) {
        SLIMGRAD_UNROLL_4
        for (int k = 0; k < kRows; ++k)
          multiply_row(w * kRows + k, [&](int c) { return words[w].values[c] >> kBits * k; });
      }
      if constexpr (kBits == 3) {
        SLIMGRAD_UNROLL
        for (int row = 30; row < 32; ++row)
          multiply_row(row, [&](int c) {
            const std::uint32_t tops = words[2].values[c] >> 30 << 4 |
                                       words[1].values[c] >> 30 << 2 | words[0].values[c] >> 30;
            return tops >> 3 * (row - 30);
          });
      }
    });
  }
};

// ---- from the output ---------------------------------------------------------------------------

template <typename T>
struct InverseBackwardArguments {
  const T* gradient;
  const T* outputs;
  const std::uint32_t* codes;  // of one bit, as above
  T* result;                   // may be `gradient`
  std::uint64_t size;
  const InverseTable* table;  // in the device's memory
};
static_assert(sizeof(InverseBackwardArguments<float>) == 48 && sizeof(InverseTable) == 12172);

template <typename T>
struct InverseBackward {
  static constexpr int kThreads = 128;
  using Arguments = InverseBackwardArguments<T>;
  struct Shared {};
  static SLIMGRAD_HD std::uint64_t num_blocks(const Arguments& a) {
    return ColumnsPlace::num_grid_blocks<kThreads>(a.size);
  }
  static Traffic traffic(const Arguments& a) {
    return {2 * a.size * sizeof(T) + fewbit::packed_bytes(a.size, 1), a.size * sizeof(T)};
  }

  static SLIMGRAD_HD void run(const Block<kThreads>& block, const Arguments& a, Shared&) {
    block.each([&](int thread) {
      const ColumnsPlace place(block.index * kThreads + static_cast<std::uint64_t>(thread), a.size);
      if (!place.exists) return;
      constexpr std::size_t kBytes = sizeof(Columns<T>);
      const bool whole = place.is_whole(a.size) && is_aligned(a.gradient, kBytes) &&
                         is_aligned(a.outputs, kBytes) && is_aligned(a.result, kBytes);
      const Pack<std::uint32_t> word = load_pack(a.codes + place.word(0, 1));
      SLIMGRAD_UNROLL_4
      for (int row = 0; row < static_cast<int>(fewbit::kNumRows); ++row) {
        Columns<T> x = load_columns(a.gradient, place.at(row), a.size, whole, T{});
        const Columns<T> y = load_columns(a.outputs, place.at(row), a.size, whole, T{});
        SLIMGRAD_UNROLL
        for (int c = 0; c < kColumns; ++c) {
          const float slope = slope_from_output(kernels::to_float(y.values[c]),
                                                (word.values[c] >> row & 1u) != 0, *a.table);
          x.values[c] = kernels::from_float<T>(kernels::to_float(x.values[c]) * slope);
        }
        store_columns(x, a.result, place.at(row), a.size, whole);
      }
    });
  }
};

}  // namespace slimgrad::device

#endif  // SLIMGRAD_DEVICE_FEWBIT_H_
