#include "trainer/comparison.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fcntl.h>
#include <torch/serialize/archive.h>
#include <torch/utils.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <utility>

#include <slimgrad/error.h>

#include "trainer/process.h"
#include "trainer/records.h"
#include "trainer/training.h"

namespace slimgrad::trainer {
namespace {

namespace fs = std::filesystem;

// ---- checkpoints --------------------------------------------------------------------------------
//
// A run on disk, to go on from to the bit: the configuration, where the run stands, what the
// network, its gates and the optimizer hold, and the order of the samples.

using Tensors = c10::Dict<std::string, torch::Tensor>;

torch::Tensor tensor_of(const std::string& bytes) {
  torch::Tensor tensor = torch::empty({static_cast<std::int64_t>(bytes.size())}, torch::kUInt8);
  std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

std::string bytes_of(const torch::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

// Renamed before it is on the disk, an empty file could be left after a power cut.
void flush_to_disk(const fs::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY);
  const bool done = file >= 0 && ::fsync(file) == 0;
  if (file >= 0) ::close(file);
  if (!done) throw std::runtime_error("cannot write " + path.string());
}

torch::serialize::InputArchive open(const fs::path& path) {
  torch::serialize::InputArchive archive;
  archive.load_from(path.string());
  return archive;
}

Tensors tensors_in(torch::serialize::InputArchive& archive) {
  c10::IValue value;
  archive.read("tensors", value);
  return c10::impl::toTypedDict<std::string, torch::Tensor>(value.toGenericDict());
}

[[noreturn]] void refuse(const fs::path& path) {
  throw InvalidArgument("--resume: " + path.string() +
                        ": expected a checkpoint, got something else or a damaged file");
}

// Written beside the file and renamed, so that there is always a whole one. Throws
// std::runtime_error.
void write_checkpoint(const fs::path& path, const std::string& configuration, const RunState& state,
                      Training& training) {
  const fs::path fresh = path.string() + ".new";
  Tensors tensors;
  for (const auto& [name, tensor] : training.tensors()) tensors.insert(name, tensor.detach());
  tensors.insert("configuration", tensor_of(configuration));
  tensors.insert("state", tensor_of(to_bytes(state)));
  torch::serialize::OutputArchive archive, optimizer;
  training.optimizer().save(optimizer);
  archive.write("tensors", c10::IValue(tensors));
  archive.write("optimizer", optimizer);
  try {
    archive.save_to(fresh.string());
    flush_to_disk(fresh);
    fs::rename(fresh, path);
  } catch (const std::exception&) {
    throw std::runtime_error("cannot write " + path.string());
  }
}

// The two halves of reading: what is needed before there is a network, and the rest. Both throw
// InvalidArgument, in one line, for a file that is damaged or of another program.
struct CheckpointHead {
  std::string configuration;
  RunState state;
};
CheckpointHead read_checkpoint_head(const fs::path& path) try {
  torch::serialize::InputArchive archive = open(path);
  const Tensors tensors = tensors_in(archive);
  return {bytes_of(tensors.at("configuration")), from_bytes(bytes_of(tensors.at("state")))};
} catch (const std::exception&) {
  refuse(path);
}

void read_checkpoint(const fs::path& path, Training& training) try {
  torch::NoGradGuard no_grad;
  torch::serialize::InputArchive archive = open(path), optimizer;
  const Tensors tensors = tensors_in(archive);
  for (const auto& [name, tensor] : training.tensors()) {
    const torch::Tensor saved = tensors.at(name);
    if (saved.sizes() != tensor.sizes()) refuse(path);
    torch::Tensor(tensor).copy_(saved);
  }
  archive.read("optimizer", optimizer);
  training.optimizer().load(optimizer);
} catch (const std::exception&) {
  refuse(path);
}

// ---- runs ---------------------------------------------------------------------------------------

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
    RunFacts facts{.machine = machine(),
                   .commit = build_commit(),
                   .data = data.name,
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
