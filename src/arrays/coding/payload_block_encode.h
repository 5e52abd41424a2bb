// From values to the blocks of a payload: how each kind makes one, and how long it may be.
// payload_encode.cc puts blocks together; payload_choice.cc decided on the parameters.
#ifndef SLIMGRAD_ARRAYS_CODING_PAYLOAD_BLOCK_ENCODE_H_
#define SLIMGRAD_ARRAYS_CODING_PAYLOAD_BLOCK_ENCODE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <slimgrad/payload.h>

#include "arrays/coding/payload_layout.h"
#include "arrays/coding/payload_parts.h"
#include "arrays/coding/topk_block.h"
#include "base/scratch.h"
#include "kernels/apply/apply.h"
#include "kernels/coding/open_levels.h"

namespace slimgrad {

// What blocks are made from.
struct BlockSource {
  TensorView tensor;
  EncodeOptions options;
  PayloadInfo info;
  std::optional<SharedTable> shared;
  kernels::LoopTreatment rounding;  // to codes of a FloatFormat

  // After info: whatever else belongs to its kind. Throws InvalidArgument.
  void prepare();
  // What a block of so many values takes at most.
  std::size_t block_bound(std::size_t num_values) const;
  // All values become what their levels stand for. Not while blocks are coded: they may have to be
  // coded again. REQUIRES: has_open_levels(info).
  void replace_by_levels() const;
};

// One for each call of PayloadEncoder::run().
class PayloadBlockEncoder {
 public:
  explicit PayloadBlockEncoder(const BlockSource& source);

  // Writes a block at `next`, which moves on. REQUIRES: room for block_bound() bytes.
  void put(BlockRange range, std::uint8_t*& next);

 private:
  template <typename T>
  void put_values(std::span<const T> values, std::size_t first, std::uint8_t*& next);
  template <typename T>
  void put_symbols(std::span<const T> values, std::size_t first, std::uint8_t*& next);
  template <typename T>
  void split_levels(std::span<const T> values, std::size_t first, std::uint8_t* to,
                    kernels::ExtraWriter& writer);
  template <typename T>
  void put_levels(std::span<const T> values, std::size_t first, std::uint8_t*& next);
  template <typename T>
  void put_pruned(std::span<const T> values, std::size_t first, std::uint8_t*& next);
  template <typename T>
  T* replaced(std::size_t first) const;
  template <typename T>
  void replace(std::span<const std::uint8_t> symbols, std::size_t first) const;

  const BlockSource& source_;
  BlockEncoder encoder_;
  PlaneEncoder planes_;
  std::unique_ptr<TopkBlockEncoder> topk_;  // of a topk payload
  Scratch<std::uint8_t> symbols_, extra_;
  std::vector<std::uint8_t> masks_, nonzeros_, survivors_;
  std::array<std::int32_t, kernels::kLevelsAtOnce> levels_;
  bool many_extra_ = false;  // whether most groups of symbols had extra bits, the last time
  std::vector<BFloat16Bits> halves_;
};

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_CODING_PAYLOAD_BLOCK_ENCODE_H_
