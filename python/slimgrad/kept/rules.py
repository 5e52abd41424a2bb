"""What is kept as it is, and why."""

from __future__ import annotations

import sys

import torch

FLOATS = (torch.float32, torch.bfloat16, torch.float16)

# Reasons, as reports give them. The first three are not counted: they live anyway, or not for long.
LEAF = "parameters and other leaves of the graph"
OF_LEAF = "views and casts of leaves"
IN_BACKWARD = "saved inside backward: recomputed, or for second derivatives"
NO_GRADIENT = "inputs, buffers and statistics: no gradient goes through them"
COMPILED = "saved by a graph of torch.compile, which does not say what it needs exactly"
TYPE = "masks, indices and other types than float32, bfloat16, float16"
SUBCLASS = "tensor subclasses, sparse tensors, other devices than the CPU"
SMALL = "small"
EXPANDED = "expanded: elements share their memory"
CHECKPOINT = "inputs of checkpointed parts: recomputing needs every bit"
NOT_FINITE = "holds NaN or Inf, or numbers too far apart"
EXCLUDED = "excluded"
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

# Backward takes the exponential of it: an error of one step is a factor.
_NEEDS_8_BITS = ("LogSoftmaxBackward0",)


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


def _reason_without_gradient(tensor: torch.Tensor, min_elements: int) -> str:
    """Inside a compiled graph nothing has a gradient: it is a single node."""
    if tensor.numel() >= min_elements:
        frame = sys._getframe(3)
        for _ in range(_FRAMES_OF_COMPILED):
            if frame is None:
                break
            if _COMPILED_FOLDER in frame.f_code.co_filename:
                return COMPILED
            frame = frame.f_back
    return NO_GRADIENT


def reason_to_leave(tensor: torch.Tensor, min_elements: int) -> str | None:
    """None if the tensor is to be packed. The callers' caller is torch, or what called torch."""
    kind = type(tensor)
    if kind is not torch.Tensor and kind is not torch.nn.Parameter:
        return SUBCLASS
    if tensor.dtype not in FLOATS:
        return TYPE
    if tensor.is_leaf:
        return LEAF if tensor.requires_grad else _reason_without_gradient(tensor, min_elements)
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        return SUBCLASS
    if _comes_from_leaf(tensor):
        return OF_LEAF
    if tensor.numel() < min_elements or tensor.numel() == 0:
        return SMALL
    if torch._C._current_graph_task_id() != -1:
        return IN_BACKWARD
    if 0 in tensor.stride() and _is_expanded(tensor):
        return EXPANDED
    frame = sys._getframe(2)
    if frame.f_back is not None and _CHECKPOINT_FILE in (
        frame.f_code.co_filename,
        frame.f_back.f_code.co_filename,
    ):
        return CHECKPOINT
    return None


def bits_for(tensor: torch.Tensor, bits: int) -> int:
    """At least 8 where backward is far from linear in what it keeps."""
    node = tensor.grad_fn
    if bits < 8 and node is not None and node.name() in _NEEDS_8_BITS:
        return 8
    return bits
