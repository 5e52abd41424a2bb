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
using Bytes = std::span<const std::uint8_t>;

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
      : values_(values), type_(type), tables_(tables), scratch_(scratch), undo_(undo) {}

  ~BlockDecode() {
    if (undo_ == nullptr || all_dense()) return;
    undo_->positions.resize(num_undo_);  // what was changed before an error
    undo_->values.resize(num_undo_ * sizeof(Word));
  }

  DecodeStatus run(std::span<const Bytes> blocks) {
    for (std::size_t b = 0; b < blocks.size(); ++b)
      if (const DecodeStatus status = open_lanes(blocks[b], b * kMostLanes);
          status != DecodeStatus::kOk)
        return status;
    const std::span<ChangeLane> lanes = std::span(lanes_).first(num_open_);
    std::size_t num_changes = 0;
    for (const ChangeLane& lane : lanes) num_changes += lane.num_changes;
    kernels::DeltaChange* changes = scratch_.changes(num_changes);
    for (ChangeLane& lane : lanes)
      lane.changes = std::exchange(changes, changes + lane.num_changes);
    keep_dense(num_changes);
    kernels::decode_dense(lanes, type_, tables_.by_context);
    if (!kernels::decode_changes(lanes, tables_.by_context)) return DecodeStatus::kTruncated;
    for (std::size_t l = 0; l < num_open_; ++l)
      for (const kernels::DeltaChange& c : std::span(lanes[l].changes, lanes[l].num_changes))
        change(first_[l] + c.position, difference_of(c.symbol, c.extra));
    for (const ChangeLane& lane : lanes) {
      if (lane.words.next != lane.words.end) return DecodeStatus::kTrailingBytes;
      if (lane.decoder.state != 0) return DecodeStatus::kBadFinalState;
    }
    return DecodeStatus::kOk;
  }

 private:
  bool all_dense() const { return tables_.code.all_dense(); }

  // Reads the sizes, and finds the dense values and the classes of the lanes that have changes.
  DecodeStatus open_lanes(Bytes bytes, std::size_t first_lane) {
    if (bytes.empty()) return DecodeStatus::kOk;
    const std::size_t count =
        std::min(kMostLanes, num_lanes(values_.size() / sizeof(Word)) - first_lane);
    std::array<std::size_t, kMostLanes> sizes;
    std::size_t sum = 0;
    for (std::size_t l = 0; l < count; ++l) {
      if (!take_varint(bytes, sizes[l])) return DecodeStatus::kTruncated;
      sum += sizes[l];
    }
    if (sum != bytes.size()) return DecodeStatus::kTrailingBytes;
    for (std::size_t l = 0; l < count; ++l) {
      if (sizes[l] == 0) continue;
      Bytes stream = bytes.first(sizes[l]);
      bytes = bytes.subspan(sizes[l]);
      const std::span<std::uint8_t> values = lane_of(values_, sizeof(Word), first_lane + l);
      first_[num_open_] = (first_lane + l) * kLaneValues;
      ChangeLane& lane = lanes_[num_open_];
      lane.values = values.data();
      lane.num_values = values.size() / sizeof(Word);
      if (all_dense()) {
        lane.num_dense = lane.num_values;
      } else {
        if (!take_varint(stream, lane.num_changes)) return DecodeStatus::kTruncated;
        if (lane.num_changes > lane.num_values ||
            (lane.num_changes > 0 && !tables_.code.has_gaps()))
          return DecodeStatus::kBadTable;
        find_classes(lane);
      }
      if (!open_stream(stream, lane.decoder, lane.words)) return DecodeStatus::kBadFinalState;
      ++num_open_;
    }
    return DecodeStatus::kOk;
  }

  void find_classes(ChangeLane& lane) {
    std::uint8_t* const classes = scratch_.classes(num_open_);
    kernels::value_classes(lane.values, lane.num_values, type_, tables_.code.split, classes);
    lane.classes = classes;
    if (lane.num_changes > 0) {
      std::uint32_t* const sums = scratch_.sums(num_open_);
      kernels::sum_hazards(classes, lane.num_values, tables_.by_context.hazards, sums);
      lane.sums = sums;
    }
    std::uint64_t* const marks = scratch_.dense_marks();
    kernels::mark_dense(classes, lane.num_values, marks);
    std::uint32_t* const positions = scratch_.positions(num_open_);
    lane.num_dense = kernels::list_marks(marks, lane.num_values, positions);
    lane.positions = positions;
  }

  // Makes room for what is undone, and keeps the dense values.
  void keep_dense(std::size_t num_changes) {
    if (undo_ == nullptr) return;
    if (all_dense()) return undo_->values.assign(values_.begin(), values_.end());
    std::size_t count = num_changes;
    for (std::size_t l = 0; l < num_open_; ++l) count += lanes_[l].num_dense;
    undo_->positions.resize(count);
    undo_->values.resize(count * sizeof(Word));
    for (std::size_t l = 0; l < num_open_; ++l)
      for (std::size_t k = 0; k < lanes_[l].num_dense; ++k) {
        const std::size_t i = first_[l] + lanes_[l].positions[k];
        keep(i, load(i));
      }
  }

  Word load(std::size_t i) const {
    Word word;
    std::memcpy(&word, values_.data() + i * sizeof(Word), sizeof(Word));
    return word;
  }
  void keep(std::size_t i, Word value) {
    undo_->positions[num_undo_] = static_cast<std::uint32_t>(i);
    std::memcpy(undo_->values.data() + num_undo_ * sizeof(Word), &value, sizeof(Word));
    ++num_undo_;
  }
  void change(std::size_t i, std::int64_t difference) {
    const Word from = load(i), to = add_difference(from, difference, type_.kind);
    if (undo_ != nullptr) keep(i, from);
    std::memcpy(values_.data() + i * sizeof(Word), &to, sizeof(Word));
  }

  const std::span<std::uint8_t> values_;
  const ValueType& type_;
  const DeltaTables& tables_;
  DeltaScratch& scratch_;
  DeltaUndo* const undo_;
  // Only lanes that have changes use these.
  std::array<ChangeLane, kernels::kMostTurns> lanes_ = {};
  std::array<std::size_t, kernels::kMostTurns> first_ = {};
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
    by_context.dense[static_cast<std::size_t>(e)] = slots(dense_context(e, of.top));
  if (!of.has_gaps()) return;
  kernels::build_decode_table(of.gaps, gap_table);
  by_context.hazards = hazards_of(of);
  by_context.gaps = gap_table.slots();
  for (int c = 1; c < kClasses; ++c)
    by_context.symbols[static_cast<std::size_t>(c)] = slots(sparse_context(c));
}

DecodeStatus decode_blocks(std::span<const Bytes> blocks, std::span<std::uint8_t> values,
                           const ValueType& type, const DeltaTables& tables, DeltaScratch& scratch,
                           DeltaUndo* undo) {
  if (std::ranges::all_of(blocks, &Bytes::empty)) return DecodeStatus::kOk;
  switch (type.width) {
    case 1:
      return BlockDecode<std::uint8_t>(values, type, tables, scratch, undo).run(blocks);
    case 2:
      return BlockDecode<std::uint16_t>(values, type, tables, scratch, undo).run(blocks);
    case 4:
      return BlockDecode<std::uint32_t>(values, type, tables, scratch, undo).run(blocks);
    default:
      return BlockDecode<std::uint64_t>(values, type, tables, scratch, undo).run(blocks);
  }
}

void undo_blocks(const DeltaUndo& undo, std::size_t width, std::span<std::uint8_t> values) {
  if (undo.positions.empty()) std::copy(undo.values.begin(), undo.values.end(), values.begin());
  for (std::size_t k = 0; k < undo.positions.size(); ++k)
    std::memcpy(values.data() + undo.positions[k] * width, undo.values.data() + k * width, width);
}

}  // namespace slimgrad
