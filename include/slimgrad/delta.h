// Deltas: what changed between two tensors, or two sets of tensors, without loss. A trainer sends
// them to servers that have the weights of the step before; a folder of checkpoints keeps them.
// docs/format.md has the bytes, docs/weight_sync.md the use.
//
//   std::vector<std::uint8_t> payload = delta(base, changed);     // both DeltaTensor
//   std::vector<std::uint8_t> values = apply_delta(base.bytes, payload);  // bit for bit
//
// **What is coded.** The bits of a value as an integer in the order of the values; the difference
// of two such integers, in units of the last place, is a symbol. Its probability depends on the
// exponent of the base, which both sides have: a step of Adam is about the learning rate, whatever
// the weight, and a unit in the last place is proportional to it. NaN payloads and -0 come back.
//
// **Proof.** A payload has 128-bit hashes of its base and of its result. Another base is
// WrongBase, a PayloadError, before anything is written, and so is a result that is not the one
// that was encoded. The hashes find accidents; they are no signature.
//
// **Sets.** The delta of two sets of named tensors has a delta for every tensor whose type and
// number of values are as they were, whatever its shape, and a lossless payload for every other; a
// tensor that it does not list was removed. It names both sets by hashes of all their tensors.
//
// Throws InvalidArgument for misuse, PayloadError for bytes that are not a whole, undamaged delta.
// Bytes are not trusted: payload.h has the rules. The same values give the same bytes on every CPU
// and number of threads. Functions may be called from several threads at once.
#ifndef SLIMGRAD_DELTA_H_
#define SLIMGRAD_DELTA_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <slimgrad/error.h>
#include <slimgrad/hash128.h>
#include <slimgrad/payload.h>

namespace slimgrad {

// parallel(n, task): task(0) ... task(n - 1), in any order, and returns when all are done. The
// caller supplies the threads; an empty function means the calling one alone.
using Parallel = std::function<void(std::int64_t, const std::function<void(std::int64_t)>&)>;

// The base is not the one that the delta was made for: a receiver asks for all values instead.
class WrongBase : public PayloadError {
 public:
  explicit WrongBase(const std::string& text)
      : PayloadError(PayloadErrorCode::kBadChecksum, text) {}
};

// Values that lie in memory without gaps, in the order of the shape. `type` is the name that
// .safetensors files have for it: F64, F32, F16, BF16, F8_E4M3, F8_E5M2, I8 to I64, U8 to U64,
// BOOL. Values of any other type are taken as bytes. They need no alignment.
struct DeltaTensor {
  std::string name;  // UTF-8; of a single tensor not looked at
  std::string type;
  std::vector<std::uint64_t> shape;
  std::span<const std::uint8_t> bytes;
};

// The hash of a tensor's bytes: XXH3 of 128 bits of those of every 2^16 values, one after the
// other.
Hash128 hash_of(const DeltaTensor& tensor, const Parallel& parallel = {});

// ---- one tensor --------------------------------------------------------------------------------

struct DeltaInfo {
  std::string type;                  // U8 for a type that is taken as bytes
  std::vector<std::uint64_t> shape;  // of the result
  Hash128 base, result;
  std::uint64_t payload_bytes = 0;
  std::vector<std::uint32_t> block_bytes;  // 0 for a block without a change

  std::uint64_t num_bytes() const;  // of the result, and of the base
};

// Whether the bytes begin as the delta of a tensor does.
bool is_delta(std::span<const std::uint8_t> payload);

// Throws InvalidArgument unless both have the same type and number of values. The result has the
// shape of `changed`.
std::vector<std::uint8_t> delta(const DeltaTensor& base, const DeltaTensor& changed,
                                const Parallel& parallel = {});
DeltaInfo inspect_delta(std::span<const std::uint8_t> payload);

// `out` has as many bytes as the base, and either is its memory or does not overlap it. The base is
// checked before the first byte is written or, with kLast, while it is read; a wrong one is a
// PayloadError in both cases. After an exception `out` is as it was if it is the base's memory, for
// which kLast has no meaning; else its bytes are unspecified.
void apply_delta(std::span<const std::uint8_t> base, std::span<const std::uint8_t> payload,
                 std::span<std::uint8_t> out, const Parallel& parallel = {},
                 Verification verification = Verification::kFirst);
std::vector<std::uint8_t> apply_delta(std::span<const std::uint8_t> base,
                                      std::span<const std::uint8_t> payload,
                                      const Parallel& parallel = {});

// ---- sets of tensors ---------------------------------------------------------------------------

// The hash of a set: of the names, types, shapes and hashes of its tensors, in order of the names.
struct TensorHash {
  std::string name, type;
  std::vector<std::uint64_t> shape;
  Hash128 hash;
};
Hash128 hash_of(std::vector<TensorHash> tensors);

struct DeltaSet {
  Hash128 base, result;
  ContainerIndex index;  // the tensors of the result; offsets count from the first byte of the set
};

bool is_delta_set(std::span<const std::uint8_t> file);
// Checks the index, and that it and the payloads fill the file exactly; `max_bytes` as in
// parse_container(). Throws PayloadError.
DeltaSet parse_delta_set(std::span<const std::uint8_t> file,
                         std::uint64_t max_bytes = kNoByteLimit);
// What comes before the payloads.
std::vector<std::uint8_t> delta_set_header(const DeltaSet& set);

// The whole set in memory. Tensors of the result come in the order of `changed`.
std::vector<std::uint8_t> delta(
    std::span<const DeltaTensor> base, std::span<const DeltaTensor> changed,
    std::optional<std::vector<std::pair<std::string, std::string>>> metadata = std::nullopt,
    const Parallel& parallel = {});

// Throws WrongBase unless the set of these tensors is the base. With kLast a tensor with a delta is
// taken to be the one that the delta names, which applying it proves, and only others are hashed.
void check_base(const DeltaSet& set, std::span<const std::uint8_t> file,
                std::span<const DeltaTensor> base, Verification verification,
                const Parallel& parallel = {});
// Throws PayloadError unless the tensors of the entries are the result: those of deltas, which
// applying them proves, and these, the others.
void check_result(const DeltaSet& set, std::span<const std::uint8_t> file,
                  std::span<const DeltaTensor> others, const Parallel& parallel = {});
// The bytes that an entry stands for: a delta to the base's tensor of that name, or a lossless
// payload. Throws PayloadError unless its payload announces the type and shape of the entry and,
// if it is a delta, `base`, which is null if there is no such tensor, has as many bytes.
std::uint64_t entry_bytes(const ContainerEntry& entry, std::span<const std::uint8_t> payload,
                          const DeltaTensor* base);
// Into memory of the caller, which has entry_bytes(), aligned for the type.
void apply_entry(const ContainerEntry& entry, std::span<const std::uint8_t> payload,
                 const DeltaTensor* base, std::span<std::uint8_t> out,
                 const Parallel& parallel = {});
// The payload of a tensor of a set; `base` is null if the base has none of that name.
std::vector<std::uint8_t> delta_entry(const DeltaTensor* base, const DeltaTensor& changed,
                                      const Parallel& parallel = {});

}  // namespace slimgrad

#endif  // SLIMGRAD_DELTA_H_
