"""Which law neural gradients follow (Table 1 of the lognormal paper and its appendix)."""

from __future__ import annotations

import statistics

from scipy import stats

from slimgrad.report.runs import Probe, Run

from .records import Records, table

FAMILIES = ("lognormal", "gennorm", "loglaplace", "laplace", "cauchy", "normal", "uniform")
NETWORKS = {
    "plain_seed1": "ResNet-20",
    "probe_resnet18": "ResNet-18",
    "probe_vgg11": "VGG-11",
    "probe_vgg11_no_norm": "VGG-11 without batch normalisation",
    "probe_densenet": "DenseNet",
    "probe_mlp": "MLP",
    "probe_gpt": "GPT on text",
}


def _distance(probe: Probe, family: str) -> float | None:
    fit = probe.fitted()["families"].get(family)
    return fit["ks"] if fit else None


def distances(run: Run, family: str, step: int | None = None) -> list[float]:
    found = [
        _distance(probe, family)
        for probe in run.probes("neural_gradient")
        if step in (None, probe.step)
    ]
    return [value for value in found if value is not None]


SAMPLE = 200  # values; with as many as a gradient has, every law is refused


def _summary(values: list[float]) -> str:
    if not values:
        return "-"
    middle = statistics.median(values)
    return f"{middle:.2f} ({stats.kstwo.sf(middle, SAMPLE):.1g})"


def winners(run: Run) -> dict[str, int]:
    """How many gradients each family fits best."""
    wins: dict[str, int] = {}
    for probe in run.probes("neural_gradient"):
        known = {f: d for f in FAMILIES if (d := _distance(probe, f)) is not None}
        if known:
            best = min(known, key=known.get)
            wins[best] = wins.get(best, 0) + 1
    return wins


def section(records: Records) -> str:
    found = {name: title for name, title in NETWORKS.items() if name in records}
    rows = []
    wins: dict[str, int] = {}
    for name, title in found.items():
        run = records[name]
        rows.append([title, *(_summary(distances(run, family)) for family in FAMILIES)])
        for family, count in winners(run).items():
            wins[family] = wins.get(family, 0) + count
    text = [
        "### Which law neural gradients follow",
        "The lognormal paper's Table 1. Kolmogorov-Smirnov distance between the magnitudes of a "
        "layer's gradient, without zeros, and the maximum-likelihood member of each family: the "
        "median over layers and steps (`--probe-at`), and in brackets the probability that "
        f"{SAMPLE} values drawn from the law itself would be as far from it. (With all of a "
        "gradient's thousands of values, every family is rejected in every layer, so p-values are "
        "only useful for small samples; the paper does not say how large its samples were.)",
        table(["network", *FAMILIES], rows),
    ]
    if "plain_seed1" in records:
        run = records["plain_seed1"]
        steps = sorted({probe.step for probe in run.probes("neural_gradient")})
        text += [
            "Over the training of the ResNet-20, medians over layers:",
            table(
                ["step", *FAMILIES],
                [
                    [
                        step,
                        *(f"{statistics.median(distances(run, f, step)):.2f}" for f in FAMILIES),
                    ]
                    for step in steps
                ],
            ),
        ]
    text.append(_verdict(records, found, wins))
    return "\n\n".join(text)


def _verdict(records: Records, found: dict[str, str], wins: dict[str, int]) -> str:
    def median(name: str, family: str) -> float:
        return statistics.median(distances(records[name], family))

    total = sum(wins.values())
    order = sorted(wins, key=wins.get, reverse=True)
    counts = ", ".join(f"{family} {wins[family]}" for family in order)
    agree = [n for n in found if median(n, "lognormal") < median(n, "normal")]
    better = [t for n, t in found.items() if median(n, "gennorm") < median(n, "lognormal")]
    return (
        f"**Agrees**: the lognormal law is much nearer than the normal law in {len(agree)} of "
        f"{len(found)} networks. **Not in the paper**: the generalized normal law is nearer than "
        f"the lognormal, by the median, in {len(better)} of {len(found)} networks"
        + (f" ({', '.join(better)})" if better else "")
        + f". The nearest family of {total} gradients: {counts}. **What to do**: assume no law if "
        "the gradient itself is available. By default thresholds, formats and scales are computed "
        'from its histogram (`method="empirical"`).'
    )
