// slimgrad encode: tensors to payloads.
#include <slimgrad/payload.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>

#include "program/block_threads.h"
#include "program/byte_files.h"
#include "program/output.h"
#include "program/payload_files.h"
#include "program/progress.h"
#include "program/safetensors.h"
#include "program/subcommand.h"
#include "program/table.h"

namespace slimgrad::program {
namespace {

struct Options {
  std::string in, out, mode = "lossless", format = "1-4-3", coder = "rans", model = "counted",
                       survivors = "exact";
  int bits = 8, num_threads = default_num_threads();
  double scale = 0, threshold = 0, rate = 0, max_error = 0;
  bool bfloat16 = false, quiet = false;
};

EncodeOptions encode_options(const Options& options) {
  EncodeOptions result;
  result.kind = parse_payload_kind(options.mode);
  result.coder = parse_entropy_coder(options.coder);
  result.model = parse_table_model(options.model);
  result.survivors = parse_survivors(options.survivors);
  result.format = FloatFormat::parse(options.format);
  result.bits = options.bits;
  result.scale = options.scale;
  result.threshold = options.threshold;
  result.rate = options.rate;
  result.max_error = options.max_error;
  return result;
}

// Refuses an option that has no effect in the mode.
void check_effects(const Options& options) {
  const Options defaults;
  const bool is_uniform = options.mode == "uniform", is_pruned = options.mode == "pruned";
  const bool has_format = options.mode == "float" || (is_pruned && options.survivors == "float");
  const auto require = [&](const char* option, bool is_set, bool holds, const char* expected) {
    if (is_set && !holds)
      throw UsageError("encode: expected " + std::string(option) + " with " + expected + ", got " +
                       "--mode " + options.mode);
  };
  require("--bits", options.bits != defaults.bits, is_uniform || options.mode == "topk",
          "--mode uniform or topk");
  require("--rate", options.rate != defaults.rate, is_uniform, "--mode uniform");
  require("--max-error", options.max_error != defaults.max_error, is_uniform, "--mode uniform");
  require("--format", options.format != defaults.format, has_format,
          "--mode float or float survivors");
  require("--scale", options.scale != defaults.scale, is_uniform || has_format,
          "--mode uniform, float or float survivors");
  require("--threshold", options.threshold != defaults.threshold, is_pruned, "--mode pruned");
  require("--survivors", options.survivors != defaults.survivors, is_pruned, "--mode pruned");
}

// A tensor's payload in the file to be written.
struct Coded {
  std::uint64_t num_bytes;
  PayloadKind kind;
};

// Room in which the blocks of a tensor need no memory of their own, however they turn out: a little
// more than the tensor, as a block may grow by some hundred bytes of tables.
std::uint64_t room_for(const TensorView& view) {
  const std::uint64_t bound = encode_bound(view);
  return bound + bound / 64;
}

// Puts the payload of a tensor at an offset of the file.
Coded encode_tensor(const NamedTensor& tensor, EncodeOptions options, int num_threads,
                    Progress& progress, NewFile& file, std::uint64_t offset) {
  TensorView view = {tensor.bytes.data(), tensor.dtype.value_or(DType::kInt8), tensor.shape,
                     tensor.fortran_order};
  if (!tensor.dtype) view.shape = {tensor.bytes.size()};
  if (view.dtype == DType::kFloat64 || view.dtype == DType::kInt8)
    if (!tensor.name.empty()) options = {.coder = options.coder};
  // Values in a file may lie anywhere; a payload's are aligned.
  std::optional<NewFile> aligned;
  if (!is_aligned(tensor.bytes, view.dtype)) {
    const std::span<std::uint8_t> copy =
        aligned.emplace(file.path() + ".aligned").map(0, tensor.bytes.size());
    std::ranges::copy(tensor.bytes, copy.begin());
    view.data = copy.data();
  }
  const std::span<std::uint8_t> room = file.map(offset, room_for(view));
  PayloadEncoder encoder(view, options, room);
  progress.part(tensor.name, tensor.bytes.size());
  do {
    for_block_ranges(encoder.num_blocks(), num_threads, progress,
                     [&](std::size_t first, std::size_t last) {
                       encoder.run(first, last);
                       release(share_of(tensor.bytes, first, last, encoder.num_blocks()));
                     });
  } while (encoder.correct());
  const std::span<std::uint8_t> payload = room.first(encoder.finish());
  encoder.write(payload);
  return {payload.size(), inspect(payload).kind};
}

// The index of a container is known, and so how long it is, when its payloads are: they lie at the
// beginning of the file, and make room for it. Returns the size of the file.
std::uint64_t put_index(const Safetensors& input, const std::vector<Coded>& payloads,
                        NewFile& file) {
  std::vector<std::uint64_t> sizes;
  for (const Coded& payload : payloads) sizes.push_back(payload.num_bytes);
  const std::vector<std::uint8_t> header = container_header(input, sizes);
  const std::uint64_t body = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
  const std::span<std::uint8_t> bytes = file.map(0, header.size() + body);
  std::memmove(bytes.data() + header.size(), bytes.data(), body);
  std::ranges::copy(header, bytes.begin());
  return bytes.size();
}

// Tensors that are counted together.
struct Total {
  std::uint64_t num_tensors = 0, bytes = 0, coded = 0;

  void add(std::uint64_t tensor_bytes, std::uint64_t tensor_coded) {
    ++num_tensors;
    bytes += tensor_bytes;
    coded += tensor_coded;
  }
  double ratio() const {
    return static_cast<double>(coded) / static_cast<double>(std::max<std::uint64_t>(bytes, 1));
  }
};

// Reports several tensors: one row for each type, and one for all.
void report_types(const std::map<std::string, Total>& types, const Total& all, Report& report) {
  Table table({{"type", Align::kLeft}, {"tensors"}, {"bytes"}, {"coded"}, {"ratio"}});
  const auto add = [&](const std::string& type, const Total& total) {
    table.add({type, std::to_string(total.num_tensors), std::to_string(total.bytes),
               std::to_string(total.coded), number(total.ratio())});
  };
  report.json["types"] = Json::array();
  for (const auto& [type, total] : types) {
    report.json["types"].push_back({{"type", type},
                                    {"tensors", total.num_tensors},
                                    {"bytes", total.bytes},
                                    {"payload_bytes", total.coded}});
    add(type, total);
  }
  add("all", all);
  if (all.num_tensors > 1) report.text += '\n' + table.text();
}

// What the files have, headers and index included: what a disk gets back.
void report_files(const Options& options, std::uint64_t before, std::uint64_t after,
                  Report& report) {
  report.json["input_file_bytes"] = before;
  report.json["output_file_bytes"] = after;
  const double share = 1 - static_cast<double>(after) / static_cast<double>(before);
  report.text += '\n' + printable(options.out) + ": " + std::to_string(after) + " bytes for " +
                 std::to_string(before) + ", " +
                 (share < 0 ? percent(-share) + " more" : percent(share) + " saved") + '\n';
}

Report report_of(const Options& options, const Safetensors& input,
                 const std::vector<Coded>& payloads) {
  Report report;
  Total all;
  std::map<std::string, Total> types;
  Table table({{"tensor", Align::kLeft}, {"kind", Align::kLeft}, {"bytes"}, {"coded"}, {"ratio"}});
  report.json = {{"input", options.in}, {"output", options.out}, {"tensors", Json::array()}};
  for (std::size_t i = 0; i < payloads.size(); ++i) {
    const NamedTensor& tensor = input.tensors[i];
    const std::string kind(payload_kind_name(payloads[i].kind));
    Total one;
    one.add(tensor.bytes.size(), payloads[i].num_bytes);
    all.add(one.bytes, one.coded);
    types[tensor.type].add(one.bytes, one.coded);
    report.json["tensors"].push_back({{"name", tensor.name},
                                      {"type", tensor.type},
                                      {"kind", kind},
                                      {"bytes", one.bytes},
                                      {"payload_bytes", one.coded}});
    table.add({tensor.name.empty() ? options.in : tensor.name, kind, std::to_string(one.bytes),
               std::to_string(one.coded), number(one.ratio())});
  }
  report.json["bytes"] = all.bytes;
  report.json["payload_bytes"] = all.coded;
  report.text = table.text();
  report_types(types, all, report);
  return report;
}

Report run(const Options& options) {
  const EncodeOptions how = encode_options(options);
  check_effects(options);
  check_distinct(options.in, options.out);
  const InputFile in(options.in);
  const bool container = ends_with(options.in, ".safetensors");
  if (container && options.bfloat16)
    throw UsageError("encode: expected --bfloat16 with a .npy file, got " + options.in);
  Safetensors input;
  try {
    if (container)
      input = parse_safetensors(in.bytes());
    else
      input.tensors.push_back(parse_npy(in.bytes(), options.bfloat16));
  } catch (const std::runtime_error& error) {
    throw FileError(options.in + ": " + error.what());
  }
  NewFile file(options.out);
  Progress progress("encoding " + file_name(options.in), in.bytes().size(), options.quiet);
  std::vector<Coded> payloads;
  std::uint64_t size = 0;
  for (const NamedTensor& tensor : input.tensors) {
    payloads.push_back(encode_tensor(tensor, how, options.num_threads, progress, file, size));
    size += payloads.back().num_bytes;
  }
  if (container) progress.step("writing the index");
  if (container) size = put_index(input, payloads, file);
  file.commit(size);
  Report report = report_of(options, input, payloads);
  report_files(options, in.bytes().size(), size, report);
  return report;
}

Action declare(Flags& flags) {
  auto options = std::make_shared<Options>();
  flags.option("IN", options->in, "A .npy file (float16, float32, float64, int8) or .safetensors")
      .required()
      .value_name("")
      .offer_files({".npy", ".safetensors"});
  flags.option("OUT.sg", options->out, "The file to write")
      .required()
      .value_name("")
      .offer_files({".sg"});
  flags
      .option("--mode", options->mode,
              "How values are coded: lossless, uniform, float, pruned or topk")
      .show_default()
      .offer({"lossless", "uniform", "float", "pruned", "topk"});
  flags.option("--bits", options->bits, "Bits of uniform codes, 2 to 8; of topk 1 to 4")
      .show_default();
  flags.option(
      "--rate", options->rate,
      "Bits a value that a payload of the mode uniform takes, up to 16, instead of --bits");
  flags.option("--max-error", options->max_error,
               "Largest error of the mode uniform, instead of --bits and --scale");
  flags.option("--format", options->format, "Format of float codes").show_default();
  flags.option("--scale", options->scale,
               "Step of the mode uniform, scale of float codes; 0: from the largest magnitude");
  flags.option("--threshold", options->threshold,
               "Threshold of the mode pruned; 0: the smallest nonzero magnitude");
  flags
      .option("--survivors", options->survivors,
              "How the mode pruned stores nonzero values: exact, bfloat16 or float")
      .show_default()
      .offer({"exact", "bfloat16", "float"});
  flags.option("--coder", options->coder, "Entropy coder: rans or huffman")
      .show_default()
      .offer({"rans", "huffman"});
  flags
      .option("--model", options->model,
              "Frequencies of the mode uniform: counted, gennorm, laplace or normal")
      .show_default()
      .offer({"counted", "gennorm", "laplace", "normal"});
  declare_threads(flags, options->num_threads);
  flags.flag("--bfloat16", options->bfloat16, "A file of 16-bit integers holds bfloat16");
  declare_quiet(flags, options->quiet);
  return [options] { return run(*options); };
}

constexpr char kExample[] =
    R"help(A .safetensors file becomes one .sg file with all its tensors; those of types that the
other modes do not take (float64, integers, ...) are coded without loss. A second table
then has the sums of each type.

Example:
  $ python -c "import numpy; numpy.save('g.npy', numpy.arange(65536, dtype='f4') % 7 + 1)"
  $ slimgrad encode g.npy g.sg
  tensor  kind       bytes  coded      ratio
  ------  --------  ------  -----  ---------
  g.npy   lossless  262144  14617  0.0557594

  g.sg: 14617 bytes for 262272, 94.4 % saved)help";

const bool registered = register_subcommand(
    {"encode", "Encode tensors as compact payloads with checksums", kExample, declare});

}  // namespace
}  // namespace slimgrad::program
