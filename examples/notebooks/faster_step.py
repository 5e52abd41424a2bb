# %% [markdown]
# # A faster CNN step
#
# In a wide convolutional network most of a step is the backward pass, and half of that are the
# products for the weights' gradients. With `Prune(weight=0.9, input=0)` these are made of a tenth
# of the values. Here: which layers gain, asked of a model of the costs and then of the clock of
# this machine, and what a step takes before and after.

# %%
import time

import torch
from torch import nn

import slimgrad as sg

ROUNDS, BATCH, WIDTH = 10, 32, 64
torch.manual_seed(0)


# %%
def block(before, after, stride=1):
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()
    )


model = nn.Sequential(
    *(
        block(3, WIDTH),
        block(WIDTH, WIDTH),
        block(WIDTH, 2 * WIDTH, 2),
        block(2 * WIDTH, 2 * WIDTH),
    ),
    *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * WIDTH, 10)),
)
images, labels = torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,))


def step():
    nn.functional.cross_entropy(model(images), labels).backward()


def fastest(rounds):
    """Seconds; the best of several, as a busy machine only ever adds."""
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    return min(times)


# %%
step()
dense = fastest(ROUNDS)
controller = sg.compress(model, sg.Prune(weight=0.9, input=0), seed=1)
step()
sparse = fastest(ROUNDS)
print(f"a step: {1000 * dense:.1f} ms dense, {1000 * sparse:.1f} ms with sparse products")
print(controller.summary(width=100))

# %% [markdown]
# The constants behind that choice were measured on one machine. `tune` asks yours, runs both ways
# of every product and pins the better one; the answer is part of `controller.state_dict()`, so
# that a resumed run does not ask again.

# %%
for product, row in controller.tune(step).items():
    print(f"{product:14} {row['way']:7} break-even sparsity {row['break_even']:.2f}")
tuned = fastest(ROUNDS)
print(f"a step, tuned: {1000 * tuned:.1f} ms")

# %% [markdown]
# Speed is half of the matter: does the network still learn as well? Look at the cosines above (of
# random weights on noise here, which is the hard case), and train both ways to the same accuracy.
# On small networks the noise can cost more steps than the products save.

# %%
controller.remove()
