"""What kernels on GPUs should cost. A prediction: nothing here has run on a GPU.

    python -m bench.device_cost --out results/device_cost.json   # after make check-device
    python -m bench.device_cost --page docs/gpu.md               # the page's table, from the record

Bytes are those of each kernel's description (traffic() in src/device). Registers and shared memory
are ptxas's, and what a thread has in flight is read from the PTX: the most that it loads without a
branch in between. From these follow, for 2^26 values,

    occupancy   the threads that a multiprocessor has room for, of 2048
    time        the longer of: all bytes at the bandwidth of the data sheet; the bytes that are read
                at what fits in flight, LATENCY after it was asked for

which are bounds from below: arithmetic and what a launch takes are left out. Few threads or narrow
loads show; a kernel that computes for longer than it reads does not.

torch's side is counted, not predicted: code that a user would write with torch's own operators runs
on the CPU under a dispatch mode, which adds up the bytes of every tensor that an operator reads or
writes; views and scalars are free. A kernel that torch.compile fuses from it would read and write
as few as ours do.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bench import marked
from slimgrad._library import ops

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "results" / "device_cost.json"
COMPILED = ROOT / "build" / "release" / "device"
VALUES = 1 << 26
BITS = 8  # where a kernel's name does not say
GROUP = 256  # of saved tensors: the default
WRITER = "python -m bench.device_cost"

# ---- GPUs ----------------------------------------------------------------------------------------

# Seconds between asking memory and the answer, while it is busy. Assumed: microbenchmarks find 0.3
# microseconds on both GPUs where nothing else is asked for.
LATENCY = 0.5e-6
MOST_THREADS = 2048  # of a multiprocessor
MOST_BLOCKS = 32


@dataclass(frozen=True)
class Gpu:
    name: str
    code: str  # of ptxas
    bandwidth: float  # bytes a second, of the data sheet
    multiprocessors: int
    shared: int  # bytes of a multiprocessor


GPUS = (
    Gpu("A100 80 GB", "sm_80", 2.039e12, 108, 164 << 10),
    Gpu("H100 SXM", "sm_90", 3.35e12, 132, 228 << 10),
)


def resident_threads(threads: int, registers: int, shared: int, gpu: Gpu) -> int:
    """How many threads a multiprocessor holds, by CUDA's rules: a warp takes registers in portions
    of 256, from one of four files of 16,384; a block takes a KiB of shared memory beside its own.
    """
    a_warp = -(-registers * 32 // 256) * 256
    warps = 4 * (16_384 // a_warp)
    blocks = min(
        MOST_BLOCKS,
        MOST_THREADS // threads,
        warps // (threads // 32),
        gpu.shared // (-(-(shared + 1024) // 128) * 128),
    )
    return blocks * threads


def seconds(
    gpu: Gpu, read: int, written: int, *, threads: int = 0, resident: int = 0, in_flight: int = 0
) -> float:
    """threads: of the whole grid; resident: those that a multiprocessor has room for."""
    at_bandwidth = (read + written) / gpu.bandwidth
    if not in_flight:
        return at_bandwidth
    together = min(threads, resident * gpu.multiprocessors)
    return max(at_bandwidth, read * LATENCY / (together * in_flight))


# ---- compiled code -------------------------------------------------------------------------------

_PTXAS = re.compile(r"Function properties for (\w+)\n.*\n.*?Used (\d+) registers(.*)")
_LOAD = re.compile(r"(?:@!?%p\d+ )?ld\.global(?:\.nc)?(?:\.L\S+?)?(?:\.v(\d))?\.[busf](\d+)")
_BRANCH = re.compile(r"\$L|(?:@!?%p\d+ )?(?:bra|bar|ret)")


def resources(code: str) -> dict[str, tuple[int, int]]:
    """Registers of a thread and bytes of shared memory of a block, by the names of kernels."""
    file = COMPILED / f"kernels.{code}.resources"
    found = {}
    for name, registers, rest in _PTXAS.findall(file.read_text() if file.exists() else ""):
        shared = re.search(r"(\d+) bytes smem", rest)
        found[name] = int(registers), int(shared[1]) if shared else 0
    return found


def bytes_in_flight(ptx: str) -> int:
    """The most that a thread loads without a branch in between."""
    most = now = 0
    for line in map(str.strip, ptx.splitlines()):
        if _BRANCH.match(line):
            now = 0
        elif load := _LOAD.match(line):
            now += int(load[1] or 1) * int(load[2]) // 8
            most = max(most, now)
    return most


def loads_of_kernels() -> dict[str, int]:
    file = COMPILED / "kernels.sm_80.ptx"
    text = file.read_text() if file.exists() else ""
    parts = re.split(r"^\.visible \.entry (\w+)\(", text, flags=re.MULTILINE)
    return {n: bytes_in_flight(t) for n, t in zip(parts[1::2], parts[2::2], strict=True)}


def kernels() -> dict[str, dict]:
    """By name: what the description and the compiled code say, and the time that follows. Of a
    kernel that was not compiled there are bytes and their time alone."""
    compiled = {gpu.code: resources(gpu.code) for gpu in GPUS}
    in_flight, record = loads_of_kernels(), {}
    costs = ops._device_kernel_costs(VALUES, BITS, GROUP)
    for name, threads, blocks, read, written in zip(*costs, strict=True):
        loads = in_flight.get(name, 0)
        row = {"threads": threads, "read": read / VALUES, "written": written / VALUES}
        row |= {"in_flight": loads or None, "on": {}}
        for gpu in GPUS:
            on: dict[str, float | None] = {"registers": None, "shared": None, "occupancy": None}
            resident = 0
            if loads:
                registers, shared = compiled[gpu.code][name]
                resident = resident_threads(threads, registers, shared, gpu)
                on = {"registers": registers, "shared": shared}
                on["occupancy"] = resident / MOST_THREADS
            on["predicted_us"] = 1e6 * seconds(
                gpu, read, written, threads=threads * blocks, resident=resident, in_flight=loads
            )
            row["on"][gpu.name] = on
        record[name] = row
    return record


# ---- torch ---------------------------------------------------------------------------------------


class CountBytes(TorchDispatchMode):
    """Adds up what operators read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        schema = func._schema
        if any(of.alias_info and not of.alias_info.is_write for of in schema.returns):
            return result  # a view
        read = [] if "_like" in schema.name else tree_leaves((args, kwargs))
        for x in [*read, *tree_leaves(result)]:
            if isinstance(x, torch.Tensor):
                self.bytes += x.numel() * x.element_size()
        return result


F8 = torch.float8_e4m3fn


def _measure(x):
    a = x.abs()
    logs = a.log2()
    return (
        torch.std_mean(logs), torch.histc(logs.float(), 2048, -150, 130), a.amax(), a.mean(),
        torch.linalg.vector_norm(x), x.count_nonzero(), x.isfinite().sum(),
    )  # fmt: skip


def _quantize(x):
    return (x / 0.5).to(F8).to(x.dtype) * 0.5


def _prune(x):
    a = x.abs()
    return torch.where(torch.rand_like(x) < a, torch.copysign(a.clamp_min(1.0), x), 0.0)


def _saved_codes(x, bits):
    groups = x.view(-1, GROUP)
    low, high = groups.aminmax(dim=1, keepdim=True)
    step = (high - low) / ((1 << bits) - 1)
    codes = ((groups - low) / step + torch.rand_like(groups)).to(torch.uint8)
    parts = 8 // bits
    packed = codes[:, ::parts]
    for k in range(1, parts):
        packed = packed | codes[:, k::parts] << (bits * k)
    return packed, low, step


def _saved_values(x, codes, bits):
    packed, low, step = codes
    parts = 8 // bits
    if parts > 1:
        mask = (1 << bits) - 1
        packed = torch.stack([(packed >> bits * k) & mask for k in range(parts)], -1).flatten(1)
    return packed.to(low.dtype) * step + low


def _kept(x):
    mask = x != 0
    return mask, torch.masked_select(x, mask)


def _int8(x):
    return (x / 0.01 + torch.rand_like(x)).floor().clamp(-127, 127).to(torch.int8)


def _merged(x, kept):
    return torch.zeros_like(x).masked_scatter_(*kept)


@dataclass(frozen=True)
class Operation:
    """A kernel, by its name without a type, and what a user of torch would do instead: a call of an
    array, half of which is zeros, and of what is prepared from it and not counted."""

    kernel: str
    in_words: str
    call: Callable[..., object] | None
    prepare: Callable[[torch.Tensor], object] | None = None
    words: bool = False  # its types are widths

    def bytes_a_value(self, dtype: torch.dtype) -> float | None:
        if self.call is None:
            return None
        x = torch.randn(1 << 16, generator=torch.Generator().manual_seed(1)).to(dtype)
        x[::2] = 0
        prepared = () if self.prepare is None else (self.prepare(x),)
        with CountBytes() as counted:
            self.call(x, *prepared)
        return counted.bytes / len(x)


def _operations() -> Iterator[Operation]:
    aten, norm = torch.ops.aten, torch.linalg.vector_norm
    yield Operation(
        "measure_chunks",
        "abs, std_mean and histc of logarithms, amax, mean, vector_norm, count_nonzero, isfinite",
        _measure,
    )
    yield Operation("max_magnitude", "vector_norm(inf)", lambda x: norm(x, float("inf")))
    yield Operation("quantize", "a cast to float8 and back, with a scale", _quantize)
    yield Operation("prune", "abs, rand_like, lt, clamp_min, copysign, where", _prune)
    yield Operation("prune_quantize", "those of both", lambda x: _quantize(_prune(x)))
    yield Operation("drop", "hardshrink", lambda x: aten.hardshrink(x, 0.5))
    yield Operation("gate_see", "vector_norm(inf)", lambda x: norm(x, float("inf")))
    yield Operation("gate_apply", "those of prune and quantize", lambda x: _quantize(_prune(x)))
    for bits in (1, 2, 3, 4):
        yield Operation(f"step_codes{bits}", "none: it keeps the input", None)
    for kernel in (*(f"step_backward{bits}" for bits in (1, 2, 3, 4)), "inverse_backward"):
        yield Operation(kernel, "gelu_backward", aten.gelu_backward, torch.clone)
    for bits in (8, 4, 2):
        shifts = ", shifts" if bits < 8 else ""
        yield Operation(
            f"pack_saved{bits}",
            f"aminmax, sub, div, rand_like, add, a cast{shifts}",
            partial(_saved_codes, bits=bits),
        )
        yield Operation(
            f"unpack_saved{bits}",
            f"a cast, mul, add{shifts}",
            partial(_saved_values, bits=bits),
            partial(_saved_codes, bits=bits),
        )
    yield Operation("pack", "div, a cast to float8", lambda x: (x / 0.5).to(F8))
    yield Operation(
        "unpack", "a cast, mul", lambda x, codes: codes.to(x.dtype) * 0.5, lambda x: x.to(F8)
    )
    yield Operation("uniform_encode", "div, rand_like, add, floor, clamp, a cast to int8", _int8)
    yield Operation(
        "uniform_decode", "a cast, mul", lambda x, codes: codes.to(x.dtype) * 0.01, _int8
    )
    yield Operation("count_survivors", "count_nonzero", torch.count_nonzero, words=True)
    yield Operation("split_exact", "ne, masked_select", _kept, words=True)
    yield Operation("merge_exact", "zeros_like, masked_scatter_", _merged, _kept, words=True)


OPERATIONS = tuple(_operations())
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
WORDS = {"f32": "b32", "bf16": "b16"}


def bytes_of_torch() -> dict[str, dict[str, float | None]]:
    """Bytes a value, by kernel and type."""
    return {
        of.kernel: {name: of.bytes_a_value(dtype) for name, dtype in TYPES.items()}
        for of in OPERATIONS
    }


# ---- the table -----------------------------------------------------------------------------------


def _cells(of: Operation, record: dict) -> Iterator[str]:
    """Of a row; where the two types differ, both, float32 first."""
    rows = [
        record["kernels"][f"slimgrad_{of.kernel}_{WORDS[name] if of.words else name}"]
        for name in TYPES
    ]
    counted = [record["torch"][of.kernel][name] for name in TYPES]
    on = [[row["on"][gpu.name] for row in rows] for gpu in GPUS]
    yield from map(
        _joined,
        (
            [f"{row['read'] + row['written']:.3g}" for row in rows],
            [_or_dash(count, ".3g") for count in counted],
            [_or_dash(row["registers"], "d") for row in on[0]],
            [_or_dash(row["occupancy"], ".0%") for row in on[0]],
            *([f"{row['predicted_us']:.0f}" for row in rows] for rows in on),
        ),
    )


def _or_dash(number: float | None, form: str) -> str:
    return "-" if number is None else format(number, form)


def _joined(of_types: list[str]) -> str:
    return ", ".join(dict.fromkeys(of_types))


def table(record: dict) -> str:
    head = ["kernel", "bytes a value", "torch's", "registers", "occupancy"]
    head += [f"{gpu.name}, us" for gpu in GPUS] + ["torch's operators that are counted"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for of in OPERATIONS:
        lines.append("| " + " | ".join([f"`{of.kernel}`", *_cells(of, record), of.in_words]) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="measure nothing, predict all, write the record")
    parser.add_argument("--page", type=Path, help="write the record's table into a page")
    arguments = parser.parse_args()
    if arguments.page:
        marked.write(arguments.page, WRITER, table(json.loads(RECORD.read_text())))
        return
    record = {
        "what": "a prediction: compiled, not run on a GPU",
        "values": VALUES,
        "bits": BITS,
        "group": GROUP,
        "kernels": kernels(),
        "torch": bytes_of_torch(),
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    print(table(record), end="")


if __name__ == "__main__":
    main()
