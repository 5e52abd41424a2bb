#include "trainer/comparison.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <torch/utils.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <utility>

#include <slimgrad/error.h>

#include "trainer/checkpoint.h"
#include "trainer/interruption.h"
#include "trainer/lines.h"
#include "trainer/machine.h"
#include "trainer/progress_line.h"
#include "trainer/run_file.h"
#include "trainer/training.h"

namespace slimgrad::trainer {
namespace {

namespace fs = std::filesystem;

fs::path checkpoint_of(const Arguments& arguments, const Run& run) {
  return fs::path(arguments.checkpoint) / ("run" + std::to_string(run.number) + ".checkpoint");
}

Batches open_batches(Arguments& arguments) {
  const std::uint64_t seed = arguments.training.seed;
  DataSet data = open_data(arguments.data, arguments.limits, seed, arguments.threads);
  arguments.training.augment =
      arguments.augment.empty() ? data.augmented : arguments.augment == "yes";
  if (arguments.training.augment && data.shape.is_text)
    throw InvalidArgument("--augment: expected --data with images, got text");
  if (data.training.count < arguments.training.batch_size)
    throw InvalidArgument("--train-size: expected at least one batch, got " +
                          std::to_string(data.training.count) + " samples and batches of " +
                          std::to_string(arguments.training.batch_size));
  return Batches(std::move(data), arguments.training.augment, seed);
}

// All of a command that is the same for its runs, and what each of them does.
class Comparison {
 public:
  Comparison(Arguments& arguments, std::vector<Run>& runs)
      : arguments_(arguments),
        runs_(runs),
        batches_(open_batches(arguments)),
        facts_(facts()),
        kept_(find_checkpoints()),
        file_(arguments.out, kept_),
        line_(static_cast<int>(runs.size()), facts_.is_text ? "windows" : "images") {}

  bool train() {
    std::printf("%s %lld training and %lld test %s\n", facts_.data.c_str(),
                static_cast<long long>(facts_.training_samples),
                static_cast<long long>(facts_.test_samples), facts_.is_text ? "windows" : "images");
    std::fflush(stdout);
    for (Run& run : runs_) {
      line_.begin_run(run.gradients);
      if (!run.result().finished && !train(run)) return false;
    }
    return true;
  }

 private:
  PartPtr make(const Run& run) const {
    const std::uint64_t seed = arguments_.training.seed;
    torch::manual_seed(seed);  // the same weights for every run
    return make_network(arguments_.model, batches_.data().shape,
                        {.gradients = run.choice,
                         .activations = arguments_.activation_choice,
                         .batch_norm = arguments_.batch_norm,
                         .fake_int4 = arguments_.fake_int4,
                         .seed = seed});
  }

  // Makes a network for each run: what is wrong with one must be found before the training.
  RunFacts facts() const {
    const DataSet& data = batches_.data();
    RunFacts facts{.data = data.name,
                   .data_hash = hash_of(data.training),
                   .is_text = data.shape.is_text,
                   .training_samples = data.training.count,
                   .test_samples = data.test.count};
    for (const Run& run : runs_) {
      const PartPtr network = make(run);
      NetworkGates(*network, run.choice);
      facts.parameters = 0;
      for (const torch::Tensor& parameter : network->parameters())
        facts.parameters += parameter.numel();
    }
    return facts;
  }

  // Takes up the runs' states, and returns how much of --out belongs to them.
  std::uint64_t find_checkpoints() {
    if (arguments_.checkpoint.empty()) return 0;
    std::error_code error;
    fs::create_directories(arguments_.checkpoint, error);
    if (error)
      throw InvalidArgument("--checkpoint: cannot create the folder " + arguments_.checkpoint);
    std::uint64_t kept = 0;
    bool found = false;
    for (Run& run : runs_) {
      const fs::path path = checkpoint_of(arguments_, run);
      if (!fs::exists(path)) continue;
      if (!arguments_.resume)
        throw InvalidArgument("--checkpoint: " + path.string() +
                              " already exists: continue it with --resume, or remove it");
      take_up(run, path);
      kept = run.state.out_bytes;
      found = true;
    }
    if (arguments_.resume && !found)
      throw InvalidArgument("--resume: no checkpoint in " + arguments_.checkpoint);
    return kept;
  }

  void take_up(Run& run, const fs::path& path) const {
    CheckpointHead head = read_checkpoint_head(path);
    const std::string differs =
        difference(head.configuration, config_line(arguments_, run, facts_));
    if (!differs.empty())
      throw InvalidArgument("--resume: expected what " + path.string() + " was trained with, " +
                            differs);
    run.state = std::move(head.state);
    if (!run.result().finished) ++run.state.result.resumed;
  }

  void save(Run& run, Training& training, const std::string& configuration) {
    run.state.out_bytes = file_.bytes();
    if (!arguments_.checkpoint.empty())
      write_checkpoint(checkpoint_of(arguments_, run), configuration, run.state, training);
  }

  bool train(Run& run) {
    const std::string configuration = config_line(arguments_, run, facts_);
    const bool begins = run.state.step == 0;
    if (begins || file_.bytes() == 0) file_.write(configuration);
    std::unique_ptr<Training> training;
    training = std::make_unique<Training>(
        make(run), run.choice, batches_, arguments_.training, run.state,
        TrainingHooks{.progress = [&](const Progress& progress) { line_.show(progress); },
                      .looked =
                          [&](const std::vector<GradientLook>& looks) {
                            for (const GradientLook& look : looks)
                              for (const std::string& line : look_lines(run, arguments_, look))
                                file_.write(line);
                          },
                      .epoch_done =
                          [&](const EpochResult& epoch) {
                            file_.write(epoch_line(run, arguments_, epoch));
                            for (const std::string& line : layer_lines(run, epoch))
                              file_.write(line);
                          },
                      .save =
                          [&] {
                            if (run.result().finished) file_.write(end_line(run, peak_memory()));
                            save(run, *training, configuration);
                          },
                      .interrupted = interrupted});
    if (!begins) read_checkpoint(checkpoint_of(arguments_, run), *training);
    return training->run();
  }

  Arguments& arguments_;
  std::vector<Run>& runs_;
  Batches batches_;
  RunFacts facts_;
  std::uint64_t kept_;  // bytes of --out
  RunFile file_;
  ProgressLine line_;
};

}  // namespace

bool train_all(Arguments& arguments, std::vector<Run>& runs) {
  at::set_num_threads(arguments.threads);
  return Comparison(arguments, runs).train();
}

}  // namespace slimgrad::trainer
