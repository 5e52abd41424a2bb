// What all ranks of an exchange must have in common, compared before anything depends on it.
#ifndef SLIMGRAD_RUNTIME_OUTER_AGREEMENT_H_
#define SLIMGRAD_RUNTIME_OUTER_AGREEMENT_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <slimgrad/exchange.h>

namespace slimgrad::outer {

// Names and values, in words.
using Settings = std::vector<std::pair<std::string, std::string>>;

// All ranks call it. Throws InvalidArgument on all of them, which says what differs and has both
// values, unless `describe` returns the same everywhere; and if it throws on one rank: what it
// threw there, and on the others, which would wait for that rank, an InvalidArgument with its text.
// The exchange is as good as before.
void check_agreement(Exchange& exchange, const char* op, const std::function<Settings()>& describe);

}  // namespace slimgrad::outer

#endif  // SLIMGRAD_RUNTIME_OUTER_AGREEMENT_H_
