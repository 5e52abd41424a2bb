"""The hooks that autograd calls for what it saves: slimgrad::SavedTensors, for code in Python."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .._library import ops
from .._support import check_stream, current_stream, fresh_seed, in_the_name_of, records_plain_model
from .graph_rules import EXCLUDED, KEY
from .graphs import hooks_for, mark_trace, text_of
from .settings import EXACT, Saved

DRAWS = "draws"

_COMPILED_FOLDER = "_aot_autograd"
_CHECKPOINT_FILE = torch.utils.checkpoint.__file__


@dataclass
class Tally:
    """What one pass saved, each piece of memory once. Leaves of the graph are not in it.

    packed: tensors that were packed; plain_bytes, bytes: what they were and what they are.
    kinds: by what they became ("4 bits", "exact", ...), how many, and their bytes before and after.
    left: by reason, how many tensors stayed as they are, and their bytes.
    packing_seconds, unpacking_seconds: as the clock had it.
    """

    packed: int
    plain_bytes: int
    bytes: int
    kinds: dict[str, tuple[int, int, int]]
    left: dict[str, tuple[int, int]]
    packing_seconds: float
    unpacking_seconds: float

    @property
    def left_bytes(self) -> int:
        return sum(num_bytes for _, num_bytes in self.left.values())


class Packer:
    """Packs what autograd saves while its hooks are set, each piece of memory once.

    stream: which of the seed's draws; by default those of this process's rank.
    called: what errors name.
    """

    def __init__(self, settings: Saved, seed: int, stream: int | None, called: str):
        self.settings = settings
        self.stream = stream
        self.called = called
        self.packing = settings._packing(seed, stream or 0, called)
        self._pack = self.packing.pack  # Looking a method up takes longer than calling it.
        self.draws = self.packing.draws()
        bits = 0 if settings.bits == EXACT else int(settings.bits)
        self.how = text_of(bits, self.packing.group(), settings.rounding, settings.min_elements)
        self._hooks = hooks_for(self.how, self.pack, unpack)

    def __getstate__(self) -> dict[str, Any]:
        own = ("settings", "stream", "called")
        return {name: self.__dict__[name] for name in own} | {"saved": self.tensors_by_name()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["settings"], 0, state["stream"], state["called"])
        self.load(state["saved"])

    def __enter__(self) -> None:
        self._hooks.__enter__()  # It may raise: transforms of torch.func refuse hooks.
        self.packing.begin(current_stream(self.stream))

    def __exit__(self, *error) -> None:
        self._hooks.__exit__(*error)
        self.packing.end()

    def run(self, forward: Callable, *args, **kwargs) -> Any:
        """A forward pass whose saved tensors are packed."""
        if not torch.is_grad_enabled() or records_plain_model():
            return forward(*args, **kwargs)
        with self:
            return forward(*args, **kwargs)

    def trace(self, forward: Callable, *args, **kwargs) -> Any:
        """The same, where torch.compile traces it. A graph cannot break inside of annotate():
        where it would, dynamo runs this as it stands, and compiles what forward calls."""
        if not torch.compiler.is_compiling():
            return self.run(forward, *args, **kwargs)
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        mark_trace(self.how)
        ops.begin_saved_(self.draws, current_stream(self.stream))
        with torch.fx.traceback.annotate({KEY: self.how}):
            result = forward(*args, **kwargs)
            mark_trace("")
            return result

    def pack(self, tensor: torch.Tensor) -> Any:
        if type(tensor) in (torch.Tensor, torch.nn.Parameter):
            return self._pack(tensor, _saved_by(sys._getframe().f_back))
        if torch._guards.TracingContext.try_get() is not None:  # a hook that is inlined
            return tensor
        with torch._C.DisableTorchFunctionSubclass():
            return self._pack(tensor, "subclass")

    @property
    def tally(self) -> Tally:
        return Tally(*self.packing.tally())

    # ---- state ------------------------------------------------------------------------------

    def tensors_by_name(self) -> dict[str, torch.Tensor]:
        return {DRAWS: self.packing.state()}

    def check(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Raises ValueError for what tensors_by_name() cannot have given."""
        with in_the_name_of("load_state_dict"):
            self.packing.check_state(saved.get(DRAWS))

    def load(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Goes on where tensors_by_name() was taken."""
        self.check(saved)
        self.packing.load_state(saved[DRAWS])


def unpack(saved: Any) -> torch.Tensor:
    return saved if isinstance(saved, torch.Tensor) else saved.unpack()


def _saved_by(frame: Any) -> str:
    """Who saves, where the tensor alone does not tell it. frame: whose hook is called; None in a
    thread without Python."""
    if torch.compiler.is_compiling():
        return "trace"
    for depth in range(3):
        if frame is None:
            break
        name = frame.f_code.co_filename
        if _COMPILED_FOLDER in name:
            return "compiled graph"
        if name == _CHECKPOINT_FILE and depth < 2:
            return "checkpoint"
        frame = frame.f_back
    return ""


class Untouched:
    """For parts of a model that save their tensors as they are, inside of one that packs them."""

    def __init__(self) -> None:
        self._leave = Saved()._packing(0, 0, "compress").leave
        self._hooks = hooks_for(EXCLUDED, self._pack, unpack)

    def __reduce__(self):
        return Untouched, ()

    def run(self, forward: Callable, *args, **kwargs) -> Any:
        if torch.jit.is_tracing() or torch.compiler.is_exporting():
            return forward(*args, **kwargs)
        with self._hooks:
            return forward(*args, **kwargs)

    def trace(self, forward: Callable, *args, **kwargs) -> Any:
        if not torch.compiler.is_compiling():
            return self.run(forward, *args, **kwargs)
        mark_trace(EXCLUDED)
        with torch.fx.traceback.annotate({KEY: EXCLUDED}):
            result = forward(*args, **kwargs)
            mark_trace("")
            return result

    def _pack(self, tensor: torch.Tensor) -> Any:
        if torch._guards.TracingContext.try_get() is not None:
            return tensor
        with torch._C.DisableTorchFunctionSubclass():
            return self._leave(tensor)


# ---- saved_tensors() -----------------------------------------------------------------------------


class SavedTensors:
    """What saved_tensors() returns. It may be entered again and again, also inside itself and by
    several threads; ``tally`` says what was saved since it was last entered."""

    def __init__(self, packer: Packer):
        self._packer = packer

    @property
    def tally(self) -> Tally:
        return self._packer.tally

    def __enter__(self) -> SavedTensors:
        self._packer.__enter__()
        return self

    def __exit__(self, *error) -> None:
        self._packer.__exit__(*error)

    def state_dict(self):
        """Seed and number of draws, as a tensor."""
        return self._packer.tensors_by_name()

    def load_state_dict(self, state) -> None:
        """Goes on where state_dict() was taken, to the bit."""
        if not isinstance(state, Mapping) or not all(map(torch.is_tensor, state.values())):
            raise TypeError("[load_state_dict] expected a mapping from names to tensors")
        self._packer.check(state)
        if unknown := sorted(state.keys() - {DRAWS}):
            raise ValueError(
                f"[load_state_dict] expected {DRAWS!r} alone, got also {', '.join(unknown)}"
            )
        self._packer.load(state)


def saved_tensors(
    bits: int | str = 8,
    *,
    group: int | None = None,
    rounding: str = "stochastic",
    min_elements: int = 4096,
    seed: int | None = None,
    stream: int | None = None,
) -> SavedTensors:
    """Packs what autograd saves for backward meanwhile::

        with sg.saved_tensors(bits=4):
            loss = model(x)
        loss.backward()

    bits: 8, 4 or 2 a value, or "exact", which leaves out zeros and loses nothing.
    group: how many neighbours in memory share a scale, 16 to 512, a power of two; by default 256,
        and 64 at 2 bits.
    rounding: "stochastic", so that what is linear in it, as the weight gradients of linear layers
        and convolutions are, stays unbiased; or "nearest".
    min_elements: smaller tensors stay as they are.
    seed: of the random draws; by default from torch's generator, so that torch.manual_seed
        reproduces a run. Every tensor has draws of its own: to resume a run to the bit, make the
        object once, enter it in every step, and save its state_dict().
    stream: which random numbers this process draws; by default those of its rank.

    Parameters, buffers, inputs, integers, masks, small tensors, tensor subclasses and tensors with
    NaN or Inf stay as they are; docs/saved.md lists all. Nested saved_tensors() do not add up: the
    innermost packs. What is changed in place after it was saved raises in backward, as without.
    """
    called = "saved_tensors"
    with in_the_name_of(called):
        settings = Saved(bits, group, rounding, min_elements)
    seed = fresh_seed(seed, called)
    return SavedTensors(Packer(settings, seed, check_stream(stream, called), called))
