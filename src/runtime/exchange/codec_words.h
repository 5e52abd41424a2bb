// The settings of a codec in words, which ranks compare and errors show.
#ifndef SLIMGRAD_RUNTIME_EXCHANGE_CODEC_WORDS_H_
#define SLIMGRAD_RUNTIME_EXCHANGE_CODEC_WORDS_H_

#include <concepts>
#include <optional>
#include <sstream>
#include <string>
#include <type_traits>

#include <slimgrad/codec.h>

namespace slimgrad::exchange {

inline std::string in_words(PayloadKind kind) { return std::string(payload_kind_name(kind)); }
inline std::string in_words(EntropyCoder coder) { return std::string(entropy_coder_name(coder)); }
inline std::string in_words(TableModel model) { return std::string(table_model_name(model)); }
inline std::string in_words(Survivors survivors) { return std::string(survivors_name(survivors)); }
inline std::string in_words(const FloatFormat& format) { return format.name(); }
inline std::string in_words(const std::optional<Rounding>& rounding) {
  return rounding ? std::string(rounding_name(*rounding)) : "none";
}
template <typename Number>
requires std::is_arithmetic_v<Number> std::string in_words(Number number) {
  std::ostringstream text;
  text.precision(17);
  text << std::boolalpha << number;
  return text.str();
}

// Calls field(name, value in words) for every setting, with the rounding that is in force.
template <typename Field>
void visit_words(Codec codec, const Field& field) {
  codec.rounding = codec.rounding_in_force();
  Codec::visit(codec, [&](const char* name, const auto& value) { field(name, in_words(value)); });
}

}  // namespace slimgrad::exchange

#endif  // SLIMGRAD_RUNTIME_EXCHANGE_CODEC_WORDS_H_
