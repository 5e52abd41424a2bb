"""Loads the library that lies beside this package, with its ops and its classes."""

from pathlib import Path

import torch

from slimgrad._built_for import TORCH_SERIES

_PATH = Path(__file__).parent / "lib" / "libslimgrad_torch.so"


def _load() -> None:
    if not torch.__version__.startswith(TORCH_SERIES + "."):
        raise ImportError(
            f"slimgrad was built for torch {TORCH_SERIES}, found torch {torch.__version__}: "
            "install slimgrad again from source (pip install --no-build-isolation "
            f"--force-reinstall --no-deps .), or torch {TORCH_SERIES}"
        )
    torch.ops.load_library(str(_PATH))


_load()
ops = torch.ops.slimgrad
classes = torch.classes.slimgrad
