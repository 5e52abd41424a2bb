// .sgd files: deltas of .safetensors files, one or several in a row.
#ifndef SLIMGRAD_PROGRAM_DELTA_FILES_H_
#define SLIMGRAD_PROGRAM_DELTA_FILES_H_

#include <slimgrad/delta.h>

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "program/byte_files.h"
#include "program/progress.h"
#include "program/safetensors.h"

namespace slimgrad::program {

// On this many threads.
Parallel block_threads(int num_threads);

// A .safetensors file as the library sees it.
class WeightsFile {
 public:
  explicit WeightsFile(const std::string& path);  // throws FileError

  const std::vector<DeltaTensor>& tensors() const { return tensors_; }
  const decltype(Safetensors::metadata)& metadata() const { return file_.metadata; }
  std::uint64_t num_bytes() const { return input_.bytes().size(); }
  const DeltaTensor* find(const std::string& name) const;

 private:
  InputFile input_;
  Safetensors file_;
  std::vector<DeltaTensor> tensors_;
};

// A base and the deltas that follow one another from it. Tensors are made one at a time.
class DeltaChain {
 public:
  // Checks that the first delta is one to the base, and every other one to the result of that
  // before it. Throws FileError.
  DeltaChain(const WeightsFile& base, const std::vector<std::string>& paths,
             const Parallel& parallel);

  const DeltaSet& first() const { return links_.front().set; }
  const DeltaSet& last() const { return links_.back().set; }
  // Of a tensor of the last result. Throws FileError if a delta is one to a tensor of another size.
  std::uint64_t num_bytes(const ContainerEntry& entry) const;
  // Its values, in num_bytes(). However many deltas there are, it takes as much memory twice at
  // most. Throws FileError.
  void make(const ContainerEntry& entry, std::span<std::uint8_t> out) const;
  // Throws FileError unless the others, whose payloads are no deltas, complete the last result.
  void check_others(std::span<const DeltaTensor> others) const;
  bool is_delta_entry(const ContainerEntry& entry) const;

 private:
  struct Link {
    explicit Link(const std::string& file) : path(file), input(file) {}

    std::string path;
    InputFile input;
    DeltaSet set;
  };
  // The payload of a tensor in a link.
  struct Step {
    const Link& link;
    const ContainerEntry& entry;
    std::span<const std::uint8_t> bytes;
  };
  // How a tensor of the last result comes about: from values that are no delta, or the base's
  // tensor of the name, by deltas.
  std::vector<Step> steps_to(const ContainerEntry& entry) const;
  const DeltaTensor* base_of(const std::vector<Step>& steps) const;  // null if there is none

  const WeightsFile& base_;
  const Parallel& parallel_;
  std::deque<Link> links_;
};

}  // namespace slimgrad::program

#endif  // SLIMGRAD_PROGRAM_DELTA_FILES_H_
