"""saved_tensors(): packs what autograd saves, for any code."""

from __future__ import annotations

from collections.abc import Mapping

from .._support import check_stream, fresh_seed, in_the_name_of
from .packer import DRAWS, Packer
from .settings import Saved
from .tally import Tally


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
        if not isinstance(state, Mapping):
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
    innermost packs. What is changed in place after it was saved raises in
    backward, as it does without.
    """
    with in_the_name_of("saved_tensors"):
        settings = Saved(bits, group, rounding, min_elements)
    seed = fresh_seed(seed, "saved_tensors")
    return SavedTensors(Packer(settings, seed, check_stream(stream, "saved_tensors")))
