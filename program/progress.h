// A line on the terminal while large files are worked on:
//   encoding model.safetensors: 42 % [######         ], name
// Silent if stderr is not a terminal, so that logs and tests never see it.
#ifndef SLIMGRAD_PROGRAM_PROGRESS_H_
#define SLIMGRAD_PROGRAM_PROGRESS_H_

#include <cstdint>
#include <string>

#include "program/flags.h"

namespace slimgrad::program {

// Declares --quiet.
void declare_quiet(Flags& flags, bool& quiet);

// Without its folders: the line is short.
std::string file_name(const std::string& path);

// Work of a known number of bytes, in parts: the tensors of one or more files. On one thread at a
// time.
class Progress {
 public:
  // Says nothing for work of at most kSilentBytes.
  static constexpr std::uint64_t kSilentBytes = std::uint64_t{64} << 20;

  Progress(std::string what, std::uint64_t num_bytes, bool quiet);
  ~Progress();  // wipes the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Begins the next part, which has `num_bytes` of the bytes; those of the last one are done.
  void part(std::string name, std::uint64_t num_bytes);
  void done(std::uint64_t num_bytes);                      // of the part
  void done_of(std::uint64_t share, std::uint64_t whole);  // the same, of its bytes in proportion
  void step(std::string activity);                         // what is done now, until the next part

 private:
  void show();

  std::string what_, part_, activity_;
  std::uint64_t num_bytes_, before_ = 0, part_bytes_ = 0;
  bool visible_;
  int percent_ = 0;
};

}  // namespace slimgrad::program

#endif  // SLIMGRAD_PROGRAM_PROGRESS_H_
