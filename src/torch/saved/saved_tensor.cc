#include <slimgrad/saved_tensors.h>

#include <utility>

#include "base/check.h"
#include "torch/checks.h"
#include "torch/saved/ops.h"

namespace slimgrad {

SavedTensor::SavedTensor(const at::Tensor& x, at::Tensor packed, Way way)
    : packed_(std::move(packed)),
      way_(way),
      type_(x.scalar_type()),
      version_(x.unsafeGetTensorImpl()->version_counter()),
      saved_version_(version_.current_version()) {
  if (way == Way::kPlain) return;  // It may have no strides, and comes back with what it has.
  sizes_ = x.sizes().vec();
  strides_ = torch_ops::restored_strides(x);
}

SavedTensor::SavedTensor(const at::Tensor& x, const SavedOptions& options, std::uint64_t seed,
                         std::uint64_t number) {
  check(x.defined() && x.device().is_cpu() && x.layout() == at::kStrided, "SavedTensor",
        "a dense tensor on the CPU", x.toString());
  torch_ops::check_float_dtype(x, "SavedTensor");
  torch_ops::check_saved_options(options, "SavedTensor");
  const at::Tensor plain = x.detach();  // It has the version of x.
  if (options.bits == 0) {
    at::Tensor bytes = torch_ops::pack_exact_cpu(plain, false);
    if (bytes.numel() > 0) *this = SavedTensor(plain, std::move(bytes), Way::kExact);
  } else {
    at::Tensor words = torch_ops::pack_saved_cpu(
        plain, options.bits, options.group, options.is_stochastic ? "stochastic" : "nearest",
        static_cast<std::int64_t>(seed), static_cast<std::int64_t>(number));
    if (torch_ops::saved_bad_groups(words) == 0)
      *this = SavedTensor(plain, std::move(words), Way::kRounded);
  }
  if (!packed_.defined()) *this = SavedTensor(plain, plain, Way::kPlain);
  options_ = options;
}

at::Tensor SavedTensor::unpack() const {
  TORCH_CHECK(version_.current_version() == saved_version_,
              "one of the variables needed for gradient computation has been modified by an "
              "inplace operation: it is at version ",
              version_.current_version(), "; expected version ", saved_version_, " instead");
  switch (way_) {
    case Way::kPlain:
      return packed_;
    case Way::kExact:
      return torch_ops::unpack_exact_cpu(packed_, sizes_, strides_, type_);
    case Way::kCast:
      return packed_.to(type_);
    case Way::kRounded:
      break;
  }
  return torch_ops::unpack_saved_cpu(packed_, sizes_, strides_, type_, options_.bits,
                                     options_.group);
}

}  // namespace slimgrad
