#include <slimgrad/kept.h>

#include "base/check.h"
#include "torch/kept/ops.h"

namespace slimgrad {
namespace {

constexpr int kPlain = -1;  // as `bits`: the tensor itself is held

}  // namespace

KeptTensor::KeptTensor(const at::Tensor& x, const KeepOptions& options, std::uint64_t seed,
                       std::uint64_t number)
    : options_(options) {
  check(x.defined() && x.device().is_cpu() && x.layout() == at::kStrided, "KeptTensor",
        "a dense tensor on the CPU", x.toString());
  const at::Tensor plain = x.detach();  // It has the version of x.
  sizes_ = plain.sizes().vec();
  strides_ = torch_ops::restored_strides(plain);
  type_ = plain.scalar_type();
  version_ = plain.unsafeGetTensorImpl()->version_counter();
  saved_version_ = version_.current_version();
  if (options.bits == 0) {
    packed_ = torch_ops::keep_exact_cpu(plain, false);
    if (packed_.numel() > 0) return;
  } else {
    packed_ = torch_ops::keep_values_cpu(
        plain, options.bits, options.group, options.is_stochastic ? "stochastic" : "nearest",
        static_cast<std::int64_t>(seed), static_cast<std::int64_t>(number));
    if (torch_ops::kept_bad_groups(packed_) == 0) return;
  }
  packed_ = plain;
  options_.bits = kPlain;
}

at::Tensor KeptTensor::unpack() const {
  TORCH_CHECK(version_.current_version() == saved_version_,
              "one of the variables needed for gradient computation has been modified by an "
              "inplace operation: it is at version ",
              version_.current_version(), "; expected version ", saved_version_, " instead");
  if (options_.bits == kPlain) return packed_;
  if (options_.bits == 0) return torch_ops::restore_exact_cpu(packed_, sizes_, strides_, type_);
  return torch_ops::restore_values_cpu(packed_, sizes_, strides_, type_, options_.bits,
                                       options_.group);
}

}  // namespace slimgrad
