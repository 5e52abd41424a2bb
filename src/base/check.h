// Argument checks with one wording: "[op] expected X, got Y".
#ifndef SLIMGRAD_BASE_CHECK_H_
#define SLIMGRAD_BASE_CHECK_H_

#include <sstream>
#include <string>
#include <string_view>

#include <slimgrad/error.h>

namespace slimgrad {

// Always throws. The values are formatted only here, on the way out.
template <typename... Got>
[[noreturn]] void throw_invalid(std::string_view op, std::string_view expected, const Got&... got) {
  std::ostringstream text;
  text.precision(17);
  text << '[' << op << "] expected " << expected << ", got ";
  (text << ... << got);
  throw InvalidArgument(text.str());
}

template <typename... Got>
void check(bool holds, std::string_view op, std::string_view expected, const Got&... got) {
  if (!holds) [[unlikely]]
    throw_invalid(op, expected, got...);
}

}  // namespace slimgrad

#endif  // SLIMGRAD_BASE_CHECK_H_
