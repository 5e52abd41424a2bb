#include "runtime/exchange/frame_coding.h"

#include <algorithm>
#include <vector>

#include <slimgrad/seed.h>
#include <slimgrad/threshold.h>
#include <slimgrad/torch.h>

#include "arrays/coding/pieces.h"
#include "base/check.h"
#include "formats/open_levels.h"
#include "torch/apply/apply.h"
#include "torch/coding/encode_options.h"
#include "torch/elements.h"
#include "torch/threads.h"

namespace slimgrad::exchange {
namespace {

using torch_ops::dtype_of;
using torch_ops::for_ranges;
using torch_ops::mutable_elements;

// A law is fitted to this many values of a piece.
constexpr std::size_t kFitSample = 8192;

TensorView flat_view(at::ScalarType type, std::int64_t length, const void* data = nullptr) {
  return {data, dtype_of(type), {static_cast<std::uint64_t>(length)}};
}

EncodeOptions encode_options(const Codec& codec) {
  EncodeOptions options;
  options.kind = codec.kind;
  options.coder = codec.coder;
  options.bits = codec.bits;
  options.rate = codec.rate;
  options.model = codec.model;
  options.fit_sample = kFitSample;
  options.format = codec.format;
  options.rounding = codec.rounding_in_force();
  options.survivors = codec.survivors;
  options.k = codec.k;
  options.of = codec.of;
  options.block_log2 = codec.block_log2;
  options.exact_if_nonfinite = true;
  return options;
}

std::size_t encode_piece(const TensorView& view, const EncodeOptions& options,
                         std::span<std::uint8_t> room) {
  PayloadEncoder encoder(view, options, room);
  torch_ops::encode_blocks(encoder);
  const std::size_t size = encoder.finish();
  check(size <= room.size(), "encode_frame", "room for the payload", room.size(), " bytes for ",
        size);
  encoder.write(room.first(size));
  return size;
}

void prune_piece(const Piece& piece, const Codec& codec, std::uint64_t seed) {
  const TensorStats stats = measure(piece.values);
  if (stats.num_finite() == 0) return;
  const double found = threshold(stats, codec.sparsity, ThresholdMethod::kEmpirical).value;
  if (found > 0)
    torch_ops::apply_cpu("all_reduce", {.threshold = found, .seed = derive_seed(seed, {piece.key})},
                         piece.values, piece.values);
}

// What a reader makes of a payload that the encoder could not say.
bool needs_decoding(const EncodeOptions& options) {
  return !options.replaced.empty() && options.kind == PayloadKind::kPruned &&
         options.survivors != Survivors::kExact;
}

void decode_piece(std::span<const std::uint8_t> payload, const ExpectedPiece& expected,
                  std::size_t index, const at::Tensor& piece, bool add) {
  const PayloadDecoder decoder(payload, Verification::kLast);
  try {
    check_piece(decoder.info(), expected, index);
  } catch (const PayloadError&) {
    decoder.verify();  // damage first: it explains the rest
    throw;
  }
  if (add) {
    const std::span<float> sums = mutable_elements<float>(piece);
    for_ranges(decoder.num_blocks(), 1,
               [&](std::size_t i, std::size_t end) { decoder.add(i, end, sums); });
  } else {
    const std::span<std::uint8_t> to(static_cast<std::uint8_t*>(piece.mutable_data_ptr()),
                                     static_cast<std::size_t>(piece.nbytes()));
    for_ranges(decoder.num_blocks(), 1,
               [&](std::size_t i, std::size_t end) { decoder.run(i, end, to); });
  }
  decoder.verify();
}

}  // namespace

std::uint64_t frame_bound(const Frame& frame, at::ScalarType type) {
  std::uint64_t bound = piece_table_bytes(frame.size());
  for (const Piece& piece : frame) bound += piece_bound(flat_view(type, piece.values.numel()));
  return bound;
}

std::size_t encode_frame(const Frame& frame, const Codec& codec, std::uint64_t seed, bool replace,
                         std::span<std::uint8_t> out) {
  EncodeOptions options = encode_options(codec);
  std::size_t end = piece_table_bytes(frame.size());
  check(out.size() >= end, "encode_frame", "room for the sizes of the pieces", out.size(),
        " bytes for ", end);
  std::vector<std::size_t> sizes;
  for (const Piece& piece : frame) {
    if (codec.kind == PayloadKind::kPruned && !piece.is_plain) prune_piece(piece, codec, seed);
    // Before the pointer to read from: a piece that shares its memory until it is written to gets
    // memory of its own here.
    options.replaced = {};
    if (replace && !piece.is_plain)
      options.replaced = {static_cast<std::uint8_t*>(piece.values.mutable_data_ptr()),
                          static_cast<std::size_t>(piece.values.nbytes())};
    const TensorView view =
        flat_view(piece.values.scalar_type(), piece.values.numel(), piece.values.const_data_ptr());
    const std::span<std::uint8_t> left = out.subspan(end);
    const std::span<std::uint8_t> part = left.first(
        static_cast<std::size_t>(std::min<std::uint64_t>(left.size(), piece_bound(view))));
    if (piece.is_plain) {
      sizes.push_back(store_raw(view, part));
    } else {
      options.seed = derive_seed(seed, {piece.key});
      sizes.push_back(encode_piece(view, options, part));
      if (needs_decoding(options)) decode_into(part.first(sizes.back()), options.replaced);
    }
    end += sizes.back();
  }
  write_piece_table(sizes, out.data());
  return end;
}

void decode_frame(std::span<const std::uint8_t> bytes, const Frame& frame, const Codec& codec,
                  at::ScalarType type, const std::vector<at::Tensor>& tensors, bool add) {
  const auto payloads = read_piece_table(bytes, frame.size());
  ExpectedPiece expected = {dtype_of(type),
                            0,
                            codec.kind,
                            codec.rate > 0 ? kOpenBits : codec.bits,
                            codec.format.exponent_bits(),
                            codec.format.mantissa_bits(),
                            static_cast<float>(codec.rate),
                            codec.k,
                            codec.of};
  for (std::size_t i = 0; i < frame.size(); ++i) {
    expected.kind = frame[i].is_plain ? PayloadKind::kRaw : codec.kind;
    if (!add) expected.dtype = dtype_of(tensors[i].scalar_type());
    expected.num_values = static_cast<std::uint64_t>(tensors[i].numel());
    decode_piece(payloads[i], expected, i, tensors[i], add);
  }
}

}  // namespace slimgrad::exchange
