#include "program/delta_files.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "program/block_threads.h"

namespace slimgrad::program {
namespace {

// A PayloadError becomes a FileError, which names the file.
template <typename Function>
auto naming(const std::string& path, const Function& function) {
  try {
    return function();
  } catch (const PayloadError& error) {
    throw FileError(path + ": " + error.what());
  }
}

}  // namespace

Parallel block_threads(int num_threads) {
  return [num_threads](std::int64_t count, const std::function<void(std::int64_t)>& task) {
    Progress silent("", 0, /*quiet=*/true);
    for_block_ranges(static_cast<std::size_t>(count), num_threads, silent,
                     [&](std::size_t first, std::size_t last) {
                       for (std::size_t i = first; i < last; ++i)
                         task(static_cast<std::int64_t>(i));
                     });
  };
}

WeightsFile::WeightsFile(const std::string& path) : input_(path) {
  try {
    file_ = parse_safetensors(input_.bytes());
  } catch (const std::runtime_error& error) {
    throw FileError(path + ": " + error.what());
  }
  for (const NamedTensor& tensor : file_.tensors)
    tensors_.push_back({tensor.name, tensor.type, tensor.shape, tensor.bytes});
}

const DeltaTensor* WeightsFile::find(const std::string& name) const {
  const auto found = std::ranges::find(tensors_, name, &DeltaTensor::name);
  return found == tensors_.end() ? nullptr : &*found;
}

DeltaChain::DeltaChain(const WeightsFile& base, const std::vector<std::string>& paths,
                       const Parallel& parallel)
    : base_(base), parallel_(parallel) {
  for (const std::string& path : paths) {
    Link& link = links_.emplace_back(path);
    naming(path, [&] {
      link.set = parse_delta_set(link.input.bytes());
      if (links_.size() == 1)
        check_base(link.set, link.input.bytes(), base.tensors(), Verification::kFirst, parallel);
      else if (const DeltaSet& before = links_[links_.size() - 2].set;
               link.set.base != before.result)
        throw WrongBase("[apply_delta] expected to follow a delta whose result has the hash " +
                        hash_text(link.set.base) + ", got " + hash_text(before.result));
    });
  }
}

bool DeltaChain::is_delta_entry(const ContainerEntry& entry) const {
  return is_delta(links_.back().input.bytes().subspan(entry.offset, entry.num_bytes));
}

std::vector<DeltaChain::Step> DeltaChain::steps_to(const ContainerEntry& last) const {
  std::vector<Step> steps;
  for (auto link = links_.rbegin(); link != links_.rend(); ++link) {
    const auto& entries = link->set.index.entries;
    const auto entry = std::ranges::find(entries, last.name, &ContainerEntry::name);
    if (entry == entries.end()) break;  // The delta after it has no base.
    steps.push_back({*link, *entry, link->input.bytes().subspan(entry->offset, entry->num_bytes)});
    if (!is_delta(steps.back().bytes)) break;
  }
  return {steps.rbegin(), steps.rend()};
}

const DeltaTensor* DeltaChain::base_of(const std::vector<Step>& steps) const {
  const Step& first = steps.front();
  return &first.link == &links_.front() ? base_.find(first.entry.name) : nullptr;
}

std::uint64_t DeltaChain::num_bytes(const ContainerEntry& last) const {
  const std::vector<Step> steps = steps_to(last);
  const DeltaTensor* const base = base_of(steps);
  std::optional<std::uint64_t> size;
  if (base != nullptr) size = base->bytes.size();
  for (const Step& step : steps)
    size = naming(step.link.path, [&] {
      if (!is_delta(step.bytes)) return entry_bytes(step.entry, step.bytes, nullptr);
      const std::uint64_t announced = inspect_delta(step.bytes).num_bytes();
      if (size != announced)
        throw WrongBase("[apply_delta] expected a base with '" + last.name + "' of " +
                        std::to_string(announced) + " bytes, got " +
                        (size ? std::to_string(*size) : std::string("none")));
      return announced;
    });
  return *size;
}

void DeltaChain::make(const ContainerEntry& last, std::span<std::uint8_t> out) const {
  const std::vector<Step> steps = steps_to(last);
  const DeltaTensor* base = base_of(steps);
  DeltaTensor made;
  std::vector<std::uint8_t> memory;  // of `made`
  for (const Step& step : steps) {
    std::vector<std::uint8_t> next(&step == &steps.back() ? 0 : out.size());
    const std::span<std::uint8_t> to = next.empty() ? out : std::span(next);
    naming(step.link.path, [&] {
      entry_bytes(step.entry, step.bytes, base);
      apply_entry(step.entry, step.bytes, base, to, parallel_);
    });
    memory = std::move(next);
    made = {last.name, step.entry.type, step.entry.shape, to};
    base = &made;
  }
}

void DeltaChain::check_others(std::span<const DeltaTensor> others) const {
  const Link& link = links_.back();
  naming(link.path, [&] { check_result(link.set, link.input.bytes(), others, parallel_); });
}

}  // namespace slimgrad::program
