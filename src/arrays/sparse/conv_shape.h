// The shape of a two-dimensional convolution. A linear layer is the convolution of images of one
// pixel.
#ifndef SLIMGRAD_ARRAYS_SPARSE_CONV_SHAPE_H_
#define SLIMGRAD_ARRAYS_SPARSE_CONV_SHAPE_H_

#include <cstdint>

namespace slimgrad {

// One direction, vertical or horizontal.
struct ConvAxis {
  std::int64_t in = 1, out = 1;  // pixels
  std::int64_t taps = 1, stride = 1, padding = 0, dilation = 1;

  // out, as the others give it.
  std::int64_t expected_out() const {
    const std::int64_t reach = in + 2 * padding - dilation * (taps - 1) - 1;
    return reach < 0 ? 0 : reach / stride + 1;
  }
  bool is_trivial() const { return taps == 1 && stride == 1 && padding == 0; }
};

struct ConvShape {
  std::int64_t images = 1;
  ConvAxis y, x;
  std::int64_t groups = 1;
  std::int64_t in_channels = 1, out_channels = 1;  // of all groups

  std::int64_t group_in() const { return in_channels / groups; }
  std::int64_t group_out() const { return out_channels / groups; }
  std::int64_t taps() const { return y.taps * x.taps; }
  std::int64_t in_pixels() const { return images * y.in * x.in; }
  std::int64_t out_pixels() const { return images * y.out * x.out; }

  // Looks at one pixel at a time.
  bool is_linear() const { return y.is_trivial() && x.is_trivial(); }
  // Then it does not care which image a pixel belongs to, where pixels lie one behind the other:
  // with the channels last.
  ConvShape simplified() const {
    ConvShape shape = *this;
    if (is_linear()) {
      shape.images = in_pixels();
      shape.y = shape.x = ConvAxis{};
    }
    return shape;
  }
};

inline ConvShape linear_shape(std::int64_t rows, std::int64_t in_features,
                              std::int64_t out_features) {
  ConvShape shape;
  shape.images = rows;
  shape.in_channels = in_features;
  shape.out_channels = out_features;
  return shape;
}

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_SPARSE_CONV_SHAPE_H_
