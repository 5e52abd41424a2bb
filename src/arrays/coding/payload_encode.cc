#include <slimgrad/payload.h>

#include <algorithm>
#include <cstring>

#include "arrays/coding/checksum.h"
#include "arrays/coding/payload_block_encode.h"
#include "arrays/coding/payload_layout.h"
#include "arrays/coding/payload_parts.h"
#include "arrays/coding/rate_choice.h"
#include "base/check.h"
#include "base/names.h"
#include "formats/payload_header.h"
#include "kernels/dispatch.h"

namespace slimgrad {
namespace {

constexpr NameTable<EntropyCoder, 3> kCoders = {{{EntropyCoder::kRans, "rans"},
                                                 {EntropyCoder::kHuffman, "huffman"},
                                                 {EntropyCoder::kNone, "none"}}};

constexpr std::uint64_t kMostOverhead = 64;

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

  BlockSource source;
  std::optional<RateChoice> rate;
  // Where the blocks are built: the caller's memory, or our own.
  std::unique_ptr<std::uint8_t[]> own_room;
  std::span<std::uint8_t> room;
  std::vector<Block> blocks;
  std::vector<std::uint8_t> header;

  std::uint64_t coded_size() const;
  std::uint8_t* place_of(std::size_t index) const;
  bool can_close_gaps(const std::uint8_t* to) const;
};

// Where a run of blocks that begins with this one is put: behind all that the blocks before it can
// take, unless they grow. So runs do not meet, and within a run there are no gaps. Room to spare is
// spread over the blocks, which then may grow.
std::uint8_t* PayloadEncoder::State::place_of(std::size_t index) const {
  const PayloadInfo& info = source.info;
  const std::uint64_t slot = PlaneEncoder::bound(std::size_t{1} << info.block_log2, 1) *
                             std::uint64_t{bytes_of(info.dtype)};
  const std::uint64_t share = (room.size() - std::min(room.size(), header.size())) / blocks.size();
  const std::uint64_t offset = header.size() + index * std::max(slot, share);
  return room.data() + std::min<std::uint64_t>(offset, room.size());
}

PayloadEncoder::PayloadEncoder(const TensorView& tensor, const EncodeOptions& options,
                               std::span<std::uint8_t> out)
    : state_(std::make_unique<State>()) {
  kernels::obey_environment();
  State& state = *state_;
  BlockSource& source = state.source;
  source.tensor = tensor;
  source.options = options;
  source.info = choose_payload(tensor, options, state.rate);
  source.prepare();
  PayloadInfo& info = source.info;
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
  const BlockSource& source = state.source;
  PayloadBlockEncoder encoder(source);
  std::uint8_t* next = state.place_of(first);
  const std::uint8_t* const end =
      last < num_blocks() ? state.place_of(last) : state.room.data() + state.room.size();
  for (std::size_t i = first; i < last; ++i) {
    const BlockRange range = block_range(source.info, i);
    const std::size_t bound = source.block_bound(range.count);
    State::Block& block = state.blocks[i];
    const bool fits = static_cast<std::size_t>(end - next) >= bound;
    block.own = fits ? nullptr : std::make_unique_for_overwrite<std::uint8_t[]>(bound);
    std::uint8_t* own_next = block.own.get();
    std::uint8_t*& to = fits ? next : own_next;
    const std::uint8_t* const begin = to;
    encoder.put(range, to);
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
  set_step(*step, state.source.info);
  state.source.prepare();
  return true;
}

std::size_t PayloadEncoder::finish() {
  State& state = *state_;
  PayloadInfo& info = state.source.info;
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
  if (has_open_levels(info) && !state.source.options.replaced.empty())
    state.source.replace_by_levels();
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
  const PayloadInfo& info = state.source.info;
  check(out.size() == info.payload_bytes, "encode", "room for exactly the payload", out.size(),
        " bytes for ", info.payload_bytes);
  std::uint8_t* to = out.data() + state.header.size();
  if (info.kind == PayloadKind::kRaw) {
    if (info.num_bytes() > 0) std::memcpy(to, state.source.tensor.data, info.num_bytes());
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
