"""Five transformers with random weights, small enough for a step in milliseconds, and what
compress() is asked to do to them."""

import torch
import transformers
from torch import nn
from transformers.pytorch_utils import Conv1D

import slimgrad as sg

VOCABULARY, WIDTH, LENGTH, LABELS = 64, 32, 12, 3

_SIZES = dict(hidden_size=WIDTH, num_attention_heads=2, intermediate_size=64)


def _bert(dropout, layers):
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=VOCABULARY,
            max_position_embeddings=LENGTH,
            num_labels=LABELS,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
            num_hidden_layers=layers,
            **_SIZES,
        )
    )


def _gpt2(dropout, layers):
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=LENGTH,
            n_embd=WIDTH,
            n_layer=layers,
            n_head=2,
            resid_pdrop=dropout,
            embd_pdrop=dropout,
            attn_pdrop=dropout,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def _llama(dropout, layers):
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=VOCABULARY,
            max_position_embeddings=LENGTH,
            num_key_value_heads=2,
            attention_dropout=dropout,
            num_hidden_layers=layers,
            **_SIZES,
        )
    )


def _vit(dropout, layers):
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(
            image_size=12,
            patch_size=4,
            num_labels=LABELS,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
            num_hidden_layers=layers,
            **_SIZES,
        )
    )


def _t5(dropout, layers):
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=VOCABULARY,
            d_model=WIDTH,
            d_kv=16,
            d_ff=64,
            num_layers=(layers + 1) // 2,  # of the encoder, and of the decoder as well
            num_heads=2,
            dropout_rate=dropout,
            decoder_start_token_id=0,
        )
    )


MODELS = {"bert": _bert, "gpt2": _gpt2, "llama": _llama, "vit": _vit, "t5": _t5}

SPARSE = sg.Prune(weight=0.9, input=0.5, sparse_backward="always")
COMPRESSIONS = {
    "fp6": {"gradients": "fp6"},
    "prune": {"gradients": sg.Prune(0.8)},
    "sparse": {"gradients": SPARSE},
    "activations": {"activations": 3},
    "gates and activations": {"gradients": ["fp6", sg.Prune(0.8)], "activations": 3},
    "sparse and activations": {"gradients": SPARSE, "activations": 3},
}


def build(name, dropout=0.0, seed=0, layers=2):
    torch.manual_seed(seed)
    return MODELS[name](dropout, layers).train()


def compress(model, what, seed=3, **options):
    return sg.compress(model, **COMPRESSIONS[what], seed=seed, min_elements=0, **options)


def batch(name, step=0, size=8):
    generator = torch.Generator().manual_seed(100 + step)
    if name == "vit":
        inputs = {"pixel_values": torch.randn(size, 3, 12, 12, generator=generator)}
    else:
        words = torch.randint(2, VOCABULARY, (size, LENGTH), generator=generator)
        inputs = {"input_ids": words}
    if name in ("bert", "vit"):
        return inputs | {"labels": torch.randint(LABELS, (size,), generator=generator)}
    return inputs | {"labels": words.flip(1) if name == "t5" else words}


def train(model, name, steps=3, first=0, optimizer=None, forward=None):
    """The losses."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2)
    forward = model if forward is None else forward
    losses = []
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss = forward(**batch(name, step)).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def snapshot(model):
    return {key: value.clone() for key, value in model.state_dict().items()}


def equal_tensors(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def layers_with_weights(model):
    """By name, what a user would expect a word about."""
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, Conv1D)
    return {name for name, module in model.named_modules() if isinstance(module, kinds)}


def calls(controller):
    return {name: row["calls"] for name, row in controller.report().items()}


def classes(model):
    return {name: type(module) for name, module in model.named_modules()}
