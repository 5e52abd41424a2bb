# %% [markdown]
# # Your model's gradients
#
# Which law do the gradients of a network follow, which format suits each layer, and what would
# pruning cost? This measures and changes nothing: `warmup` is longer than the run, so that gates
# only look. Put your own model and data into the second cell.

# %%
import math

import torch
from torch import nn

import slimgrad as sg

torch.manual_seed(0)
STEPS = 60

# %%
model = nn.Sequential(
    *(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
    *(nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU()),
    *(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()),
    *(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 10)),
)
patterns = torch.randn(10, 3, 32, 32)


def batch(size=32):
    """Noisy copies of ten patterns."""
    labels = torch.randint(10, (size,))
    return patterns[labels] + torch.randn(size, 3, 32, 32), labels


# %% [markdown]
# Train with gates that measure. `controller.log` writes what they see, and at the end also
# histograms and fitted laws.

# %%
controller = sg.compress(model, sg.Prune(0.85), warmup=10**9)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for step in range(1, STEPS + 1):
    images, labels = batch()
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        controller.log("gradients.jsonl", step, loss=loss.item(), histograms=step == STEPS)
        print(f"step {step}: loss {loss.item():.3f}")

# %% [markdown]
# Now the gradients themselves, of one more batch. A hook of torch's hands them over.

# %%
gradients = {}


def remember(name):
    def hook(_module, _inputs, output):
        output.register_hook(lambda gradient: gradients.__setitem__(name, gradient.detach()))

    return hook


hooks = [model.get_submodule(n).register_forward_hook(remember(n)) for n in controller.converted]
images, labels = batch()
nn.functional.cross_entropy(model(images), labels).backward()
for hook in hooks:
    hook.remove()

# %% [markdown]
# The Kolmogorov-Smirnov distance says how far a family is from the gradient, 0 is best; the
# spread is the deviation of log2 of magnitudes. The best format of 6 bits, and what pruning to 85
# % would leave of the direction, follow from the statistics.

# %%
print(f"{'layer':6}{'values':>9}{'spread':>8}{'nearest law':>14}{'FP6':>7}{'cosine at 0.85':>16}")
for name, gradient in gradients.items():
    stats = sg.measure(gradient)
    distance = {family: sg.fit(gradient, family).ks(gradient) for family in sg.FAMILIES}
    nearest = min(distance, key=distance.get)
    cosine = sg.expected_cosine(stats, sg.threshold(stats, 0.85))
    print(
        f"{name:6}{stats.count:9}{stats.log_std / math.log(2):8.2f}{nearest:>14}"
        f"{sg.best_format(6, stats)!s:>7}{cosine:16.3f}"
    )

# %% [markdown]
# A layer whose cosine is below 0.7 should not be pruned that far. The whole run, drawn on one
# page:
#
#     python -m slimgrad report gradients.jsonl -o report.html

# %%
controller.remove()  # the model as it was
