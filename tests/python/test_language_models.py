"""What compress() tells those who prune a language model too much, and what bits do to one."""

import pytest
import torch
from torch import nn

import slimgrad as sg

pytestmark = pytest.mark.usefixtures("one_thread")

VOCABULARY = 500


def t5():
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=1,
        num_heads=4,
        decoder_start_token_id=0,
        dropout_rate=0.0,
    )
    return transformers.T5ForConditionalGeneration(config)


def train(gradients, steps=4, **options):
    """A few steps towards writing a sentence in reverse."""
    torch.manual_seed(0)
    model = t5()
    controller = sg.compress(model, gradients, seed=1, **{"min_elements": 1, **options})
    words = torch.randint(2, 40, (16, 8), generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        model(input_ids=words, labels=words.flip(1)).loss.backward()
        optimizer.step()
    return controller


def about_the_model(controller):
    return [s for s in controller.warnings() if "too high for this model" in s]


def test_a_t5_that_is_pruned_too_much_is_told_so_with_the_remedy():
    controller = train(sg.Prune(0.85))
    (sentence,) = about_the_model(controller)
    assert controller.warnings()[0] == sentence  # before what it says of single layers
    assert "pruned gradients keep a cosine below 0.7" in sentence
    assert "prune less" in sentence and "Prune(weight=0.85, input=0)" in sentence
    assert f"warning: {sentence}" in controller.summary(width=500)
    harmed = [name for name, row in controller.report().items() if row["cosine"] < 0.7]
    for name in harmed:  # each of them with what helps it
        (one,) = [s for s in controller.warnings() if s.startswith(f"{name}: ")]
        assert "exclude it" in one and "allocation='min_cosine'" in one
    assert sentence.startswith(f"{len(harmed)} of {len(controller.converted)} ")


def test_the_remedies_silence_it():
    assert about_the_model(train(sg.Prune(0.5))) == []
    assert about_the_model(train("fp8")) == []


def test_other_prunings_get_other_remedies():
    (sentence,) = about_the_model(train(sg.Prune(0.85)))
    assert "Prune(weight=0.85" in sentence
    (sentence,) = about_the_model(train(sg.Prune(0.97, sparse_backward="always")))
    assert "input=0" in sentence and "Prune(weight" not in sentence
    (sentence,) = about_the_model(train(sg.Prune(weight=0.97, input=0, sparse_backward="always")))
    assert "prune less" in sentence and "input=0" not in sentence
    spread = train(sg.Prune(0.93, allocation="min_cosine"))
    single = [s for s in spread.warnings() if ": pruning to" in s]
    assert single and all("targets=" in s for s in single)  # it has an allocation already


def test_one_harmed_layer_is_not_the_model():
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64))
    controller = sg.compress(model, sg.Prune(0.97), exclude=["0", "1"], seed=1, min_elements=1)
    model(torch.randn(256, 64)).backward(torch.randn(256, 64))
    assert len(controller.warnings()) == 1 and about_the_model(controller) == []
