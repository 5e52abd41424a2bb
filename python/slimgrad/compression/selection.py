"""Which layers of a model compress() converts, and why not the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from ..nn.attention import Projections, can_be_projected, projection_name
from ..nn.projected_attention import PROJECTIONS
from ..nn.sparse_classes import can_be_sparse, is_conv1d_class
from .handles import is_compressed

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
    if not isinstance(selector, str | Sequence):
        raise ValueError(
            "[compress] expected include and exclude to be names of modules or a predicate "
            f"(name, module), got {selector!r}"
        )
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
        modules = list(model.named_modules(remove_duplicate=False))
        known = {name for name, _ in modules}
        for name, module in modules:
            if isinstance(module, nn.MultiheadAttention):
                known.update(projection_name(name, which) for which in PROJECTIONS)
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


@dataclass(frozen=True)
class Layer:
    """A layer as it was found. wanted: what of it is converted, by the name it has in reports; of
    an attention those of its projections. refused: what is not, with the reason."""

    name: str
    module: nn.Module
    wanted: list[str]
    refused: dict[str, str]


def _is_layer(module: nn.Module) -> bool:
    return isinstance(module, LAYERS) or any(map(is_conv1d_class, type(module).__mro__))


def _refusal(module: nn.Module, sparse: bool) -> str | None:
    """Why a layer that was selected is not converted; None if it is."""
    if is_compressed(module):
        return "compressed already"
    if "forward" in vars(module):
        return "its forward was replaced on the object, as hooks of accelerate do: compress before"
    if isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():
        return "its parameters are not initialised yet"
    if isinstance(module, nn.MultiheadAttention):
        if not can_be_projected(module):
            return "a subclass of nn.MultiheadAttention may use its weights in its own way"
        return None
    if isinstance(module, NonDynamicallyQuantizableLinear):
        return "nn.MultiheadAttention uses its weight without calling it"
    if sparse and not can_be_sparse(module):
        return (
            "only nn.Linear, nn.Conv2d, nn.MultiheadAttention and transformers' Conv1D, and not "
            "subclasses, have a sparse backward pass"
        )
    return None


def _found(name: str, module: nn.Module, selection: Selection, sparse: bool) -> Layer:
    parts = {name: module}
    if isinstance(module, nn.MultiheadAttention):
        parts = {projection_name(name, which): module for which in PROJECTIONS}
        parts[projection_name(name, "out_proj")] = module.out_proj
    refusals = {
        part: selection.refusal(part, owner) or _refusal(module, sparse)
        for part, owner in parts.items()
    }
    return Layer(
        name,
        module,
        [part for part, why_not in refusals.items() if why_not is None],
        {part: why_not for part, why_not in refusals.items() if why_not is not None},
    )


def layers_of(model: nn.Module, selection: Selection, sparse: bool) -> Iterator[Layer]:
    """The layers of a model."""
    skipped: set[nn.Module] = set()
    for name, module in model.named_modules():
        if isinstance(module, Projections):
            skipped.update(module.modules())
        if module in skipped:
            continue
        if isinstance(module, nn.MultiheadAttention):
            skipped.add(module.out_proj)
        elif not _is_layer(module):
            continue
        yield _found(name, module, selection, sparse)
