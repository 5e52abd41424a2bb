// The bytes between two processes: messages, each a header of fixed size and a body. One format for
// collectives and for the stages of a pipeline; docs/format.md has every byte.
//
// A header says what follows, which one it is and how long it is, and has a checksum of its own. It
// is believed only where it says what the receiver expects. Instead of a body it may say that the
// sender has stopped, and why.
//
// Gloo sends nothing before the receiver has asked for it, and what asks waits behind all that is
// on its way to the sender. So receivers ask long before, for as much as a body can have at most;
// Gloo delivers what is shorter, and the header says how long it is.
#ifndef SLIMGRAD_RUNTIME_EXCHANGE_MESSAGE_H_
#define SLIMGRAD_RUNTIME_EXCHANGE_MESSAGE_H_

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <slimgrad/exchange.h>
#include <slimgrad/float_format.h>

namespace slimgrad::exchange {

inline constexpr std::size_t kHeaderBytes = 512;

enum class MessageKind : std::uint8_t {
  kFrame,       // a part of a collective follows
  kDone,        // nothing follows: the sender has all that it needs
  kStopped,     // nothing follows: the sender has stopped, and `text` says why
  kActivation,  // a tensor for the next stage follows
  kGradient,    // a gradient for the stage before follows
};
const char* kind_name(MessageKind kind);  // "frame", "done", ...

// ---- tensors of stages

// How the values are in the body.
enum class BodyCoding : std::uint8_t {
  kPlain,    // as they are
  kPayload,  // as a payload
  kPacked,   // codes of `format`, of exactly as many bits as they have
  kScaled,   // as a payload of float32, of the values divided by `scale`
};

struct TensorHeader {
  BodyCoding coding = BodyCoding::kPlain;
  at::ScalarType type = at::kFloat;
  std::vector<std::int64_t> shape = {};
  // The dimensions from the slowest in memory to the fastest; the body has the values in that
  // order.
  std::vector<std::int64_t> order = {};
  bool wants_gradient = false;
  std::optional<FloatFormat> format = {};  // of kPacked and kScaled
  double scale = 0;
  std::uint64_t body_checksum = 0;  // of kPlain and kPacked; a payload has its own

  std::int64_t num_values() const;
  // Those of the tensor as it is.
  std::uint64_t plain_bytes() const;
  // Whether a body may have so many bytes: nothing else is ever received.
  bool fits(std::uint64_t num_bytes) const;
  // "float32 of shape [3, 4]"
  std::string describe() const;
};

// A payload is never longer than its tensor by more.
inline constexpr std::uint64_t kPayloadSlack = 64;
inline constexpr std::size_t kMostDimensions = 8;

// "float32"
std::string type_name(at::ScalarType type);
// Whether a message can have a tensor of this type.
bool has_type_code(at::ScalarType type);

// ---- headers

struct Header {
  MessageKind kind = MessageKind::kFrame;
  std::uint64_t number = 0;  // of the exchange or the microbatch, counted by both sides
  std::uint32_t frame = 0;
  std::uint32_t num_pieces = 0;
  std::uint64_t num_bytes = 0;  // of the body
  std::uint64_t settings = 0;   // a hash of all that ranks must agree on
  // Why the sender stopped; of a frame its settings in words, "name=value" between spaces, which
  // tells whoever has others what differs. Cut to what fits.
  std::string text = {};
  std::optional<TensorHeader> tensor = {};  // of kActivation and kGradient, instead of `text`
};

// The hash of settings in words.
std::uint64_t settings_hash(std::string_view settings);

// Writes kHeaderBytes.
void write_header(const Header& header, std::uint8_t* out);
// Throws ExchangeError unless these are the bytes of a header of this version that a writer writes,
// also for one that announces as many bytes as its tensor cannot have.
Header read_header(const std::uint8_t* bytes);
// Throws ExchangeError, which says what differs, unless the header is what was expected, with a
// body of at most `most_bytes`.
void check_header(const Header& header, const Header& expected, std::uint64_t most_bytes);

}  // namespace slimgrad::exchange

#endif  // SLIMGRAD_RUNTIME_EXCHANGE_MESSAGE_H_
