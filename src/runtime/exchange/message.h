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

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <slimgrad/exchange.h>

namespace slimgrad::exchange {

inline constexpr std::size_t kHeaderBytes = 512;

enum class MessageKind : std::uint8_t {
  kFrame,    // a part of a collective follows
  kDone,     // nothing follows: the sender has all that it needs
  kStopped,  // nothing follows: the sender has stopped, and `text` says why
};

struct Header {
  MessageKind kind = MessageKind::kFrame;
  std::uint64_t number = 0;  // of the exchange, counted by both sides
  std::uint32_t frame = 0;
  std::uint32_t num_pieces = 0;
  std::uint64_t num_bytes = 0;  // of the body
  std::uint64_t settings = 0;   // a hash of all that ranks must agree on
  // Why the sender stopped; of a frame its settings in words, "name=value" between spaces, which
  // tells whoever has others what differs. Cut to what fits.
  std::string text;
};

// The hash of settings in words.
std::uint64_t settings_hash(std::string_view settings);

// Writes kHeaderBytes.
void write_header(const Header& header, std::uint8_t* out);
// Throws ExchangeError unless these are the bytes of a header of this version.
Header read_header(const std::uint8_t* bytes);
// Throws ExchangeError, which says what differs, unless the header is what was expected, with a
// body of at most `most_bytes`.
void check_header(const Header& header, const Header& expected, std::uint64_t most_bytes);

}  // namespace slimgrad::exchange

#endif  // SLIMGRAD_RUNTIME_EXCHANGE_MESSAGE_H_
