# %% [markdown]
# # A transformer in less memory
#
# A small language model that learns a generated text, once as it is and once with what backward
# keeps packed to 4 bits and activations to 3. What autograd holds between forward and backward is
# counted, and both losses are shown: the same weights, the same batches.

# %%
import torch
from torch import nn

import slimgrad as sg

STEPS, BATCH, LENGTH = 150, 16, 64
WORDS, WIDTH = 32, 128

# %% [markdown]
# Each word follows from the two before it, mostly. Any text will do: `tokens` is one long tensor
# of word numbers.

# %%
generator = torch.Generator().manual_seed(0)
tokens = [1, 2]
for chance in torch.rand(20_000, generator=generator).tolist():
    tokens.append(
        (3 * tokens[-1] + 5 * tokens[-2] + 1) % WORDS if chance < 0.9 else int(97 * chance) % WORDS
    )
tokens = torch.tensor(tokens)


def batch(step):
    starts = torch.randint(
        len(tokens) - LENGTH - 1, (BATCH,), generator=torch.Generator().manual_seed(step)
    )
    windows = torch.stack([tokens[i : i + LENGTH + 1] for i in starts.tolist()])
    return windows[:, :-1], windows[:, 1:]


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, 0.0, nn.GELU(), batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.blocks(self.words(x) + self.places, mask, is_causal=True))


# %%
def train(**settings):
    """The losses, and the bytes that autograd keeps."""
    torch.manual_seed(0)
    model = LanguageModel()
    controller = sg.compress(model, seed=1, **settings) if settings else None
    kept = sg.saved_bytes(model, (batch(0)[0],)).total
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for step in range(STEPS):
        x, y = batch(step)
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if controller:
        print(controller.summary(width=100))
    return losses, kept


# %%
plain, plain_saved = train()
packed, packed_saved = train(saved=4, activations=3)

# %%
last = max(1, STEPS // 10)
for name, losses, kept in [
    ("torch", plain, plain_saved),
    ("saved=4, activations=3", packed, packed_saved),
]:
    print(
        f"{name:22} keeps {kept / 2**20:6.1f} MiB, "
        f"loss {losses[0]:.3f} at first, {sum(losses[-last:]) / last:.3f} at last"
    )
print(f"{plain_saved / packed_saved:.1f} times fewer bytes between forward and backward")

# %% [markdown]
# What this costs in time, and how it compares with checkpointing, is measured on networks of a
# useful size: the page "Saved tensors" of the documents. `saved=8` is the careful setting to
# begin with.
