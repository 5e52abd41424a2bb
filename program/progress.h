// A line on the terminal while a large file is worked on. Silent if stderr is not a terminal, so
// that logs and tests never see it.
#ifndef SLIMGRAD_PROGRAM_PROGRESS_H_
#define SLIMGRAD_PROGRAM_PROGRESS_H_

#include <cstdint>
#include <string>

namespace slimgrad::program {

class Progress {
 public:
  // Says nothing for work of at most kSilentBytes.
  static constexpr std::uint64_t kSilentBytes = std::uint64_t{64} << 20;

  Progress(std::string what, std::uint64_t num_bytes);
  ~Progress();  // wipes the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void done(std::uint64_t num_bytes);                     // "what: 42 %"
  void done_of(std::uint64_t part, std::uint64_t whole);  // the same, of the bytes in proportion
  void step(const std::string& activity);                 // "what: activity"

 private:
  void show(const std::string& text);

  std::string what_;
  std::uint64_t num_bytes_;
  bool visible_;
  int last_percent_ = -1;
};

}  // namespace slimgrad::program

#endif  // SLIMGRAD_PROGRAM_PROGRESS_H_
