// Values as codes of a few bits without gaps (formats/bit_packing.h), and back: the codes of a
// FloatFormat (kernels/apply), and uniform ones (kernels/coding/uniform.h), which gradients travel
// in. A thread has eight neighbours at a time, whose codes fill whole bytes; the bytes of a chunk
// pass through shared memory, so that 16 of them are moved at once.
#ifndef SLIMGRAD_DEVICE_CODING_H_
#define SLIMGRAD_DEVICE_CODING_H_

#include <cstddef>
#include <cstdint>

#include "base/rng.h"
#include "device/block.h"
#include "device/draws.h"
#include "formats/bit_packing.h"
#include "kernels/apply/loop_treatment.h"
#include "kernels/coding/uniform.h"
#include "kernels/half_float.h"
#include "kernels/magnitude.h"

namespace slimgrad::device {

// How codes are laid out for the threads of a block.
struct CodeChunk {
  static constexpr int kThreads = 128;
  static constexpr int kValues = 4096;
  static constexpr int kEights = kValues / 8;

  static SLIMGRAD_HD std::uint64_t num_blocks(std::uint64_t size) {
    return (size + kValues - 1) / kValues;
  }
  // Bytes of a chunk: a multiple of 16 but for the last one.
  static SLIMGRAD_HD int num_bytes(std::uint64_t values, int bits) {
    const std::uint64_t here = values < kValues ? values : kValues;
    return static_cast<int>(packed_bytes(here, bits));
  }
};

// A step that copies bytes, 16 at a time where `aligned`.
template <class SomeBlock>
SLIMGRAD_HD void copy_bytes(const SomeBlock& block, const std::uint8_t* from, std::uint8_t* to,
                            int num_bytes, bool aligned) {
  block.each([&](int thread) {
    const int whole = aligned ? num_bytes / 16 * 16 : 0;
    for (int i = 16 * thread; i < whole; i += 16 * SomeBlock::kThreads)
      store_pack(load_pack(from + i), to + i);
    for (int i = whole + thread; i < num_bytes; i += SomeBlock::kThreads) to[i] = from[i];
  });
}

template <typename T>
struct Eight {
  static constexpr int kPacks = 8 / Pack<T>::kSize;
  Pack<T> packs[kPacks];

  SLIMGRAD_HD T& operator[](int i) { return packs[i / Pack<T>::kSize].values[i % Pack<T>::kSize]; }
  SLIMGRAD_HD void load(const T* from, int valid, bool aligned) {
    SLIMGRAD_UNROLL
    for (int p = 0; p < kPacks; ++p)
      packs[p] = load_some(from + p * Pack<T>::kSize, part(valid, p), aligned);
  }
  SLIMGRAD_HD void store(T* to, int valid, bool aligned) const {
    SLIMGRAD_UNROLL
    for (int p = 0; p < kPacks; ++p)
      store_some(packs[p], to + p * Pack<T>::kSize, part(valid, p), aligned);
  }

 private:
  static SLIMGRAD_HD int part(int valid, int p) {
    const int left = valid - p * Pack<T>::kSize;
    return left < 0 ? 0 : left < Pack<T>::kSize ? left : Pack<T>::kSize;
  }
};

// ---- to codes ----------------------------------------------------------------------------------

template <typename T>
struct EncodeArguments {
  const T* in;
  std::uint8_t* packed;  // packed_bytes(size, bits)
  std::uint64_t size;
  std::uint32_t* all_finite;  // becomes 0 where there is NaN or Inf; or null
  std::uint32_t bits;
  kernels::LoopTreatment treatment;  // its pruning is not looked at
};
static_assert(sizeof(EncodeArguments<float>) == 96);
static_assert(offsetof(EncodeArguments<float>, treatment) == 40);

// The codes of treatment.grid: kernels::encode().
template <typename T>
struct FloatCodes {
  using Arguments = EncodeArguments<T>;
  kernels::Grid grid;
  RandomStream random;

  SLIMGRAD_HD explicit FloatCodes(const Arguments& a)
      : grid(a.treatment.grid), random(a.treatment.seed, Stream::kRound) {}
  SLIMGRAD_HD bool draws() const { return grid.draws(); }
  SLIMGRAD_HD std::uint32_t code(T x, std::uint32_t r, std::uint64_t index) const {
    return kernels::encode_value(kernels::float_bits(x), grid, DrawnStream{random, r}, index);
  }
  static SLIMGRAD_HD void saw_nonfinite(const Arguments& a) {
    if (a.all_finite != nullptr) *a.all_finite = 0;
  }
};

template <typename T>
struct UniformEncodeArguments {
  const T* in;
  std::uint8_t* packed;
  std::uint64_t size;
  const std::uint32_t* max_bits;  // of the array: what MaxMagnitude wrote. The step comes from it
  std::uint64_t seed;
  std::uint32_t bits;
  std::uint32_t is_stochastic;
};
static_assert(sizeof(UniformEncodeArguments<float>) == 48);

// NaN has the code of zero, Inf that of the largest number: where they matter, MaxMagnitude counts
// them.
template <typename T>
struct UniformCodes {
  using Arguments = UniformEncodeArguments<T>;
  int half;
  float step;
  bool is_stochastic;
  RandomStream random;

  SLIMGRAD_HD explicit UniformCodes(const Arguments& a)
      : half(kernels::uniform_half(static_cast<int>(a.bits))),
        step(kernels::scale_of_maximum(*a.max_bits, half)),
        is_stochastic(a.is_stochastic != 0),
        random(a.seed, Stream::kRound) {}
  SLIMGRAD_HD bool draws() const { return is_stochastic; }
  SLIMGRAD_HD std::uint32_t code(T x, std::uint32_t r, std::uint64_t index) const {
    if (kernels::magnitude_bits(x) > kernels::kInfinityBits)
      return static_cast<std::uint32_t>(half);
    const float value = kernels::to_float(x);
    if (!is_stochastic) return kernels::uniform_symbol(value, step, half);
    return kernels::uniform_symbol(value, step, half, DrawnStream{random, r}, index);
  }
  static SLIMGRAD_HD void saw_nonfinite(const Arguments&) {}
};

template <typename T, template <typename> class Codes>
struct Encode {
  static constexpr int kThreads = CodeChunk::kThreads;
  using Arguments = typename Codes<T>::Arguments;
  struct Shared {
    ChunkDraws<Stream::kRound, CodeChunk::kValues> draws;
    alignas(16) std::uint8_t bytes[CodeChunk::kValues];
  };
  static SLIMGRAD_HD std::uint64_t num_blocks(const Arguments& a) {
    return CodeChunk::num_blocks(a.size);
  }
  static Traffic traffic(const Arguments& a) {
    return {a.size * sizeof(*a.in), packed_bytes(a.size, static_cast<int>(a.bits))};
  }

  static SLIMGRAD_HD void run(const Block<kThreads>& block, const Arguments& a, Shared& shared) {
    const Codes<T> codes(a);
    const int bits = static_cast<int>(a.bits);
    const std::uint64_t start = block.index * CodeChunk::kValues;
    if (codes.draws()) shared.draws.fill(block, codes.random, start);
    const bool aligned = is_aligned(a.in);
    block.each([&](int thread) {
      for (int eight = thread; eight < CodeChunk::kEights; eight += kThreads) {
        const std::uint64_t at = start + 8 * static_cast<std::uint64_t>(eight);
        const int valid = values_from(at, a.size, 8);
        if (valid == 0) break;
        Eight<T> x;
        x.load(a.in + at, valid, aligned);
        std::uint64_t joined = 0;
        bool all_finite = true;
        SLIMGRAD_UNROLL
        for (int j = 0; j < 8; ++j) {
          if (j >= valid) break;
          const std::uint32_t r = codes.draws() ? shared.draws.at(codes.random, 8 * eight + j) : 0;
          all_finite = all_finite && kernels::magnitude_bits(x[j]) < kernels::kInfinityBits;
          joined |= std::uint64_t{codes.code(x[j], r, at + static_cast<std::uint64_t>(j))}
                    << bits * j;
        }
        if (!all_finite) Codes<T>::saw_nonfinite(a);
        for (int i = 0; i < bits; ++i)
          shared.bytes[eight * bits + i] = static_cast<std::uint8_t>(joined >> 8 * i);
      }
    });
    std::uint8_t* const to = a.packed + start / 8 * static_cast<std::uint64_t>(bits);
    copy_bytes(block, shared.bytes, to, CodeChunk::num_bytes(a.size - start, bits), is_aligned(to));
  }
};

// ---- and back ----------------------------------------------------------------------------------

template <typename T>
struct DecodeArguments {
  const std::uint8_t* packed;
  T* out;
  std::uint64_t size;
  std::uint32_t bits;
  T table[256];  // what each code stands for: arrays/apply/value_table.h
};
static_assert(sizeof(DecodeArguments<float>) == 1056);

// A table, in shared memory: codes of neighbours differ.
template <typename T>
struct TableValues {
  using Arguments = DecodeArguments<T>;
  struct Shared {
    T table[256];
  };
  const Shared& shared;

  template <class SomeBlock>
  SLIMGRAD_HD TableValues(const SomeBlock& block, const Arguments& a, Shared& filled)
      : shared(filled) {
    block.each([&](int thread) {
      for (int i = thread; i < 1 << a.bits; i += SomeBlock::kThreads) filled.table[i] = a.table[i];
    });
  }
  SLIMGRAD_HD T value(std::uint32_t code, T) const { return shared.table[code]; }
};

template <typename T>
struct UniformDecodeArguments {
  const std::uint8_t* packed;
  T* out;
  std::uint64_t size;
  const std::uint32_t* max_bits;  // that the codes were made with
  std::uint32_t bits;
};
static_assert(sizeof(UniformDecodeArguments<float>) == 40);

// kAdds: values are added to what is there, which only sums of float32 are asked for.
template <typename T, bool kAdds>
struct UniformValues {
  using Arguments = UniformDecodeArguments<T>;
  struct Shared {};
  int half;
  float step;

  template <class SomeBlock>
  SLIMGRAD_HD UniformValues(const SomeBlock&, const Arguments& a, Shared&)
      : half(kernels::uniform_half(static_cast<int>(a.bits))),
        step(kernels::scale_of_maximum(*a.max_bits, half)) {}
  SLIMGRAD_HD T value(std::uint32_t code, T before) const {
    const float x = kernels::uniform_value(static_cast<std::uint8_t>(code), step, half);
    if constexpr (kAdds) return before + x;
    return kernels::from_float_in_range<T>(x);
  }
};

template <typename T, class Values, bool kAdds = false>
struct Decode {
  static constexpr int kThreads = CodeChunk::kThreads;
  using Arguments = typename Values::Arguments;
  struct Shared {
    alignas(16) std::uint8_t bytes[CodeChunk::kValues];
    typename Values::Shared values;
  };
  static SLIMGRAD_HD std::uint64_t num_blocks(const Arguments& a) {
    return CodeChunk::num_blocks(a.size);
  }
  static Traffic traffic(const Arguments& a) {
    return {packed_bytes(a.size, static_cast<int>(a.bits)) + (kAdds ? a.size * sizeof(T) : 0),
            a.size * sizeof(T)};
  }

  static SLIMGRAD_HD void run(const Block<kThreads>& block, const Arguments& a, Shared& shared) {
    const Values values(block, a, shared.values);
    const int bits = static_cast<int>(a.bits);
    const std::uint64_t start = block.index * CodeChunk::kValues;
    const std::uint8_t* const from = a.packed + start / 8 * static_cast<std::uint64_t>(bits);
    copy_bytes(block, from, shared.bytes, CodeChunk::num_bytes(a.size - start, bits),
               is_aligned(from));
    const bool aligned = is_aligned(a.out);
    block.each([&](int thread) {
      for (int eight = thread; eight < CodeChunk::kEights; eight += kThreads) {
        const std::uint64_t at = start + 8 * static_cast<std::uint64_t>(eight);
        const int valid = values_from(at, a.size, 8);
        if (valid == 0) break;
        std::uint64_t joined = 0;
        for (int i = 0; i < bits; ++i)
          joined |= std::uint64_t{shared.bytes[eight * bits + i]} << 8 * i;
        Eight<T> x;
        if (kAdds) x.load(a.out + at, valid, aligned);
        SLIMGRAD_UNROLL
        for (int j = 0; j < 8; ++j)
          x[j] = values.value(static_cast<std::uint32_t>(joined >> bits * j) & ((1u << bits) - 1),
                              kAdds ? x[j] : T{});
        x.store(a.out + at, valid, aligned);
      }
    });
  }
};

template <typename T>
using PackValues = Encode<T, FloatCodes>;
template <typename T>
using UniformEncode = Encode<T, UniformCodes>;
template <typename T>
using UnpackValues = Decode<T, TableValues<T>>;
template <typename T>
using UniformDecode = Decode<T, UniformValues<T, false>>;
using UniformAdd = Decode<float, UniformValues<float, true>, true>;

}  // namespace slimgrad::device

#endif  // SLIMGRAD_DEVICE_CODING_H_
