#include "trainer/comparison.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <torch/utils.h>

#include <cstdint>
#include <cstdio>

#include "trainer/model.h"
#include "trainer/progress_line.h"
#include "trainer/training.h"

namespace slimgrad::trainer {

void train_all(const Arguments& arguments, std::vector<Run>& runs) {
  at::set_num_threads(arguments.threads);
  const std::uint64_t seed = arguments.training.seed;
  const auto draw = [&](Split split, std::int64_t count) {
    return to_samples(draw_glyphs(seed, split, count, arguments.threads));
  };
  std::printf("Drawing %lld training and %lld test images of %d classes\n",
              static_cast<long long>(arguments.num_images),
              static_cast<long long>(arguments.num_test_images), kNumClasses);
  std::fflush(stdout);
  const Samples training = draw(Split::kTraining, arguments.num_images);
  const Samples test = draw(Split::kTest, arguments.num_test_images);
  const Architecture architecture =
      arguments.model == "linear" ? Architecture::kLinear : Architecture::kConvolutional;
  ProgressLine line(static_cast<int>(runs.size()));
  for (Run& run : runs) {
    torch::manual_seed(seed);  // the same weights for every run
    torch::nn::Sequential network = make_network(architecture, run.choice, seed);
    line.begin_run(run.gradients);
    run.result = train(network, training, test, arguments.training,
                       [&](const Progress& progress) { line.show(progress); });
  }
}

}  // namespace slimgrad::trainer
