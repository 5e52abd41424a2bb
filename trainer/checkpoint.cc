#include "trainer/checkpoint.h"

#include <fcntl.h>
#include <torch/serialize/archive.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>

#include <slimgrad/error.h>

#include "trainer/training.h"

namespace slimgrad::trainer {
namespace {

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
void flush_to_disk(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY);
  const bool done = file >= 0 && ::fsync(file) == 0;
  if (file >= 0) ::close(file);
  if (!done) throw std::runtime_error("cannot write " + path.string());
}

torch::serialize::InputArchive open(const std::filesystem::path& path) {
  torch::serialize::InputArchive archive;
  archive.load_from(path.string());
  return archive;
}

Tensors tensors_in(torch::serialize::InputArchive& archive) {
  c10::IValue value;
  archive.read("tensors", value);
  return c10::impl::toTypedDict<std::string, torch::Tensor>(value.toGenericDict());
}

[[noreturn]] void refuse(const std::filesystem::path& path) {
  throw InvalidArgument("--resume: " + path.string() +
                        ": expected a checkpoint, got something else or a damaged file");
}

}  // namespace

void write_checkpoint(const std::filesystem::path& path, const std::string& configuration,
                      const RunState& state, Training& training) {
  const std::filesystem::path fresh = path.string() + ".new";
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
    std::filesystem::rename(fresh, path);
  } catch (const std::exception&) {
    throw std::runtime_error("cannot write " + path.string());
  }
}

CheckpointHead read_checkpoint_head(const std::filesystem::path& path) try {
  torch::serialize::InputArchive archive = open(path);
  const Tensors tensors = tensors_in(archive);
  return {bytes_of(tensors.at("configuration")), from_bytes(bytes_of(tensors.at("state")))};
} catch (const std::exception&) {
  refuse(path);
}

void read_checkpoint(const std::filesystem::path& path, Training& training) try {
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

}  // namespace slimgrad::trainer
