// The delta of a tensor.
#include <slimgrad/delta.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <numeric>

#include "arrays/coding/checksum.h"
#include "arrays/coding/delta_block.h"
#include "arrays/coding/delta_code.h"
#include "base/check.h"
#include "formats/delta_header.h"
#include "formats/payload_header.h"
#include "kernels/dispatch.h"

namespace slimgrad {
namespace {

using namespace delta_format;
using Bytes = std::span<const std::uint8_t>;

void for_tasks(std::size_t count, const Parallel& parallel,
               const std::function<void(std::int64_t)>& task) {
  if (parallel && count > 1) return parallel(static_cast<std::int64_t>(count), task);
  for (std::size_t i = 0; i < count; ++i) task(static_cast<std::int64_t>(i));
}

// The blocks of an array of values.
struct Blocks {
  std::size_t num_bytes, block_bytes;

  Blocks(std::size_t bytes, std::size_t width)
      : num_bytes(bytes), block_bytes(width << kBlockLog2) {}
  std::size_t count() const { return (num_bytes + block_bytes - 1) / block_bytes; }
  template <typename T>
  std::span<T> of(std::span<T> bytes, std::int64_t i) const {
    const std::size_t first = static_cast<std::size_t>(i) * block_bytes;
    return bytes.subspan(first, std::min(block_bytes, num_bytes - first));
  }
};

static_assert(sizeof(Hash128) == 16);
Hash128 root_of(const std::vector<Hash128>& leaves) {
  return hash128({reinterpret_cast<const std::uint8_t*>(leaves.data()), 16 * leaves.size()});
}

const ValueType& type_of(const DeltaTensor& tensor) { return kValueTypes[type_code(tensor.type)]; }

// Throws unless the bytes are those of the shape.
void check_tensor(const DeltaTensor& tensor, const char* what) {
  const ValueType& type = type_of(tensor);
  check(tensor.shape.size() <= kMaxShapeLengths, "delta", "at most 32 dimensions",
        tensor.shape.size(), " of ", what);
  if (type.name != tensor.type) return;  // bytes of a type that is not known
  std::uint64_t bytes = type.width;
  for (const std::uint64_t length : tensor.shape)
    check(!__builtin_mul_overflow(bytes, length, &bytes), "delta",
          "a shape of less than 2^64 bytes", "more of ", what);
  check(bytes == tensor.bytes.size(), "delta", "as many bytes as the shape has",
        tensor.bytes.size(), " for ", bytes, " of ", what);
}

[[noreturn]] void fail(PayloadErrorCode code, const std::string& text) {
  throw PayloadError(code, "[apply_delta] " + text);
}

// ---- encoding ----------------------------------------------------------------------------------

class TensorEncoder {
 public:
  TensorEncoder(const DeltaTensor& base, const DeltaTensor& changed, const Parallel& parallel)
      : base_(base.bytes),
        changed_(changed.bytes),
        parallel_(parallel),
        blocks_(base.bytes.size(), type_of(base).width) {
    header_.type = type_code(base.type);
    header_.shape = changed.shape;
    if (header_.value_type().name != base.type) header_.shape = {changed.bytes.size()};
  }

  std::vector<std::uint8_t> run() {
    count();
    std::vector<std::vector<std::uint8_t>> coded;
    if (header_.base != header_.result) coded = code();
    for (const std::vector<std::uint8_t>& block : coded)
      header_.block_bytes.push_back(static_cast<std::uint32_t>(block.size()));
    std::vector<std::uint8_t> payload = write_delta_header(header_);
    for (const std::vector<std::uint8_t>& block : coded)
      payload.insert(payload.end(), block.begin(), block.end());
    const std::uint64_t sum = checksum(payload);
    payload.resize(payload.size() + kChecksumBytes);
    std::memcpy(payload.data() + payload.size() - kChecksumBytes, &sum, kChecksumBytes);
    return payload;
  }

 private:
  // Both hashes, and the counts.
  void count() {
    const ValueType& type = header_.value_type();
    const bool sampled = base_.size() / type.width > (std::size_t{1} << 16);
    std::vector<Hash128> base_leaves(blocks_.count()), leaves(blocks_.count());
    for_tasks(blocks_.count(), parallel_, [&](std::int64_t i) {
      const Bytes base = blocks_.of(base_, i), changed = blocks_.of(changed_, i);
      base_leaves[static_cast<std::size_t>(i)] = hash128(base);
      leaves[static_cast<std::size_t>(i)] = hash128(changed);
      Pooled<DeltaScratch> scratch;
      scratch->counts().clear();
      count_block(base, changed, type, sampled, *scratch);
      const std::lock_guard lock(mutex_);
      counts_.add(scratch->counts());
    });
    header_.base = root_of(base_leaves);
    header_.result = root_of(leaves);
  }

  std::vector<std::vector<std::uint8_t>> code() {
    header_.code = choose_code(counts_, base_.size() / header_.value_type().width);
    std::vector<CodedBlock> prepared(blocks_.count());
    Weights gaps = {};
    for_tasks(blocks_.count(), parallel_, [&](std::int64_t i) {
      Pooled<DeltaScratch> scratch;
      Weights of_block = {};
      prepared[static_cast<std::size_t>(i)] =
          prepare_block(blocks_.of(base_, i), blocks_.of(changed_, i), header_.value_type(),
                        header_.code, of_block, *scratch);
      const std::lock_guard lock(mutex_);
      for (std::size_t s = 0; s < gaps.size(); ++s) gaps[s] += of_block[s];
    });
    if (header_.code.has_gaps()) header_.code.gaps = table_for(gaps);
    std::vector<std::vector<std::uint8_t>> coded(blocks_.count());
    for_tasks(blocks_.count(), parallel_, [&](std::int64_t i) {
      Pooled<DeltaScratch> scratch;
      CodedBlock& block = prepared[static_cast<std::size_t>(i)];
      coded[static_cast<std::size_t>(i)] = finish_block(block, header_.code, *scratch);
      block = {};
    });
    return coded;
  }

  const Bytes base_, changed_;
  const Parallel& parallel_;
  const Blocks blocks_;
  DeltaHeader header_;
  DeltaCounts counts_;
  std::mutex mutex_;
};

// ---- applying ----------------------------------------------------------------------------------

// Checks the checksum and the header.
DeltaHeader open_delta(Bytes payload, std::size_t& header_bytes) {
  check_delta_start(payload);
  const Bytes data = payload.first(payload.size() - kChecksumBytes);
  std::uint64_t sum;
  std::memcpy(&sum, payload.data() + data.size(), kChecksumBytes);
  if (checksum(data) != sum)
    fail(PayloadErrorCode::kBadChecksum, "a damaged delta: its checksum is wrong");
  return parse_delta_header(payload, header_bytes);
}

void check_base_hash(const DeltaHeader& header, const std::vector<Hash128>& leaves) {
  const Hash128 hash = root_of(leaves);
  if (hash != header.base)
    throw WrongBase("[apply_delta] expected the base with hash " + hash_text(header.base) +
                    ", got values with hash " + hash_text(hash));
}

class TensorDecoder {
 public:
  TensorDecoder(Bytes base, Bytes payload, std::span<std::uint8_t> out, const Parallel& parallel)
      : base_(base), payload_(payload), out_(out), parallel_(parallel) {
    header_ = open_delta(payload, header_bytes_);
    width_ = header_.value_type().width;
    if (header_.num_values() * width_ != base.size())
      throw WrongBase("[apply_delta] expected a base of " +
                      std::to_string(header_.num_values() * width_) + " bytes, got " +
                      std::to_string(base.size()));
    check(out.size() == base.size(), "apply_delta", "out to have as many bytes as the base",
          out.size(), " for ", base.size());
  }

  void run(Verification verification) {
    const Blocks blocks(base_.size(), width_);
    const bool in_place = base_.data() == out_.data();
    std::vector<Hash128> base_leaves(blocks.count());
    const auto hash_base = [&](std::int64_t i) {
      base_leaves[static_cast<std::size_t>(i)] = hash128(blocks.of(base_, i));
    };
    const bool first = in_place || verification == Verification::kFirst;
    if (first) {
      for_tasks(blocks.count(), parallel_, hash_base);
      check_base_hash(header_, base_leaves);
    }
    if (in_place && header_.block_bytes.empty()) return;
    if (in_place) undo_.resize(blocks.count());
    decode(blocks, first ? std::function<void(std::int64_t)>() : hash_base);
    if (!first) check_base_hash(header_, base_leaves);
    if (damaged_ || root_of(leaves_) != header_.result) {
      for (std::size_t i = 0; i < undo_.size(); ++i)
        undo_block(undo_[i], width_, blocks.of(out_, static_cast<std::int64_t>(i)));
      fail(PayloadErrorCode::kBadBlock, damaged_ ? "a damaged delta: a block does not decode"
                                                 : "a damaged delta: another result than encoded");
    }
  }

 private:
  void decode(const Blocks& blocks, const std::function<void(std::int64_t)>& before) {
    std::vector<std::size_t> offsets = {header_bytes_};
    for (const std::uint32_t size : header_.block_bytes) offsets.push_back(offsets.back() + size);
    const bool unchanged = header_.block_bytes.empty();
    const DeltaTables tables(header_.code);
    leaves_.resize(blocks.count());
    for_tasks(blocks.count(), parallel_, [&](std::int64_t task) {
      const auto i = static_cast<std::size_t>(task);
      const std::span<std::uint8_t> values = blocks.of(out_, task);
      if (before) before(task);
      if (undo_.empty()) std::ranges::copy(blocks.of(base_, task), values.begin());
      if (!unchanged && header_.block_bytes[i] > 0) {
        Pooled<DeltaScratch> scratch;
        const Bytes bytes = payload_.subspan(offsets[i], header_.block_bytes[i]);
        if (decode_block(bytes, values, header_.value_type(), tables, *scratch,
                         undo_.empty() ? nullptr : &undo_[i]) != DecodeStatus::kOk)
          damaged_ = true;
      }
      leaves_[i] = hash128(values);
    });
  }

  const Bytes base_, payload_;
  const std::span<std::uint8_t> out_;
  const Parallel& parallel_;
  DeltaHeader header_;
  std::size_t header_bytes_ = 0, width_ = 1;
  std::vector<Hash128> leaves_;
  std::vector<DeltaUndo> undo_;
  std::atomic<bool> damaged_ = false;
};

}  // namespace

Hash128 hash_of(const DeltaTensor& tensor, const Parallel& parallel) {
  kernels::obey_environment();
  check_tensor(tensor, "the tensor");
  const Blocks blocks(tensor.bytes.size(), type_of(tensor).width);
  std::vector<Hash128> leaves(blocks.count());
  for_tasks(blocks.count(), parallel, [&](std::int64_t i) {
    leaves[static_cast<std::size_t>(i)] = hash128(blocks.of(tensor.bytes, i));
  });
  return root_of(leaves);
}

std::uint64_t DeltaInfo::num_bytes() const {
  return std::accumulate(shape.begin(), shape.end(),
                         std::uint64_t{kValueTypes[type_code(type)].width}, std::multiplies<>());
}

bool is_delta(Bytes payload) {
  return payload.size() >= kDeltaMagic.size() &&
         std::equal(kDeltaMagic.begin(), kDeltaMagic.end(), payload.begin());
}

std::vector<std::uint8_t> delta(const DeltaTensor& base, const DeltaTensor& changed,
                                const Parallel& parallel) {
  kernels::obey_environment();
  check_tensor(base, "the base");
  check_tensor(changed, "the changed tensor");
  check(base.type == changed.type && base.bytes.size() == changed.bytes.size(), "delta",
        "two tensors with the same type and number of values", base.type, " of ", base.bytes.size(),
        " bytes and ", changed.type, " of ", changed.bytes.size());
  return TensorEncoder(base, changed, parallel).run();
}

DeltaInfo inspect_delta(Bytes payload) {
  std::size_t header_bytes;
  const DeltaHeader header = open_delta(payload, header_bytes);
  return {std::string(header.value_type().name),
          header.shape,
          header.base,
          header.result,
          payload.size(),
          header.block_bytes};
}

void apply_delta(Bytes base, Bytes payload, std::span<std::uint8_t> out, const Parallel& parallel,
                 Verification verification) {
  kernels::obey_environment();
  TensorDecoder(base, payload, out, parallel).run(verification);
}

std::vector<std::uint8_t> apply_delta(Bytes base, Bytes payload, const Parallel& parallel) {
  std::vector<std::uint8_t> out(base.size());
  apply_delta(base, payload, out, parallel, Verification::kLast);
  return out;
}

}  // namespace slimgrad
