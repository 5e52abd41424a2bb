// SavedTensors and the graphs of torch.compile, which draw from their state and say what they save.
#ifndef SLIMGRAD_RUNTIME_SAVED_GRAPHS_H_
#define SLIMGRAD_RUNTIME_SAVED_GRAPHS_H_

#include <slimgrad/saved_tensors.h>

#include <string_view>

namespace slimgrad::runtime {

// Between the two a graph that is given the tensor draws() of `saved_tensors` finds it.
void add_to_graphs(SavedTensors* saved_tensors);
void remove_from_graphs(SavedTensors* saved_tensors);

// The one that packs what this thread saves; null outside of all.
SavedTensors* active_saved_tensors();

// What a graph saves, as ops get it: lines of "packed" or "left", the kind or the reason, how many
// tensors, their bytes before and after, with tabs between. Throws InvalidArgument, in the name of
// `op`. The texts live as long as the program.
SavedTally parse_graph_tally(std::string_view text, const char* op);

}  // namespace slimgrad::runtime

#endif  // SLIMGRAD_RUNTIME_SAVED_GRAPHS_H_
