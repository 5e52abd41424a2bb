// Tensors as bytes under a Codec, for transports of other programs: files, HTTP, actors.
//
//   TensorCoder coder(Codec::parse("rate2"));
//   at::Tensor bytes = coder.encode(gradients);                    // uint8, to be sent
//   std::vector<at::Tensor> back = coder.decode(bytes, gradients);  // on the other side
//
// The bytes are the pieces of docs/format.md, one payload a tensor. A reader knows codec, types and
// sizes, and refuses anything else with a PayloadError; nothing is allocated by a length in bytes.
//
// State: the number of calls of encode(), which draws depend on, and with error feedback what
// rounding lost, which the next call adds. Senders whose tensors are averaged take codecs with
// different seeds, so that their noise is independent. One thread at a time; decode() from any.
#ifndef SLIMGRAD_TENSOR_CODER_H_
#define SLIMGRAD_TENSOR_CODER_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include <slimgrad/codec.h>

namespace slimgrad {

class TensorCoder {
 public:
  using Tensors = std::vector<at::Tensor>;

  // Throws InvalidArgument for settings that Codec::check() refuses.
  explicit TensorCoder(Codec codec);

  const Codec& codec() const { return codec_; }
  // The tensors, float32, bfloat16 or float16 on the CPU, as bytes. With error feedback every call
  // has tensors of the same types and sizes.
  at::Tensor encode(const Tensors& tensors);
  // New tensors of the types and shapes of `like`. Throws PayloadError.
  Tensors decode(const at::Tensor& bytes, const Tensors& like) const;

  std::int64_t num_calls() const { return num_calls_; }
  // What rounding lost, float32 and flat, in the order of the tensors; empty before the first call
  // and without error feedback.
  const Tensors& residuals() const { return residuals_; }
  void load_state(std::int64_t num_calls, Tensors residuals);

 private:
  Codec codec_;
  std::int64_t num_calls_ = 0;
  Tensors residuals_;
};

}  // namespace slimgrad

#endif  // SLIMGRAD_TENSOR_CODER_H_
