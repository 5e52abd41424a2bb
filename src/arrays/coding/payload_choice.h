// From a tensor and options to the parameters of its payload: scale, threshold, model.
#ifndef SLIMGRAD_ARRAYS_CODING_PAYLOAD_CHOICE_H_
#define SLIMGRAD_ARRAYS_CODING_PAYLOAD_CHOICE_H_

#include <slimgrad/payload.h>

namespace slimgrad {

// Everything but the block index. Looks at the values where a parameter must be found in them.
// Throws InvalidArgument for options out of range, for types that the kind does not take and for
// NaN and Inf where the kind has no code for them.
PayloadInfo choose_payload(const TensorView& tensor, const EncodeOptions& options);

}  // namespace slimgrad

#endif  // SLIMGRAD_ARRAYS_CODING_PAYLOAD_CHOICE_H_
