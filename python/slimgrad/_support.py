"""Shared by all parts of the package: checks of arguments, seeds, streams, tracing, and wrappers of
models."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import nn

from ._library import classes, ops

# ---- arguments -----------------------------------------------------------------------------------


MOST_CALLS = 2**48  # kMostCalls in <slimgrad/gate.h>


@contextmanager
def in_the_name_of(op: str) -> Iterator[None]:
    """A ValueError names ``op``, which the user called, instead of what ``op`` is made of."""
    try:
        yield
    except ValueError as error:
        renamed = re.sub(r"^\[\w+\] ", f"[{op}] ", str(error))
        if renamed == str(error):
            raise
        raise type(error)(renamed) from None


def dense_tensor(x: Any, op: str, name: str = "x") -> torch.Tensor:
    """``x``, if it is a dense tensor; it may be on device meta."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"[{op}] expected {name} to be a tensor, got {type(x).__name__}")
    if x.layout != torch.strided:
        raise ValueError(f"[{op}] expected {name} to be a dense tensor, got layout {x.layout}")
    if x.is_quantized:
        raise ValueError(f"[{op}] expected {name} to be a dense tensor, got a quantized one")
    return x


def tensor_with_values(x: Any, op: str, name: str = "x") -> torch.Tensor:
    """``x``, if it is a dense tensor with values, so not on device meta."""
    if dense_tensor(x, op, name).device.type == "meta":
        raise ValueError(f"[{op}] expected {name} to have values, got a tensor on device meta")
    return x


def pair_of_numbers(value: Any, op: str, name: str) -> tuple[float, float]:
    if isinstance(value, tuple | list) and len(value) == 2:
        return number(value[0], op, name), number(value[1], op, name)
    raise TypeError(f"[{op}] expected {name} to be a pair of numbers, got {_kind(value)}")


def number(value: Any, op: str, name: str) -> float:
    """A Python or NumPy number, or a tensor with one element, as a float."""
    if isinstance(value, int | float):  # torch.compile traces this for its symbols, not the rest
        return float(value)
    is_one = not isinstance(value, torch.Tensor) or (
        value.numel() == 1 and value.layout == torch.strided and value.device.type != "meta"
    )
    if is_one and not isinstance(value, str | bytes | bytearray) and hasattr(value, "__float__"):
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError):
            pass
    raise TypeError(f"[{op}] expected {name} to be a number, got {_kind(value)}")


def whole_number(value: Any, op: str, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"[{op}] expected {name} to be an integer, got {_kind(value)}")
    return value


def counter(value: Any, op: str, name: str) -> int:
    """A counter of a saved state, which numbers draws. One beyond 2^48 is damage, and would soon
    overflow."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if is_whole and 0 <= value <= MOST_CALLS:
        return value
    raise ValueError(f"[{op}] expected {name} to be a whole number from 0 to 2^48, got {value!r}")


def text(value: Any, op: str, name: str) -> str:
    if isinstance(value, str):
        return value
    raise TypeError(f"[{op}] expected {name} to be a string, got {_kind(value)}")


def _kind(value: Any) -> str:
    """The type of a value, whose own text may be long."""
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} of {len(value)}"
    return type(value).__name__


# ---- choices -------------------------------------------------------------------------------------


@cache
def choices(field: str) -> tuple[str, ...]:
    """What may be asked for, by the name of a gate's option."""
    return tuple(classes.GateGroup.choices(field))


def check_choice(value: str, field: str, op: str, name: str) -> None:
    """In a graph of torch.compile the op that gets ``value`` checks it instead."""
    if not torch.compiler.is_compiling() and value not in choices(field):
        raise ValueError(
            f"[{op}] expected {name} to be one of {', '.join(choices(field))}; got {value!r}"
        )


# ---- seeds ---------------------------------------------------------------------------------------


def fresh_seed(seed: int | None, op: str) -> int:
    """``seed`` modulo 2^64, or one from torch's generator, so that torch.manual_seed reproduces a
    run."""
    if seed is None:
        return int(torch.randint(1 << 62, (), device="cpu").item())
    if isinstance(seed, bool) or not (isinstance(seed, int) or hasattr(seed, "__index__")):
        raise ValueError(f"[{op}] expected seed to be a whole number or None, got {seed!r}")
    return _as_int64(seed)


def derive_seed(seed: int, *parts: int | str) -> int:
    """A seed for one of the places that draw, from a seed for all of them.

    parts: integers or strings that identify the place: a module's name, a rank, a step.
        Two lists of parts that differ, also in their order, give different seeds (but for a
        probability of 2^-64), which adding numbers to a seed does not.

    ``derive_seed(seed, a, b)`` is ``derive_seed(derive_seed(seed, a), b)``. Same result as
    ``slimgrad::derive_seed`` in <slimgrad/seed.h>.
    """
    for value in (seed, *(part for part in parts if not isinstance(part, str))):
        if not hasattr(value, "__index__"):
            raise TypeError(
                "[derive_seed] expected seed to be an integer and parts to be integers or strings, "
                f"got {_kind(value)}"
            )
    seed = _as_int64(seed)
    for part in parts:
        names, numbers = ([part], []) if isinstance(part, str) else ([], [_as_int64(part)])
        seed = ops.derive_seed(seed, names, numbers)
    return seed


def op_seed(seed: int | None, op: str) -> int | None:
    """A seed as ops take it, which draw one if there is none."""
    return None if seed is None else fresh_seed(seed, op)


def _as_int64(number: int) -> int:
    """The lowest 64 bits, as ops take them."""
    return (int(number) + (1 << 63)) % (1 << 64) - (1 << 63)


# ---- streams -------------------------------------------------------------------------------------


def current_stream(stream: int | None) -> int:
    """``stream`` if it was set, or the rank that this process has by now: a model is often
    converted before its process group exists."""
    if stream is not None:
        return stream
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return 0
    return distributed.get_rank()


def check_stream(stream: int | None, op: str) -> int | None:
    if stream is None or (isinstance(stream, int) and not isinstance(stream, bool) and stream >= 0):
        return stream
    raise ValueError(f"[{op}] expected stream to be a whole number >= 0 or None, got {stream!r}")


# ---- tracing -------------------------------------------------------------------------------------


_local = threading.local()  # .plain: whether this thread runs models as if they were plain


@contextmanager
def plain_models() -> Iterator[None]:
    """Inside, forward passes of this thread are those of the plain model, except graphs that
    torch.compile has compiled."""
    _local.plain = True
    try:
        yield
    finally:
        _local.plain = False


def records_plain_model() -> bool:
    """Whether a forward pass is to be that of the plain model: inside plain_models(), or because a
    graph is recorded for use elsewhere, by torch.jit.trace or torch.export. Such a graph must load
    without slimgrad, and must not contain the state of a run."""
    if not torch.compiler.is_compiling() and getattr(_local, "plain", False):
        return True
    if not (torch.jit.is_tracing() or torch.compiler.is_exporting()):
        return False
    warnings.warn(
        "[slimgrad] a traced or exported model is the plain one: its backward compresses nothing",
        stacklevel=3,
    )
    return True


def refuse_forward_mode() -> None:
    """The tangents of forward-mode differentiation would be dropped in silence."""
    if torch.autograd.forward_ad._current_level >= 0 and not torch.compiler.is_compiling():
        raise RuntimeError(
            "[slimgrad] expected reverse-mode differentiation, got forward mode (torch.func.jvp, "
            "torch.autograd.forward_ad): use torch's own layers there"
        )


def refuse_transforms() -> None:
    """torch.func has no rule for a backward pass that draws and counts: vmap would skip it in
    silence. functional_call() is no transform."""
    refuse_forward_mode()
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is None:
        return
    raise RuntimeError(
        "[slimgrad] expected plain autograd, got a transform of torch.func (grad, vjp, vmap, ...): "
        "call controller.remove() before, or run it without gradients"
    )


# ---- wrappers ------------------------------------------------------------------------------------


_INNER = {"OptimizedModule": "_orig_mod", "DistributedDataParallel": "module"}


def inner_model(model: nn.Module) -> nn.Module:
    """The model that torch.compile or DistributedDataParallel wraps: names of layers, and with them
    seeds and states, are those of the model, wherever in the program it is converted."""
    while type(model).__name__ in _INNER and type(model).__module__.startswith("torch."):
        model = getattr(model, _INNER[type(model).__name__])
    return model
