"""estimate: does it pay to code gradients before they travel? It says no when the answer is no."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from .._support import number
from . import cost
from .codec import Codec, as_codec
from .cost import Link, Speed
from .link import as_bandwidth, bandwidth_text
from .speed import SHAPE, cast_seconds, coded_speed, generated_gradients, sample_sizes

# What is tried where nobody names codecs. "uniform2" and "pruned" are not: both networks of
# bench/distributed_convergence.py learn clearly worse with them, from not much fewer bytes.
KINDS: tuple[str, ...] = ("lossless", "fp8", "fp6", "fp4", "uniform8", "uniform4")
KINDS += ("packed8", "packed4", "rate4", "rate2", "topk")
PLAIN = ("float32", "fp16")  # what torch has: its all-reduce, and its hook that casts to float16


@dataclass(frozen=True)
class Workload:
    """What a step has to exchange, and what coding a value of it takes on this machine."""

    values: int  # of tensors that are coded
    small: int  # of tensors that travel as they are
    tensors: int
    cast: float  # seconds per value, to float16 and back
    speeds: dict[str, Speed]
    every: int = 1  # steps between two exchanges of a codec; PLAIN ones are in every step

    def seconds(self, name: str, ranks: int, link: Link) -> float:
        """Predicted seconds a step."""
        if ranks == 1:
            return 0.0
        everything = self.values + self.small
        if name == "float32":
            return cost.plain_seconds(4 * everything, ranks, link)
        if name == "fp16":
            wire = cost.plain_seconds(2 * everything, ranks, link)
            return cost.overlapped(wire, self.cast * everything)
        exchange = cost.coded_seconds(self.values, self.speeds[name], ranks, link, 4 * self.small)
        return exchange / self.every

    def sent(self, name: str, ranks: int) -> float:
        """Bytes that a rank sends in a step."""
        width = {"float32": 4, "fp16": 2}.get(name)
        if width:
            return cost.sent_bytes(width * (self.values + self.small), ranks)
        speed = self.speeds[name]
        coded = self.values * speed.bytes_per_value
        return cost.sent_bytes(coded + 4 * self.small, ranks, speed.to_all) / self.every

    def break_even(self, name: str, against: str, ranks: int, latency: float) -> float:
        """The bandwidth below which ``name`` is quicker: 0 never, inf always."""
        return cost.break_even(
            lambda link: self.seconds(name, ranks, link),
            lambda link: self.seconds(against, ranks, link),
            latency,
        )


@dataclass(frozen=True)
class Row:
    """One way to exchange the gradients."""

    name: str
    sent: float  # bytes a rank sends in a step
    seconds: float  # of its exchanges, predicted
    pays_below: float  # bits per second below which it is quicker than float32: 0 never, inf always
    pays_below_fp16: float  # and quicker than float16


@dataclass(frozen=True)
class Estimate:
    """Predicted times of an exchange, the quickest first among equals of its kind: ``rows``.

    ``best`` is the quickest of all, ``pays`` whether that is a codec of ours. ``at`` predicts
    for another link or another number of ranks from the same measurements.
    """

    workload: Workload
    ranks: int
    link: Link
    gradients: str  # where those that were coded came from
    rows: tuple[Row, ...] = field(default=(), compare=False)

    def __post_init__(self):
        names = [*PLAIN, *self.workload.speeds]
        object.__setattr__(self, "rows", tuple(self._row(name) for name in names))

    def _row(self, name: str) -> Row:
        even = {
            against: self.workload.break_even(name, against, self.ranks, self.link.latency)
            if name not in PLAIN or (name, against) == ("fp16", "float32")
            else float("nan")
            for against in PLAIN
        }
        seconds = self.workload.seconds(name, self.ranks, self.link)
        sent = self.workload.sent(name, self.ranks)
        return Row(name, sent, seconds, even["float32"], even["fp16"])

    def row(self, name: str) -> Row:
        for row in self.rows:
            if row.name == name:
                return row
        known = ", ".join(row.name for row in self.rows)
        raise ValueError(f"[estimate] expected one of {known}, got {name!r}")

    @property
    def best(self) -> str:
        return min(self.rows, key=lambda row: row.seconds).name

    @property
    def pays(self) -> bool:
        return self.best not in PLAIN

    def at(self, bandwidth: Any = None, latency: Any = None, ranks: int | None = None) -> Estimate:
        link = Link(
            self.link.bandwidth if bandwidth is None else as_bandwidth(bandwidth, "estimate"),
            self.link.latency if latency is None else _latency(latency),
        )
        return Estimate(
            self.workload, self.ranks if ranks is None else _ranks(ranks), link, self.gradients
        )

    @property
    def verdict(self) -> str:
        """One sentence."""
        where = f"between {self.ranks} ranks at {bandwidth_text(self.link.bandwidth)}"
        if self.ranks == 1:
            return "No: one rank exchanges nothing."
        plain = min((self.row(name) for name in PLAIN), key=lambda row: row.seconds)
        codecs = [row for row in self.rows if row.name not in PLAIN]
        if not codecs:
            return f"No: every tensor is small; {plain.name} takes {plain.seconds:.3g} s."
        ours = min(codecs, key=lambda row: row.seconds)
        if self.pays:
            return (
                f"Yes: {where} {ours.name} takes {ours.seconds:.3g} s, {plain.name} "
                f"{plain.seconds:.3g} s: {plain.seconds / ours.seconds:.1f} times faster."
            )
        below = max(min(row.pays_below, row.pays_below_fp16) for row in codecs)
        hope = f"a codec pays below {bandwidth_text(below)}" if below else "no codec ever pays"
        return (
            f"No: {where} {plain.name} takes {plain.seconds:.3g} s and the quickest codec, "
            f"{ours.name}, {ours.seconds:.3g} s; {hope}."
        )

    def _rounds(self) -> str:
        every = self.workload.every
        return "" if every == 1 else f"codecs exchange every {every} steps, "

    def __str__(self) -> str:
        load = self.workload
        lines = [
            f"{(load.values + load.small) / 1e6:.1f} million values in {load.tensors} tensors, "
            f"{load.small} of them in small ones that travel as they are; {self.gradients}",
            f"{self.ranks} ranks, {self._rounds()}"
            f"{bandwidth_text(self.link.bandwidth)} a rank and direction, "
            f"{1e3 * self.link.latency:.3g} ms a message; work measured with "
            f"{torch.get_num_threads()} threads",
            f"{'':<12} {'bits a':>7} {'encode':>8} {'decode':>8} {'MB':>8} {'seconds':>9} "
            f"{'x':>7} {'pays below':>12} {'than fp16':>12}",
            f"{'':<12} {'value':>7} {'GB/s':>8} {'GB/s':>8} {'sent':>8} {'a step':>9} "
            f"{'float32':>7}",
        ]
        unit = self.row("float32").seconds
        for row in self.rows:
            speed = load.speeds.get(row.name)
            bits = 8 * speed.bytes_per_value if speed else {"float32": 32, "fp16": 16}[row.name]
            shown = f" {4e-9 / speed.encode:8.2f} {4e-9 / speed.decode:8.2f}" if speed else " " * 18
            faster = unit / row.seconds if row.seconds else 1.0
            sent, seconds = _digits(row.sent / 1e6, 2), _digits(row.seconds, 4)
            line = f"{row.name:<12} {bits:7.2f}{shown} {sent:>8} {seconds:>9}"
            line += f" {faster:7.2f} {_below(row.pays_below):>12} {_below(row.pays_below_fp16):>12}"
            lines.append(line.rstrip())
        return "\n".join([*lines, self.verdict])


def _digits(number: float, decimals: int) -> str:
    """With so many decimals; small ones, as those of a round over its steps, with two digits."""
    return f"{number:.{decimals}f}" if number >= 10**-decimals else f"{number:.2g}"


def _every(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"[estimate] expected every to be a positive integer, got {value!r}")
    return value


def _below(bits: float) -> str:
    if bits != bits:
        return ""
    return {0.0: "never", float("inf"): "always"}.get(bits) or bandwidth_text(bits)


def _ranks(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"[estimate] expected ranks to be a positive integer, got {value!r}")
    return value


def _latency(value: Any) -> float:
    seconds = number(value, "estimate", "latency")
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"[estimate] expected latency to be seconds, at least 0, got {seconds:g}")
    return seconds


def estimate(
    model: nn.Module | Iterable[torch.Tensor],
    bandwidth: float | str,
    latency: float = 1e-4,
    ranks: int = 2,
    codecs: Sequence | None = None,
    gradients: Iterable[torch.Tensor] | None = None,
    every: int = 1,
) -> Estimate:
    """What an exchange of this model's gradients takes, plainly, as float16, and by every codec.

    ``bandwidth``: bits per second that a rank can send while it receives as many, or text such as
    "1 Gbit/s". ``latency``: seconds a message. ``codecs``: names or ``Codec``; None is one of every
    kind. ``gradients``: tensors to code; None takes the parameters' ``grad``, or, if there are
    none, values of a generalized normal law, and the result says so. ``every``: of local updates
    (DiLoCo), how many steps apart codecs exchange; times and bytes are those of a round over as
    many steps. float32 and fp16 stay torch's own, in every step.

    Coding and decoding are measured, here and now, with the threads torch has, on about 8 Mi
    values of all tensors: some seconds. The rest is the formula of docs/distributed.md, for an
    exchange that has nothing to hide behind. Printed, the result is a table with a verdict.
    """
    link = Link(as_bandwidth(bandwidth, "estimate"), _latency(latency))
    ranks, every = _ranks(ranks), _every(every)
    samples, sizes, where = gradients_of(model, gradients)
    load = replace(measured_workload(samples, sizes, codecs), every=every)
    return Estimate(load, ranks, link, where)


def gradients_of(model: Any, gradients: Any) -> tuple[list[torch.Tensor], list[int], str]:
    """A sample of every gradient, how many values each has, and where they come from."""
    if gradients is not None or not isinstance(model, nn.Module):
        tensors = _tensors(model if gradients is None else gradients)
        where = "gradients as given"
    else:
        parameters = [p for p in model.parameters() if p.requires_grad]
        if not parameters:
            raise ValueError("[estimate] expected a model with parameters that require a gradient")
        _check_types(parameters)
        if any(p.grad is None for p in parameters):
            sizes = [p.numel() for p in parameters]
            where = f"generated gradients, generalized normal of shape {SHAPE}"
            return generated_gradients(sample_sizes(sizes)), sizes, where
        tensors, where = (
            [p.grad for p in parameters if p.grad is not None],
            "the model's own gradients",
        )
    _check_types(tensors)
    sizes = [tensor.numel() for tensor in tensors]
    samples = [
        tensor.detach().flatten()[:size].float().cpu()
        for tensor, size in zip(tensors, sample_sizes(sizes), strict=True)
    ]
    return samples, sizes, where


def measured_workload(
    samples: Sequence[torch.Tensor], sizes: Sequence[int], codecs: Sequence | None
) -> Workload:
    named = _by_name(codecs)
    large = [size >= Codec().min_elements for size in sizes]
    coded = [x for x, is_large in zip(samples, large, strict=True) if is_large and x.numel()]
    values = sum(size for size, is_large in zip(sizes, large, strict=True) if is_large)
    speeds = {name: coded_speed(codec, coded) for name, codec in named.items()} if coded else {}
    return Workload(values, sum(sizes) - values, len(sizes), cast_seconds(samples), speeds)


def _by_name(codecs: Sequence[Codec | str] | None) -> dict[str, Codec]:
    """Codecs by name; a number is added to a name that occurs twice."""
    named: dict[str, Codec] = {}
    if not isinstance(codecs, Sequence | None) or isinstance(codecs, str):
        raise TypeError(f"[estimate] expected codecs to be a list, got {type(codecs).__name__}")
    for given in KINDS if codecs is None else codecs:
        codec = as_codec(given, "estimate")
        name = given if isinstance(given, str) else codec.name
        number = 2
        while name in named:
            name, number = f"{codec.name} ({number})", number + 1
        named[name] = codec
    return named


def _check_types(tensors: Sequence[torch.Tensor]) -> None:
    """Times and bytes are those of float32; others would be compared with the wrong ones."""
    for tensor in tensors:
        if tensor.dtype != torch.float32:
            raise ValueError(f"[estimate] expected gradients of type float32, got {tensor.dtype}")


def _tensors(values: Any) -> list[torch.Tensor]:
    if not isinstance(values, Iterable):
        raise TypeError(
            "[estimate] expected a module or tensors of gradients, got " + type(values).__name__
        )
    listed = [values] if isinstance(values, torch.Tensor) else list(values)
    for value in listed:
        if not isinstance(value, torch.Tensor):
            raise TypeError(
                f"[estimate] expected gradients to be tensors, got {type(value).__name__}"
            )
    if not listed:
        raise ValueError("[estimate] expected gradients to be tensors, got none")
    return listed
