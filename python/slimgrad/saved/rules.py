"""What is saved as it is, and why."""

from __future__ import annotations

import sys

import torch

from .._library import ops

FLOATS = (torch.float32, torch.bfloat16, torch.float16)

# Reasons, as reports give them. The first three are not counted: they live anyway, or not for long.
LEAF = "parameters and other leaves of the graph"
OF_LEAF = "views and casts of leaves"
IN_BACKWARD = "saved inside backward: recomputed, or for second derivatives"
NO_GRADIENT = "inputs, buffers and statistics: no gradient goes through them"
COMPILED = "saved by a graph of torch.compile, which does not say what it needs exactly"
TRACED = "under a TorchDispatchMode, which may be a trace with tensors without values"
TYPE = "masks, indices and other types than float32, bfloat16, float16"
SUBCLASS = "tensor subclasses, sparse tensors, other devices than the CPU"
SMALL = "small"
EXPANDED = "expanded: elements share their memory"
CHECKPOINT = "inputs of checkpointed parts: recomputing needs every bit"
NOT_FINITE = "holds NaN or Inf, or numbers too far apart"
EXCLUDED = "excluded"
LOGARITHM = "log-softmax of 16 bits: backward takes its exponential"
DENSE = "no zeros to leave out"
LIVES_ANYWAY = (LEAF, OF_LEAF, IN_BACKWARD)

# Nodes that hand a parameter on: autocast's copies, and views.
_CASTS_AND_VIEWS = {
    "ToCopyBackward0",
    "TBackward0",
    "TransposeBackward0",
    "PermuteBackward0",
    "ViewBackward0",
    "UnsafeViewBackward0",
    "ReshapeAliasBackward0",
    "AliasBackward0",
    "ExpandBackward0",
    "UnsqueezeBackward0",
    "SqueezeBackward0",
    "SqueezeBackward1",
    "SliceBackward0",
    "SelectBackward0",
    "SplitBackward0",
    "SplitWithSizesBackward0",
}
_COMPILED_FOLDER = "_aot_autograd"
_FRAMES_OF_COMPILED = 3
_CHECKPOINT_FILE = torch.utils.checkpoint.__file__

# Backward takes the exponential of it and subtracts 1: where a model is sure of itself, that is
# near 0, and a step of 8 bits would be most of it.
_LOGARITHMS = ("LogSoftmaxBackward0",)


def _comes_from_leaf(tensor: torch.Tensor) -> bool:
    base = tensor._base
    if base is not None:
        return base.requires_grad and (base.is_leaf or _comes_from_leaf(base))
    node = tensor.grad_fn
    while node is not None and node.name() in _CASTS_AND_VIEWS:
        node = node.next_functions[0][0]
        if node is not None and node.name() == "torch::autograd::AccumulateGrad":
            return True
    return False


def _is_expanded(tensor: torch.Tensor) -> bool:
    """Whether several of its elements are one in memory."""
    return any(
        stride == 0 and size > 1
        for size, stride in zip(tensor.size(), tensor.stride(), strict=True)
    )


def _is_compiled(depth: int) -> bool:
    """Whether a graph of torch.compile saves. The frame ``depth`` above is whose hook this is."""
    frame = sys._getframe(depth + 1)
    for _ in range(_FRAMES_OF_COMPILED):
        if frame is None:
            return False
        if _COMPILED_FOLDER in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def _is_checkpoint(depth: int) -> bool:
    frame = sys._getframe(depth + 1)
    above = frame if frame.f_back is None else frame.f_back
    return _CHECKPOINT_FILE in (frame.f_code.co_filename, above.f_code.co_filename)


def reason_to_leave(tensor: torch.Tensor, min_elements: int) -> str | None:
    """None if the tensor is to be packed. To be called by the hook itself: the frame above that
    says who saves."""
    if tensor.is_leaf and tensor.requires_grad:
        return LEAF
    kind = type(tensor)
    if kind is not torch.Tensor and kind is not torch.nn.Parameter:
        return SUBCLASS
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        return SUBCLASS
    if torch._C._len_torch_dispatch_stack() > 0 or torch.compiler.is_compiling():
        return TRACED
    if tensor.dtype not in FLOATS:
        return TYPE
    if torch._C._current_graph_task_id() != -1:
        return IN_BACKWARD
    if tensor.is_leaf:  # Inside a compiled graph nothing has a gradient: it is a single node.
        return COMPILED if tensor.numel() >= min_elements and _is_compiled(2) else NO_GRADIENT
    if _comes_from_leaf(tensor):
        return OF_LEAF
    if tensor.numel() < min_elements or tensor.numel() == 0:
        return SMALL
    if 0 in tensor.stride() and _is_expanded(tensor):
        return EXPANDED
    return CHECKPOINT if _is_checkpoint(2) else None


def may_be_smaller(tensor: torch.Tensor, why: str | None, min_elements: int) -> bool:
    """Dropout on the CPU saves its mask as floats, which no gradient goes through; indices have 8
    bytes each. Only what lies without gaps is looked at: an expanded mask is small as it is."""
    is_index = why == TYPE and tensor.dtype is torch.int64
    if why not in (NO_GRADIENT, COMPILED) and not is_index:
        return False
    if tensor.numel() < max(min_elements, 1):
        return False
    return tensor.is_contiguous() or ops.restored_strides(tensor) == list(tensor.stride())


def is_logarithm(tensor: torch.Tensor) -> bool:
    """Whether its exponential is what backward needs. As bfloat16 a logarithm of a probability p
    changes p by at most 0.0008."""
    node = tensor.grad_fn
    return node is not None and node.name() in _LOGARITHMS
