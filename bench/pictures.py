"""The pictures of README and docs, drawn from the records in results/ and from nothing else.

    python -m bench.pictures           # writes docs/figures/*.svg
    python -m bench.pictures --check   # says which of them do not match their records

No number is typed here: a picture whose record has changed is drawn again, and
tests/python/test_pictures.py compares them."""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from pathlib import Path

from bench.svg import Axes, Drawing, bars, legend

ROOT = Path(__file__).resolve().parents[1]
RESULTS, FIGURES = ROOT / "results", ROOT / "docs" / "figures"
OURS = "saved=4, activations=3"  # the setting that pictures of memory show


def record(name: str):
    return json.loads((RESULTS / f"{name}.json").read_text())


def percent_ticks(*values):
    return [(v, f"{100 * v:g} %") for v in values]


# ---- what it does, on one picture ----------------------------------------------------------------


def accuracy_over_seconds(axes: Axes, shown) -> None:
    curves = record("time_to_accuracy")["curves"]
    for name, role in shown:
        axes.curve(curves[name], role)


def memory_rows(case: str, names) -> tuple[list, float]:
    """Bars of what autograd saves for one network of results/saved.json, and the longest."""
    rows = [row for row in record("saved")["rows"] if row["case"] == case]
    kept = {row["name"]: row["saved"] for row in rows if "saved" in row}
    time = {row["name"]: row["ratio"] for row in rows if row["part"].endswith(":time")}
    found = []
    for name, role in names:
        if name in kept:
            steps = f", step {time[name]:.2f}" if name in time else ""
            found.append((name, kept[name], role, f"{kept[name]:.0f} MiB{steps}"))
    return found, max(value for _, value, _, _ in found)


def cases(name: str) -> list[str]:
    """Of networks, in the order of the record."""
    rows = record(name)["rows"]
    return list(dict.fromkeys(row["case"] for row in rows if "saved" in row))


def front() -> Drawing:
    d = Drawing(900, 320, "Test accuracy over seconds of training, and memory between passes")
    axes = Axes(d, 50, 50, 350, 190, (0, 200), (0.25, 0.7))
    ticks = [(s, str(s)) for s in (0, 50, 100, 150, 200)]
    axes.frame(
        "Time: test accuracy on CIFAR-10",
        "seconds of training",
        ticks,
        percent_ticks(0.3, 0.5, 0.7),
    )
    shown = [("plain", "plain"), ("weight 0.9", "ours"), ("weight 0.9, input 0.8", "also")]
    accuracy_over_seconds(axes, shown)
    legend(d, 50, 306, [(role, "torch" if name == "plain" else name) for name, role in shown])
    case = next(case for case in cases("saved") if case.startswith("GPT"))
    d.text(450, 36, "Memory: what autograd keeps", extra="b")
    d.text(450, 56, f"{case}; step: time over torch's", "faint", extra="small")
    names = [
        *(("torch", "plain"), ("torch.utils.checkpoint", "rival")),
        *(("saved=8", "ours"), ("saved=4", "ours"), (OURS, "ours"), ("saved=2", "ours")),
    ]
    rows, largest = memory_rows(case, names)
    bars(d, 450, 72, 155, 180, rows, largest, row=28)
    return d


def choose() -> Drawing:
    """What is scarce, and what helps: words only."""
    d = Drawing(760, 400, "What is scarce: memory, backward time, bandwidth or space on disk?")
    d.rect(20, 170, 120, 60, "box", 8)
    d.text(80, 196, "What is", anchor="middle", extra="b")
    d.text(80, 214, "scarce?", anchor="middle", extra="b")
    ways = [
        ("memory between", "forward and backward", "saved=8 or 4", "also activations=3"),
        ("time of the", "backward pass", "Prune(weight=0.9, input=0)", "CNNs, wide linear layers"),
        ("bandwidth", "between machines", 'register(model, "uniform8")', "ask estimate first"),
        ("bytes on disk", "or on a wire", "encode, save", "lossless, or few bits"),
        ("knowledge of", "your gradients", "measure, fit, report", "changes nothing"),
    ]
    for i, (first, second, setting, note) in enumerate(ways):
        y = 14 + 76 * i
        d.path([(140, 200), (190, 200), (190, y + 30), (230, y + 30)], "faint", 1.5)
        d.rect(230, y, 190, 60, "box", 8)
        d.text(325, y + 26, first, anchor="middle")
        d.text(325, y + 44, second, anchor="middle")
        d.line(420, y + 30, 460, y + 30, "faint", 1.5)
        d.rect(460, y, 280, 60, "box", 8)
        d.text(600, y + 26, setting, "ours", "middle", "b")
        d.text(600, y + 44, note, "faint", "middle", "small")
    return d


# ---- one for each guide --------------------------------------------------------------------------


def neural_gradient() -> Drawing:
    """A gradient of a real training, with the lognormal and the normal law that fit it best: of the
    layer whose distance from its lognormal is the median over layers."""
    step, lines = 600, {"histogram": {}, "fit": {}}
    for text in (RESULTS / "runs" / "plain_seed1.jsonl").open():
        line = json.loads(text)
        if (line.get("step"), line.get("tensor")) == (step, "neural_gradient"):
            lines[line["kind"]][line["layer"]] = line
    distance = {k: line["families"]["lognormal"]["ks"] for k, line in lines["fit"].items()}
    layer = sorted(distance, key=distance.get)[len(distance) // 2]
    histogram, laws = lines["histogram"][layer], lines["fit"][layer]["families"]
    # Four bins of the record a column of half an octave, in shares an octave.
    counts, total = histogram["counts"], sum(histogram["counts"])
    columns = [
        (histogram["first_exponent"] + i / 8 + 0.25, 2 * sum(counts[i : i + 4]) / total)
        for i in range(0, len(counts), 4)
    ]
    d = Drawing(720, 300, "Magnitudes of a neural gradient and the laws nearest to it")
    top = 1.15 * max(share for _, share in columns)
    axes = Axes(d, 50, 50, 640, 180, (-40, -8), (0, top))
    ticks = [(e, f"2^{e}") for e in range(-40, -7, 4)]
    axes.frame("Share of values by magnitude, an octave", "magnitude", ticks, [])
    for x, share in columns:
        if axes.x_range[0] <= x <= axes.x_range[1]:
            left, right = axes.x(x - 0.23), axes.x(x + 0.23)
            d.rect(left, axes.y(share), right - left, axes.y(0) - axes.y(share), "plain", 0)
    octaves = [-40 + i / 4 for i in range(129)]
    law = laws["lognormal"]
    mean, deviation = law["log_mean"] / math.log(2), law["log_std"] / math.log(2)
    lognormal = [
        (e, math.exp(-(((e - mean) / deviation) ** 2) / 2) / deviation / math.sqrt(2 * math.pi))
        for e in octaves
    ]
    axes.curve(lognormal, "ours", dots=False)
    scale = laws["normal"]["scale"]
    ratio = [(e, 2.0**e / scale) for e in octaves]
    normal = [
        (e, min(top, math.sqrt(2 / math.pi) * r * math.log(2) * math.exp(-r * r / 2)))
        for e, r in ratio
    ]
    axes.curve(normal, "rival", dots=False)
    names = [("plain", f"{layer}, step {step}"), ("ours", "lognormal"), ("rival", "normal")]
    legend(d, 50, 290, names)
    return d


def activations() -> Drawing:
    """GELU's slope and its table of eight levels, and what training pays for fewer."""
    golden = json.loads((ROOT / "tests" / "golden" / "fewbit.json").read_text())
    measures = golden["activations"]["gelu_erf"]
    table = measures["normal"]["3"]
    borders, levels = table["borders"], table["levels"]
    d = Drawing(820, 300, "GELU's slope and its step table; the loss that fewer bits cost")
    axes = Axes(d, 50, 50, 350, 190, (-4, 4), (-0.25, 1.25))
    ticks = [(x, str(x)) for x in range(-4, 5, 2)]
    axes.frame("GELU's slope, and 8 levels for it", "input", ticks, [(0, "0"), (1, "1")])
    xs = [-4 + i / 20 for i in range(161)]
    density = [math.exp(-x * x / 2) / math.sqrt(2 * math.pi) for x in xs]
    cdf = [(1 + math.erf(x / math.sqrt(2))) / 2 for x in xs]
    axes.curve([(x, c + x * p) for x, c, p in zip(xs, cdf, density, strict=True)], "plain", False)
    ends = [-4, *borders[1:-1], 4]
    steps = [(x, level) for i, level in enumerate(levels) for x in (ends[i], ends[i + 1])]
    axes.curve(steps, "ours", dots=False)
    rows = record("fewbit_convergence")["rows"]
    losses = {(row["model"], str(row["bits"])): row["losses"] for row in rows}
    d.text(450, 36, "Final loss above torch's, mean over seeds", extra="b")
    bits = ["1", "2", "3", "4", "exact"]
    found = []
    for model, role in (("transformer", "ours"), ("cnn", "also")):
        plain = losses[model, "torch"]
        found.append((model.replace("cnn", "CNN"), None, role, ""))
        for b in bits:
            own = losses[model, b]
            gap = sum(x - y for x, y in zip(own, plain, strict=True)) / len(own)
            name = b if b == "exact" else f"{b} bit{'s' * (b != '1')}"
            found.append((name, max(gap, 0.0), role, f"{gap:+.4f}"))
    largest = max(value for _, value, _, _ in found if value is not None)
    bars(d, 450, 46, 70, 210, found, largest, row=20)
    return d


def saved() -> Drawing:
    names = [
        *(("torch", "plain"), ("torch.utils.checkpoint", "rival")),
        *(("torch.compile, budget 0.2", "rival"), ("saved=8", "ours"), (OURS, "ours")),
    ]
    found = []
    for case in cases("saved"):
        rows, _ = memory_rows(case, names)
        found += [(case, None, "ink", ""), *rows]
    d = Drawing(720, 22 * len(found) + 40, "What autograd keeps between forward and backward")
    d.text(20, 20, "Kept between forward and backward; step: time over torch's", extra="b")
    largest = max(value for _, value, _, _ in found if value is not None)
    bars(d, 20, 30, 190, 340, found, largest)
    return d


def faster_backward() -> Drawing:
    d = Drawing(820, 320, "Speed-up of the two products of a convolution's backward pass")
    axes = Axes(d, 50, 50, 350, 200, (0, 1), (0.6, 20), log_y=True)
    ticks = [(s, f"{s:g}") for s in (0, 0.2, 0.4, 0.6, 0.8, 1)]
    y_ticks = [(s, f"{s} x") for s in (1, 2, 5, 10, 20)]
    axes.frame("One layer: times faster than dense", "sparsity", ticks, y_ticks)
    limit = [(s / 100, 1 / (1 - s / 100)) for s in range(0, 96, 5)]
    axes.curve(limit, "grid", dots=False, dashed=True)
    rows = record("sparse")["rows"]
    for product, role in (("weight", "ours"), ("input", "also")):
        points = [
            (float(row["name"].split()[1]), 1 / row["ratio"])
            for row in rows
            if row["case"].startswith(f"curve: {product}") and row["name"].startswith("sparsity")
        ]
        axes.curve(points, role)
    legend(
        *(d, 50, 306),
        [("ours", "weight's gradient"), ("also", "input's gradient"), ("grid", "limit 1/(1-S)")],
    )
    d.text(450, 36, "A whole step: times faster than torch's", extra="b")
    found = []
    for row in record("sparse_step")["rows"]:
        if row["name"] == "dense":
            found.append((row["case"], None, "ink", ""))
        elif row["name"] != "weight 0.4, input 0.4":
            role = "ours" if row["ratio"] <= 1 else "worse"
            found.append((row["name"], 1 / row["ratio"], role, f"{1 / row['ratio']:.2f}"))
    bars(d, 450, 44, 150, 160, found, 2.0, row=17)
    return d


def coding() -> Drawing:
    """Sizes from the names of the record, which end with them."""
    found = []
    wanted = [
        ("lossless float32", "float32 gradients, every bit"),
        ("lossless bfloat16", "bfloat16 gradients, every bit"),
        ("8-bit codes, shape 1.0", "8-bit codes, generalized normal of shape 1"),
        ("8-bit codes, 85% pruned, 1-4-3", "8-bit codes of a gradient pruned to 0.85"),
    ]
    rows = record("coding")["rows"]
    for case, title in wanted:
        found.append((title, None, "ink", ""))
        for row in rows:
            name, _, size = row["name"].partition(", ")
            if row["case"] == f"{case}, 1 thread, encode" and not size.endswith("fresh"):
                role = "ours" if name.startswith("slimgrad") else "rival"
                found.append((name.replace(" lossless", ""), float(size), role, size))
    d = Drawing(720, 21 * len(found) + 44, "Sizes of coded tensors over the input's")
    d.text(20, 20, "Size over the input's", extra="b")
    bars(d, 20, 30, 150, 420, found, 1.0, row=21)
    return d


def distributed() -> Drawing:
    shown = [
        *(("float32", "plain"), ("fp16 hook", "rival"), ("PowerSGD rank 4", "rival")),
        *(("int8 exchange", "rival"), ("lossless", "ours"), ("fp8", "ours"), ("fp6", "ours")),
        *(("uniform8", "ours"), ("packed8", "ours"), ("fp4", "ours")),
    ]
    rows = {(r["ranks"], r["link"], r["name"]): r for r in record("distributed")["rows"]}
    found = []
    for link in ("100 Mbit/s", "1 Gbit/s", "unlimited"):
        base = rows[2, link, "float32"]["seconds"]
        found.append((f"{link}: float32 takes {base:.2f} s", None, "ink", ""))
        for name, role in shown:
            row = rows.get((2, link, name))
            if row is None:  # not measured on this link
                continue
            share = row["seconds"] / base
            role_now = "worse" if share > 1 and role == "ours" else role
            found.append(
                (name, min(share, 3.0), role_now, f"{share:.2f}, {row['bytes'] / 1e6:.0f} MB")
            )
    d = Drawing(720, 19 * len(found) + 44, "Seconds of an exchange of gradients over float32's")
    d.text(20, 20, "Two ranks: seconds a step over those of float32, bytes a rank sent", extra="b")
    bars(d, 20, 28, 130, 190, found, 1.0, row=19)
    return d


def loss_against_bytes() -> Drawing:
    d = Drawing(860, 330, "Loss against bytes: codecs of DDP, and DiLoCo")
    rows = {r["name"]: r for r in record("distributed_convergence")["rows"] if r["model"] == "GPT"}
    plain = rows["float32"]["losses"]
    axes = Axes(d, 60, 50, 330, 200, (2, 8), (0, 0.5), log_x=True)
    ticks = [(bits, f"{bits:g}") for bits in (2, 3, 4, 6, 8)]
    y_ticks = [(gap, f"{gap:g}") for gap in (0, 0.1, 0.2, 0.3, 0.4, 0.5)]
    axes.frame("GPT, two ranks: loss above float32's", "bits a value sent", ticks, y_ticks)
    rates = [f"rate{rate}" for rate in ("4", "3", "2", "1.5", "1")]
    families = {
        "rate4 to rate1": ("ours", rates),
        "with feedback": ("also", [f"{name} feedback" for name in rates[1:]]),
        "fp8, fp6, fp4": ("third", ["fp8", "fp6", "fp4"]),
        "uniform8, 4, 2": ("rival", ["uniform8", "uniform4", "uniform2"]),
    }
    for role, names in families.values():
        gaps = [statistics.mean(rows[name]["losses"]) - statistics.mean(plain) for name in names]
        places = [(rows[name]["bits"], gap) for name, gap in zip(names, gaps, strict=True)]
        axes.curve(places, role)
    name = "fp4 feedback"
    gap = statistics.mean(rows[name]["losses"]) - statistics.mean(plain)
    d.dot(axes.x(rows[name]["bits"]), axes.y(gap), "third")
    d.text(axes.x(rows[name]["bits"]) - 6, axes.y(gap) + 5, name, "faint", "end", "small")
    legend(d, 40, 318, [(role, words) for words, (role, _) in families.items()], gap=8)
    losses: dict[str, list[float]] = {}
    sent: dict[str, float] = {}
    for row in record("diloco")["rows"]:
        losses.setdefault(row["name"], []).append(row["loss"])
        sent[row["name"]] = row["sent"] / 1e6
    axes = Axes(d, 490, 50, 330, 200, (0.2, 1000), (2.3, 2.9), log_x=True)
    ticks = [(megabytes, f"{megabytes:g}") for megabytes in (0.3, 1, 3, 10, 30, 100, 300)]
    y_ticks = [(loss, f"{loss:g}") for loss in (2.3, 2.5, 2.7, 2.9)]
    axes.frame("GPT, four ranks: held-out loss", "MB that a rank sent", ticks, y_ticks)
    shown = {"DDP": "plain", "DiLoCo, every 20": "ours", "DiLoCo, every 50": "also"}
    for words, role in shown.items():
        kind, _, every = words.partition(", ")
        names = [name for name in losses if name.startswith(kind) and name.endswith(every)]
        axes.curve([(sent[name], statistics.mean(losses[name])) for name in names], role)
    for every, role in ((20, "ours"), (50, "also")):
        name = f"SparseLoCo topk, every {every}"
        x, y = axes.x(sent[name]), axes.y(statistics.mean(losses[name]))
        d.dot(x, y, role)
        d.text(x + 8, y + 4, "topk", "faint", extra="small")
    legend(d, 490, 318, [(role, words) for words, role in shown.items()])
    return d


# ---- for the page of measurements ----------------------------------------------------------------


def time_to_accuracy() -> Drawing:
    d = Drawing(720, 330, "Test accuracy over seconds of training, all settings")
    axes = Axes(d, 50, 40, 640, 210, (0, 200), (0.25, 0.7))
    ticks = [(s, str(s)) for s in range(0, 201, 25)]
    axes.frame(
        "Test accuracy", "seconds of training", ticks, percent_ticks(0.3, 0.4, 0.5, 0.6, 0.7)
    )
    roles = ["plain", "ours", "rival", "also", "third", "worse"]
    curves = record("time_to_accuracy")["curves"]
    accuracy_over_seconds(axes, list(zip(curves, roles, strict=True)))
    names = list(zip(roles, curves, strict=True))
    legend(d, 50, 304, names[:3])
    legend(d, 50, 322, names[3:])
    return d


def demo() -> Drawing:
    """Loss and accuracy over seconds of the demo's network, plainly and with sparse products."""
    runs: dict[int, dict] = {}
    for text in (RESULTS / "glyphs_sparse.jsonl").open():
        line = json.loads(text)
        if line["kind"] == "config":
            runs[line["run"]] = {"name": line["gradients"], "lines": []}
        elif line["kind"] == "epoch":
            runs[line["run"]]["lines"].append(line)
    shown = {"none": ("plain", "torch"), "sparse:0.9:0": ("ours", "weight 0.9")}
    d = Drawing(720, 270, "Loss and test accuracy of the demo's network over seconds of training")
    ticks = [(s, str(s)) for s in (0, 5, 10, 15, 20, 25)]
    loss = Axes(d, 50, 40, 280, 150, (0, 25), (0.01, 3), log_y=True)
    loss.frame("Training loss", "seconds", ticks, [(v, str(v)) for v in (0.01, 0.1, 1)])
    test = Axes(d, 410, 40, 280, 150, (0, 25), (0.5, 1))
    test.frame("Test accuracy", "seconds", ticks, percent_ticks(0.6, 0.8, 1))
    for run in runs.values():
        if run["name"] in shown:
            role = shown[run["name"]][0]
            seconds = [sum(x["seconds"] for x in run["lines"][: i + 1]) for i in range(4)]
            for axes, what in ((loss, "loss"), (test, "test_accuracy")):
                axes.curve(list(zip(seconds, (x[what] for x in run["lines"]), strict=True)), role)
    legend(d, 50, 256, shown.values())
    return d


def language_models() -> Drawing:
    found = []
    for row in record("language_models")["rows"]:
        if row["setting"] == "plain":
            found.append((row["model"].upper(), None, "ink", ""))
        last = sum(run["last"] for run in row["runs"]) / len(row["runs"])
        role = "plain" if row["setting"] == "plain" else "ours"
        found.append((row["setting"], last, role, f"{last:.2f}"))
    d = Drawing(720, 19 * len(found) + 44, "Loss of two small language models by setting")
    d.text(
        20, 20, "Loss over the last five of 60 steps, mean of three seeds (at first 7)", extra="b"
    )
    largest = max(value for _, value, _, _ in found if value is not None)
    bars(d, 20, 28, 250, 380, found, largest, row=19)
    return d


PICTURES = {
    drawn.__name__: drawn
    for drawn in (
        *(front, choose, neural_gradient, activations, saved, faster_backward, coding),
        *(distributed, loss_against_bytes, time_to_accuracy, demo, language_models),
    )
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="draw nothing, compare")
    check = parser.parse_args().check
    FIGURES.mkdir(exist_ok=True)
    differ = []
    for name, draw in PICTURES.items():
        path, text = FIGURES / f"{name}.svg", str(draw())
        if not path.exists() or path.read_text() != text:
            differ.append(name)
            if not check:
                path.write_text(text)
    print(f"{'differ from' if check else 'drawn anew from'} their records: {differ or 'none'}")
    return int(check and bool(differ))


if __name__ == "__main__":
    sys.exit(main())
