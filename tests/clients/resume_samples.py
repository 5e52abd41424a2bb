"""What the tests of interrupted runs share: ways to compress, and how to compare two runs."""

import warnings
from contextlib import contextmanager

import torch

import slimgrad as sg

SPARSE = sg.Prune(weight=0.9, input=0.5, sparse_backward="always")

# What compress() is asked for, and what the callback is. The last ones keep more state than draws:
# plans that live for several passes, an allocation that follows what was measured before, a scale
# that grows.
COMPRESSIONS = {
    "fp6": ({"gradients": "fp6"}, {}),
    "scheduled": ({"gradients": sg.Prune(0.3)}, {"schedule": {0: 0.2, 6: 0.8}}),
    "sparse": ({"gradients": SPARSE}, {}),
    "sparse, scheduled": ({"gradients": SPARSE}, {"schedule": {2: 0.4, 5: 0.8}}),
    "activations": ({"gradients": "fp6", "activations": 3}, {}),
    "once an epoch": ({"gradients": sg.Prune(0.7), "refresh": 0}, {"refresh": "epoch"}),
    "every third step": ({"gradients": sg.Prune(0.7), "refresh": 0}, {"refresh": 3}),
    "warm-up": ({"gradients": sg.Prune(0.7), "warmup": 5}, {}),
    "allocated": ({"gradients": sg.Prune(0.7, allocation="min_cosine")}, {}),
    "loss scale": (
        {
            "gradients": sg.Quantize(
                format="1-4-1", scale=sg.LossScale(2.0**10, dynamic=True, growth_interval=3)
            )
        },
        {},
    ),
}


def compress(model, what, seed, **options):
    """A resumed run has another seed at first: that of the run is state."""
    return sg.compress(model, **COMPRESSIONS[what][0], seed=seed, min_elements=0, **options)


def callback_options(what):
    return COMPRESSIONS[what][1]


def run_of(model, controller):
    """All that two runs are compared by: weights and state of the compression."""
    state = {f"slimgrad: {key}": value for key, value in controller.state_dict().items()}
    return {key: value.clone() for key, value in model.state_dict().items()} | state


def differences(a, b):
    assert a.keys() == b.keys()
    return [key for key in a if not torch.equal(a[key].nan_to_num(), b[key].nan_to_num())]


def weights_differ(a, b):
    return any(not key.startswith("slimgrad") for key in differences(a, b))


@contextmanager
def no_state_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error", sg.StateWarning)
        yield
