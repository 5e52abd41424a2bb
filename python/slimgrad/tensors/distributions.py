"""fit: which distribution a tensor follows, and how closely."""

from __future__ import annotations

import torch

from .._library import ops
from .._support import in_the_name_of, number, tensor_with_values, whole_number

_PARAMETERS = {
    "lognormal": ("log_mean", "log_std"),
    "normal": ("scale",),
    "laplace": ("scale",),
    "cauchy": ("scale",),
    "loglaplace": ("log_median", "log_scale"),
    "uniform": ("scale",),
    "gennorm": ("shape", "scale"),
}
FAMILIES = tuple(_PARAMETERS)


def _check_family(family: str, op: str) -> None:
    if family not in FAMILIES:
        raise ValueError(
            f"[{op}] expected family to be one of {', '.join(FAMILIES)}; got {family!r}"
        )


class Distribution:
    """A member of a family. ``cdf``, ``pdf`` and ``quantile`` take a number or a tensor.

    normal, laplace, cauchy, uniform and gennorm are laws of the signed value, symmetric around
    zero; lognormal and loglaplace are laws of the magnitude.
    """

    def __init__(self, family: str, **params: float):
        _check_family(family, "Distribution")
        if set(params) != set(_PARAMETERS[family]):
            raise ValueError(
                f"[Distribution] expected {', '.join(_PARAMETERS[family])} for {family}, "
                f"got {sorted(params)}"
            )
        self.family = family
        self.params = {
            name: number(params[name], "Distribution", name) for name in _PARAMETERS[family]
        }
        with in_the_name_of("Distribution"):
            self.cdf(1.0)  # An out-of-range parameter is an error here, not at first use.

    def _values(self) -> list[float]:
        return list(self.params.values())

    def _pointwise(self, op, x, name):
        if isinstance(x, torch.Tensor):
            x = tensor_with_values(x, name)
            if x.is_complex():
                raise ValueError(f"[{name}] expected x to be real, got {x.dtype}")
            return op(x, self.family, self._values())
        x = torch.tensor(number(x, name, "x"), dtype=torch.float64)
        return op(x, self.family, self._values()).item()

    def pdf(self, x):
        return self._pointwise(ops.density, x, "pdf")

    def cdf(self, x):
        return self._pointwise(ops.cdf, x, "cdf")

    def quantile(self, p):
        return self._pointwise(ops.quantile, p, "quantile")

    def ks(self, x: torch.Tensor) -> float:
        """Kolmogorov-Smirnov distance between |x| (zeros and non-finite values left out) and this
        law of the magnitude."""
        x = tensor_with_values(x, "ks")
        with in_the_name_of("ks"):
            return ops.ks_distance(x, self.family, self._values()).item()

    def wasserstein(self, x: torch.Tensor, p: int = 1) -> float:
        """Wasserstein distance of order 1 or 2: of the signed values for the symmetric families,
        of the magnitudes for lognormal and loglaplace."""
        x = tensor_with_values(x, "wasserstein")
        whole_number(p, "wasserstein", "p")
        with in_the_name_of("wasserstein"):
            return ops.wasserstein_distance(x, self.family, self._values(), p).item()

    def __repr__(self) -> str:
        params = ", ".join(f"{name}={value:.6g}" for name, value in self.params.items())
        return f"Distribution({self.family!r}, {params})"


def fit(x: torch.Tensor, family: str) -> Distribution:
    """The maximum-likelihood member of ``family`` for the finite non-zero values of ``x``.

    ``x`` is float32, bfloat16, float16, or float64, since fits compute in double.
    """
    _check_family(family, "fit")
    params = ops.fit(tensor_with_values(x, "fit"), family).tolist()
    return Distribution(family, **dict(zip(_PARAMETERS[family], params, strict=True)))
