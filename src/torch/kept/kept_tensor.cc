#include <slimgrad/kept.h>

#include <utility>

#include "base/check.h"
#include "torch/checks.h"
#include "torch/kept/ops.h"

namespace slimgrad {

KeptTensor::KeptTensor(const at::Tensor& x, at::Tensor packed, Way way)
    : packed_(std::move(packed)),
      way_(way),
      type_(x.scalar_type()),
      version_(x.unsafeGetTensorImpl()->version_counter()),
      saved_version_(version_.current_version()) {
  if (way == Way::kPlain) return;  // It may have no strides, and comes back with what it has.
  sizes_ = x.sizes().vec();
  strides_ = torch_ops::restored_strides(x);
}

KeptTensor::KeptTensor(const at::Tensor& x, const KeepOptions& options, std::uint64_t seed,
                       std::uint64_t number) {
  check(x.defined() && x.device().is_cpu() && x.layout() == at::kStrided, "KeptTensor",
        "a dense tensor on the CPU", x.toString());
  torch_ops::check_float_dtype(x, "KeptTensor");
  torch_ops::check_keep_options(options, "KeptTensor");
  const at::Tensor plain = x.detach();  // It has the version of x.
  if (options.bits == 0) {
    at::Tensor bytes = torch_ops::keep_exact_cpu(plain, false);
    if (bytes.numel() > 0) *this = KeptTensor(plain, std::move(bytes), Way::kExact);
  } else {
    at::Tensor words = torch_ops::keep_values_cpu(
        plain, options.bits, options.group, options.is_stochastic ? "stochastic" : "nearest",
        static_cast<std::int64_t>(seed), static_cast<std::int64_t>(number));
    if (torch_ops::kept_bad_groups(words) == 0)
      *this = KeptTensor(plain, std::move(words), Way::kRounded);
  }
  if (!packed_.defined()) *this = KeptTensor(plain, plain, Way::kPlain);
  options_ = options;
}

at::Tensor KeptTensor::unpack() const {
  TORCH_CHECK(version_.current_version() == saved_version_,
              "one of the variables needed for gradient computation has been modified by an "
              "inplace operation: it is at version ",
              version_.current_version(), "; expected version ", saved_version_, " instead");
  switch (way_) {
    case Way::kPlain:
      return packed_;
    case Way::kExact:
      return torch_ops::restore_exact_cpu(packed_, sizes_, strides_, type_);
    case Way::kCast:
      return packed_.to(type_);
    case Way::kRounded:
      break;
  }
  return torch_ops::restore_values_cpu(packed_, sizes_, strides_, type_, options_.bits,
                                       options_.group);
}

}  // namespace slimgrad
