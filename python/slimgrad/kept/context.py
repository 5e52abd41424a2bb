"""keep(): packs what autograd saves, for any code."""

from __future__ import annotations

from collections.abc import Mapping

from .._arguments import in_the_name_of
from .._seeds import fresh_seed
from .._streams import check_stream
from .keeper import DRAWS, Keeper
from .settings import Keep
from .tally import Tally


class Keeping:
    """What keep() returns. It may be entered again and again, also inside itself and by several
    threads; ``tally`` says what was saved since it was last entered."""

    def __init__(self, keeper: Keeper):
        self._keeper = keeper

    @property
    def tally(self) -> Tally:
        return self._keeper.tally

    def __enter__(self) -> Keeping:
        self._keeper.__enter__()
        return self

    def __exit__(self, *error) -> None:
        self._keeper.__exit__(*error)

    def state_dict(self):
        """Seed and number of draws, as a tensor."""
        return self._keeper.tensors_by_name()

    def load_state_dict(self, state) -> None:
        """Goes on where state_dict() was taken, to the bit."""
        if not isinstance(state, Mapping):
            raise TypeError("[load_state_dict] expected a mapping from names to tensors")
        self._keeper.check(state)
        if unknown := sorted(state.keys() - {DRAWS}):
            raise ValueError(
                f"[load_state_dict] expected {DRAWS!r} alone, got also {', '.join(unknown)}"
            )
        self._keeper.load(state)


def keep(
    bits: int | str = 8,
    *,
    group: int | None = None,
    rounding: str = "stochastic",
    min_elements: int = 4096,
    seed: int | None = None,
    stream: int | None = None,
) -> Keeping:
    """Packs what autograd saves for backward meanwhile::

        with sg.keep(bits=4):
            loss = model(x)
        loss.backward()

    bits: 8, 4 or 2 a value, or "exact", which leaves out zeros and loses nothing.
    group: how many neighbours in memory share a scale, 16 to 512, a power of two; by default 256,
        and 64 at 2 bits.
    rounding: "stochastic", so that what is linear in it, as the weight gradients of linear layers
        and convolutions are, stays unbiased; or "nearest".
    min_elements: smaller tensors are kept as they are.
    seed: of the random draws; by default from torch's generator, so that torch.manual_seed
        reproduces a run. Every tensor has draws of its own: to resume a run to the bit, make the
        object once, enter it in every step, and save its state_dict().
    stream: which random numbers this process draws; by default those of its rank.

    Parameters, buffers, inputs, integers, masks, small tensors, tensor subclasses and tensors with
    NaN or Inf are kept as they are; docs/kept.md lists all. Only one keep() is at work at a time:
    inside another one, the inner one. What is changed in place after it was saved raises in
    backward, as it does without.
    """
    with in_the_name_of("keep", "Keep"):
        settings = Keep(bits, group, rounding, min_elements)
    return Keeping(Keeper(settings, fresh_seed(seed), check_stream(stream, "keep")))
