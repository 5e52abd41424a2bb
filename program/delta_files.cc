#include "program/delta_files.h"

#include <algorithm>

#include "program/block_threads.h"

namespace slimgrad::program {

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
    try {
      link.set = parse_delta_set(link.input.bytes());
      if (links_.size() == 1)
        check_base(link.set, link.input.bytes(), base.tensors(), Verification::kFirst, parallel);
      else if (const DeltaSet& before = links_[links_.size() - 2].set;
               link.set.base != before.result)
        throw WrongBase("[apply_delta] expected to follow a delta whose result has the hash " +
                        hash_text(link.set.base) + ", got " + hash_text(before.result));
    } catch (const PayloadError& error) {
      throw FileError(path + ": " + error.what());
    }
  }
}

std::uint64_t DeltaChain::num_bytes(std::size_t index, const ContainerEntry& entry) const {
  const Link& link = links_[index];
  try {
    const auto payload = link.input.bytes().subspan(entry.offset, entry.num_bytes);
    if (!is_delta(payload)) return entry_bytes(entry, payload, nullptr);
    std::optional<std::uint64_t> before;
    if (index == 0) {
      if (const DeltaTensor* const found = base_.find(entry.name)) before = found->bytes.size();
    } else {
      const auto& entries = links_[index - 1].set.index.entries;
      const auto found = std::ranges::find(entries, entry.name, &ContainerEntry::name);
      if (found != entries.end()) before = num_bytes(index - 1, *found);
    }
    const std::uint64_t announced = inspect_delta(payload).num_bytes();
    if (before != announced)
      throw WrongBase("[apply_delta] expected a base with '" + entry.name + "' of " +
                      std::to_string(announced) + " bytes, got " +
                      (before ? std::to_string(*before) : std::string("none")));
    return announced;
  } catch (const PayloadError& error) {
    throw FileError(link.path + ": " + error.what());
  }
}

bool DeltaChain::is_delta_entry(const ContainerEntry& entry) const {
  return is_delta(links_.back().input.bytes().subspan(entry.offset, entry.num_bytes));
}

void DeltaChain::make(const ContainerEntry& entry, std::span<std::uint8_t> out) const {
  apply(links_.size() - 1, entry, out);
}

void DeltaChain::check_others(std::span<const DeltaTensor> others) const {
  const Link& link = links_.back();
  try {
    check_result(link.set, link.input.bytes(), others, parallel_);
  } catch (const PayloadError& error) {
    throw FileError(link.path + ": " + error.what());
  }
}

void DeltaChain::apply(std::size_t index, const ContainerEntry& entry,
                       std::span<std::uint8_t> out) const {
  const Link& link = links_[index];
  const auto payload = link.input.bytes().subspan(entry.offset, entry.num_bytes);
  std::optional<Values> base;
  if (is_delta(payload)) base = resolve(index, entry.name);
  try {
    entry_bytes(entry, payload, base ? &base->tensor : nullptr);
    apply_entry(entry, payload, base ? &base->tensor : nullptr, out, parallel_);
  } catch (const PayloadError& error) {
    throw FileError(link.path + ": " + error.what());
  }
}

std::optional<DeltaChain::Values> DeltaChain::resolve(std::size_t num_links,
                                                      const std::string& name) const {
  if (num_links == 0) {
    const DeltaTensor* const found = base_.find(name);
    if (found == nullptr) return std::nullopt;
    return Values{*found, {}};
  }
  const Link& link = links_[num_links - 1];
  const auto& entries = link.set.index.entries;
  const auto entry = std::ranges::find(entries, name, &ContainerEntry::name);
  if (entry == entries.end()) return std::nullopt;
  Values values;
  values.memory.resize(num_bytes(num_links - 1, *entry));
  apply(num_links - 1, *entry, values.memory);
  values.tensor = {entry->name, entry->type, entry->shape, values.memory};
  return values;
}

}  // namespace slimgrad::program
