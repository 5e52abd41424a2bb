#include "arrays/coding/payload_block_encode.h"

#include <algorithm>
#include <bit>

#include "arrays/apply/loop_treatment.h"
#include "arrays/apply/value_table.h"
#include "kernels/coding/nonzeros.h"
#include "kernels/coding/uniform.h"
#include "kernels/coding/value_symbols.h"
#include "kernels/coding/zero_mask.h"
#include "kernels/half_float.h"

namespace slimgrad {
namespace {

// The nearest bfloat16; beyond its range its largest. REQUIRES: finite.
BFloat16Bits to_bfloat16(float value) {
  const auto rounded = kernels::from_float_bits<BFloat16Bits>(std::bit_cast<std::uint32_t>(value));
  if ((rounded.bits & 0x7fffu) < 0x7f80u) return rounded;
  return {static_cast<std::uint16_t>((rounded.bits & 0x8000u) | 0x7f7fu)};
}

// Bits of a symbol that is stored as it is, where no coder makes it shorter.
int symbol_bits(const BlockSource& source) {
  const PayloadInfo& info = source.info;
  if (info.kind == PayloadKind::kUniform && info.bits != kOpenBits) return info.bits;
  return info.kind == PayloadKind::kFloat ? source.options.format.bits() : 8;
}

RandomStream draws(const BlockSource& source) {
  return {source.options.seed.value_or(0), Stream::kRound};
}

// Draws belong to positions, so that any part of the values can be rounded again, alike.
template <typename T>
void round_levels(const BlockSource& source, std::span<const T> values, std::size_t first,
                  std::int32_t* levels) {
  if (source.options.rounding == Rounding::kNearest)
    kernels::uniform_levels(values, source.info.scale, levels);
  else
    kernels::uniform_levels_stochastic(values, source.info.scale, draws(source), first, levels);
}

template <typename T>
void round_symbols(const BlockSource& source, std::span<const T> values, std::size_t first,
                   std::uint8_t* symbols) {
  const int half = kernels::uniform_half(source.info.bits);
  if (source.options.rounding == Rounding::kNearest)
    kernels::uniform_symbols(values, source.info.scale, half, symbols);
  else
    kernels::uniform_symbols_stochastic(values, source.info.scale, half, draws(source), first,
                                        symbols);
}

}  // namespace

// ---- what all blocks share
// -----------------------------------------------------------------------

void BlockSource::prepare() {
  if (info.model != TableModel::kCounted) shared = model_table(info);
  const bool has_format = info.kind == PayloadKind::kFloat || (info.kind == PayloadKind::kPruned &&
                                                               info.survivors == Survivors::kFloat);
  if (!has_format) return;
  const auto underflow =
      options.rounding == Rounding::kNearest ? Underflow::kZero : Underflow::kStochastic;
  const Quantizer quantizer = {options.format, info.scale, options.rounding, underflow};
  rounding = with_value_type(info.dtype, [&]<typename T>() {
    return loop_treatment<T>("encode", {.quantizer = quantizer, .seed = options.seed.value_or(0)});
  });
}

std::size_t BlockSource::block_bound(std::size_t num_values) const {
  const std::size_t planes = PlaneEncoder::bound(num_values, bytes_of(info.dtype));
  const std::size_t symbols = num_values + 1;
  switch (info.kind) {
    case PayloadKind::kLossless:
      return planes;
    case PayloadKind::kTopk:
      return topk_block_bound(topk_rule(info), num_values);
    case PayloadKind::kPruned:
      return (4 + kernels::num_masks(num_values) + 1) + (4 + symbols) + std::max(planes, symbols);
    default:
      return has_open_levels(info) ? 4 + symbols + kernels::extra_bound(num_values) : symbols;
  }
}

void BlockSource::replace_by_levels() const {
  std::array<std::int32_t, kernels::kLevelsAtOnce> levels;
  with_value_type(info.dtype, [&]<typename T>() {
    T* const values = reinterpret_cast<T*>(options.replaced.data());
    const auto num_values = static_cast<std::size_t>(info.num_values());
    for (std::size_t i = 0; i < num_values; i += levels.size()) {
      const std::size_t count = std::min(levels.size(), num_values - i);
      round_levels(*this, std::span<const T>(values + i, count), i, levels.data());
      for (std::size_t k = 0; k < count; ++k)
        values[i + k] = to_value_type<T>(static_cast<double>(levels[k]) * info.scale);
    }
  });
}

// ---- one block
// -----------------------------------------------------------------------------------

PayloadBlockEncoder::PayloadBlockEncoder(const BlockSource& source)
    : source_(source),
      encoder_(source.options.coder, source.shared ? &*source.shared : nullptr,
               symbol_bits(source)) {
  if (source.info.kind == PayloadKind::kTopk) topk_ = std::make_unique<TopkBlockEncoder>();
}

void PayloadBlockEncoder::put(BlockRange range, std::uint8_t*& next) {
  const DType dtype = source_.info.dtype;
  if (source_.info.kind == PayloadKind::kLossless) {
    const auto* bytes = static_cast<const std::uint8_t*>(source_.tensor.data);
    return planes_.put(encoder_, bytes + range.first * bytes_of(dtype), range.count,
                       bytes_of(dtype), next);
  }
  with_value_type(dtype, [&]<typename T>() {
    const T* const values = static_cast<const T*>(source_.tensor.data);
    put_values(std::span<const T>(values + range.first, range.count), range.first, next);
  });
}

template <typename T>
void PayloadBlockEncoder::put_values(std::span<const T> values, std::size_t first,
                                     std::uint8_t*& next) {
  const PayloadInfo& info = source_.info;
  if (has_open_levels(info)) return put_levels(values, first, next);
  if (info.kind == PayloadKind::kPruned) return put_pruned(values, first, next);
  if (info.kind != PayloadKind::kTopk) return put_symbols(values, first, next);
  topk_->put(values, topk_rule(info), next);
  if (T* const to = replaced<T>(first)) topk_->replace(to, values.size());
}

// Where a reader's values go; none if nobody asked for them.
template <typename T>
T* PayloadBlockEncoder::replaced(std::size_t first) const {
  const std::span<std::uint8_t> memory = source_.options.replaced;
  return memory.empty() ? nullptr : reinterpret_cast<T*>(memory.data()) + first;
}

// Quantized values as the last part of a block. A pruned payload rounds its
// survivors, which are numbered from the first value of their block on.
template <typename T>
void PayloadBlockEncoder::put_symbols(std::span<const T> values, std::size_t first,
                                      std::uint8_t*& next) {
  const PayloadKind kind = source_.info.kind;
  const std::span<std::uint8_t> symbols(symbols_.reserve(values.size()), values.size());
  if (kind == PayloadKind::kUniform)
    round_symbols(source_, values, first, symbols.data());
  else
    kernels::encode(source_.rounding, values.data(), symbols.data(), values.size(), first);
  if (kind != PayloadKind::kPruned && replaced<T>(first) != nullptr) replace<T>(symbols, first);
  put_part(encoder_.encode(symbols), Place::kLast, next);
}

// At most kLevelsAtOnce levels without an upper end, as symbols and extra bits. Where few have
// extra bits the quantizer to 8 bits is faster: its symbols are these, but at the ends, which are
// then done again, 64 at a time.
template <typename T>
void PayloadBlockEncoder::split_levels(std::span<const T> values, std::size_t first,
                                       std::uint8_t* to, kernels::ExtraWriter& writer) {
  constexpr std::size_t kGroup = 64;
  if (many_extra_) {
    round_levels(source_, values, first, levels_.data());
    kernels::split_levels(std::span<const std::int32_t>(levels_).first(values.size()), to, writer);
    std::size_t num_groups = 0;
    for (std::size_t i = 0; i + kGroup <= values.size(); i += kGroup)
      num_groups += kernels::any_has_extra(to + i, kGroup) ? 1 : 0;
    many_extra_ = 4 * kGroup * num_groups > values.size();
    return;
  }
  round_symbols(source_, values, first, to);
  if (!kernels::any_has_extra(to, values.size())) return;
  std::size_t num_groups = 0;
  for (std::size_t i = 0; i < values.size(); i += kGroup) {
    const std::size_t count = std::min(kGroup, values.size() - i);
    if (!kernels::any_has_extra(to + i, count)) continue;
    ++num_groups;
    round_levels(source_, values.subspan(i, count), first + i, levels_.data());
    kernels::split_levels(std::span<const std::int32_t>(levels_).first(count), to + i, writer);
  }
  many_extra_ = 4 * kGroup * num_groups > values.size();
}

// Levels without an upper end: their symbols, then the bits that tell apart what symbols do not.
template <typename T>
void PayloadBlockEncoder::put_levels(std::span<const T> values, std::size_t first,
                                     std::uint8_t*& next) {
  const std::span<std::uint8_t> symbols(symbols_.reserve(values.size()), values.size());
  kernels::ExtraWriter writer(extra_.reserve(kernels::extra_bound(values.size())));
  for (std::size_t i = 0; i < values.size(); i += kernels::kLevelsAtOnce)
    split_levels(values.subspan(i, std::min(kernels::kLevelsAtOnce, values.size() - i)), first + i,
                 symbols.data() + i, writer);
  put_part(encoder_.encode(symbols), Place::kInside, next);
  next = std::copy(static_cast<const std::uint8_t*>(extra_.data()),
                   static_cast<const std::uint8_t*>(writer.end()), next);
}

// The values from `first` on become what their symbols stand for.
template <typename T>
void PayloadBlockEncoder::replace(std::span<const std::uint8_t> symbols, std::size_t first) const {
  const PayloadInfo& info = source_.info;
  T* const to = replaced<T>(first);
  const int half = kernels::uniform_half(info.bits);
  if (info.kind == PayloadKind::kFloat)
    kernels::look_up(symbols, float_value_table<T>(source_.options.format, info.scale), to);
  else if constexpr (std::is_same_v<T, float>)
    kernels::uniform_values(symbols, info.scale, half, to);
  else
    kernels::look_up(symbols, uniform_value_table<T>(half, info.scale), to);
}

template <typename T>
void PayloadBlockEncoder::put_pruned(std::span<const T> values, std::size_t first,
                                     std::uint8_t*& next) {
  const PayloadInfo& info = source_.info;
  const T threshold = kernels::from_float_bits<T>(std::bit_cast<std::uint32_t>(info.threshold));
  masks_.resize(kernels::num_masks(values.size()));
  nonzeros_.resize(values.size() * sizeof(T) + kernels::kNonzerosSlack);
  const std::size_t num_nonzeros = kernels::split_nonzeros(values.data(), values.size(), sizeof(T),
                                                           masks_.data(), nonzeros_.data());
  put_part(encoder_.encode(masks_), Place::kInside, next);
  const std::span<std::uint8_t> classes(symbols_.reserve(num_nonzeros), num_nonzeros);
  survivors_.resize(num_nonzeros * sizeof(T));
  T* const kept = reinterpret_cast<T*>(survivors_.data());
  const std::size_t count = kernels::split_classes(
      std::span<const T>(reinterpret_cast<const T*>(nonzeros_.data()), num_nonzeros), threshold,
      classes.data(), kept);
  put_part(encoder_.encode(classes), Place::kInside, next);
  if (info.survivors == Survivors::kExact) {
    planes_.put(encoder_, kept, count, sizeof(T), next);
  } else if (info.survivors == Survivors::kFloat) {
    put_symbols(std::span<const T>(kept, count), first, next);
  } else if constexpr (std::is_same_v<T, float>) {
    halves_.resize(count);
    std::transform(kept, kept + count, halves_.begin(), to_bfloat16);
    planes_.put(encoder_, halves_.data(), count, 2, next);
  }
}

}  // namespace slimgrad
