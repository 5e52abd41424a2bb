// What happens to a tensor between two processes: one description, the same on every rank.
//
//   Codec codec = Codec::parse("uniform4");     // the names that docs/distributed.md lists
//   codec.model = TableModel::kGennorm;
//
// A plain value; threads may share it. exchange.h has what takes one.
#ifndef SLIMGRAD_CODEC_H_
#define SLIMGRAD_CODEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <slimgrad/payload.h>

namespace slimgrad {

struct Codec {
  // kLossless, kUniform (`bits`, or `rate`), kFloat (`format`), kPruned (to `sparsity`) or kTopk
  // (`k` of every `of` values at `bits` bits).
  PayloadKind kind = PayloadKind::kUniform;
  int bits = 8;  // 2 to 8; of kTopk 1 to 4
  // kUniform: above 0, bits a value that every tensor takes on the wire, up to 16, instead of
  // `bits`.
  double rate = 0;
  FloatFormat format = FloatFormat(5, 2);
  // kNone: codes of exactly as many bits as they have, for kUniform and kFloat.
  EntropyCoder coder = EntropyCoder::kRans;
  TableModel model = TableModel::kCounted;  // where probabilities of uniform codes come from
  double sparsity = 0.9;
  // kTopk, which is biased: what is not kept is lost unless error_feedback sends it later.
  int k = 64, of = 4096;
  Survivors survivors = Survivors::kExact;
  int block_log2 = 18;  // 12 to 20
  // Without one: kStochastic, which is unbiased, in both phases of an exchange; with error feedback
  // kNearest, as what is fed back has to be smaller than the gradient, and the noise of few bits is
  // not. kNearest without error feedback is refused: small gradients would vanish for good.
  std::optional<Rounding> rounding;
  bool error_feedback = false;  // what rounding loses is added to the next gradient
  std::int64_t seed = 0;
  std::int64_t min_elements = 4096;  // tensors of fewer values travel as they are

  // "lossless", "fp8" to "fp2", "uniform8" to "uniform2", "packed8" to "packed4", "pruned", "topk"
  // (2 bits, error feedback), which are names(); or a rate such as "rate2" or "rate1.5", the k of
  // topk, as in "topk32", or a format such as "1-4-3". Throws InvalidArgument for other names.
  static Codec parse(std::string_view name);
  static std::vector<std::string> names();

  // Whether a codec of this kind feeds back what it loses where nobody said so: what is biased
  // does.
  static bool feeds_back_by_default(PayloadKind kind) { return kind == PayloadKind::kTopk; }

  // One of names(), a rate, a k or a format.
  std::string name() const;
  bool is_exact() const { return kind == PayloadKind::kLossless; }
  // Whether an all_reduce sends what each rank codes to all others, and each adds up, instead of
  // coding parts of the sum once more: of the largest of every rank, the largest would be left.
  bool sends_to_all() const { return kind == PayloadKind::kTopk; }
  Rounding rounding_in_force() const {
    return rounding.value_or(error_feedback ? Rounding::kNearest : Rounding::kStochastic);
  }
  // Throws InvalidArgument for settings out of range, and for those that do not go together.
  void check() const;

  // Every setting once: calls field(name, member) in this order. What describes, compares, reads
  // or writes codecs visits.
  template <typename Self, typename Field>
  static void visit(Self& self, const Field& field) {
    field("kind", self.kind);
    field("bits", self.bits);
    field("rate", self.rate);
    field("format", self.format);
    field("coder", self.coder);
    field("model", self.model);
    field("sparsity", self.sparsity);
    field("k", self.k);
    field("of", self.of);
    field("survivors", self.survivors);
    field("block_log2", self.block_log2);
    field("rounding", self.rounding);
    field("error_feedback", self.error_feedback);
    field("seed", self.seed);
    field("min_elements", self.min_elements);
  }

  friend bool operator==(const Codec&, const Codec&) = default;
};

}  // namespace slimgrad

#endif  // SLIMGRAD_CODEC_H_
