// The file of --out: lines of JSON, one object each. docs/runs.md has the fields.
#ifndef SLIMGRAD_TRAINER_RECORDS_H_
#define SLIMGRAD_TRAINER_RECORDS_H_

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "trainer/arguments.h"
#include "trainer/gradient_probe.h"
#include "trainer/run.h"

namespace slimgrad::trainer {

// The file, to which lines are appended as the run goes on.
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

// What the arguments alone do not say.
struct RunFacts {
  std::string machine, commit;
  std::string data;  // its name, without a path
  std::uint64_t data_hash = 0;
  bool is_text = false;
  std::int64_t training_samples = 0, test_samples = 0, parameters = 0;
};

std::string config_line(const Arguments& arguments, const Run& run, const RunFacts& facts);
std::string epoch_line(const Run& run, const Arguments& arguments, const EpochResult& epoch);
std::vector<std::string> layer_lines(const Run& run, const EpochResult& epoch);
std::vector<std::string> look_lines(const Run& run, const Arguments& arguments,
                                    const GradientLook& look);
std::string end_line(const Run& run, std::uint64_t peak_memory);

// Compares two configurations, as config_line() wrote them. Empty if their runs give the same
// results; else the first difference: "batch 64, got 32". Version, commit and machine may differ.
std::string difference(const std::string& saved, const std::string& wanted);

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_RECORDS_H_
