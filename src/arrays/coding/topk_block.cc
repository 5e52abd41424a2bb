#include "arrays/coding/topk_block.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <slimgrad/half.h>

#include "arrays/coding/symbol_block_layout.h"
#include "kernels/coding/open_levels.h"
#include "kernels/half_float.h"
#include "kernels/magnitude.h"

namespace slimgrad {
namespace {

// The number of values that are kept, and m of the Golomb code; then the levels.
constexpr std::size_t kNumberBytes = 4, kCodeBytes = 2;
constexpr std::size_t kFixedBytes = kNumberBytes + kCodeBytes;

constexpr std::size_t level_bytes(int bits) { return std::size_t{4} << bits; }

// The nearest float32 of a magnitude, by integers where it is below the normal numbers.
std::uint32_t bits_of_magnitude(double magnitude) {
  if (magnitude < 0x1p-126) return static_cast<std::uint32_t>(std::nearbyint(magnitude * 0x1p149));
  return std::bit_cast<std::uint32_t>(static_cast<float>(magnitude));
}

}  // namespace

// A gap takes at most 15 bits behind its zeros and the one, and there are at most as many zeros as
// values.
std::size_t topk_block_bound(const TopkRule& rule, std::size_t num_values) {
  const auto of = static_cast<std::size_t>(rule.of);
  const std::size_t kept = num_values / of * topk_kept(rule.k, rule.of, of) +
                           topk_kept(rule.k, rule.of, num_values % of);
  const std::size_t bits = num_values + kept * static_cast<std::size_t>(16 + rule.bits);
  return kFixedBytes + level_bytes(rule.bits) + bits / 8 + 16;
}

// ---- from values to bytes
// ------------------------------------------------------------------------

template <typename T>
void TopkBlockEncoder::select(std::span<const T> values, const TopkRule& rule) {
  std::array<std::uint16_t, kMaxTopkOf> found;
  const auto of = static_cast<std::size_t>(rule.of);
  places_.clear();
  for (std::size_t first = 0; first < values.size(); first += of) {
    const std::span<const T> group = values.subspan(first, std::min(of, values.size() - first));
    const std::size_t count = kernels::largest_places(
        group, topk_kept(rule.k, rule.of, group.size()), scratch_, found.data());
    for (std::size_t i = 0; i < count; ++i)
      places_.push_back(static_cast<std::uint32_t>(first + found[i]));
  }
}

// Codes and levels of the values at places_. Sums are in double, in the order of the values.
template <typename T>
void TopkBlockEncoder::round(std::span<const T> values, int bits) {
  struct Sum {
    double sum = 0;
    std::uint64_t count = 0;
    double mean() const { return count > 0 ? sum / static_cast<double>(count) : 0; }
  };
  const std::size_t count = places_.size();
  magnitudes_.resize(count);
  codes_.assign(count, 0);
  for (std::size_t i = 0; i < count; ++i)
    magnitudes_[i] = kernels::magnitude_value(kernels::magnitude_bits(values[places_[i]]));
  for (int splits = 0; splits < bits - 1; ++splits) {
    std::array<Sum, std::size_t{1} << (kMaxTopkBits - 1)> bins = {};
    for (std::size_t i = 0; i < count; ++i) {
      bins[codes_[i]].sum += magnitudes_[i];
      ++bins[codes_[i]].count;
    }
    std::array<double, bins.size()> means;
    for (std::size_t bin = 0; bin < bins.size(); ++bin) means[bin] = bins[bin].mean();
    for (std::size_t i = 0; i < count; ++i)
      codes_[i] = static_cast<std::uint8_t>(2 * codes_[i] + (magnitudes_[i] > means[codes_[i]]));
  }
  std::array<Sum, std::size_t{1} << kMaxTopkBits> sums = {};
  for (std::size_t i = 0; i < count; ++i) {
    const bool negative = (kernels::float_bits(values[places_[i]]) & kernels::kSignMask) != 0;
    codes_[i] = static_cast<std::uint8_t>(codes_[i] | negative << (bits - 1));
    sums[codes_[i]].sum += magnitudes_[i];
    ++sums[codes_[i]].count;
  }
  levels_ = {};
  for (std::size_t code = 0; code < std::size_t{1} << bits; ++code) {
    if (sums[code].count == 0) continue;
    const bool negative = code >> (bits - 1) != 0;
    levels_[code] = bits_of_magnitude(sums[code].mean()) | (negative ? kernels::kSignMask : 0);
  }
}

template <typename T>
void TopkBlockEncoder::put(std::span<const T> values, const TopkRule& rule, std::uint8_t*& next) {
  select(values, rule);
  const std::size_t count = places_.size();
  store_u32(next, count);
  next += kNumberBytes;
  if (count == 0) return;
  round(values, rule.bits);
  const GolombCode code(GolombCode::best(count, places_.back() + 1 - count));
  const auto m = static_cast<std::uint16_t>(code.m);
  std::memcpy(next, &m, kCodeBytes);
  next += kCodeBytes;
  std::memcpy(next, levels_.data(), level_bytes(rule.bits));
  next += level_bytes(rule.bits);
  kernels::ExtraWriter writer(next);
  std::uint32_t begin = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t gap = places_[i] - begin, remainder = gap % code.m;
    begin = places_[i] + 1;
    std::uint32_t zeros = gap / code.m;
    for (; zeros >= 32; zeros -= 32) writer.put(0, 32);
    writer.put(std::uint64_t{1} << zeros, static_cast<int>(zeros) + 1);
    if (remainder >= code.cut) {
      // The lowest bit comes last: only those that begin like this have one more.
      const std::uint32_t word = remainder + code.cut;
      writer.put(word >> 1, std::max(code.width - 1, 0));
      if (code.width > 0) writer.put(word & 1, 1);
    } else {
      writer.put(remainder, code.width - 1);
    }
    writer.put(codes_[i], rule.bits);
  }
  next = writer.end();
}

template <typename T>
void TopkBlockEncoder::replace(T* values, std::size_t num_values) const {
  std::memset(static_cast<void*>(values), 0, num_values * sizeof(T));
  for (std::size_t i = 0; i < places_.size(); ++i)
    values[places_[i]] = kernels::from_float_bits<T>(levels_[codes_[i]]);
}

#define SLIMGRAD_INSTANTIATE(T)                                                             \
  template void TopkBlockEncoder::put(std::span<const T>, const TopkRule&, std::uint8_t*&); \
  template void TopkBlockEncoder::replace(T*, std::size_t) const;
SLIMGRAD_INSTANTIATE(float)
SLIMGRAD_INSTANTIATE(BFloat16Bits)
SLIMGRAD_INSTANTIATE(Float16Bits)
#undef SLIMGRAD_INSTANTIATE

// ---- from bytes to values
// ------------------------------------------------------------------------

TopkBlockDecoder::TopkBlockDecoder(std::span<const std::uint8_t> block, const TopkRule& rule,
                                   std::size_t num_values, std::uint32_t largest)
    : rule_(rule), num_values_(num_values) {
  if (block.size() < kNumberBytes) {
    fail(DecodeStatus::kTruncated);
    return;
  }
  num_kept_ = load_u32(block.data());
  bits_ = block.subspan(kNumberBytes);
  if (num_kept_ == 0) return;
  const std::size_t table_bytes = kCodeBytes + level_bytes(rule.bits);
  if (bits_.size() < table_bytes) {
    fail(DecodeStatus::kTruncated);
    return;
  }
  std::uint16_t m = 0;
  std::memcpy(&m, bits_.data(), kCodeBytes);
  std::memcpy(levels_.data(), bits_.data() + kCodeBytes, level_bytes(rule.bits));
  bits_ = bits_.subspan(table_bytes);
  bool valid = m >= 1 && m <= GolombCode::kLargest;
  for (const std::uint32_t level : levels_) valid &= (level & ~kernels::kSignMask) <= largest;
  if (!valid)
    fail(DecodeStatus::kBadTable);
  else
    code_ = GolombCode(m);
}

// Nothing is left to be visited but the failure.
bool TopkBlockDecoder::fail(DecodeStatus status) {
  status_ = status;
  num_kept_ = 0;
  return false;
}

// At least 57 bits from the next one on; zeros behind the end.
std::uint64_t TopkBlockDecoder::peek() const {
  const std::uint64_t byte = used_ / 8;
  std::uint64_t word = 0;
  if (byte + 8 <= bits_.size())
    std::memcpy(&word, bits_.data() + byte, 8);
  else if (byte < bits_.size())
    std::memcpy(&word, bits_.data() + byte, bits_.size() - byte);
  return word >> (used_ % 8);
}

std::uint32_t TopkBlockDecoder::take(int count) {
  const auto bits = static_cast<std::uint32_t>(peek() & ((std::uint64_t{1} << count) - 1));
  used_ += static_cast<std::uint64_t>(count);
  return bits;
}

bool TopkBlockDecoder::next(std::uint32_t& level) {
  constexpr int kAtOnce = 57;
  std::uint64_t zeros = 0, word;
  while ((word = peek() & ((std::uint64_t{1} << kAtOnce) - 1)) == 0) {
    zeros += kAtOnce;
    used_ += kAtOnce;
    if (used_ >= 8 * bits_.size()) return fail(DecodeStatus::kTruncated);
  }
  const int more = std::countr_zero(word);
  zeros += static_cast<std::uint64_t>(more);
  used_ += static_cast<std::uint64_t>(more) + 1;
  std::uint32_t remainder = code_.width > 0 ? take(code_.width - 1) : 0;
  if (code_.width > 0 && remainder >= code_.cut) remainder = 2 * remainder + take(1) - code_.cut;
  const std::uint64_t place = next_place_ + zeros * code_.m + remainder;
  if (place >= num_values_) return fail(DecodeStatus::kBadFinalState);
  if (place >= group_end_) {
    const auto of = static_cast<std::size_t>(rule_.of);
    const std::size_t first = place & ~(of - 1);
    const std::size_t size = std::min(of, num_values_ - first);
    group_end_ = first + size;
    left_of_group_ = topk_kept(rule_.k, rule_.of, size);
  }
  if (left_of_group_-- == 0) return fail(DecodeStatus::kBadFinalState);
  level = levels_[take(rule_.bits)];
  place_ = place;
  next_place_ = place + 1;
  return true;
}

DecodeStatus TopkBlockDecoder::end() const {
  if (status_ != DecodeStatus::kOk) return status_;
  const std::uint64_t bytes = (used_ + 7) / 8;
  if (bytes > bits_.size()) return DecodeStatus::kTruncated;
  if (bytes < bits_.size()) return DecodeStatus::kTrailingBytes;
  const bool padded = used_ % 8 == 0 || bits_.back() >> (used_ % 8) == 0;
  return padded ? DecodeStatus::kOk : DecodeStatus::kBadFinalState;
}

}  // namespace slimgrad
