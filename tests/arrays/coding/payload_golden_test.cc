// Payloads that were written once, by the version that introduced their format: NAME.sg, and what
// they decode to, NAME.bin. Every later version must read them. New forms get new files; the old
// ones are never written again.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "arrays/coding/payload_samples.h"

namespace slimgrad {
namespace {

Bytes read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(PayloadGolden, OldPayloadsDecode) {
  int count = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(SLIMGRAD_GOLDEN_DIR) + "/payloads")) {
    std::filesystem::path path = entry.path();
    if (path.extension() != ".sg") continue;
    const Bytes payload = read(path);
    EXPECT_EQ(decode(payload), read(path.replace_extension(".bin"))) << path.filename();
    ++count;
  }
  EXPECT_GE(count, 28);
}

}  // namespace
}  // namespace slimgrad
