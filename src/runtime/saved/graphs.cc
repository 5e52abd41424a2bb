// begin_saved_ and draw_saved: the first thing that a graph with packed saved tensors does.
//
// A graph takes the state of its SavedTensors as a tensor, so that its number is no constant of the
// graph: no step compiles anew. One that is compiled under the hooks of Python (a block of a model)
// has no such input, and asks for the SavedTensors that is at work in the thread; so does what
// DistributedDataParallel cut off the graph that has the input.
#include "runtime/saved/graphs.h"

#include <ATen/ops/empty.h>
#include <slimgrad/seed.h>
#include <torch/library.h>

#include <atomic>
#include <charconv>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/check.h"
#include "runtime/saved/saved_bytes.h"
#include "torch/errors.h"
#include "torch/no_gradient.h"

namespace slimgrad::runtime {
namespace {

constexpr const char *kBegin = "begin_saved_", *kDraw = "draw_saved";

struct Known {
  std::mutex mutex;
  std::map<const c10::StorageImpl*, SavedTensors*> by_draws;
  std::set<std::string, std::less<>> texts;
};
Known& known() {
  static Known known;
  return known;
}

const c10::StorageImpl* storage_of(const at::Tensor& draws) {
  return draws.storage().unsafeGetStorageImpl();
}

// The state that the last graph of this thread with one as its input drew from.
struct LastDraws {
  at::Tensor draws;
  std::uint64_t stream = 0;
};
thread_local LastDraws last;

// ---- what graphs save --------------------------------------------------------------------------

std::vector<std::string_view> split(std::string_view text, char by) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(by), text.size());
    parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

std::size_t whole_number(std::string_view text, const char* op) {
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  check(error == std::errc() && end == text.data() + text.size(), op, "whole numbers in saved", "'",
        text, "'");
  return number;
}

// Tells the SavedTensors with these draws, and who counts. has_hooks: whether hooks of autograd
// also see what the graph saves, words in the place of what was packed.
void tell(const at::Tensor& draws, const SavedTally& saved, bool is_first, bool has_hooks) {
  {
    const std::lock_guard lock(known().mutex);
    const auto found = known().by_draws.find(storage_of(draws));
    if (found != known().by_draws.end()) found->second->add_graph(saved, is_first);
  }
  SavedBytesCount::tell_graph(saved, has_hooks);
}

// ---- ops ---------------------------------------------------------------------------------------

at::Tensor draw(const at::Tensor& draws, std::uint64_t stream) {
  auto* const state = static_cast<std::uint64_t*>(draws.mutable_data_ptr());
  at::Tensor seed = at::empty({1}, at::TensorOptions().dtype(at::kLong).device(at::kCPU));
  const std::uint64_t number = std::atomic_ref(state[1]).fetch_add(1);  // threads may share it
  // A name between: an eager pass counts tensors where this counts graphs.
  seed.mutable_data_ptr<std::int64_t>()[0] =
      static_cast<std::int64_t>(derive_seed(state[0], {stream, "graph", number}));
  return seed;
}

at::Tensor begin_saved(const at::Tensor& draws, std::int64_t stream, std::string_view saved) {
  check(draws.scalar_type() == at::kLong && draws.sizes() == at::IntArrayRef{2} &&
            draws.device().is_cpu() && draws.is_contiguous(),
        kBegin, "draws as an int64 tensor of seed and number on the CPU", draws.toString());
  const SavedTally tally = parse_graph_tally(saved, kBegin);
  last = {draws, static_cast<std::uint64_t>(stream)};
  if (!saved.empty()) tell(draws, tally, true, true);
  return draw(draws, last.stream);
}

at::Tensor draw_saved(const at::Tensor&, std::string_view saved) {
  const SavedTally tally = parse_graph_tally(saved, kDraw);
  SavedTensors* const active = active_saved_tensors();
  if (active != nullptr) {
    tell(active->draws(), tally, false, false);
    return draw(active->draws(), active->stream());
  }
  check(last.draws.defined(), kDraw, "a thread in which saved tensors are packed", "none");
  tell(last.draws, tally, false, true);
  return draw(last.draws, last.stream);
}

at::Tensor begin_saved_meta(const at::Tensor& draws, std::int64_t, std::string_view) {
  return at::empty({1}, draws.options());
}
at::Tensor draw_saved_meta(const at::Tensor& like, std::string_view) {
  return at::empty({1}, like.options().dtype(at::kLong));
}

}  // namespace

void add_to_graphs(SavedTensors* saved_tensors) {
  const std::lock_guard lock(known().mutex);
  known().by_draws[storage_of(saved_tensors->draws())] = saved_tensors;
}

void remove_from_graphs(SavedTensors* saved_tensors) {
  const std::lock_guard lock(known().mutex);
  known().by_draws.erase(storage_of(saved_tensors->draws()));
}

SavedTally parse_graph_tally(std::string_view text, const char* op) {
  SavedTally tally;
  for (const std::string_view line : split(text, '\n')) {
    const auto fields = split(line, '\t');
    check(fields.size() == 5 && (fields[0] == "packed" || fields[0] == "left"), op,
          "lines of five fields in saved", "'", line, "'");
    const std::lock_guard lock(known().mutex);
    const std::string_view name = *known().texts.emplace(fields[1]).first;
    (fields[0] == "packed" ? tally.packed : tally.left)[name] +=
        {static_cast<std::int64_t>(whole_number(fields[2], op)), whole_number(fields[3], op),
         whole_number(fields[4], op)};
  }
  return tally;
}

TORCH_LIBRARY_IMPL(slimgrad, CPU, m) {
  m.impl("begin_saved_", torch_ops::ValueErrors<&begin_saved>::call);
}
// In a graph on a device, too, which packs nothing and tells what it saves.
TORCH_LIBRARY_IMPL(slimgrad, CompositeExplicitAutograd, m) {
  m.impl("draw_saved", torch_ops::ValueErrors<&draw_saved>::call);
}
TORCH_LIBRARY_IMPL(slimgrad, Meta, m) {
  m.impl("begin_saved_", begin_saved_meta);
  m.impl("draw_saved", draw_saved_meta);
}
TORCH_LIBRARY_IMPL(slimgrad, Autograd, m) {
  for (const char* name : {"begin_saved_", "draw_saved"}) m.impl(name, torch_ops::no_gradient());
}

}  // namespace slimgrad::runtime
