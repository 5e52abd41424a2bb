// Which elements of a gradient survive pruning, a bit for each, and how they are picked. For one
// CPU target with vectors of eight lanes; nothing for others. Included once per target, in every
// pass but the last: the guard below counts passes.
//
// What has to be done for every element is to draw and to decide, some two vector instructions.
// What survives is little, and picked one by one.
#if defined(SLIMGRAD_KERNELS_SPARSE_SURVIVOR_BITS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLIMGRAD_KERNELS_SPARSE_SURVIVOR_BITS_INL_H_
#undef SLIMGRAD_KERNELS_SPARSE_SURVIVOR_BITS_INL_H_
#else
#define SLIMGRAD_KERNELS_SPARSE_SURVIVOR_BITS_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/apply/apply-inl.h"

#if HWY_MAX_BYTES >= 32

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels {
namespace HWY_NAMESPACE {

using Draws = Drawing<kPruneStrata>;
using I16 = hn::Repartition<std::int16_t, I32>;

// Elements that are decided together; they begin at multiples of this in the whole gradient.
constexpr std::uint64_t kGroup = 32;

// While survivors are picked nothing is read, and the CPU does not look far ahead by itself.
constexpr std::size_t kAhead = 512;
template <typename T>
HWY_INLINE void prefetch(const T* group) {
  for (std::size_t i = 0; i < kGroup; i += 64 / sizeof(T)) hwy::Prefetch(group + i);
}

HWY_INLINE std::uint8_t sign_bits(Integers x) {
  std::uint8_t bits[8];  // Highway writes one byte and wants room for eight.
  hn::StoreMaskBits(F32(), hn::MaskFromVec(as_floats(x)), bits);
  return bits[0];
}

// RandomStream::happens_scaled by the leading bits alone, for 16 elements: those of a share are its
// integer part. As shares beyond 2^16, Inf and NaN, whose bits are all larger, count as 2^16 - 1,
// they survive unless the draw is the same, which decides nothing.
struct PruneBits {
  const ValueRule rule;
  Floats scaled_inverse;

  HWY_INLINE explicit PruneBits(const LoopTreatment& treatment) : rule(treatment) {
    scaled_inverse = hn::Set(F32(), inverse_of(treatment.threshold) * 0x1p16f);
  }

  template <typename T>
  HWY_INLINE Integers leading(const T* x) const {
    const Floats share = hn::Mul(as_floats(hn::And(load(x), splat(~kSignMask))), scaled_inverse);
    const Integers capped = hn::Min(as_bits(share), as_bits(hn::Set(F32(), 65535.0f)));
#if HWY_ARCH_X86  // Highway's would mind numbers that do not fit.
    return Integers{_mm256_cvttps_epi32(as_floats(capped).raw)};
#else
    return hn::ConvertTo(I32(), as_floats(capped));
#endif
  }

  // Lower and upper halves of the lanes are elements eight apart, as words of draws have them.
  // Returns where the leading bits do not decide.
  template <typename T>
  HWY_INLINE Integers decide(const T* x, const std::uint32_t* draws, std::uint8_t* bits) const {
    const Integers both = hn::Or(leading(x), hn::ShiftLeft<16>(leading(x + 8)));
    const auto flipped = hn::BitCast(I16(), hn::Xor(both, splat(0x80008000u)));
    const auto r = hn::BitCast(I16(), hn::Load(U32(), draws));
    const auto survives = hn::BitCast(I32(), hn::VecFromMask(I16(), hn::Gt(flipped, r)));
    bits[0] = sign_bits(hn::ShiftLeft<16>(survives));
    bits[1] = sign_bits(survives);
    return hn::BitCast(I32(), hn::VecFromMask(I16(), hn::Eq(flipped, r)));
  }

  template <typename T>
  HWY_NOINLINE void decide_by_rule(const T* x, std::uint64_t index, std::uint8_t* bits) const {
    ApplyCounts ignored;
    std::uint32_t word = 0;
    for (std::uint32_t i = 0; i < kGroup; ++i)
      word |= static_cast<std::uint32_t>(rule.apply(float_bits(x[i]), index + i, ignored) << 1 != 0)
              << i;
    std::memcpy(bits, &word, sizeof word);
  }

  template <typename T>
  HWY_INLINE void group(const T* x, const std::uint32_t* draws, std::uint64_t index,
                        std::uint8_t* bits) const {
    const Integers open = hn::Or(decide(x, draws, bits), decide(x + 16, draws + 8, bits + 2));
    if (HWY_UNLIKELY(!hn::AllTrue(I32(), hn::Eq(open, hn::Zero(I32())))))
      decide_by_rule(x, index, bits);
  }
};

struct NonzeroBits {
  template <typename T>
  HWY_INLINE void group(const T* x, const std::uint32_t*, std::uint64_t, std::uint8_t* bits) const {
    for (int i = 0; i < 4; ++i) {
      const Integers magnitude = hn::And(load(x + 8 * i), splat(~kSignMask));
      // Negative where it is not zero.
      bits[i] = sign_bits(hn::Sub(hn::Zero(I32()), magnitude));
    }
  }
};

// The bits of a piece of the gradient.
class SurvivorBits {
 public:
  // The most elements at a time: they stay in the first-level cache until they are picked.
  static constexpr std::size_t kMost = 2048;

  // REQUIRES: not divides(treatment).
  HWY_INLINE explicit SurvivorBits(const LoopTreatment& treatment)
      : prunes_(treatment.prunes()), choice_(treatment), drawing_(choice_.rule.random()) {}

  // Decides for x[0, count), whose elements count from first_index on in the whole gradient.
  // REQUIRES: count <= kMost.
  template <typename T>
  HWY_NOINLINE void find(const T* x, std::size_t count, std::uint64_t first_index) {
    first_bit_ = first_index % kGroup;
    if (prunes_)
      find_by<true>(choice_, x, count, first_index);
    else
      find_by<false>(NonzeroBits(), x, count, first_index);
  }

  // visit(i) for every survivor x[first + i], i < count.
  template <typename Visit>
  HWY_INLINE void for_each(std::size_t first, std::size_t count, const Visit& visit) const {
    for (std::size_t i = 0; i < count; i += 64)
      for (std::uint64_t word = load_word(first, i, count); word != 0; word &= word - 1)
        visit(i + static_cast<std::size_t>(std::countr_zero(word)));
  }

  // emit(k, i): the k-th survivor from x[first] on is x[first + i], i < count. Returns how many
  // there are. Several are emitted without a look at how many there are, so that the end of a word
  // of bits is seldom a surprise: up to kTooMany surplus calls for a word. Their k comes again with
  // the next word or lies behind the last survivor, so that the receiver needs room for it.
  static constexpr std::size_t kTooMany = 3;
  template <typename Emit>
  HWY_INLINE std::size_t pick(std::size_t first, std::size_t count, const Emit& emit) const {
    std::size_t size = 0;
    for (std::size_t i = 0; i < count; i += 64) {
      std::uint64_t word = load_word(first, i, count);
      const auto found = static_cast<std::size_t>(std::popcount(word));
      for (std::size_t k = 0; k < found; k += kTooMany + 1) {
#pragma GCC unroll 4
        for (std::size_t j = 0; j <= kTooMany; ++j) {
          // countr_zero of an exhausted word is 64, which becomes 0: that element exists.
          emit(size + k + j, i + static_cast<std::size_t>(std::countr_zero(word)) % 64);
          word &= word - 1;
        }
      }
      size += found;
    }
    return size;
  }

  // How many there are among x[first, first + size). REQUIRES: 1 <= size <= 64.
  HWY_INLINE int count(std::size_t first, std::size_t size) const {
    return std::popcount(load_word(first_bit_ + first) << (64 - size));
  }

  // Those of x[first] to x[first + 7]. REQUIRES: first and the piece's first index are multiples of
  // eight.
  HWY_INLINE std::uint8_t eight(std::size_t first) const { return bits_[(first_bit_ + first) / 8]; }

 private:
  static_assert(std::endian::native == std::endian::little, "bits are read as words");

  // Those of x[first + i] and what follows, up to x[first + count].
  HWY_INLINE std::uint64_t load_word(std::size_t first, std::size_t i, std::size_t count) const {
    const std::uint64_t word = load_word(first_bit_ + first + i);
    return count - i < 64 ? word & ((std::uint64_t{1} << (count - i)) - 1) : word;
  }
  HWY_INLINE std::uint64_t load_word(std::size_t bit) const {
    std::uint64_t word;
    std::memcpy(&word, bits_ + bit / 8, sizeof word);
    const std::size_t shift = bit % 8;
    if (shift != 0) word = word >> shift | std::uint64_t{bits_[bit / 8 + 8]} << (64 - shift);
    return word;
  }

  // Sets the bits of all groups that hold x[0, count); those before and behind are zero.
  template <bool draws_numbers, typename Choice, typename T>
  HWY_INLINE void find_by(const Choice& choice, const T* x, std::size_t count,
                          std::uint64_t first_index) {
    constexpr std::uint64_t kStep = Draws::kElements;
    HWY_ALIGN std::uint32_t draws[kStep / 2];
    std::uint8_t* bits = bits_;
    const std::uint64_t end = first_index + count;
    for (std::uint64_t step = first_index / kStep * kStep; step < end; step += kStep) {
      if constexpr (draws_numbers) drawing_.fill_words(step, draws);
      const std::uint64_t first = std::max(step, first_index / kGroup * kGroup);
      for (std::uint64_t i = first; i < std::min(step + kStep, end);
           i += kGroup, bits += kGroup / 8) {
        const std::uint32_t* const group_draws = draws + (i - step) / 2;
        if (HWY_LIKELY(i >= first_index && i + kGroup <= end)) {
          const T* const group = x + (i - first_index);
          prefetch(group + kAhead);
          choice.group(group, group_draws, i, bits);
        } else {
          T padded[kGroup] = {};  // Zeros do not survive.
          const std::uint64_t from = std::max(i, first_index), to = std::min(i + kGroup, end);
          std::copy(x + (from - first_index), x + (to - first_index), padded + (from - i));
          choice.group(padded, group_draws, i, bits);
        }
      }
    }
  }

  const bool prunes_;
  const PruneBits choice_;
  Draws drawing_;
  std::size_t first_bit_ = 0;
  // The bits of all groups, and what is read with the last of them.
  std::uint8_t bits_[(kMost + 2 * kGroup) / 8 + sizeof(std::uint64_t) + 1] = {};
};

// A value that survives is the larger of its magnitude and the threshold: what is larger has a
// share of more than one, hence stays for certain. So do Inf and NaN, whose bits are larger.
struct Raised {
  Integers least;

  HWY_INLINE explicit Raised(const LoopTreatment& treatment)
      : least(as_bits(hn::Set(F32(), treatment.prunes() ? treatment.threshold : 0.0f))) {}

  HWY_INLINE Integers operator()(Integers x) const {
    const Integers magnitude = hn::And(x, splat(~kSignMask));
    return hn::Or(hn::Xor(x, magnitude), hn::Max(magnitude, least));
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace slimgrad::kernels
HWY_AFTER_NAMESPACE();

#endif  // HWY_MAX_BYTES >= 32

#endif  // include guard, once per target
