#include "arrays/coding/payload_parts.h"

#include "kernels/coding/value_symbols.h"

namespace slimgrad {
namespace {

// Whether coding a plane is likely to save more than about 2 %; if not, its bytes are stored. That
// is the case of mantissas: their low bits are coin tosses, and their high bits nearly so. The
// entropy of a sample of m bytes comes out 255 / (2 m ln 2) bits too small on average, here 0.045.
bool worth_coding(std::span<const std::uint8_t> plane) {
  constexpr std::size_t kSample = 4096;
  constexpr double kMostBits = 7.8;
  if (plane.size() < 2 * kSample) return true;
  std::array<std::uint8_t, kSample> sample;
  const std::size_t stride = (plane.size() / kSample - 1) | 1;
  for (std::size_t i = 0; i < kSample; ++i) sample[i] = plane[i * stride];
  return entropy_bits(to_weights(kernels::count_bytes(sample))) < kMostBits * kSample;
}

Place place_of(std::size_t plane, std::size_t width) {
  return plane + 1 == width ? Place::kLast : Place::kInside;
}

}  // namespace

void PlaneEncoder::put(BlockEncoder& encoder, const void* values, std::size_t num_values,
                       std::size_t width, std::uint8_t*& next) {
  if (width == 1) {
    const std::span bytes(static_cast<const std::uint8_t*>(values), num_values);
    return put_part(encoder.encode(bytes), Place::kLast, next);
  }
  // Each plane has a byte in front, so that a stored one is a symbol block as it lies.
  const std::size_t stride = num_values + 1;
  std::uint8_t* const memory = planes_.reserve(stride * width);
  std::array<std::uint8_t*, kernels::kMaxPlanes> planes = {};
  for (std::size_t p = 0; p < width; ++p) planes[p] = memory + p * stride + 1;
  kernels::split_planes(values, num_values, width, planes);
  for (std::size_t p = 0; p < width; ++p) {
    const std::span<const std::uint8_t> plane(planes[p], num_values);
    if (worth_coding(plane)) {
      put_part(encoder.encode(plane, SampleSize::kLarge), place_of(p, width), next);
    } else {
      planes[p][-1] = static_cast<std::uint8_t>(BlockMethod::kRaw);
      put_part({planes[p] - 1, stride}, place_of(p, width), next);
    }
  }
}

DecodeStatus PlaneDecoder::decode(BlockDecoder& decoder, std::span<const std::uint8_t> block,
                                  std::size_t num_values, std::size_t width, void* values) {
  if (width == 1) return decoder.decode(block, {static_cast<std::uint8_t*>(values), num_values});
  std::uint8_t* const memory = planes_.reserve(num_values * width);
  std::array<const std::uint8_t*, kernels::kMaxPlanes> planes = {};
  for (std::size_t p = 0; p < width; ++p) {
    std::span<const std::uint8_t> part;
    if (!take_part(block, place_of(p, width), part)) return DecodeStatus::kTruncated;
    const bool stored =
        part.size() == num_values + 1 && part[0] == static_cast<std::uint8_t>(BlockMethod::kRaw);
    if (stored) {
      planes[p] = part.data() + 1;
      continue;
    }
    const std::span<std::uint8_t> plane(memory + p * num_values, num_values);
    const DecodeStatus status = decoder.decode(part, plane);
    if (status != DecodeStatus::kOk) return status;
    planes[p] = plane.data();
  }
  kernels::merge_planes(planes, num_values, width, values);
  return DecodeStatus::kOk;
}

}  // namespace slimgrad
