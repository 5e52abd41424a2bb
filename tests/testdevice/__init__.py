"""A device for tests, without hardware (device.cc): its memory is a fault for the host, and it
counts kernels, copies to the host, waits and operations that fall back to the CPU.

    import testdevice
    device = testdevice.load()
    x = torch.randn(1000).to(device)
    testdevice.reset()
    slimgrad.prune(x, 0.5, seed=1)
    assert testdevice.counts() == {"kernels": 1, "copies_to_host": 0, "waits": 0, "fallbacks": 0}
"""

from __future__ import annotations

import contextlib
import ctypes
import types
from collections.abc import Iterator
from pathlib import Path

import torch

import slimgrad  # noqa: F401 (loads the op library, which the device's is linked with)

_TESTS = Path(__file__).resolve().parents[1]
LIBRARY = _TESTS.parent / "build" / "release" / "tests" / "libslimgrad-testdevice.so"
DRIVER = LIBRARY.parent / "fake_driver" / "libcuda.so.1"
_loaded: dict[str, torch.device] = {}


def load(
    name: str = "testdevice", *, with_launcher: bool = True, with_driver: bool = True
) -> torch.device:
    """The device, registered with torch at the first call. Under the name "cuda" it is a stand-in
    for CUDA where there is none, with a driver of our own (driver/libcuda.cc) and its kernels.
    with_launcher: whether launches reach it; with_driver: whether it is there."""
    if name not in _loaded:
        assert not _loaded, f"expected one device in a process, got {name} after {[*_loaded]}"
        torch.ops.load_library(str(LIBRARY))
        if name == "cuda":
            # By its path, and now: a torch with CUDA looks for a driver when it is imported, and
            # slimgrad's library, which this one is linked with, must be Python's.
            if with_driver:
                ctypes.CDLL(str(DRIVER))
            torch.ops.testdevice.start("cuda", with_launcher)
            torch.cuda._lazy_init = lambda: None
        else:
            torch.utils.rename_privateuse1_backend(name)
            torch.ops.testdevice.start("privateuseone", with_launcher)
            torch._register_device_module(name, _module(name))
            torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
        _loaded[name] = torch.device(name, 0)
    return _loaded[name]


def _module(name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    functions = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "_is_in_bad_fork": lambda: False,
        "manual_seed_all": lambda seed: None,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: None,
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16],
    }
    # There is one stream: FSDP may have the CPU's.
    functions |= {key: getattr(torch.cpu, key) for key in ("Event", "Stream", "current_stream")}
    functions["stream"] = torch.cpu.stream
    for key, function in functions.items():
        setattr(module, key, function)
    return module


def counts() -> dict[str, int]:
    """Since the last reset(): kernels (fills of memory included), copies to the host, waits of the
    host for the device, and operations that the CPU did instead."""
    names = ("kernels", "copies_to_host", "waits", "fallbacks")
    return dict(zip(names, torch.ops.testdevice.counts(), strict=True))


def fallback_names() -> dict[str, int]:
    """What fell back to the CPU, by the names of operators."""
    return dict(zip(*torch.ops.testdevice.fallback_names(), strict=True))


def reset() -> None:
    torch.ops.testdevice.reset()


@contextlib.contextmanager
def strict() -> Iterator[None]:
    """Inside, a wait and a copy to the host are errors."""
    torch.ops.testdevice.set_strict(True)
    try:
        yield
    finally:
        torch.ops.testdevice.set_strict(False)


@contextlib.contextmanager
def repeated_ops() -> Iterator[None]:
    """Inside, each call of an op of slimgrad on CPU tensors is done once more on the device, and
    an error unless the bits are the same (repeat.h)."""
    y = torch.zeros(1, device=load())
    codes = torch.ops.slimgrad.stepwise_codes(y, [-0.1], False)
    for name in ("gelu", "silu", "mish"):  # their tables come to the device at the first use
        torch.ops.slimgrad.invertible_backward(y, y, codes, name)
    torch.ops.testdevice.repeat_ops(True)
    try:
        yield
    finally:
        torch.ops.testdevice.repeat_ops(False)


def repeated() -> dict[str, int]:
    """How many calls were compared, by the names of ops."""
    return dict(zip(*torch.ops.testdevice.repeated(), strict=True))
