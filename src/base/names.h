// Enumerations as text, both ways, from one table.
#ifndef SLIMGRAD_BASE_NAMES_H_
#define SLIMGRAD_BASE_NAMES_H_

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace slimgrad {

template <typename Enum, std::size_t n>
using NameTable = std::array<std::pair<Enum, std::string_view>, n>;

template <typename Enum, std::size_t n>
constexpr std::string_view name_of(const NameTable<Enum, n>& table, Enum value) {
  for (const auto& [candidate, name] : table)
    if (candidate == value) return name;
  return "?";
}

// Throws InvalidArgument that lists the names there are.
template <typename Enum, std::size_t n>
Enum parse_name(const NameTable<Enum, n>& table, std::string_view op, std::string_view what,
                std::string_view text) {
  for (const auto& [value, name] : table)
    if (name == text) return value;
  std::string expected(what);
  expected += " to be one of";
  for (const auto& entry : table) expected.append(" ").append(entry.second);
  throw_invalid(op, expected, '\'', text, '\'');
}

}  // namespace slimgrad

#endif  // SLIMGRAD_BASE_NAMES_H_
