#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "arrays/coding/delta_block.h"

namespace slimgrad {
namespace {

using namespace delta_format;
using kernels::ChangeLane;
using kernels::WideRansDecoder;
using kernels::WideRansWords;

// A number of at most five bytes off the front of `bytes`; false if there is none in shortest form.
bool take_varint(std::span<const std::uint8_t>& bytes, std::size_t& value) {
  value = 0;
  for (int shift = 0; shift < 35; shift += 7) {
    if (bytes.empty()) return false;
    const std::uint8_t byte = bytes.front();
    bytes = bytes.subspan(1);
    value |= std::size_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return byte != 0 || shift == 0;
  }
  return false;
}

// The state of a stream: eight bytes, then words, or fewer and no words.
bool open_stream(std::span<const std::uint8_t> bytes, WideRansDecoder& decoder,
                 WideRansWords& words) {
  words = {bytes.data(), bytes.data() + bytes.size()};
  if (bytes.size() >= 8) return bytes.size() % 4 == 0 && decoder.load(words);
  std::memcpy(&decoder.state, bytes.data(), bytes.size());
  words.next = words.end;
  return bytes.size() <= 1 || bytes.back() != 0;
}

template <typename Word>
class BlockDecode {
 public:
  BlockDecode(std::span<std::uint8_t> values, const ValueType& type, const DeltaTables& tables,
              DeltaScratch& scratch, DeltaUndo* undo)
      : values_(values),
        num_lanes_(num_lanes(values.size() / sizeof(Word))),
        type_(type),
        tables_(tables),
        scratch_(scratch),
        undo_(undo) {}

  ~BlockDecode() {
    if (undo_ == nullptr || tables_.code.all_dense()) return;
    undo_->positions.resize(num_undo_);  // what was changed before an error
    undo_->values.resize(num_undo_ * sizeof(Word));
  }

  DecodeStatus run(std::span<const std::uint8_t> bytes) {
    const DecodeStatus status = open_lanes(bytes);
    if (status != DecodeStatus::kOk) return status;
    const bool all_dense = tables_.code.all_dense();
    if (undo_ != nullptr && all_dense) undo_->values.assign(values_.begin(), values_.end());
    reserve_undo();
    if (all_dense)
      decode_dense([](std::size_t, std::size_t k) { return k; });
    else
      decode_dense([this](std::size_t lane, std::size_t k) {
        return std::size_t{scratch_.positions(lane)[k]};
      });
    if (!all_dense && !decode_sparse()) return DecodeStatus::kTruncated;
    for (const ChangeLane& lane : std::span(lanes_).first(num_open_)) {
      if (lane.words.next != lane.words.end) return DecodeStatus::kTrailingBytes;
      if (lane.decoder.state != 0) return DecodeStatus::kBadFinalState;
    }
    return DecodeStatus::kOk;
  }

 private:
  // Reads the sizes, and finds the dense values and the classes of the lanes that have changes.
  DecodeStatus open_lanes(std::span<const std::uint8_t> bytes) {
    std::array<std::size_t, kMostLanes> sizes;
    std::size_t sum = 0;
    for (std::size_t l = 0; l < num_lanes_; ++l) {
      if (!take_varint(bytes, sizes[l])) return DecodeStatus::kTruncated;
      sum += sizes[l];
    }
    if (sum != bytes.size()) return DecodeStatus::kTrailingBytes;
    for (std::size_t l = 0; l < num_lanes_; ++l) {
      if (sizes[l] == 0) continue;
      std::span<const std::uint8_t> stream = bytes.first(sizes[l]);
      bytes = bytes.subspan(sizes[l]);
      const std::span<std::uint8_t> values = lane_of(values_, sizeof(Word), l);
      first_[num_open_] = l * kLaneValues;
      ChangeLane& lane = lanes_[num_open_];
      lane.num_values = values.size() / sizeof(Word);
      lane.num_changes = 0;
      if (tables_.code.all_dense()) {
        num_dense_[num_open_] = lane.num_values;
      } else {
        if (!take_varint(stream, lane.num_changes)) return DecodeStatus::kTruncated;
        if (lane.num_changes > lane.num_values ||
            (lane.num_changes > 0 && !tables_.code.has_gaps()))
          return DecodeStatus::kBadTable;
        find_classes(values, lane);
      }
      if (!open_stream(stream, lane.decoder, lane.words)) return DecodeStatus::kBadFinalState;
      ++num_open_;
    }
    return DecodeStatus::kOk;
  }

  void find_classes(std::span<const std::uint8_t> values, ChangeLane& lane) {
    std::uint8_t* const classes = scratch_.classes(num_open_);
    kernels::value_classes(values.data(), lane.num_values, type_, tables_.code.split, classes);
    lane.classes = classes;
    if (lane.num_changes > 0) {
      std::uint32_t* const sums = scratch_.sums(num_open_);
      kernels::sum_hazards(classes, lane.num_values, tables_.sparse.hazards, sums);
      lane.sums = sums;
    }
    std::uint64_t* const marks = scratch_.dense_marks();
    kernels::mark_dense(classes, lane.num_values, marks);
    std::uint32_t *const first = scratch_.positions(num_open_), *next = first;
    for (std::size_t m = 0; m < (lane.num_values + 63) / 64; ++m)
      for (std::uint64_t word = marks[m]; word != 0; word &= word - 1)
        *next++ =
            static_cast<std::uint32_t>(64 * m) + static_cast<std::uint32_t>(std::countr_zero(word));
    num_dense_[num_open_] = static_cast<std::size_t>(next - first);
  }

  void reserve_undo() {
    if (undo_ == nullptr || tables_.code.all_dense()) return;
    std::size_t count = 0;
    for (std::size_t l = 0; l < num_open_; ++l) count += num_dense_[l] + lanes_[l].num_changes;
    undo_->positions.resize(count);
    undo_->values.resize(count * sizeof(Word));
  }

  Word load(std::size_t i) const {
    Word word;
    std::memcpy(&word, values_.data() + i * sizeof(Word), sizeof(Word));
    return word;
  }
  void change(std::size_t i, Word from, std::int64_t difference) {
    if (undo_ != nullptr && !tables_.code.all_dense()) {
      undo_->positions[num_undo_] = static_cast<std::uint32_t>(i);
      std::memcpy(undo_->values.data() + num_undo_ * sizeof(Word), &from, sizeof(Word));
      ++num_undo_;
    }
    const Word to = add_difference(from, difference, type_.kind);
    std::memcpy(values_.data() + i * sizeof(Word), &to, sizeof(Word));
  }

  // The dense values of all lanes, which take turns as in decode_changes().
  template <typename PositionOf>
  void decode_dense(const PositionOf& position_of) {
    std::size_t most = 0;
    for (std::size_t l = 0; l < num_open_; ++l) most = std::max(most, num_dense_[l]);
    for (std::size_t k = 0; k < most; ++k)
      for (std::size_t l = 0; l < num_open_; ++l) {
        if (k >= num_dense_[l]) continue;
        ChangeLane& lane = lanes_[l];
        const std::size_t i = first_[l] + position_of(l, k);
        const Word from = load(i);
        const std::uint32_t* const slots =
            tables_.dense[static_cast<std::size_t>(exponent_of(from, type_))];
        // Whether a dense value changed is not foreseen: one that did not is written, too.
        const std::uint8_t symbol = lane.decoder.symbol(slots, lane.words);
        const std::uint64_t extra =
            symbol < 15 ? 0 : lane.decoder.raw(extra_bits_of(symbol), lane.words);
        change(i, from, difference_of(symbol, extra));
      }
  }

  bool decode_sparse() {
    std::size_t count = 0;
    for (std::size_t l = 0; l < num_open_; ++l) count += lanes_[l].num_changes;
    if (count == 0) return true;
    kernels::DeltaChange* const changes = scratch_.changes(count);
    kernels::DeltaChange* next = changes;
    for (std::size_t l = 0; l < num_open_; ++l)
      lanes_[l].changes = std::exchange(next, next + lanes_[l].num_changes);
    // Lanes without sparse changes have no sums and take no part.
    std::array<ChangeLane, kMostLanes> taking_part;
    std::array<std::size_t, kMostLanes> place;
    std::size_t n = 0;
    for (std::size_t l = 0; l < num_open_; ++l)
      if (lanes_[l].num_changes > 0) {
        place[n] = l;
        taking_part[n++] = lanes_[l];
      }
    if (!kernels::decode_changes(std::span(taking_part).first(n), tables_.sparse)) return false;
    for (std::size_t k = 0; k < n; ++k) {
      const std::size_t l = place[k];
      lanes_[l] = taking_part[k];
      for (const kernels::DeltaChange& c : std::span(lanes_[l].changes, lanes_[l].num_changes)) {
        const std::size_t i = first_[l] + c.position;
        change(i, load(i), difference_of(c.symbol, c.extra));
      }
    }
    return true;
  }

  const std::span<std::uint8_t> values_;
  const std::size_t num_lanes_;
  const ValueType& type_;
  const DeltaTables& tables_;
  DeltaScratch& scratch_;
  DeltaUndo* const undo_;
  // Only lanes that have changes use these.
  std::array<ChangeLane, kMostLanes> lanes_ = {};
  std::array<std::size_t, kMostLanes> first_ = {}, num_dense_ = {};
  std::size_t num_open_ = 0, num_undo_ = 0;
};

}  // namespace

DeltaTables::DeltaTables(const DeltaCode& of) : code(of), tables(of.tables.size()) {
  if (tables.empty()) return;  // nothing changed
  for (std::size_t t = 0; t < tables.size(); ++t)
    kernels::build_decode_table(of.tables[t], tables[t]);
  const auto slots = [this](int context) {
    return tables[code.table_of[static_cast<std::size_t>(context)]].slots();
  };
  for (int e = 0; e < 256; ++e)
    dense[static_cast<std::size_t>(e)] = slots(dense_context(e, of.top));
  if (!of.has_gaps()) return;
  kernels::build_decode_table(of.gaps, gap_table);
  sparse.hazards = hazards_of(of);
  sparse.gaps = gap_table.slots();
  for (int c = 1; c < kClasses; ++c)
    sparse.symbols[static_cast<std::size_t>(c)] = slots(sparse_context(c));
}

DecodeStatus decode_block(std::span<const std::uint8_t> bytes, std::span<std::uint8_t> values,
                          const ValueType& type, const DeltaTables& tables, DeltaScratch& scratch,
                          DeltaUndo* undo) {
  if (bytes.empty()) return DecodeStatus::kOk;
  switch (type.width) {
    case 1:
      return BlockDecode<std::uint8_t>(values, type, tables, scratch, undo).run(bytes);
    case 2:
      return BlockDecode<std::uint16_t>(values, type, tables, scratch, undo).run(bytes);
    case 4:
      return BlockDecode<std::uint32_t>(values, type, tables, scratch, undo).run(bytes);
    default:
      return BlockDecode<std::uint64_t>(values, type, tables, scratch, undo).run(bytes);
  }
}

void undo_block(const DeltaUndo& undo, std::size_t width, std::span<std::uint8_t> values) {
  if (undo.positions.empty()) std::copy(undo.values.begin(), undo.values.end(), values.begin());
  for (std::size_t k = 0; k < undo.positions.size(); ++k)
    std::memcpy(values.data() + undo.positions[k] * width, undo.values.data() + k * width, width);
}

}  // namespace slimgrad
