"""Modules whose forward saves packed tensors, converted by changing their class."""

from __future__ import annotations

import torch
from torch import nn

from ..compression.class_change import Made, change_class, class_within, core_class, made_class
from ..compression.selection import Selection
from .packer import Packer, Tally, Untouched
from .settings import EXACT, Saved

SAVED = "slimgrad_saved"  # where a module has its packer. No submodule: containers call theirs.


class Packs(Made):
    """Packs what its forward saves."""

    def forward(self, *args, **kwargs):
        # The class may be gone, and somebody still hold the bound method, as accelerate's hooks do.
        if not isinstance(self, Packs):
            return type(self).forward(self, *args, **kwargs)
        packer = vars(self).get(SAVED)  # None: made by type(model)(...)
        if packer is None:
            return super().forward(*args, **kwargs)
        run = packer.trace if _is_compiled() else packer.run
        return run(super().forward, *args, **kwargs)


class PacksTrainingStep(Packs):
    """A LightningModule: its training_step computes the loss, too."""

    def training_step(self, *args, **kwargs):
        if not isinstance(self, Packs):
            return type(self).training_step(self, *args, **kwargs)
        packer = vars(self).get(SAVED)
        if packer is None:
            return super().training_step(*args, **kwargs)
        run = packer.trace if _is_compiled() else packer.run
        return run(super().training_step, *args, **kwargs)


def _is_compiled() -> bool:
    """Whether dynamo traces for torch.compile. Of torch.export the packer says that it is plain."""
    return torch.compiler.is_compiling() and not torch.compiler.is_exporting()


def attach(module: nn.Module, packer: Packer | Untouched) -> None:
    maker = PacksTrainingStep if callable(getattr(module, "training_step", None)) else Packs
    plain = core_class(module)
    change_class(module, plain, made_class(maker, plain))
    vars(module)[SAVED] = packer


def detach(module: nn.Module) -> None:
    """Undoes attach()."""
    made = class_within(module, lambda cls: vars(cls).get("maker") in (Packs, PacksTrainingStep))
    change_class(module, made, made.plain_class)
    del vars(module)[SAVED]


def packing_modules(model: nn.Module, selection: Selection) -> dict[str, nn.Module]:
    """By name, the modules at the top of what is selected: each packs all that it saves."""
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if not _is_below(name, found) and selection.wants(name, module):
            found[name] = module
    return found


def excluded_modules(model: nn.Module, selection: Selection) -> dict[str, nn.Module]:
    """By name, those inside of them that save their tensors as they are."""
    packing = packing_modules(model, selection)
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if not _is_below(name, packing) or _is_below(name, found):
            continue
        if selection.refusal(name, module) == "excluded":
            found[name] = module
    return found


def changed_modules(model: nn.Module, selection: Selection) -> dict[str, nn.Module]:
    """By name, all whose class changes."""
    return packing_modules(model, selection) | excluded_modules(model, selection)


def why_not_changed(module: nn.Module) -> str | None:
    if isinstance(module, torch.jit.ScriptModule):
        return "is TorchScript"
    if "forward" in vars(module):
        return "has a forward of its own on the object, as hooks of accelerate do: compress before"
    return None


def _is_below(name: str, others: dict[str, nn.Module]) -> bool:
    return any(not other or name.startswith(f"{other}.") for other in others)


class SavedModules:
    """The modules of a model that pack what they save, as the controller holds them.

    packing: by name, the modules at the top; untouched: those inside of them that were excluded.
    """

    def __init__(
        self, model: nn.Module, selection: Selection, settings: Saved, seed: int, stream: int | None
    ):
        self.settings = settings
        self.packer = Packer(settings, seed, stream, "compress")
        self.packing = packing_modules(model, selection)
        self.untouched = excluded_modules(model, selection)
        self._attached: dict[str, nn.Module] = {}

    def attach(self) -> None:
        for modules, packer in ((self.packing, self.packer), (self.untouched, Untouched())):
            for name, module in modules.items():
                attach(module, packer)
                self._attached[name] = module

    def detach(self) -> list[str]:
        """Gives the modules back. Returns the names of those that are others by now."""
        gone = []
        for name, module in self._attached.items():
            if isinstance(module, Packs) and SAVED in vars(module):
                detach(module)
            else:
                gone.append(name or "(model)")
        self._attached.clear()
        return gone

    @property
    def tally(self) -> Tally:
        """What the last forward pass saved."""
        return self.packer.tally

    def told(self) -> dict[str, float]:
        """What was set, as numbers: states are compared by it."""
        settings = self.settings
        if settings.bits == EXACT:
            return {"saved bits": 32.0}
        return {
            "saved nearest": float(settings.rounding == "nearest"),
            "saved group": float(self.packer.packing.group()),
            "saved bits": float(settings.bits),
        }

    def in_words(self) -> str:
        settings = self.settings
        if settings.bits == EXACT:
            return "exactly"
        nearest = ", to the nearest" if settings.rounding == "nearest" else ""
        return f"{settings.bits} bits, groups of {self.packer.packing.group()}{nearest}"
