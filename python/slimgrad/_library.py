"""Loads the op library that lies beside this package; afterwards torch.ops.slimgrad has the ops."""

from pathlib import Path

import torch

_PATH = Path(__file__).parent / "lib" / "libslimgrad_torch.so"


def _load() -> None:
    built_for = "2.13"
    if not torch.__version__.startswith(built_for + "."):
        raise ImportError(
            f"slimgrad was built for torch {built_for}, found torch {torch.__version__}: "
            f"pip install torch==2.13.0"
        )
    torch.ops.load_library(str(_PATH))


_load()
ops = torch.ops.slimgrad
