// slimgrad delta, patch and join: deltas of .safetensors files.
#include <slimgrad/delta.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "program/block_threads.h"
#include "program/byte_files.h"
#include "program/delta_files.h"
#include "program/output.h"
#include "program/payload_files.h"
#include "program/progress.h"
#include "program/subcommand.h"
#include "program/table.h"

namespace slimgrad::program {
namespace {

struct Options {
  std::string base, out;
  std::vector<std::string> inputs;  // the new file, or deltas
  int num_threads = default_num_threads();
  bool quiet = false;
};

void check_distinct_files(const Options& options) {
  check_distinct(options.base, options.out);
  for (const std::string& input : options.inputs) check_distinct(input, options.out);
}

// Payloads one after the other from the beginning of the file, which then make room for the header.
class DeltaWriter {
 public:
  DeltaWriter(NewFile& file, const WeightsFile& base, const Parallel& parallel)
      : file_(file), base_(base), parallel_(parallel) {}

  void add(const DeltaTensor& changed) {
    const std::vector<std::uint8_t> payload =
        delta_entry(base_.find(changed.name), changed, parallel_);
    std::ranges::copy(payload, file_.map(size_, payload.size()).begin());
    size_ += payload.size();
    set.index.entries.push_back({changed.name, changed.type, changed.shape, payload.size()});
    if (is_delta(payload)) ++num_deltas;
    values_bytes += changed.bytes.size();
    result_.push_back(
        {changed.name, changed.type, changed.shape,
         is_delta(payload) ? inspect_delta(payload).result : hash_of(changed, parallel_)});
  }
  Hash128 result() const { return hash_of(result_); }
  // Returns the size of the file.
  std::uint64_t commit() {
    const std::vector<std::uint8_t> header = delta_set_header(set);
    const std::span<std::uint8_t> bytes = file_.map(0, header.size() + size_);
    std::memmove(bytes.data() + header.size(), bytes.data(), size_);
    std::ranges::copy(header, bytes.begin());
    file_.commit(header.size() + size_);
    return header.size() + size_;
  }

  DeltaSet set;
  std::uint64_t values_bytes = 0, num_deltas = 0;

 private:
  NewFile& file_;
  const WeightsFile& base_;
  const Parallel& parallel_;
  std::uint64_t size_ = 0;
  std::vector<TensorHash> result_;
};

Report report_of(const Options& options, const DeltaWriter& writer, std::uint64_t size) {
  const std::size_t num_tensors = writer.set.index.entries.size();
  Report report;
  report.json = {{"base", options.base},
                 {"output", options.out},
                 {"tensors", num_tensors},
                 {"deltas", writer.num_deltas},
                 {"bytes", writer.values_bytes},
                 {"output_file_bytes", size},
                 {"base_hash", hash_text(writer.set.base)},
                 {"result_hash", hash_text(writer.set.result)}};
  report.text = printable(options.out) + ": " + std::to_string(size) + " bytes for " +
                std::to_string(writer.values_bytes) + ", " + std::to_string(num_tensors) +
                (num_tensors == 1 ? " tensor" : " tensors") + ", " +
                std::to_string(writer.num_deltas) + " as deltas\n";
  return report;
}

Hash128 hash_of_file(const WeightsFile& file, const Parallel& parallel) {
  std::vector<TensorHash> hashes;
  for (const DeltaTensor& tensor : file.tensors())
    hashes.push_back({tensor.name, tensor.type, tensor.shape, hash_of(tensor, parallel)});
  return hash_of(std::move(hashes));
}

Report run_delta(const Options& options) {
  check_distinct_files(options);
  const Parallel parallel = block_threads(options.num_threads);
  const WeightsFile base(options.base), changed(options.inputs[0]);
  NewFile file(options.out);
  Progress progress("comparing " + file_name(options.inputs[0]), changed.num_bytes(),
                    options.quiet);
  DeltaWriter writer(file, base, parallel);
  for (const DeltaTensor& tensor : changed.tensors()) {
    progress.part(tensor.name, tensor.bytes.size());
    writer.add(tensor);
    release(tensor.bytes);
  }
  progress.step("hashing the base");
  writer.set.base = hash_of_file(base, parallel);
  writer.set.result = writer.result();
  writer.set.index.metadata = changed.metadata();
  return report_of(options, writer, writer.commit());
}

Report run_join(const Options& options) {
  check_distinct_files(options);
  const Parallel parallel = block_threads(options.num_threads);
  const WeightsFile base(options.base);
  const DeltaChain chain(base, options.inputs, parallel);
  NewFile file(options.out);
  Progress progress("joining " + std::to_string(options.inputs.size()) + " deltas",
                    base.num_bytes(), options.quiet);
  DeltaWriter writer(file, base, parallel);
  for (const ContainerEntry& entry : chain.last().index.entries) {
    std::vector<std::uint8_t> values(chain.num_bytes(entry));
    progress.part(entry.name, values.size());
    chain.make(entry, values);
    writer.add({entry.name, entry.type, entry.shape, values});
  }
  writer.set.base = chain.first().base;
  writer.set.result = chain.last().result;
  if (writer.result() != chain.last().result)
    throw FileError(options.inputs.back() + ": a damaged delta: other tensors than were encoded");
  writer.set.index.metadata = chain.last().index.metadata;
  return report_of(options, writer, writer.commit());
}

// The values of one tensor in their place in the file. Those of payloads are aligned, which a file
// need not be.
void make_tensor(const DeltaChain& chain, const ContainerEntry& entry, NewFile& file,
                 std::uint64_t offset, std::uint64_t num_bytes) {
  const std::span<std::uint8_t> out = file.map(offset, num_bytes);
  if (chain.is_delta_entry(entry)) return chain.make(entry, out);
  std::vector<std::uint8_t> values(num_bytes);
  chain.make(entry, values);
  std::ranges::copy(values, out.begin());
}

Report run_patch(const Options& options) {
  check_distinct_files(options);
  const Parallel parallel = block_threads(options.num_threads);
  const WeightsFile base(options.base);
  const DeltaChain chain(base, options.inputs, parallel);
  const std::vector<ContainerEntry>& entries = chain.last().index.entries;
  std::vector<NamedTensor> tensors;
  std::vector<std::uint64_t> sizes;
  std::uint64_t sum = 0;
  for (const ContainerEntry& entry : entries) {
    tensors.push_back({entry.name, entry.type, entry.shape, {}, std::nullopt});
    sizes.push_back(chain.num_bytes(entry));
    sum += sizes.back();
  }
  NewFile file(options.out);
  Progress progress("patching " + file_name(options.base), sum, options.quiet);
  const std::string header = safetensors_header(chain.last().index.metadata, tensors, sizes);
  std::ranges::copy(header, file.map(0, header.size()).begin());
  std::vector<DeltaTensor> others;
  std::vector<std::uint64_t> offsets;
  std::uint64_t offset = header.size();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    progress.part(entries[i].name, sizes[i]);
    make_tensor(chain, entries[i], file, offset, sizes[i]);
    if (!chain.is_delta_entry(entries[i])) {
      others.push_back({entries[i].name, entries[i].type, entries[i].shape, {}});
      offsets.push_back(offset);
    }
    offset += sizes[i];
  }
  const std::span<std::uint8_t> all = file.map(0, offset);
  for (std::size_t i = 0; i < others.size(); ++i) {
    const auto entry = std::ranges::find(entries, others[i].name, &ContainerEntry::name);
    others[i].bytes =
        all.subspan(offsets[i], sizes[static_cast<std::size_t>(entry - entries.begin())]);
  }
  chain.check_others(others);
  file.commit(offset);
  Report report;
  report.json = {{"base", options.base},
                 {"output", options.out},
                 {"deltas", options.inputs.size()},
                 {"tensors", entries.size()},
                 {"bytes", offset},
                 {"result_hash", hash_text(chain.last().result)}};
  report.text = printable(options.out) + ": " + std::to_string(entries.size()) +
                (entries.size() == 1 ? " tensor" : " tensors") + ", proven by their hashes\n";
  return report;
}

std::shared_ptr<Options> declare_base(Flags& flags) {
  auto options = std::make_shared<Options>();
  flags.option("BASE.safetensors", options->base, "What the receiver has")
      .required()
      .value_name("")
      .offer_files({".safetensors"});
  return options;
}

Action declare_delta(Flags& flags) {
  auto options = declare_base(flags);
  options->inputs.resize(1);
  flags.option("NEW.safetensors", options->inputs[0], "What it should have")
      .required()
      .value_name("")
      .offer_files({".safetensors"});
  flags.option("OUT.sgd", options->out, "The delta to write")
      .required()
      .value_name("")
      .offer_files({".sgd"});
  declare_threads(flags, options->num_threads);
  declare_quiet(flags, options->quiet);
  return [options] { return run_delta(*options); };
}

// Several deltas and then the output: the last of the files.
Action declare_chain(Flags& flags, const char* help, Report (*run)(const Options&)) {
  auto options = declare_base(flags);
  flags.option("FILES", options->inputs, help).required().value_name("");
  declare_threads(flags, options->num_threads);
  declare_quiet(flags, options->quiet);
  return [options, run] {
    if (options->inputs.size() < 2)
      throw UsageError("expected one or more deltas and the file to write, got " +
                       std::to_string(options->inputs.size()) + " file");
    options->out = options->inputs.back();
    options->inputs.pop_back();
    return run(*options);
  };
}
Action declare_patch(Flags& flags) {
  return declare_chain(flags, "DELTA.sgd..., in order, and NEW.safetensors, the file to write",
                       run_patch);
}
Action declare_join(Flags& flags) {
  return declare_chain(flags, "DELTA.sgd..., in order, and OUT.sgd, the delta to write", run_join);
}

constexpr char kDeltaExample[] =
    R"help(Without loss, tensor by tensor; tensors that are new, or have another type or number of
values, are encoded as they are. slimgrad patch makes NEW of BASE again.

Example:
  $ python -c "import json,numpy as n; x=n.arange(65536,dtype='f4'); h=json.dumps({'x':{'dtype':'F32','shape':[65536],'data_offsets':[0,262144]}}).encode(); [open(f,'wb').write(len(h).to_bytes(8,'little')+h+v.tobytes()) for f,v in [('a.safetensors',x),('b.safetensors',x+(x%7==0)),('c.safetensors',x+(x%5==0))]]"
  $ slimgrad delta a.safetensors b.safetensors b.sgd
  b.sgd: 13442 bytes for 262144, 1 tensor, 1 as deltas
  $ slimgrad patch a.safetensors b.sgd back.safetensors
  back.safetensors: 1 tensor, proven by their hashes)help";

constexpr char kPatchExample[] =
    R"help(Every delta has to be one to the result of that before it, the first one to BASE: any
other is an error, and nothing is written. The file appears when it is complete.

Example:
  $ python -c "import json,numpy as n; x=n.arange(65536,dtype='f4'); h=json.dumps({'x':{'dtype':'F32','shape':[65536],'data_offsets':[0,262144]}}).encode(); [open(f,'wb').write(len(h).to_bytes(8,'little')+h+v.tobytes()) for f,v in [('a.safetensors',x),('b.safetensors',x+(x%7==0)),('c.safetensors',x+(x%5==0))]]"
  $ slimgrad delta a.safetensors b.safetensors b.sgd
  b.sgd: 13442 bytes for 262144, 1 tensor, 1 as deltas
  $ slimgrad delta b.safetensors c.safetensors c.sgd
  c.sgd: 28067 bytes for 262144, 1 tensor, 1 as deltas
  $ slimgrad patch a.safetensors b.sgd c.sgd back.safetensors
  back.safetensors: 1 tensor, proven by their hashes)help";

constexpr char kJoinExample[] =
    R"help(The delta from BASE to the result of the last one, without the files in between.

Example:
  $ python -c "import json,numpy as n; x=n.arange(65536,dtype='f4'); h=json.dumps({'x':{'dtype':'F32','shape':[65536],'data_offsets':[0,262144]}}).encode(); [open(f,'wb').write(len(h).to_bytes(8,'little')+h+v.tobytes()) for f,v in [('a.safetensors',x),('b.safetensors',x+(x%7==0)),('c.safetensors',x+(x%5==0))]]"
  $ slimgrad delta a.safetensors b.safetensors b.sgd
  b.sgd: 13442 bytes for 262144, 1 tensor, 1 as deltas
  $ slimgrad delta b.safetensors c.safetensors c.sgd
  c.sgd: 28067 bytes for 262144, 1 tensor, 1 as deltas
  $ slimgrad join a.safetensors b.sgd c.sgd ac.sgd
  ac.sgd: 17962 bytes for 262144, 1 tensor, 1 as deltas)help";

const bool registered =
    register_subcommand({"delta", "Encode what changed between two .safetensors files",
                         kDeltaExample, declare_delta}) &&
    register_subcommand(
        {"patch", "Apply deltas to a .safetensors file", kPatchExample, declare_patch}) &&
    register_subcommand({"join", "Join deltas into one", kJoinExample, declare_join});

}  // namespace
}  // namespace slimgrad::program
