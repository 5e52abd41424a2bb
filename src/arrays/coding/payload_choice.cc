
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>

#include <slimgrad/measure.h>

#include "arrays/apply/loop_treatment.h"
#include "arrays/coding/payload_layout.h"
#include "arrays/coding/rate_choice.h"
#include "arrays/coding/topk_check.h"
#include "base/check.h"
#include "formats/model_parameter.h"
#include "formats/payload_header.h"
#include "kernels/half_float.h"
#include "kernels/measure/magnitude_range.h"
#include "math/coding/model_table.h"

namespace slimgrad {
namespace {

using kernels::MagnitudeRange;

bool has_open_levels(const EncodeOptions& options) {
  return options.rate != 0 || options.max_error != 0;
}

// Returns how many bytes the values have.
std::uint64_t check_tensor(const TensorView& tensor) {
  check(tensor.shape.size() <= kMaxShapeLengths, "encode", "at most 32 dimensions",
        tensor.shape.size());
  std::uint64_t bytes = bytes_of(tensor.dtype);
  for (const std::uint64_t length : tensor.shape) {
    if (length == 0) return 0;
    check(!__builtin_mul_overflow(bytes, length, &bytes) && bytes <= kMaxTensorBytes, "encode",
          "a tensor of at most 2^60 bytes", "more");
  }
  check(tensor.data != nullptr, "encode", "a pointer to the values", "null");
  return bytes;
}

void check_rate(const EncodeOptions& options) {
  check(options.rate == 0 || (options.rate > 0 && options.rate <= kLargestRate), "encode",
        "a rate above 0 and of at most 16 bits a value", options.rate);
  check(options.max_error >= 0 && options.max_error <= std::numeric_limits<float>::max(), "encode",
        "max_error to be positive and finite", options.max_error);
  if (!has_open_levels(options)) return;
  check(options.rate == 0 || options.max_error == 0, "encode", "a rate or max_error", "both");
  check(options.kind == PayloadKind::kUniform, "encode", "mode uniform with rate or max_error",
        payload_kind_name(options.kind));
  check(options.scale == 0, "encode", "no scale with rate or max_error, which choose it",
        options.scale);
  check(options.coder == EntropyCoder::kRans, "encode", "coder rans with rate or max_error",
        entropy_coder_name(options.coder));
}

void check_options(const TensorView& tensor, std::uint64_t num_bytes,
                   const EncodeOptions& options) {
  const PayloadKind kind = options.kind;
  check(kind != PayloadKind::kRaw, "encode", "mode to be lossless, uniform, float, pruned or topk",
        "raw");
  const bool small = tensor.dtype != DType::kFloat64 && tensor.dtype != DType::kInt8;
  check(small || kind == PayloadKind::kLossless, "encode",
        "float32, bfloat16 or float16 values for all modes but lossless", dtype_name(tensor.dtype));
  if (kind == PayloadKind::kTopk)
    check_topk("encode", options.k, options.of, options.bits);
  else
    check(options.bits >= 2 && options.bits <= 8, "encode", "2 to 8 bits", options.bits);
  check(options.scale == 0 || (options.scale >= std::numeric_limits<float>::min() &&
                               options.scale <= std::numeric_limits<float>::max()),
        "encode", "a positive scale in the normal range of float32, or 0", options.scale);
  check(kind == PayloadKind::kUniform || options.model == TableModel::kCounted, "encode",
        "model counted for all modes but uniform", table_model_name(options.model));
  check(kind != PayloadKind::kPruned || options.survivors != Survivors::kBFloat16 ||
            tensor.dtype == DType::kFloat32,
        "encode", "float32 values for bfloat16 survivors", dtype_name(tensor.dtype));
  check(options.coder != EntropyCoder::kNone || kind == PayloadKind::kUniform ||
            kind == PayloadKind::kFloat,
        "encode", "coder rans or huffman for all modes but uniform and float", "none");
  check(options.coder != EntropyCoder::kNone || options.model == TableModel::kCounted, "encode",
        "coder rans or huffman for a fitted model", "none");
  check_rate(options);
  check(options.replaced.empty() ||
            (options.replaced.data() == tensor.data && options.replaced.size() == num_bytes),
        "encode", "replaced to be the memory of the tensor", "other memory");
  check(options.block_log2 >= kMinBlockLog2 && options.block_log2 <= kMaxBlockLog2, "encode",
        "block_log2 from 12 to 20", options.block_log2);
}

float scale_of(const EncodeOptions& options, const MagnitudeRange& range, double largest_code) {
  return options.scale > 0 ? static_cast<float>(options.scale)
                           : kernels::scale_of_maximum(range.largest, largest_code);
}

std::span<const float> as_floats(std::span<const float> values) { return values; }

template <typename T>
std::vector<float> as_floats(std::span<const T> values) {
  std::vector<float> floats(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) floats[i] = kernels::to_float(values[i]);
  return floats;
}

// Every stride-th value. The stride is odd, so that it meets every channel of a tensor whose
// channels are a power of two.
template <typename T>
std::vector<T> spread_sample(std::span<const T> values, std::size_t size) {
  const std::size_t stride = (values.size() / size) | 1;
  std::vector<T> sample;
  for (std::size_t i = 0; i < values.size(); i += stride) sample.push_back(values[i]);
  return sample;
}

// The law's shape and scale in the form exp(-(|x| / scale)^shape). Nothing if there is nothing to
// fit, or no fit: all magnitudes equal.
struct Law {
  double shape, scale;
};
template <typename T>
std::optional<Law> fitted_law(std::span<const T> values, const PayloadInfo& info) {
  const auto floats = as_floats(values);
  double shape = 2, scale = 1;
  try {
    if (info.model == TableModel::kNormal) {
      scale = std::numbers::sqrt2 * fit(floats, Family::kNormal).params()[0];
    } else if (info.model == TableModel::kLaplace) {
      shape = 1;
      scale = fit(floats, Family::kLaplace).params()[0];
    } else {
      const Distribution law = fit(floats, Family::kGennorm);
      shape = std::clamp(law.params()[0], kSmallestModelShape, kLargestModelShape);
      scale = law.params()[1];
    }
  } catch (const InvalidArgument&) {
    return std::nullopt;
  }
  return Law{round_parameter(shape), scale};
}

template <typename T>
std::optional<Law> fit_model(std::span<const T> values, const EncodeOptions& options,
                             const PayloadInfo& info) {
  const bool sampled = options.fit_sample > 0 && values.size() >= 2 * options.fit_sample;
  return sampled ? fitted_law<T>(spread_sample(values, options.fit_sample), info)
                 : fitted_law(values, info);
}

// The parameters of the model at the step of `info`; false if there is no table for them.
bool set_law(const Law& law, PayloadInfo& info) {
  info.model_shape = law.shape;
  info.model_scale = round_parameter(law.scale / info.scale);
  return is_valid(model_parameters(info));
}

template <typename T>
void plan_uniform(std::span<const T> values, const EncodeOptions& options,
                  const MagnitudeRange& range, PayloadInfo& info) {
  info.bits = options.bits;
  info.scale = scale_of(options, range, kernels::uniform_half(options.bits));
  info.model = options.model;
  if (info.model == TableModel::kCounted) return;
  const std::optional<Law> law = fit_model(values, options, info);
  if (!law || !set_law(*law, info)) info.model = TableModel::kCounted;
}

// The scale of the law in steps is a number that the header has.
bool is_representable(const Law& law, float step) {
  const double ratio = law.scale / step;
  return ratio >= 0x1p-16 && ratio < 0x1p16;
}

// Levels without an upper end, at the step of a rate or of the largest error.
template <typename T>
void plan_open_levels(const TensorView& tensor, std::span<const T> values,
                      const EncodeOptions& options, const MagnitudeRange& range, PayloadInfo& info,
                      std::optional<RateChoice>& rate) {
  const double largest = kernels::magnitude_value(range.largest);
  info.bits = kOpenBits;
  info.rate = static_cast<float>(options.rate);
  info.scale = 1;
  if (largest == 0) return;
  if (options.max_error > 0) {
    const double step = options.max_error * (options.rounding == Rounding::kNearest ? 2 : 1);
    if (step < std::numeric_limits<float>::min() || step * kLargestLevel < largest) {
      info.kind = PayloadKind::kLossless;
      return;
    }
    info.scale = static_cast<float>(std::min<double>(step, std::numeric_limits<float>::max()));
    if (info.scale > step) info.scale = std::nextafter(info.scale, 0.0f);
  }
  const auto choose_step = [&](double law_scale) {
    if (options.rate == 0) return;
    info.block_bytes.assign(info.num_blocks(), 0);
    const std::size_t fixed = write_payload_header(info).size() + kChecksumBytes;
    rate.emplace(tensor, info, options.rounding, largest, static_cast<double>(fixed), law_scale);
    info.scale = rate->step();
  };
  info.model = options.model;
  if (info.model != TableModel::kCounted) {
    if (const std::optional<Law> law = fit_model(values, options, info)) {
      info.model_shape = law->shape;
      choose_step(law->scale);
      if (is_representable(*law, info.scale) && set_law(*law, info)) return;
    }
    info.model = TableModel::kCounted;
  }
  choose_step(0);
}

void plan_float(const EncodeOptions& options, const MagnitudeRange& range, PayloadInfo& info) {
  info.exponent_bits = options.format.exponent_bits();
  info.mantissa_bits = options.format.mantissa_bits();
  info.scale = scale_of(options, range, options.format.largest());
}

template <typename T>
void plan_values(const TensorView& tensor, const EncodeOptions& options, PayloadInfo& info,
                 std::optional<RateChoice>& rate) {
  const std::span<const T> values(static_cast<const T*>(tensor.data),
                                  static_cast<std::size_t>(info.num_values()));
  const MagnitudeRange range = kernels::magnitude_range(values);
  const bool pruned = info.kind == PayloadKind::kPruned;
  const bool has_codes = (pruned && options.survivors == Survivors::kExact) || range.nonfinite == 0;
  if (!has_codes && options.exact_if_nonfinite) {
    info.kind = PayloadKind::kLossless;
    return;
  }
  check(has_codes, "encode",
        "finite values, as only the mode lossless, and pruned with exact survivors, have codes for "
        "NaN and Inf",
        range.nonfinite, " that are not");
  if (has_open_levels(options)) return plan_open_levels(tensor, values, options, range, info, rate);
  if (info.kind == PayloadKind::kUniform) return plan_uniform(values, options, range, info);
  if (info.kind == PayloadKind::kFloat) return plan_float(options, range, info);
  if (info.kind == PayloadKind::kTopk) {
    info.k = options.k;
    info.of = options.of;
    info.bits = options.bits;
    return;
  }
  info.survivors = options.survivors;
  if (options.threshold != 0)
    info.threshold = make_threshold("encode", options.threshold, kDType<T>);
  else if (range.smallest < kernels::kInfinityBits)
    info.threshold = std::bit_cast<float>(range.smallest);
  if (options.survivors == Survivors::kFloat) plan_float(options, range, info);
}

// Whether a tensor of float32 has more than a few +0 in a sample. Then every plane of bytes would
// have to be coded to get rid of them; as classes, with a threshold of 0, they are coded once, and
// mantissas stay incompressible and are stored. The 16-bit types have only one plane of mantissas,
// and coding it is faster than taking the classes apart.
bool better_as_classes(const TensorView& tensor, std::uint64_t num_values) {
  constexpr std::uint64_t kSample = 4096, kMany = kSample / 50;
  if (tensor.dtype != DType::kFloat32 || num_values < 2 * kSample) return false;
  const float* const values = static_cast<const float*>(tensor.data);
  const std::uint64_t stride = (num_values / kSample - 1) | 1;
  std::uint64_t zeros = 0;
  for (std::uint64_t i = 0; i < kSample; ++i)
    zeros += std::bit_cast<std::uint32_t>(values[i * stride]) == 0 ? 1 : 0;
  return zeros > kMany;
}

}  // namespace

PayloadInfo choose_payload(const TensorView& tensor, const EncodeOptions& options,
                           std::optional<RateChoice>& rate) {
  check_options(tensor, check_tensor(tensor), options);
  PayloadInfo info;
  info.dtype = tensor.dtype;
  info.shape = tensor.shape;
  info.fortran_order = tensor.fortran_order && tensor.shape.size() > 1;
  info.kind = options.kind;
  info.block_log2 = options.block_log2;
  if (info.kind == PayloadKind::kLossless && better_as_classes(tensor, info.num_values()))
    info.kind = PayloadKind::kPruned;
  else if (info.kind != PayloadKind::kLossless)
    with_value_type(info.dtype, [&]<typename T>() { plan_values<T>(tensor, options, info, rate); });
  return info;
}

void set_step(float step, PayloadInfo& info) {
  if (info.model != TableModel::kCounted)
    info.model_scale = round_parameter(info.model_scale * info.scale / step);
  info.scale = step;
}

}  // namespace slimgrad
