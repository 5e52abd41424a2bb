"""Checks of arguments that the ops cannot make: their own errors would print the argument."""

from __future__ import annotations

from typing import Any

import torch


def tensor_with_values(x: Any, op: str, name: str = "x") -> torch.Tensor:
    """``x``, if it is a strided tensor with values behind it."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"[{op}] expected {name} to be a tensor, got {type(x).__name__}")
    if x.layout != torch.strided:
        raise ValueError(f"[{op}] expected {name} to be a dense tensor, got layout {x.layout}")
    if x.device.type == "meta":
        raise ValueError(f"[{op}] expected {name} to have values, got a tensor on device meta")
    return x
