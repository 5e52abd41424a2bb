// slimgrad inspect: what is in a .sg or .sgd file.
#include <slimgrad/delta.h>
#include <slimgrad/payload.h>

#include <memory>

#include "program/byte_files.h"
#include "program/output.h"
#include "program/payload_files.h"
#include "program/progress.h"
#include "program/subcommand.h"
#include "program/table.h"

namespace slimgrad::program {
namespace {

bool has_format(const PayloadInfo& info) {
  return info.kind == PayloadKind::kFloat ||
         (info.kind == PayloadKind::kPruned && info.survivors == Survivors::kFloat);
}

Json parameters_of(const PayloadInfo& info) {
  Json json = Json::object();
  if (info.kind != PayloadKind::kRaw) json["blocks"] = info.num_blocks();
  if (info.kind == PayloadKind::kUniform) {
    if (info.bits > 0) json["bits"] = info.bits;
    if (info.rate > 0) {
      json["rate"] = info.bits_per_value();
      json["rate_asked"] = info.rate;
      json["rate_reached"] = info.rate_reached();
    }
    json["model"] = table_model_name(info.model);
    if (info.model != TableModel::kCounted) {
      json["model_shape"] = info.model_shape;
      json["model_scale"] = info.model_scale * info.scale;
    }
  }
  if (info.kind == PayloadKind::kTopk) {
    json["k"] = info.k;
    json["of"] = info.of;
    json["bits"] = info.bits;
  }
  if (info.kind == PayloadKind::kPruned) {
    json["threshold"] = info.threshold;
    json["survivors"] = survivors_name(info.survivors);
  }
  if (has_format(info)) json["format"] = FloatFormat(info.exponent_bits, info.mantissa_bits).name();
  if (has_format(info) || info.kind == PayloadKind::kUniform) json["scale"] = info.scale;
  return json;
}

std::string parameters_text(const Json& parameters) {
  std::string text;
  for (const auto& [key, value] : parameters.items())
    text += (text.empty() ? "" : ", ") + key + ' ' +
            (value.is_string()         ? value.get<std::string>()
             : value.is_number_float() ? number(value)
                                       : json_text(value));
  return text;
}

struct Options {
  std::string path;
  bool quiet = false;
};

// The tensors of a delta: hashes of those that are deltas themselves, the kind of the others.
Report describe_delta(const std::string& path, std::span<const std::uint8_t> file,
                      Progress& progress) {
  const DeltaSet set = parse_delta_set(file);
  Report report;
  report.json = {{"file", path},
                 {"base", hash_text(set.base)},
                 {"result", hash_text(set.result)},
                 {"tensors", Json::array()}};
  Table table({{"tensor", Align::kLeft},
               {"dtype", Align::kLeft},
               {"shape", Align::kLeft},
               {"kind", Align::kLeft},
               {"bytes"},
               {"coded"}});
  for (const ContainerEntry& entry : set.index.entries) {
    progress.part(entry.name, entry.num_bytes);
    const auto payload = file.subspan(entry.offset, entry.num_bytes);
    Json json = {{"name", entry.name}, {"dtype", entry.type}, {"shape", entry.shape}};
    std::uint64_t bytes = 0;
    if (is_delta(payload)) {
      const DeltaInfo info = inspect_delta(payload);
      bytes = info.num_bytes();
      json["kind"] = info.base == info.result ? "same" : "delta";
      json["base"] = hash_text(info.base);
      json["result"] = hash_text(info.result);
    } else {
      const PayloadInfo info = inspect(payload);
      bytes = info.num_bytes();
      json["kind"] = payload_kind_name(info.kind);
    }
    json["bytes"] = bytes;
    json["payload_bytes"] = entry.num_bytes;
    table.add({entry.name, entry.type, shape_text(entry.shape), json["kind"].get<std::string>(),
               std::to_string(bytes), std::to_string(entry.num_bytes)});
    report.json["tensors"].push_back(std::move(json));
  }
  report.text =
      table.text() + "\nbase   " + hash_text(set.base) + "\nresult " + hash_text(set.result) + '\n';
  return report;
}

Report run(const Options& options) {
  const std::string& path = options.path;
  const InputFile file(path);
  Progress progress("inspecting " + file_name(path), file.bytes().size(), options.quiet);
  Report report;
  report.json = {{"file", path}, {"tensors", Json::array()}};
  Table table({{"tensor", Align::kLeft},
               {"dtype", Align::kLeft},
               {"shape", Align::kLeft},
               {"kind", Align::kLeft},
               {"bytes"},
               {"coded"},
               {"parameters", Align::kLeft}});
  try {
    if (is_delta_set(file.bytes())) return describe_delta(path, file.bytes(), progress);
    for (const NamedTensor& tensor : parse_payload_file(file.bytes()).tensors) {
      progress.part(tensor.name, tensor.bytes.size());
      const PayloadInfo info = inspect(tensor.bytes);
      const Json parameters = parameters_of(info);
      const std::string dtype(tensor.type.empty() ? dtype_name(info.dtype) : tensor.type);
      const auto& shape = tensor.type.empty() ? info.shape : tensor.shape;
      Json entry = {{"name", tensor.name},
                    {"dtype", dtype},
                    {"shape", shape},
                    {"kind", payload_kind_name(info.kind)},
                    {"bytes", info.num_bytes()},
                    {"payload_bytes", info.payload_bytes}};
      entry.update(parameters);
      report.json["tensors"].push_back(std::move(entry));
      table.add({tensor.name.empty() ? "-" : tensor.name, dtype, shape_text(shape),
                 std::string(payload_kind_name(info.kind)), std::to_string(info.num_bytes()),
                 std::to_string(info.payload_bytes), parameters_text(parameters)});
    }
  } catch (const PayloadError& error) {
    throw FileError(path + ": " + error.what());
  }
  report.text = table.text();
  return report;
}

Action declare(Flags& flags) {
  auto options = std::make_shared<Options>();
  flags.option("FILE.sg", options->path, "What slimgrad encode or delta wrote")
      .required()
      .value_name("")
      .offer_files({".sg", ".sgd"});
  declare_quiet(flags, options->quiet);
  return [options] { return run(*options); };
}

constexpr char kExample[] =
    R"help(Example:
  $ python -c "import numpy; numpy.save('g.npy', numpy.arange(65536, dtype='f4') % 7)"
  $ slimgrad encode g.npy g.sg --mode uniform --bits 4
  tensor  kind      bytes  coded      ratio
  ------  -------  ------  -----  ---------
  g.npy   uniform  262144  21220  0.0809479

  g.sg: 21220 bytes for 262272, 91.9 % saved
  $ slimgrad inspect g.sg
  tensor  dtype    shape  kind      bytes  coded  parameters
  ------  -------  -----  -------  ------  -----  -----------------------------------------------
  -       float32  65536  uniform  262144  21220  blocks 1, bits 4, model counted, scale 0.857143)help";

const bool registered =
    register_subcommand({"inspect", "Describe the payloads in a file", kExample, declare});

}  // namespace
}  // namespace slimgrad::program
