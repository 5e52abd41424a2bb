// A tensor between two stages as a message, and back: every value that the sender had is what the
// receiver gets, in the same order in memory (channels_last, a transpose), on the CPU.
#ifndef SLIMGRAD_RUNTIME_EXCHANGE_STAGE_MESSAGE_H_
#define SLIMGRAD_RUNTIME_EXCHANGE_STAGE_MESSAGE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include <slimgrad/payload.h>
#include <slimgrad/stages.h>

#include "runtime/exchange/message.h"

namespace slimgrad::exchange {

// A message before it is sent: its header, and both header and body as bytes.
struct StageMessage {
  Header header;
  at::Tensor bytes;
};

// What a message is about.
struct MessageName {
  MessageKind kind;
  std::uint64_t number;
  bool wants_gradient = false;
};

// The tensor as it is; as encode() makes it; as codes of the grid that quantize(_, format, scale)
// rounded it to, exactly, at no more bits than the format has.
StageMessage plain_message(const at::Tensor& x, const MessageName& name);
StageMessage payload_message(const at::Tensor& x, const MessageName& name,
                             const EncodeOptions& options = {});
StageMessage grid_message(const at::Tensor& x, const MessageName& name, const FloatFormat& format,
                          double scale, bool packed);

// As StageActivations and StageGradients say.
StageMessage activation_message(const at::Tensor& x, std::int64_t number,
                                const StageActivations& how, bool packed, bool wants_gradient);
StageMessage gradient_message(const at::Tensor& gradient, std::int64_t number,
                              const StageGradients& how, bool packed);

// The header of a message. Throws PayloadError.
Header stage_header(const at::Tensor& bytes);
// The tensor of a body whose header was expected. Throws PayloadError for damaged bytes.
at::Tensor stage_tensor(const Header& header, const at::Tensor& body);

// Throws PayloadError with this text.
[[noreturn]] void refuse_message(const std::string& text);

}  // namespace slimgrad::exchange

#endif  // SLIMGRAD_RUNTIME_EXCHANGE_STAGE_MESSAGE_H_
