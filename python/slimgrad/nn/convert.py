"""Converting the activations of a model in place, with a report of what was done and what was not.

Modules are converted: torch.nn's activations, Dropout and MaxPool2d, and the activation classes of
the ``transformers`` package. A functional call inside some forward, such as ``F.gelu(x)``, cannot
be exchanged from outside: with sample inputs, one forward pass finds it, and it is reported
(functional_calls.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from torch import nn

from . import activations as fewbit
from .conversion_report import ConversionReport
from .functional_calls import find_functional_calls
from .masks import Dropout, MaxPool2d
from .step_tables import WEIGHT, check_bits, table_for

Make = Callable[[nn.Module, Any], nn.Module]


def _subclass(cls: type, *names: str, exact: bool = False, table: bool = False) -> Make:
    """A converter that carries the named attributes over as arguments."""

    def make(module: nn.Module, options: dict) -> nn.Module:
        bits = options["bits"]
        if bits == "exact" and not exact:
            bits = 4
        has_table = table and bits != "exact"
        extra = {k: options[k] for k in ("interval", "weight")} if has_table else {}
        arguments = {name: getattr(module, name) for name in names}
        if bits == "exact" and "inplace" in arguments:
            arguments["inplace"] = False  # The output is kept; the input is not needed.
        return cls(**arguments, bits=bits, **extra)

    return make


def _prelu(module: nn.PReLU, options: dict) -> nn.Module:
    new = fewbit.PReLU(module.num_parameters, bits=1)
    new.weight = module.weight
    return new


def _dropout(module: nn.Dropout, options: dict) -> nn.Module:
    return Dropout(module.p, module.inplace)


def _max_pool(module: nn.MaxPool2d, options: dict) -> nn.Module:
    return MaxPool2d(
        module.kernel_size,
        module.stride,
        module.padding,
        module.dilation,
        module.return_indices,
        module.ceil_mode,
    )


_CONVERTERS: dict[type, Make] = {
    nn.ReLU: _subclass(fewbit.ReLU, "inplace"),
    nn.LeakyReLU: _subclass(fewbit.LeakyReLU, "negative_slope", "inplace"),
    nn.RReLU: _subclass(fewbit.RReLU, "lower", "upper", "inplace"),
    nn.PReLU: _prelu,
    nn.Threshold: _subclass(fewbit.Threshold, "threshold", "value", "inplace"),
    nn.ReLU6: _subclass(fewbit.ReLU6, "inplace"),
    nn.Hardtanh: _subclass(fewbit.Hardtanh, "min_val", "max_val", "inplace"),
    nn.Hardsigmoid: _subclass(fewbit.Hardsigmoid, "inplace"),
    nn.Hardshrink: _subclass(fewbit.Hardshrink, "lambd"),
    nn.Softshrink: _subclass(fewbit.Softshrink, "lambd"),
    nn.GELU: _subclass(fewbit.GELU, "approximate", exact=True, table=True),
    nn.SiLU: _subclass(fewbit.SiLU, "inplace", exact=True, table=True),
    nn.Mish: _subclass(fewbit.Mish, "inplace", exact=True, table=True),
    nn.Hardswish: _subclass(fewbit.Hardswish, "inplace", table=True),
    nn.Sigmoid: _subclass(fewbit.Sigmoid, table=True),
    nn.LogSigmoid: _subclass(fewbit.LogSigmoid, table=True),
    nn.Tanh: _subclass(fewbit.Tanh, table=True),
    nn.Tanhshrink: _subclass(fewbit.Tanhshrink, table=True),
    nn.Softsign: _subclass(fewbit.Softsign, table=True),
    nn.Softplus: _subclass(fewbit.Softplus, "beta", "threshold", table=True),
    nn.ELU: _subclass(fewbit.ELU, "alpha", "inplace", table=True),
    nn.CELU: _subclass(fewbit.CELU, "alpha", "inplace", table=True),
    nn.SELU: _subclass(fewbit.SELU, "inplace", table=True),
    nn.Dropout: _dropout,
    nn.MaxPool2d: _max_pool,
}

# The classes of transformers.activations by name, so that the package need not be there. Those with
# a formula of their own keep it, and with it every bit of their result: only backward is replaced.
_TRANSFORMERS_SAME = {
    "GELUActivation": (fewbit.GELU, {"approximate": "none"}),
    "GELUTanh": (fewbit.GELU, {"approximate": "tanh"}),
    "PytorchGELUTanh": (fewbit.GELU, {"approximate": "tanh"}),
    "SiLUActivation": (fewbit.SiLU, {}),
    "MishActivation": (fewbit.Mish, {}),
}
_TRANSFORMERS_OWN = {
    "GELUActivation": "gelu",  # with use_gelu_python
    "GELUTanh": "gelu_tanh",
    "NewGELUActivation": "gelu_tanh",
    "FastGELUActivation": "gelu_tanh",
    "AccurateGELUActivation": "gelu_tanh",
    "QuickGELUActivation": "quick_gelu",
    "MishActivation": "mish",
}


def _is_transformers(module: nn.Module) -> bool:
    return type(module).__module__ == "transformers.activations"


def _convert_transformers(module: nn.Module, options: dict) -> nn.Module | str:
    """The new module, or why there is none."""
    name = type(module).__name__
    act = getattr(module, "act", None)
    own_formula = act is not None and not getattr(act, "__module__", "").startswith("torch")
    if name in _TRANSFORMERS_SAME and not own_formula:
        cls, arguments = _TRANSFORMERS_SAME[name]
        has_table = options["bits"] != "exact"
        extra = {k: options[k] for k in ("interval", "weight")} if has_table else {}
        return cls(**arguments, bits=options["bits"], **extra)
    if name in _TRANSFORMERS_OWN:
        bits = 4 if options["bits"] == "exact" else options["bits"]
        table = table_for(
            _TRANSFORMERS_OWN[name],
            {},
            bits,
            options["interval"],
            options["weight"],
            op="convert_activations",
        )
        return fewbit.Stepwise(module, table)
    return "no step table for this class"


def _carry_hooks(old: nn.Module, new: nn.Module) -> None:
    """The user's hooks stay, and so do their handles: the two modules share the dictionaries. A
    module that is wrapped is still called, with its own."""
    if any(old is child for child in new.children()):
        return
    for name, value in vars(old).items():
        if name.startswith(("_forward_", "_backward_")) or name == "_is_full_backward_hook":
            vars(new)[name] = value


def convert_activations(
    model: nn.Module,
    bits: int | str = 3,
    *,
    interval: tuple[float, float] | None = None,
    weight: str = WEIGHT,
    include: Callable[[str, nn.Module], bool] = lambda name, module: True,
    masks: bool = True,
    named: Collection[str] = (),
    inputs: Any = None,
) -> ConversionReport:
    """Replaces the activation modules inside ``model`` and reports.

    ``bits`` is 1 to 4, or "exact": then GELU, SiLU and Mish keep their output and one bit, and the
    others 4 bits. ``include(name, module)`` chooses. ``masks=False`` leaves Dropout and MaxPool2d.
    With ``inputs`` one forward pass looks for activations that are called as functions, and the
    report names them; without, it does not contain them.

    Sigmoid and Tanh are left as they are, because they keep their output alone, which the next
    layer keeps anyway, and because a loss may divide by their slope, which no table follows in its
    tails: ``BCELoss`` behind a Sigmoid does. ``named`` lists those to convert all the same.

    A module that is shared (the same object in two places) stays shared. The model itself cannot be
    replaced in place: if it is an activation, it is reported as left.
    """
    op = "convert_activations"
    if not isinstance(model, nn.Module):
        raise TypeError(f"[{op}] expected model to be a module, got {type(model).__name__}")
    if not callable(include):
        raise TypeError(
            f"[{op}] expected include to be a function of name and module, got "
            f"{type(include).__name__}"
        )
    if isinstance(named, str) or not isinstance(named, Collection):
        raise TypeError(
            f"[{op}] expected named to be a list of module names, got {type(named).__name__}"
        )
    if bits != "exact":
        check_bits(op, bits)
    table_for("gelu", {}, 1, interval, weight, op=op)  # refuses a wrong interval or weight
    options = {"bits": bits, "interval": interval, "weight": weight}
    report = ConversionReport()
    report._searched, report._with_inputs = True, inputs is not None
    done: dict[int, nn.Module] = {}
    if type(model) in _CONVERTERS or _is_transformers(model):
        report._leave("", model, "the model itself is the activation")
        return report

    def refusal(name: str, module: nn.Module) -> str | None:
        if not include(name, module):
            return "not included"
        if type(module) in (nn.Sigmoid, nn.Tanh) and name not in named:
            return "it keeps only its output; include it by name to convert it"
        return None

    for parent_name, parent in list(model.named_modules()):
        if isinstance(parent, fewbit.Stepwise):
            continue
        # Not named_children(), which shows a module that is there twice only once.
        for child_name, child in list(parent._modules.items()):
            if child is None:
                continue
            name = f"{parent_name}.{child_name}" if parent_name else child_name
            new = done.get(id(child)) or _convert_one(name, child, options, refusal, masks, report)
            if new is not None:
                done[id(child)] = new
                setattr(parent, child_name, new)
    if inputs is not None:
        why = "called as a function inside forward: use slimgrad.functional there"
        calls = find_functional_calls(model, inputs, _is_known)
        report.left += [(*call, why) for call in calls]
    return report


def _is_known(module: nn.Module) -> bool:
    return isinstance(module, (*_CONVERTERS, fewbit.Stepwise)) or _is_transformers(module)


def _convert_one(
    name: str,
    module: nn.Module,
    options: dict,
    refusal: Callable[[str, nn.Module], str | None],
    masks: bool,
    report: ConversionReport,
) -> nn.Module | None:
    kind = type(module)
    if kind not in _CONVERTERS and not _is_transformers(module):
        return None
    why_not = refusal(name, module)
    if not masks and kind in (nn.Dropout, nn.MaxPool2d):
        why_not = "not included"
    if why_not is not None:
        report._leave(name, module, why_not)
        return None
    if kind is nn.PReLU and module.weight.requires_grad:
        why = "the gradient of its weight needs the input"
        report._leave(name, module, why)
        return None
    if kind is nn.Dropout and module.inplace:
        report._leave(name, module, "in place")
        return None
    if kind is nn.MaxPool2d:
        size = module.kernel_size
        places = size * size if isinstance(size, int) else size[0] * size[1]
        if places > 16 or module.return_indices:
            why = "more than 16 places in a window, or its indices are wanted"
            report._leave(name, module, why)
            return None
    if kind in _CONVERTERS:
        new: nn.Module | str = _CONVERTERS[kind](module, options)
    else:
        new = _convert_transformers(module, options)
    if isinstance(new, str):
        report._leave(name, module, new)
        return None
    new.train(module.training)
    _carry_hooks(module, new)
    report._add(name, module, new)
    return new
