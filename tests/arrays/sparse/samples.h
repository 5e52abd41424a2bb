// Shapes that convolutions come in, tensors for them, and both products by plain loops in double
// precision.
#ifndef SLIMGRAD_TESTS_ARRAYS_SPARSE_SAMPLES_H_
#define SLIMGRAD_TESTS_ARRAYS_SPARSE_SAMPLES_H_

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <slimgrad/apply.h>

#include "arrays/sparse/backward.h"

namespace slimgrad {

inline void in_order(std::int64_t count, const std::function<void(std::int64_t)>& task) {
  for (std::int64_t i = 0; i < count; ++i) task(i);
}
inline void backwards(std::int64_t count, const std::function<void(std::int64_t)>& task) {
  for (std::int64_t i = count; i-- > 0;) task(i);
}

struct Case {
  std::string name;
  ConvShape shape;
};

inline ConvShape conv(std::int64_t images, std::int64_t in, std::int64_t out, std::int64_t height,
                      std::int64_t width, std::int64_t taps, std::int64_t stride,
                      std::int64_t padding, std::int64_t dilation = 1, std::int64_t groups = 1) {
  ConvShape shape;
  shape.images = images;
  shape.in_channels = in;
  shape.out_channels = out;
  shape.groups = groups;
  shape.y = {height, 1, taps, stride, padding, dilation};
  shape.x = {width, 1, taps, stride, padding, dilation};
  shape.y.out = shape.y.expected_out();
  shape.x.out = shape.x.expected_out();
  return shape;
}

inline ConvShape oblong() {
  ConvShape shape = conv(2, 5, 7, 9, 6, 1, 1, 0);
  shape.y = {9, 1, 3, 2, 1, 2};
  shape.x = {6, 1, 5, 1, 2, 1};
  shape.y.out = shape.y.expected_out();
  shape.x.out = shape.x.expected_out();
  return shape;
}

inline ConvShape rows_dilated() {
  ConvShape shape = conv(2, 48, 24, 11, 9, 3, 1, 1);
  shape.y.dilation = 3;
  shape.y.padding = 2;
  shape.y.out = shape.y.expected_out();
  return shape;
}

// One tap every second row, three of a row.
inline ConvShape strides_over_rows() {
  ConvShape shape = conv(2, 8, 6, 9, 8, 3, 1, 1);
  shape.y = {9, 1, 1, 2, 1, 1};
  shape.y.out = shape.y.expected_out();
  return shape;
}

inline std::vector<Case> cases() {
  return {
      {"one_value", linear_shape(1, 1, 1)},
      {"linear_small", linear_shape(5, 3, 9)},
      {"linear", linear_shape(130, 72, 40)},
      {"linear_odd", linear_shape(33, 101, 67)},
      {"linear_wide", linear_shape(40, 72, 1700)},  // several blocks of channels
      {"conv3x3", conv(3, 64, 32, 8, 8, 3, 1, 1)},
      {"conv3x3_few_channels", conv(2, 3, 16, 12, 10, 3, 1, 1)},
      {"conv3x3_no_padding", conv(2, 8, 8, 6, 5, 3, 1, 0)},
      {"conv3x3_much_padding", conv(2, 8, 8, 4, 4, 3, 1, 3)},
      {"conv3x3_stride2", conv(2, 16, 24, 9, 8, 3, 2, 1)},
      {"conv3x3_stride3", conv(2, 16, 24, 9, 8, 3, 3, 0)},
      {"conv3x3_dilated", conv(2, 16, 8, 11, 10, 3, 1, 2, 2)},
      {"conv3x3_dilated_stride2", conv(2, 16, 8, 11, 10, 3, 2, 2, 2)},
      {"conv3x3_groups", conv(2, 24, 40, 7, 7, 3, 1, 1, 1, 4)},
      {"depthwise", conv(2, 12, 12, 7, 7, 3, 1, 1, 1, 12)},
      {"conv1x1", conv(3, 40, 24, 6, 7, 1, 1, 0)},
      {"conv1x1_stride2", conv(3, 40, 24, 7, 6, 1, 2, 0)},
      {"conv1x1_padded", conv(2, 8, 8, 3, 3, 1, 1, 1)},
      {"conv7x7_stride2", conv(2, 3, 16, 15, 15, 7, 2, 3)},
      {"conv5x5", conv(1, 32, 8, 9, 9, 5, 1, 2)},
      {"several_bands_an_image", conv(2, 32, 4, 60, 50, 3, 1, 1)},
      {"several_stretches_an_image", conv(1, 8, 3, 90, 91, 3, 1, 1)},
      {"several_stretches_stride2", conv(1, 8, 3, 180, 75, 3, 2, 1)},
      {"several_stretches_dilated", conv(1, 8, 3, 90, 91, 3, 1, 2, 2)},
      {"several_blocks", conv(1, 64, 400, 4, 4, 3, 1, 1)},
      {"several_blocks_of_few_channels", conv(1, 16, 400, 4, 4, 3, 1, 1)},
      {"wide_stride2", conv(2, 40, 24, 9, 8, 3, 2, 1)},
      {"wide_stride3", conv(2, 40, 24, 9, 8, 3, 3, 0)},
      {"wide_much_padding", conv(2, 40, 8, 4, 4, 3, 1, 3)},
      {"rows_dilated", rows_dilated()},
      {"wide_groups", conv(2, 80, 24, 7, 7, 3, 1, 1, 1, 2)},
      {"wide_groups_1x1_stride2", conv(2, 48, 24, 5, 5, 1, 2, 0, 1, 2)},
      {"linear_groups", conv(2, 48, 24, 5, 5, 1, 1, 0, 1, 2)},
      {"groups_of_12_inputs", conv(2, 24, 20, 7, 7, 3, 1, 1, 1, 2)},
      {"strides_over_rows", strides_over_rows()},
      {"far_dilated", conv(1, 40, 8, 33, 34, 3, 1, 12, 12)},
      {"wide_image", conv(1, 4, 2, 9, 1500, 3, 1, 1)},
      {"many_bands", conv(24, 8, 4, 32, 32, 3, 1, 1)},
      {"wide_dilated", conv(2, 72, 8, 11, 10, 3, 2, 2, 2)},
      {"oblong", oblong()},
  };
}

struct Tensors {
  std::vector<float> gradient, x, weight;

  Tensors(const ConvShape& shape, double zeros) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    std::bernoulli_distribution is_zero(zeros);
    gradient.resize(static_cast<std::size_t>(shape.out_pixels() * shape.out_channels));
    x.resize(static_cast<std::size_t>(shape.in_pixels() * shape.in_channels));
    weight.resize(static_cast<std::size_t>(shape.out_channels * shape.group_in() * shape.taps()));
    for (float& v : gradient) v = is_zero(random) ? 0.0f : std::exp(2 * normal(random)) - 1;
    for (float& v : x) v = normal(random);
    for (float& v : weight) v = normal(random);
  }
};

// Channels-last: o, ty, tx, c.
inline WeightStrides channels_last(const ConvShape& shape) {
  const std::int64_t in = shape.group_in();
  return {in * shape.taps(), 1, in * shape.x.taps, in};
}
// o, c, ty, tx.
inline WeightStrides contiguous(const ConvShape& shape) {
  return {shape.group_in() * shape.taps(), shape.taps(), shape.x.taps, 1};
}

struct Products {
  std::vector<double> dx, dw, bias;
  std::vector<double> dx_size, dw_size;  // sums of magnitudes: what rounding is relative to
};

inline Products plain_products(const ConvShape& shape, const std::vector<float>& gradient,
                               const std::vector<float>& x, const std::vector<float>& weight,
                               const WeightStrides& strides) {
  Products result;
  result.dx.resize(x.size());
  result.dx_size.resize(x.size());
  result.dw.resize(weight.size());
  result.dw_size.resize(weight.size());
  result.bias.resize(static_cast<std::size_t>(shape.out_channels));
  std::size_t g_index = 0;
  for (std::int64_t n = 0; n < shape.images; ++n)
    for (std::int64_t oy = 0; oy < shape.y.out; ++oy)
      for (std::int64_t ox = 0; ox < shape.x.out; ++ox)
        for (std::int64_t o = 0; o < shape.out_channels; ++o) {
          const double g = static_cast<double>(gradient[g_index++]);
          if (g == 0) continue;
          result.bias[static_cast<std::size_t>(o)] += g;
          for (std::int64_t ty = 0; ty < shape.y.taps; ++ty)
            for (std::int64_t tx = 0; tx < shape.x.taps; ++tx) {
              const std::int64_t y = oy * shape.y.stride - shape.y.padding + ty * shape.y.dilation;
              const std::int64_t xx = ox * shape.x.stride - shape.x.padding + tx * shape.x.dilation;
              if (y < 0 || y >= shape.y.in || xx < 0 || xx >= shape.x.in) continue;
              for (std::int64_t c = 0; c < shape.group_in(); ++c) {
                const auto in = static_cast<std::size_t>(
                    ((n * shape.y.in + y) * shape.x.in + xx) * shape.in_channels +
                    o / shape.group_out() * shape.group_in() + c);
                const auto w = static_cast<std::size_t>(o * strides.out + c * strides.in +
                                                        ty * strides.y + tx * strides.x);
                result.dx[in] += g * static_cast<double>(weight[w]);
                result.dx_size[in] += std::abs(g * static_cast<double>(weight[w]));
                result.dw[w] += g * static_cast<double>(x[in]);
                result.dw_size[w] += std::abs(g * static_cast<double>(x[in]));
              }
            }
        }
  return result;
}

// Channels-last images with the channels first, and back.
template <typename T>
std::vector<T> channels_first(const std::vector<T>& images, std::int64_t channels,
                              std::int64_t pixels, bool back = false) {
  std::vector<T> result(images.size());
  const auto image = static_cast<std::size_t>(channels * pixels);
  for (std::size_t i = 0; i < images.size(); ++i) {
    const std::size_t pixel = i % image / static_cast<std::size_t>(channels);
    const std::size_t channel = i % static_cast<std::size_t>(channels);
    const std::size_t first =
        i / image * image + channel * static_cast<std::size_t>(pixels) + pixel;
    if (back)
      result[i] = images[first];
    else
      result[first] = images[i];
  }
  return result;
}

inline std::vector<float> pruned(const std::vector<float>& gradient, const PruneDraw& draw) {
  std::vector<float> result(gradient.size());
  apply(draw.treatment, gradient, result);
  return result;
}

inline void expect_near(const std::vector<float>& ours, const std::vector<double>& expected,
                        const std::vector<double>& size) {
  for (std::size_t i = 0; i < ours.size(); ++i)
    ASSERT_NEAR(static_cast<double>(ours[i]), expected[i], 2e-5 * size[i]) << "at " << i;
}

}  // namespace slimgrad

#endif  // SLIMGRAD_TESTS_ARRAYS_SPARSE_SAMPLES_H_
