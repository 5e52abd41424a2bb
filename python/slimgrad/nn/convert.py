"""Converting the activations of a model in place, with a report of what was done and what was not.

Modules are converted: torch.nn's activations, Dropout and MaxPool2d, and the activation classes of
the ``transformers`` package. A functional call inside some forward, such as ``F.gelu(x)``, cannot
be exchanged from outside: with sample inputs, one forward pass finds it, and it is reported
(functional_calls.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any

from torch import nn

from . import activations as fewbit
from .conversion_report import ConversionReport
from .functional_calls import find_functional_calls
from .masks import Dropout, MaxPool2d
from .step_tables import WEIGHT, check_bits, table_for

# By torch's class, ours, which is a subclass of it with the same name.
_MASKS = (Dropout, MaxPool2d)
_FEWBIT = {*fewbit._Fewbit.__subclasses__(), *fewbit._Approximate.__subclasses__(), *_MASKS}
_FORMS: dict[type, type] = {
    getattr(nn, cls.__name__): cls for cls in _FEWBIT - {fewbit._Approximate}
}


def _settings(cls: type, options: dict) -> dict:
    """Those of ``options`` that the class takes: "exact" only where there is an inverse."""
    bits = options["bits"]
    if bits == "exact":
        if issubclass(cls, fewbit._INVERTIBLE):
            return {"bits": bits}
        bits = 4
    if issubclass(cls, fewbit.PReLU):
        bits = 1
    return options | {"bits": bits} if issubclass(cls, fewbit._Approximate) else {"bits": bits}


def _form_of(module: nn.Module, options: dict) -> nn.Module:
    """Our module in the place of torch's, whose arguments are its attributes."""
    plain, cls = type(module), _FORMS[type(module)]
    names = [name for name in inspect.signature(plain).parameters if hasattr(module, name)]
    arguments = {name: getattr(module, name) for name in names}
    if cls in _MASKS:
        return cls(**arguments)
    settings = _settings(cls, options)
    if settings["bits"] == "exact" and "inplace" in arguments:
        arguments["inplace"] = False  # The output is kept; the input is not needed.
    new = cls(**arguments, **settings)
    if isinstance(module, nn.PReLU):
        new.weight = module.weight
    return new


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
        return cls(**arguments, **_settings(cls, options))
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
        check_bits(op, bits, or_exact=True)
    table_for("gelu", {}, 1, interval, weight, op=op)  # refuses a wrong interval or weight
    options = {"bits": bits, "interval": interval, "weight": weight}
    report = ConversionReport()
    report._searched, report._with_inputs = True, inputs is not None
    done: dict[int, nn.Module] = {}
    if type(model) in _FORMS or _is_transformers(model):
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
    return isinstance(module, (*_FORMS, fewbit.Stepwise)) or _is_transformers(module)


def _without_form(module: nn.Module) -> str | None:
    """Why a module of a class that has a form has none itself."""
    if isinstance(module, nn.PReLU) and module.weight.requires_grad:
        return "the gradient of its weight needs the input"
    if isinstance(module, nn.Dropout) and module.inplace:
        return "in place"
    if isinstance(module, nn.MaxPool2d):
        size = module.kernel_size
        places = size * size if isinstance(size, int) else size[0] * size[1]
        if places > 16 or module.return_indices:
            return "more than 16 places in a window, or its indices are wanted"
    return None


def _convert_one(
    name: str,
    module: nn.Module,
    options: dict,
    refusal: Callable[[str, nn.Module], str | None],
    masks: bool,
    report: ConversionReport,
) -> nn.Module | None:
    kind = type(module)
    if kind not in _FORMS and not _is_transformers(module):
        return None
    why_not = refusal(name, module)
    if not masks and kind in (nn.Dropout, nn.MaxPool2d):
        why_not = "not included"
    why_not = why_not or _without_form(module)
    if why_not is not None:
        report._leave(name, module, why_not)
        return None
    convert = _form_of if kind in _FORMS else _convert_transformers
    new = convert(module, options)
    if isinstance(new, str):
        report._leave(name, module, new)
        return None
    new.train(module.training)
    _carry_hooks(module, new)
    report._add(name, module, new)
    return new
