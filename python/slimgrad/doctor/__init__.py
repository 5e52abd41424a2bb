"""python -m slimgrad doctor: what is installed, what the machine has, and whether kernels agree."""

from .command import ABOUT, add_arguments, run

__all__ = ["ABOUT", "add_arguments", "run"]
