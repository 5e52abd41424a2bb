// An op through the dispatcher, so that tracing sees the call.
#ifndef SLIMGRAD_TORCH_FIND_OP_H_
#define SLIMGRAD_TORCH_FIND_OP_H_

#include <ATen/core/dispatch/Dispatcher.h>

namespace slimgrad::torch_ops {

// A look-up by name: callers keep the result in a static.
template <typename Signature>
auto find_op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_FIND_OP_H_
