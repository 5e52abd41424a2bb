// The ops behind slimgrad.load and slimgrad.save: the index of a file with several payloads.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <slimgrad/payload.h>

#include "base/check.h"
#include "torch/elements.h"
#include "torch/errors.h"

namespace slimgrad::torch_ops {
namespace {

using Names = std::vector<std::string>;
using Numbers = std::vector<std::int64_t>;

struct Columns {
  Names names, types;
  Numbers num_dims, lengths, offsets, payload_bytes, value_bytes;
};

// Every payload is compared with the index by its header; the decoder checks its checksum.
// Returns names, types, numbers of dimensions, all shapes one after the other, offsets and sizes of
// the payloads, sizes of the tensors. An index of more than max_bytes and 64 KiB is refused.
std::tuple<Names, Names, Numbers, Numbers, Numbers, Numbers, Numbers> container_index_cpu(
    const at::Tensor& file, std::int64_t max_bytes) {
  check(file.scalar_type() == at::kByte && file.dim() == 1, "load",
        "a file as a uint8 tensor of one dimension", c10::toString(file.scalar_type()), " with ",
        file.dim(), " dimensions");
  const at::Tensor contiguous = file.contiguous();
  const std::span<const std::uint8_t> bytes = elements<std::uint8_t>(contiguous);
  ContainerIndex index =
      parse_container(bytes, static_cast<std::uint64_t>(std::max<std::int64_t>(max_bytes, 0)));
  Columns to;
  for (ContainerEntry& entry : index.entries) {
    const PayloadDecoder decoder(bytes.subspan(entry.offset, entry.num_bytes), Verification::kLast);
    check_entry(entry, decoder.info());
    to.names.push_back(std::move(entry.name));
    to.types.push_back(std::move(entry.type));
    to.num_dims.push_back(static_cast<std::int64_t>(entry.shape.size()));
    to.lengths.insert(to.lengths.end(), entry.shape.begin(), entry.shape.end());
    to.offsets.push_back(static_cast<std::int64_t>(entry.offset));
    to.payload_bytes.push_back(static_cast<std::int64_t>(entry.num_bytes));
    to.value_bytes.push_back(static_cast<std::int64_t>(decoder.info().num_bytes()));
  }
  return {to.names,   to.types,         to.num_dims,   to.lengths,
          to.offsets, to.payload_bytes, to.value_bytes};
}

// The same columns the other way. REQUIRES, as Python makes them: as many of each as of names, and
// metadata in pairs.
at::Tensor container_header_op(Names names, Names types, at::IntArrayRef num_dims,
                               at::IntArrayRef lengths, at::IntArrayRef payload_bytes,
                               bool has_metadata, Names metadata) {
  ContainerIndex index;
  const std::int64_t* length = lengths.begin();
  for (std::size_t i = 0; i < names.size(); ++i) {
    index.entries.push_back({names[i], types.at(i), {}, 0});
    ContainerEntry& entry = index.entries.back();
    entry.num_bytes = static_cast<std::uint64_t>(payload_bytes.at(i));
    const std::int64_t end = std::min<std::int64_t>(num_dims.at(i), lengths.end() - length);
    entry.shape.assign(length, length + end);
    length += end;
  }
  if (has_metadata || !metadata.empty()) index.metadata.emplace();
  for (std::size_t i = 0; i + 1 < metadata.size(); i += 2)
    index.metadata->emplace_back(metadata[i], metadata[i + 1]);
  const std::vector<std::uint8_t> header = slimgrad::container_header(index);
  at::Tensor result =
      at::empty({static_cast<std::int64_t>(header.size())}, at::TensorOptions().dtype(at::kByte));
  std::ranges::copy(header, result.mutable_data_ptr<std::uint8_t>());
  return result;
}

}  // namespace

TORCH_LIBRARY_IMPL(slimgrad, CPU, m) {
  m.impl("container_index", ValueErrors<&container_index_cpu>::call);
}
TORCH_LIBRARY_IMPL(slimgrad, CompositeExplicitAutograd, m) {
  m.impl("container_header", ValueErrors<&container_header_op>::call);
}

}  // namespace slimgrad::torch_ops
