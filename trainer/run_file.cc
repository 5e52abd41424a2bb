#include "trainer/run_file.h"

#include <filesystem>
#include <stdexcept>
#include <system_error>

#include <slimgrad/error.h>

namespace slimgrad::trainer {

RunFile::RunFile(const std::string& path, std::uint64_t keep) : path_(path), bytes_(keep) {
  if (path.empty()) return;
  std::error_code error;
  if (keep > 0) {
    const std::uint64_t there = std::filesystem::file_size(path, error);
    if (error || there < keep)
      throw InvalidArgument(
          "--out: expected the file that the checkpointed run wrote, got " +
          (error ? "none" : std::to_string(there) + " bytes of " + std::to_string(keep)) + " at " +
          path);
    std::filesystem::resize_file(path, keep, error);
  }
  file_.open(path, keep > 0 ? std::ios::app : std::ios::trunc);
  if (!file_ || error) throw InvalidArgument("--out: cannot write to " + path);
}

void RunFile::write(const std::string& line) {
  if (path_.empty()) return;
  file_ << line << '\n';
  if (!file_.flush()) throw std::runtime_error("cannot write to " + path_);
  bytes_ += line.size() + 1;
}

}  // namespace slimgrad::trainer
