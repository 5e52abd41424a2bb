// What backward keeps exactly, without its zeros: formats/exact.h has the layout. Word is the
// unsigned integer of a value's width. A block takes a task.
#ifndef SLIMGRAD_DEVICE_EXACT_H_
#define SLIMGRAD_DEVICE_EXACT_H_

#include <cstddef>
#include <cstdint>

#include "device/block.h"
#include "formats/exact.h"

namespace slimgrad::device {

// Eight neighbours, and which of them are not 0.
template <typename Word>
struct EightWords {
  Word words[8];
  std::uint32_t mask;

  SLIMGRAD_HD EightWords(const Word* from, int valid, bool aligned) : mask(0) {
    constexpr int kSize = Pack<Word>::kSize;
    SLIMGRAD_UNROLL
    for (int p = 0; p < 8; p += kSize) {
      const int left = valid - p < 0 ? 0 : valid - p;
      const Pack<Word> pack = load_some(from + p, left < kSize ? left : kSize, aligned);
      SLIMGRAD_UNROLL
      for (int j = 0; j < kSize; ++j) {
        words[p + j] = pack.values[j];
        mask |= (pack.values[j] != 0 ? 1u : 0u) << (p + j);
      }
    }
  }
};

SLIMGRAD_HD std::uint32_t count_ones(std::uint32_t byte) {
  byte = byte - (byte >> 1 & 0x55u);
  byte = (byte & 0x33u) + (byte >> 2 & 0x33u);
  return (byte + (byte >> 4)) & 0x0fu;
}

// What is packed, where half of the values are zeros: what there is depends on values, and kernels
// are described without them.
constexpr std::uint64_t half_exact_bytes(std::uint64_t size, std::size_t width) {
  return exact::first_begin(size) + size / 2 * width;
}

// ---- how many, and whether all are the same ----------------------------------------------------

// Survivors of a task. All survivors are the same where the smallest is the largest; there are none
// where the largest is 0.
struct ExactCount {
  std::uint32_t num_survivors;
  std::uint32_t smallest;  // survivor, as bits; 2^32 - 1 where there is none
  std::uint32_t largest;
};

template <typename Word>
struct CountSurvivorsArguments {
  const Word* in;
  std::uint64_t size;
  ExactCount* counts;  // of exact::num_tasks(size) tasks: written
};
static_assert(sizeof(ExactCount) == 12 && sizeof(CountSurvivorsArguments<std::uint32_t>) == 24);

template <typename Word>
struct CountSurvivors {
  static constexpr int kThreads = 256;
  using Arguments = CountSurvivorsArguments<Word>;
  struct Shared {
    ExactCount counts[kThreads];
  };
  static SLIMGRAD_HD std::uint64_t num_blocks(const Arguments& a) {
    return exact::num_tasks(a.size);
  }
  static Traffic traffic(const Arguments& a) {
    return {a.size * sizeof(Word), num_blocks(a) * sizeof(ExactCount)};
  }

  static SLIMGRAD_HD void run(const Block<kThreads>& block, const Arguments& a, Shared& shared) {
    const std::uint64_t start = block.index * exact::kTaskValues;
    const bool aligned = is_aligned(a.in);
    block.each([&](int thread) {
      ExactCount count = {0, 0xffffffffu, 0};
      for (int i = 8 * thread; i < static_cast<int>(exact::kTaskValues); i += 8 * kThreads) {
        const std::uint64_t at = start + static_cast<std::uint64_t>(i);
        const int valid = values_from(at, a.size, 8);
        if (valid == 0) break;
        const EightWords<Word> eight(a.in + at, valid, aligned);
        count.num_survivors += count_ones(eight.mask);
        SLIMGRAD_UNROLL
        for (int j = 0; j < 8; ++j) {
          const std::uint32_t word = eight.words[j];
          if (word != 0 && word < count.smallest) count.smallest = word;
          if (word > count.largest) count.largest = word;
        }
      }
      shared.counts[thread] = count;
    });
    for (int half = kThreads / 2; half > 0; half /= 2)
      block.each([&](int thread) {
        if (thread >= half) return;
        ExactCount& mine = shared.counts[thread];
        const ExactCount& other = shared.counts[thread + half];
        mine.num_survivors += other.num_survivors;
        if (other.smallest < mine.smallest) mine.smallest = other.smallest;
        if (other.largest > mine.largest) mine.largest = other.largest;
      });
    block.each([&](int thread) {
      if (thread == 0) a.counts[block.index] = shared.counts[0];
    });
  }
};

// ---- where the survivors of each eight begin ---------------------------------------------------

// The masks of a task, and how many survivors are before each, found in steps.
struct TaskMasks {
  static constexpr int kThreads = 256;
  static constexpr int kCount = static_cast<int>(exact::kMaskBytes);
  static constexpr int kEach = kCount / kThreads;  // neighbours of a thread

  std::uint8_t masks[kCount];
  std::uint16_t before[kCount];
  std::uint32_t sums[2][kThreads];

  // REQUIRES: masks are filled in.
  SLIMGRAD_HD void count(const Block<kThreads>& block) {
    block.each([&](int thread) {
      std::uint32_t sum = 0;
      for (int i = 0; i < kEach; ++i) sum += count_ones(masks[thread * kEach + i]);
      sums[0][thread] = sum;
    });
    int now = 0;  // Each step adds the sum from `distance` before: Hillis and Steele (1986).
    for (int distance = 1; distance < kThreads; distance *= 2, now = 1 - now)
      block.each([&](int thread) {
        sums[1 - now][thread] =
            sums[now][thread] + (thread >= distance ? sums[now][thread - distance] : 0);
      });
    block.each([&](int thread) {
      std::uint32_t sum = thread == 0 ? 0 : sums[now][thread - 1];
      for (int i = thread * kEach; i < (thread + 1) * kEach; ++i) {
        before[i] = static_cast<std::uint16_t>(sum);
        sum += count_ones(masks[i]);
      }
    });
  }
};

// ---- splitting ---------------------------------------------------------------------------------

template <typename Word>
struct SplitExactArguments {
  const Word* in;
  std::uint64_t size;
  const std::uint64_t* begins;  // of each task, in `bytes`; null: all survivors are the same
  std::uint8_t* bytes;          // all of them, aligned to 16; what is before the masks is written
                                // by the caller
};
static_assert(sizeof(SplitExactArguments<std::uint32_t>) == 32);

template <typename Word>
struct SplitExact {
  static constexpr int kThreads = TaskMasks::kThreads;
  using Arguments = SplitExactArguments<Word>;
  using Shared = TaskMasks;
  static SLIMGRAD_HD std::uint64_t num_blocks(const Arguments& a) {
    return exact::num_tasks(a.size);
  }
  static Traffic traffic(const Arguments& a) {
    return {a.size * sizeof(Word), half_exact_bytes(a.size, sizeof(Word))};
  }

  static SLIMGRAD_HD void run(const Block<kThreads>& block, const Arguments& a, Shared& shared) {
    const std::uint64_t start = block.index * exact::kTaskValues;
    const bool aligned = is_aligned(a.in);
    std::uint8_t* const masks =
        a.bytes + (a.begins == nullptr ? exact::kOneSurvivorHead : exact::head_bytes(a.size)) +
        block.index * exact::kMaskBytes;
    block.each([&](int thread) {
      for (int m = thread; m < TaskMasks::kCount; m += kThreads) {
        const std::uint64_t at = start + 8 * static_cast<std::uint64_t>(m);
        const int valid = values_from(at, a.size, 8);
        const std::uint32_t mask =
            valid == 0 ? 0 : EightWords<Word>(a.in + at, valid, aligned).mask;
        shared.masks[m] = static_cast<std::uint8_t>(mask);
        if (valid != 0) masks[m] = static_cast<std::uint8_t>(mask);
      }
    });
    if (a.begins == nullptr) return;
    shared.count(block);
    block.each([&](int thread) {
      auto* const survivors = reinterpret_cast<Word*>(a.bytes + a.begins[block.index]);
      for (int m = thread; m < TaskMasks::kCount; m += kThreads) {
        const std::uint64_t at = start + 8 * static_cast<std::uint64_t>(m);
        const int valid = values_from(at, a.size, 8);
        if (valid == 0) break;
        const EightWords<Word> eight(a.in + at, valid, aligned);
        Word* to = survivors + shared.before[m];
        SLIMGRAD_UNROLL
        for (int j = 0; j < 8; ++j)
          if (eight.mask >> j & 1u) *to++ = eight.words[j];
      }
    });
  }
};

// ---- merging -----------------------------------------------------------------------------------

template <typename Word>
struct MergeExactArguments {
  const std::uint8_t* bytes;  // aligned to 16
  std::uint64_t num_bytes;
  Word* out;
  std::uint64_t size;
};
static_assert(sizeof(MergeExactArguments<std::uint32_t>) == 32);

// The CPU refuses bytes with a damaged head, and the host would wait to do so here: a task whose
// part of the head does not fit its masks or the size of all bytes becomes NaN instead, and what is
// read lies inside the bytes whatever they are.
template <typename Word>
struct MergeExact {
  static constexpr int kThreads = TaskMasks::kThreads;
  using Arguments = MergeExactArguments<Word>;
  using Shared = TaskMasks;
  static constexpr Word kNan = static_cast<Word>(Word{0x7fc0} << (8 * sizeof(Word) - 16));
  static SLIMGRAD_HD std::uint64_t num_blocks(const Arguments& a) {
    return exact::num_tasks(a.size);
  }
  static Traffic traffic(const Arguments& a) {
    return {half_exact_bytes(a.size, sizeof(Word)), a.size * sizeof(Word)};
  }

  static SLIMGRAD_HD void run(const Block<kThreads>& block, const Arguments& a, Shared& shared) {
    const auto* const head = reinterpret_cast<const std::uint64_t*>(a.bytes);
    const bool is_one = a.num_bytes >= exact::kOneSurvivorHead && head[0] == exact::kOneSurvivor;
    const std::uint64_t first_mask = is_one ? exact::kOneSurvivorHead : exact::head_bytes(a.size);
    const Word survivor = is_one ? static_cast<Word>(head[1]) : Word{0};
    const std::uint64_t start = block.index * exact::kTaskValues;
    block.each([&](int thread) {
      for (int m = thread; m < TaskMasks::kCount; m += kThreads) {
        const std::uint64_t at =
            first_mask + block.index * exact::kMaskBytes + static_cast<std::uint64_t>(m);
        const bool is_there =
            start + 8 * static_cast<std::uint64_t>(m) < a.size && at < a.num_bytes;
        shared.masks[m] = is_there ? a.bytes[at] : std::uint8_t{0};
      }
    });
    if (!is_one) shared.count(block);
    std::uint64_t begin = 0;
    const bool is_sound =
        is_one ? a.num_bytes == exact::mask_bytes(a.size) && head[1] == std::uint64_t{survivor}
               : begins_well(block.index, a, shared, &begin);
    const auto* const survivors = reinterpret_cast<const Word*>(a.bytes + begin);
    const bool aligned = is_aligned(a.out);
    block.each([&](int thread) {
      for (int m = thread; m < TaskMasks::kCount; m += kThreads) {
        const std::uint64_t at = start + 8 * static_cast<std::uint64_t>(m);
        const int valid = values_from(at, a.size, 8);
        if (valid == 0) break;
        std::uint64_t next = is_one ? 0 : shared.before[m];
        constexpr int kSize = Pack<Word>::kSize;
        SLIMGRAD_UNROLL
        for (int p = 0; p < 8; p += kSize) {
          Pack<Word> pack = {};
          SLIMGRAD_UNROLL
          for (int j = 0; j < kSize; ++j) {
            if (!is_sound)
              pack.values[j] = kNan;
            else if ((shared.masks[m] >> (p + j) & 1u) != 0)
              pack.values[j] = is_one ? survivor : survivors[next++];
          }
          const int left = valid - p < 0 ? 0 : valid - p;
          store_some(pack, a.out + at + static_cast<std::uint64_t>(p), left < kSize ? left : kSize,
                     aligned);
        }
      }
    });
  }

 private:
  // Whether a task begins where the one before ends, and has room for as many survivors as its
  // masks say; *begin is then where it begins.
  static SLIMGRAD_HD bool begins_well(std::uint64_t task, const Arguments& a, const Shared& shared,
                                      std::uint64_t* begin) {
    if (a.num_bytes < exact::first_begin(a.size)) return false;
    const auto* const begins = reinterpret_cast<const std::uint64_t*>(a.bytes);
    const std::uint64_t first = begins[task], next = begins[task + 1];
    const std::uint32_t num_survivors =
        shared.before[TaskMasks::kCount - 1] + count_ones(shared.masks[TaskMasks::kCount - 1]);
    if (first > a.num_bytes || next > a.num_bytes || first % 16 != 0 ||
        next - first != exact::survivor_bytes(num_survivors, sizeof(Word)) ||
        (task == 0 && first != exact::first_begin(a.size)) ||
        (task + 1 == exact::num_tasks(a.size) && next != a.num_bytes))
      return false;
    *begin = first;
    return true;
  }
};

}  // namespace slimgrad::device

#endif  // SLIMGRAD_DEVICE_EXACT_H_
