#include <slimgrad/payload.h>

#include <cstring>

#include "arrays/apply/loop_treatment.h"
#include "arrays/apply/value_table.h"
#include "arrays/coding/checksum.h"
#include "arrays/coding/payload_layout.h"
#include "arrays/coding/payload_parts.h"
#include "arrays/coding/rate_choice.h"
#include "base/check.h"
#include "base/names.h"
#include "formats/payload_header.h"
#include "kernels/apply/apply.h"
#include "kernels/coding/nonzeros.h"
#include "kernels/coding/open_levels.h"
#include "kernels/coding/uniform.h"
#include "kernels/coding/value_symbols.h"
#include "kernels/coding/zero_mask.h"
#include "kernels/dispatch.h"
#include "kernels/half_float.h"

namespace slimgrad {
namespace {

constexpr NameTable<EntropyCoder, 3> kCoders = {{{EntropyCoder::kRans, "rans"},
                                                 {EntropyCoder::kHuffman, "huffman"},
                                                 {EntropyCoder::kNone, "none"}}};

constexpr std::uint64_t kMostOverhead = 64;

// The nearest bfloat16; beyond its range its largest. REQUIRES: finite.
BFloat16Bits to_bfloat16(float value) {
  const auto rounded = kernels::from_float_bits<BFloat16Bits>(std::bit_cast<std::uint32_t>(value));
  if ((rounded.bits & 0x7fffu) < 0x7f80u) return rounded;
  return {static_cast<std::uint16_t>((rounded.bits & 0x8000u) | 0x7f7fu)};
}

}  // namespace

std::string_view entropy_coder_name(EntropyCoder coder) { return name_of(kCoders, coder); }
EntropyCoder parse_entropy_coder(std::string_view name) {
  return parse_name(kCoders, "encode", "coder", name);
}

struct PayloadEncoder::State {
  // A coded block: in the room, or in memory of its own if there was not enough.
  struct Block {
    std::span<const std::uint8_t> bytes;
    std::unique_ptr<std::uint8_t[]> own;
  };

  TensorView tensor;
  EncodeOptions options;
  PayloadInfo info;
  std::optional<RateChoice> rate;
  std::optional<SharedTable> shared;
  kernels::LoopTreatment rounding;  // to codes of a FloatFormat
  // Where the blocks are built: the caller's memory, or our own.
  std::unique_ptr<std::uint8_t[]> own_room;
  std::span<std::uint8_t> room;
  std::vector<Block> blocks;
  std::vector<std::uint8_t> header;

  // One for each call of run().
  struct Worker {
    const State& state;
    BlockEncoder encoder;
    PlaneEncoder planes;
    std::vector<std::uint8_t> symbols, masks, nonzeros, survivors, extra;
    std::array<std::int32_t, kernels::kLevelsAtOnce> levels;
    bool many_extra = false;  // whether most groups of symbols had extra bits, the last time
    std::vector<BFloat16Bits> halves;

    explicit Worker(const State& state)
        : state(state),
          encoder(state.options.coder, state.shared ? &*state.shared : nullptr,
                  state.symbol_bits()) {}

    // Writes a block at `next`, which moves on. REQUIRES: room for block_bound() bytes.
    void put_block(BlockRange range, std::uint8_t*& next);
    template <typename T>
    void put_symbols(std::span<const T> values, std::size_t first, std::uint8_t*& next);
    template <typename T>
    void split_levels(std::span<const T> values, std::size_t first, std::uint8_t* to,
                      kernels::ExtraWriter& writer);
    template <typename T>
    void put_levels(std::span<const T> values, std::size_t first, std::uint8_t*& next);
    template <typename T>
    void replace(std::size_t first) const;
    template <typename T>
    void put_pruned(std::span<const T> values, std::size_t first, std::uint8_t*& next);
  };

  template <typename T>
  void round_levels(std::span<const T> values, std::size_t first, std::int32_t* levels) const;
  void replace_by_levels() const;
  std::uint64_t coded_size() const;
  int symbol_bits() const;
  std::size_t block_bound(std::size_t num_values) const;
  std::uint8_t* place_of(std::size_t index) const;
  bool can_close_gaps(const std::uint8_t* to) const;
};

int PayloadEncoder::State::symbol_bits() const {
  if (info.kind == PayloadKind::kUniform && info.bits != kOpenBits) return info.bits;
  return info.kind == PayloadKind::kFloat ? options.format.bits() : 8;
}

std::size_t PayloadEncoder::State::block_bound(std::size_t num_values) const {
  const std::size_t planes = PlaneEncoder::bound(num_values, bytes_of(info.dtype));
  if (info.kind == PayloadKind::kLossless) return planes;
  const std::size_t symbols = num_values + 1;
  if (has_open_levels(info)) return 4 + symbols + kernels::extra_bound(num_values);
  if (info.kind != PayloadKind::kPruned) return symbols;
  return (4 + kernels::num_masks(num_values) + 1) + (4 + symbols) + std::max(planes, symbols);
}

// Where a run of blocks that begins with this one is put: behind all that the blocks before it can
// take, unless they grow. So runs do not meet, and within a run there are no gaps. Room to spare is
// spread over the blocks, which then may grow.
std::uint8_t* PayloadEncoder::State::place_of(std::size_t index) const {
  const std::uint64_t slot = PlaneEncoder::bound(std::size_t{1} << info.block_log2, 1) *
                             std::uint64_t{bytes_of(info.dtype)};
  const std::uint64_t share = (room.size() - std::min(room.size(), header.size())) / blocks.size();
  const std::uint64_t offset = header.size() + index * std::max(slot, share);
  return room.data() + std::min<std::uint64_t>(offset, room.size());
}

// Quantized values as the last part of a block. A pruned payload rounds its
// survivors, which are numbered from the first value of their block on.
template <typename T>
void PayloadEncoder::State::Worker::put_symbols(std::span<const T> values, std::size_t first,
                                                std::uint8_t*& next) {
  const PayloadInfo& info = state.info;
  symbols.resize(values.size());
  if (info.kind != PayloadKind::kUniform) {
    kernels::encode(state.rounding, values.data(), symbols.data(), values.size(), first);
  } else if (state.options.rounding == Rounding::kNearest) {
    kernels::uniform_symbols(values, info.scale, kernels::uniform_half(info.bits), symbols.data());
  } else {
    kernels::uniform_symbols_stochastic(
        values, info.scale, kernels::uniform_half(info.bits),
        RandomStream(state.options.seed.value_or(0), Stream::kRound), first, symbols.data());
  }
  if (!state.options.replaced.empty() && info.kind != PayloadKind::kPruned) replace<T>(first);
  put_part(encoder.encode(symbols), Place::kLast, next);
}

// Draws belong to positions, so that any part of the values can be rounded again, alike.
template <typename T>
void PayloadEncoder::State::round_levels(std::span<const T> values, std::size_t first,
                                         std::int32_t* levels) const {
  if (options.rounding == Rounding::kNearest)
    kernels::uniform_levels(values, info.scale, levels);
  else
    kernels::uniform_levels_stochastic(
        values, info.scale, RandomStream(options.seed.value_or(0), Stream::kRound), first, levels);
}

// At most kLevelsAtOnce levels without an upper end, as symbols and extra bits. Where few have
// extra bits the quantizer to 8 bits is faster: its symbols are these, but at the ends, which are
// then done again, 64 at a time.
template <typename T>
void PayloadEncoder::State::Worker::split_levels(std::span<const T> values, std::size_t first,
                                                 std::uint8_t* to, kernels::ExtraWriter& writer) {
  constexpr std::size_t kGroup = 64;
  if (many_extra) {
    state.round_levels(values, first, levels.data());
    kernels::split_levels(std::span<const std::int32_t>(levels).first(values.size()), to, writer);
    std::size_t num_groups = 0;
    for (std::size_t i = 0; i + kGroup <= values.size(); i += kGroup)
      num_groups += kernels::any_has_extra(to + i, kGroup) ? 1 : 0;
    many_extra = 4 * kGroup * num_groups > values.size();
    return;
  }
  if (state.options.rounding == Rounding::kNearest)
    kernels::uniform_symbols(values, state.info.scale, kOpenCentre, to);
  else
    kernels::uniform_symbols_stochastic(
        values, state.info.scale, kOpenCentre,
        RandomStream(state.options.seed.value_or(0), Stream::kRound), first, to);
  std::size_t num_groups = 0;
  for (std::size_t i = 0; i < values.size(); i += kGroup) {
    const std::size_t count = std::min(kGroup, values.size() - i);
    if (!kernels::any_has_extra(to + i, count)) continue;
    ++num_groups;
    state.round_levels(values.subspan(i, count), first + i, levels.data());
    kernels::split_levels(std::span<const std::int32_t>(levels).first(count), to + i, writer);
  }
  many_extra = 4 * kGroup * num_groups > values.size();
}

// Levels without an upper end: their symbols, then the bits that tell apart what symbols do not.
template <typename T>
void PayloadEncoder::State::Worker::put_levels(std::span<const T> values, std::size_t first,
                                               std::uint8_t*& next) {
  symbols.resize(values.size());
  extra.resize(kernels::extra_bound(values.size()));
  kernels::ExtraWriter writer(extra.data());
  for (std::size_t i = 0; i < values.size(); i += kernels::kLevelsAtOnce)
    split_levels(values.subspan(i, std::min(kernels::kLevelsAtOnce, values.size() - i)), first + i,
                 symbols.data() + i, writer);
  put_part(encoder.encode(symbols), Place::kInside, next);
  next = std::copy(extra.data(), writer.end(), next);
}

// All values become what their levels stand for. Not while blocks are coded: they may have to be
// coded again.
void PayloadEncoder::State::replace_by_levels() const {
  std::array<std::int32_t, kernels::kLevelsAtOnce> levels;
  with_value_type(info.dtype, [&]<typename T>() {
    T* const values = reinterpret_cast<T*>(options.replaced.data());
    const auto num_values = static_cast<std::size_t>(info.num_values());
    for (std::size_t i = 0; i < num_values; i += levels.size()) {
      const std::size_t count = std::min(levels.size(), num_values - i);
      round_levels(std::span<const T>(values + i, count), i, levels.data());
      for (std::size_t k = 0; k < count; ++k)
        values[i + k] = to_value_type<T>(static_cast<double>(levels[k]) * info.scale);
    }
  });
}

// The values from `first` on become what their symbols stand for.
template <typename T>
void PayloadEncoder::State::Worker::replace(std::size_t first) const {
  const PayloadInfo& info = state.info;
  T* const to = reinterpret_cast<T*>(state.options.replaced.data()) + first;
  const int half = kernels::uniform_half(info.bits);
  if (info.kind == PayloadKind::kFloat)
    kernels::look_up(symbols, float_value_table<T>(state.options.format, info.scale), to);
  else if constexpr (std::is_same_v<T, float>)
    kernels::uniform_values(symbols, info.scale, half, to);
  else
    kernels::look_up(symbols, uniform_value_table<T>(half, info.scale), to);
}

template <typename T>
void PayloadEncoder::State::Worker::put_pruned(std::span<const T> values, std::size_t first,
                                               std::uint8_t*& next) {
  const PayloadInfo& info = state.info;
  const T threshold = kernels::from_float_bits<T>(std::bit_cast<std::uint32_t>(info.threshold));
  masks.resize(kernels::num_masks(values.size()));
  nonzeros.resize(values.size() * sizeof(T) + kernels::kNonzerosSlack);
  const std::size_t num_nonzeros = kernels::split_nonzeros(values.data(), values.size(), sizeof(T),
                                                           masks.data(), nonzeros.data());
  put_part(encoder.encode(masks), Place::kInside, next);
  symbols.resize(num_nonzeros);
  survivors.resize(num_nonzeros * sizeof(T));
  T* const kept = reinterpret_cast<T*>(survivors.data());
  const std::size_t count = kernels::split_classes(
      std::span<const T>(reinterpret_cast<const T*>(nonzeros.data()), num_nonzeros), threshold,
      symbols.data(), kept);
  put_part(encoder.encode(symbols), Place::kInside, next);
  if (info.survivors == Survivors::kExact) {
    planes.put(encoder, kept, count, sizeof(T), next);
  } else if (info.survivors == Survivors::kFloat) {
    put_symbols(std::span<const T>(kept, count), first, next);
  } else if constexpr (std::is_same_v<T, float>) {
    halves.resize(count);
    std::transform(kept, kept + count, halves.begin(), to_bfloat16);
    planes.put(encoder, halves.data(), count, 2, next);
  }
}

void PayloadEncoder::State::Worker::put_block(BlockRange range, std::uint8_t*& next) {
  const DType dtype = state.info.dtype;
  if (state.info.kind == PayloadKind::kLossless) {
    const auto* bytes = static_cast<const std::uint8_t*>(state.tensor.data);
    return planes.put(encoder, bytes + range.first * bytes_of(dtype), range.count, bytes_of(dtype),
                      next);
  }
  with_value_type(dtype, [&]<typename T>() {
    const std::span<const T> values(static_cast<const T*>(state.tensor.data) + range.first,
                                    range.count);
    if (has_open_levels(state.info))
      put_levels(values, range.first, next);
    else if (state.info.kind == PayloadKind::kPruned)
      put_pruned(values, range.first, next);
    else
      put_symbols(values, range.first, next);
  });
}

PayloadEncoder::PayloadEncoder(const TensorView& tensor, const EncodeOptions& options,
                               std::span<std::uint8_t> out)
    : state_(std::make_unique<State>()) {
  kernels::obey_environment();
  State& state = *state_;
  state.tensor = tensor;
  state.options = options;
  state.info = choose_payload(tensor, options, state.rate);
  PayloadInfo& info = state.info;
  if (info.model != TableModel::kCounted) state.shared = model_table(info);
  const bool has_format = info.kind == PayloadKind::kFloat || (info.kind == PayloadKind::kPruned &&
                                                               info.survivors == Survivors::kFloat);
  if (has_format) {
    const auto underflow =
        options.rounding == Rounding::kNearest ? Underflow::kZero : Underflow::kStochastic;
    const Quantizer quantizer = {options.format, info.scale, options.rounding, underflow};
    state.rounding = with_value_type(info.dtype, [&]<typename T>() {
      return loop_treatment<T>("encode",
                               {.quantizer = quantizer, .seed = options.seed.value_or(0)});
    });
  }
  state.blocks.resize(info.num_blocks());
  info.block_bytes.assign(info.num_blocks(), 0);
  state.header = write_payload_header(info);  // as long as the final one
  state.room = out;
  if (out.empty()) {
    const auto size = static_cast<std::size_t>(encode_bound(tensor));
    state.own_room = std::make_unique_for_overwrite<std::uint8_t[]>(size);
    state.room = {state.own_room.get(), size};
  }
}

PayloadEncoder::~PayloadEncoder() = default;

std::size_t PayloadEncoder::num_blocks() const { return state_->blocks.size(); }

void PayloadEncoder::run(std::size_t first, std::size_t last) {
  if (first == last) return;
  State& state = *state_;
  State::Worker worker(state);
  std::uint8_t* next = state.place_of(first);
  const std::uint8_t* const end =
      last < num_blocks() ? state.place_of(last) : state.room.data() + state.room.size();
  for (std::size_t i = first; i < last; ++i) {
    const BlockRange range = block_range(state.info, i);
    const std::size_t bound = state.block_bound(range.count);
    State::Block& block = state.blocks[i];
    const bool fits = static_cast<std::size_t>(end - next) >= bound;
    block.own = fits ? nullptr : std::make_unique_for_overwrite<std::uint8_t[]>(bound);
    std::uint8_t* own_next = block.own.get();
    std::uint8_t*& to = fits ? next : own_next;
    const std::uint8_t* const begin = to;
    worker.put_block(range, to);
    block.bytes = {begin, to};
    if (fits || block.bytes.size() > static_cast<std::size_t>(end - next)) continue;
    // It would have had room after all.
    std::uint8_t* const place = next;
    next = std::copy(block.bytes.begin(), block.bytes.end(), place);
    block.bytes = {place, next};
    block.own.reset();
  }
}

std::uint64_t PayloadEncoder::State::coded_size() const {
  std::uint64_t size = header.size() + kChecksumBytes;
  for (const Block& block : blocks) size += block.bytes.size();
  return size;
}

bool PayloadEncoder::correct() {
  State& state = *state_;
  if (!state.rate) return false;
  const std::optional<float> step = state.rate->corrected_step(state.coded_size());
  if (!step) return false;
  set_step(*step, state.info);
  if (state.shared) state.shared = model_table(state.info);
  return true;
}

std::size_t PayloadEncoder::finish() {
  State& state = *state_;
  PayloadInfo& info = state.info;
  info.block_bytes.clear();
  for (const auto& block : state.blocks)
    info.block_bytes.push_back(static_cast<std::uint32_t>(block.bytes.size()));
  state.header = write_payload_header(info);
  std::uint64_t size = state.coded_size();
  // What gives back every bit is stored if that is smaller. What does not must keep the promise
  // about the size, too, but is otherwise what was asked for.
  PayloadInfo raw = info;
  raw.kind = PayloadKind::kRaw;
  const std::vector<std::uint8_t> raw_header = write_payload_header(raw);
  const std::uint64_t raw_size = raw_header.size() + info.num_bytes() + kChecksumBytes;
  const bool exact = info.kind == PayloadKind::kLossless ||
                     (info.kind == PayloadKind::kPruned && info.survivors == Survivors::kExact);
  if (size > (exact ? raw_size : std::max(raw_size, info.num_bytes() + kMostOverhead))) {
    info = raw;
    state.header = raw_header;
    size = raw_size;
  }
  if (has_open_levels(info) && !state.options.replaced.empty()) state.replace_by_levels();
  info.payload_bytes = size;
  return static_cast<std::size_t>(size);
}

// Whether the blocks can be moved to their places from `to` on, the first one first: none of those
// in the room lies before its place, where another may be written over it first.
bool PayloadEncoder::State::can_close_gaps(const std::uint8_t* to) const {
  for (const Block& block : blocks) {
    if (block.own == nullptr && block.bytes.data() < to) return false;
    to += block.bytes.size();
  }
  return true;
}

void PayloadEncoder::write(std::span<std::uint8_t> out) const {
  const State& state = *state_;
  check(out.size() == state.info.payload_bytes, "encode", "room for exactly the payload",
        out.size(), " bytes for ", state.info.payload_bytes);
  std::uint8_t* to = out.data() + state.header.size();
  if (state.info.kind == PayloadKind::kRaw) {
    if (state.info.num_bytes() > 0) std::memcpy(to, state.tensor.data, state.info.num_bytes());
  } else if (out.data() != state.room.data() || state.can_close_gaps(to)) {
    for (const auto& block : state.blocks) {
      if (block.bytes.data() != to) std::memmove(to, block.bytes.data(), block.bytes.size());
      to += block.bytes.size();
    }
  } else {
    std::vector<std::uint8_t> body;
    for (const auto& block : state.blocks)
      body.insert(body.end(), block.bytes.begin(), block.bytes.end());
    std::copy(body.begin(), body.end(), to);
  }
  std::copy(state.header.begin(), state.header.end(), out.data());
  const std::size_t data_bytes = out.size() - kChecksumBytes;
  const std::uint64_t sum = checksum(out.first(data_bytes));
  for (std::size_t i = 0; i < kChecksumBytes; ++i)
    out[data_bytes + i] = static_cast<std::uint8_t>(sum >> (8 * i));
}

std::vector<std::uint8_t> encode(const TensorView& tensor, const EncodeOptions& options) {
  PayloadEncoder encoder(tensor, options);
  do encoder.run(0, encoder.num_blocks());
  while (encoder.correct());
  std::vector<std::uint8_t> payload(encoder.finish());
  encoder.write(payload);
  return payload;
}

std::size_t encode_into(const TensorView& tensor, const EncodeOptions& options,
                        std::span<std::uint8_t> out) {
  PayloadEncoder encoder(tensor, options, out);
  do encoder.run(0, encoder.num_blocks());
  while (encoder.correct());
  const std::size_t size = encoder.finish();
  check(out.size() >= size, "encode", "room for the payload", out.size(), " bytes for ", size);
  encoder.write(out.first(size));
  return size;
}

std::uint64_t encode_bound(const TensorView& tensor) {
  PayloadInfo raw;
  raw.dtype = tensor.dtype;
  raw.shape = tensor.shape;
  const std::uint64_t header = write_payload_header(raw).size() + kChecksumBytes;
  return raw.num_bytes() + std::max(header, kMostOverhead);
}

}  // namespace slimgrad
