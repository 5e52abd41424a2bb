// A backend of process groups for tensors on the test device: those collectives of fixed size that
// exchanges call, by the backend of the group for tensors on the CPU, as kernels are: the host does
// not wait in the name of the program.
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <string>
#include <utility>
#include <vector>

#include "counts.h"
#include "device.h"
#include "memory.h"

namespace testdevice {
namespace {

using Work = c10::intrusive_ptr<c10d::Work>;

class DeviceBackend final : public c10d::Backend {
 public:
  explicit DeviceBackend(c10::intrusive_ptr<c10d::Backend> on_cpu)
      : Backend(on_cpu->getRank(), on_cpu->getSize()), on_cpu_(std::move(on_cpu)) {}
  const std::string getBackendName() const override { return "testdevice"; }

  Work alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<std::int64_t>& out_sizes,
                     std::vector<std::int64_t>& in_sizes,
                     const c10d::AllToAllOptions& options) override {
    at::Tensor out_here = on_host(out), in_here = on_host(in);
    return done(
        [&] { return on_cpu_->alltoall_base(out_here, in_here, out_sizes, in_sizes, options); });
  }
  Work _allgather_base(at::Tensor& out, at::Tensor& in,
                       const c10d::AllgatherOptions& options) override {
    at::Tensor out_here = on_host(out), in_here = on_host(in);
    return done([&] { return on_cpu_->_allgather_base(out_here, in_here, options); });
  }
  // What DistributedDataParallel calls when it is made.
  Work broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override {
    std::vector<at::Tensor> here;
    for (const at::Tensor& x : tensors) here.push_back(on_host(x));
    return done([&] { return on_cpu_->broadcast(here, options); });
  }
  Work allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    std::vector<at::Tensor> here;
    for (const at::Tensor& x : tensors) here.push_back(on_host(x));
    return done([&] { return on_cpu_->allreduce(here, options); });
  }
  Work allgather(std::vector<std::vector<at::Tensor>>& outs, std::vector<at::Tensor>& ins,
                 const c10d::AllgatherOptions& options) override {
    std::vector<std::vector<at::Tensor>> outs_here;
    std::vector<at::Tensor> ins_here;
    for (const auto& list : outs) {
      outs_here.emplace_back();
      for (const at::Tensor& x : list) outs_here.back().push_back(on_host(x));
    }
    for (const at::Tensor& x : ins) ins_here.push_back(on_host(x));
    return done([&] { return on_cpu_->allgather(outs_here, ins_here, options); });
  }

 private:
  struct Done final : c10d::Work {
    bool isCompleted() override { return true; }
    bool wait(std::chrono::milliseconds) override { return true; }
  };
  template <typename Call>
  Work done(const Call& call) {
    ++counts.kernels;
    const Opened opened;
    call()->wait();
    return c10::make_intrusive<Done>();
  }

  c10::intrusive_ptr<c10d::Backend> on_cpu_;
};

// From now on the group takes tensors of the test device, too.
void serve_group(const std::string& name) {
  const auto group = c10d::resolve_process_group(name);
  const auto backend = c10::make_intrusive<DeviceBackend>(group->getBackend(c10::kCPU));
  backend->setGroupUid(name);  // a group takes its name from any of its backends
  group->setBackend(type, c10d::ProcessGroup::BackendType::CUSTOM, backend);
}

TORCH_LIBRARY_FRAGMENT(testdevice, m) { m.def("serve_group", serve_group); }

}  // namespace
}  // namespace testdevice
