// The same network with the same seed has the same gradients in C++ and in Python, to the bit:
// tests/python/saved/test_saved_golden.py reads the same file. Every operation is one of IEEE 754's
// on each element, so that no machine has others.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <slimgrad/saved_tensors.h>
#include <torch/autograd.h>

#include <fstream>
#include <sstream>

namespace slimgrad {
namespace {

// Numbers from -1.2 to 1.24 in an order that looks random.
at::Tensor numbers(std::int64_t first, at::IntArrayRef sizes) {
  const std::int64_t size = c10::multiply_integers(sizes);
  const at::Tensor index = at::arange(first, first + size, at::kLong);
  return ((index * 7919).remainder(10007).to(at::kFloat) / 4096 - 1.2).view(sizes);
}

// FNV-1a, byte by byte.
std::uint64_t checksum(const std::vector<at::Tensor>& tensors) {
  std::uint64_t sum = 0xcbf29ce484222325u;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor dense = tensor.contiguous();
    const auto* bytes = static_cast<const unsigned char*>(dense.const_data_ptr());
    for (std::size_t i = 0; i < dense.nbytes(); ++i)
      sum = (sum ^ bytes[i]) * std::uint64_t{0x100000001b3};
  }
  return sum;
}

std::string line_of(int bits, bool is_stochastic) {
  const at::Tensor x = numbers(0, {8, 32, 32}).requires_grad_();
  const at::Tensor w = numbers(8192, {8, 32, 32}).requires_grad_();
  const at::Tensor mask = (numbers(16384, {8, 32, 32}) > 0).to(at::kFloat);
  SavedTensors saved_tensors({.bits = bits, .is_stochastic = is_stochastic}, 7, 4096, 3);
  std::vector<at::Tensor> gradients;
  for (int step = 0; step < 2; ++step) {
    at::Tensor y;
    {
      const SavedTensorsGuard guard(saved_tensors);
      const at::Tensor a = x * 1.5;
      const at::Tensor b = (a * w).relu() * mask;
      const at::Tensor c = b.transpose(1, 2) * a;
      const at::Tensor d = (c.to(at::kBFloat16) * w.to(at::kBFloat16)).to(at::kFloat);
      const at::Tensor e = at::max_pool2d(c, {2, 2});  // before d * d: draws are numbered
      y = e + (d * d).narrow(1, 0, 16).narrow(2, 0, 16);
    }
    for (const at::Tensor& gradient :
         torch::autograd::grad({y}, {x, w}, {numbers(step, {8, 16, 16})}))
      gradients.push_back(gradient);
  }
  const SavedTally tally = saved_tensors.tally();
  std::ostringstream line;
  line << bits << (is_stochastic ? " stochastic " : " nearest ") << std::hex << checksum(gradients)
       << std::dec;
  for (const auto& count : {SavedTally::sum(tally.packed), SavedTally::sum(tally.left)})
    line << ' ' << count.tensors << ' ' << count.plain_bytes << ' ' << count.bytes;
  line << ' ' << saved_tensors.state()[1].item<std::int64_t>();
  return line.str();
}

TEST(SavedTensors, GradientsAreThoseOfPythonToTheBit) {
  std::ifstream file(SLIMGRAD_GOLDEN_DIR "/saved_gradients.txt");
  ASSERT_TRUE(file);
  std::string line;
  int num_lines = 0;
  while (std::getline(file, line)) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    int bits;
    std::string rounding;
    words >> bits >> rounding;
    EXPECT_EQ(line_of(bits, rounding == "stochastic"), line);
    ++num_lines;
  }
  EXPECT_EQ(num_lines, 7);
}

}  // namespace
}  // namespace slimgrad
