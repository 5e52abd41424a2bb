// slimgrad decode: payloads to tensors.
#include <slimgrad/payload.h>

#include <algorithm>
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
  std::string in, out;
  int num_threads = default_num_threads();
  bool quiet = false;
};

// After the input has proved to be one.
void check_ending(const std::string& path, const std::string& ending) {
  if (!ends_with(path, ending))
    throw UsageError("expected an output that ends with " + ending +
                     ", as this is what was encoded, got '" + path + "'");
}

// Into the values' place in the file to be written.
void decode_tensor(const PayloadDecoder& decoder, const NamedTensor& tensor, int num_threads,
                   Progress& progress, const NewFile& file, std::span<std::uint8_t> values) {
  // Values in a file may lie anywhere; decoded ones are aligned.
  std::optional<NewFile> aligned;
  std::span<std::uint8_t> to = values;
  if (!is_aligned(values, decoder.info().dtype))
    to = aligned.emplace(file.path() + ".aligned").map(0, values.size());
  const std::size_t num_blocks = decoder.num_blocks();
  progress.part(tensor.name, values.size());
  for_block_ranges(num_blocks, num_threads, progress, [&](std::size_t first, std::size_t last) {
    decoder.run(first, last, to);
    release(share_of(tensor.bytes, first, last, num_blocks));
    release(share_of(to, first, last, num_blocks));
  });
  if (aligned) std::ranges::copy(to, values.begin());
}

// Both return the size of the file.
std::uint64_t write_safetensors(const PayloadFile& input, const Options& options, NewFile& file) {
  check_ending(options.out, ".safetensors");
  std::vector<std::uint64_t> sizes;
  for (const NamedTensor& tensor : input.tensors) {
    const PayloadInfo info = inspect(tensor.bytes);
    check_entry({tensor.name, tensor.type, tensor.shape}, info);
    sizes.push_back(info.num_bytes());
  }
  Progress progress("decoding " + file_name(options.in),
                    std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0}), options.quiet);
  const std::string header = safetensors_header(input.metadata, input.tensors, sizes);
  std::uint64_t offset = header.size();
  std::ranges::copy(header, file.map(0, offset).begin());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const PayloadDecoder decoder(input.tensors[i].bytes);
    decode_tensor(decoder, input.tensors[i], options.num_threads, progress, file,
                  file.map(offset, sizes[i]));
    offset += sizes[i];
  }
  return offset;
}

std::uint64_t write_npy(const PayloadFile& input, const Options& options, NewFile& file) {
  const PayloadDecoder decoder(input.tensors[0].bytes);
  check_ending(options.out, ".npy");
  const PayloadInfo& info = decoder.info();
  const std::string header = npy_header(info.dtype, info.shape, info.fortran_order);
  const std::span<std::uint8_t> bytes = file.map(0, header.size() + info.num_bytes());
  std::ranges::copy(header, bytes.begin());
  Progress progress("decoding " + file_name(options.in), info.num_bytes(), options.quiet);
  decode_tensor(decoder, input.tensors[0], options.num_threads, progress, file,
                bytes.subspan(header.size()));
  return bytes.size();
}

Report run(const Options& options) {
  check_distinct(options.in, options.out);
  const InputFile in(options.in);
  NewFile file(options.out);
  std::uint64_t size = 0;
  Report report;
  try {
    const PayloadFile input = parse_payload_file(in.bytes());
    size = input.is_container ? write_safetensors(input, options, file)
                              : write_npy(input, options, file);
    report.json = {
        {"input", options.in}, {"output", options.out}, {"tensors", input.tensors.size()}};
    report.text = options.out + ": " + std::to_string(input.tensors.size()) +
                  (input.tensors.size() == 1 ? " tensor\n" : " tensors\n");
  } catch (const PayloadError& error) {
    throw FileError(options.in + ": " + error.what());
  }
  file.commit(size);
  return report;
}

Action declare(Flags& flags) {
  auto options = std::make_shared<Options>();
  flags.option("IN.sg", options->in, "What slimgrad encode wrote")
      .required()
      .value_name("")
      .offer_files({".sg"});
  flags.option("OUT", options->out, "The .npy or .safetensors file to write")
      .required()
      .value_name("")
      .offer_files({".npy", ".safetensors"});
  declare_threads(flags, options->num_threads);
  declare_quiet(flags, options->quiet);
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

  g.sg: 14617 bytes for 262272, 94.4 % saved
  $ slimgrad decode g.sg back.npy
  back.npy: 1 tensor)help";

const bool registered =
    register_subcommand({"decode", "Decode payloads to tensors", kExample, declare});

}  // namespace
}  // namespace slimgrad::program
