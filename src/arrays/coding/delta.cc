// The delta of a tensor.
#include <slimgrad/delta.h>

#include <algorithm>
#include <atomic>
#include <bit>
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

// The blocks of an array of values, or its lanes.
struct Parts {
  std::size_t num_bytes, part_bytes;

  Parts(std::size_t bytes, std::size_t width, int log2)
      : num_bytes(bytes), part_bytes(width << log2) {}
  std::size_t count() const { return (num_bytes + part_bytes - 1) / part_bytes; }
  template <typename T>
  std::span<T> of(std::span<T> bytes, std::size_t i, std::size_t parts = 1) const {
    const std::size_t first = i * part_bytes;
    return bytes.subspan(first, std::min(parts * part_bytes, num_bytes - first));
  }
};

// Groups of blocks that one task works on, so that their lanes take turns; single ones where there
// would be too few for the threads.
struct Groups {
  std::size_t num_blocks, size;

  explicit Groups(std::size_t blocks)
      : num_blocks(blocks), size(blocks < kFewBlocks ? 1 : kBlocksAtOnce) {}
  std::size_t count() const { return (num_blocks + size - 1) / size; }
  std::size_t first(std::size_t i) const { return i * size; }
  std::size_t size_of(std::size_t i) const { return std::min(size, num_blocks - i * size); }

 private:
  static constexpr std::size_t kFewBlocks = 8;
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
  // A zero in the shape makes it empty, however long its other sides are.
  const bool is_empty = std::ranges::count(tensor.shape, 0u) > 0;
  std::uint64_t bytes = is_empty ? 0 : type.width;
  for (const std::uint64_t length : tensor.shape)
    check(is_empty || !__builtin_mul_overflow(bytes, length, &bytes), "delta",
          "a shape of less than 2^64 bytes", "more of ", what);
  check(bytes == tensor.bytes.size(), "delta", "as many bytes as the shape has",
        tensor.bytes.size(), " for ", bytes, " of ", what);
}

[[noreturn]] void fail(PayloadErrorCode code, const std::string& text) {
  throw PayloadError(code, "[apply_delta] " + text);
}

// ---- encoding ----------------------------------------------------------------------------------

// Larger tensors are sampled before it is decided how they are coded: 64 values of every step. If
// too few of them changed to tell how likely that is, the step is shorter.
constexpr int kWholeSampleLog2 = 16, kMostSteps = 8, kMostStepsOfRare = 6;
constexpr std::uint64_t kEnoughChanges = 1024;
constexpr std::size_t kBlocksOfSample = 32;  // a task

class TensorEncoder {
 public:
  TensorEncoder(const DeltaTensor& base, const DeltaTensor& changed, const Parallel& parallel)
      : base_(base.bytes),
        changed_(changed.bytes),
        parallel_(parallel),
        blocks_(base.bytes.size(), type_of(base).width, kBlockLog2) {
    header_.type = type_code(base.type);
    header_.shape = changed.shape;
    if (header_.value_type().name != base.type) header_.shape = {changed.bytes.size()};
  }

  std::vector<std::uint8_t> run() {
    sample();
    list();
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
  const ValueType& type() const { return header_.value_type(); }

  // Decides on all but the tables.
  void sample() {
    const std::size_t num_values = base_.size() / type().width;
    const std::size_t parts = num_values == 0 ? 0 : (num_values - 1) >> kWholeSampleLog2;
    const auto sample_at = [&](int most) {
      return sample(std::size_t{64} << std::min<int>(std::bit_width(parts), most));
    };
    DeltaCounts counts = sample_at(kMostSteps);
    if (std::bit_width(parts) > kMostStepsOfRare && counts.num_changes() < kEnoughChanges)
      counts = sample_at(kMostStepsOfRare);
    header_.code = choose_code(counts, num_values);
  }

  DeltaCounts sample(std::size_t step) {
    DeltaCounts counts;
    const std::size_t tasks = (blocks_.count() + kBlocksOfSample - 1) / kBlocksOfSample;
    for_tasks(tasks, parallel_, [&](std::int64_t task) {
      const std::size_t first = static_cast<std::size_t>(task) * kBlocksOfSample;
      DeltaCounts part;
      for (std::size_t i = first; i < std::min(first + kBlocksOfSample, blocks_.count()); ++i)
        count_sample(blocks_.of(base_, i), blocks_.of(changed_, i), type(), step, part);
      const std::lock_guard lock(mutex_);
      counts.add(part);
    });
    return counts;
  }

  // Both hashes, and what is to be coded: everything is read from memory once, a lane at a time.
  void list() {
    const std::size_t width = type().width;
    const std::size_t num_leaves = num_lanes(base_.size() / width);
    std::vector<Hash128> base_leaves(num_leaves), leaves(num_leaves);
    listed_.resize(blocks_.count());
    for_tasks(blocks_.count(), parallel_, [&](std::int64_t task) {
      const auto i = static_cast<std::size_t>(task);
      const Bytes base = blocks_.of(base_, i), changed = blocks_.of(changed_, i);
      Pooled<DeltaScratch> scratch;
      SymbolCounts counts;
      for (std::size_t l = 0; l < num_lanes(base.size() / width); ++l) {
        const Bytes from = lane_of(base, width, l), to = lane_of(changed, width, l);
        base_leaves[i * kMostLanes + l] = hash128(from);
        leaves[i * kMostLanes + l] = hash128(to);
        listed_[i][l] = list_lane(from, to, type(), header_.code, counts, *scratch);
      }
      const std::lock_guard lock(mutex_);
      counts_.add(counts);
    });
    header_.base = root_of(base_leaves);
    header_.result = root_of(leaves);
  }

  std::vector<std::vector<std::uint8_t>> code() {
    choose_tables(counts_.by_context, counts_.gaps, header_.code);
    const DeltaEncodeTables tables(header_.code);
    std::vector<std::vector<std::uint8_t>> coded(blocks_.count());
    for_tasks(blocks_.count(), parallel_, [&](std::int64_t task) {
      const auto i = static_cast<std::size_t>(task);
      Pooled<DeltaScratch> scratch;
      coded[i] = code_block(blocks_.of(base_, i), blocks_.of(changed_, i), type(), listed_[i],
                            header_.code, tables, *scratch);
      listed_[i] = {};
    });
    return coded;
  }

  const Bytes base_, changed_;
  const Parallel& parallel_;
  const Parts blocks_;
  DeltaHeader header_;
  std::vector<CodedBlock> listed_;
  SymbolCounts counts_;
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
    const Parts blocks(base_.size(), width_, kBlockLog2);
    const bool in_place = base_.data() == out_.data();
    std::vector<Hash128> base_leaves(num_lanes(base_.size() / width_));
    const auto hash_base = [&](std::size_t i) { hash_lanes(blocks.of(base_, i), i, base_leaves); };
    const bool first = in_place || verification == Verification::kFirst;
    if (first) {
      for_tasks(blocks.count(), parallel_,
                [&](std::int64_t task) { hash_base(static_cast<std::size_t>(task)); });
      check_base_hash(header_, base_leaves);
    }
    if (in_place && header_.block_bytes.empty()) return;
    const Groups groups(blocks.count());
    if (in_place) undo_.resize(groups.count());
    try {
      decode(blocks, groups, first ? std::function<void(std::size_t)>() : hash_base);
      if (!first) check_base_hash(header_, base_leaves);
      if (damaged_ || root_of(leaves_) != header_.result)
        fail(PayloadErrorCode::kBadBlock, damaged_
                                              ? "a damaged delta: a block does not decode"
                                              : "a damaged delta: another result than encoded");
    } catch (...) {  // also without memory, and what `parallel` throws
      for (std::size_t i = 0; i < undo_.size(); ++i)
        undo_blocks(undo_[i], width_, blocks.of(out_, groups.first(i), groups.size));
      throw;
    }
  }

 private:
  void hash_lanes(Bytes block, std::size_t i, std::vector<Hash128>& leaves) const {
    for (std::size_t l = 0; l < num_lanes(block.size() / width_); ++l)
      leaves[i * kMostLanes + l] = hash128(lane_of(block, width_, l));
  }

  void decode(const Parts& blocks, const Groups& groups,
              const std::function<void(std::size_t)>& before) {
    std::vector<Bytes> coded(blocks.count());
    std::size_t offset = header_bytes_;
    for (std::size_t i = 0; i < header_.block_bytes.size(); ++i) {
      coded[i] = payload_.subspan(offset, header_.block_bytes[i]);
      offset += header_.block_bytes[i];
    }
    const DeltaTables tables(header_.code);
    leaves_.resize(num_lanes(base_.size() / width_));
    for_tasks(groups.count(), parallel_, [&](std::int64_t task) {
      const auto g = static_cast<std::size_t>(task);
      const std::size_t first = groups.first(g), count = groups.size_of(g);
      const std::span<std::uint8_t> values = blocks.of(out_, first, count);
      for (std::size_t i = first; before && i < first + count; ++i) before(i);
      if (undo_.empty())
        std::memcpy(values.data(), blocks.of(base_, first, count).data(), values.size());
      Pooled<DeltaScratch> scratch;
      if (decode_blocks(std::span(coded).subspan(first, count), values, header_.value_type(),
                        tables, *scratch, undo_.empty() ? nullptr : &undo_[g]) != DecodeStatus::kOk)
        damaged_ = true;
      for (std::size_t i = first; i < first + count; ++i)
        hash_lanes(blocks.of(out_, i), i, leaves_);
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
  const Parts lanes(tensor.bytes.size(), type_of(tensor).width, kLaneLog2);
  std::vector<Hash128> leaves(lanes.count());
  for_tasks(lanes.count(), parallel, [&](std::int64_t task) {
    const auto i = static_cast<std::size_t>(task);
    leaves[i] = hash128(lanes.of(tensor.bytes, i));
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
