"""How a tensor is coded for sending."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from .._library import classes
from .._support import counter, in_the_name_of
from ..tensors.coding import bytes_of, checked

# The names that Codec.parse knows, beside formats such as "1-4-3". "float32" is torch's own
# all-reduce.
CODECS: tuple[str, ...] = tuple(classes.Codec.names())
NAMES = ", ".join(
    (*CODECS, "a rate such as rate1.5", "a k such as topk32", "or a format such as 1-4-3")
)  # for messages


@dataclass(frozen=True)
class Codec:
    """One description of what happens to a tensor on the wire, the same on every rank.

    ``kind``: "lossless", "uniform" (``bits`` 2 to 8, or ``rate``, bits a value that every tensor
    takes on the wire, up to 16; 0 is no rate), "float" (``format``), "pruned" (to
    ``sparsity``; survivors are "exact", "bfloat16" or values of ``format``: "float") or "topk": the
    ``k`` largest of every ``of`` values (a power of two from 16 to 4096), rounded to ``bits`` bits,
    1 to 4. What "topk" does not keep would be lost for good: ``error_feedback``, which sends it
    later, is its default, and that of no other kind. An ``all_reduce`` sums all that ranks kept.
    ``coder``: "rans", "huffman", or "none" for codes of exactly as many bits as they have.
    ``model``: where probabilities of uniform codes come from, as in ``encode``.
    ``rounding``: "stochastic", which is unbiased, in both phases of an exchange. "nearest" is
    biased, and only for ``error_feedback``, which adds what was lost to the next gradient; there it
    is the default, as what is fed back has to be smaller than the gradient, and the noise of few
    bits is not.
    Tensors of fewer than ``min_elements`` values travel as they are.

    ``encode`` and ``decode`` are for transports of your own: files, HTTP, actors. They have state,
    which is no setting: the number of calls, which draws depend on, and with ``error_feedback``
    what rounding lost, which the next call adds. Senders whose tensors are averaged take different
    seeds, so that their noise is independent.
    """

    kind: str = "uniform"
    bits: int = 8
    rate: float = 0.0
    format: str = "1-5-2"
    coder: str = "rans"
    model: str = "counted"
    sparsity: float = 0.9
    k: int = 64
    of: int = 4096
    survivors: str = "exact"
    block_log2: int = 18
    rounding: str | None = None
    error_feedback: bool | None = None  # unless asked for, that of the kind
    seed: int = 0
    min_elements: int = 4096

    def __post_init__(self):
        object.__setattr__(self, "format", str(self.format))
        # What was left open, as it is in force.
        in_force = self._held().settings()
        for name in ("rounding", "error_feedback"):
            object.__setattr__(self, name, in_force[name])

    @classmethod
    def parse(cls, name: str, **settings) -> Codec:
        """``Codec.parse("uniform4", model="gennorm")``: a name of ``CODECS``, a rate such as
        "rate1.5", the k of topk, as in "topk32", or a format such as "1-4-3", and what differs."""
        if not isinstance(name, str):
            raise TypeError(f"[Codec] expected one of {NAMES}; got {name!r}")
        return cls(**{**classes.Codec.parse(name), **settings})

    @property
    def name(self) -> str:
        return self._held().name()

    @property
    def is_exact(self) -> bool:
        return self.kind == "lossless"

    def replace(self, **settings) -> Codec:
        return replace(self, **settings)

    def settings(self) -> dict:
        return asdict(self)

    def encode(self, tensors: Tensors) -> bytes:
        """A tensor, a list or a dict of tensors as bytes: the pieces of docs/format.md."""
        return self._coder().encode(_listed(tensors, "Codec.encode")).numpy().tobytes()

    def decode(self, data: bytes, like: Tensors) -> Any:
        """What ``encode`` made bytes of, as ``like`` is arranged, with its types and shapes.
        Damaged bytes, and those of others, raise ``PayloadError``."""
        listed = _listed(like, "Codec.decode")
        back = checked(self._coder().decode, bytes_of(data, "Codec.decode", "bytes"), listed)
        if isinstance(like, torch.Tensor):
            return back[0]
        return dict(zip(like, back, strict=True)) if isinstance(like, Mapping) else back

    def state_dict(self) -> dict[str, Any]:
        """What ``encode`` remembers."""
        return {"calls": self._coder().num_calls(), "residuals": self._coder().residuals()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        op = "Codec.load_state_dict"
        if not isinstance(state, Mapping) or {*state} != {"calls", "residuals"}:
            raise ValueError(f"[{op}] expected a state of Codec.state_dict")
        residuals = _listed(state["residuals"], op)
        self._coder().load_state(counter(state["calls"], op, "calls"), residuals)

    def _coder(self):
        """The library's, with the state; made when it is first asked for."""
        if "_held_coder" not in self.__dict__:
            coder = classes.TensorCoder(self._library_settings())
            object.__setattr__(self, "_held_coder", coder)
        return self.__dict__["_held_coder"]

    def __getstate__(self) -> dict:
        return self.settings()  # copies have the settings, and begin anew

    def _library_settings(self) -> dict:
        """As the library takes them."""
        seed = self.seed
        if isinstance(seed, int) and not isinstance(seed, bool):
            seed = (seed + 2**63) % 2**64 - 2**63  # the 64 bits that are used of it
        return {**self.settings(), "seed": seed}

    def _held(self):
        """The library's."""
        return classes.Codec(self._library_settings())


Tensors = torch.Tensor | Sequence[torch.Tensor] | Mapping[str, torch.Tensor]


def _listed(tensors: Tensors, op: str) -> list[torch.Tensor]:
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    is_collection = isinstance(tensors, Mapping | Sequence) and not isinstance(tensors, str)
    listed = list(tensors.values()) if isinstance(tensors, Mapping) else tensors
    if not is_collection or not all(isinstance(x, torch.Tensor) for x in listed):
        raise TypeError(f"[{op}] expected a tensor, or a list or dict of tensors")
    return list(listed)


def as_codec(codec: Codec | str, op: str) -> Codec:
    """``codec`` as an object; misuse names ``op``."""
    if isinstance(codec, Codec):
        return codec
    if isinstance(codec, str):
        with in_the_name_of(op):
            return Codec.parse(codec)
    raise TypeError(f"[{op}] expected a Codec or one of {NAMES}; got {type(codec).__name__}")
