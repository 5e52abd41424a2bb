#include "runtime/exchange/message.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <sstream>

#include "arrays/coding/checksum.h"

namespace slimgrad::exchange {
namespace {

static_assert(std::endian::native == std::endian::little, "fields are copied as they are");

constexpr std::array<std::uint8_t, 4> kMagic = {0x8d, 'S', 'G', 'M'};
constexpr std::uint8_t kVersion = 2;

// Where the fields are; the checksum is over all bytes before it.
constexpr std::size_t kVersionAt = 4, kKindAt = 5, kNumberAt = 8, kFrameAt = 16, kPiecesAt = 20,
                      kBytesAt = 24, kSettingsAt = 32, kTextAt = 40,
                      kChecksumAt = kHeaderBytes - sizeof(std::uint64_t),
                      kTextBytes = kChecksumAt - kTextAt;

template <typename T>
T load(const std::uint8_t* bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes + offset, sizeof value);
  return value;
}
template <typename T>
void store(std::uint8_t* bytes, std::size_t offset, T value) {
  std::memcpy(bytes + offset, &value, sizeof value);
}

std::uint64_t header_checksum(const std::uint8_t* bytes) { return checksum({bytes, kChecksumAt}); }

const char* kind_name(MessageKind kind) {
  switch (kind) {
    case MessageKind::kFrame:
      return "frame";
    case MessageKind::kDone:
      return "done";
    case MessageKind::kStopped:
      return "stopped";
  }
  return "unknown";
}

// "bits=8 step=3" by name.
std::map<std::string, std::string> parsed_settings(const std::string& text) {
  std::map<std::string, std::string> settings;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    if (equals != std::string::npos) settings[word.substr(0, equals)] = word.substr(equals + 1);
  }
  return settings;
}

// What two senders set differently, in words.
std::string differences(const std::string& got, const std::string& wanted) {
  const auto theirs = parsed_settings(got), ours = parsed_settings(wanted);
  std::string text;
  for (const auto& [name, value] : ours) {
    const auto found = theirs.find(name);
    if (found == theirs.end() || found->second == value) continue;
    text += (text.empty() ? "" : ", ") + name + " " + found->second + ", expected " + value;
  }
  return text.empty() ? "other settings" : text;
}

template <typename Got, typename Wanted>
[[noreturn]] void refuse(const char* field, const Got& got, const Wanted& wanted) {
  std::ostringstream text;
  text << "a header with " << field << " " << got << ", expected " << wanted;
  throw ExchangeError(text.str());
}

}  // namespace

std::uint64_t settings_hash(std::string_view settings) {
  return checksum({reinterpret_cast<const std::uint8_t*>(settings.data()), settings.size()});
}

void write_header(const Header& header, std::uint8_t* out) {
  std::fill_n(out, kHeaderBytes, std::uint8_t{0});
  std::ranges::copy(kMagic, out);
  store(out, kVersionAt, kVersion);
  store(out, kKindAt, header.kind);
  store(out, kNumberAt, header.number);
  store(out, kFrameAt, header.frame);
  store(out, kPiecesAt, header.num_pieces);
  store(out, kBytesAt, header.num_bytes);
  store(out, kSettingsAt, header.settings);
  std::memcpy(out + kTextAt, header.text.data(), std::min(header.text.size(), kTextBytes));
  store(out, kChecksumAt, header_checksum(out));
}

Header read_header(const std::uint8_t* bytes) {
  if (!std::equal(kMagic.begin(), kMagic.end(), bytes) ||
      load<std::uint64_t>(bytes, kChecksumAt) != header_checksum(bytes))
    throw ExchangeError("a header that is damaged, or none");
  const auto version = load<std::uint8_t>(bytes, kVersionAt);
  if (version != kVersion) refuse("version", int{version}, int{kVersion});
  Header header;
  header.kind = load<MessageKind>(bytes, kKindAt);
  header.number = load<std::uint64_t>(bytes, kNumberAt);
  header.frame = load<std::uint32_t>(bytes, kFrameAt);
  header.num_pieces = load<std::uint32_t>(bytes, kPiecesAt);
  header.num_bytes = load<std::uint64_t>(bytes, kBytesAt);
  header.settings = load<std::uint64_t>(bytes, kSettingsAt);
  const char* const text = reinterpret_cast<const char*>(bytes + kTextAt);
  header.text.assign(text, std::find(text, text + kTextBytes, '\0'));
  return header;
}

void check_header(const Header& header, const Header& expected, std::uint64_t most_bytes) {
  // The number of the exchange first: ranks that made different calls differ in everything.
  if (header.number != expected.number) refuse("exchange", header.number, expected.number);
  if (header.settings != expected.settings)
    throw ExchangeError("a header with " + differences(header.text, expected.text));
  if (header.kind != expected.kind)
    refuse("kind", kind_name(header.kind), kind_name(expected.kind));
  if (header.frame != expected.frame) refuse("frame", header.frame, expected.frame);
  if (header.num_pieces != expected.num_pieces)
    refuse("pieces", header.num_pieces, expected.num_pieces);
  if (header.num_bytes > most_bytes) {
    std::ostringstream text;
    text << "a header with " << header.num_bytes << " bytes announced, expected at most "
         << most_bytes;
    throw ExchangeError(text.str());
  }
}

}  // namespace slimgrad::exchange
