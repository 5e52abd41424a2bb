#include <slimgrad/payload.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "arrays/apply/value_table.h"
#include "arrays/coding/checksum.h"
#include "arrays/coding/payload_layout.h"
#include "arrays/coding/payload_parts.h"
#include "base/check.h"
#include "formats/payload_header.h"
#include "kernels/coding/nonzeros.h"
#include "kernels/coding/open_levels.h"
#include "kernels/coding/uniform.h"
#include "kernels/coding/value_symbols.h"
#include "kernels/coding/zero_mask.h"
#include "kernels/dispatch.h"
#include "kernels/half_float.h"

namespace slimgrad {
namespace {

using Bytes = std::span<const std::uint8_t>;

void check_checksum(Bytes payload) {
  const std::size_t data_bytes = payload.size() - kChecksumBytes;
  std::uint64_t stored = 0;
  for (std::size_t i = 0; i < kChecksumBytes; ++i)
    stored |= std::uint64_t{payload[data_bytes + i]} << (8 * i);
  if (stored != checksum(payload.first(data_bytes)))
    throw PayloadError(PayloadErrorCode::kBadChecksum,
                       "[decode] the checksum is wrong: the payload is damaged or cut off");
}

std::string_view explain(DecodeStatus status) {
  switch (status) {
    case DecodeStatus::kTruncated:
      return "it ends before its symbols do";
    case DecodeStatus::kTrailingBytes:
      return "its symbols end before it does";
    case DecodeStatus::kBadTable:
      return "its frequency table is invalid";
    case DecodeStatus::kBadMethod:
      return "its method is unknown";
    case DecodeStatus::kNoSharedTable:
      return "it refers to a model that the header does not have";
    default:
      return "its symbols are wrong";
  }
}

bool fits(const PayloadInfo& info) {
  if (info.kind == PayloadKind::kUniform && info.model != TableModel::kCounted)
    return is_valid(model_parameters(info));
  if (info.kind != PayloadKind::kPruned) return true;
  return with_value_type(info.dtype, [&]<typename T>() {
    if (info.threshold > kLargest<T>) return false;
    const auto bits = std::bit_cast<std::uint32_t>(info.threshold);
    return kernels::float_bits(kernels::from_float_bits<T>(bits)) == bits;
  });
}

// The symbols' values, and the number of symbols that have one.
template <typename T>
std::array<T, 256> table_of(const PayloadInfo& info, int& num_symbols) {
  if (info.kind == PayloadKind::kUniform) {
    num_symbols = 2 * kernels::uniform_half(info.bits) + 1;  // kNumOpenSymbols without an upper end
    return uniform_value_table<T>(kernels::uniform_half(info.bits), info.scale);
  }
  const FloatFormat format(info.exponent_bits, info.mantissa_bits);
  num_symbols = format.num_codes();
  return float_value_table<T>(format, info.scale);
}

// Values as they are, which may lie at any address.
template <typename T>
void add_raw(Bytes body, std::span<float> sums) {
  std::array<T, 1024> part;
  for (std::size_t i = 0; i < sums.size(); i += part.size()) {
    const std::size_t count = std::min(part.size(), sums.size() - i);
    std::memcpy(part.data(), body.data() + i * sizeof(T), count * sizeof(T));
    kernels::add_values(part.data(), count, sums.data() + i);
  }
}

bool has_symbols(const PayloadInfo& info) {
  return info.kind == PayloadKind::kUniform || info.kind == PayloadKind::kFloat ||
         (info.kind == PayloadKind::kPruned && info.survivors == Survivors::kFloat);
}

}  // namespace

struct PayloadDecoder::State {
  Bytes payload;
  bool verified = false;
  PayloadInfo info;
  Bytes body;                          // the blocks, or the raw values
  std::vector<std::uint64_t> offsets;  // of the blocks in the body
  std::optional<SharedTable> shared;

  void read_header();
  template <typename Decode>
  void for_blocks(std::size_t first, std::size_t last, const PayloadDecoder& decoder,
                  const Decode& decode) const;

  // One for each call of run().
  template <typename T>
  struct Worker {
    const PayloadInfo& info;
    BlockDecoder decoder;
    PlaneDecoder planes;
    std::vector<std::uint8_t> symbols, masks, classes;
    std::vector<T> survivors, nonzeros, summands;
    std::vector<BFloat16Bits> halves;
    std::array<T, 256> table = {};
    int num_symbols = 0;

    explicit Worker(const State& state)
        : info(state.info), decoder(state.shared ? &*state.shared : nullptr) {
      if (has_symbols(info)) table = table_of<T>(info, num_symbols);
    }

    DecodeStatus decode(Bytes block, std::span<T> values);
    DecodeStatus add(Bytes block, std::span<float> sums);
    DecodeStatus decode_codes(Bytes block, std::size_t num_values);
    DecodeStatus decode_symbols(Bytes block, std::span<T> values);
    DecodeStatus decode_levels(Bytes block, std::span<T> values);
    DecodeStatus decode_halves(Bytes block, std::span<T> values);
    DecodeStatus decode_pruned(Bytes block, std::span<T> values);
    DecodeStatus decode_topk(Bytes block, std::span<T> values);
    DecodeStatus add_topk(Bytes block, std::span<float> sums);
  };
};

// Into `symbols`, none of them above the last that has a value.
template <typename T>
DecodeStatus PayloadDecoder::State::Worker<T>::decode_codes(Bytes block, std::size_t num_values) {
  symbols.resize(num_values);
  const DecodeStatus status = decoder.decode(block, symbols);
  if (status != DecodeStatus::kOk) return status;
  const bool have_values = kernels::largest_symbol(symbols) < num_symbols;
  return have_values ? DecodeStatus::kOk : DecodeStatus::kBadFinalState;
}

template <typename T>
DecodeStatus PayloadDecoder::State::Worker<T>::decode_symbols(Bytes block, std::span<T> values) {
  const DecodeStatus status = decode_codes(block, values.size());
  if (status != DecodeStatus::kOk) return status;
  if constexpr (std::is_same_v<T, float>) {
    if (info.kind == PayloadKind::kUniform) {
      kernels::uniform_values(symbols, info.scale, kernels::uniform_half(info.bits), values.data());
      return DecodeStatus::kOk;
    }
  }
  kernels::look_up(symbols, table, values.data());
  return DecodeStatus::kOk;
}

// Levels without an upper end: first as if no symbol had extra bits, then those that have.
template <typename T>
DecodeStatus PayloadDecoder::State::Worker<T>::decode_levels(Bytes block, std::span<T> values) {
  Bytes part;
  if (!take_part(block, Place::kInside, part)) return DecodeStatus::kTruncated;
  const DecodeStatus status = decode_symbols(part, values);
  if (status != DecodeStatus::kOk) return status;
  const bool fit =
      kernels::visit_extra_levels(symbols, block, [&](std::size_t i, std::int32_t level) {
        values[i] = to_value_type<T>(static_cast<double>(level) * info.scale);
      });
  return fit ? DecodeStatus::kOk : DecodeStatus::kBadFinalState;
}

template <typename T>
DecodeStatus PayloadDecoder::State::Worker<T>::decode_halves(Bytes block, std::span<T> values) {
  halves.resize(values.size());
  const DecodeStatus status = planes.decode(decoder, block, halves.size(), 2, halves.data());
  if (status != DecodeStatus::kOk) return status;
  for (std::size_t i = 0; i < halves.size(); ++i)
    values[i] = kernels::from_float_bits<T>(kernels::float_bits(halves[i]));
  return DecodeStatus::kOk;
}

template <typename T>
DecodeStatus PayloadDecoder::State::Worker<T>::decode_pruned(Bytes block, std::span<T> values) {
  Bytes part;
  if (!take_part(block, Place::kInside, part)) return DecodeStatus::kTruncated;
  masks.resize(kernels::num_masks(values.size()));
  DecodeStatus status = decoder.decode(part, masks);
  if (status != DecodeStatus::kOk) return status;
  const std::size_t num_nonzeros = kernels::count_others(masks, values.size());
  if (num_nonzeros > values.size()) return DecodeStatus::kBadFinalState;
  if (!take_part(block, Place::kInside, part)) return DecodeStatus::kTruncated;
  classes.resize(num_nonzeros);
  status = decoder.decode(part, classes);
  if (status != DecodeStatus::kOk) return status;
  if (kernels::largest_symbol(classes) > kernels::kSurvivorClass)
    return DecodeStatus::kBadFinalState;
  const std::size_t count = kernels::count_symbol(classes, kernels::kSurvivorClass);
  survivors.resize(count + 1);
  const std::span<T> kept = std::span(survivors).first(count);
  if (info.survivors == Survivors::kExact)
    status = planes.decode(decoder, block, count, sizeof(T), kept.data());
  else if (info.survivors == Survivors::kFloat)
    status = decode_symbols(block, kept);
  else
    status = decode_halves(block, kept);
  if (status != DecodeStatus::kOk) return status;
  const T threshold = kernels::from_float_bits<T>(std::bit_cast<std::uint32_t>(info.threshold));
  nonzeros.resize(num_nonzeros + kernels::kNonzerosSlack / sizeof(T));
  kernels::merge_classes(std::span<const std::uint8_t>(classes), threshold, survivors.data(),
                         nonzeros.data());
  kernels::merge_nonzeros(masks.data(), nonzeros.data(), sizeof(T), values.data(), values.size());
  return DecodeStatus::kOk;
}

template <typename T>
DecodeStatus PayloadDecoder::State::Worker<T>::decode_topk(Bytes block, std::span<T> values) {
  std::memset(static_cast<void*>(values.data()), 0, values.size_bytes());
  TopkBlockDecoder kept(block, topk_rule(info), values.size(), kernels::float_bits(kLargest<T>));
  return kept.visit([&](std::size_t place, std::uint32_t level) {
    values[place] = kernels::from_float_bits<T>(level);
  });
}

template <typename T>
DecodeStatus PayloadDecoder::State::Worker<T>::decode(Bytes block, std::span<T> values) {
  if (info.kind == PayloadKind::kLossless)
    return planes.decode(decoder, block, values.size(), sizeof(T), values.data());
  if (has_open_levels(info)) return decode_levels(block, values);
  if (info.kind == PayloadKind::kTopk) return decode_topk(block, values);
  return info.kind == PayloadKind::kPruned ? decode_pruned(block, values)
                                           : decode_symbols(block, values);
}

// Only what is kept adds something. Few sums share a cache line: each is asked for some places
// before it is needed.
template <typename T>
DecodeStatus PayloadDecoder::State::Worker<T>::add_topk(Bytes block, std::span<float> sums) {
  constexpr std::size_t kAhead = 16;
  std::array<std::pair<std::size_t, float>, kAhead> waiting = {};
  std::size_t count = 0;
  TopkBlockDecoder kept(block, topk_rule(info), sums.size(), kernels::float_bits(kLargest<T>));
  const DecodeStatus status = kept.visit([&](std::size_t place, std::uint32_t level) {
    __builtin_prefetch(&sums[place], 1);
    auto& [first, value] = waiting[count++ % kAhead];
    if (count > kAhead) sums[first] += value;
    first = place;
    value = kernels::to_float(kernels::from_float_bits<T>(level));
  });
  for (std::size_t i = count - std::min(count, kAhead); i < count; ++i)
    sums[waiting[i % kAhead].first] += waiting[i % kAhead].second;
  return status;
}

template <typename T>
DecodeStatus PayloadDecoder::State::Worker<T>::add(Bytes block, std::span<float> sums) {
  DecodeStatus status;
  if (std::is_same_v<T, float> && info.kind == PayloadKind::kUniform && !has_open_levels(info)) {
    status = decode_codes(block, sums.size());
    if (status == DecodeStatus::kOk)
      kernels::add_uniform_values(symbols, info.scale, kernels::uniform_half(info.bits),
                                  sums.data());
    return status;
  }
  if (info.kind == PayloadKind::kTopk) return add_topk(block, sums);
  summands.resize(sums.size());
  status = decode(block, summands);
  if (status == DecodeStatus::kOk)
    kernels::add_values(summands.data(), summands.size(), sums.data());
  return status;
}

void PayloadDecoder::State::read_header() {
  std::size_t header_bytes = 0;
  info = parse_payload_header(payload, header_bytes);
  if (!fits(info))
    throw PayloadError(PayloadErrorCode::kBadHeader,
                       "[decode] damaged header: an invalid threshold or model");
  body = payload.subspan(header_bytes, payload.size() - kChecksumBytes - header_bytes);
  std::uint64_t offset = 0;
  for (const std::uint32_t size : info.block_bytes) {
    offsets.push_back(offset);
    offset += size;
  }
  if (info.kind == PayloadKind::kUniform && info.model != TableModel::kCounted)
    shared = model_table(info);
}

template <typename Decode>
void PayloadDecoder::State::for_blocks(std::size_t first, std::size_t last,
                                       const PayloadDecoder& decoder, const Decode& decode) const {
  for (std::size_t i = first; i < last; ++i) {
    const Bytes block = body.subspan(offsets[i], info.block_bytes[i]);
    const DecodeStatus status = decode(block, block_range(info, i));
    if (status != DecodeStatus::kOk) {
      decoder.verify();
      throw PayloadError(
          PayloadErrorCode::kBadBlock,
          "[decode] block " + std::to_string(i) + " is damaged: " + std::string(explain(status)));
    }
  }
}

PayloadDecoder::PayloadDecoder(Bytes payload, Verification verification)
    : state_(std::make_unique<State>()) {
  kernels::obey_environment();
  check_payload_start(payload);
  state_->payload = payload;
  if (verification == Verification::kFirst) {
    check_checksum(payload);
    state_->verified = true;
  }
  try {
    state_->read_header();
  } catch (const PayloadError&) {
    verify();
    throw;
  }
}

void PayloadDecoder::verify() const {
  if (!state_->verified) check_checksum(state_->payload);
}

PayloadDecoder::~PayloadDecoder() = default;

const PayloadInfo& PayloadDecoder::info() const { return state_->info; }

std::size_t PayloadDecoder::num_blocks() const {
  if (state_->info.kind != PayloadKind::kRaw) return state_->offsets.size();
  return state_->info.num_bytes() == 0 ? 0 : 1;
}

void PayloadDecoder::run(std::size_t first, std::size_t last, std::span<std::uint8_t> out) const {
  const PayloadInfo& info = state_->info;
  // A damaged header may ask for anything.
  const bool aligned = reinterpret_cast<std::uintptr_t>(out.data()) % bytes_of(info.dtype) == 0;
  if (out.size() != info.num_bytes() || !aligned) verify();
  check(out.size() == info.num_bytes(), "decode", "room for exactly the values", out.size(),
        " bytes for ", info.num_bytes());
  if (info.kind == PayloadKind::kRaw) {
    if (first < last) std::memcpy(out.data(), state_->body.data(), out.size());
    return;
  }
  if (info.kind == PayloadKind::kLossless) {
    const std::size_t width = bytes_of(info.dtype);
    BlockDecoder decoder;
    PlaneDecoder planes;
    return state_->for_blocks(first, last, *this, [&](Bytes block, BlockRange range) {
      return planes.decode(decoder, block, range.count, width, out.data() + range.first * width);
    });
  }
  with_value_type(info.dtype, [&]<typename T>() {
    State::Worker<T> worker(*state_);
    T* const values = reinterpret_cast<T*>(out.data());
    state_->for_blocks(first, last, *this, [&](Bytes block, BlockRange range) {
      return worker.decode(block, std::span(values + range.first, range.count));
    });
  });
}

void PayloadDecoder::add(std::size_t first, std::size_t last, std::span<float> sums) const {
  const PayloadInfo& info = state_->info;
  const bool small = info.dtype != DType::kFloat64 && info.dtype != DType::kInt8;
  if (!small || sums.size() != info.num_values()) verify();
  check(small, "decode", "float32, bfloat16 or float16 values to add", dtype_name(info.dtype));
  check(sums.size() == info.num_values(), "decode", "a sum for every value", sums.size(), " for ",
        info.num_values());
  with_value_type(info.dtype, [&]<typename T>() {
    if (info.kind == PayloadKind::kRaw) {
      if (first < last) add_raw<T>(state_->body, sums);
      return;
    }
    State::Worker<T> worker(*state_);
    state_->for_blocks(first, last, *this, [&](Bytes block, BlockRange range) {
      return worker.add(block, sums.subspan(range.first, range.count));
    });
  });
}

std::vector<std::uint8_t> decode(Bytes payload, std::uint64_t max_bytes) {
  const PayloadDecoder decoder(payload);
  const std::uint64_t num_bytes = decoder.info().num_bytes();
  const auto too_large = [&](const std::string& room) {
    return PayloadError(PayloadErrorCode::kTooLarge, "[decode] expected " + room + ", got " +
                                                         std::to_string(num_bytes) + " bytes");
  };
  if (num_bytes > max_bytes)
    throw too_large("at most max_bytes=" + std::to_string(max_bytes) + " of values");
  std::vector<std::uint8_t> values;
  try {
    values.resize(num_bytes);
  } catch (const std::exception&) {  // bad_alloc or length_error
    throw too_large("values that fit into memory");
  }
  decoder.run(0, decoder.num_blocks(), values);
  return values;
}

void decode_into(Bytes payload, std::span<std::uint8_t> out) {
  const PayloadDecoder decoder(payload, Verification::kLast);
  decoder.run(0, decoder.num_blocks(), out);
  decoder.verify();
}

PayloadInfo inspect(Bytes payload) { return PayloadDecoder(payload).info(); }

}  // namespace slimgrad
