"""The figures and tables of the T-Tamer paper, on the nearest data that there are: ``make paper``.

    python experiments/paper/make.py [--only 1,3] [--to FOLDER]

Writes one file per figure and ``index.md``: what the paper says, what we find, and the command.
Needs the extras io and plot. The paper's traces (videos on VGG, reviews on BERT and GPT-2) are not
public; Figures 4 and 5 use the reviews of IMDB on the exits of a sentence encoder.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import ttamer as tt
from ttamer import datasets
from ttamer.reporting import draw_if_stop, save_figure
from ttamer.theory import contract, draw_contraction, if_stop_experiments, impossibility

PROBLEMS = Path(__file__).parents[2] / "examples" / "problems"
Row = tuple[str, str, str]  # what the paper says, what we find, the command


def topologies(folder: Path) -> Row:
    """Figure 1: the directed line, its transitive closure, and the directed tree."""
    for name in ("line", "skip", "tree"):
        problem = tt.Problem.from_file(PROBLEMS / f"{name}.json")
        tt.solve(problem, 0.9).plot(folder / f"figure-1-{name}.svg")
    found = "three drawings: figure-1-line.svg, figure-1-skip.svg, figure-1-tree.svg"
    command = "ttamer solve examples/problems/line.json --tradeoff 0.9 --draw line.svg"
    return "three topologies", found, command


def impossible(folder: Path) -> Row:
    """Theorem 3.4: without recall no constant ratio."""
    del folder
    ratios = [impossibility(alpha) for alpha in (10, 100, 1000)]
    found = ", ".join(f"{one.ratio:g} at alpha {one.alpha:g}" for one in ratios)
    return "the ratio is alpha, for every alpha", found, "ttamer theory no-recall"


def contraction(folder: Path) -> Row:
    """Figure 3: a tree contracted node by node."""
    tree = tt.Problem.from_file(PROBLEMS / "tree.json")
    steps = contract(tree, 0.5)
    (folder / "figure-3.svg").write_text(draw_contraction(tree, steps), "utf-8")
    found = f"figure-3.svg: {len(steps)} steps, the last of which is one node"
    command = "ttamer theory contract examples/problems/tree.json --draw steps.svg"
    return "a branch becomes one node, then the tree", found, command


def frontier(folder: Path) -> Row:
    """Figures 4 and 5: accuracy against cost of the paper's policy."""
    fit, test = datasets.load("minilm-imdb", part="fit"), datasets.load("minilm-imdb", part="test")
    ladder = tt.fit(fit, belief="markov")
    full = tt.evaluate(ladder[len(ladder) - 1], test)
    points = [tt.evaluate(ladder[rung], test) for rung in range(0, len(ladder), 4)]
    lines = ["cost,error"] + [f"{point.cost:.6g},{point.error:.6g}" for point in points]
    (folder / "figure-5.csv").write_text("\n".join(lines) + "\n", "utf-8")
    near = [point for point in points if point.error <= full.error + 0.07] or [full]
    cheapest = min(near, key=lambda point: point.cost)
    found = (
        f"figure-5.csv: {cheapest.cost / full.cost:.0%} of its most expensive policy's cost at "
        f"{100 * (cheapest.error - full.error):.1f} points more error"
    )
    theirs = "videos: 45% of the latency at less than 7 points; reviews: up to 90% less"
    return theirs, found, "python experiments/paper/make.py --only 5"


def if_stop(folder: Path) -> Row:
    """Figure of section D.3: if-stop matrices on synthetic losses."""
    experiments = if_stop_experiments()
    save_figure(draw_if_stop(experiments), folder / "figure-d3.png")
    excess = ", ".join(f"{one.name} {abs(one.excess_with_recall):.2%}" for one in experiments)
    found = f"figure-d3.png; best threshold with recall above the optimum: {excess}"
    return "no fixed threshold is optimal", found, "ttamer theory if-stop"


FIGURES: dict[str, Callable[[Path], Row]] = {
    "1": topologies,
    "3.4": impossible,
    "3": contraction,
    "5": frontier,
    "d3": if_stop,
}


def main() -> None:
    """Make the figures asked for, and the page that lists them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default=",".join(FIGURES), help="figures, separated by commas")
    parser.add_argument("--to", type=Path, default=Path("paper"), help="the folder (default paper)")
    options = parser.parse_args()
    options.to.mkdir(parents=True, exist_ok=True)
    rows = ["# The paper's figures", "", "| | theirs | ours | command |", "|---|---|---|---|"]
    for name in options.only.split(","):
        start = time.perf_counter()
        theirs, ours, command = FIGURES[name](options.to)
        rows.append(f"| {name} | {theirs} | {ours} | `{command}` |")
        print(f"{name}: {ours} ({time.perf_counter() - start:.1f} s)", flush=True)
    (options.to / "index.md").write_text("\n".join(rows) + "\n", "utf-8")


if __name__ == "__main__":
    main()
