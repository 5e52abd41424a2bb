#include "kernels/apply/apply.h"

#include <algorithm>
#include <cstring>

#include "kernels/dispatch.h"
#include "kernels/half_float.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/apply/apply.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#if HWY_TARGET != HWY_SCALAR
#include "kernels/apply/apply-inl.h"
#endif

// The exported functions, one for each target. Highway's target of one lane has no 64-bit products;
// there the specification itself is as good.
HWY_BEFORE_NAMESPACE();
namespace slimgrad::kernels {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR
template <typename T>
ApplyCounts apply_values(const LoopTreatment& treatment, const T* in, T* out,
                         std::size_t num_values, std::uint64_t first_index) {
  return apply_scalar(treatment, in, out, num_values, first_index);
}
template <typename T>
ApplyCounts encode_values(const LoopTreatment& treatment, const T* in, std::uint8_t* codes,
                          std::size_t num_values, std::uint64_t first_index) {
  return encode_scalar(treatment, in, codes, num_values, first_index);
}
#endif

ApplyCounts apply_float32(const LoopTreatment& treatment, const float* in, float* out,
                          std::size_t num_values, std::uint64_t first_index) {
  return apply_values(treatment, in, out, num_values, first_index);
}
ApplyCounts apply_bfloat16(const LoopTreatment& treatment, const BFloat16Bits* in,
                           BFloat16Bits* out, std::size_t num_values, std::uint64_t first_index) {
  return apply_values(treatment, in, out, num_values, first_index);
}
ApplyCounts apply_float16(const LoopTreatment& treatment, const Float16Bits* in, Float16Bits* out,
                          std::size_t num_values, std::uint64_t first_index) {
  return apply_values(treatment, in, out, num_values, first_index);
}
ApplyCounts encode_float32(const LoopTreatment& treatment, const float* in, std::uint8_t* codes,
                           std::size_t num_values, std::uint64_t first_index) {
  return encode_values(treatment, in, codes, num_values, first_index);
}
ApplyCounts encode_bfloat16(const LoopTreatment& treatment, const BFloat16Bits* in,
                            std::uint8_t* codes, std::size_t num_values,
                            std::uint64_t first_index) {
  return encode_values(treatment, in, codes, num_values, first_index);
}
ApplyCounts encode_float16(const LoopTreatment& treatment, const Float16Bits* in,
                           std::uint8_t* codes, std::size_t num_values, std::uint64_t first_index) {
  return encode_values(treatment, in, codes, num_values, first_index);
}

}  // namespace HWY_NAMESPACE
}  // namespace slimgrad::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slimgrad::kernels {
namespace {

HWY_EXPORT(apply_float32);
HWY_EXPORT(apply_bfloat16);
HWY_EXPORT(apply_float16);
HWY_EXPORT(encode_float32);
HWY_EXPORT(encode_bfloat16);
HWY_EXPORT(encode_float16);

}  // namespace

template <typename T>
ApplyCounts apply_scalar(const LoopTreatment& treatment, const T* in, T* out,
                         std::size_t num_values, std::uint64_t first_index) noexcept {
  const ValueRule rule(treatment);
  ApplyCounts counts;
  for (std::size_t i = 0; i < num_values; ++i)
    out[i] = from_float_bits<T>(rule.apply(float_bits(in[i]), first_index + i, counts));
  return counts;
}

template <typename T>
ApplyCounts encode_scalar(const LoopTreatment& treatment, const T* in, std::uint8_t* codes,
                          std::size_t num_values, std::uint64_t first_index) noexcept {
  const CodeRule rule(treatment);
  ApplyCounts counts;
  for (std::size_t i = 0; i < num_values; ++i)
    codes[i] = static_cast<std::uint8_t>(rule.apply(float_bits(in[i]), first_index + i, counts));
  return counts;
}

template <>
ApplyCounts apply(const LoopTreatment& treatment, const float* in, float* out,
                  std::size_t num_values, std::uint64_t first_index) noexcept {
  if (use_scalar()) return apply_scalar(treatment, in, out, num_values, first_index);
  return HWY_DYNAMIC_DISPATCH(apply_float32)(treatment, in, out, num_values, first_index);
}
template <>
ApplyCounts apply(const LoopTreatment& treatment, const BFloat16Bits* in, BFloat16Bits* out,
                  std::size_t num_values, std::uint64_t first_index) noexcept {
  if (use_scalar()) return apply_scalar(treatment, in, out, num_values, first_index);
  return HWY_DYNAMIC_DISPATCH(apply_bfloat16)(treatment, in, out, num_values, first_index);
}
template <>
ApplyCounts apply(const LoopTreatment& treatment, const Float16Bits* in, Float16Bits* out,
                  std::size_t num_values, std::uint64_t first_index) noexcept {
  if (use_scalar()) return apply_scalar(treatment, in, out, num_values, first_index);
  return HWY_DYNAMIC_DISPATCH(apply_float16)(treatment, in, out, num_values, first_index);
}

template <>
ApplyCounts encode(const LoopTreatment& treatment, const float* in, std::uint8_t* codes,
                   std::size_t num_values, std::uint64_t first_index) noexcept {
  if (use_scalar()) return encode_scalar(treatment, in, codes, num_values, first_index);
  return HWY_DYNAMIC_DISPATCH(encode_float32)(treatment, in, codes, num_values, first_index);
}
template <>
ApplyCounts encode(const LoopTreatment& treatment, const BFloat16Bits* in, std::uint8_t* codes,
                   std::size_t num_values, std::uint64_t first_index) noexcept {
  if (use_scalar()) return encode_scalar(treatment, in, codes, num_values, first_index);
  return HWY_DYNAMIC_DISPATCH(encode_bfloat16)(treatment, in, codes, num_values, first_index);
}
template <>
ApplyCounts encode(const LoopTreatment& treatment, const Float16Bits* in, std::uint8_t* codes,
                   std::size_t num_values, std::uint64_t first_index) noexcept {
  if (use_scalar()) return encode_scalar(treatment, in, codes, num_values, first_index);
  return HWY_DYNAMIC_DISPATCH(encode_float16)(treatment, in, codes, num_values, first_index);
}

template ApplyCounts apply_scalar(const LoopTreatment&, const float*, float*, std::size_t,
                                  std::uint64_t) noexcept;
template ApplyCounts apply_scalar(const LoopTreatment&, const BFloat16Bits*, BFloat16Bits*,
                                  std::size_t, std::uint64_t) noexcept;
template ApplyCounts apply_scalar(const LoopTreatment&, const Float16Bits*, Float16Bits*,
                                  std::size_t, std::uint64_t) noexcept;
template ApplyCounts encode_scalar(const LoopTreatment&, const float*, std::uint8_t*, std::size_t,
                                   std::uint64_t) noexcept;
template ApplyCounts encode_scalar(const LoopTreatment&, const BFloat16Bits*, std::uint8_t*,
                                   std::size_t, std::uint64_t) noexcept;
template ApplyCounts encode_scalar(const LoopTreatment&, const Float16Bits*, std::uint8_t*,
                                   std::size_t, std::uint64_t) noexcept;

}  // namespace slimgrad::kernels
#endif  // HWY_ONCE
