"""How a tensor is coded for sending."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from .._library import classes
from .._support import in_the_name_of

# The names that Codec.parse knows, beside formats such as "1-4-3". "float32" is torch's own
# all-reduce.
CODECS: tuple[str, ...] = tuple(classes.Codec.names())
NAMES = ", ".join((*CODECS, "or a format such as 1-4-3"))  # for messages


@dataclass(frozen=True)
class Codec:
    """One description of what happens to a tensor on the wire, the same on every rank.

    ``kind``: "lossless", "uniform" (``bits`` 2 to 8), "float" (``format``) or "pruned" (to
    ``sparsity``; survivors are "exact", "bfloat16" or values of ``format``: "float").
    ``coder``: "rans", "huffman", or "none" for codes of exactly as many bits as they have.
    ``model``: where probabilities of uniform codes come from, as in ``encode``.
    ``rounding``: "stochastic", which is unbiased, in both phases of an exchange. "nearest" is
    biased, and only for ``error_feedback``, which adds what was lost to the next gradient; there it
    is the default, as what is fed back has to be smaller than the gradient, and the noise of few
    bits is not.
    Tensors of fewer than ``min_elements`` values travel as they are.
    """

    kind: str = "uniform"
    bits: int = 8
    format: str = "1-5-2"
    coder: str = "rans"
    model: str = "counted"
    sparsity: float = 0.9
    survivors: str = "exact"
    block_log2: int = 18
    rounding: str | None = None
    error_feedback: bool = False
    seed: int = 0
    min_elements: int = 4096

    def __post_init__(self):
        object.__setattr__(self, "format", str(self.format))
        # What was left open, as it is in force.
        object.__setattr__(self, "rounding", self._held().settings()["rounding"])

    @classmethod
    def parse(cls, name: str, **settings) -> Codec:
        """``Codec.parse("uniform4", model="gennorm")``: a name of ``CODECS``, or a format such as
        "1-4-3", and what differs."""
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

    def _library_settings(self) -> dict:
        """As the library takes them."""
        seed = self.seed
        if isinstance(seed, int) and not isinstance(seed, bool):
            seed = (seed + 2**63) % 2**64 - 2**63  # the 64 bits that are used of it
        return {**self.settings(), "seed": seed}

    def _held(self):
        """The library's."""
        return classes.Codec(self._library_settings())


def as_codec(codec: Codec | str, op: str) -> Codec:
    """``codec`` as an object; misuse names ``op``."""
    if isinstance(codec, Codec):
        return codec
    if isinstance(codec, str):
        with in_the_name_of(op):
            return Codec.parse(codec)
    raise TypeError(f"[{op}] expected a Codec or one of {NAMES}; got {type(codec).__name__}")
