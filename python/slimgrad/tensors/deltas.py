"""delta and apply_delta: what changed between two tensors or dicts of tensors, without loss."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import overload

import torch

from .._library import ops
from .._support import in_the_name_of, tensor_with_values, whole_number
from .coding import Payload, bytes_of, checked

Tensors = Mapping[str, torch.Tensor]


@torch.library.register_fake("slimgrad::delta")
def _(base, changed):
    """The size depends on the values, so it is a dynamic size for torch.compile."""
    return base.new_empty(torch.library.get_ctx().new_dynamic_size(min=16), dtype=torch.uint8)


@torch.library.register_fake("slimgrad::apply_delta")
def _(base, payload):
    raise NotImplementedError(
        "[apply_delta] the shape of the result is in the payload: call slimgrad.apply_delta "
        "outside of torch.compile, or with out"
    )


@torch.library.register_fake("slimgrad::apply_delta_")
def _(base, payload):
    pass


def _named(tensors: Tensors, op: str, what: str) -> tuple[list[torch.Tensor], list[str]]:
    for name, x in tensors.items():
        if not isinstance(name, str):
            raise TypeError(f"[{op}] expected names in {what} to be strings, got {name!r}")
        tensor_with_values(x, op, repr(name))
    return list(tensors.values()), list(tensors)


def delta(base: torch.Tensor | Tensors, new: torch.Tensor | Tensors) -> torch.Tensor:
    """What changed from ``base`` to ``new``, as a uint8 tensor of one dimension on the CPU.

    Every bit comes back, NaN payloads and -0 too. For weights after a step of training a delta is
    tens to hundreds of times smaller than the weights: how likely a value changes, and by how
    much, depends on its exponent, which the receiver has. Floating-point types (float8 too),
    integers and bool.

    Two tensors must have the same type and number of values. Of two dicts, such as two state
    dicts, tensors may be new, removed, of another type or shape; those without a counterpart are
    encoded as they are. The payload names ``base`` and ``new`` by 128-bit hashes, so that
    ``apply_delta`` refuses another base and proves its result.
    """
    if isinstance(base, Mapping) != isinstance(new, Mapping):
        raise TypeError("[delta] expected two tensors or two dicts of tensors, got one of each")
    if isinstance(base, Mapping) and isinstance(new, Mapping):
        return ops.delta_set(*_named(base, "delta", "base"), *_named(new, "delta", "new"))
    base = tensor_with_values(base, "delta", "base").detach().cpu()
    return ops.delta(base, tensor_with_values(new, "delta", "new").detach().cpu())


@overload
def apply_delta(
    base: torch.Tensor,
    payload: Payload,
    out: torch.Tensor | None = None,
    *,
    max_bytes: int | None = None,
) -> torch.Tensor: ...
@overload
def apply_delta(
    base: Tensors,
    payload: Payload,
    out: MutableMapping[str, torch.Tensor] | None = None,
    *,
    max_bytes: int | None = None,
) -> dict[str, torch.Tensor]: ...
def apply_delta(base, payload, out=None, *, max_bytes=None):
    """The tensor or dict that ``payload``, from ``delta``, leads to, on the devices of ``base``.

    ``out=base`` changes tensors in place. ``out`` is a tensor of the result's type and shape, or a
    dict: tensors of the same name, type and shape are written to, others are set, and those that
    the result does not have are deleted. Another base than the payload's raises ``PayloadError``
    and nothing is written, as do damaged bytes for a dict or ``out=base``.

    ``max_bytes``: refuse a dict whose tensors would together take more, before any is allocated.
    """
    payload = bytes_of(payload, "apply_delta")
    if max_bytes is not None:
        whole_number(max_bytes, "apply_delta", "max_bytes")
    with in_the_name_of("apply_delta"):
        if isinstance(base, Mapping):
            return _apply_to_dict(base, payload, out, max_bytes)
        base = tensor_with_values(base, "apply_delta", "base")
        if out is not None:
            tensor_with_values(out, "apply_delta", "out")
        with torch.no_grad():
            if out is base and base.device.type == "cpu" and base.is_contiguous():
                checked(ops.apply_delta_, base, payload)
                return out
            result = checked(ops.apply_delta, base.detach().cpu(), payload)
            if out is None:
                return result.to(base.device)
            if (out.dtype, out.shape) != (result.dtype, result.shape):
                raise ValueError(
                    f"[apply_delta] expected out to be {result.dtype} {tuple(result.shape)}, got "
                    f"{out.dtype} {tuple(out.shape)}"
                )
            return out.copy_(result)


def _apply_to_dict(base, payload, out, max_bytes):
    tensors, names = _named(base, "apply_delta", "base")
    names, results = checked(ops.apply_delta_set, tensors, names, payload, max_bytes)
    result = {
        name: x.to(base[name].device) if name in base else x
        for name, x in zip(names, results, strict=True)
    }
    if out is None:
        return result
    if not isinstance(out, MutableMapping):
        raise TypeError(f"[apply_delta] expected out to be a dict, got {type(out).__name__}")
    for name in [name for name in out if name not in result]:
        del out[name]
    with torch.no_grad():
        for name, x in result.items():
            old = out.get(name)
            if isinstance(old, torch.Tensor) and (old.dtype, old.shape) == (x.dtype, x.shape):
                old.copy_(x)
            else:
                out[name] = x
    return out
