// SavedTensors as Python calls it: torch.classes.slimgrad. Every saved tensor passes here, so a
// call does as little as it can. Python checks the types of arguments and says who saves.
#include <slimgrad/saved_tensors.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "runtime/saved/saved_bytes.h"
#include "runtime/saved/saving_rules.h"
#include "torch/errors.h"

namespace slimgrad {
namespace {

using Sizes = c10::Dict<std::string, std::int64_t>;
using Kinds = c10::Dict<std::string, std::tuple<std::int64_t, std::int64_t, std::int64_t>>;
using Reasons = c10::Dict<std::string, std::tuple<std::int64_t, std::int64_t>>;

std::int64_t to_int(std::size_t size) { return static_cast<std::int64_t>(size); }

struct HeldTensor : torch::CustomClassHolder {
  explicit HeldTensor(SavedTensor saved) : saved(std::move(saved)) {}
  SavedTensor saved;
};

struct BoundSavedTensors : torch::CustomClassHolder {
  template <typename... Args>
  explicit BoundSavedTensors(const Args&... args) : saved_tensors(args...) {}
  SavedTensors saved_tensors;
};

struct BoundCount : torch::CustomClassHolder {
  explicit BoundCount(const std::vector<at::Tensor>& live_anyway) : count(live_anyway) {}
  runtime::SavedBytesCount count;
};

using Self = c10::intrusive_ptr<BoundSavedTensors>;
using Held = c10::intrusive_ptr<HeldTensor>;
using Count = c10::intrusive_ptr<BoundCount>;

// bits: 0 for exactly.
Self make(std::int64_t bits, std::int64_t group, const std::string& rounding,
          std::int64_t min_elements, std::int64_t seed, std::int64_t stream,
          const std::string& called) {
  check(rounding == "stochastic" || rounding == "nearest", called,
        "rounding to be one of stochastic, nearest", "'", rounding, "'");
  const SavedOptions options{
      .bits = static_cast<int>(bits), .group = group, .is_stochastic = rounding == "stochastic"};
  return c10::make_intrusive<BoundSavedTensors>(options, static_cast<std::uint64_t>(seed),
                                                min_elements, static_cast<std::uint64_t>(stream),
                                                called);
}

void check_state(const std::optional<at::Tensor>& state) {
  SavedTensors::check_state(state.value_or(at::Tensor()));
}

// The fields of Tally in Python, one by one.
std::tuple<std::int64_t, std::int64_t, std::int64_t, Kinds, Reasons, double, double> tally_of(
    const Self& self) {
  const SavedTally tally = self->saved_tensors.tally();
  const SavedTally::Count packed = SavedTally::sum(tally.packed);
  Kinds kinds;
  for (const auto& [kind, count] : tally.packed)
    kinds.insert(std::string(kind),
                 std::tuple(count.tensors, to_int(count.plain_bytes), to_int(count.bytes)));
  Reasons left;
  for (const auto& [why, count] : tally.left)
    left.insert(std::string(why), std::tuple(count.tensors, to_int(count.bytes)));
  return {packed.tensors, to_int(packed.plain_bytes), to_int(packed.bytes),   kinds,
          left,           tally.packing_seconds,      tally.unpacking_seconds};
}

// By name, those that only the graph tells.
c10::Dict<std::string, std::string> reasons_in_graphs() {
  namespace left = runtime::left;
  c10::Dict<std::string, std::string> reasons;
  for (const auto& [name, why] : std::initializer_list<std::pair<const char*, runtime::Reason>>{
           {"leaf", left::kLeaf},
           {"of leaf", left::kOfLeaf},
           {"no gradient", left::kNoGradient},
           {"device", left::kSubclass},
           {"checkpoint", left::kCheckpoint},
           {"excluded", left::kExcluded},
           {"softmax", left::kSoftmax},
           {"layout", left::kLayout},
           {"compared", left::kCompared},
           {"exact", left::kExactGraph}})
    reasons.insert(name, std::string(why));
  return reasons;
}

// The plain and the saved bytes of each part, and the bytes left for each reason.
std::tuple<Sizes, Sizes, Sizes> counted_bytes(const Count& self) {
  const SavedBytes& bytes = self->count.bytes();
  Sizes plain, saved, left;
  for (const SavedBytes::Part& part : bytes.parts) {
    if (part.plain > 0) plain.insert(part.name, to_int(part.plain));
    if (part.saved > 0) saved.insert(part.name, to_int(part.saved));
  }
  for (const auto& [why, size] : bytes.left) left.insert(std::string(why), to_int(size));
  return {plain, saved, left};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(slimgrad, m) {
  m.class_<HeldTensor>("SavedTensor").def("unpack", [](const Held& held) {
    return held->saved.unpack();
  });
  m.class_<BoundSavedTensors>("SavedTensors")
      .def(torch::init([](std::int64_t bits, std::int64_t group, std::string rounding,
                          std::int64_t min_elements, std::int64_t seed, std::int64_t stream,
                          std::string called) {
        return torch_ops::ValueErrors<&make>::call(bits, group, rounding, min_elements, seed,
                                                   stream, called);
      }))
      .def("pack",
           [](const Self& self, const at::Tensor& x, const std::string& saved_by) {
             return c10::make_intrusive<HeldTensor>(self->saved_tensors.pack(x, saved_by));
           })
      .def("leave",
           [](const Self&, const at::Tensor& x) {
             return c10::make_intrusive<HeldTensor>(SavedTensors::leave(x, true));
           })
      .def("begin",
           [](const Self& self, std::int64_t stream) {
             self->saved_tensors.begin(static_cast<std::uint64_t>(stream));
           })
      .def("end", [](const Self& self) { self->saved_tensors.end(); })
      .def_static("reason_by_form",
                  [](const at::Tensor& x, std::int64_t min_elements) {
                    return std::string(runtime::reason_by_form(x, min_elements));
                  })
      .def_static("reasons", &reasons_in_graphs)
      .def("group", [](const Self& self) { return self->saved_tensors.options().group; })
      .def("draws", [](const Self& self) { return self->saved_tensors.draws(); })
      .def("tally", &tally_of)
      .def("state", [](const Self& self) { return self->saved_tensors.state(); })
      .def("check_state",
           [](const Self&, const std::optional<at::Tensor>& state) {
             torch_ops::ValueErrors<&check_state>::call(state);
           })
      .def("load_state", [](const Self& self, const at::Tensor& state) {
        self->saved_tensors.load_state(state);
      });
  m.class_<BoundCount>("SavedBytesCount")
      .def(torch::init<std::vector<at::Tensor>>())
      .def("stop", [](const Count& self) { self->count.stop(); })
      .def("begin_part",
           [](const Count& self, std::string name) { self->count.begin_part(std::move(name)); })
      .def("end_part", [](const Count& self) { self->count.end_part(); })
      .def("saved",
           [](const Count& self, const at::Tensor& x) {
             self->count.saved(x, nullptr, {});
             return x;
           })
      .def("bytes", &counted_bytes);
}

}  // namespace slimgrad
