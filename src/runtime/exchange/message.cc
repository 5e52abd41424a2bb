#include "runtime/exchange/message.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <sstream>

#include "arrays/coding/checksum.h"
#include "torch/checks.h"

namespace slimgrad::exchange {
namespace {

static_assert(std::endian::native == std::endian::little, "fields are copied as they are");

constexpr std::array<std::uint8_t, 4> kMagic = {0x8d, 'S', 'G', 'M'};
constexpr std::uint8_t kVersion = 3;

// Where the fields are; the checksum is over all bytes before it.
constexpr std::size_t kVersionAt = 4, kKindAt = 5, kNumberAt = 8, kFrameAt = 16, kPiecesAt = 20,
                      kBytesAt = 24, kSettingsAt = 32, kTextAt = 40,
                      kChecksumAt = kHeaderBytes - sizeof(std::uint64_t),
                      kTextBytes = kChecksumAt - kTextAt;
// Fields of a tensor, in the place of the text.
constexpr std::size_t kCodingAt = kTextAt, kTypeAt = kTextAt + 1, kDimensionsAt = kTextAt + 2,
                      kWantsGradientAt = kTextAt + 3, kExponentAt = kTextAt + 4,
                      kMantissaAt = kTextAt + 5, kOrderAt = kTextAt + 8, kScaleAt = kTextAt + 16,
                      kShapeAt = kTextAt + 24, kBodyChecksumAt = kTextAt + 88;

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

template <typename... Words>
[[noreturn]] void refuse_that(const Words&... words) {
  std::ostringstream text;
  text << "a header that ";
  (text << ... << words);
  throw ExchangeError(text.str());
}

// The code of a type is its place; the first three have codes of formats.
constexpr std::array kTypes = {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kChar,
                               at::kByte,  at::kInt,      at::kLong, at::kBool};
constexpr std::array kCodingNames = {"plain", "payload", "packed", "scaled"};

bool has_format(BodyCoding coding) {
  return coding == BodyCoding::kPacked || coding == BodyCoding::kScaled;
}

// Strides are products of lengths, also where a length is 0: they have to be numbers.
bool has_strides(const std::vector<std::int64_t>& shape, std::size_t item_size) {
  auto left = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) / item_size;
  return std::ranges::all_of(shape, [&](std::int64_t length) {
    if (length < 0) return false;
    left /= static_cast<std::uint64_t>(std::max<std::int64_t>(length, 1));
    return left > 0;
  });
}

bool is_order(std::vector<std::int64_t> order) {
  std::ranges::sort(order);
  for (std::size_t i = 0; i < order.size(); ++i)
    if (order[i] != static_cast<std::int64_t>(i)) return false;
  return true;
}

void write_tensor_header(const TensorHeader& tensor, std::uint8_t* out) {
  store(out, kCodingAt, tensor.coding);
  store(out, kTypeAt,
        static_cast<std::uint8_t>(std::ranges::find(kTypes, tensor.type) - kTypes.begin()));
  store(out, kDimensionsAt, static_cast<std::uint8_t>(tensor.shape.size()));
  store(out, kWantsGradientAt, std::uint8_t{tensor.wants_gradient});
  if (tensor.format) {
    store(out, kExponentAt, static_cast<std::uint8_t>(tensor.format->exponent_bits()));
    store(out, kMantissaAt, static_cast<std::uint8_t>(tensor.format->mantissa_bits()));
  }
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    store(out, kOrderAt + i, static_cast<std::uint8_t>(tensor.order[i]));
    store(out, kShapeAt + 8 * i, tensor.shape[i]);
  }
  store(out, kScaleAt, tensor.scale);
  store(out, kBodyChecksumAt, tensor.body_checksum);
}

TensorHeader read_tensor_header(const std::uint8_t* bytes, std::uint64_t num_bytes) {
  const auto coding = load<std::uint8_t>(bytes, kCodingAt),
             type = load<std::uint8_t>(bytes, kTypeAt),
             dimensions = load<std::uint8_t>(bytes, kDimensionsAt),
             wants_gradient = load<std::uint8_t>(bytes, kWantsGradientAt);
  if (coding >= kCodingNames.size() || type >= kTypes.size() || wants_gradient > 1)
    refuse_that("has a code that no writer writes");
  TensorHeader tensor{.coding = static_cast<BodyCoding>(coding),
                      .type = kTypes[type],
                      .wants_gradient = wants_gradient == 1,
                      .scale = load<double>(bytes, kScaleAt),
                      .body_checksum = load<std::uint64_t>(bytes, kBodyChecksumAt)};
  for (std::size_t i = 0; i < std::min<std::size_t>(dimensions, kMostDimensions); ++i) {
    tensor.order.push_back(load<std::uint8_t>(bytes, kOrderAt + i));
    tensor.shape.push_back(load<std::int64_t>(bytes, kShapeAt + 8 * i));
  }
  if (dimensions > kMostDimensions || !is_order(tensor.order) ||
      !has_strides(tensor.shape, c10::elementSize(tensor.type)))
    refuse_that("has dimensions that no writer writes");
  if (has_format(tensor.coding)) {
    try {
      tensor.format.emplace(load<std::uint8_t>(bytes, kExponentAt),
                            load<std::uint8_t>(bytes, kMantissaAt));
    } catch (const InvalidArgument& error) {
      refuse_that("has a format that there is not: ", error.what());
    }
    if (!(tensor.scale > 0) || !std::isfinite(tensor.scale) ||
        !torch_ops::is_float_dtype(tensor.type))
      refuse_that("has codes with scale ", tensor.scale, " and type ", type_name(tensor.type));
  }
  if (!tensor.fits(num_bytes))
    refuse_that("announces ", num_bytes, " bytes, ", kCodingNames[coding], ", for ",
                tensor.describe());
  return tensor;
}

}  // namespace

const char* kind_name(MessageKind kind) {
  switch (kind) {
    case MessageKind::kFrame:
      return "frame";
    case MessageKind::kDone:
      return "done";
    case MessageKind::kStopped:
      return "stopped";
    case MessageKind::kActivation:
      return "activation";
    case MessageKind::kGradient:
      return "gradient";
  }
  return "unknown";
}

// ---- tensors of stages

std::string type_name(at::ScalarType type) { return std::string(c10::getDtypeNames(type).first); }

bool has_type_code(at::ScalarType type) { return std::ranges::find(kTypes, type) != kTypes.end(); }

std::int64_t TensorHeader::num_values() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::uint64_t TensorHeader::plain_bytes() const {
  return static_cast<std::uint64_t>(num_values()) * c10::elementSize(type);
}

bool TensorHeader::fits(std::uint64_t num_bytes) const {
  if (coding == BodyCoding::kPlain) return num_bytes == plain_bytes();
  if (coding != BodyCoding::kPacked) return num_bytes <= plain_bytes() + kPayloadSlack;
  const auto bits = static_cast<std::uint64_t>(format->bits());
  return num_bytes == (static_cast<std::uint64_t>(num_values()) * bits + 7) / 8;
}

std::string TensorHeader::describe() const {
  std::ostringstream text;
  text << type_name(type) << " of shape " << at::IntArrayRef(shape);
  return text.str();
}

// ---- headers

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
  if (header.tensor)
    write_tensor_header(*header.tensor, out);
  else
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
  if (header.kind > MessageKind::kGradient) refuse_that("has a kind that no writer writes");
  if (header.kind >= MessageKind::kActivation) {
    header.tensor = read_tensor_header(bytes, header.num_bytes);
    return header;
  }
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
