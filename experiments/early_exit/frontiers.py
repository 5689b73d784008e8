"""The paper's experiments on early exits, from trace to figure.

    python experiments/early_exit/frontiers.py vision   [--out docs/img] [--json FILE]
    python experiments/early_exit/frontiers.py language [--out docs/img] [--json FILE]
    python experiments/early_exit/frontiers.py large --traces DIR   # of vision/large_train.py

Every trace is cut in halves by ``numpy.random.default_rng(0).permutation``: the first is fitted to,
the second measured on. Each is played twice: against the label, and against the backbone, whose own
answer then counts as right (the paper's metric). Latency is counted operations, 1 being the network
without ramps. Every number of README.md is printed by these two commands.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ttamer.evaluation.frontiers import Resampled
from ttamer.evaluation.results import interval
from ttamer.fitting.fits import fit
from ttamer.reporting.figures import (
    GO as GO_COLOUR,
    INK,
    MUTED,
    OURS as STOP_COLOUR,
    new_figure,
    plain_axes,
)
from ttamer.show.curves import style
from ttamer.show.tables import table
from ttamer.stats.envelope import lower_envelope
from ttamer.trace.trace import Trace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import traces
from bench import SUFFIXES, bench_trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bench import PairwiseComparison
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from ttamer.evaluation.frontiers import Frontier

GROUPS = {
    "vision": (("vgg11-cifar10", "vgg13-cifar10", "vgg16-cifar10"),),
    "large": (
        ("vgg11-large-cifar10", "vgg13-large-cifar10"),
        ("vgg16-large-cifar10", "resnet18-large-cifar10"),
    ),
    "language": (
        ("minilm-imdb", "mpnet-imdb", "smollm2-imdb"),
        ("minilm-amazon", "mpnet-amazon", "smollm2-amazon"),
    ),
}
"""Traces by group, in the rows in which they are drawn."""
PAPER = "#ffffff"
TARGETS = {"label": "label", "backbone": "last"}
"""What counts as right, as this page calls it and as the cascade does."""
OURS, AS_WRITTEN = "ttamer", "paper"
THRESHOLDS = ("threshold", "threshold-per-exit", "margin", "entropy")
FAMILIES = (OURS, AS_WRITTEN, *THRESHOLDS, "patience")
BANDED = (AS_WRITTEN, OURS)
"""The families drawn with their 95% intervals."""
MORE_ERROR = (0.0, 0.005, 0.01, 0.02)
DROP, CONFIDENCE = 0.01, 0.95
"""What certified settings promise: error at most this far above the network's, and how surely."""
HELD_OUT = (0.3, 0.5, 0.8)
"""Shares of the known rows that are held out of the fit, to certify on."""
CLAIMED = {"vision": 0.45, "large": 0.45, "language": 0.10}
"""Latencies of which the paper says what they cost in accuracy."""
LOOKS: dict[str, dict[str, Any]] = {
    "patience": {"color": "#8d857a", "lw": 1.4, "zorder": 2},
    "threshold": {"color": "#8e5572", "lw": 1.6, "zorder": 4},
    "threshold-per-exit": {"color": "#6b7d3a", "lw": 1.4, "ls": (0, (3, 1.5)), "zorder": 4},
    "margin": {"color": "#3d6fa5", "lw": 1.4, "zorder": 5},
    "entropy": {"color": "#3d6fa5", "lw": 1.4, "ls": (0, (3, 1.5)), "zorder": 5},
    AS_WRITTEN: {"color": GO_COLOUR, "lw": 1.8, "zorder": 3},
    OURS: {"color": STOP_COLOUR, "lw": 2.4, "zorder": 6},
}
_WORDS = {
    "vgg11": "VGG-11", "vgg13": "VGG-13", "vgg16": "VGG-16", "cifar10": "CIFAR-10",
    "vgg11-large": "VGG-11 at 224", "vgg13-large": "VGG-13 at 224", "vgg16-large": "VGG-16 at 224",
    "resnet18-large": "ResNet-18 at 224",
    "minilm": "MiniLM", "mpnet": "MPNet", "smollm2": "SmolLM2-135M",
    "imdb": "IMDB", "amazon": "Amazon",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Played:
    """All families on one trace, under one target."""

    trace: str
    target: str
    frontier: Frontier
    comparisons: tuple[PairwiseComparison, ...]
    bands: Bands

    @property
    def title(self) -> str:
        """The network and the data, as people write them."""
        network, _, data = self.trace.rpartition("-")
        return ", ".join(_WORDS.get(part, part) for part in (network, data) if part)

    @property
    def best_threshold(self) -> str:
        """The threshold of the least area on the test rows: chosen there, to its advantage."""
        kinds = [family for family in THRESHOLDS if family in self.frontier.families]
        return min(kinds, key=self.frontier.area)

    def lines(self) -> list[dict[str, Any]]:
        """Return one line of numbers for each family."""
        found, best = self.frontier, self.frontier.area(self.best_threshold)
        comparisons = {comparison.rival: comparison for comparison in self.comparisons}
        lines = []
        for family in found.families:
            comparison = comparisons.get(family)
            lines.append({
                "trace": self.trace, "target": self.target, "family": family,
                "latency": {f"+{100 * m:g}": found.cost_at(family, m) for m in MORE_ERROR},
                "lowest_error": min(found.curve(family)[1]),
                "area": found.area(family),
                "area_to_best_threshold": found.area(family) / best - 1,
                "gain_of_ours": None if comparison is None else comparison.gain,
                "gain_interval": None if comparison is None else list(comparison.interval),
                "verdict": None if comparison is None else comparison.verdict,
            })  # fmt: skip
        return lines

    def more_error(self, family: str, latency: float) -> float | None:
        """Return how much more than the full network a family errs at a latency."""
        error = self.frontier.error_at(family, latency)
        return None if error is None else error - self.frontier.reference.error


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and draw one group."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("group", choices=GROUPS)
    parser.add_argument("--out", type=Path, default=Path("docs/img"), help="folder of the figures")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers here")
    parser.add_argument("--traces", type=Path, metavar="FOLDER",
                        help="read the traces from here, not from the package")  # fmt: skip
    parser.add_argument("--resamples", type=int, default=1000, metavar="N",
                        help="of the test rows, for the intervals (default 1000)")  # fmt: skip
    parser.add_argument("--splits", type=int, default=8, metavar="N",
                        help="half splits for certified settings (default 8)")  # fmt: skip
    args = parser.parse_args(arguments)
    rows = {}
    for name in (name for row in GROUPS[args.group] for name in row):
        trace = find(name, args.traces)
        if trace is None:
            print(f"{name}: left out, for there is no such trace in {args.traces or 'the package'}")
        else:
            rows[name] = trace
    if not rows:
        sys.exit("nothing to draw")
    done = {target: [play(name, trace, target, resamples=args.resamples)
                     for name, trace in rows.items()] for target in TARGETS}  # fmt: skip
    for played in done.values():
        for each in played:
            print(f"\n{said(each)}")
    every = [each for played in done.values() for each in played]
    print(f"\n{LEGEND}\n\n{counted(every)}\n\n{claim(args.group, every)}\n")
    print(f"{promised(rows, args.splits)}\n")
    args.out.mkdir(parents=True, exist_ok=True)
    for target, played in done.items():
        path = args.out / f"early-exit-{args.group}-{target}.png"
        save(draw(played, GROUPS[args.group]), path)
        print(f"wrote {path}")
    if args.json:
        lines = [line for each in every for line in each.lines()]
        args.json.write_text(json.dumps(lines, indent=1) + "\n", "utf-8")


def find(name: str, folder: Path | None = None) -> Trace | None:
    """Return a trace that comes with the package, or one of a folder; None where there is none."""
    if folder is None:
        return traces.load(name) if name in traces.names() else None
    paths = (folder / f"{name}{suffix}" for suffix in SUFFIXES)
    path = next((path for path in paths if path.exists()), None)
    return None if path is None else Trace.read(path)


def play(name: str, trace: Trace, target: str, *, resamples: int) -> Played:
    """Fit every family on one half under a target, and measure it on the other."""
    spec = dataclasses.replace(trace.spec, target=TARGETS[target])
    aimed = dataclasses.replace(trace, spec=spec)
    found = bench_trace(name, aimed, families=FAMILIES, resamples=resamples)
    return Played(
        name, target, found.frontier, found.comparisons, Bands.of(found.frontier, resamples)
    )


@dataclass(frozen=True, eq=False)
class Bands:
    """95% intervals over resampled test rows, of envelopes at the same latencies."""

    latency: NDArray[np.float64]
    error: dict[str, NDArray[np.float64]]
    """By family, shape (2, latencies): the ends of the interval of its error."""
    gap: dict[str, NDArray[np.float64]]
    """Likewise in points, of the difference to one threshold on the same resampled rows."""

    @classmethod
    def of(cls, frontier: Frontier, resamples: int) -> Bands:
        """Resample the rows that a frontier was measured on."""
        families = [name for name in (*BANDED, "threshold") if name in frontier.families]
        drawn = Resampled.of(frontier, families, resamples=max(resamples, 2))
        at = np.linspace(*frontier.cost_range, 120)
        errors = {
            family: np.stack([_envelope_at(c, e, at) for c, e in zip(*both, strict=True)])
            for family, both in drawn.families.items()
        }
        banded = [family for family in BANDED if family in errors]
        return cls(
            at,
            {family: interval(errors[family], axis=0) for family in banded},
            {family: 100 * interval(errors[family] - errors["threshold"], axis=0)
             for family in banded},
        )  # fmt: skip


def _envelope_at(
    costs: NDArray[np.float64], errors: NDArray[np.float64], at: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the error of a lower envelope at some costs; NaN below its least cost."""
    kept = lower_envelope(costs, errors)
    return np.interp(at, costs[kept], errors[kept], left=np.nan)


# Numbers

LEGEND = """\
Latency, 100% being the network without ramps, at which a family errs at most that many points more
than the full network; "-": no setting of its own does, only the network itself. Area: mean error
over all latencies, two settings mixed where it pays. To best: area over that of the best of the
thresholds (marked *), chosen on the test rows. Gain of ttamer: how much smaller its area is than
this family's, with the 95% interval over resampled test rows."""


def said(played: Played) -> str:
    """Return one trace's numbers as a table under a heading."""
    found, rows = played.frontier, []
    for line in played.lines():
        cells = [share(cost, 1) for cost in line["latency"].values()]
        low_high = line["gain_interval"]
        mark = " *" if line["family"] == played.best_threshold else ""
        rows.append([
            line["family"] + mark, *cells, share(line["lowest_error"]), share(line["area"]),
            f"{line['area_to_best_threshold']:+.1%}",
            "" if low_high is None else f"{line['gain_of_ours']:+.1%}",
            "" if low_high is None else f"{low_high[0]:+.1%} to {low_high[1]:+.1%}",
            line["verdict"] or "",
        ])  # fmt: skip
    error, count = found.reference.error, found.test_rows
    spread = f" (± {100 * 1.96 * (error * (1 - error) / count) ** 0.5:.2f})" if error else ""
    head = ["family", *(f"+{100 * more:g}" for more in MORE_ERROR), "lowest", "area", "to best",
            "gain of ttamer", "95%", ""]  # fmt: skip
    missing = "".join(f"\n  without {family}: {why}" for family, why in found.left_out.items())
    return (
        f"{played.trace}, error against the {played.target}: {found.fit_rows} rows to fit, "
        f"{count} to test; full network {error:.2%}{spread}; first exit {found.cheapest[1]:.2%} "
        f"at {found.cheapest[0]:.1%}\n\n{table(head, rows)}{missing}"
    )


def counted(played: Sequence[Played]) -> str:
    """Return how often ours wins in area, by family, over some traces and targets."""
    verdicts: dict[str, list[str]] = {}
    for each in played:
        for comparison in each.comparisons:
            verdicts.setdefault(comparison.rival, []).append(comparison.verdict)
            if comparison.rival == each.best_threshold:
                verdicts.setdefault("best threshold", []).append(comparison.verdict)
    order = [name for name in (*FAMILIES, "best threshold") if name in verdicts]
    rows = [[name, *(str(verdicts[name].count(v)) for v in ("win", "tie", "loss"))]
            for name in order]  # fmt: skip
    return table(["ttamer's area against", "wins", "ties", "losses"], rows)


def claim(group: str, played: Iterable[Played]) -> str:
    """Return what the paper says about a group, and what comes out here."""
    latency = CLAIMED[group]
    if group == "language":
        what = 'The paper: "latency is reduced by up to 90%" (text, against the backbone).'
    else:
        what = (
            'The paper: "latency is reduced to 45% of the original, while sacrificing less than 7%'
            '\naccuracy" (VGG-13, Auburn video, against the backbone).'
        )
    families, rows = (AS_WRITTEN, OURS, *THRESHOLDS), []
    for each in played:
        low = each.frontier.cheapest[0]
        cells = [points(each.more_error(family, latency)) if family in each.frontier.families
                 else "" for family in families]  # fmt: skip
        if latency < low:
            cells = [f"the first exit is at {low:.1%}", *[""] * (len(families) - 1)]
        rows.append([f"{each.trace}, {each.target}", *cells])
    head = [f"points of error more at {latency:.0%} latency", *families]
    return f"{what}\n\n{table(head, rows)}"


def promised(traces: dict[str, Trace], splits: int) -> str:
    """Return what certified settings cost over half splits: ours, and one threshold.

    Of the half that is known, beliefs are fitted to a part and certified on the rest. Thresholds
    are not fitted, and are certified on the whole half, by the same test.
    """
    ways: dict[str, dict[str, Any]] = {
        f"{share(held, 0)} held out": {"hold_out": held} for held in HELD_OUT
    }
    ways["threshold, all rows"] = {"belief": "threshold"}
    rows = []
    for name, trace in traces.items():
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for split in range(splits):
            order = np.random.default_rng(split).permutation(len(trace))
            known, test = (trace.take(part) for part in np.array_split(order, 2))
            for way, options in ways.items():
                ladder = fit(known, **options)
                played = ladder.for_drop(DROP, against="last", confidence=CONFIDENCE).play(test)
                found[way].append(_latency_and_drop(played.asked, played.answer, test))
        rows.append([name, *(_mean_cell(each) for each in found.values())])
    head = [f"certified: at most +1 point, 95%; {splits} splits", *ways]
    what = "Latency, points more than the network, and how often more than one, on the other half."
    return f"{what}\n\n{table(head, rows)}"


def _latency_and_drop(
    asked: NDArray[Any], answer: NDArray[Any], test: Trace
) -> tuple[float, float]:
    """Return the mean latency of a rule, and its error less that of the network."""
    wrong = test.loss > 0
    drop = wrong[np.arange(len(test)), answer].mean() - wrong[:, -1].mean()
    return float((asked @ test.spec.costs).mean()), float(drop)


def _mean_cell(found: list[tuple[float, float]]) -> str:
    """Return means over splits, with the standard error of the latency."""
    latency, drop = np.array(found).T
    spread = latency.std(ddof=1) / len(latency) ** 0.5 if len(latency) > 1 else 0.0
    over = int((drop > DROP).sum())
    return f"{share(latency.mean(), 1)} ± {share(spread, 1)}, {points(drop.mean())}, {over}"


def share(value: float | None, digits: int = 2) -> str:
    """Return a share in percent; "-" where there is none."""
    return "-" if value is None else f"{100 * value:.{digits}f}%"


def points(value: float | None) -> str:
    """Return a difference of shares in points; "-" where there is none."""
    return "-" if value is None else f"{100 * value:+.2f}"


# Figures


def save(figure: Figure, path: Path) -> None:
    """Write a small PNG: few colours are drawn, so a palette holds them."""
    from PIL import Image

    whole = io.BytesIO()
    with style():
        figure.savefig(whole, format="png", dpi=120)
    colours = Image.open(whole).convert("RGB").quantize(128, dither=Image.Dither.NONE)
    colours.save(path, optimize=True)


def draw(played: Sequence[Played], layout: Sequence[Sequence[str]]) -> Figure:
    """Draw one target: a frontier for each trace, and below it what sets families apart.

    ``layout`` is the rows of traces; one that was not played leaves no gap.
    """
    found = {each.trace: each for each in played}
    rows = [[found[name] for name in row if name in found] for row in layout]
    rows = [row for row in rows if row]
    columns = max(map(len, rows))
    with style():
        figure = new_figure(max(3.6 * columns, 6.4), 4.4 * len(rows) + 0.5)
        axes = figure.subplots(
            2 * len(rows), columns, squeeze=False, sharex=True, sharey="row",
            height_ratios=[2.3, 1] * len(rows),
        )  # fmt: skip
        figure.get_layout_engine().set(h_pad=0.06, w_pad=0.12)
        for i, row in enumerate(rows):
            above, below = axes[2 * i], axes[2 * i + 1]
            for column in range(columns):
                if column < len(row):
                    _frontier(row[column], above[column])
                    _apart(row[column], below[column])
                else:
                    above[column].set_axis_off()
                    below[column].set_axis_off()
            _ranges(row, above[0], below[0])
        for each in axes[-1]:
            each.set_xlabel("latency, of the full network's", color=MUTED, fontsize=9)
        _legend(figure, axes)
    return figure


def _frontier(played: Played, axes: Axes) -> None:
    """Lower envelopes, ours with its settings, and the full network."""
    plain_axes(axes, grid="both")
    found = played.frontier
    for family, look in LOOKS.items():
        if family not in found.families:
            continue
        costs, errors = found.curve(family)
        kept = lower_envelope(costs, errors)
        x, y = np.array(costs)[kept], np.array(errors)[kept]
        dots = {"marker": "o", "ms": 4, "mec": PAPER, "mew": 0.6} if family == OURS else {}
        axes.plot(x, y, label=family, solid_joinstyle="round", **look, **dots)
    _shade(axes, played.bands.latency, played.bands.error)
    axes.axhline(found.reference.error, color=MUTED, lw=0.8, ls=(0, (1, 3)), zorder=1)
    axes.plot(
        [1.0], [found.reference.error], "o", ms=8, mfc="none", mec=INK, mew=1.6, ls="none",
        zorder=8, label="full network", clip_on=False,
    )  # fmt: skip
    axes.set_title(played.title, color=INK, fontsize=10.5, loc="left")


def _apart(played: Played, axes: Axes) -> None:
    """Points of error that families have more than one threshold for all, at the same latency."""
    plain_axes(axes, grid="both")
    found = played.frontier
    at = np.linspace(*found.cost_range, 400)
    for family, look in LOOKS.items():
        if family in found.families:
            gaps = [_gap(found, family, cost) for cost in at]
            axes.plot(at, gaps, label=family, **look)
    _shade(axes, played.bands.latency, played.bands.gap)


def _shade(axes: Axes, at: NDArray[np.float64], bands: dict[str, NDArray[np.float64]]) -> None:
    """Draw the intervals of some families."""
    for family, (low, high) in bands.items():
        axes.fill_between(at, low, high, color=LOOKS[family]["color"], alpha=0.22, lw=0, zorder=1.5)


def _gap(found: Frontier, family: str, cost: float) -> float:
    one, other = found.error_at(family, cost), found.error_at("threshold", cost)
    return np.nan if one is None or other is None else 100 * (one - other)


def _ranges(row: Sequence[Played], above: Axes, below: Axes) -> None:
    """Ticks and words; the lower axes show whole what is neither patience nor as written."""
    error = {"label": "error", "backbone": "disagreement with\nthe full network"}
    above.set_ylabel(error[row[0].target], color=MUTED, fontsize=9)
    below.set_ylabel("points more than\none threshold", color=MUTED, fontsize=8)
    for axis in (above.xaxis, above.yaxis):
        axis.set_major_formatter(lambda value, _: f"{100 * value:.4g}%")
    above.set_xlim(-0.02, 1.05)
    above.set_xticks([0, 0.25, 0.5, 0.75, 1])
    errors = [error for each in row for family in each.frontier.families
              for error in each.frontier.curve(family)[1]]  # fmt: skip
    errors += [each.frontier.reference.error for each in row]
    low, high = min(errors), max(errors)
    above.set_ylim(max(low - 0.1 * (high - low), -0.02 * high), high + 0.04 * (high - low))
    strong = [gap for each in row for family in each.frontier.families
              if family in (OURS, *THRESHOLDS)
              for cost in np.linspace(*each.frontier.cost_range, 100)
              if not np.isnan(gap := _gap(each.frontier, family, cost))]  # fmt: skip
    most = max(max(map(abs, strong)), 0.5)
    below.set_ylim(-1.15 * most, 2 * most)


def _legend(figure: Figure, axes: Any) -> None:
    handles = {}
    for each in axes.flat:
        for handle, label in zip(*each.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    order = [name for name in (*FAMILIES, "full network") if name in handles]
    figure.legend(
        [handles[name] for name in order], order, loc="outside lower center", ncols=len(order),
        frameon=False, fontsize=8.5, handlelength=1.6, columnspacing=1.1, labelcolor=INK,
    )  # fmt: skip


if __name__ == "__main__":
    main()
