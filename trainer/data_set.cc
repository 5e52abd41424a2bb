#include "trainer/data_set.h"

#include <algorithm>
#include <fstream>

#include <slimgrad/error.h>

namespace slimgrad::trainer {

void refuse_data(const std::filesystem::path& path, std::string_view expected,
                 std::string_view got) {
  throw InvalidArgument("--data: " + path.string() + ": expected " + std::string(expected) +
                        ", got " + std::string(got));
}

std::vector<std::uint8_t> file_bytes(const std::filesystem::path& path, std::uint64_t most) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error))
    throw InvalidArgument("--data: no such file: " + path.string());
  const std::uint64_t size = std::min<std::uint64_t>(std::filesystem::file_size(path), most);
  std::vector<std::uint8_t> bytes(size);
  std::ifstream file(path, std::ios::binary);
  if (!file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(size)))
    throw InvalidArgument("--data: cannot read " + path.string());
  return bytes;
}

SampleBytes cut_text(std::string_view text, std::int64_t limit) {
  SampleBytes samples;
  const auto length = static_cast<std::int64_t>(text.size());
  samples.count = std::max<std::int64_t>(0, (length - 1) / kTextContext);
  if (limit > 0) samples.count = std::min(samples.count, limit);
  for (std::int64_t i = 0; i < samples.count; ++i) {
    const char* window = text.data() + i * kTextContext;
    samples.values.insert(samples.values.end(), window, window + kTextContext + 1);
  }
  return samples;
}

std::uint64_t hash_of(const SampleBytes& samples) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&](std::uint8_t byte) { hash = (hash ^ byte) * 0x100000001b3u; };
  for (const std::uint8_t value : samples.values) add(value);
  for (const std::int64_t label : samples.labels) add(static_cast<std::uint8_t>(label));
  return hash;
}

DataSet open_data(std::string_view what, const SampleLimits& limits, std::uint64_t seed,
                  int num_threads) {
  if (what == "glyphs") return generate_glyphs(limits, seed, num_threads);
  if (what == "grammar") return generate_grammar(limits, seed);
  const auto path_behind = [&](std::string_view prefix) {
    return std::filesystem::path(what.substr(prefix.size()));
  };
  DataSet data;
  if (what.starts_with("cifar10:"))
    data = read_cifar10(path_behind("cifar10:"), limits);
  else if (what.starts_with("idx:"))
    data = read_idx(path_behind("idx:"), limits);
  else if (what.starts_with("text:"))
    data = read_text(path_behind("text:"), limits);
  else
    throw InvalidArgument(
        "--data: expected glyphs, grammar, cifar10:DIR, idx:DIR or text:FILE, got " +
        std::string(what));
  const auto check_count = [&](const char* option, std::int64_t wanted, std::int64_t there) {
    if (there < std::max<std::int64_t>(1, wanted))
      throw InvalidArgument(std::string(option) + ": expected at most the " +
                            std::to_string(there) + " samples in the data, got " +
                            std::to_string(wanted));
  };
  check_count("--train-size", limits.training, data.training.count);
  check_count("--test-size", limits.test, data.test.count);
  return data;
}

}  // namespace slimgrad::trainer
