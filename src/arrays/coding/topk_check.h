// What payloads and codecs say of a rule that there is not.
#ifndef SLIMGRAD_ARRAYS_CODING_TOPK_CHECK_H_
#define SLIMGRAD_ARRAYS_CODING_TOPK_CHECK_H_

#include "base/check.h"
#include "formats/topk.h"

namespace slimgrad {

inline void check_topk(std::string_view op, int k, int of, int bits) {
  check(bits >= kMinTopkBits && bits <= kMaxTopkBits, op, "1 to 4 bits with topk", bits);
  check(is_topk_rule(1, of, bits), op, "of to be a power of two from 16 to 4096", of);
  check(is_topk_rule(k, of, bits), op, "k from 1 to of, which is " + std::to_string(of), k);
}

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_CODING_TOPK_CHECK_H_
