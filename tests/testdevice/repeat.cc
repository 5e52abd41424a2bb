#include "repeat.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/library.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "counts.h"
#include "device.h"
#include "memory.h"

namespace testdevice {
namespace {

// Ops with device kernels.
const std::vector<const char*> kOps = {
    "measure",         "quantize",          "quantize_",           "prune",
    "prune_",          "prune_quantize",    "prune_quantize_",     "pack",
    "unpack",          "compress_gradient", "compress_gradient_",  "fewbit_forward",
    "fewbit_forward_", "stepwise_codes",    "stepwise_backward",   "stepwise_backward_",
    "pack_saved",      "unpack_saved",      "invertible_backward", "invertible_backward_",
    "pack_exact",      "unpack_exact"};
// Their results have sizes, or their plans numbers, that the host has to know.
const std::set<std::string> kWaits = {"slimgrad::compress_gradient", "slimgrad::compress_gradient_",
                                      "slimgrad::pack_exact"};

std::mutex mutex;
std::map<std::string, std::int64_t> calls;

bool is_plain(const at::Tensor& x) {
  return x.defined() && x.is_cpu() && x.layout() == at::kStrided && x.has_storage() &&
         !at::isTensorSubclassLike(x) && !x.is_neg() && !x.is_conj();
}

// With the same strides, and the same memory around it.
at::Tensor copied_to_device(const at::Tensor& x) {
  const auto num_bytes = static_cast<std::int64_t>(x.storage().nbytes());
  const c10::Device device(type, 0);
  const at::Tensor bytes =
      at::empty({num_bytes}, at::TensorOptions().dtype(at::kByte).device(device));
  if (num_bytes > 0) {
    const Opened opened;
    std::memcpy(bytes.mutable_data_ptr(), x.storage().data(), x.storage().nbytes());
  }
  at::Tensor result = at::empty({0}, x.options().device(device).requires_grad(false));
  return result.set_(bytes.storage(), x.storage_offset(), x.sizes(), x.strides());
}

void check_same(const std::string& op, const at::Tensor& expected, const at::Tensor& got) {
  TORCH_CHECK(expected.scalar_type() == got.scalar_type() && expected.sizes() == got.sizes(), op,
              " on the test device: expected ", expected.toString(), expected.sizes(), ", got ",
              got.toString(), got.sizes());
  if (expected.numel() == 0) return;
  for (std::int64_t i = 0; i < expected.dim(); ++i)
    TORCH_CHECK(expected.size(i) == 1 || expected.stride(i) == got.stride(i), op,
                " on the test device: expected strides ", expected.strides(), ", got ",
                got.strides());
  // The activation itself is an operation of torch, whose rounding on the CPU depends on the
  // layout.
  if (op.starts_with("slimgrad::fewbit_forward") && expected.is_floating_point()) return;
  const Opened opened;
  const at::Tensor a = expected.detach().contiguous(), b = on_host(got).contiguous();
  if (std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0) return;
  const auto size = static_cast<std::size_t>(a.element_size());
  std::int64_t num_different = 0, first = -1;
  for (std::int64_t i = 0; i < a.numel(); ++i) {
    const std::size_t at = static_cast<std::size_t>(i) * size;
    if (std::memcmp(static_cast<const char*>(a.const_data_ptr()) + at,
                    static_cast<const char*>(b.const_data_ptr()) + at, size) == 0)
      continue;
    if (num_different++ == 0) first = i;
  }
  TORCH_CHECK(false, op, " on the test device: ", num_different, " of ", a.numel(),
              " values differ from the CPU's; the first, at ", first, ", is ",
              b.view(-1)[first].item().toDouble(), " and not ",
              a.view(-1)[first].item().toDouble());
}

// Of "[op] expected X, got Y" the first part: what was got may be a count that the host has not.
std::optional<std::string> expected_part(const std::optional<std::string>& error) {
  return error ? std::optional(error->substr(0, error->find(", got "))) : std::nullopt;
}

class Repetition {
 public:
  Repetition(const c10::OperatorHandle& op, const torch::jit::Stack& stack, std::size_t num_given)
      : op_(op), name_(op.schema().name()), given_(stack.end() - num_given, stack.end()) {
    for (std::size_t i = 0; i < num_given; ++i) {
      const std::string& argument = op.schema().arguments()[i].name();
      const bool is_state = argument == "plan" || argument == "stats";  // of a gate: on the CPU
      if (!given_[i].isTensor())
        stack_.push_back(given_[i]);
      else if (is_state)
        stack_.push_back(given_[i].toTensor().detach().clone());
      else
        stack_.push_back(copied_to_device(given_[i].toTensor()));
    }
    on_device_ = stack_;
    generator_ = at::detail::getDefaultCPUGenerator().get_state();
  }

  // results: of the CPU, if it gave some; otherwise its error.
  void run(at::ArrayRef<c10::IValue> results, const std::optional<std::string>& error) {
    const at::Tensor after = at::detail::getDefaultCPUGenerator().get_state();
    at::Generator(at::detail::getDefaultCPUGenerator()).set_state(generator_);
    const std::int64_t waits = counts.waits, copies = counts.copies_to_host;
    std::optional<std::string> own_error;
    try {
      const c10::NoGradGuard no_gradient;
      op_.callBoxed(stack_);
    } catch (const c10::Error& thrown) {
      own_error = thrown.what_without_backtrace();
    }
    at::Generator(at::detail::getDefaultCPUGenerator()).set_state(after);
    TORCH_CHECK(expected_part(own_error) == expected_part(error), name_,
                " on the test device: expected ", error.value_or("no error"), ", got ",
                own_error.value_or("no error"));
    if (!kWaits.contains(name_))
      TORCH_CHECK(counts.waits == waits && counts.copies_to_host == copies, name_,
                  " waited for the test device");
    if (error) return;
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (!results[i].isTensor()) continue;
      const at::Tensor expected = results[i].toTensor(), got = stack_[i].toTensor();
      // Bytes between survivors are not written.
      const bool has_gaps = name_ == "slimgrad::pack_exact";
      TORCH_CHECK(!has_gaps || expected.sizes() == got.sizes(), name_, ": another size");
      if (!has_gaps) check_same(name_, expected, got);
    }
    const auto& arguments = op_.schema().arguments();
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const auto* const alias = arguments[i].alias_info();
      if (alias != nullptr && alias->isWrite())
        check_same(name_, given_[i].toTensor(), on_device_[i].toTensor());
    }
    const std::lock_guard lock(mutex);
    ++calls[name_];
  }

 private:
  const c10::OperatorHandle& op_;
  std::string name_;
  torch::jit::Stack given_, stack_, on_device_;
  at::Tensor generator_;
};

std::atomic<bool> is_on{false};
thread_local bool is_repeating = false;  // a device's op may call the CPU's

// The CPU's kernels, by the names of ops, which call_twice() replaces.
std::map<std::string, c10::SafeKernelFunction>& cpu_kernels() {
  static auto& kernels = *new std::map<std::string, c10::SafeKernelFunction>;
  return kernels;
}

void call_twice(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::SafeKernelFunction& on_cpu = cpu_kernels().at(op.schema().name());
  const std::size_t num_given = op.schema().arguments().size();
  bool is_repeated = is_on && !is_repeating && c10::impl::TorchDispatchModeTLS::stack_len() == 0;
  for (std::size_t i = 0; is_repeated && i < num_given; ++i) {
    const c10::IValue& value = torch::jit::peek(*stack, i, num_given);
    is_repeated = !value.isTensor() || is_plain(value.toTensor());
  }
  if (!is_repeated) return on_cpu.callBoxed(op, keys, stack);
  struct Repeating {
    Repeating() { is_repeating = true; }
    ~Repeating() { is_repeating = false; }
  } repeating;
  Repetition repetition(op, *stack, num_given);
  try {
    on_cpu.callBoxed(op, keys, stack);
  } catch (const c10::Error& error) {
    repetition.run({}, error.what_without_backtrace());
    throw;
  }
  const std::size_t num_results = op.schema().returns().size();
  repetition.run(at::ArrayRef(*stack).slice(stack->size() - num_results, num_results), {});
}

}  // namespace

void repeat_ops(bool on) {
  if (cpu_kernels().empty()) {
    auto* const m =
        new torch::Library(torch::Library::IMPL, "slimgrad", c10::DispatchKey::CPU, __FILE__, 1);
    for (const char* const op : kOps) {
      const std::string name = std::string("slimgrad::") + op;
      const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "");
      cpu_kernels().emplace(name, handle.getComputedKernelForDispatchKey(c10::DispatchKey::CPU));
      m->impl(op, torch::CppFunction::makeFromBoxedFunction<&call_twice>());
    }
  }
  is_on = on;
}

std::map<std::string, std::int64_t> repeated_calls() {
  const std::lock_guard lock(mutex);
  return calls;
}

}  // namespace testdevice
