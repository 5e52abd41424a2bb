// The text that slimgrad-train generates: sentences of a small grammar. Verbs agree with a noun
// that may stand a clause away, brackets are closed in the order in which they were opened, and a
// quoted word is said again at the end of its sentence; so a model that looks back does better than
// one that counts neighbours. A text is a function of (seed, stream) alone.
#ifndef SLIMGRAD_TRAINER_GRAMMAR_H_
#define SLIMGRAD_TRAINER_GRAMMAR_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace slimgrad::trainer {

// At least `size` characters: the last sentence is whole.
std::string grammar_text(std::uint64_t seed, std::uint32_t stream, std::size_t size);

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_GRAMMAR_H_
