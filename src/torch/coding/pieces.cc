// The ops encode_pieces and decode_pieces: what ranks send one another, several tensors, or slices
// of them, at once. They work in memory of the caller, and copy nothing that is not coded: fresh
// memory costs more than coding. The dispatcher lets go of Python's lock around them.
#include <ATen/core/Tensor.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include <slimgrad/payload.h>

#include <slimgrad/seed.h>
#include "arrays/coding/pieces.h"
#include "torch/checks.h"
#include "torch/coding/encode_options.h"
#include "torch/elements.h"
#include "torch/errors.h"
#include "torch/no_gradient.h"
#include "torch/threads.h"

namespace slimgrad::torch_ops {
namespace {

TensorView flat_view(DType dtype, std::int64_t length, const void* data = nullptr) {
  return {data, dtype, {static_cast<std::uint64_t>(length)}};
}

DType check_pieces(const char* op, at::TensorList pieces, std::size_t num_plain) {
  check(num_plain == pieces.size(), op, "one flag in plain for every piece", num_plain,
        " flags for ", pieces.size(), " pieces");
  for (const at::Tensor& piece : pieces) {
    check(piece.dim() == 1 && piece.is_contiguous(), op, "contiguous pieces of one dimension",
          piece.dim(), " dimensions", piece.is_contiguous() ? "" : ", not contiguous");
    check(is_float_dtype(piece.scalar_type()), op, "pieces of type float32, bfloat16 or float16",
          c10::toString(piece.scalar_type()));
    check(piece.scalar_type() == pieces[0].scalar_type(), op, "pieces of one type",
          c10::toString(pieces[0].scalar_type()), " and ", c10::toString(piece.scalar_type()));
  }
  return pieces.empty() ? DType::kFloat32 : dtype_of(pieces[0].scalar_type());
}

void check_bytes(const char* op, const at::Tensor& bytes) {
  check(bytes.scalar_type() == at::kByte && bytes.dim() == 1 && bytes.is_contiguous(), op,
        "bytes as a contiguous uint8 tensor of one dimension", c10::toString(bytes.scalar_type()),
        " with ", bytes.dim(), " dimensions", bytes.is_contiguous() ? "" : ", not contiguous");
}

std::size_t encode_piece(const TensorView& view, const EncodeOptions& options,
                         std::span<std::uint8_t> room) {
  PayloadEncoder encoder(view, options, room);
  for_ranges(encoder.num_blocks(), 1, [&](std::size_t i, std::size_t end) { encoder.run(i, end); });
  const std::size_t size = encoder.finish();
  check(size <= room.size(), "encode_pieces", "room for the payload", room.size(), " bytes for ",
        size);
  encoder.write(room.first(size));
  return size;
}

// What a reader makes of a payload that the encoder could not say.
bool needs_decoding(const EncodeOptions& options) {
  return !options.replaced.empty() && options.kind == PayloadKind::kPruned &&
         options.survivors != Survivors::kExact;
}

at::Tensor encode_pieces_cpu(at::TensorList pieces, c10::List<bool> plain, at::IntArrayRef keys,
                             std::string_view kind, std::int64_t bits, std::int64_t exponent_bits,
                             std::int64_t mantissa_bits, std::string_view survivors,
                             std::string_view coder, std::string_view model,
                             std::string_view rounding, std::int64_t block_log2, std::int64_t seed,
                             bool replace, const at::Tensor& out) {
  const DType dtype = check_pieces("encode_pieces", pieces, plain.size());
  check(keys.size() == pieces.size(), "encode_pieces", "a key for every piece", keys.size(),
        " for ", pieces.size());
  check_bytes("encode_pieces", out);
  EncodeOptions options =
      encode_options(kind, bits, exponent_bits, mantissa_bits, survivors, coder, model, rounding);
  options.block_log2 = small_int(block_log2);
  options.fit_sample = 8192;
  options.exact_if_nonfinite = true;
  const std::span<std::uint8_t> room = mutable_elements<std::uint8_t>(out);
  std::size_t end = piece_table_bytes(pieces.size());
  check(room.size() >= end, "encode_pieces", "room for the sizes of the pieces", room.size(),
        " bytes for ", end);
  std::vector<std::size_t> sizes;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    // Before the pointer to read from: a piece that shares its memory until it is written to gets
    // memory of its own here.
    if (replace && !plain[i])
      options.replaced = {static_cast<std::uint8_t*>(pieces[i].mutable_data_ptr()),
                          static_cast<std::size_t>(pieces[i].nbytes())};
    const TensorView view = flat_view(dtype, pieces[i].numel(), pieces[i].const_data_ptr());
    const std::span<std::uint8_t> left = room.subspan(end);
    const std::span<std::uint8_t> part = left.first(
        static_cast<std::size_t>(std::min<std::uint64_t>(left.size(), piece_bound(view))));
    if (plain[i]) {
      sizes.push_back(store_raw(view, part));
    } else {
      options.seed = derive_seed(static_cast<std::uint64_t>(seed), {keys[i]});
      sizes.push_back(encode_piece(view, options, part));
      if (needs_decoding(options)) decode_into(part.first(sizes.back()), options.replaced);
    }
    end += sizes.back();
  }
  write_piece_table(sizes, room.data());
  return at::scalar_tensor(static_cast<std::int64_t>(end), at::TensorOptions().dtype(at::kLong));
}

// Nothing is decoded before the payload was found to be what was expected, and nothing allocated
// but what its size bears out.
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

void decode_pieces_cpu(const at::Tensor& bytes, at::TensorList pieces, c10::List<bool> plain,
                       at::ScalarType type, std::string_view kind, std::int64_t bits,
                       std::int64_t exponent_bits, std::int64_t mantissa_bits, bool add) {
  check_pieces("decode_pieces", pieces, plain.size());
  check_bytes("decode_pieces", bytes);
  check(is_float_dtype(type), "decode_pieces", "dtype float32, bfloat16 or float16",
        c10::toString(type));
  const at::ScalarType wanted = add ? at::kFloat : type;
  check(pieces.empty() || pieces[0].scalar_type() == wanted, "decode_pieces",
        add ? "sums of type float32" : "pieces of the payloads' type",
        c10::toString(pieces.empty() ? wanted : pieces[0].scalar_type()));
  const auto payloads = read_piece_table(elements<std::uint8_t>(bytes), pieces.size());
  ExpectedPiece expected = {dtype_of(type),
                            0,
                            parse_payload_kind(kind),
                            static_cast<int>(bits),
                            static_cast<int>(exponent_bits),
                            static_cast<int>(mantissa_bits)};
  const PayloadKind coded = expected.kind;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    expected.kind = plain[i] ? PayloadKind::kRaw : coded;
    expected.num_values = static_cast<std::uint64_t>(pieces[i].numel());
    decode_piece(payloads[i], expected, i, pieces[i], add);
  }
}

std::int64_t pieces_bound(at::IntArrayRef lengths, at::ScalarType type) {
  check(is_float_dtype(type), "pieces_bound", "dtype float32, bfloat16 or float16",
        c10::toString(type));
  std::uint64_t bound = piece_table_bytes(lengths.size());
  for (const std::int64_t length : lengths) {
    check(length >= 0, "pieces_bound", "lengths of at least 0", length);
    bound += piece_bound(flat_view(dtype_of(type), length));
  }
  return static_cast<std::int64_t>(bound);
}

}  // namespace

TORCH_LIBRARY_IMPL(slimgrad, CPU, m) {
  m.impl("encode_pieces", ValueErrors<&encode_pieces_cpu>::call);
  m.impl("decode_pieces", ValueErrors<&decode_pieces_cpu>::call);
}
TORCH_LIBRARY_IMPL(slimgrad, CompositeExplicitAutograd, m) {
  m.impl("pieces_bound", ValueErrors<&pieces_bound>::call);
}
TORCH_LIBRARY_IMPL(slimgrad, Autograd, m) {
  for (const char* const name : {"encode_pieces", "decode_pieces"}) m.impl(name, no_gradient());
}

}  // namespace slimgrad::torch_ops
