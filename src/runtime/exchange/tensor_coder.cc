#include <slimgrad/tensor_coder.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <utility>

#include <slimgrad/seed.h>

#include "base/check.h"
#include "runtime/exchange/frame_coding.h"
#include "torch/checks.h"
#include "torch/elements.h"

namespace slimgrad {
namespace {

constexpr char kEncode[] = "Codec.encode", kDecode[] = "Codec.decode";

void check_tensors(const TensorCoder::Tensors& tensors, const char* op, const char* what) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& x = tensors[i];
    check(x.defined() && x.device().is_cpu() && torch_ops::is_float_dtype(x.scalar_type()), op,
          std::string(what) + " of type float32, bfloat16 or float16 on the CPU", "tensor ", i,
          x.defined()
              ? std::string(" of ") + c10::toString(x.scalar_type()) + " on " + x.device().str()
              : std::string(" that is none"));
  }
}

exchange::Frame frame_of(const TensorCoder::Tensors& flat, const Codec& codec) {
  exchange::Frame frame;
  for (std::size_t i = 0; i < flat.size(); ++i)
    frame.push_back({flat[i], flat[i].numel() < codec.min_elements, i, at::Tensor()});
  return frame;
}

}  // namespace

TensorCoder::TensorCoder(Codec codec) : codec_(std::move(codec)) { codec_.check(); }

at::Tensor TensorCoder::encode(const Tensors& tensors) {
  check_tensors(tensors, kEncode, "tensors");
  const bool feeds_back = codec_.error_feedback && !codec_.is_exact();
  if (feeds_back && !residuals_.empty()) {
    check(residuals_.size() == tensors.size(), kEncode,
          "as many tensors as before, whose residuals the codec has", tensors.size(), " for ",
          residuals_.size());
    for (std::size_t i = 0; i < tensors.size(); ++i)
      check(residuals_[i].numel() == tensors[i].numel(), kEncode,
            "tensors of the same sizes as before, whose residuals the codec has", "tensor ", i,
            " of ", tensors[i].numel(), " values for ", residuals_[i].numel());
  }
  Tensors flat, wanted;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    at::Tensor x = tensors[i].detach().resolve_neg().reshape({-1});
    if (feeds_back) {
      wanted.push_back(residuals_.empty() ? x.to(at::kFloat, false, true)
                                          : x.to(at::kFloat) + residuals_[i]);
      x = wanted.back().to(x.scalar_type(), false, true);
    } else if (codec_.kind == PayloadKind::kPruned) {
      x = x.clone();  // which is pruned in place
    }
    flat.push_back(x.contiguous());
  }
  const exchange::Frame frame = frame_of(flat, codec_);
  std::uint64_t bound = 0;
  for (const exchange::Piece& piece : frame)
    bound += exchange::frame_bound({piece}, piece.values.scalar_type());
  const at::Tensor room = at::empty({static_cast<std::int64_t>(bound + 4)}, at::kByte);
  const std::uint64_t seed =
      derive_seed(static_cast<std::uint64_t>(codec_.seed), {"tensor coder", num_calls_});
  const std::size_t size = exchange::encode_frame(frame, codec_, seed, feeds_back,
                                                  torch_ops::mutable_elements<std::uint8_t>(room));
  ++num_calls_;
  if (feeds_back) {
    // NaN and Inf travel as they are: nothing of them is left to send.
    for (std::size_t i = 0; i < flat.size(); ++i) wanted[i].sub_(flat[i]).nan_to_num_(0, 0, 0);
    residuals_ = std::move(wanted);
  }
  return room.slice(0, 0, static_cast<std::int64_t>(size)).clone();
}

TensorCoder::Tensors TensorCoder::decode(const at::Tensor& bytes, const Tensors& like) const {
  check_tensors(like, kDecode, "like");
  check(bytes.scalar_type() == at::kByte && bytes.dim() == 1 && bytes.device().is_cpu(), kDecode,
        "bytes as a uint8 tensor of one dimension on the CPU", c10::toString(bytes.scalar_type()),
        " with ", bytes.dim(), " dimensions");
  Tensors back, flat;
  for (const at::Tensor& x : like) {
    back.push_back(at::empty_like(x, x.options(), at::MemoryFormat::Contiguous));
    flat.push_back(back.back().reshape({-1}));
  }
  const at::Tensor whole = bytes.contiguous();
  exchange::decode_frame(torch_ops::elements<std::uint8_t>(whole), frame_of(flat, codec_), codec_,
                         at::kFloat, flat, /*add=*/false);
  return back;
}

void TensorCoder::load_state(std::int64_t num_calls, Tensors residuals) {
  check(num_calls >= 0, "Codec.load_state_dict", "a number of calls of at least 0", num_calls);
  check_tensors(residuals, "Codec.load_state_dict", "residuals");
  for (at::Tensor& residual : residuals)
    residual = residual.detach().reshape({-1}).to(at::kFloat).clone();
  num_calls_ = num_calls;
  residuals_ = std::move(residuals);
}

}  // namespace slimgrad
