"""How time and memory grow with the nodes, the states and the tradeoffs, in every topology.

    python benchmarks/growth.py [--json FILE]      # measures, draws docs/img/growth.png and .svg
    python benchmarks/growth.py --draw FILE        # draws numbers measured elsewhere

Each column of panels varies one of them on log-log axes: CPU time above, the peak of memory that
one solve allocates below (tracemalloc). A slope is fitted to the upper half of the sizes: below,
the fixed cost of a NumPy call hides the growth.

The heap is kept between solves here (see ``keep_heap``): else glibc hands memory back to the kernel
after each one, and the page faults of the next, which come in at some size, bend the curves. The
other benchmarks leave the heap as it is.

Walk solver (line, skip), common support
    one product of |V| x |V| by |V| x (|V| + 1) per edge: a line has n edges, a skip n (n + 1) / 2.
    Memory: a table of |V| x (|V| + 1) per node.
Index solver (line by index, multi-line, tree, forest)
    one product per node over the breakpoints below it, at most |V| per node below: at most n^2,
    |V|^3. Memory: the laws at hand, at most n |V|^2.
The paper states O(n |V|^2 T) for lines and trees and O(n^2 |V|^2 T) for skips, with T the number
of rounds; below the curves, what must stay a small part of a solve is timed beside it.

Several parents
    a walk over the sets of nodes asked so far: exponential in the nodes.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from problems import line_data, random_forest
from result import Result, show
from timing import interleaved

import ttamer as tt

if TYPE_CHECKING:
    from collections.abc import Sequence

FIGURE = Path(__file__).parents[1] / "docs" / "img" / "growth"
NODES, STATES, TRADEOFF = 12, 64, 0.6
FEW_STATES = 4
"""The states of the nodes where one has several parents."""
GREY = "#8a8f98"
COLOURS = {
    "line, by walk": "#1f5fa8",
    "line, by index": "#d9730d",
    "multi-line": "#2a8c57",
    "tree": "#8e5572",
    "star": "#3a8fa3",
    "forest": "#b8952a",
    "skip": "#c8553d",
    "several parents": "#4c4c52",
}
MARKS = dict(zip(COLOURS, "os^vXDP*", strict=True))
Make = Callable[[int, int], tt.Problem]


@dataclass(frozen=True)
class Curve:
    """What one solve takes over sizes: median CPU seconds and peak bytes."""

    topology: str
    axis: str
    sizes: Sequence[int]
    seconds: Sequence[float]
    bytes: Sequence[float]

    def fit(self, values: Sequence[float]) -> tuple[float, float]:
        """Slope and intercept over the upper half of the sizes, in logarithms."""
        upper = self.upper
        slope, level = np.polyfit(np.log(self.sizes[upper:]), np.log(values[upper:]), 1)
        return float(slope), float(level)

    @property
    def upper(self) -> int:
        """Where the fitted range begins."""
        return len(self.sizes) // 2


def keep_heap() -> None:
    """Set glibc's malloc, for the rest of this process, to keep what was freed."""
    trim_threshold, mmap_most = -1, -4  # M_TRIM_THRESHOLD and M_MMAP_MAX of malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return  # another C library: the curves show its page faults
    mallopt(trim_threshold, 2**31 - 1)
    mallopt(mmap_most, 0)


# Problems by (nodes, states)


def _line(moves: tt.Moves) -> Make:
    return lambda nodes, states: tt.Problem.line(*line_data(nodes, states), moves=moves)


def _multi_line(nodes: int, states: int) -> tt.Problem:
    """Two lines side by side."""
    halves = (nodes - nodes // 2, nodes // 2)
    return tt.Problem.multi_line(
        [tt.Problem.line(*line_data(n, states, seed=k)) for k, n in enumerate(halves) if n]
    )


def _tree(nodes: int, states: int) -> tt.Problem:
    """A binary tree."""
    losses, costs, rows = line_data(nodes, states)
    parents = [None, *((node - 1) // 2 for node in range(1, nodes))]
    return tt.Problem.forest(losses, costs.tolist(), rows, parents)


def _star(nodes: int, states: int) -> tt.Problem:
    """One root, and all others its children."""
    losses, costs, rows = line_data(nodes, states)
    return tt.Problem.forest(losses, costs.tolist(), rows, [None, *[0] * (nodes - 1)])


def _forest(nodes: int, states: int) -> tt.Problem:
    return random_forest(nodes, states, common=True)


def _skip(nodes: int, states: int) -> tt.Problem:
    return tt.Problem.skip_of(tt.Problem.line(*line_data(nodes, states)))


def _several_parents(nodes: int, states: int) -> tt.Problem:
    """Separate models, and a judge of the first two."""
    losses, costs, rows = line_data(nodes, min(states, FEW_STATES))
    names = [f"m{k}" for k in range(nodes - 1)]
    edges = [
        tt.Edge(None, name, cost=cost, probabilities=rows[0])
        for name, cost in zip(names, costs, strict=False)
    ]
    judge = np.stack([rows[1]] * len(losses))
    edges.append(tt.Edge((names[0], names[1]), "judge", cost=costs[-1], probabilities=judge))
    nodes_ = tuple(tt.Node(name, losses) for name in (*names, "judge"))
    return tt.Problem("precedence", nodes_, tuple(edges))


MAKE: dict[str, Make] = {
    "line, by walk": _line("walk"),
    "line, by index": _line("precedence"),
    "multi-line": _multi_line,
    "tree": _tree,
    "star": _star,
    "forest": _forest,
    "skip": _skip,
    "several parents": _several_parents,
}


def _doubling(first: int, last: int) -> list[int]:
    return [2**k for k in range(first.bit_length() - 1, last.bit_length())]


NODE_SIZES = {
    "line, by walk": _doubling(2, 256),
    "line, by index": _doubling(2, 256),
    "multi-line": _doubling(2, 128),
    "tree": _doubling(2, 128),
    "star": _doubling(2, 1024),
    "forest": _doubling(2, 128),
    "skip": _doubling(2, 64),
    "several parents": [3, 4, 5, 6, 7],
}


def curves() -> list[Curve]:
    """Measure all of them."""
    keep_heap()
    found = []
    for topology, make in MAKE.items():
        sizes = NODE_SIZES[topology]
        found.append(_curve(topology, "nodes", sizes, lambda n, m=make: _solver(m(n, STATES))))
        if topology == "several parents":
            continue
        most = 256 if topology in ("line, by walk", "skip") else 128
        found.append(
            _curve(topology, "states", _doubling(4, most), lambda v, m=make: _solver(m(NODES, v)))
        )
        found.append(
            _curve(
                topology,
                "tradeoffs",
                _doubling(1, 32),
                lambda k, m=make: _solver(m(NODES, STATES), k),
            )
        )
    return found


def _solver(problem: tt.Problem, tradeoffs: int = 0) -> Callable[[], object]:
    if not tradeoffs:
        return lambda: tt.solve(problem, TRADEOFF)
    weights = np.linspace(0.01, 0.99, tradeoffs)
    return lambda: tt.solve_ladder(problem, weights)


def _curve(
    topology: str, axis: str, sizes: Sequence[int], make: Callable[[int], Callable[[], object]]
) -> Curve:
    calls = {str(size): make(size) for size in sizes}
    times = interleaved(calls, rounds=9)
    peaks = []
    for call in calls.values():
        tracemalloc.start()
        call()
        peaks.append(float(tracemalloc.get_traced_memory()[1]))
        tracemalloc.stop()
    return Curve(topology, axis, sizes, [times.median(str(size)) for size in sizes], peaks)


def measure() -> list[Result]:
    """Measure all curves and draw them; return the slopes."""
    found = curves()
    draw(found)
    return [*results(found), *limits()]


def limits() -> list[Result]:
    """Time what must stay a small part of a solve, or near linear, and hold it to that."""
    star, tree, few = _star(1000, 32), _tree(100, 32), _tree(10, 32)
    losses, even = [0.0, 1.0], [[0.5, 0.5]] * 10_000
    boxes = tt.Problem.forest(losses, np.linspace(0.01, 0.02, 10_000), even, [None] * 10_000)
    law, roots = tt.solve(few, TRADEOFF), tt.solve(boxes, TRADEOFF)
    roots.session()  # lays out the tables
    times = interleaved(
        {
            "star": lambda: tt.solve(star, TRADEOFF),
            "tree": lambda: tt.solve(tree, TRADEOFF),
            "with means": lambda: tt.solve(tree, TRADEOFF).expected_cost,
            "law": law.future,
            "session": roots.session,
        },
        rounds=5,
    )
    means = times.ratio("with means", "tree")
    return [
        Result("star of 1,000 nodes, 32 states: solve", times.median("star"), "s", at_most=1.0),
        Result.of_ratio(
            "tree of 100 nodes, 32 states: solve with its means, in solves", means, at_most=4.0
        ),
        Result("tree of 10 nodes, 32 states: joint law", times.median("law"), "s", at_most=10.0),
        Result("10,000 roots: open a session", times.median("session") * 1e6, "us", at_most=10.0),
    ]


def results(found: Sequence[Curve]) -> list[Result]:
    """Return the fitted slopes of time and memory."""
    lines = []
    for curve in found:
        if curve.topology == "several parents":  # no power of the nodes
            continue
        bound = "n^2 |V|^2 T" if curve.topology == "skip" else "n |V|^2 T"
        note = f"fitted from {curve.sizes[curve.upper]} to {curve.sizes[-1]}; paper: {bound}"
        for what, values in (("time", curve.seconds), ("memory", curve.bytes)):
            label = f"{curve.topology}: slope of {what} in {curve.axis}"
            lines.append(Result(label, curve.fit(values)[0], unit="", note=note))
    return lines


def draw(found: Sequence[Curve]) -> None:
    """Draw time and memory over each axis: points, and the slopes beside the names."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    axes_of = {
        "nodes": f"nodes  ({STATES} states; several parents: {FEW_STATES})",
        "states": f"states  ({NODES} nodes)",
        "tradeoffs": f"tradeoffs  ({NODES} nodes, {STATES} states)",
    }
    with plt.rc_context({"font.size": 10, "svg.hashsalt": "ttamer", "svg.fonttype": "none"}):
        figure, grid = plt.subplots(2, 3, figsize=(13, 9.6), sharex="col", sharey="row")
        for column, (axis, label) in enumerate(axes_of.items()):
            for row, what in enumerate(("seconds", "bytes")):
                ax = grid[row, column]
                for curve in (each for each in found if each.axis == axis):
                    _plot(ax, curve, getattr(curve, what))
                ax.set(xscale="log", yscale="log")
                ax.set_xscale("log", base=2)
                ax.xaxis.set_major_formatter("{x:g}")
                ax.grid(color=GREY, alpha=0.25, lw=0.6)
                ax.spines[["top", "right"]].set_visible(False)
                ax.legend(
                    loc="lower left",
                    frameon=False,
                    fontsize=8,
                    ncols=2,
                    columnspacing=0.9,
                    handlelength=1.4,
                    bbox_to_anchor=(-0.02, 1.0),
                    title="fitted exponents",
                    title_fontsize=8,
                    alignment="left",
                )
            grid[1, column].set_xlabel(label)
        grid[0, 0].set_ylabel("CPU seconds per solve (median)")
        grid[1, 0].set_ylabel("peak bytes allocated by one solve")
        figure.text(
            0.5,
            0.008,
            "One loss support, one BLAS thread, heap kept between solves. Exponents are fitted to "
            "the upper half of the sizes; below, fixed costs per call dominate.",
            ha="center",
            color=GREY,
            fontsize=9,
        )
        figure.tight_layout(rect=(0, 0.025, 1, 1))
        FIGURE.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(FIGURE.with_suffix(".png"), dpi=110)
        figure.savefig(FIGURE.with_suffix(".svg"), metadata={"Date": None})
        plt.close(figure)


def _plot(ax: object, curve: Curve, values: Sequence[float]) -> None:
    name, colour = curve.topology, COLOURS[curve.topology]
    power = "exponential" if name == "several parents" else f"{curve.fit(values)[0]:.2f}"
    ax.plot(  # type: ignore[attr-defined]
        curve.sizes,
        values,
        marker=MARKS[name],
        color=colour,
        ms=4,
        lw=1.5,
        label=f"{name}: {power}",
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure and draw how a solve grows.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers, do not draw")
    parser.add_argument("--draw", type=Path, metavar="FILE", help="draw these numbers")
    options = parser.parse_args()
    if options.draw:
        measured = [Curve(**curve) for curve in json.loads(options.draw.read_text("utf-8"))]
        draw(measured)
        show(results(measured))
    elif options.json:
        measured = curves()
        text = json.dumps([asdict(curve) for curve in measured], indent=1) + "\n"
        options.json.write_text(text, "utf-8")
        show([*results(measured), *limits()])
    else:
        show(measure())
