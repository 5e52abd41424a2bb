#include "program/near_names.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace slimgrad::program {
namespace {

// Levenshtein's distance, row by row of its table.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace

std::vector<std::string> near_names(const std::string& name, std::span<const std::string> names) {
  constexpr std::size_t kMost = 3;
  // A third of it wrong is still a typing error; and so that no table gets large:
  constexpr std::size_t kLongest = 1000;
  const std::size_t far = std::max<std::size_t>(2, name.size() / 3) + 1;
  std::vector<std::pair<std::size_t, const std::string*>> found;
  for (const std::string& other : names) {
    if (std::max(name.size(), other.size()) > kLongest) continue;
    const bool contains = !name.empty() && other.find(name) != std::string::npos;
    const std::size_t steps = distance(name, other);
    if (contains || steps < far) found.emplace_back(contains ? 0 : steps, &other);
  }
  std::ranges::stable_sort(found, {}, [](const auto& pair) { return pair.first; });
  std::vector<std::string> result;
  for (std::size_t i = 0; i < std::min(kMost, found.size()); ++i)
    result.push_back(*found[i].second);
  return result;
}

}  // namespace slimgrad::program
