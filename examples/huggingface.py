"""Hugging Face models trained with compressed gradients: a BERT and a ResNet built from a config,
with random weights and random data, so that nothing is downloaded. One line does it: sg.compress.

    python examples/huggingface.py --model bert --bits 6 --steps 20
"""

import argparse

import torch
import transformers

import slimgrad as sg


def bert(batch: int) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """A small BERT that classifies sentences, and a batch for it."""
    config = transformers.BertConfig(
        vocab_size=1000,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=64,
        num_labels=4,
    )
    labels = torch.randint(4, (batch,))
    words = torch.randint(1000, (batch, 32))
    words[:, 0] = labels  # so that there is something to learn
    return transformers.BertForSequenceClassification(config), {
        "input_ids": words,
        "labels": labels,
    }


def resnet(batch: int) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """A small ResNet that classifies images, and a batch for it."""
    config = transformers.ResNetConfig(
        num_channels=3,
        embedding_size=16,
        hidden_sizes=[16, 32],
        depths=[1, 1],
        layer_type="basic",
        num_labels=4,
    )
    labels = torch.randint(4, (batch,))
    images = torch.randn(batch, 3, 32, 32) + labels.view(-1, 1, 1, 1)
    return transformers.ResNetForImageClassification(config), {
        "pixel_values": images,
        "labels": labels,
    }


def train(name: str, steps: int, batch: int, bits: int | None) -> None:
    torch.manual_seed(1)
    model, inputs = {"bert": bert, "resnet": resnet}[name](batch)
    gradients = [sg.Prune(sparsity=0.85)]
    if bits is not None:
        gradients.append(sg.Quantize(bits))
    controller = sg.compress(model, gradients)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.train()
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(**inputs).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"{name}: loss {losses[0]:.3f} at first, {losses[-1]:.3f} after {steps} steps\n")
    print(controller.summary(), end="\n\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=["bert", "resnet", "both"], default="both")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--bits", type=int, help="also round what is left to so many bits")
    arguments = parser.parse_args()
    for name in ["bert", "resnet"] if arguments.model == "both" else [arguments.model]:
        train(name, arguments.steps, arguments.batch, arguments.bits)


if __name__ == "__main__":
    main()
