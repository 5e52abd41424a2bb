"""Converting a module by changing its class.

It stays the same object, with the same parameters, hooks and name. torch.compile notices, because
its guards look at the classes of modules; at their hooks they do not look by default, so that a
layer converted by a hook would be skipped wherever a plain one of its class was compiled before.
"""

from __future__ import annotations

from torch import nn


def _is_wrapper(cls: type) -> bool:
    """Whether the class was made by torch for one module: by a parametrization, or by FSDP2."""
    if any(base.__name__ == "FSDPModule" for base in cls.__bases__):
        return True
    return cls.__name__.startswith("Parametrized") and cls.__module__.startswith("torch.nn.utils")


def core_class(module: nn.Module) -> type:
    """The class of a module below what torch has put on top of it."""
    cls = type(module)
    while _is_wrapper(cls):
        cls = cls.__bases__[-1]
    return cls


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
