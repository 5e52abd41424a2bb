// Reads a file of reference values from tests/golden.
#ifndef SLIMGRAD_TESTS_GOLDEN_H_
#define SLIMGRAD_TESTS_GOLDEN_H_

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace slimgrad {

// The file stays in memory: a loop over golden("f")["rows"] must not outlive what it walks through.
inline const nlohmann::json& golden(const std::string& name) {
  static std::map<std::string, nlohmann::json> files;
  if (const auto known = files.find(name); known != files.end()) return known->second;
  const std::string path = std::string(SLIMGRAD_GOLDEN_DIR) + "/" + name;
  std::ifstream file(path);
  if (!file) throw std::runtime_error("no golden file " + path);
  return files[name] = nlohmann::json::parse(file);
}

}  // namespace slimgrad

#endif  // SLIMGRAD_TESTS_GOLDEN_H_
