"""The ops of layers with a sparse backward pass, and the same for graphs of torch.compile."""

from __future__ import annotations

import torch

from .._library import ops


class _SparseInGraph(torch.autograd.Function):
    """The node of ops.sparse_linear and ops.sparse_conv2d for graphs, in which backward may write a
    state that another forward pass has kept: two passes before one backward. What is saved as an
    attribute has no version to compare.

    conv: nothing, or stride, padding, dilation and groups.
    """

    @staticmethod
    def forward(ctx, x, weight, bias, conv, stream, *state):
        ctx.save_for_backward(x, weight)
        ctx.conv, ctx.stream, ctx.state = conv, stream, state
        ctx.has_bias = bias is not None and bias.requires_grad
        if not conv:
            return torch.nn.functional.linear(x, weight, bias)
        stride, padding, dilation, groups = conv
        return torch.conv2d(x, weight, bias, stride, padding, dilation, groups)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[1], ctx.has_bias]
        if ctx.conv:
            results = ops.sparse_conv2d_backward(
                grad, x, weight, *ctx.conv, wanted, ctx.state, ctx.stream
            )
        else:
            matrices = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
            results = ops.sparse_linear_backward(*matrices, weight, wanted, ctx.state, ctx.stream)
        dx = results[0].reshape(x.shape) if wanted[0] else None
        dw = results[1] if wanted[1] else None
        db = results[2] if wanted[2] else None
        return dx, dw, db, None, None, *[None] * len(ctx.state)


def _in_graph(x, weight, bias, conv, state, stream):
    device = x.device.type
    if torch.is_autocast_enabled(device):  # as torch casts the arguments of linear and conv2d
        dtype = torch.get_autocast_dtype(device)
        x, weight = x.to(dtype), weight.to(dtype)
        bias = bias if bias is None else bias.to(dtype)
    return _SparseInGraph.apply(x, weight, bias, conv, stream, *state)


def sparse_linear(x, weight, bias, state, stream):
    """state, stream: SparseState.arguments()."""
    if torch.compiler.is_compiling():
        return _in_graph(x, weight, bias, (), state, stream)
    return ops.sparse_linear(x, weight, bias, state, stream)


def sparse_conv2d(x, weight, bias, stride, padding, dilation, groups, state, stream):
    if torch.compiler.is_compiling():
        return _in_graph(x, weight, bias, (stride, padding, dilation, groups), state, stream)
    return ops.sparse_conv2d(x, weight, bias, stride, padding, dilation, groups, state, stream)
