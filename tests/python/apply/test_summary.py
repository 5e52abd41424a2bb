"""The summary of real models fits the width, names every layer, and leaves nothing out."""

import re

import pytest
import torch
from controller_samples import make, train, two_layers
from folded_names import unfold

import slimgrad as sg
from slimgrad.compression.summary import summary_lines

pytestmark = pytest.mark.usefixtures("one_thread")

WIDTHS = [60, 80, 160]
IDS = {"vocab_size": 40, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}


def build(name):
    t = pytest.importorskip("transformers")
    torch.manual_seed(0)
    words = torch.randint(3, 40, (4, 8))
    if name == "t5":
        config = t.T5Config(
            d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0,
            feed_forward_proj="gated-gelu", **IDS,
        )  # fmt: skip
        return t.T5ForConditionalGeneration(config), {"input_ids": words, "labels": words}
    if name == "bert":
        config = t.BertConfig(
            hidden_size=16, num_hidden_layers=12, num_attention_heads=2, intermediate_size=32, **IDS
        )
        return t.BertForMaskedLM(config), {"input_ids": words, "labels": words}
    config = t.GPT2Config(n_embd=16, n_layer=3, n_head=2, n_positions=8, **IDS)
    return t.GPT2LMHeadModel(config), {"input_ids": words, "labels": words}


@pytest.fixture(scope="module")
def controllers():
    """Made once: by model, and whether its backward pass is sparse."""
    made = {}

    def get(name, sparse):
        if (name, sparse) not in made:
            model, batch = build(name)
            gradients = sg.Prune(weight=0.9, input=0.8) if sparse else [sg.Prune(0.85), "fp6"]
            queries = [n for n, _ in model.named_modules() if n.endswith((".query", ".q"))]
            controller = sg.compress(
                model, gradients, activations=3, exclude=queries, min_elements=1, seed=1
            )
            for _ in range(2):
                model(**batch).loss.backward()
            made[name, sparse] = controller
        return made[name, sparse]

    return get


def parts(text):
    """The rows of the table, and of what follows each sentence with the names under it."""
    head, *lines = text.splitlines()
    # A name that is too long for its column has a line of its own.
    lines = re.sub(r"(?m)^([^ (]+)\n +(?=\d+ )", r"\1 ", "\n".join(lines)).splitlines()
    rows, blocks = [], []
    for line in lines:
        if line.startswith("    "):
            blocks[-1][1] += line.strip()
            names = blocks[-1][1]
            is_broken = names.endswith(".") or names.count("{") > names.count("}")
            blocks[-1][1] += "" if is_broken else " "
        elif line.startswith("  "):
            blocks[-1][0] += f" {line.strip()}"
        elif re.match(r"(\d+ layers?|activations|warning|no backward)\b", line):
            blocks.append([line, ""])
        elif not line.startswith(("(", " ")):
            rows.append(line)
    pattern = re.compile(r",\s+")
    named = [
        (sentence, {n for f in pattern.split(names.strip()) if f for n in unfold(f)})
        for sentence, names in blocks
    ]
    return head, rows, named


CASES = [("t5", False), ("t5", True), ("bert", False), ("gpt2", False), ("gpt2", True)]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("name", "sparse"), CASES)
def test_everything_is_in_it_and_fits(controllers, name, sparse, width):
    controller = controllers(name, sparse)
    text = controller.summary(width)
    assert all(len(line) <= width for line in text.splitlines())
    _, rows, named = parts(text)
    report = controller.report()
    assert [row.split()[0] for row in rows] == list(report)  # whole, as exclude= takes them
    for row, want in zip(rows, report.values(), strict=True):
        assert row.split()[1] == str(want["calls"])
        assert f"{want['sparsity']:.3f} ({want['sparsity_wanted']:.3f})" in row
        assert f"{want['cosine']:.4f}" in row
    # What was left, once for each reason.
    told = {why: names for sentence, names in named for why in controller.left.values()
            if sentence.endswith(f"not converted: {why}")}  # fmt: skip
    assert set().union(*told.values()) == set(controller.left)
    # Activations, by what they keep.
    found = [(s, n) for s, n in named if s.startswith("activations")]
    all_names = set().union(*(names for _, names in found))
    activations = controller.activations
    assert all_names == {row[0] for row in activations.converted + activations.left}
    for layer, was, _ in activations.converted:
        (sentence,) = [s for s, names in found if layer in names]
        assert activations.saved[layer] in sentence and was in sentence
    assert "Stepwise" not in text
    # Warnings at the end; sentences of the same kind are one.
    warnings = [(s, n) for s, n in named if s.startswith("warning")]
    assert named[len(named) - len(warnings) :] == warnings
    counts = [int(re.match(r"warning, (\d+) times", s)[1]) if names else 1 for s, names in warnings]
    assert sum(counts) == len(controller.warnings())
    for sentence in controller.warnings():
        if sentence.partition(": ")[0] in report:
            layer = sentence.partition(": ")[0]
            assert any(layer in names or sentence in told for told, names in warnings)


@pytest.mark.parametrize(("name", "sparse"), CASES)
def test_a_wide_one_has_all_columns_and_whole_names(controllers, name, sparse):
    controller = controllers(name, sparse)
    head, rows, _ = parts(controller.summary(160))
    columns = ["calls", "zeros (wanted)", "cosine", "rel.err", "values", "log2std"]
    columns += ["way", "break-even"] if sparse else ["format", "scale"]
    assert all(column in head for column in columns)
    assert [row.split()[0] for row in rows] == list(controller.report())
    assert len({len(line) for line in [head, *rows]}) == 1


def test_a_narrow_one_says_what_is_missing(controllers):
    text = controllers("t5", False).summary(60)
    assert "without rel.err, format, values, log2std, scale" in text.replace("\n ", " ")
    assert "columns;" not in controllers("t5", False).summary(160)


def test_worst_first():
    model, controller = make([sg.Prune(0.8), "fp6"], min_elements=4096)
    train(model, 1)
    _, rows, named = parts(controller.summary(100, worst_first=True))
    report = controller.report()
    assert not report["head.1"]["compressed"]
    order = sorted(["conv1", "conv2"], key=lambda name: report[name]["cosine"])
    assert [row.split()[0] for row in rows] == [*order, "head.1"]
    assert ("1 layer left alone, small or in warm-up", {"head.1"}) in named
    assert rows[2].split()[2:4] == ["0.000", "(-)"] and rows[0].split()[3] == "(0.800)"
    assert len({len(row) for row in rows}) == 1


def test_worst_first_by_error_where_cosines_are_equal_and_nan_at_the_top():
    _, controller, step = two_layers("fp4")
    step(0)
    row = controller.report()["a"]
    rows = {
        "good": row | {"cosine": 1.0, "relative_error": 0.1},
        "bad": row | {"cosine": 1.0, "relative_error": 0.9},
        "silent": row | {"calls": 0},
        "alone": row | {"compressed": False, "cosine": 0.0},
        "nan": row | {"cosine": float("nan")},
    }
    lines = summary_lines(
        rows, {}, controller.activations, [], prunes=False, width=80, worst_first=True
    )
    names = [line.split()[0] for line in lines[1:6]]
    assert names == ["nan", "bad", "good", "alone", "silent"]
    assert "1 layer without a backward pass yet" in lines


def test_the_model_itself_has_a_name():
    model = torch.nn.Linear(64, 64)
    controller = sg.compress(model, sg.Prune(0.95), min_elements=1, seed=1)
    model(torch.randn(64, 64)).square().sum().backward()
    _, row, *lines = controller.summary(200).splitlines()
    assert row.startswith("(model) ") and lines[-1].startswith("warning: (model): pruning")


def test_before_the_first_backward_pass():
    _, controller, _ = two_layers("fp6")
    head, *rows, last = controller.summary().splitlines()
    assert last == "no backward pass yet"
    for row, name in zip(rows, controller.converted, strict=True):
        assert row.split() == [name, "0", *"-" * (len(head.split()) - 2)]


def test_width(monkeypatch):
    _, controller, _ = two_layers("fp6")
    for wrong in (59, 0, "80", 80.0, True):
        with pytest.raises(ValueError, match=r"\[summary\] expected width >= 60"):
            controller.summary(width=wrong)
    for columns, width in (("70", 70), ("20", 60), ("150", 150)):
        monkeypatch.setenv("COLUMNS", columns)
        assert controller.summary() == controller.summary(width)


def test_names_that_are_longer_than_a_line_are_still_there():
    _, controller, step = two_layers("fp6")
    step(0)
    row = controller.report()["a"]
    name = ".".join(str(n) for n in range(100, 130))
    text = "\n".join(
        summary_lines(
            {name: row, f"{name}.1": row}, {f"{name}.x": "excluded"}, controller.activations,
            [], prunes=True, width=60,
        )
    )  # fmt: skip
    assert all(len(line) <= 60 for line in text.splitlines())
    whole = text.replace("\n    ", "")
    assert whole.count(name) == 3 and f"{name}.1" in whole and f"{name}.x" in whole
