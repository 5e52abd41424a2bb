#include <bit>
#include <cstring>

#include "arrays/coding/delta_block.h"

namespace slimgrad {
namespace {

using namespace delta_format;
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

template <typename Word>
class BlockDecode {
 public:
  BlockDecode(std::span<std::uint8_t> values, const ValueType& type, const DeltaTables& tables,
              DeltaScratch& scratch, DeltaUndo* undo)
      : values_(values.data()),
        num_values_(values.size() / sizeof(Word)),
        type_(type),
        tables_(tables),
        scratch_(scratch),
        undo_(undo) {}

  DecodeStatus run(std::span<const std::uint8_t> bytes) {
    kernels::value_classes(values_, num_values_, type_, tables_.code.split, scratch_.classes());
    kernels::mark_dense(scratch_.classes(), num_values_, scratch_.marks());
    std::size_t num_dense = 0, num_sparse;
    for (std::size_t m = 0; m < num_marks(); ++m)
      num_dense += static_cast<std::size_t>(std::popcount(scratch_.marks()[m]));
    if (undo_ != nullptr && tables_.code.all_dense())
      undo_->values.assign(values_, values_ + num_values_ * sizeof(Word));
    if (num_dense >= kManyDense) {
      const DecodeStatus status = many_dense(bytes);
      if (status != DecodeStatus::kOk) return status;
      num_dense = 0;
    }
    if (!take_varint(bytes, num_sparse)) return DecodeStatus::kTruncated;
    if (num_dense + num_sparse == 0)
      return bytes.empty() ? DecodeStatus::kOk : DecodeStatus::kTrailingBytes;
    if (num_sparse > num_values_ || (num_sparse > 0 && !tables_.code.has_gaps()))
      return DecodeStatus::kBadTable;
    WideRansWords words = {bytes.data(), bytes.data() + bytes.size()};
    std::array<WideRansDecoder, 1> decoder;
    if (!decoder[0].load(words)) return DecodeStatus::kBadFinalState;
    if (num_dense > 0) dense(decoder, words);
    if (num_sparse > 0 && !sparse(num_sparse, decoder[0], words)) return DecodeStatus::kTruncated;
    return ended(words, decoder);
  }

 private:
  Word load(std::size_t i) const {
    Word word;
    std::memcpy(&word, values_ + i * sizeof(Word), sizeof(Word));
    return word;
  }
  void change(std::size_t i, Word from, std::int64_t difference) {
    if (undo_ != nullptr && !tables_.code.all_dense()) {
      undo_->positions.push_back(static_cast<std::uint32_t>(i));
      const std::uint8_t* const old = values_ + i * sizeof(Word);
      undo_->values.insert(undo_->values.end(), old, old + sizeof(Word));
    }
    const Word to = add_difference(from, difference, type_.kind);
    std::memcpy(values_ + i * sizeof(Word), &to, sizeof(Word));
  }
  static std::int64_t take_difference(WideRansDecoder& decoder, const std::uint32_t* slots,
                                      WideRansWords& words) {
    const std::uint8_t symbol = decoder.symbol(slots, words);
    return symbol < 15 ? difference_of(symbol, 0)
                       : difference_of(symbol, decoder.raw(extra_bits_of(symbol), words));
  }

  std::size_t num_marks() const { return (num_values_ + 63) / 64; }

  // The dense values, by decoders that take turns.
  template <std::size_t num_decoders>
  void dense(std::array<WideRansDecoder, num_decoders>& decoders, WideRansWords& words) {
    const std::uint64_t* const marks = scratch_.marks();
    std::size_t next = 0;
    for (std::size_t m = 0; m < num_marks(); ++m)
      for (std::uint64_t word = marks[m]; word != 0; word &= word - 1) {
        const std::size_t i = 64 * m + static_cast<std::size_t>(std::countr_zero(word));
        const Word from = load(i);
        const int context = dense_context(exponent_of(from, type_), tables_.code.top);
        const std::int64_t difference =
            take_difference(decoders[next], tables_.slots[context], words);
        next = (next + 1) % num_decoders;
        if (difference != 0) change(i, from, difference);
      }
  }

  // A stream of their own, off the front of `bytes`.
  DecodeStatus many_dense(std::span<const std::uint8_t>& bytes) {
    std::size_t size;
    if (!take_varint(bytes, size) || size > bytes.size()) return DecodeStatus::kTruncated;
    WideRansWords words = {bytes.data(), bytes.data() + size};
    std::array<WideRansDecoder, kDenseStates> decoders;
    for (WideRansDecoder& decoder : decoders)
      if (!decoder.load(words)) return DecodeStatus::kBadFinalState;
    dense(decoders, words);
    bytes = bytes.subspan(size);
    return ended(words, decoders);
  }

  bool sparse(std::size_t count, WideRansDecoder& decoder, WideRansWords& words) {
    std::uint16_t* const gaps = scratch_.gaps(count);
    for (std::size_t k = 0; k < count; ++k) {
      const std::uint8_t symbol = decoder.symbol(tables_.gaps.slots(), words);
      const std::uint64_t extra = symbol < 16 ? 0 : decoder.raw(gap_extra_bits(symbol), words);
      gaps[k] = static_cast<std::uint16_t>(gap_of(symbol, extra));
    }
    std::uint32_t* const sums = scratch_.sums();
    std::uint32_t* const positions = scratch_.positions(count);
    const std::uint8_t* const classes = scratch_.classes();
    kernels::sum_hazards(classes, num_values_, tables_.hazards, sums);
    if (!kernels::find_positions({gaps, count}, classes, num_values_, tables_.hazards, sums,
                                 decoder, words, positions))
      return false;
    for (std::size_t k = 0; k < count; ++k) {
      const std::size_t i = positions[k];
      const std::uint32_t* const slots = tables_.slots[sparse_context(classes[i])];
      change(i, load(i), take_difference(decoder, slots, words));
    }
    return true;
  }

  static DecodeStatus ended(const WideRansWords& words, std::span<const WideRansDecoder> decoders) {
    if (words.truncated) return DecodeStatus::kTruncated;
    if (words.next != words.end) return DecodeStatus::kTrailingBytes;
    for (const WideRansDecoder& decoder : decoders)
      if (decoder.state != kernels::kWideLow) return DecodeStatus::kBadFinalState;
    return DecodeStatus::kOk;
  }

  std::uint8_t* const values_;
  const std::size_t num_values_;
  const ValueType& type_;
  const DeltaTables& tables_;
  DeltaScratch& scratch_;
  DeltaUndo* const undo_;
};

}  // namespace

DeltaTables::DeltaTables(const DeltaCode& of)
    : code(of), hazards(hazards_of(of)), tables(of.tables.size()), slots() {
  if (tables.empty()) return;  // nothing changed
  for (std::size_t t = 0; t < tables.size(); ++t)
    kernels::build_decode_table(of.tables[t], tables[t]);
  for (std::size_t c = 0; c < slots.size(); ++c) slots[c] = tables[of.table_of[c]].slots();
  if (of.has_gaps()) kernels::build_decode_table(of.gaps, gaps);
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
