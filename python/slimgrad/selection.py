"""Which layers of a model compress() converts, and why not the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from .handles import is_compressed
from .nn.layers import can_be_sparse

LAYERS = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)

Selector = str | Sequence[str] | Callable[[str, nn.Module], bool] | None


def names_in(selector: Selector) -> list[str]:
    if selector is None or callable(selector):
        return []
    return [selector] if isinstance(selector, str) else list(selector)


def selects(selector: Selector, name: str, module: nn.Module) -> bool:
    """A name selects a module and all below it."""
    if callable(selector):
        return bool(selector(name, module))
    return any(name == prefix or name.startswith(prefix + ".") for prefix in names_in(selector))


@dataclass(frozen=True)
class Selection:
    """What include= and exclude= say."""

    include: Selector = None
    exclude: Selector = None

    def check(self, model: nn.Module) -> None:
        """A name that no module has is a mistake, most likely in its spelling."""
        known = {name for name, _ in model.named_modules(remove_duplicate=False)}
        for what in ("include", "exclude"):
            for name in names_in(getattr(self, what)):
                if name not in known:
                    raise ValueError(
                        f"[compress] expected names of modules in {what}, got {name!r}"
                    )

    def refusal(self, name: str, module: nn.Module) -> str | None:
        if self.include is not None and not selects(self.include, name, module):
            return "not included"
        return "excluded" if selects(self.exclude, name, module) else None

    def wants(self, name: str, module: nn.Module) -> bool:
        return self.refusal(name, module) is None


def _refusal(name: str, module: nn.Module, selection: Selection, sparse: bool) -> str | None:
    """Why a layer is not converted; None if it is."""
    why_not = selection.refusal(name, module)
    if why_not is not None:
        return why_not
    if is_compressed(module):
        return "compressed already"
    if "forward" in vars(module):
        return "its forward was replaced on the object, as hooks of accelerate do: compress before"
    if isinstance(module, NonDynamicallyQuantizableLinear):
        return "nn.MultiheadAttention uses its weight without calling it"
    if isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():
        return "its parameters are not initialised yet"
    if sparse and not can_be_sparse(module):
        return "only nn.Linear and nn.Conv2d, and not subclasses, have a sparse backward pass"
    return None


def layers_of(
    model: nn.Module, selection: Selection, sparse: bool
) -> Iterator[tuple[int, str, nn.Module, str | None]]:
    """The layers of a model: index among its modules, name, layer, and why it is not converted."""
    for index, (name, module) in enumerate(model.named_modules()):
        if isinstance(module, LAYERS):
            yield index, name, module, _refusal(name, module, selection, sparse)
