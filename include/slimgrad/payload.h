// Tensors as compact, checked bytes, and back; and files of several tensors with names.
// docs/format.md has the bytes; payload_info.h what a payload's header says.
//
//   std::vector<std::uint8_t> payload = encode({values.data(), DType::kFloat32, {64, 128}});
//   PayloadInfo info = inspect(payload);
//   std::vector<std::uint8_t> bytes = decode(payload);   // info.num_bytes() of them
//
// **Kinds.** kLossless gives back every bit, of all five types. kUniform (2 to 8 bits, or a rate)
// and kFloat (codes of a FloatFormat) quantize; kPruned is for what prune() made: zeros,
// +-threshold and survivors; kTopk keeps the largest of every so many values. They take float32,
// bfloat16 and float16. A tensor that its kind would
// not make smaller is stored as it is (kRaw): no payload is more than 64 bytes longer than a tensor
// of at least one value.
//
// A lossless float32 tensor with many zeros is coded as kPruned with exact survivors and a
// threshold of 0, which is lossless too.
//
// **NaN and Inf.** kLossless and kPruned with exact survivors keep them, bit for bit. The others
// have no codes for them: InvalidArgument, with their number.
//
// **Containers.** A container is a file with an index, then one payload for each tensor: what
// `slimgrad encode` makes of a .safetensors file.
//
//   const ContainerIndex index = parse_container(file);
//   for (const ContainerEntry& entry : index.entries) {
//     const auto payload = file.subspan(entry.offset, entry.num_bytes);
//     check_entry(entry, inspect(payload));
//     decode(payload);
//   }
//
// **Errors.** InvalidArgument for misuse; PayloadError for bytes that are not a whole, undamaged
// payload or container. Bytes are not trusted: nothing is allocated by a length that they do not
// bear out, and an index takes at most 8 times the size of the file and 64 KiB, as text and again
// in memory.
//
// The same tensor and options give the same bytes on every CPU and number of threads. Functions may
// be called from several threads at once.
#ifndef SLIMGRAD_PAYLOAD_H_
#define SLIMGRAD_PAYLOAD_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <slimgrad/apply.h>
#include <slimgrad/error.h>
#include <slimgrad/float_format.h>
#include <slimgrad/payload_info.h>

namespace slimgrad {

// kNone is for kUniform and kFloat: codes of exactly as many bits as they have, for links that are
// faster than a coder.
enum class EntropyCoder { kRans, kHuffman, kNone };
std::string_view entropy_coder_name(EntropyCoder coder);  // "rans", "huffman", "none"
EntropyCoder parse_entropy_coder(std::string_view name);

// The values in the order of the shape, without gaps, aligned as their type asks. They are only
// read. At most 32 dimensions. In Fortran order the first index runs fastest; the values are
// coded, and come back, in the order in which they lie.
struct TensorView {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  std::vector<std::uint64_t> shape;
  bool fortran_order = false;
};

struct EncodeOptions {
  PayloadKind kind = PayloadKind::kLossless;
  EntropyCoder coder = EntropyCoder::kRans;

  // kUniform. The probabilities are counted in every block, or come from a law fitted to the
  // non-zero values, whose parameters are all that travels.
  int bits = 8;
  // Instead of bits and scale, with as many levels as it takes (up to 2^20 for each sign):
  // rate: bits a value of the whole payload, above 0 to 16. The step is chosen for it, from a
  // sample of every block or, with a model, in closed form from the fitted law; if the payload
  // misses it by more than 1.5 % (3.5 % below 2^18 values), PayloadEncoder::correct() chooses
  // another. At low rates this is stochastic pruning and rounding in one.
  // PayloadInfo::rate_reached() says whether the tensor has a payload of that size: zeros have not.
  // With an entropy coder of kRans. max_error: the largest error of a value, beside one unit in the
  // last place of its type. The step is twice as large, or as large with stochastic rounding; where
  // that takes more levels than there are, the tensor is coded without loss.
  double rate = 0;
  double max_error = 0;
  TableModel model = TableModel::kCounted;
  // The number of values, evenly spread over the tensor, that a law is fitted to; 0: all. A few
  // thousand get the shape within some percent, which costs a thousandth of a bit per value, and
  // take a hundredth of the time.
  std::size_t fit_sample = 0;
  // kFloat, and kPruned with Survivors::kFloat.
  FloatFormat format = FloatFormat(4, 3);
  // The step of kUniform, or the scale of the format, as a float32. What is beyond the largest code
  // saturates. 0: the largest magnitude of the tensor gets the largest code.
  double scale = 0;
  // Stochastic rounding is unbiased, also below the smallest value of a FloatFormat.
  Rounding rounding = Rounding::kNearest;
  // The seed of stochastic rounding. By default 0 for arrays; drawn from torch's generator for
  // tensors.
  std::optional<std::uint64_t> seed = {};

  // kTopk: of every `of` values, a power of two from 16 to 4096, the k of the largest magnitude are
  // kept, of equal ones those that come first, and zeros never. They become one of 2^bits levels (1
  // to 4 bits), means of what becomes them. Biased: what is not kept is gone unless it is fed back.
  int k = 64, of = 4096;

  // kPruned: how survivors are stored, and the threshold. 0: the smallest magnitude but zero, which
  // is the threshold of whatever prune() returned.
  Survivors survivors = Survivors::kExact;
  double threshold = 0;

  int block_log2 = 18;  // values in a block, 12 to 20

  // Code a tensor with NaN or Inf as kLossless where its kind has no codes for them.
  bool exact_if_nonfinite = false;
  // Empty, or the memory of the tensor's values, where the encoder then writes what a reader will
  // get back: kUniform, kFloat, kTopk, and whatever is exact. (What kPruned does to survivors is
  // seen only by decoding.)
  std::span<std::uint8_t> replaced = {};
};

inline constexpr std::uint64_t kNoByteLimit = std::uint64_t{1} << 60;

std::vector<std::uint8_t> encode(const TensorView& tensor, const EncodeOptions& options = {});
// Throws PayloadError instead of allocating more than max_bytes. A block of equal values takes a
// few bytes, so a short payload may rightly stand for a large tensor: a program that decodes
// payloads of others says what is too large. The checksum finds damage; it is no signature.
std::vector<std::uint8_t> decode(std::span<const std::uint8_t> payload,
                                 std::uint64_t max_bytes = kNoByteLimit);
PayloadInfo inspect(std::span<const std::uint8_t> payload);

// What encode() of the tensor can need at most.
std::uint64_t encode_bound(const TensorView& tensor);
// Into memory of the caller; returns the size. Throws InvalidArgument if `out` is too small.
std::size_t encode_into(const TensorView& tensor, const EncodeOptions& options,
                        std::span<std::uint8_t> out);
// Throws InvalidArgument unless out.size() == inspect(payload).num_bytes(); `out` has to be aligned
// for the values. After a PayloadError its contents are unspecified.
void decode_into(std::span<const std::uint8_t> payload, std::span<std::uint8_t> out);

// The same for callers with threads of their own:
//
//   PayloadEncoder encoder(tensor, options);
//   parallel_for(0, encoder.num_blocks(), [&](first, last) { encoder.run(first, last); });
//   std::vector<std::uint8_t> payload(encoder.finish());
//   encoder.write(payload);
//
// and with a rate, for which a step may have to be corrected,
//
//   do parallel_for(...); while (encoder.correct());
//
// The tensor must outlive the encoder. run() of disjoint ranges may be concurrent; finish() comes
// after all of them, and gives the size of the payload.
//
// Memory of the caller, `out`, saves a copy: blocks are coded into it, a range without gaps, and
// write(out.first(finish())) closes the gaps between ranges. It should have encode_bound() bytes;
// with less, blocks may take memory of their own for a while, and with a sixtieth more none of the
// default size does, whatever the values are. It must outlive the encoder, and not overlap the
// tensor.
class PayloadEncoder {
 public:
  PayloadEncoder(const TensorView& tensor, const EncodeOptions& options,
                 std::span<std::uint8_t> out = {});
  ~PayloadEncoder();

  std::size_t num_blocks() const;
  void run(std::size_t first, std::size_t last);
  // After all blocks: whether they have to run again, because the step was changed for the payload
  // to have the rate that was asked for. Rarely true, at most four times, never without a rate.
  bool correct();
  std::size_t finish();
  // REQUIRES: out has finish() bytes.
  void write(std::span<std::uint8_t> out) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// When the checksum is compared: by the constructor, or by verify(), which the caller must then
// call after the last run() and before using the values, or believing info(). kLast is faster, as
// the payload comes from memory while blocks are decoded, and for the checksum from a cache. The
// errors are the same: behind magic and version, if the checksum is wrong they say so, whatever
// else is.
enum class Verification { kFirst, kLast };

// The payload must outlive the decoder. The constructor checks everything but the blocks, and with
// kLast the checksum; run() throws PayloadError for a block that does not decode, and writes only
// to the part of `out`, which has info().num_bytes() bytes and is aligned for the type of the
// values, that its blocks make up.
class PayloadDecoder {
 public:
  explicit PayloadDecoder(std::span<const std::uint8_t> payload,
                          Verification verification = Verification::kFirst);
  ~PayloadDecoder();

  const PayloadInfo& info() const;
  std::size_t num_blocks() const;  // of a raw payload, pieces
  void run(std::size_t first, std::size_t last, std::span<std::uint8_t> out) const;
  // The same, with the values added to those of `sums`, which has info().num_values(). The type is
  // float32, bfloat16 or float16; else InvalidArgument.
  void add(std::size_t first, std::size_t last, std::span<float> sums) const;
  // With kLast: throws PayloadError if the checksum is wrong. Compares it anew every time.
  void verify() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct ContainerEntry {
  std::string name;  // UTF-8
  std::string type;  // in the words of .safetensors files: "F32", "BF16", "I64", ...
  std::vector<std::uint64_t> shape;
  std::uint64_t num_bytes = 0;  // of the payload
  std::uint64_t offset = 0;     // of the payload, in the file
};

struct ContainerIndex {
  // The metadata of the whole file, in order, no key twice; nullopt if it has none.
  std::optional<std::vector<std::pair<std::string, std::string>>> metadata;
  std::vector<ContainerEntry> entries;  // no two with the same name
};

// Whether the file begins as a container does. Other .sg files hold one payload.
bool is_container(std::span<const std::uint8_t> file);

// Checks the index, and that it and the payloads fill the file exactly. The payloads themselves are
// not looked at. `max_bytes`: what the index, with the metadata, may take beyond 64 KiB, for
// programs that read files of others. Throws PayloadError.
ContainerIndex parse_container(std::span<const std::uint8_t> file,
                               std::uint64_t max_bytes = kNoByteLimit);

// Throws PayloadError unless the payload with this header is the one that the index describes.
void check_entry(const ContainerEntry& entry, const PayloadInfo& info);

// What comes before the payloads; the entries' offsets are not looked at. Throws InvalidArgument
// for more than 32 dimensions, a length of 2^63 or more, two tensors of one name, metadata with a
// key twice, or text that is not UTF-8.
std::vector<std::uint8_t> container_header(const ContainerIndex& index);

// The type of a payload that holds a tensor of this type as it is. nullopt for others (I64, BOOL,
// ...): the payload of such a tensor has its bytes, as int8 with one dimension.
std::optional<DType> payload_dtype(std::string_view type);

}  // namespace slimgrad

#endif  // SLIMGRAD_PAYLOAD_H_
