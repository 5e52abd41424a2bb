"""Checks of arguments that the ops cannot make: their own errors would print the argument, or are
those of torch's dispatcher, which knows no kernel for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

MOST_CALLS = 2**48  # kMostCalls in <slimgrad/gate.h>


@contextmanager
def in_the_name_of(op: str, *ours: str) -> Iterator[None]:
    """Misuse that is noticed by one of ``ours``, which the user did not call, names ``op``."""
    try:
        yield
    except ValueError as error:
        for name in ours:
            if str(error).startswith(f"[{name}] "):
                raise ValueError(f"[{op}]{str(error).removeprefix(f'[{name}]')}") from None
        raise


def dense_tensor(x: Any, op: str, name: str = "x") -> torch.Tensor:
    """``x``, if it is a tensor whose values lie in memory one by one, or would: also on "meta"."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"[{op}] expected {name} to be a tensor, got {type(x).__name__}")
    if x.layout != torch.strided:
        raise ValueError(f"[{op}] expected {name} to be a dense tensor, got layout {x.layout}")
    if x.is_quantized:
        raise ValueError(f"[{op}] expected {name} to be a dense tensor, got a quantized one")
    return x


def tensor_with_values(x: Any, op: str, name: str = "x") -> torch.Tensor:
    """``x``, if it is such a tensor with values behind it."""
    if dense_tensor(x, op, name).device.type == "meta":
        raise ValueError(f"[{op}] expected {name} to have values, got a tensor on device meta")
    return x


def pair_of_numbers(value: Any, op: str, name: str) -> tuple[float, float]:
    if isinstance(value, tuple | list) and len(value) == 2:
        return number(value[0], op, name), number(value[1], op, name)
    raise TypeError(f"[{op}] expected {name} to be a pair of numbers, got {_kind(value)}")


def number(value: Any, op: str, name: str) -> float:
    """A number of Python's or NumPy's, or a tensor that is one."""
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
    """A counter of a saved state. Draws are numbered by it: one that nothing can have counted to
    would soon go on no further."""
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
    """What it is, without showing it: that may be long."""
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} of {len(value)}"
    return type(value).__name__
