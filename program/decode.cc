// slimgrad decode: payloads to tensors.
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
  std::string in, out;
  int num_threads = default_num_threads();
};

void write_text(NewFile& file, const std::string& text) {
  file.write({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
}

// After the input has proved to be one.
void check_ending(const std::string& path, const std::string& ending) {
  if (!ends_with(path, ending))
    throw UsageError("expected an output that ends with " + ending +
                     ", as this is what was encoded, got '" + path + "'");
}

std::vector<std::uint8_t> decode_tensor(const PayloadDecoder& decoder, const std::string& name,
                                        int num_threads) {
  const std::uint64_t num_bytes = decoder.info().num_bytes();
  std::vector<std::uint8_t> values(num_bytes);
  Progress progress("decoding " + name, num_bytes);
  for_block_ranges(decoder.num_blocks(), num_threads, progress,
                   [&](std::size_t first, std::size_t last) { decoder.run(first, last, values); });
  return values;
}

// Whether the payload is the one that the index of its container describes.
void check_entry(const NamedTensor& entry, const PayloadInfo& info) {
  const bool fits = entry.dtype ? *entry.dtype == info.dtype && entry.shape == info.shape
                                : info.dtype == DType::kInt8 && info.shape.size() == 1;
  if (!fits)
    throw PayloadError(PayloadErrorCode::kBadHeader,
                       "damaged container: '" + entry.name + "' is not what the index says");
}

void write_safetensors(const PayloadFile& input, const Options& options, NewFile& file) {
  check_ending(options.out, ".safetensors");
  std::vector<std::uint64_t> sizes;
  for (const NamedTensor& tensor : input.tensors) {
    const PayloadInfo info = inspect(tensor.bytes);
    check_entry(tensor, info);
    sizes.push_back(info.num_bytes());
  }
  write_text(file, safetensors_header(input.metadata, input.tensors, sizes));
  for (const NamedTensor& tensor : input.tensors)
    file.write(decode_tensor(PayloadDecoder(tensor.bytes), tensor.name, options.num_threads));
}

void write_npy(const PayloadFile& input, const Options& options, NewFile& file) {
  const PayloadDecoder decoder(input.tensors[0].bytes);
  check_ending(options.out, ".npy");
  const std::vector<std::uint8_t> values = decode_tensor(decoder, "", options.num_threads);
  const PayloadInfo& info = decoder.info();
  write_text(file, npy_header(info.dtype, info.shape, info.fortran_order));
  file.write(values);
}

Report run(const Options& options) {
  const std::vector<std::uint8_t> bytes = read_file(options.in);
  NewFile file(options.out);
  Report report;
  try {
    const PayloadFile input = parse_payload_file(bytes);
    if (input.is_container)
      write_safetensors(input, options, file);
    else
      write_npy(input, options, file);
    report.json = {
        {"input", options.in}, {"output", options.out}, {"tensors", input.tensors.size()}};
    report.text = options.out + ": " + std::to_string(input.tensors.size()) +
                  (input.tensors.size() == 1 ? " tensor\n" : " tensors\n");
  } catch (const PayloadError& error) {
    throw FileError(options.in + ": " + error.what());
  }
  file.commit();
  return report;
}

Action declare(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("IN.sg", options->in, "What slimgrad encode wrote")->required()->type_name("");
  app.add_option("OUT", options->out, "The .npy or .safetensors file to write")
      ->required()
      ->type_name("");
  declare_threads(app, options->num_threads);
  return [options] { return run(*options); };
}

constexpr char kExample[] =
    R"help(bfloat16, which NumPy does not know, is written to .npy files as uint16. A damaged file
is an error, and nothing is written.

Example:
  $ python -c "import numpy; numpy.save('g.npy', numpy.arange(65536, dtype='f4') % 7 + 1)"
  $ slimgrad encode g.npy g.sg
  tensor  kind       bytes  coded      ratio
  ------  --------  ------  -----  ---------
  g.npy   lossless  262144  14617  0.0557594
  $ slimgrad decode g.sg back.npy
  back.npy: 1 tensor)help";

const bool registered =
    register_subcommand({"decode", "Payloads back to tensors", kExample, declare});

}  // namespace
}  // namespace slimgrad::program
