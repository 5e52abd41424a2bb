// A device for tests, without hardware: memory that the host may not touch, kernels of slimgrad
// that may (launcher.cc), and everything else through torch's fallback to the CPU, counted. It is
// PrivateUse1, or a stand-in for CUDA in a torch that was built without it.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/GeneratorForPrivateuseone.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_copy_from_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>

#include "counts.h"
#include "device.h"
#include "memory.h"

namespace testdevice {

Counts counts;
std::atomic<bool> is_strict{false};
c10::DeviceType type = c10::DeviceType::PrivateUse1;

namespace {
std::mutex names_mutex;
std::map<std::string, std::int64_t> names;
thread_local int num_fallbacks_running = 0;

void count_wait(const char* what) {
  if (num_fallbacks_running > 0) return;
  ++counts.waits;
  TORCH_CHECK(!is_strict, "testdevice: ", what, " waits for the device");
}
}  // namespace

void count_fallback(const std::string& name) {
  ++counts.fallbacks;
  const std::lock_guard lock(names_mutex);
  ++names[name];
}
std::map<std::string, std::int64_t> fallback_names() {
  const std::lock_guard lock(names_mutex);
  return names;
}
void reset_counts() {
  counts.kernels = counts.copies_to_host = counts.waits = counts.fallbacks = 0;
  const std::lock_guard lock(names_mutex);
  names.clear();
}

namespace {

// ---- memory and streams ------------------------------------------------------------------------

struct Allocator final : at::Allocator {
  at::DataPtr allocate(std::size_t num_bytes) override {
    const c10::Device device(type, 0);
    if (num_bytes == 0) return {nullptr, nullptr, &free_memory, device};
    void* const memory = testdevice::allocate(num_bytes);
    return {memory, memory, &free_memory, device};
  }
  static void free_memory(void* memory) {
    if (memory != nullptr) release(memory);
  }
  at::DeleterFnPtr raw_deleter() const override { return &free_memory; }
  void copy_data(void* to, const void* from, std::size_t num_bytes) const override {
    const Opened opened;
    std::memcpy(to, from, num_bytes);
  }
};
Allocator allocator;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  using Clock = std::chrono::steady_clock;
  c10::Device device() const { return {testdevice::type, 0}; }
  c10::DeviceType type() const override { return testdevice::type; }
  c10::Device exchangeDevice(c10::Device) const override { return device(); }
  c10::Device getDevice() const override { return device(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device());
  }
  c10::Stream getStreamFromGlobalPool(c10::Device of, bool) const override { return getStream(of); }
  c10::Stream getDefaultStream(c10::Device of) const override { return getStream(of); }
  c10::Stream exchangeStream(c10::Stream) const override { return getStream(device()); }
  void* getStreamNativeHandle(const c10::Stream) const override { return kStream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  // Everything is done at once: an event is a time of the host.
  void record(void** event, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    if (*event == nullptr) *event = new Clock::time_point;
    *static_cast<Clock::time_point*>(*event) = Clock::now();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Clock::time_point*>(event);
  }
  double elapsedTime(void* begin, void* end, const c10::DeviceIndex) const override {
    return std::chrono::duration<double, std::milli>(*static_cast<Clock::time_point*>(end) -
                                                     *static_cast<Clock::time_point*>(begin))
        .count();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { count_wait("a stream's end"); }
  void synchronizeEvent(void*) const override { count_wait("an event"); }
  void synchronizeDevice(const c10::DeviceIndex) const override { count_wait("synchronize()"); }
};

const at::Generator& default_generator() {
  static at::Generator generator =
      at::make_generator<at::CPUGeneratorImpl>(at::default_rng_seed_val);
  return generator;
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return default_generator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::make_generator<at::CPUGeneratorImpl>(at::default_rng_seed_val);
  }
  bool isPinnedPtr(const void*) const override { return false; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t num_bytes) const override {
    at::DataPtr data = allocator.allocate(num_bytes);
    if (storage.nbytes() > 0 && num_bytes > 0) {
      const Opened opened;
      std::memcpy(data.get(), storage.data(), std::min(num_bytes, storage.nbytes()));
    }
    auto& resized = const_cast<c10::Storage&>(storage);
    resized.set_data_ptr_noswap(std::move(data));
    resized.set_nbytes(num_bytes);
  }
};

// For a machine without CUDA, where autograd would find no accelerator.
struct CUDAHooks final : at::CUDAHooksInterface {
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  int getNumGPUs() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex current_device() const override { return 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return default_generator();
  }
  at::Device getDeviceFromPtr(void*) const override { return {at::kCUDA, 0}; }
};

// ---- operators ---------------------------------------------------------------------------------

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &allocator, c10::DispatchKeySet(dispatch_key()),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(
      size, stride, &allocator, c10::DispatchKeySet(dispatch_key()), c10::dtype_or_default(dtype));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (to.is_cpu() && !from.is_cpu() && num_fallbacks_running == 0) {
    ++counts.copies_to_host;
    TORCH_CHECK(!is_strict, "testdevice: a copy to the host");
    if (!non_blocking) count_wait("a copy to the host");
  }
  if (from.is_cpu() && !to.is_cpu() && !non_blocking) count_wait("a copy from the host");
  const Opened opened;
  on_host(to).copy_(on_host(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

// torch copies to and from CUDA by a kernel of its own, which a build for the CPU has not.
at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  copy_from(from.expand_as(to), to, non_blocking);
  return to;
}

at::Scalar local_scalar(const at::Tensor& x) {
  if (num_fallbacks_running == 0) ++counts.copies_to_host;
  count_wait("item()");
  const Opened opened;
  return on_host(x).item();
}

// A kernel that stops the device, later; here at once.
void assert_async(const at::Tensor& holds, std::string_view message) {
  ++counts.kernels;
  const Opened opened;
  TORCH_CHECK_VALUE(on_host(holds).item().toBool(), message);
}

at::Tensor to_device(const at::Tensor& x) {
  if (!x.defined()) return x;
  at::Tensor result = empty_strided(x.sizes(), x.strides(), x.scalar_type(), {}, {}, {});
  on_host(result).copy_(x);
  return result;
}

// What torch asks of a backend by another name than it asks the CPU.
at::Tensor convolution(const at::Tensor& x, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, c10::IntArrayRef stride,
                       c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
                       c10::IntArrayRef output_padding, std::int64_t groups) {
  const Opened opened;
  std::optional<at::Tensor> bias_on_host;
  if (bias && bias->defined()) bias_on_host = on_host(*bias);
  return to_device(at::convolution(on_host(x), on_host(weight), bias_on_host, stride, padding,
                                   dilation, transposed, output_padding, groups));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight, c10::IntArrayRef stride,
    c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
    c10::IntArrayRef output_padding, std::int64_t groups, std::array<bool, 3> wanted) {
  const Opened opened;
  const std::int64_t bias_size[] = {transposed ? weight.size(1) * groups : weight.size(0)};
  const auto [a, b, c] = at::convolution_backward(
      on_host(grad), on_host(x), on_host(weight), c10::IntArrayRef(bias_size), stride, padding,
      dilation, transposed, output_padding, groups, wanted);
  return {to_device(a), to_device(b), to_device(c)};
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string name = toString(op.operator_name());
  count_fallback(name);
  TORCH_CHECK(name.starts_with("aten::"), "testdevice: no kernel for ", name);
  struct Running {
    Running() { ++num_fallbacks_running; }
    ~Running() { --num_fallbacks_running; }
  } running;
  at::native::cpu_fallback(op, stack);
}

void register_operators(torch::Library& m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("resize_", at::native::resize_);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("_assert_async.msg", assert_async);
  m.impl("set_.source_Storage",
         static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(at::native::set_));
  m.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  m.impl("set_.source_Tensor", at::native::set_tensor_);
  if (type == c10::DeviceType::CUDA) m.impl("copy_", copy);
}

}  // namespace

c10::DispatchKey dispatch_key() {
  return type == c10::DeviceType::CUDA ? c10::DispatchKey::CUDA : c10::DispatchKey::PrivateUse1;
}

at::Tensor on_host(const at::Tensor& x) {
  if (x.is_cpu()) return x;
  return at::from_blob(x.data_ptr(), x.sizes(), x.strides(), x.options().device(at::kCPU));
}

void start_device(c10::DeviceType as) {
  type = as;
  c10::SetAllocator(type, &allocator);
  static Guard& guard = *new Guard;
  c10::impl::registerDeviceGuard(type, &guard);
  if (type == c10::DeviceType::CUDA)
    at::CUDAHooksRegistry()->Register(
        "CUDAHooks",
        [](at::CUDAHooksArgs) -> std::unique_ptr<at::CUDAHooksInterface> {
          return std::make_unique<CUDAHooks>();
        },
        "a stand-in", c10::REGISTRY_PREFERRED);  // to those of a torch that has CUDA
  else
    at::RegisterPrivateUse1HooksInterface(new Hooks);
  auto* const m = new torch::Library(torch::Library::IMPL, "aten", dispatch_key(), __FILE__, 1);
  register_operators(*m);
  auto* const all = new torch::Library(torch::Library::IMPL, "_", dispatch_key(), __FILE__, 2);
  all->fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace testdevice
