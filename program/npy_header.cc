#include "program/npy.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace slimgrad::program {
namespace {

// Reads the few forms of Python literals that the header of a plain array may hold.
class LiteralReader {
 public:
  explicit LiteralReader(std::string_view text) : rest_(text) {}

  // Skips white space, and takes the character if it comes next.
  bool take(char wanted) {
    skip_space();
    if (rest_.empty() || rest_.front() != wanted) return false;
    rest_.remove_prefix(1);
    return true;
  }

  void expect(char wanted) {
    if (!take(wanted)) fail(std::string("'") + wanted + "'");
  }

  // 'text' or "text". No key and no name of a plain type is longer or has anything but printable
  // ASCII without escapes, so that what is read here can be shown in a one-line error.
  std::string string() {
    skip_space();
    if (rest_.empty() || (rest_.front() != '\'' && rest_.front() != '"')) fail("a string");
    const std::size_t end = rest_.find(rest_.front(), 1);
    if (end == std::string_view::npos) fail("the end of a string");
    const std::string_view text = rest_.substr(1, end - 1);
    const auto plain = [](char c) { return c >= ' ' && c <= '~' && c != '\\'; };
    if (text.size() > 32 || !std::ranges::all_of(text, plain)) fail("a short plain string");
    rest_.remove_prefix(end + 1);
    return std::string(text);
  }

  bool boolean() {
    skip_space();
    for (const auto& [name, value] : {std::pair{std::string_view("True"), true}, {"False", false}})
      if (rest_.starts_with(name)) {
        rest_.remove_prefix(name.size());
        return value;
      }
    fail("True or False");
  }

  // (), (3,), (3, 4) or (3, 4,). Python 2 wrote its long integers as 3L.
  std::vector<std::uint64_t> tuple() {
    std::vector<std::uint64_t> items;
    expect('(');
    while (!take(')')) {
      items.push_back(integer());
      if (rest_.starts_with('L')) rest_.remove_prefix(1);
      if (!take(',')) {
        if (items.size() == 1) fail("',' after the only entry of a shape");
        expect(')');
        break;
      }
    }
    return items;
  }

  bool at_end() {
    skip_space();
    return rest_.empty();
  }

  bool next_is_list() {
    skip_space();
    return rest_.starts_with('[');
  }

 private:
  std::uint64_t integer() {
    skip_space();
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error == std::errc::result_out_of_range) throw NpyError("a shape beyond 64 bits");
    if (error != std::errc()) fail("a non-negative integer in the shape");
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return value;
  }

  void skip_space() {
    const std::size_t begin = rest_.find_first_not_of(" \t\r\n");
    rest_.remove_prefix(std::min(begin, rest_.size()));
  }

  [[noreturn]] void fail(const std::string& wanted) const {
    throw NpyError("damaged .npy header: expected " + wanted);
  }

  std::string_view rest_;
};

std::uint64_t little_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;)
    value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

// The product, or an error if it does not fit. An array with a zero in its shape is empty, however
// large the other numbers are.
std::uint64_t num_values_of(const std::vector<std::uint64_t>& shape) {
  if (std::ranges::find(shape, 0u) != shape.end()) return 0;
  std::uint64_t product = 1;
  for (const std::uint64_t length : shape)
    if (__builtin_mul_overflow(product, length, &product))
      throw NpyError("a shape with more than 2^64 values");
  return product;
}

// REQUIRES: the keys of NumPy, each once, in any order; nothing else.
void parse_dictionary(std::string_view text, NpyHeader& header) {
  constexpr std::array<std::string_view, 3> kKeys = {"descr", "fortran_order", "shape"};
  std::array<bool, 3> seen = {};
  LiteralReader reader(text);
  reader.expect('{');
  while (!reader.take('}')) {
    const std::string key = reader.string();
    const auto index = static_cast<std::size_t>(std::ranges::find(kKeys, key) - kKeys.begin());
    if (index == kKeys.size()) throw NpyError("damaged .npy header: an unknown key");
    if (seen[index]) throw NpyError("damaged .npy header: '" + key + "' appears twice");
    seen[index] = true;
    reader.expect(':');
    if (key == "descr") {
      if (reader.next_is_list()) throw NpyError("a record type, not an array of numbers");
      header.descr = reader.string();
    } else if (key == "fortran_order") {
      header.fortran_order = reader.boolean();
    } else {
      header.shape = reader.tuple();
    }
    if (!reader.take(',')) {
      reader.expect('}');
      break;
    }
  }
  if (!reader.at_end()) throw NpyError("damaged .npy header: text after the dictionary");
  for (std::size_t i = 0; i < kKeys.size(); ++i)
    if (!seen[i]) throw NpyError("damaged .npy header: no '" + std::string(kKeys[i]) + "'");
}

}  // namespace

NpyHeader parse_npy_header(std::string_view start) {
  constexpr std::string_view kMagic = "\x93NUMPY";
  if (!start.starts_with(kMagic)) throw NpyError("not an .npy file (the magic bytes are missing)");
  if (start.size() < 8) throw NpyError("truncated .npy header");
  const int major = static_cast<unsigned char>(start[6]);
  const int minor = static_cast<unsigned char>(start[7]);
  if (major < 1 || major > 3 || minor != 0)
    throw NpyError("unknown .npy version " + std::to_string(major) + "." + std::to_string(minor));

  const std::size_t length_bytes = major == 1 ? 2 : 4;
  const std::size_t text_offset = 8 + length_bytes;
  if (start.size() < text_offset) throw NpyError("truncated .npy header");
  const std::uint64_t text_length = little_endian(start.substr(8, length_bytes));
  if (text_length > kMaxNpyHeaderText)
    throw NpyError("an .npy header of " + std::to_string(text_length) +
                   " bytes is not one of an array of numbers");
  if (start.size() - text_offset < text_length) throw NpyError("truncated .npy header");

  NpyHeader header;
  parse_dictionary(start.substr(text_offset, text_length), header);
  header.num_values = num_values_of(header.shape);
  header.data_offset = text_offset + text_length;
  return header;
}

}  // namespace slimgrad::program
