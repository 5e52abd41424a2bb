"""The state of a registered model: the codec of each step and the residuals of error feedback."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import nn

from .._support import counter, derive_seed
from .agreement import check_agreement, fingerprint
from .auto import Choice, choose
from .codec import NAMES, Codec, as_codec

# Torch's own exchange, in the type of the gradients.
PLAIN = "float32"
# Whichever is quickest on a link that is measured at registration.
AUTO = "auto"

_registrations: weakref.WeakKeyDictionary[dist.ProcessGroup, int] = weakref.WeakKeyDictionary()

CodecChoice = Codec | str | Callable[[nn.Module, dist.ProcessGroup], "Codec | str"]
Schedule = Mapping[int, Codec | str]


def _codec_or_plain(codec: Codec | str, argument: str, *also: str) -> Codec | None:
    """also: names that the argument accepts besides those of codecs, for the error message."""
    if codec == PLAIN:
        return None
    if not isinstance(codec, str):
        return as_codec(codec, "register")
    try:
        return Codec.parse(codec)
    except ValueError:
        names = ", ".join((*also, PLAIN, NAMES))
        raise ValueError(
            f"[register] expected {argument} to be one of {names}; got {codec!r}"
        ) from None


class Plan:
    """Steps, codecs and residuals of one model. Parameters go by their names."""

    def __init__(
        self,
        model: nn.Module,
        codec: CodecChoice,
        group: dist.ProcessGroup,
        warmup: int = 0,
        schedule: Schedule | None = None,
        error_feedback: bool | None = None,
    ):
        self.group = group
        # What codec="auto" found, if it was asked: a measurement, so it is kept.
        self.choice: Choice | None = None
        self.warmup = warmup
        self.is_static_graph = False  # of DDP
        self.step = self.resumed_at = 0
        self.sent_bytes = 0
        self.names = {id(p): name for name, p in model.named_parameters()}
        self.order = {name: place for place, name in enumerate(self.names.values())}
        self.residuals: dict[str, torch.Tensor] = {}
        asked = AUTO if isinstance(codec, str) and codec == AUTO else f"not {AUTO}"
        check_agreement(lambda: {"codec": asked}, group)  # before some measure and others do not
        if asked == AUTO:
            self.choice = choose(model, group)
            codec = self.choice.codec

        def describe() -> dict:
            self.codecs = self._codecs(model, codec, schedule, error_feedback)
            return self._description(model)

        check_agreement(describe, group)
        # Models that are registered for one group draw by themselves.
        self._number = _registrations[group] = _registrations.get(group, -1) + 1

    def _codecs(self, model, codec, schedule, error_feedback) -> dict[int, Codec | None]:
        """By the step from which on they hold; what is wrong with the arguments is raised."""
        warmup = self.warmup
        if isinstance(warmup, bool) or not isinstance(warmup, int) or warmup < 0:
            raise ValueError(f"[register] expected warmup to be a number of steps, got {warmup!r}")
        if callable(codec) and not isinstance(codec, Codec):
            codec = codec(model, self.group)
        codecs = {0: _codec_or_plain(codec, "codec", AUTO)}
        for first, later in (schedule or {}).items():
            if isinstance(first, bool) or not isinstance(first, int) or first < 0:
                raise ValueError(
                    f"[register] expected schedule to map steps to codecs, got step {first!r}"
                )
            codecs[first] = _codec_or_plain(later, "codecs of a schedule")
        if error_feedback is not None:
            codecs = {
                first: codec and codec.replace(error_feedback=error_feedback, rounding=None)
                for first, codec in codecs.items()
            }
        return dict(sorted(codecs.items()))

    def __getstate__(self) -> dict:
        """Copies and pickles of a model have its settings and residuals, and no group: torch does
        not register communication hooks of a copied DistributedDataParallel, so that the copy has
        to be registered again."""
        return self.__dict__ | {"group": None, "names": {}}

    def __str__(self) -> str:
        """What travels from which step on, and what did so far."""
        changes = {first: self.codec(first) for first in (0, self.warmup, *self.codecs)}
        parts = []
        for first, codec in sorted(changes.items()):
            name = f"{PLAIN} (torch's own exchange)" if codec is None else codec.name
            feedback = " with error feedback" if codec and codec.error_feedback else ""
            parts.append(f"{f'from step {first} on ' if first else ''}{name}{feedback}")
        done = f"{self.step} steps done, {self.sent_bytes:,} bytes sent by this rank"
        ranks = dist.get_world_size(self.group)
        return f"gradients between {ranks} ranks: {', '.join(parts)}; {done}"

    def _description(self, model: nn.Module) -> dict:
        from .. import __version__

        return {
            "slimgrad": __version__,
            "warmup": self.warmup,
            "codecs": {
                str(first): codec.settings() if codec else PLAIN
                for first, codec in self.codecs.items()
            },
            "parameters": fingerprint([p.numel() for p in model.parameters()]),
        }

    def codec(self, step: int) -> Codec | None:
        """The codec of a step; None for torch's own exchange."""
        if step < self.warmup:
            return None
        return self.codecs[max(first for first in self.codecs if first <= step)]

    def _draws(self, name: str) -> int:
        """The key of a parameter's draws."""
        return derive_seed(self._number, name)

    def _residual(
        self, name: str, size: int, codec: Codec, device: torch.device
    ) -> torch.Tensor | None:
        """The rounding error of this parameter's gradients so far; zero on first use."""
        if not codec.error_feedback or codec.is_exact or size < codec.min_elements:
            return None
        known = self.residuals.get(name)
        if known is not None and known.device != device:  # of a state
            known = self.residuals[name] = known.to(device)
        if known is None or known.numel() != size:
            self.residuals[name] = torch.zeros(size, dtype=torch.float32, device=device)
            if known is not None:  # FSDP pads at the end, depending on the number of ranks
                common = min(size, known.numel())
                self.residuals[name][:common] = known[:common]
        return self.residuals[name]

    def residual_bytes(self) -> int:
        """Bytes that the residuals of error feedback take on this rank."""
        return sum(residual.nbytes for residual in self.residuals.values())

    def state_dict(self, own: bool = False) -> dict:
        """Step and residuals. All ranks must call it: residuals are averaged over ranks, so that
        any number of ranks can go on from them, and all that was lost is still sent. With ``own``
        they are this rank's, for the same number of ranks to go on to the bit; then every rank
        saves its own."""
        residuals = {name: residual.clone() for name, residual in sorted(self.residuals.items())}
        world = dist.get_world_size(self.group)
        if not own:
            for residual in residuals.values():
                dist.all_reduce(residual, group=self.group)
                residual.div_(world)
        place = {"rank": dist.get_rank(self.group), "ranks": world} if own else {}
        return {"step": self.step, "residuals": residuals, **place}

    def load_state_dict(self, state: dict) -> None:
        if "ranks" in state:
            here = (dist.get_rank(self.group), dist.get_world_size(self.group))
            saved = (state["rank"], state["ranks"])
            if here != saved:
                raise ValueError(
                    f"[load_state_dict] expected the state of rank {here[0]} of {here[1]}, got "
                    f"that of rank {saved[0]} of {saved[1]}; state_dict() without own fits any"
                )
        step = counter(state["step"], "load_state_dict", "step")
        unknown = sorted(set(state["residuals"]) - set(self.order))
        if unknown:
            raise ValueError(
                "[load_state_dict] expected residuals of this model's parameters, got "
                f"{unknown[0]!r}"
            )
        self.step = self.resumed_at = step
        self.residuals = {
            name: residual.detach().to(torch.float32).reshape(-1).clone()
            for name, residual in state["residuals"].items()
        }
