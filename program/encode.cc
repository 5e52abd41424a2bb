// slimgrad encode: tensors to payloads.
#include <slimgrad/payload.h>

#include <memory>

#include "program/block_threads.h"
#include "program/byte_files.h"
#include "program/payload_files.h"
#include "program/progress.h"
#include "program/subcommand.h"
#include "program/table.h"

namespace slimgrad::program {
namespace {

struct Options {
  std::string in, out, mode = "lossless", format = "1-4-3", coder = "rans", model = "counted",
                       survivors = "exact";
  int bits = 8, num_threads = default_num_threads();
  double scale = 0, threshold = 0;
  bool bfloat16 = false;
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
  return result;
}

std::vector<std::uint8_t> encode_tensor(const NamedTensor& tensor, EncodeOptions options,
                                        int num_threads) {
  TensorView view = {tensor.bytes.data(), tensor.dtype.value_or(DType::kInt8), tensor.shape,
                     tensor.fortran_order};
  if (!tensor.dtype) view.shape = {tensor.bytes.size()};
  if (view.dtype == DType::kFloat64 || view.dtype == DType::kInt8)
    if (!tensor.name.empty()) options = {.coder = options.coder};
  // Values in a file may lie anywhere; a payload's are aligned.
  std::vector<double> aligned;
  if (reinterpret_cast<std::uintptr_t>(view.data) % bytes_of(view.dtype) != 0) {
    aligned.resize(tensor.bytes.size() / 8 + 1);
    std::copy(tensor.bytes.begin(), tensor.bytes.end(),
              reinterpret_cast<std::uint8_t*>(aligned.data()));
    view.data = aligned.data();
  }
  PayloadEncoder encoder(view, options);
  Progress progress("encoding " + tensor.name, tensor.bytes.size());
  for_block_ranges(encoder.num_blocks(), num_threads, progress,
                   [&](std::size_t first, std::size_t last) { encoder.run(first, last); });
  std::vector<std::uint8_t> payload(encoder.finish());
  encoder.write(payload);
  return payload;
}

void write_payloads(const Options& options, const Safetensors& input, bool container,
                    const std::vector<std::vector<std::uint8_t>>& payloads) {
  std::vector<std::uint64_t> sizes;
  for (const auto& payload : payloads) sizes.push_back(payload.size());
  NewFile file(options.out);
  if (container) {
    const std::string header = container_header(input.metadata, input.tensors, sizes);
    file.write({reinterpret_cast<const std::uint8_t*>(header.data()), header.size()});
  }
  for (const auto& payload : payloads) file.write(payload);
  file.commit();
}

Report report_of(const Options& options, const Safetensors& input,
                 const std::vector<std::vector<std::uint8_t>>& payloads) {
  Report report;
  std::uint64_t before = 0, after = 0;
  Table table({{"tensor", Align::kLeft}, {"kind", Align::kLeft}, {"bytes"}, {"coded"}, {"ratio"}});
  report.json = {{"input", options.in}, {"output", options.out}, {"tensors", Json::array()}};
  const auto ratio = [](std::uint64_t coded, std::uint64_t bytes) {
    return static_cast<double>(coded) / static_cast<double>(std::max<std::uint64_t>(bytes, 1));
  };
  for (std::size_t i = 0; i < payloads.size(); ++i) {
    const std::string& name = input.tensors[i].name;
    const std::uint64_t bytes = input.tensors[i].bytes.size(), coded = payloads[i].size();
    const std::string kind(payload_kind_name(inspect(payloads[i]).kind));
    report.json["tensors"].push_back(
        {{"name", name}, {"kind", kind}, {"bytes", bytes}, {"payload_bytes", coded}});
    table.add({name.empty() ? options.in : name, kind, std::to_string(bytes), std::to_string(coded),
               number(ratio(coded, bytes))});
    before += bytes;
    after += coded;
  }
  if (payloads.size() > 1)
    table.add(
        {"all", "", std::to_string(before), std::to_string(after), number(ratio(after, before))});
  report.json["bytes"] = before;
  report.json["payload_bytes"] = after;
  report.text = table.text();
  return report;
}

Report run(const Options& options) {
  const EncodeOptions how = encode_options(options);
  const std::vector<std::uint8_t> file = read_file(options.in);
  const bool container = ends_with(options.in, ".safetensors");
  Safetensors input;
  std::vector<std::vector<std::uint8_t>> payloads;
  try {
    if (container)
      input = parse_safetensors(file);
    else
      input.tensors.push_back(parse_npy(file, options.bfloat16));
    for (const NamedTensor& tensor : input.tensors)
      payloads.push_back(encode_tensor(tensor, how, options.num_threads));
  } catch (const std::runtime_error& error) {
    throw FileError(options.in + ": " + error.what());
  }
  write_payloads(options, input, container, payloads);
  return report_of(options, input, payloads);
}

Action declare(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("IN", options->in, "A .npy file (float16, float32, float64, int8) or .safetensors")
      ->required()
      ->type_name("");
  app.add_option("OUT.sg", options->out, "The file to write")->required()->type_name("");
  app.add_option("--mode", options->mode, "lossless, uniform, float or pruned")
      ->capture_default_str();
  app.add_option("--bits", options->bits, "Bits of uniform codes, 2 to 8")->capture_default_str();
  app.add_option("--format", options->format, "Format of float codes")->capture_default_str();
  app.add_option("--scale", options->scale, "Step or scale; 0: from the largest magnitude");
  app.add_option("--threshold", options->threshold,
                 "Of the mode pruned; 0: the smallest magnitude but zero");
  app.add_option("--survivors", options->survivors, "exact, bfloat16 or float")
      ->capture_default_str();
  app.add_option("--coder", options->coder, "rans or huffman")->capture_default_str();
  app.add_option("--model", options->model, "counted, gennorm, laplace or normal")
      ->capture_default_str();
  declare_threads(app, options->num_threads);
  app.add_flag("--bfloat16", options->bfloat16, "A file of 16-bit integers holds bfloat16");
  return [options] { return run(*options); };
}

constexpr char kExample[] =
    R"help(A .safetensors file becomes one .sg file with all its tensors; those of types that the
other modes do not take (float64, integers, ...) are coded without loss.

Example:
  $ python -c "import numpy; numpy.save('g.npy', numpy.arange(65536, dtype='f4') % 7 + 1)"
  $ slimgrad encode g.npy g.sg
  tensor  kind       bytes  coded      ratio
  ------  --------  ------  -----  ---------
  g.npy   lossless  262144  14617  0.0557594)help";

const bool registered =
    register_subcommand({"encode", "Tensors as compact, checked bytes", kExample, declare});

}  // namespace
}  // namespace slimgrad::program
