"""Converting a module by changing its class.

It stays the same object, with the same parameters, hooks and name. torch.compile notices, because
its guards look at the classes of modules; at their hooks they do not look by default, so that a
layer converted by a hook would be skipped wherever a plain one of its class was compiled before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from torch import nn


def _is_wrapper(cls: type) -> bool:
    """Whether the class was made by torch for one module: by a parametrization, or by FSDP2 and
    what is built on it (replicate)."""
    mixed_in = [base for base in cls.__bases__ if not issubclass(base, nn.Module)]
    if any(above.__name__ == "FSDPModule" for base in mixed_in for above in base.__mro__):
        return True
    return cls.__name__.startswith("Parametrized") and cls.__module__.startswith("torch.nn.utils")


def core_class(module: nn.Module) -> type:
    """The class of a module below what torch has put on top of it."""
    cls = type(module)
    while _is_wrapper(cls):
        cls = cls.__bases__[-1]
    return cls


def plain_class(module: nn.Module) -> type:
    """The class that a module had before compress() or torch put another one in its place."""

    def is_plain(cls: type) -> bool:
        is_ours = "maker" in vars(cls) or cls.__module__.startswith("slimgrad.")
        return issubclass(cls, nn.Module) and not is_ours and not _is_wrapper(cls)

    return class_within(module, is_plain)


def class_within(module: nn.Module, is_wanted: Callable[[type], bool]) -> type:
    """The class among those of a module that is wanted, whatever was put on top of it since."""
    return next(cls for cls in type(module).__mro__ if is_wanted(cls))


class Made:
    """What a class that is made for a layer's own has before it; subclasses say what it does."""

    maker: type  # the subclass
    plain_class: type  # the layer's own

    def __reduce_ex__(self, protocol):
        # pickle could not import a class that is made here: what it is made of travels instead.
        reduced: Any = super().__reduce_ex__(max(protocol, 2))
        _, (_, *arguments), *state = reduced
        return _new_of_made_class, (self.maker, self.plain_class, *arguments), *state


@cache
def made_class(maker: type[Made], plain: type) -> type:
    """One for all layers of a class."""
    names = {"__module__": plain.__module__, "__doc__": plain.__doc__}
    body = {"maker": maker, "plain_class": plain} | names
    return type(f"{maker.__name__}{plain.__name__}", (maker, plain), body)


def _new_of_made_class(maker: type[Made], plain: type, *arguments: Any) -> nn.Module:
    cls = made_class(maker, plain)  # type: ignore[arg-type]
    return cls.__new__(cls, *arguments)


def _with_base(cls: type, old: type, new: type) -> type:
    """A class like ``cls`` that has ``new`` in the place of ``old`` below it."""
    if cls is old:
        return new
    bases = tuple(
        _with_base(base, old, new) if issubclass(base, old) else base for base in cls.__bases__
    )
    body = {k: v for k, v in vars(cls).items() if k not in ("__dict__", "__weakref__")}
    return type(cls.__name__.replace(old.__name__, new.__name__), bases, body)


def change_class(module: nn.Module, old: type, new: type) -> None:
    """Puts ``new`` in the place of ``old`` in the class of one module. What torch put on top stays
    on top, because there it looks for it when it takes it off; the class of a copy of the module
    is not touched."""
    module.__class__ = _with_base(type(module), old, new)
