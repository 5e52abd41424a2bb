"""The benchmark's own parts, on loopback and at tiny size: nothing here looks at a time."""

import json
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import join_group, leave_group, run_ranks
from torch import nn

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))  # bench is not installed

from bench import distributed, distributed_page  # noqa: E402
from bench.distributed_codecs import exchanges  # noqa: E402
from bench.distributed_convergence import verdicts  # noqa: E402
from bench.distributed_gradients import PresetModel, gradients, quantiles, recorded  # noqa: E402
from bench.links import joined  # noqa: E402


def test_drawn_gradients_have_the_recorded_quantiles():
    shape, (levels, values) = recorded()["text.blocks.1.mlp.0.weight"]
    found = gradients(seed=1, scale=0.1)["text.blocks.1.mlp.0.weight"]
    assert found.shape == (round(0.1 * shape[0]), *shape[1:])
    drawn = quantiles(found)[1]
    # The median and the quartiles of 104,960 draws: within 1 % of the deviation.
    middle = [float(torch.quantile(found.double(), q)) for q in (0.25, 0.5, 0.75)]
    known = [float(values[(levels - q).abs().argmin()]) for q in (0.25, 0.5, 0.75)]
    assert middle == pytest.approx(known, abs=0.01 * float(found.std()))
    assert values[0] <= drawn[0]
    assert drawn[-1] <= values[-1]


def _same_means(rank, world, port, name):
    sys.path.insert(0, str(ROOT))
    join_group(rank, world, port)
    torch.set_num_threads(1)
    grads = gradients(1 + rank, 0.02)
    model = exchanges()[name](
        PresetModel(grads, torch.zeros(sum(map(torch.numel, grads.values()))))
    )
    for _ in range(3):  # the second and third with rebuilt buckets
        model.zero_grad(set_to_none=True)
        model(torch.zeros(1, requires_grad=True)).backward()
    found = torch.cat([p.grad.flatten() for p in model.parameters()])
    mean = torch.cat([g.flatten() for g in grads.values()])
    dist.all_reduce(mean)
    mean /= world
    error = float((found - mean).norm() / mean.norm())
    # 127 steps to the largest of 512 values; a block's largest is some 3 to 10 deviations.
    assert error < 0.05
    alike = found.clone()
    dist.broadcast(alike, 0)
    assert torch.equal(alike, found)
    leave_group()


def test_the_int8_exchange_is_a_fair_rival():
    run_ranks(_same_means, ("int8 exchange",), world=3)


def test_a_race_on_loopback_measures_every_rival_and_ours(tmp_path):
    names = ["float32", "fp16 hook", "bf16 hook", "PowerSGD rank 4", "uniform8"]
    with joined(2, loopback=True) as places:
        found = distributed.run_ranks(places, None, 2, 60, 0.01, names)
    rows = distributed.rows_of(2, "loopback", found)
    assert [row["name"] for row in rows] == names
    by_name = {row["name"]: row for row in rows}
    assert by_name["float32"]["faster"] == 1
    # Loopback counts what others send as well: a lower bound is all that can be known.
    assert by_name["float32"]["bytes"] > 4 * 0.009 * 25e6
    out = tmp_path / "rows.json"
    distributed.write(out, rows, 0.01)
    distributed.write(out, rows[:2], 0.01)  # the same run again: in its place
    again = [row | {"run": 2} for row in rows[:2]]
    distributed.write(out, again, 0.01)
    record = json.loads(out.read_text())
    assert [(row["name"], row["run"]) for row in record["rows"]] == [
        (name, run) for run in (1, 2) for name in names[:2]
    ]
    assert distributed.has_run(out, (2, "loopback", 2), names[:2])
    assert not distributed.has_run(out, (2, "loopback", 2), names)
    assert not distributed.has_run(out, (2, "loopback", 3), names[:2])
    assert all(row["cpu_seconds"] > 0 for row in record["rows"])
    assert "2 ranks, loopback (2 runs)" in distributed_page.page(record, None)
    other = [row | {"commit": "another"} for row in rows[:1]]
    distributed.write(out, other, 0.01)  # runs of two commits are not mixed
    assert [row["commit"] for row in json.loads(out.read_text())["rows"]] == ["another"]


def test_missed_bars_are_named_in_bold():
    def row(name, link, seconds):
        return {"ranks": 2, "link": link, "name": name, "seconds": seconds, "faster": 1 / seconds}

    rows = [row("float32", "1 Gbit/s", 1.0), row("int8 exchange", "1 Gbit/s", 0.3)]
    rows += [row("uniform8", "1 Gbit/s", 0.25), row("uniform8 gennorm", "1 Gbit/s", 0.5)]
    rows += [row("packed8", "1 Gbit/s", 0.29)]
    lines = distributed_page.bar_lines(rows)
    assert [line.split(" | ")[0] for line in lines] == [
        "| uniform8",
        "| uniform8 gennorm",
        "| packed8",
    ]
    assert [line.split(" | ")[-1] for line in lines] == ["met |", "**missed** |", "met |"]
    # The slowest run counts.
    rows += [row("packed8", "unlimited", seconds) for seconds in (0.9, 0.97, 0.8)]
    assert distributed_page.bar_lines(rows)[-1] == (
        "| packed8 | 2 | unlimited | at least 1.05 | 1.11 1.03 1.25 | **missed** |"
    )


def test_a_difference_beyond_what_another_seed_does_is_no_noise():
    def row(name, *losses):
        return {"model": "m", "name": name, "losses": list(losses)}

    rows = [row("float32", 1.0, 1.1, 1.2), row("better", 0.5, 0.6, 0.7)]
    rows += [row("same", 1.06, 1.14, 1.29), row("bad", 1.5, 1.61, 1.69)]
    found = {row["name"]: row for row in verdicts(rows)}
    assert {name: row["equal"] for name, row in found.items()} == {
        "better": True,
        "same": True,
        "bad": False,
    }
    assert [name for name, row in found.items() if row["seen"]] == ["same", "bad"]
    assert found["bad"]["noise"] == pytest.approx(0.1)  # of 1, 1.1, 1.2
    # Differences 0.06, 0.04, 0.09: mean 0.0633, deviation 0.0252, over the root of 3 0.0145.
    assert found["same"]["difference"] == pytest.approx(0.0633, abs=1e-4)
    assert found["same"]["error"] == pytest.approx(0.0145, abs=1e-4)


def test_a_preset_gradient_survives_its_reduction():
    grads = {"a": torch.ones(3), "b": torch.full((2, 2), 2.0)}
    model = PresetModel(grads, torch.zeros(7))
    model(torch.zeros(1, requires_grad=True)).backward()
    assert [p.grad.tolist() for p in model.parameters()] == [[1.0] * 3, [[2.0] * 2] * 2]
    assert isinstance(model.weights[0], nn.Parameter)
