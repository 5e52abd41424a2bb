// The file of --out: one JSON object a line, which begins with its kind. docs/runs.md has the
// fields.
#ifndef SLIMGRAD_TRAINER_RUN_FILE_H_
#define SLIMGRAD_TRAINER_RUN_FILE_H_

#include <cstdint>
#include <fstream>
#include <string>

namespace slimgrad::trainer {

class RunFile {
 public:
  // Nothing is written if the path is empty. The first `keep` bytes of the file stay, and no
  // others; throws InvalidArgument if there are fewer, or the file cannot be written.
  RunFile(const std::string& path, std::uint64_t keep);

  // A line without its end. It is handed to the system at once. Throws std::runtime_error.
  void write(const std::string& line);
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::string path_;
  std::ofstream file_;
  std::uint64_t bytes_;
};

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_RUN_FILE_H_
