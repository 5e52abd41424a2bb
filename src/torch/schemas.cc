// Every op of slimgrad, its arguments and what it returns, in one place. Kernels are registered
// next to their code.
#include <torch/library.h>

#include <vector>
#include "torch/decide/plan_tensor.h"

TORCH_LIBRARY(slimgrad, m) {
  // Without a seed an op takes one from torch's generator: two calls alike have two results.
  const std::vector<at::Tag> kDraws = {at::Tag::nondeterministic_seeded};

  // Statistics: a float64 tensor laid out as torch/measure/stats_tensor.h says.
  m.def("measure(Tensor x) -> Tensor");
  m.def("_measure_aten(Tensor x) -> Tensor");  // for any device; tests compare the two
  m.def("stats_fields() -> (str[], str[])");   // whole numbers, then the others; then the histogram
  m.def("histogram_edges() -> Tensor");
  // The record of a run, as arrays/measure/run_record.h describes it. record_fields: the schema,
  // and of each field the kind of its line, its name, its type and whether it is required.
  m.def("record_fields() -> (int, str[], str[], str[], bool[])");
  m.def("record_line(str fields) -> str");
  m.def("histogram_fields(Tensor stats) -> str");
  m.def("lognormal_stats(float log_mean, float log_std, float zero_fraction, int count) -> Tensor");

  // Distributions, by family name and parameters.
  m.def("fit(Tensor x, str family) -> Tensor");
  m.def("density(Tensor x, str family, float[] params) -> Tensor");
  m.def("cdf(Tensor x, str family, float[] params) -> Tensor");
  m.def("quantile(Tensor x, str family, float[] params) -> Tensor");
  m.def("ks_distance(Tensor x, str family, float[] params) -> Tensor");
  m.def("wasserstein_distance(Tensor x, str family, float[] params, int order) -> Tensor");

  // Pruning: threshold gives (threshold, sparsity, at_threshold, survivors, nothing_to_prune).
  m.def("threshold(Tensor stats, float sparsity, str method) -> Tensor");
  m.def("expected_sparsity(Tensor stats, float threshold, str method) -> Tensor");
  m.def("expected_cosine(Tensor stats, float threshold, str method) -> Tensor");
  m.def(
      "allocate(Tensor[] layers, float sparsity, str objective, str? method, float cap, "
      "int[] target_layers, float[] target_cosines) -> Tensor");

  // Formats, as exponent and mantissa bits. parse_float_choice gives (bits, exponent bits, mantissa
  // bits) of "1-4-1", (bits) of "fp6", and nothing of other text.
  m.def("parse_float_choice(str text) -> int[]");
  m.def("format_values(int exponent_bits, int mantissa_bits) -> Tensor");
  m.def("relative_error(int exponent_bits, int mantissa_bits, float log2_std) -> float");
  m.def("best_format(int bits, float log2_std_low, float log2_std_high, str method) -> (int, int)");
  m.def(
      "best_format_of_stats(Tensor stats, int bits, str method, str scale, str rounding, "
      "str underflow, str error) -> Tensor");
  m.def(
      "expected_error(Tensor stats, int exponent_bits, int mantissa_bits, float scale, "
      "str rounding, str underflow, str error) -> Tensor");
  m.def("gradient_scale(Tensor stats, int exponent_bits, int mantissa_bits, str method) -> Tensor");

  // Step tables: borders, levels, error, even.
  m.def(
      "steps(str activation, int bits, float low, float high, str weight) "
      "-> (Tensor, Tensor, float, bool)");

  // Quantizing and pruning. Results keep the type, shape and strides of x. What works in place
  // returns nothing, because torch.compile refuses custom ops whose result is their argument.
  m.def(
      "quantize(Tensor x, int exponent_bits, int mantissa_bits, float scale, str rounding, "
      "str underflow, SymInt? seed=None) -> Tensor",
      kDraws);
  m.def(
      "quantize_(Tensor(a!) x, int exponent_bits, int mantissa_bits, float scale, str rounding, "
      "str underflow, SymInt? seed=None) -> ()",
      kDraws);
  m.def("prune(Tensor x, float threshold, SymInt? seed=None) -> Tensor", kDraws);
  m.def("prune_(Tensor(a!) x, float threshold, SymInt? seed=None) -> ()", kDraws);
  m.def(
      "prune_quantize(Tensor x, float threshold, int exponent_bits, int mantissa_bits, "
      "float scale, str rounding, str underflow, SymInt? seed=None) -> Tensor",
      kDraws);
  m.def(
      "prune_quantize_(Tensor(a!) x, float threshold, int exponent_bits, int mantissa_bits, "
      "float scale, str rounding, str underflow, SymInt? seed=None) -> ()",
      kDraws);

  // Codes of exactly as many bits as the format has, in the order of a contiguous x.
  m.def(
      "pack(Tensor x, int exponent_bits, int mantissa_bits, float scale, str rounding, "
      "str underflow, SymInt? seed=None) -> Tensor",
      kDraws);
  m.def(
      "unpack(Tensor packed, SymInt[] size, int exponent_bits, int mantissa_bits, float scale, "
      "ScalarType dtype) -> Tensor");

  // Payloads, as bytes in a uint8 tensor. A scale or threshold of 0 is found in the values;
  // a rate or max_error of 0 is not asked for.
  m.def(
      "encode(Tensor x, str mode, int bits, int exponent_bits, int mantissa_bits, float scale, "
      "float threshold, float rate, float max_error, str survivors, str coder, str model, "
      "str rounding, int? seed=None) -> Tensor",
      kDraws);
  m.def(  // torch.compile passes arguments by name, and has other uses for "mode" then
      "encode_into(Tensor x, str kind, int bits, int exponent_bits, int mantissa_bits, float "
      "scale, float threshold, float rate, float max_error, str survivors, str coder, str model, "
      "str rounding, int? seed, Tensor(a!) out) -> Tensor",
      kDraws);
  m.def("decode(Tensor payload, int? max_bytes=None) -> Tensor");
  m.def("decode_into(Tensor payload, Tensor(a!) out, int? max_bytes=None) -> ()");
  m.def(
      "inspect(Tensor payload) "
      "-> (str, str, int[], float, int[], str, float[], str)");

  // The symbols of mode "uniform", packed, on devices with kernels (torch/coding/uniform_device.h).
  m.def("_pack_uniform(Tensor x, int bits, bool is_stochastic, int seed) -> (Tensor, Tensor)");
  m.def(
      "_unpack_uniform_(Tensor packed, Tensor largest, int bits, bool is_added, Tensor(a!) out) "
      "-> ()");

  // Files of payloads (torch/coding/files.cc). file_parts: the bytes of a file with these tensors,
  // its index first; metadata are keys and values in turn, options those of encode. load_file: one
  // tensor more than names if the file is a single payload.
  m.def(
      "file_parts(Tensor[] tensors, str[] names, str[] metadata, bool has_metadata, str mode, "
      "int bits, int exponent_bits, int mantissa_bits, float scale, float threshold, float rate, "
      "float max_error, str survivors, str coder, str model, str rounding, int? seed=None) "
      "-> Tensor[]",
      kDraws);
  m.def("load_file(Tensor file, int? max_bytes=None) -> (str[], Tensor[])");

  // Deltas (torch/coding/delta.cc), of a tensor and of a set of tensors with names. inspect_delta:
  // name, type, hash of the base, hash of the result for each tensor, for a set those of the whole
  // first; then the bytes of values and of payload of each.
  m.def("delta(Tensor base, Tensor changed) -> Tensor");
  m.def("apply_delta(Tensor base, Tensor payload) -> Tensor");
  m.def("apply_delta_(Tensor(a!) base, Tensor payload) -> ()");
  m.def(
      "delta_set(Tensor[] base, str[] base_names, Tensor[] changed, str[] changed_names) -> "
      "Tensor");
  m.def(
      "apply_delta_set(Tensor[] base, str[] names, Tensor payload, int? max_bytes=None) -> "
      "(str[], Tensor[])");
  m.def("inspect_delta(Tensor payload) -> (str[], int[])");

  // The state of a gate: what is not given has its default. slimgrad::GateGroup has the rest.
  m.def(slimgrad::torch_ops::new_gate_plan_schema().c_str());
  m.def("new_gate_stats() -> Tensor");
  m.def("derive_seed(int seed, str[] names, int[] numbers) -> int");

  // Neural gradients: the identity forward; backward runs compress_gradient, which reads the
  // layer's plan, writes plan and stats (torch/decide/plan_tensor.h), and draws with `stream` mixed
  // into the seed.
  m.def("gradient_gate(Tensor x, Tensor plan, Tensor stats, int stream) -> Tensor");
  m.def("compress_gradient(Tensor grad, Tensor(a!) plan, Tensor(b!) stats, int stream) -> Tensor");
  m.def("compress_gradient_(Tensor(a!) grad, Tensor(b!) plan, Tensor(c!) stats, int stream) -> ()");
  m.def(
      "_compress_gradient_aten(Tensor grad, Tensor(a!) plan, Tensor(b!) stats, int stream) "
      "-> Tensor");  // for any device; tests compare the two
  // What looks at all layers at once, before a step.
  m.def(
      "allocate_plans_(Tensor(a!)[] plans, Tensor[] stats, str objective, str method, float cap, "
      "int[] target_layers=[], float[] target_cosines=[]) -> ()");
  m.def("enter_gate_(Tensor(a!) gate) -> ()");
  m.def("update_loss_scale_(Tensor(a!)[] plans, Tensor[] stats, int growth_interval) -> ()");

  // How a sparse layer does its two products, as one tensor of its state; slimgrad::GateGroup
  // changes and reports it.
  m.def("new_sparse_choice(bool always) -> Tensor");
  // The model behind it, for fitting it: the terms of the dense product, and of the sparse one what
  // does not shrink with its survivors and what all values would take; nanoseconds of the second
  // that have no fitted constant; and the nanoseconds of these three.
  m.def(
      "_sparse_cost(Tensor grad, Tensor x, Tensor weight, int[] stride, int[] padding, "
      "int[] dilation, int groups, str product) "
      "-> (float[], float[], float[], float, float[])");

  // Layers with a sparse backward pass. `state` is the five tensors of SparseLayerState
  // (slimgrad/sparse_layers.h); backward reads and writes them. `wanted`: gradients of x, weight
  // and bias; one that is not wanted comes back empty.
  m.def(
      "sparse_linear(Tensor x, Tensor weight, Tensor? bias, Tensor[] state, int stream) -> Tensor");
  m.def(
      "sparse_conv2d(Tensor x, Tensor weight, Tensor? bias, int[] stride, int[] padding, "
      "int[] dilation, int groups, Tensor[] state, int stream) -> Tensor");
  m.def(
      "sparse_linear_backward(Tensor grad, Tensor x, Tensor weight, bool[3] wanted, "
      "Tensor(a!)[] state, int stream) -> (Tensor, Tensor, Tensor)");
  m.def(
      "sparse_conv2d_backward(Tensor grad, Tensor x, Tensor weight, int[] stride, int[] padding, "
      "int[] dilation, int groups, bool[3] wanted, Tensor(a!)[] state, int stream) "
      "-> (Tensor, Tensor, Tensor)");

  // What sparse products keep between calls, in bytes; and gives it back, returning how much.
  m.def("cached_memory() -> int");
  m.def("empty_cache() -> int");

  // Which kernels run: the set that does, those that can, those that were compiled. Selecting one
  // is for tests, while no other thread runs any (kernels/dispatch.h). And how the library was
  // built.
  m.def("_kernel_sets() -> (str, str[], str[])");
  m.def("_select_kernel_set(str name) -> ()");
  m.def("_build_facts() -> (str, bool, bool)");
  m.def("_device_kernels() -> (bool, bool)");  // whether they are built in, and wanted

  // For looking into kernels of devices (device/kernel_list.h): what each moves, as its description
  // says (names, threads of a block, blocks, bytes read and written); what is launched between
  // `begins` and the call without it (names, bytes read and written, milliseconds).
  m.def(
      "_device_kernel_costs(int size, int bits, int group) -> (str[], int[], int[], int[], int[])");
  m.def("_record_launches(bool begins) -> (str[], int[], int[], float[])");

  // What backward keeps. pack_saved packs with a few bits a value, into int32 words
  // (formats/saved.h) whose draws are those of `number` among all of a seed; group 0 is the default
  // one. pack_exact leaves zeros out, into bytes; none if that does not pay. Values are taken in
  // the order of memory, and come back with the strides given, those of torch.empty_like(x).
  m.def(
      "pack_saved(Tensor x, int bits, int group, str rounding, SymInt seed, SymInt number) "
      "-> Tensor");
  m.def(
      "unpack_saved(Tensor packed, SymInt[] size, SymInt[] stride, ScalarType dtype, int bits, "
      "int group) -> Tensor");
  // For graphs of torch.compile, where a seed is a tensor: begin_saved_ draws one for a run of a
  // graph from the state of a SavedTensors, draw_saved from that of the thread (like: any tensor,
  // without which no kernel is selected). saved: what the graph saves (runtime/saved/graphs.h).
  // What pack_saved_in_graph does not pack, because it holds NaN or Inf or is a leaf, is held
  // beside the words, and unpack_saved returns it. pack_bools: a bit for each value of a mask.
  m.def("begin_saved_(Tensor(a!) draws, int stream, str saved='') -> Tensor");
  m.def("draw_saved(Tensor like, str saved) -> Tensor", {at::Tag::nondeterministic_seeded});
  m.def(
      "pack_saved_in_graph(Tensor x, Tensor seed, int number, int bits, int group, str rounding) "
      "-> Tensor");
  m.def("pack_bools(Tensor x) -> Tensor");
  m.def("unpack_bools(Tensor packed, SymInt[] size, SymInt[] stride) -> Tensor");
  m.def("pack_exact(Tensor x, bool only_masks=False) -> Tensor");
  m.def("unpack_exact(Tensor packed, SymInt[] size, SymInt[] stride, ScalarType dtype) -> Tensor");

  // The same as a layer uses it, with parameters, and for derivatives known by samples.
  m.def(
      "activation_steps(str activation, str[] names, float[] values, int bits, float low, "
      "float high, str weight) -> (float[], float[], float, bool)");
  m.def(
      "sampled_steps(Tensor slopes, int bits, float low, float high, str weight, bool even) "
      "-> (float[], float[], float, bool)");

  // Activations that keep codes for backward. Borders and levels are a step table; codes are int32
  // words laid out as formats/fewbit.h says, in the storage order of a tensor with `strides`.
  m.def(
      "fewbit_activation(Tensor x, str name, float[] params, float[] borders, float[] levels, "
      "bool even) -> Tensor");
  m.def(
      "fewbit_activation_(Tensor(a!) x, str name, float[] params, float[] borders, "
      "float[] levels, bool even) -> ()");
  m.def(
      "fewbit_forward(Tensor x, str name, float[] params, float[] borders, bool even) "
      "-> (Tensor, Tensor)");
  m.def(
      "fewbit_forward_(Tensor(a!) x, str name, float[] params, float[] borders, bool even) "
      "-> Tensor");
  m.def("stepwise_codes(Tensor x, float[] borders, bool even) -> Tensor");
  m.def("stepwise_backward(Tensor grad, Tensor codes, float[] levels, SymInt[] strides) -> Tensor");
  m.def("stepwise_backward_(Tensor(a!) grad, Tensor codes, float[] levels) -> ()");

  // Layers whose backward is a choice for each element: they save its codes.
  m.def("dropout(Tensor x, float p, bool training) -> Tensor");
  m.def("prelu(Tensor x, Tensor weight) -> Tensor");
  m.def(
      "max_pool2d(Tensor x, int[2] kernel_size, int[2] stride, int[2] padding, int[2] dilation, "
      "bool ceil_mode) -> Tensor");

  // The invertible mode: keeps the output and a bit an element.
  m.def("invertible_activation(Tensor x, str name) -> Tensor");
  m.def("invertible_backward(Tensor grad, Tensor y, Tensor codes, str name) -> Tensor");
  m.def("invertible_backward_(Tensor(a!) grad, Tensor y, Tensor codes, str name) -> ()");
}
