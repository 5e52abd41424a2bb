// The draws of base/rng.h, two tiles of blocks at a time, for one CPU target. Included once per
// target.
//
// Each 64-bit lane computes one block and keeps one word of its state in the lower half: a 32 x 32
// bit product fills the lane, its upper half is a shift away and its lower half needs nothing,
// because a multiplication does not look at upper halves and an exclusive or does not mix them in.
// So a round is 2 products, 2 shifts and 4 exclusive ors. Only the first word of a counter differs
// from block to block, so that of the first rounds more than half is done once for all. Rounds wait
// for each other; the blocks of two tiles are computed side by side to fill the gaps.
#if defined(SLIMGRAD_KERNELS_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLIMGRAD_KERNELS_PHILOX_INL_H_
#undef SLIMGRAD_KERNELS_PHILOX_INL_H_
#else
#define SLIMGRAD_KERNELS_PHILOX_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/rng.h"

HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Fills buffers of draws of one stream. REQUIRES: it has `strata` strata.
template <std::uint64_t strata>
class Drawing {
 public:
  static constexpr std::size_t kElements = 2 * strata * kTileElements;

  HWY_INLINE explicit Drawing(const RandomStream& random) : stream_(random.stream) {
    auto key0 = static_cast<std::uint32_t>(random.seed);
    auto key1 = static_cast<std::uint32_t>(random.seed >> 32);
    for (RoundKeys& keys : keys_) {
      keys = {key0, key1};
      key0 += kPhiloxWeyl0;
      key1 += kPhiloxWeyl1;
    }
    begin(0);
  }

  // draws[i] = random.draw(first_index + i), as floats, for i < kElements. REQUIRES: first_index is
  // a multiple of kElements.
  // Not inlined: the call is cheap next to it, and a dozen copies would take long to compile.
  HWY_NOINLINE void fill(std::uint64_t first_index, float* HWY_RESTRICT draws) {
    fill_all(first_index, draws);
  }
  // The same as words: the lower half of draws[8 k + l] is the draw of element 16 k + l, the upper
  // half that of element 16 k + 8 + l. 2^15 is added to each, modulo 2^16, so that comparisons with
  // a sign find the order.
  HWY_NOINLINE void fill_words(std::uint64_t first_index, std::uint32_t* HWY_RESTRICT draws) {
    fill_all(first_index, draws);
  }

 private:
  using D64 = hn::CappedTag<std::uint64_t, kTileBlocks>;
  using D32 = hn::Repartition<std::uint32_t, D64>;
  using V64 = hn::Vec<D64>;

  // What the first three rounds have in common for all blocks with the same upper word: the words
  // that are mixed into product 0 of round one and both products of rounds two and three.
  static constexpr int kStartRounds = 3;
  struct Start {
    std::uint64_t upper_block;
    std::uint32_t first0, second1, second0, third0, third1;
  };

  void begin(std::uint64_t upper_block) {
    constexpr std::uint64_t kMultiplier0 = kPhiloxMultiplier0, kMultiplier1 = kPhiloxMultiplier1;
    const std::uint64_t product1 = kMultiplier1 * static_cast<std::uint32_t>(stream_);
    const std::uint64_t word0 = (product1 >> 32) ^ upper_block ^ keys_[0].key0;
    const std::uint64_t product0 = kMultiplier0 * word0;
    start_ = {.upper_block = upper_block,
              .first0 = static_cast<std::uint32_t>((stream_ >> 32) ^ keys_[0].key1),
              .second1 = static_cast<std::uint32_t>(product1 ^ keys_[1].key0),
              .second0 = static_cast<std::uint32_t>((product0 >> 32) ^ keys_[1].key1),
              .third0 = static_cast<std::uint32_t>(product0 ^ keys_[2].key1),
              .third1 = static_cast<std::uint32_t>(keys_[2].key0)};
  }

  template <typename Draw>
  HWY_INLINE void fill_all(std::uint64_t first_index, Draw* HWY_RESTRICT draws) {
    // Tile by tile, or with narrow vectors halves of both tiles and then their other halves.
    const std::uint64_t first_block = first_index / (strata * kTileElements) * kTileBlocks;
    if (HWY_UNLIKELY(first_block >> 32 != start_.upper_block)) begin(first_block >> 32);
    for (std::size_t lane = 0; lane < kTileBlocks; lane += hn::Lanes(D64())) {
      Chain even(first_block + lane, start_);
      Chain odd(first_block + kTileBlocks + lane, start_);
      for (int round = kStartRounds; round < kPhiloxRounds; ++round) {
        const V64 key0 = hn::Set(D64(), keys_[round].key0);
        const V64 key1 = hn::Set(D64(), keys_[round].key1);
        even.round(key0, key1);
        odd.round(key0, key1);
      }
      even.store(draws + 2 * lane);
      odd.store(draws + strata * kTileSize<Draw> + 2 * lane);
    }
  }

  // One block per lane, consecutive from `block` on. Tiles begin at multiples of four blocks, so
  // that adding the lane does not carry.
  struct Chain {
    V64 c0, c1, c2, c3;

    HWY_INLINE Chain(std::uint64_t block, const Start& start) {
      const D64 d64;
      const V64 index = hn::Add(hn::Set(d64, block), hn::Iota(d64, 0));
      const V64 first0 = multiply(index, kPhiloxMultiplier0);
      const V64 first2 = hn::Xor(hn::ShiftRight<32>(first0), hn::Set(d64, start.first0));
      const V64 second1 = multiply(first2, kPhiloxMultiplier1);
      c0 = hn::Xor(hn::ShiftRight<32>(second1), hn::Set(d64, start.second1));
      c1 = second1;
      c2 = hn::Xor(first0, hn::Set(d64, start.second0));
      round(hn::Set(d64, start.third1), hn::Set(d64, start.third0), hn::Zero(d64));
    }

    HWY_INLINE void round(V64 key0, V64 key1) { round(key0, key1, c3); }
    HWY_INLINE void round(V64 key0, V64 key1, V64 word3) {
      const V64 product0 = multiply(c0, kPhiloxMultiplier0);
      const V64 product1 = multiply(c2, kPhiloxMultiplier1);
      c0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(product1), c1), key0);
      c1 = product1;
      c2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(product0), word3), key1);
      c3 = product0;
    }

    template <typename Draw>
    HWY_INLINE void store(Draw* draws) const {
      store_halves(c0, c1, draws);
      store_halves(c2, c3, draws + kTileSize<Draw> / 2);
    }
  };

  // The number of Draws in a tile: words hold two.
  template <typename Draw>
  static constexpr std::size_t kTileSize =
      std::is_same_v<Draw, float> ? kTileElements : kTileElements / 2;

  struct RoundKeys {
    std::uint64_t key0, key1;
  };

  static HWY_INLINE V64 multiply(V64 word, std::uint32_t multiplier) {
    const D32 d32;
    return hn::MulEven(hn::BitCast(d32, word), hn::Set(d32, multiplier));
  }

  // The words of even and odd lanes.
  static HWY_INLINE hn::Vec<D32> interleave(V64 even, V64 odd) {
    const D32 d32;
    return hn::OddEven(hn::BitCast(d32, hn::ShiftLeft<32>(odd)), hn::BitCast(d32, even));
  }
  static HWY_INLINE hn::Vec<D32> shift(hn::Vec<D32> words, std::uint16_t by) {
    const hn::Repartition<std::uint16_t, D32> d16;
    return hn::BitCast(D32(), hn::Add(hn::BitCast(d16, words), hn::Set(d16, by)));
  }
  static constexpr auto kShift = static_cast<std::uint16_t>(0x10000 / strata);

  // Shifted for each of the strata: lower halves to `draws`, upper halves eight behind, the next
  // stratum a tile behind.
  static HWY_INLINE void store_halves(V64 even, V64 odd, float* draws) {
    const D32 d32;
    const hn::RebindToSigned<D32> i32;
    const hn::RebindToFloat<D32> f32;
    auto words = interleave(even, odd);
    for (std::uint64_t stratum = 0; stratum < strata; ++stratum, draws += kTileSize<float>) {
      const auto lower = hn::And(words, hn::Set(d32, 0xffffu));
      const auto upper = hn::ShiftRight<16>(words);
      hn::Store(hn::ConvertTo(f32, hn::BitCast(i32, lower)), f32, draws);
      hn::Store(hn::ConvertTo(f32, hn::BitCast(i32, upper)), f32, draws + 8);
      if constexpr (strata > 1) words = shift(words, kShift);
    }
  }
  static HWY_INLINE void store_halves(V64 even, V64 odd, std::uint32_t* draws) {
    auto words = shift(interleave(even, odd), 0x8000);
    for (std::uint64_t stratum = 0; stratum < strata; ++stratum) {
      hn::Store(words, D32(), draws + stratum * kTileSize<std::uint32_t>);
      if constexpr (strata > 1) words = shift(words, kShift);
    }
  }

  std::uint64_t stream_;
  RoundKeys keys_[kPhiloxRounds];
  Start start_;
};

}  // namespace HWY_NAMESPACE
}  // namespace slimgrad::kernels
HWY_AFTER_NAMESPACE();

#endif  // include guard, once per target
