#include "program/output.h"

namespace slimgrad::program {

Json parse_json(std::span<const std::uint8_t> text) {
  return Json::parse(text.begin(), text.end(), nullptr, false);
}

std::string json_text(const Json& json) { return json.dump(); }

std::string indented_json_text(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace slimgrad::program
