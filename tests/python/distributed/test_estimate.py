"""estimate: its table and its verdict for known speeds, what it measures, what it refuses."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import slimgrad as sg
from slimgrad.distributed.cost import Link, Speed, coded_seconds, plain_seconds
from slimgrad.distributed.estimation import Estimate, Workload

QUICK = Speed(0.5, 1e-9, 1e-9, 1e-9)
SLOW = Speed(0.5, 1e-6, 1e-6, 1e-6)


def known(speeds: dict, bandwidth: float = 1e9, ranks: int = 2, small: int = 0) -> Estimate:
    load = Workload(10_000_000, small, 10, cast=5e-10, speeds=speeds)
    return Estimate(load, ranks, Link(bandwidth, 1e-4), "gradients as given")


def test_rows_are_the_formula():
    found = known({"quick": QUICK}, small=1000)
    link = found.link
    assert found.row("float32").seconds == plain_seconds(40_004_000, 2, link)
    assert found.row("quick").seconds == coded_seconds(10_000_000, QUICK, 2, link, 4000)
    assert found.row("float32").sent == 40_004_000
    assert found.row("fp16").sent == 20_002_000
    assert found.row("quick").sent == 5_000_000 + 4000


def test_a_round_is_shared_by_its_steps():
    one = known({"quick": QUICK, "slow": SLOW}, small=1000)
    found = Estimate(replace(one.workload, every=50), 2, one.link, one.gradients)
    for name in ("quick", "slow"):
        assert found.row(name).sent == one.row(name).sent / 50
        assert found.row(name).seconds == one.row(name).seconds / 50
        assert found.row(name).pays_below >= one.row(name).pays_below
    assert found.row("float32").sent == one.row("float32").sent
    assert found.row("fp16").seconds == one.row("fp16").seconds
    assert "codecs exchange every 50 steps" in str(found)
    assert found.at(ranks=4).workload.every == 50
    rare = str(Estimate(replace(one.workload, every=10**6), 2, one.link, one.gradients))
    quick = next(line for line in rare.splitlines() if line.startswith("quick")).split()
    assert [float(x) for x in quick[4:6]] == [5e-6, float(f"{one.row('quick').seconds / 1e6:.2g}")]
    with pytest.raises(ValueError, match="expected every to be a positive integer, got 0"):
        sg.distributed.estimate([torch.ones(10)], 1e9, every=0)


def test_it_says_yes_and_by_how_much():
    found = known({"quick": QUICK, "slow": SLOW})
    assert found.pays
    assert found.best == "quick"
    assert found.verdict.startswith("Yes: between 2 ranks at 1 Gbit/s quick takes")
    assert str(found).endswith(found.verdict)


def test_it_says_no_and_from_where_it_would_be_yes():
    found = known({"slow": SLOW}, bandwidth=1e9)
    assert not found.pays
    assert found.best == "fp16"
    assert found.verdict.startswith("No: between 2 ranks at 1 Gbit/s fp16 takes")
    even = found.row("slow").pays_below_fp16
    assert f"a codec pays below {even / 1e6:.3g} Mbit/s" in found.verdict
    assert found.at(bandwidth=0.99 * even).best == "slow"
    assert found.at(bandwidth=1.01 * even).best == "fp16"


def test_a_codec_that_sends_more_never_pays():
    found = known({"fat": Speed(5.0, 1e-9, 1e-9, 1e-9)}, bandwidth=1e6)
    assert found.row("fat").pays_below == 0
    assert "no codec ever pays" in found.verdict
    assert "never" in str(found)


def test_one_rank_exchanges_nothing():
    found = known({"quick": QUICK}, ranks=1)
    assert all(row.seconds == 0 for row in found.rows)
    assert found.verdict == "No: one rank exchanges nothing."


def test_slower_links_and_slower_coders_never_make_a_codec_quicker():
    seconds = [known({"quick": QUICK}, bandwidth=b).row("quick").seconds for b in (1e10, 1e9, 1e8)]
    assert seconds == sorted(seconds)
    even = [
        known({"x": Speed(0.5, work, work, work)}).row("x").pays_below
        for work in (1e-10, 1e-9, 1e-8, 1e-7)
    ]
    assert even == sorted(even, reverse=True)


def test_at_asks_about_another_link():
    found = known({"quick": QUICK})
    other = found.at(bandwidth="10 Gbit/s", latency=0.0, ranks=8)
    assert (other.link, other.ranks) == (Link(1e10, 0.0), 8)
    assert other.workload is found.workload


def test_a_row_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(ValueError, match=r"expected one of float32, fp16, quick, got 'fp3'"):
        known({"quick": QUICK}).row("fp3")


def test_it_measures_a_model():
    model = nn.Linear(256, 512)
    found = sg.distributed.estimate(
        model, bandwidth="100 Mbit/s", ranks=4, codecs=["lossless", "uniform8"]
    )
    assert [row.name for row in found.rows] == ["float32", "fp16", "lossless", "uniform8"]
    assert "generated gradients, generalized normal" in str(found)
    assert (found.workload.values, found.workload.small) == (256 * 512, 512)
    eight = found.workload.speeds["uniform8"]
    assert 0.3 < eight.bytes_per_value < 1.05
    assert eight.bytes_per_value < found.workload.speeds["lossless"].bytes_per_value < 4.1
    assert min(eight.encode, eight.add, eight.decode) > 0


def test_what_topk_keeps_goes_to_all():
    found = sg.distributed.estimate([torch.randn(1 << 16)], 1e9, ranks=4, codecs=["topk", "rate2"])
    speeds = found.workload.speeds
    assert speeds["topk"].to_all and not speeds["rate2"].to_all
    for name, times in (("topk", 3), ("rate2", 1.5)):
        sent = times * speeds[name].bytes_per_value * (1 << 16)
        assert found.row(name).sent == pytest.approx(sent)


def test_it_takes_the_gradients_that_are_there():
    model = nn.Linear(256, 512)
    model(torch.randn(4, 256)).square().sum().backward()
    kept = model.weight.grad.clone()
    found = sg.distributed.estimate(model, 1e9, codecs=["uniform8"])
    assert found.gradients == "the model's own gradients"
    assert torch.equal(model.weight.grad, kept)
    given = sg.distributed.estimate(model, 1e9, codecs=["uniform8"], gradients=[torch.randn(9000)])
    assert given.gradients == "gradients as given"
    assert given.workload.values == 9000


def test_a_model_of_small_tensors_has_nothing_to_code():
    found = sg.distributed.estimate(nn.Linear(4, 4), 1e9, codecs=["uniform8"])
    assert not found.pays
    assert found.verdict.startswith("No: every tensor is small")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": 0}, r"expected ranks to be a positive integer, got 0"),
        ({"ranks": 2.5}, r"expected ranks to be a positive integer, got 2.5"),
        ({"latency": -1}, r"expected latency to be seconds, at least 0, got -1"),
        ({"latency": math.nan}, r"expected latency to be seconds"),
        ({"bandwidth": "fast"}, r"expected bandwidth in bits per second"),
        ({"gradients": []}, r"expected gradients to be tensors, got none"),
        ({"codecs": ["fp9"]}, r"fp9"),
    ],
)
def test_what_it_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        sg.distributed.estimate(nn.Linear(2, 2), **({"bandwidth": 1e9} | arguments))


def test_a_model_needs_parameters():
    with pytest.raises(ValueError, match="parameters that require a gradient"):
        sg.distributed.estimate(nn.ReLU(), 1e9)
    with pytest.raises(TypeError, match="expected gradients to be tensors, got str"):
        sg.distributed.estimate(["x"], 1e9)


def test_it_knows_float32_only_and_says_so():
    with pytest.raises(ValueError, match=r"of type float32, got torch.bfloat16"):
        sg.distributed.estimate(nn.Linear(100, 100, dtype=torch.bfloat16), 1e9)
    with pytest.raises(ValueError, match=r"of type float32, got torch.float16"):
        sg.distributed.estimate([torch.zeros(5000, dtype=torch.float16)], 1e9)


def command(monkeypatch, capsys, *arguments: str) -> tuple[int, str, str]:
    from slimgrad.__main__ import main

    monkeypatch.setattr("sys.argv", ["slimgrad", "estimate", *arguments])
    try:
        status = main()
    except SystemExit as end:
        status = end.code
    return status, *capsys.readouterr()


def test_the_command_prints_a_table(monkeypatch, capsys):
    status, out, _ = command(
        monkeypatch, capsys, "--parameters", "3e5", "--codecs", "uniform8", "--ranks", "8"
    )
    assert status == 0
    assert "0.3 million values" in out
    assert "8 ranks, 1 Gbit/s" in out
    assert out.splitlines()[-1].startswith(("Yes: ", "No: "))


def test_the_command_reads_gradients_and_writes_json(monkeypatch, capsys, tmp_path):
    np.save(tmp_path / "grad.npy", np.random.default_rng(0).normal(size=20000).astype("f4"))
    status, out, _ = command(
        monkeypatch, capsys, str(tmp_path / "grad.npy"), "--codecs", "lossless", "--json"
    )
    record = json.loads(out)
    assert status == 0
    assert [row["name"] for row in record["rows"]] == ["float32", "fp16", "lossless"]
    assert record["gradients"] == "gradients as given"


def test_the_command_imports_a_model(monkeypatch, capsys, tmp_path):
    text = "from torch import nn\n\ndef network():\n    return nn.Linear(100, 300)\n"
    (tmp_path / "estimated_model.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    status, out, _ = command(
        monkeypatch, capsys, "--model", "estimated_model:network", "--codecs", "packed8"
    )
    assert status == 0
    assert "generated gradients" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected files of gradients, or --model, or --parameters"),
        (["--model", "torch.nn"], "--model: expected MODULE:NAME"),
        (["--model", "torch.nn:Nothing"], "--model: "),
        (["--model", "math:pi"], "--model: expected math:pi to be a module, got float"),
        (["--parameters", "0"], "--parameters: expected 1 or more"),
        (["missing.npy"], "missing.npy"),
        (["--parameters", "1e6", "--bandwidth", "fast"], "expected bandwidth in bits per second"),
        (["--parameters", "1e6", "--threads", "0"], "--threads: expected 1 or more"),
    ],
)
def test_the_command_says_in_one_line_what_is_wrong(monkeypatch, capsys, arguments, message):
    status, out, error = command(monkeypatch, capsys, *arguments)
    assert status == 2
    assert not out
    assert error.startswith("slimgrad estimate: ")
    assert message in error
    assert len(error.splitlines()) == 1
