// The ops of deltas: tensors and sets of tensors, on the CPU.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include <slimgrad/delta.h>
#include <slimgrad/tensor_files.h>

#include "formats/delta_values.h"
#include "torch/checks.h"
#include "torch/coding/encode_options.h"
#include "torch/coding/file_types.h"
#include "torch/elements.h"
#include "torch/errors.h"
#include "torch/no_gradient.h"
#include "torch/threads.h"

namespace slimgrad::torch_ops {
namespace {

using DeltaNames = std::vector<std::string>;
using ConstBytes = std::span<const std::uint8_t>;

const Parallel& all_threads() {
  static const Parallel parallel = [](std::int64_t count,
                                      const std::function<void(std::int64_t)>& task) {
    for_tasks(count, task);
  };
  return parallel;
}

ConstBytes bytes_of_values(const at::Tensor& x) {
  return {static_cast<const std::uint8_t*>(x.const_data_ptr()), x.nbytes()};
}
std::span<std::uint8_t> mutable_bytes(const at::Tensor& x) {
  return {static_cast<std::uint8_t*>(x.mutable_data_ptr()), x.nbytes()};
}

// REQUIRES: contiguous, on the CPU.
DeltaTensor delta_tensor(const at::Tensor& x, const char* op, const std::string& name = "") {
  DeltaTensor tensor = {name, file_type_name(x.scalar_type(), op), {}, bytes_of_values(x)};
  tensor.shape.assign(x.sizes().begin(), x.sizes().end());
  return tensor;
}

// Its bytes are its values: on the CPU, and negated or conjugated in memory if it is so in name.
at::Tensor plain_values(const at::Tensor& x) {
  return x.detach().cpu().resolve_conj().resolve_neg();
}

// Fresh memory is mapped page by page as it is written, which takes as long as decoding; large
// pages take less. The system gives them if it is set to do so when asked.
void ask_for_large_pages([[maybe_unused]] std::span<std::uint8_t> fresh) {
#if defined(__linux__)
  constexpr std::uintptr_t kLargePage = std::uintptr_t{2} << 20;
  const auto begin = reinterpret_cast<std::uintptr_t>(fresh.data());
  const std::uintptr_t first = (begin + kLargePage - 1) / kLargePage * kLargePage;
  const std::uintptr_t last = (begin + fresh.size()) / kLargePage * kLargePage;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
}

// What make() returns, a tensor of a shape that a payload names.
template <typename Make>
at::Tensor of_named_shape(const Make& make) {
  try {
    return make();
  } catch (const c10::Error&) {
    throw PayloadError(PayloadErrorCode::kTooLarge,
                       "[apply_delta] expected a shape and values that fit into memory, got more");
  }
}

at::Tensor as_payload(const std::vector<std::uint8_t>& bytes) {
  at::Tensor result =
      at::empty({static_cast<std::int64_t>(bytes.size())}, at::TensorOptions().dtype(at::kByte));
  std::ranges::copy(bytes, result.mutable_data_ptr<std::uint8_t>());
  return result;
}

at::Tensor checked_payload(const at::Tensor& payload, const char* op) {
  check_values(payload, op, "payload");
  check(payload.scalar_type() == at::kByte && payload.dim() == 1, op,
        "a payload as a uint8 tensor of one dimension", c10::toString(payload.scalar_type()),
        " with ", payload.dim(), " dimensions");
  return payload.cpu().contiguous();
}

// ---- one tensor --------------------------------------------------------------------------------

// A delta of one tensor has no name for other types, which dicts have in their index.
bool has_type_code(std::string_view type) {
  return delta_format::kValueTypes[delta_format::type_code(type)].name == type;
}

at::Tensor delta_cpu(const at::Tensor& base, const at::Tensor& changed) {
  const at::Tensor from = base.contiguous(), to = changed.contiguous();
  for (const at::Tensor& x : {from, to})
    check(has_type_code(file_type_name(x.scalar_type(), "delta")), "delta",
          "floating-point numbers, integers or bool, or dicts, for other types",
          c10::toString(x.scalar_type()));
  return as_payload(delta(delta_tensor(from, "delta"), delta_tensor(to, "delta"), all_threads()));
}

// The shape of the result; throws unless the delta is one to a tensor of this type.
std::vector<std::int64_t> result_shape(const at::Tensor& base, ConstBytes payload) {
  const DeltaInfo info = inspect_delta(payload);
  const std::string type = file_type_name(base.scalar_type(), "apply_delta");
  if (info.type != type)
    throw WrongBase("[apply_delta] expected a base of type " + info.type + ", got " + type);
  return {info.shape.begin(), info.shape.end()};
}

at::Tensor apply_delta_cpu(const at::Tensor& base, const at::Tensor& payload) {
  const at::Tensor bytes = checked_payload(payload, "apply_delta");
  const ConstBytes delta = elements<std::uint8_t>(bytes);
  const std::vector<std::int64_t> shape = result_shape(base, delta);
  const at::Tensor from = base.contiguous();
  // A base of another size is refused before anything is allocated for it.
  const at::Tensor out = at::empty_like(from, from.options());
  ask_for_large_pages(mutable_bytes(out));
  apply_delta(bytes_of_values(from), delta, mutable_bytes(out), all_threads(), Verification::kLast);
  return of_named_shape([&] { return out.view(shape); });
}

void apply_delta_in_place(const at::Tensor& base, const at::Tensor& payload) {
  const at::Tensor bytes = checked_payload(payload, "apply_delta");
  const ConstBytes delta = elements<std::uint8_t>(bytes);
  const std::vector<std::int64_t> shape = result_shape(base, delta);
  check(base.sizes() == at::IntArrayRef(shape), "apply_delta", "out of the result's shape",
        base.sizes(), " for ", at::IntArrayRef(shape));
  check(base.is_contiguous(), "apply_delta", "out to be contiguous", "strides of ", base.strides());
  apply_delta(bytes_of_values(base), delta, mutable_bytes(base), all_threads());
}

// ---- sets --------------------------------------------------------------------------------------

// Tensors that can be read, and what the core sees of them.
struct TensorSet {
  std::vector<at::Tensor> tensors;
  std::vector<DeltaTensor> views;

  TensorSet(at::TensorList given, const DeltaNames& names, const char* op) {
    check(given.size() == names.size(), op, "a name for every tensor", names.size(), " for ",
          given.size());
    for (std::size_t i = 0; i < names.size(); ++i) {
      check_values(given[i], op, '\'' + names[i] + '\'');
      tensors.push_back(plain_values(given[i]).contiguous());
      views.push_back(delta_tensor(tensors.back(), op, names[i]));
    }
  }
  const DeltaTensor* find(const std::string& name) const {
    const auto found = std::ranges::find(views, name, &DeltaTensor::name);
    return found == views.end() ? nullptr : &*found;
  }
};

at::Tensor delta_set_op(at::TensorList base, DeltaNames base_names, at::TensorList changed,
                        DeltaNames changed_names) {
  const TensorSet from(base, base_names, "delta"), to(changed, changed_names, "delta");
  return as_payload(delta(from.views, to.views, std::nullopt, all_threads()));
}

std::tuple<DeltaNames, std::vector<at::Tensor>> apply_delta_set(at::TensorList base,
                                                                const DeltaNames& names,
                                                                const at::Tensor& payload,
                                                                std::uint64_t limit) {
  const at::Tensor held = checked_payload(payload, "apply_delta");
  const ConstBytes file = elements<std::uint8_t>(held);
  const TensorSet from(base, names, "apply_delta");
  const DeltaSet set = parse_delta_set(file, limit);
  check_base(set, file, from.views, Verification::kLast, all_threads());
  std::uint64_t announced = 0;
  for (const ContainerEntry& entry : set.index.entries) {
    announced +=
        entry_bytes(entry, file.subspan(entry.offset, entry.num_bytes), from.find(entry.name));
    if (!file_type(entry.type))
      throw PayloadError(PayloadErrorCode::kBadHeader,
                         "[apply_delta] expected types that torch has, got " + entry.type +
                             " of '" + entry.name + '\'');
  }
  if (announced > limit)
    throw PayloadError(PayloadErrorCode::kTooLarge,
                       "[apply_delta] expected at most max_bytes=" + std::to_string(limit) +
                           " of values, got " + std::to_string(announced) + " bytes");
  std::tuple<DeltaNames, std::vector<at::Tensor>> result;
  std::vector<DeltaTensor> others;
  for (const ContainerEntry& entry : set.index.entries) {
    const std::vector<std::int64_t> shape(entry.shape.begin(), entry.shape.end());
    const ConstBytes delta = file.subspan(entry.offset, entry.num_bytes);
    const at::Tensor out = of_named_shape(
        [&] { return at::empty(shape, at::TensorOptions().dtype(*file_type(entry.type))); });
    ask_for_large_pages(mutable_bytes(out));
    apply_entry(entry, delta, from.find(entry.name), mutable_bytes(out), all_threads());
    if (!is_delta(delta)) others.push_back(delta_tensor(out, "apply_delta", entry.name));
    std::get<0>(result).push_back(entry.name);
    std::get<1>(result).push_back(out);
  }
  check_result(set, file, others, all_threads());
  return result;
}

std::tuple<DeltaNames, std::vector<at::Tensor>> apply_delta_set_op(
    at::TensorList base, DeltaNames names, const at::Tensor& payload,
    std::optional<std::int64_t> max_bytes) {
  return apply_delta_set(base, names, payload, byte_limit(max_bytes));
}

std::tuple<DeltaNames, std::vector<std::int64_t>> inspect_delta_op(const at::Tensor& payload) {
  const at::Tensor held = checked_payload(payload, "inspect");
  const ConstBytes file = elements<std::uint8_t>(held);
  DeltaNames words;
  std::vector<std::int64_t> numbers;
  const auto add = [&](const std::string& name, const std::string& type, const Hash128& base,
                       const Hash128& result, std::uint64_t values, std::uint64_t coded) {
    for (const std::string& word : {name, type, hash_text(base), hash_text(result)})
      words.push_back(word);
    numbers.push_back(static_cast<std::int64_t>(values));
    numbers.push_back(static_cast<std::int64_t>(coded));
  };
  if (!is_delta_set(file)) {
    const DeltaInfo info = inspect_delta(file);
    add("", info.type, info.base, info.result, info.num_bytes(), file.size());
    return {words, numbers};
  }
  const DeltaSet set = parse_delta_set(file);
  add("", "", set.base, set.result, 0, file.size());
  for (const ContainerEntry& entry : set.index.entries) {
    const ConstBytes bytes = file.subspan(entry.offset, entry.num_bytes);
    if (is_delta(bytes)) {
      const DeltaInfo info = inspect_delta(bytes);
      add(entry.name, entry.type, info.base, info.result, info.num_bytes(), bytes.size());
    } else {
      add(entry.name, entry.type, {}, {}, inspect(bytes).num_bytes(), bytes.size());
    }
  }
  return {words, numbers};
}

}  // namespace

TORCH_LIBRARY_IMPL(slimgrad, CPU, m) {
  m.impl("delta", ValueErrors<&delta_cpu>::call);
  m.impl("apply_delta", ValueErrors<&apply_delta_cpu>::call);
  m.impl("apply_delta_", ValueErrors<&apply_delta_in_place>::call);
  m.impl("inspect_delta", ValueErrors<&inspect_delta_op>::call);
}
TORCH_LIBRARY_IMPL(slimgrad, CompositeExplicitAutograd, m) {
  m.impl("delta_set", ValueErrors<&delta_set_op>::call);
  m.impl("apply_delta_set", ValueErrors<&apply_delta_set_op>::call);
}
TORCH_LIBRARY_IMPL(slimgrad, Autograd, m) {
  for (const char* const name : {"delta", "apply_delta", "apply_delta_"})
    m.impl(name, no_gradient());
}

}  // namespace slimgrad::torch_ops

namespace slimgrad {

at::Tensor delta(const at::Tensor& base, const at::Tensor& changed) {
  torch_ops::check_values(base, "delta", "base");
  torch_ops::check_values(changed, "delta", "new");
  return torch_ops::delta_cpu(torch_ops::plain_values(base), torch_ops::plain_values(changed));
}

at::Tensor delta(const TensorDict& base, const TensorDict& changed) {
  return torch_ops::delta_set_op(base.values(), base.keys(), changed.values(), changed.keys());
}

at::Tensor apply_delta(const at::Tensor& base, const at::Tensor& payload) {
  torch_ops::check_values(base, "apply_delta", "base");
  return torch_ops::apply_delta_cpu(torch_ops::plain_values(base), payload).to(base.device());
}

TensorDict apply_delta(const TensorDict& base, const at::Tensor& payload, std::uint64_t max_bytes) {
  auto [names, tensors] =
      torch_ops::apply_delta_set(base.values(), base.keys(), payload, max_bytes);
  TensorDict result;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const at::Tensor* const before = base.find(names[i]);
    result.insert(names[i], before == nullptr ? tensors[i] : tensors[i].to(before->device()));
  }
  return result;
}

at::Tensor apply_delta_into(const at::Tensor& base, const at::Tensor& payload,
                            const at::Tensor& out) {
  torch_ops::check_values(base, "apply_delta", "base");
  torch_ops::check_values(out, "apply_delta", "out");
  if (out.is_same(base) && base.device().is_cpu() && base.is_contiguous() && !base.is_neg() &&
      !base.is_conj()) {
    torch_ops::apply_delta_in_place(base, payload);
    return out;
  }
  const at::Tensor result = apply_delta(base, payload);
  check(out.scalar_type() == result.scalar_type() && out.sizes() == result.sizes(), "apply_delta",
        "out of the result's type and shape", c10::toString(out.scalar_type()), ' ', out.sizes());
  return out.copy_(result);
}

}  // namespace slimgrad
