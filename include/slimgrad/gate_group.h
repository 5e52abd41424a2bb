// The gates of a model, by name: what looks at all of them between two steps, their reports, and
// their state.
//
// The tensors stay with the modules that own them; a group holds handles to them. A layer has one
// gate, or with a sparse backward pass one for each product, LAYER.weight and LAYER.input, each of
// which has a budget of its own: an allocation spreads the sparsity of each over all layers.
//
//   GateGroup gates({.allocation = AllocationObjective::kMinCosine});
//   gates.add("conv1", gate->plan, gate->stats);
//   gates.before_step();  // before every forward pass
//
// One thread at a time may use a group; backward passes may run meanwhile.
//
// State on a device is read by all that looks at it, which waits: reports, state, and once a step
// an allocation or a dynamic loss scale, all layers by one copy.
//
// Surprise. A product whose sparsity is 0 is dense and exact, and no part of a budget.
#ifndef SLIMGRAD_GATE_GROUP_H_
#define SLIMGRAD_GATE_GROUP_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <slimgrad/gradient_gate.h>
#include <slimgrad/sparse_layers.h>

namespace slimgrad {

// What all gates are told together.
struct GroupOptions {
  AllocationObjective allocation = AllocationObjective::kUniform;  // nothing is spread
  ThresholdMethod method = ThresholdMethod::kEmpirical;
  double cap = kDefaultSparsityCap;
  // Cosines that an allocation keeps, by the name of a gate or of something that it is part of; the
  // longest that fits counts.
  std::map<std::string, double> targets = {};
  std::int64_t growth_interval = 0;  // of a dynamic loss scale; 0: none
  // Settings of others that are saved and compared together with these.
  std::map<std::string, double> others = {};
};

struct NamedReport {
  std::string name;
  bool counts;  // false for a product that is not to be pruned
  GateReport gate;
  std::optional<SparseProductReport> product;  // of a sparse backward pass
};

// What load_state() has to say. Names are those of gates and of sparse layers.
struct LoadedState {
  // A setting that differs, such as "sparsity 0.5, the state has 0.9", and where it does.
  std::vector<std::pair<std::string, std::vector<std::string>>> differences;
  std::vector<std::string> settings;          // the same of what all gates are told together
  std::vector<std::string> missing, unknown;  // not in the state, and only there
};

class GateGroup {
 public:
  explicit GateGroup(GroupOptions options = {}) : options_(std::move(options)) {}

  void add(std::string name, const at::Tensor& plan, const at::Tensor& stats);
  void add(const std::string& layer, const SparseLayerState& state);

  // The names of the gates that count: all but those of products that are not to be pruned.
  std::vector<std::string> names() const;

  // Spreads sparsity and updates a dynamic loss scale, if the options say so.
  void before_step();
  // The same for the budget of one gate, if that had a backward pass since it was last done: for
  // callers that enter layers without knowing when a step begins.
  void enter(std::string_view name);
  // Whether a gate of a budget, that of inputs or the other one, had a backward pass since; of
  // gates on a device, whether any gate there had: nothing waits.
  bool has_news(bool at_inputs) const;
  // The targets of such a budget, by the indices of its gates.
  std::vector<CosineTarget> targets(bool at_inputs) const;

  // Every gate chooses anew in the next backward pass.
  void refresh();
  // Another sparsity, instead of what was set, scheduled or allocated; of one product, "weight" or
  // "input", if it is named. Throws InvalidArgument, also for gates that do not prune.
  void set_sparsity(double sparsity, std::string_view product = {});
  // How the products of sparse layers are done, set_sparse_ways() and time_sparse_ways().
  void set_ways(SparseWay way, std::string_view product = {});
  void time_ways(bool on);

  // What each gate did in the last backward pass.
  std::vector<NamedReport> reports() const;
  // Where that harmed a gradient, in words, with what helps.
  std::vector<std::string> warnings() const;

  // All that the gates remember, by name, GATE.plan, GATE.stats and LAYER.choice, on the CPU: the
  // tensors themselves, or copies of those on a device.
  std::map<std::string, at::Tensor> state() const;
  // What an own state is beside them: one number for each setting that no plan holds.
  std::map<std::string, double> settings() const;
  // Continues where state() and settings() were taken (load_gate(), load_sparse_choice()). Throws
  // InvalidArgument for a damaged state, and then nothing has changed.
  LoadedState load_state(const std::map<std::string, at::Tensor>& saved,
                         const std::map<std::string, double>& saved_settings);

 private:
  struct Gate {
    std::string name;
    at::Tensor plan, stats;
    std::optional<std::size_t> layer;  // of a product
    bool is_input = false;
  };
  struct Layer {
    std::string name;
    at::Tensor choice;
  };

  bool counts(const Gate& gate) const;
  std::vector<const Gate*> budget(bool of_inputs) const;
  // Does what the options say to the gates of a budget. `entered`: only if this one has news.
  void look(bool at_inputs, const Gate* entered = nullptr);

  GroupOptions options_;
  std::vector<Gate> gates_;
  std::vector<Layer> layers_;  // that are sparse
  std::uint64_t looked_at_[2] = {~std::uint64_t{0},
                                 ~std::uint64_t{0}};  // passes of devices by then
};

}  // namespace slimgrad

#endif  // SLIMGRAD_GATE_GROUP_H_
