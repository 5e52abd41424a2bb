// Reads a file of reference values from tests/golden.
#ifndef SLIMGRAD_TESTS_GOLDEN_H_
#define SLIMGRAD_TESTS_GOLDEN_H_

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace slimgrad {

inline nlohmann::json golden(const std::string& name) {
  const std::string path = std::string(SLIMGRAD_GOLDEN_DIR) + "/" + name;
  std::ifstream file(path);
  if (!file) throw std::runtime_error("no golden file " + path);
  return nlohmann::json::parse(file);
}

}  // namespace slimgrad

#endif  // SLIMGRAD_TESTS_GOLDEN_H_
