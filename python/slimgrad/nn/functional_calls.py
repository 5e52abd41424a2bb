"""Activations that a forward calls as functions, ``F.gelu(x)``: they cannot be exchanged from
outside, but they can be found. With sample inputs a forward pass sees every call. Without, the code
of the classes is read: what a reader would see, not what runs, so the report says "seems"."""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import inspect
import textwrap
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from ..saved import call_with, undisturbed
from .gated import Gated

FUNCTION_NAMES = {
    "relu", "leaky_relu", "prelu", "threshold", "relu6", "hardtanh", "hardsigmoid", "hardshrink",
    "softshrink", "gelu", "silu", "mish", "hardswish", "sigmoid", "logsigmoid", "log_sigmoid",
    "tanh", "tanhshrink", "softsign", "softplus", "elu", "celu", "selu", "rrelu", "dropout",
    "max_pool2d",
}  # fmt: skip

IsKnown = Callable[[nn.Module], bool]


# ---- with inputs: what runs ----------------------------------------------------------------------


class _FunctionalCalls(TorchFunctionMode):
    """Counts activation calls that do not come from inside a converted or known module."""

    def __init__(self, inside: list[str]):
        super().__init__()
        self.inside = inside
        self.found: dict[tuple[str, str], int] = {}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        is_activation = name.rstrip("_") in FUNCTION_NAMES
        if (
            is_activation
            and self.inside
            and any(isinstance(a, torch.Tensor) and a.requires_grad for a in args)
        ):
            key = (self.inside[-1], name)
            self.found[key] = self.found.get(key, 0) + 1
        return func(*args, **(kwargs or {}))


def find_functional_calls(
    model: nn.Module, inputs: Any, is_known: IsKnown
) -> list[tuple[str, str]]:
    """(layer, function) for every activation that a forward pass calls as a function.

    Calls that known modules make (torch.nn's activations, converted ones) are theirs, and not
    listed. A call made in C++, as on the fast path of nn.TransformerEncoderLayer, is not seen.
    """
    inside: list[str] = []
    mode = _FunctionalCalls(inside)

    def leave(*_) -> None:
        inside.pop()

    handles = []
    for name, module in model.named_modules():
        known = is_known(module)

        # Inside a known activation nothing is counted: the empty name says so.
        def enter(*_, name=name, known=known):
            inside.append("" if known else name or "(model)")

        handles.append(module.register_forward_pre_hook(enter))
        handles.append(module.register_forward_hook(leave, always_call=True))
    try:
        with undisturbed(model), torch.enable_grad(), mode:
            call_with(model, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return [key for key in mode.found if key[0]]


# ---- without inputs: what the code says ----------------------------------------------------------

# The functions by identity: another function of the same name (math.tanh) is none of them.
_FUNCTIONS = {
    id(function): name
    for name in sorted(FUNCTION_NAMES)
    for space in (F, torch)
    for function in (getattr(space, name, None), getattr(space, f"{name}_", None))
    if function is not None
}
_TENSOR_METHODS = {
    f"{name}{end}" for name in FUNCTION_NAMES for end in ("", "_")
    if hasattr(torch.Tensor, f"{name}{end}")
}  # fmt: skip


def _name_of(value: Any) -> str | None:
    """Which of torch's activation functions a value is."""
    while isinstance(value, functools.partial):
        value = value.func
    return _FUNCTIONS.get(id(value))


def _is_theirs(function: types.FunctionType) -> bool:
    """Code of torch itself, or ours, is known and not read."""
    return (function.__module__ or "").partition(".")[0] in ("torch", "slimgrad")


def _tree(function: types.FunctionType) -> ast.AST | None:
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):  # typed into a prompt, made by exec, a lambda's half
        return None


def _own(cls: type, name: str, after: type | None = None) -> tuple[type, Any] | None:
    """The definition of a method and its class; ``after`` a class as super() finds it."""
    order = cls.__mro__ if after is None else cls.__mro__[cls.__mro__.index(after) + 1 :]
    order = [base for base in order if base is not Gated]  # not what we have put before it
    for base in order:
        if name in vars(base):
            value = vars(base)[name]
            value = value.__func__ if isinstance(value, staticmethod | classmethod) else value
            return base, inspect.unwrap(value) if callable(value) else value
    return None


class _Reader:
    """Reads the forward of a class, the helpers that it calls, and theirs."""

    def __init__(self, cls: type):
        self.cls = cls
        self.found: dict[str, bool] = {}  # by function: whether as a method of some value, x.relu()
        self._seen: set[int] = set()
        self._follow(_own(cls, "forward"))

    def _follow(self, own: tuple[type | None, Any] | None) -> None:
        owner, function = own or (None, None)
        is_new = isinstance(function, types.FunctionType) and id(function) not in self._seen
        if not is_new or _is_theirs(function):
            return
        self._seen.add(id(function))
        tree = _tree(function)
        if tree is None:
            self._names_alone(function)
            return
        code = function.__code__
        first = code.co_varnames[0] if owner and code.co_argcount else None
        # What is around a function, and globals, have values; what is its own has none yet.
        known = vars(builtins) | function.__globals__ | _held(function)
        known = {k: v for k, v in known.items() if k not in code.co_varnames}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                self._call(node.func, owner, first, known)

    def _call(self, called: ast.expr, owner: type | None, first: str | None, known: dict) -> None:
        match called:
            case ast.Name(id=name):
                self._value(known.get(name))
            case ast.Attribute(value=ast.Name(id=name), attr=method) if name == first:
                self._follow(_own(self.cls, method))
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=method) if owner:
                self._follow(_own(self.cls, method, owner))
            case ast.Attribute(value=value, attr=method):
                space = _resolve(value, known)
                if isinstance(space, types.ModuleType):
                    self._value(vars(space).get(method))
                elif space is None and method in _TENSOR_METHODS:
                    self.found.setdefault(method.rstrip("_"), True)

    def _value(self, value: Any) -> None:
        name = _name_of(value)
        if name is not None:
            self.found[name] = False
        elif isinstance(value, types.FunctionType):
            self._follow((None, inspect.unwrap(value)))

    def _names_alone(self, function: types.FunctionType) -> None:
        """Without source: the names of functions, where the code also names a place they are in."""
        names = set(_names_in(function.__code__))
        spaces = [function.__globals__.get(name) for name in names]
        if any(space is torch or space is F for space in spaces):
            # It may be an attribute of anything, so that a module's own name counts against it.
            self.found |= {name: True for name in names & FUNCTION_NAMES}
        for space in spaces:
            if _name_of(space):
                self.found[_name_of(space)] = False


def _held(function: types.FunctionType) -> dict[str, Any]:
    """What a function holds of the function around it."""
    held = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not assigned yet
            held[name] = cell.cell_contents
    return held


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _resolve(node: ast.expr, known: dict) -> Any:
    """The value of ``a.b.c`` as far as it is made of modules; None if that is not known. Not with
    getattr: a package may import things when it is asked."""
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute):
        space = _resolve(node.value, known)
        return vars(space).get(node.attr) if isinstance(space, types.ModuleType) else None
    return None


def seeming_functional_calls(model: nn.Module, is_known: IsKnown) -> list[tuple[str, str, str]]:
    """(layer, function, where) for every activation that a layer seems to call as a function:
    functions of torch that it holds as an attribute, and calls in the code of its forward and the
    helpers that it reaches. Code of torch, of this package and of known activations is not read.
    """
    readers: dict[type, _Reader] = {}
    found = []
    for name, module in model.named_modules():
        if is_known(module):
            continue
        layer, cls = name or "(model)", type(module)
        for attribute, value in vars(module).items():
            if _name_of(value):
                found.append((layer, _name_of(value), f"held as .{attribute}"))
        if cls not in readers:
            readers[cls] = _Reader(cls)
        for function, is_method in readers[cls].found.items():
            if not (is_method and _has(module, function)):
                found.append((layer, function, "in its forward"))
    return list(dict.fromkeys(found))


def _has(module: nn.Module, name: str) -> bool:
    """Whether a layer has something of that name: ``x.relu()`` may then be that, not a tensor's."""
    return hasattr(module, name) or any(name in m._modules for m in module.modules())
