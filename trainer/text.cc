// Any file as text: a model reads bytes and names the next.
#include <string>

#include "trainer/data_set.h"

namespace slimgrad::trainer {

DataSet read_text(const std::filesystem::path& file, const SampleLimits& limits) {
  const std::vector<std::uint8_t> bytes = file_bytes(file);
  // A window for training, a window for the test, and the byte behind each.
  constexpr std::size_t kLeast = 10 * (kTextContext + 1);
  if (bytes.size() < kLeast)
    refuse_data(file, "at least " + std::to_string(kLeast) + " bytes",
                std::to_string(bytes.size()));
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::size_t border = text.size() - text.size() / 10;
  return {.name = "text",
          .shape = {.is_text = true, .classes = kTextVocabulary},
          .training = cut_text(text.substr(0, border), limits.training),
          .test = cut_text(text.substr(border), limits.test)};
}

}  // namespace slimgrad::trainer
