"""How a tensor is coded for sending."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, fields, replace

import torch

from .._library import ops
from .._support import check_choice, in_the_name_of
from ..tensors.formats import FloatFormat, best_format, parse_float_choice

# The names that Codec.parse knows, beside formats such as "1-4-3". "float32" is torch's own
# all-reduce.
CODECS = (
    "lossless",
    *(f"fp{bits}" for bits in range(8, 1, -1)),
    *(f"uniform{bits}" for bits in range(8, 1, -1)),
    *(f"packed{bits}" for bits in range(8, 3, -1)),
    "pruned",
)
NAMES = ", ".join((*CODECS, "or a format such as 1-4-3"))  # for messages


@functools.cache
def _split_for_gradients(bits: int) -> str:
    """What codecs make of "fpN": the best split for magnitudes that spread over 1 to 5 octaves (the
    standard deviation of their log2), as gradients' do. One for all, and not one for each piece:
    codes are entropy-coded, so with a split of its own a piece mostly takes more bytes for less
    error; and a reader knows the format before it reads."""
    return str(best_format(bits, (1, 5)))


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
        def expect(holds: bool, what: str, got) -> None:
            if not holds:
                raise ValueError(f"[Codec] expected {what}, got {got!r}")

        kinds = ("lossless", "uniform", "float", "pruned")
        expect(self.kind in kinds, f"kind to be one of {', '.join(kinds)}", self.kind)
        expect(_whole(self.bits) and 2 <= self.bits <= 8, "2 to 8 bits", self.bits)
        object.__setattr__(self, "format", str(FloatFormat(str(self.format))))
        coders = ("rans", "huffman", "none")
        expect(self.coder in coders, f"coder to be one of {', '.join(coders)}", self.coder)
        models = ("counted", "gennorm", "laplace", "normal")
        expect(self.model in models, f"model to be one of {', '.join(models)}", self.model)
        survivors = ("exact", "bfloat16", "float")
        expect(self.survivors in survivors, f"survivors to be one of {survivors}", self.survivors)
        expect(
            self.model == "counted" or self.kind == "uniform",
            "model counted for all kinds but uniform",
            self.model,
        )
        expect(
            self.coder != "none" or (self.kind in ("uniform", "float") and self.model == "counted"),
            "a coder for all but uniform and float codes with counted tables",
            self.coder,
        )
        expect(0 <= self.sparsity < 1, "sparsity in [0, 1)", self.sparsity)
        expect(12 <= self.block_log2 <= 20, "block_log2 from 12 to 20", self.block_log2)
        expect(
            not (self.error_feedback and self.kind == "pruned"),
            "error_feedback=False with pruning, whose noise is larger than the gradient and would "
            "grow if it was fed back",
            self.error_feedback,
        )
        if self.rounding is None:
            default = "nearest" if self.error_feedback else "stochastic"
            object.__setattr__(self, "rounding", default)
        check_choice(str(self.rounding), "rounding", "Codec", "rounding")
        expect(
            self.rounding == "stochastic" or self.error_feedback or self.kind == "lossless",
            "error_feedback=True with rounding='nearest', as gradients that are rounded to the "
            "nearest value are biased and small ones vanish for good",
            self.error_feedback,
        )
        expect(_whole(self.seed), "seed to be a whole number", self.seed)
        expect(
            _whole(self.min_elements) and self.min_elements >= 0,
            "min_elements to be a whole number of at least 0",
            self.min_elements,
        )

    @classmethod
    def parse(cls, name: str, **settings) -> Codec:
        """``Codec.parse("uniform4", model="gennorm")``: a name of ``CODECS``, or a format such as
        "1-4-3", and what differs."""
        return cls(**{**_settings_of(name), **settings})

    @property
    def name(self) -> str:
        if self.kind == "uniform":
            return f"{'packed' if self.coder == 'none' else 'uniform'}{self.bits}"
        if self.kind == "float":
            bits = FloatFormat(self.format).bits
            return f"fp{bits}" if self.format == _split_for_gradients(bits) else self.format
        return self.kind

    @property
    def is_exact(self) -> bool:
        return self.kind == "lossless"

    def replace(self, **settings) -> Codec:
        return replace(self, **settings)

    def settings(self) -> dict:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def _format_bits(self) -> tuple[int, int]:
        format = FloatFormat(self.format)
        return format.exponent_bits, format.mantissa_bits


def as_codec(codec: Codec | str, op: str) -> Codec:
    """``codec`` as an object; misuse names ``op``."""
    if isinstance(codec, Codec):
        return codec
    if isinstance(codec, str):
        with in_the_name_of(op):
            return Codec.parse(codec)
    raise TypeError(f"[{op}] expected a Codec or one of {NAMES}; got {type(codec).__name__}")


def _settings_of(name: str) -> dict:
    choice = parse_float_choice(name)
    if choice is not None:
        format = _split_for_gradients(choice) if isinstance(choice, int) else str(choice)
        return {"kind": "float", "format": format}
    if name in ("lossless", "pruned"):
        return {"kind": name}
    match = re.fullmatch(r"(uniform|packed)([2-8])", name) if isinstance(name, str) else None
    if match is None or name not in CODECS:
        raise ValueError(f"[Codec] expected one of {NAMES}; got {name!r}")
    return {
        "kind": "uniform",
        "bits": int(match[2]),
        "coder": "none" if match[1] == "packed" else "rans",
    }


def _whole(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def encoded_bound(lengths: list[int], dtype: torch.dtype) -> int:
    """How many bytes ``encode_pieces`` of pieces so long can need."""
    return ops.pieces_bound(lengths, dtype)
