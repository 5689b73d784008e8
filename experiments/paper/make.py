"""The figures and tables of the T-Tamer paper, on the nearest data that there are: ``make paper``.

    python experiments/paper/make.py [--only 1,3,t1] [--to FOLDER]
    ttamer theory figure 3               # one of them

Writes one file per figure and ``index.md``: what the paper says, what comes out here, the command.
Needs the extras io and plot. The paper's traces (videos on VGG, reviews on BERT and GPT-2) are not
public. Figure 4 uses CIFAR-10 on exits of VGG, Figure 5 reviews of IMDB and Amazon on exits of two
sentence encoders (the size of BERT) and a small language model (in place of GPT-2). As in the
paper, an error is a difference from the last exit.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import ttamer as tt
from ttamer.baselines import fit_families
from ttamer.fitting.replay import full_cost, paid
from ttamer.reporting import save_figure
from ttamer.show.graph import draw_path
from ttamer.theory import EXPERIMENTS, contract, experiment, impossibility

sys.path.insert(0, str(Path(__file__).parents[1]))
import traces
from paper.contraction import draw_contraction
from paper.if_stop import draw_if_stop

if TYPE_CHECKING:
    from numpy.typing import NDArray

PROBLEMS = Path(__file__).parents[2] / "examples" / "problems"
VISION = ("vgg11-cifar10", "vgg13-cifar10", "vgg16-cifar10")
LANGUAGE = ("mpnet-imdb", "mpnet-amazon", "smollm2-imdb", "smollm2-amazon")
COLOURS = {
    "paper, as written": "#c8553d",
    "paper, loss of the last exit 0": "#e3a72f",
    "one threshold": "#8a8f98",
    "ttamer": "#1f5fa8",
}
Row = tuple[str, str]  # what the paper says, what comes out here
Curve = tuple["NDArray[np.float64]", "NDArray[np.float64]"]  # shares of the full cost, errors


def problem(name: str) -> tt.Problem:
    """Read an example."""
    return tt.Problem.from_file(PROBLEMS / f"{name}.json")


def topologies(folder: Path) -> Row:
    """Figure 1: the directed line, its transitive closure, and the directed tree."""
    for name in ("line", "skip", "tree"):
        tt.solve(problem(name), 0.9).plot(folder / f"figure-1-{name}.svg")
    return "three topologies", "figure-1-line.svg, figure-1-skip.svg, figure-1-tree.svg"


def pipeline(folder: Path) -> Row:
    """Figure 2: one input on its way through the cascade."""
    turn = tt.solve(problem("line"), 0.95).session()
    while turn.next is not None:
        turn.observe(0 if turn.asked else 1)  # the first answer is poor, the second good
    turn.plot(folder / "figure-2.svg")
    return (
        "query, observe, stop or continue, return",
        f"figure-2.svg: one session asks {', '.join(turn.asked)} and returns {turn.answer}",
    )


def contraction(folder: Path) -> Row:
    """Figure 3: a tree contracted node by node."""
    tree = problem("tree")
    steps = contract(tree, 0.5)
    (folder / "figure-3.svg").write_text(draw_contraction(tree, steps), "utf-8")
    return (
        "subtrees become single nodes, until a line is left, then one node",
        f"figure-3.svg: {len(steps)} steps, the last of which is one node",
    )


def against_the_last(trace: tt.Trace) -> tt.Trace:
    """Return a trace in which an error is a difference from the last exit."""
    return trace.with_spec(dataclasses.replace(trace.spec, target="last"))


def measured(rules: Sequence[object], rows: tt.Trace, full: float) -> Curve:
    """Return the shares of the full cost and the errors of rules, cheapest first."""
    every, points = np.arange(len(rows)), []
    for rule in rules:
        played = rule.play(rows)  # type: ignore[attr-defined]
        points.append(
            (paid(played.asked, rows).mean() / full, rows.loss[every, played.answer].mean())
        )
    costs, errors = np.array(sorted(points)).T
    return costs, np.minimum.accumulate(errors)


def curves(name: str) -> dict[str, Curve]:
    """Fit the policies to one part of a trace, and measure them on the other."""
    fit, test = (against_the_last(traces.load(name, part)) for part in ("fit", "test"))
    full = full_cost(test)
    paper = tt.fit(fit, belief="markov")
    solved = paper.fitted.tables.ladder
    *others, last = solved.problem.nodes
    nodes = (*others, tt.Node(last.name, np.zeros_like(last.losses)))
    certain = tt.Problem(solved.problem.moves, nodes, solved.problem.edges)
    ladder = tt.solve_ladder(certain, solved.tradeoffs)
    tables = dataclasses.replace(paper.fitted.tables, ladder=ladder)
    with_zero = dataclasses.replace(paper, fitted=dataclasses.replace(paper.fitted, tables=tables))
    settings, _ = fit_families(fit, ["threshold"])
    return {
        "paper, as written": measured(list(paper), test, full),
        "paper, loss of the last exit 0": measured(list(with_zero), test, full),
        "one threshold": measured([s.rule for s in settings["threshold"]], test, full),
        "ttamer": measured(list(tt.fit(fit)), test, full),
    }


def frontiers(folder: Path, number: str, names: Sequence[str], more: float, theirs: str) -> Row:
    """Draw error against cost for several traces."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(names), figsize=(3.6 * len(names), 3.6))
    facts = []
    for ax, name in zip(axes, names, strict=True):
        for label, (costs, errors) in (result := curves(name)).items():
            ax.step(costs, 100 * errors, where="post", label=label, color=COLOURS[label])
        ax.set(title=name, xlabel="share of the full cost", xlim=(0, 1.02), ylim=(0, 30))
        ax.grid(alpha=0.3)
        shares = {
            label: min(costs[errors <= more], default=1.0)
            for label, (costs, errors) in result.items()
        }
        facts.append(f"{name} " + ", ".join(f"{share:.0%}" for share in shares.values()))
    axes[0].set_ylabel("difference from the last exit, %")
    axes[0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(folder / f"figure-{number}.png", dpi=110)
    plt.close(figure)
    ours = (
        f"figure-{number}.png; cost at {100 * more:g} points ({'; '.join(COLOURS)}): "
        + " · ".join(facts)
    )
    return theirs, ours


def vision(folder: Path) -> Row:
    """Figure 4: frontiers on images."""
    theirs = "VGG-13 on videos: 45% of the latency at less than 7 points"
    return frontiers(folder, "4", VISION, 0.07, theirs)


def language(folder: Path) -> Row:
    """Figure 5: frontiers on reviews."""
    theirs = "BERT and GPT-2: up to 90% less latency, the error is read off a curve"
    return frontiers(folder, "5", LANGUAGE, 0.07, theirs)


def hypernodes(folder: Path) -> Row:
    """Figure 6: each of several lines as one node of random loss and cost."""
    lines = problem("multi-line")
    steps = contract(lines, 0.9)
    (folder / "figure-6.svg").write_text(draw_contraction(lines, steps), "utf-8")
    whole = [step for step in steps if lines.parent_edge(lines.number[step.node]).source is None]
    index = ", ".join(f"{step.node} {float(step.index[0]):.4g}" for step in whole)
    return (
        "a line's cost counts as the inspection cost of one node",
        f"figure-6.svg: one node per line, of index {index}",
    )


def thresholds(folder: Path) -> Row:
    """Figure 7: exits of a network, and a threshold."""
    rows = against_the_last(traces.load("mpnet-imdb", "test"))
    sure = (rows.confidence >= 0.95).cumsum(axis=1) > 0  # at or before each exit
    steps = []
    for exit_, name in enumerate(rows.names):
        cost = float(paid(np.arange(len(rows.names))[np.newaxis] <= exit_, rows.take([0])).mean())
        lines = [name, f"cost {cost:.3g}", f"differs {rows.loss[:, exit_].mean():.1%}"]
        lines.append(
            f"left by here {sure[:, exit_].mean() if exit_ + 1 < len(rows.names) else 1:.0%}"
        )
        steps.append((lines, "used"))
    draw_path(steps, "an input leaves at the first exit of confidence 0.95").written(
        folder / "figure-7.svg"
    )
    return (
        "ramps on a backbone; leave where the confidence passes a threshold",
        f"figure-7.svg: {len(rows.names)} exits of mpnet on IMDB, threshold 0.95",
    )


def if_stop(folder: Path) -> Row:
    """Figure 8: if-stop matrices on synthetic losses."""
    experiments = [experiment(name) for name in EXPERIMENTS]
    save_figure(draw_if_stop(experiments), folder / "figure-8.png")
    excess = ", ".join(f"{one.name} {abs(one.excess_with_recall):.2%}" for one in experiments)
    ours = f"figure-8.png; best threshold with recall above the optimum: {excess}"
    return "no fixed threshold is optimal", ours


def impossible(folder: Path) -> Row:
    """Theorem 3.4: without recall no constant ratio."""
    del folder
    ratios = {alpha: impossibility(alpha).ratio_without_recall for alpha in (10, 100, 1000)}
    ours = ", ".join(f"{ratio:g} at alpha {alpha:g}" for alpha, ratio in ratios.items())
    return "the ratio is alpha, for every alpha", ours


LOSSES = np.array([0.05, 0.3, 0.6])
CHANCES = {"A": np.array([0.5, 0.2, 0.3]), "B": np.array([0.3, 0.3, 0.4])}
PRICES, LEVEL = {"A": 0.1, "B": 0.12}, 0.8


def payoffs(order: Sequence[str]) -> tuple[list[list[float]], float, dict[str, float]]:
    """Return loss plus cost of asking two boxes in an order, by (loss of B, loss of A); the mean.

    The second is asked while the best loss so far is above its index; 0.8 is in hand at first.
    """
    index = {}
    for box in "AB":
        alone = tt.Problem.forest([LOSSES], [PRICES[box]], [CHANCES[box]], [None])
        index[box] = 2 * float(tt.solve(alone, 0.5).index("m1")[0])  # tradeoff 1/2 weighs by half
    table = []
    for loss_b in LOSSES:
        row = []
        for loss_a in LOSSES:
            losses, best, cost = {"A": loss_a, "B": loss_b}, LEVEL, 0.0
            for box in order:
                if best > index[box]:
                    best, cost = min(best, losses[box]), cost + PRICES[box]
            row.append(float(best + cost))
        table.append(row)
    return table, float(CHANCES["B"] @ np.array(table) @ CHANCES["A"]), index


def payoff_table(folder: Path, number: int, order: Sequence[str]) -> Row:
    """Tables 1 and 2: what two independent boxes lose and cost, asked in either order."""
    table, mean, index = payoffs(order)
    other = payoffs(order[::-1])[1]
    lines = [
        f"{order[0]} first. Indices: A {index['A']:.4g}, B {index['B']:.4g}; {LEVEL} in hand.\n",
        "| | " + " | ".join(f"A loses {loss:g}" for loss in LOSSES) + " |",
        "|---|" + "---|" * len(LOSSES),
    ]
    for loss, row in zip(LOSSES, table, strict=True):
        lines.append(f"| B loses {loss:g} | " + " | ".join(f"{value:.4g}" for value in row) + " |")
    lines.append(f"\nMean {mean:.6g}; in the other order {other:.6g}.")
    (folder / f"table-{number}.md").write_text("\n".join(lines) + "\n", "utf-8")
    verdict = "less" if mean < other else "more"
    theirs = "strategy D1, B first" if order[0] == "B" else "strategy D2, A (the least index) first"
    ours = f"table-{number}.md: {mean:.4g}, {verdict} than {other:.4g} in the other order"
    return theirs, ours


def data(folder: Path) -> Row:
    """Table 3: models and data."""
    lines = ["| trace | exits | rows to fit on | rows to measure on |", "|---|---|---|---|"]
    for name in (*VISION, *LANGUAGE):
        fit, test = traces.load(name, "fit"), traces.load(name, "test")
        lines.append(f"| {name} | {len(fit.names)} | {len(fit):,} | {len(test):,} |")
    (folder / "table-3.md").write_text("\n".join(lines) + "\n", "utf-8")
    theirs = "VGG-11, 13, 16 on eight hours of video; BERT-base, GPT-2 on Amazon and IMDB reviews"
    return theirs, "table-3.md: seven traces"


FIGURES: dict[str, Callable[[Path], Row]] = {
    "1": topologies,
    "2": pipeline,
    "3": contraction,
    "4": vision,
    "5": language,
    "6": hypernodes,
    "7": thresholds,
    "8": if_stop,
    "3.4": impossible,
    "t1": lambda folder: payoff_table(folder, 1, "BA"),
    "t2": lambda folder: payoff_table(folder, 2, "AB"),
    "t3": data,
}
TITLES = {"3.4": "Theorem 3.4", "t1": "Table 1", "t2": "Table 2", "t3": "Table 3"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the figures asked for, and the page that lists them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default=",".join(FIGURES), help="figures, separated by commas")
    parser.add_argument("--to", type=Path, default=Path("paper"), help="the folder (default paper)")
    options = parser.parse_args(arguments)
    options.to.mkdir(parents=True, exist_ok=True)
    rows = [
        "# The paper's figures and tables",
        "",
        "| | theirs | ours | command |",
        "|---|---|---|---|",
    ]
    for name in options.only.split(","):
        start = time.perf_counter()
        theirs, ours = FIGURES[name](options.to)
        title, command = TITLES.get(name, f"Figure {name}"), f"ttamer theory figure {name}"
        rows.append(f"| {title} | {theirs} | {ours} | `{command}` |")
        print(f"{name}: {ours} ({time.perf_counter() - start:.1f} s)", flush=True)
    index = options.to / "index.md"
    if options.only == ",".join(FIGURES) or not index.exists():  # one figure leaves the page of all
        index.write_text("\n".join(rows) + "\n", "utf-8")


if __name__ == "__main__":
    main()
