"""What to do with neural gradients: Prune and Quantize, the settings that compress() takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .._support import check_choice, in_the_name_of
from ..tensors.formats import FloatFormat, as_format, parse_float_choice

PRODUCTS = ("weight", "input")  # of a layer's backward pass: for the gradient of each

# The defaults of a sparse backward pass: noise in the weight's gradient stays in its
# layer, noise in the input's runs through all layers before it (docs/faster_backward.md has the
# times to an accuracy that this was chosen by).
DEFAULT_WEIGHT_SPARSITY = 0.9
DEFAULT_INPUT_SPARSITY = 0.0


@dataclass(frozen=True)
class Prune:
    """Stochastic pruning of neural gradients to a sparsity.

    sparsity: the fraction of zeros, for every layer or, with an allocation, overall.
    method: how the threshold is found: "empirical" (exact for any tensor), "lognormal" (the paper),
        "gennorm", "normal" (the ATP baseline) or "mean".
    allocation: "uniform" gives every layer the same sparsity; "min_cosine", "mean_cosine",
        "mean_error" and "total_error" spread it so that the damage is least; "targets" gives the
        layers in ``targets`` their cosines, and spreads what remains as "min_cosine" does.
    targets: cosines in (0, 1] that the gradients of some layers are to keep, by their names in
        controller.converted, or by the name of something they are part of; the longest that fits
        counts. With a sparse backward pass a layer's name means both of its products, "name.weight"
        and "name.input" one. 1 leaves a layer exact. Any allocation but "uniform" takes them.
        They hold from the second backward pass on, when the layers have been measured; if the
        others cannot make up for them under their cap, the overall sparsity is lower.
    cap: no layer is pruned further than this by an allocation.
    kind: "stochastic", or for comparison "topk" (deterministic, biased) and "topk_stochastic".
    weight, input: instead of sparsity, one for each product of a layer's backward pass: for the
        gradient of its weight and of its input. 0 leaves that product dense and exact. These need
        layers with a sparse backward pass.
    sparse_backward: True converts nn.Linear and nn.Conv2d to layers that multiply only what pruning
        leaves, wherever a model of the costs expects that to be faster than the dense product,
        which is exact. What it expects follows from shapes, layout, type and sparsity, so that a
        seed gives one run; the model's constants were measured on one machine, and
        controller.tune() asks the clock of yours. "always" is sparse even where it is slower. By
        default True if weight or input are given.
    """

    sparsity: float | None = None
    method: str = "empirical"
    allocation: str = "uniform"
    cap: float = 0.98
    kind: str = "stochastic"
    weight: float | None = None
    input: float | None = None
    sparse_backward: bool | str | None = None
    targets: Mapping[str, float] | None = field(default=None, hash=False)

    def __post_init__(self):
        self._check_products()
        self._settle_targets()
        for name in ("sparsity", "weight", "input"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and 0 <= value < 1):
                raise ValueError(f"[Prune] expected 0 <= {name} < 1, got {value!r}")
        if not (isinstance(self.cap, int | float) and 0 < self.cap <= 1):
            raise ValueError(f"[Prune] expected 0 < cap <= 1, got {self.cap!r}")
        check_choice(self.method, "method", "Prune", "method")
        check_choice(self.allocation, "allocation", "Prune", "allocation")
        check_choice(self.kind, "prune", "Prune", "kind")
        if self.kind == "none":
            raise ValueError("[Prune] expected a kind of pruning, got 'none'")
        if self.allocation != "uniform" and self.method == "mean":
            raise ValueError(
                f"[Prune] expected another method than 'mean' with allocation={self.allocation!r}: "
                "it says nothing of the cosine"
            )
        if self.allocation == "uniform" and self.cap != Prune.cap:
            raise ValueError(
                f"[Prune] expected another allocation than 'uniform' with cap={self.cap!r}"
            )
        if (
            self.allocation == "uniform"
            and self.kind != "stochastic"
            and self.method != "empirical"
        ):
            raise ValueError(
                f"[Prune] expected method='empirical' with kind={self.kind!r}, got {self.method!r}"
            )
        if self.is_sparse and self.kind != "stochastic":
            raise ValueError(f"[Prune] expected kind='stochastic', got {self.kind!r}")

    def _settle_targets(self) -> None:
        if self.targets is None:
            if self.allocation == "targets":
                raise ValueError("[Prune] expected targets={name: cosine}, got none")
            return
        if self.allocation == "uniform":
            raise ValueError("[Prune] expected allocation='targets' with targets, got 'uniform'")
        if not isinstance(self.targets, Mapping) or not self.targets:
            raise ValueError(f"[Prune] expected targets={{name: cosine}}, got {self.targets!r}")
        for name, cosine in self.targets.items():
            if not (isinstance(name, str) and isinstance(cosine, int | float) and 0 < cosine <= 1):
                raise ValueError(
                    "[Prune] expected targets={name: cosine} with 0 < cosine <= 1, got "
                    f"{{{name!r}: {cosine!r}}}"
                )
        object.__setattr__(self, "targets", dict(self.targets))  # the user's may change

    def _check_targets(self, names: Iterable[str]) -> None:
        """A target that fits none of the layers, or of their products, is a mistake."""
        names = list(names)
        for target in self.targets or ():
            if not any(name == target or name.startswith(f"{target}.") for name in names):
                some = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
                raise ValueError(
                    "[compress] expected names of layers that are converted in targets, got "
                    f"{target!r}; there are: {some or 'none'}"
                )

    def _check_products(self) -> None:
        """One sparsity for the gradient, or one for each product; never both."""
        sparse = self.sparse_backward
        if sparse not in (None, False, True, "always"):
            raise ValueError(
                f"[Prune] expected sparse_backward to be True, False or 'always', got {sparse!r}"
            )
        by_product = self.weight is not None or self.input is not None
        if by_product and self.sparsity is not None:
            raise ValueError("[Prune] expected either sparsity or weight and input, got both")
        if by_product and sparse is False:
            raise ValueError(
                "[Prune] expected sparse_backward=True with weight and input, got "
                f"sparse_backward={sparse!r}"
            )
        if self.sparsity is None and not self.is_sparse:
            raise ValueError("[Prune] expected a sparsity, got none")

    @property
    def is_sparse(self) -> bool:
        """Whether layers get a sparse backward pass."""
        by_product = self.weight is not None or self.input is not None
        return by_product if self.sparse_backward is None else bool(self.sparse_backward)

    @property
    def products(self) -> dict[str, float]:
        """The sparsity of each product of a sparse backward pass; none without one."""
        if not self.is_sparse:
            return {}
        if self.sparsity is not None:
            return dict.fromkeys(PRODUCTS, self.sparsity)
        if self.weight is None and self.input is None:
            return {"weight": DEFAULT_WEIGHT_SPARSITY, "input": DEFAULT_INPUT_SPARSITY}
        return {"weight": self.weight or 0.0, "input": self.input or 0.0}

    def _options(self, product: str | None = None) -> dict[str, Any]:
        """Of a gate, or of that of one product."""
        sparsity = self.sparsity if product is None else self.products[product]
        return {
            "prune": self.kind,
            "sparsity": sparsity,
            "method": self.method,
            "allocation": self.allocation,
        }


@dataclass(frozen=True)
class LossScale:
    """The baseline to per-layer scales: one scale for all layers, as in global loss scaling.

    Quantizing a gradient at loss scale L is quantizing it at grid scale 1/L. A dynamic one is
    halved when a gradient exceeds the grid and doubled after `growth_interval` steps without.
    """

    value: float = 2.0**16
    dynamic: bool = False
    growth_interval: int = 2000

    def __post_init__(self):
        if not (isinstance(self.value, int | float) and 0 < self.value < float("inf")):
            raise ValueError(f"[LossScale] expected a positive finite value, got {self.value!r}")
        if not (isinstance(self.growth_interval, int) and self.growth_interval >= 1):
            raise ValueError(
                f"[LossScale] expected growth_interval >= 1, got {self.growth_interval!r}"
            )
        if not self.dynamic and self.growth_interval != LossScale.growth_interval:
            raise ValueError("[LossScale] expected dynamic=True with growth_interval, got False")


@dataclass(frozen=True)
class Quantize:
    """Rounding of neural gradients to a low-bit float format.

    bits: 2 to 8; the exponent/mantissa split follows what is measured of each layer. Or
    format: a fixed split such as "1-4-1".
    method: how the split is chosen: "empirical", the least error on the layer's own histogram at
        the scale that it gets; or for comparison "lognormal", the paper's rule by the spread alone,
        and "normal", the same for normal gradients.
    scale: "max", "predicted" or "error" (per layer), or a LossScale (one for all, a baseline).
    rounding: "stochastic" or "nearest"; underflow: "stochastic" or "zero". The stochastic ones keep
        the gradient unbiased. The others take three fifths of the time (docs/gradients.md) and
        shift sums of many small values: gradients of a softmax over a vocabulary, for example.
    """

    bits: int | None = None
    format: FloatFormat | str | None = None
    scale: str | LossScale = "max"
    rounding: str = "stochastic"
    underflow: str = "stochastic"
    method: str = "empirical"

    def __post_init__(self):
        if (self.bits is None) == (self.format is None):
            raise ValueError("[Quantize] expected either bits or format")
        if self.format is not None:
            format = as_format(self.format, "Quantize")
            object.__setattr__(self, "format", format)
            object.__setattr__(self, "bits", format.bits)
        if not isinstance(self.bits, int) or not 2 <= self.bits <= 8:
            raise ValueError(f"[Quantize] expected 2 to 8 bits, got {self.bits!r}")
        check_choice(self.method, "split", "Quantize", "method")
        check_choice(self.rounding, "rounding", "Quantize", "rounding")
        check_choice(self.underflow, "underflow", "Quantize", "underflow")
        if self.format is not None and self.method != "empirical":
            raise ValueError(
                "[Quantize] expected bits with a method that splits them, got format="
                f"{str(self.format)!r} and method={self.method!r}"
            )
        if not isinstance(self.scale, LossScale):
            check_choice(self.scale, "scale_method", "Quantize", "scale")

    def _options(self) -> dict[str, Any]:
        """Of a gate."""
        options: dict[str, Any] = {
            "bits": self.bits,
            "split": self.method,
            "rounding": self.rounding,
            "underflow": self.underflow,
        }
        if self.format is not None:
            format = as_format(self.format, "Quantize")
            options["exponent_bits"] = format.exponent_bits
            options["mantissa_bits"] = format.mantissa_bits
        if isinstance(self.scale, LossScale):
            options["fixed_scale"] = 1 / self.scale.value
            options["dynamic_scale"] = self.scale.dynamic
        else:
            options["scale_method"] = self.scale
        return options


def parse_gradients(what) -> tuple[Prune | None, Quantize | None]:
    """ "fp6", "1-4-1", a Prune, a Quantize, several of them, or None, as (Prune, Quantize)."""
    prune = quantize = None
    if what is None:
        return prune, quantize
    items = what if isinstance(what, Iterable) and not isinstance(what, str) else [what]
    for item in items:
        choice = parse_float_choice(item)
        if choice is not None:
            with in_the_name_of("compress"):
                item = Quantize(choice) if isinstance(choice, int) else Quantize(format=choice)
        if isinstance(item, Prune) and prune is None:
            prune = item
        elif isinstance(item, Quantize) and quantize is None:
            quantize = item
        else:
            raise ValueError(
                "[compress] expected gradients to be 'fp2' to 'fp8', a format such as '1-4-1', a "
                f"Prune, a Quantize, or one of each in a list; got {what!r}"
            )
    return prune, quantize
