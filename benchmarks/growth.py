"""How time grows with the nodes, the states and the tradeoffs, beside what theory says.

Each panel varies one of them on log-log axes. A slope is fitted to the upper half of the sizes:
below, the fixed cost of a NumPy call hides the growth. Draws docs/img/growth.png and .svg.

The heap is kept between solves here (see ``keep_heap``): else glibc hands memory back to the kernel
after each one, and the page faults of the next, which come in at some size, bend the curves. The
other benchmarks leave the heap as it is.

Walk solver, common support
    one product of |V| x |V| by |V| x (|V| + 1) per node: n, |V|^3, tradeoffs.
Index solver, on the same line
    one product per node over the breakpoints below it, at most |V| per node below: at most n^2,
    |V|^3, tradeoffs.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from problems import line_data
from result import Result, show
from timing import interleaved

import ttamer as tt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FIGURE = Path(__file__).parents[1] / "docs" / "img" / "growth"
NODES, STATES, TRADEOFF = 12, 64, 0.6
BLUE, ORANGE, GREY = "#1f5fa8", "#d9730d", "#8a8f98"


@dataclass(frozen=True)
class Curve:
    """Median seconds over sizes, and the theory's exponent."""

    solver: str
    sizes: Sequence[int]
    spent: Sequence[float]
    theory: int
    bound: bool = False
    """Whether the theory's exponent is a bound only."""

    @property
    def upper(self) -> int:
        """Where the fitted range begins."""
        return len(self.sizes) // 2

    @property
    def slope(self) -> float:
        """The fitted exponent."""
        return float(self.fit[0])

    @property
    def fit(self) -> np.ndarray:
        """Slope and intercept of the upper range, in logarithms."""
        return np.polyfit(np.log(self.sizes[self.upper :]), np.log(self.spent[self.upper :]), 1)

    @property
    def label(self) -> str:
        """The slope beside the theory's."""
        most = "at most " if self.bound else ""
        return f"{self.solver}: slope {self.slope:.2f}, theory {most}{self.theory}"


def keep_heap() -> None:
    """Tell glibc's malloc, for the rest of this process, to keep what was freed."""
    trim_threshold, mmap_most = -1, -4  # M_TRIM_THRESHOLD and M_MMAP_MAX of malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return  # another C library: the curves show its page faults
    mallopt(trim_threshold, 2**31 - 1)
    mallopt(mmap_most, 0)


def measure() -> list[Result]:
    """Time all curves and draw them."""
    keep_heap()
    panels = {
        f"nodes  ({STATES} states)": _nodes(),
        f"states  ({NODES} nodes)": _states(),
        f"tradeoffs  ({NODES} nodes, {STATES} states)": _tradeoffs(),
    }
    draw(panels)
    results = []
    for axis, curves in panels.items():
        for curve in curves:
            first, last = curve.sizes[curve.upper], curve.sizes[-1]
            most = "at most " if curve.bound else ""
            note = f"theory {most}{curve.theory}; fitted from {first} to {last}"
            what = f"{curve.solver}: slope in {axis.split()[0]}"
            results.append(Result(what, curve.slope, unit="", note=note))
    return results


def _curves(
    calls: dict[str, Callable[[int], Callable[[], object]]],
    sizes: dict[str, Sequence[int]],
    theory: dict[str, tuple[int, bool]],
) -> list[Curve]:
    every = {
        f"{solver} {size}": make(size) for solver, make in calls.items() for size in sizes[solver]
    }
    times = interleaved(every, rounds=9)
    return [
        Curve(
            solver,
            sizes[solver],
            [times.median(f"{solver} {size}") for size in sizes[solver]],
            *theory[solver],
        )
        for solver in calls
    ]


def _solver(nodes: int, states: int, moves: str) -> Callable[[], object]:
    problem = tt.Problem.line(*line_data(nodes, states), moves=moves)
    return lambda: tt.solve(problem, TRADEOFF)


def _nodes() -> list[Curve]:
    return _curves(
        {
            "walk": lambda n: _solver(n, STATES, "walk"),
            "index": lambda n: _solver(n, STATES, "precedence"),
        },
        {"walk": [2, 4, 8, 16, 32, 64, 128, 256], "index": [2, 4, 8, 16, 32, 64]},
        {"walk": (1, False), "index": (2, True)},
    )


def _states() -> list[Curve]:
    return _curves(
        {
            "walk": lambda v: _solver(NODES, v, "walk"),
            "index": lambda v: _solver(NODES, v, "precedence"),
        },
        {"walk": [4, 8, 16, 32, 64, 128, 256, 512], "index": [4, 8, 16, 32, 64, 128, 256]},
        {"walk": (3, False), "index": (3, False)},
    )


def _tradeoffs() -> list[Curve]:
    def ladder(count: int, moves: str) -> Callable[[], object]:
        problem = tt.Problem.line(*line_data(NODES, STATES), moves=moves)
        tradeoffs = np.linspace(0.01, 0.99, count)
        return lambda: tt.solve_ladder(problem, tradeoffs)

    return _curves(
        {"walk": lambda k: ladder(k, "walk"), "index": lambda k: ladder(k, "precedence")},
        {"walk": [1, 2, 4, 8, 16, 32, 64, 128], "index": [1, 2, 4, 8, 16, 32, 64]},
        {"walk": (1, False), "index": (1, False)},
    )


def draw(panels: dict[str, list[Curve]]) -> None:
    """Draw one panel per axis: points, the fitted part, and the slopes in words."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    with plt.rc_context({"font.size": 10, "svg.hashsalt": "ttamer", "svg.fonttype": "none"}):
        figure, axes = plt.subplots(1, len(panels), figsize=(12.5, 4.3), sharey=True)
        for ax, (axis, curves) in zip(axes, panels.items(), strict=True):
            for curve, colour in zip(curves, (BLUE, ORANGE), strict=True):
                fitted = np.array(curve.sizes[curve.upper :], float)
                slope, level = curve.fit
                ax.plot(fitted, np.exp(level) * fitted**slope, color=colour, lw=5, alpha=0.25)
                ax.plot(curve.sizes, curve.spent, "o-", color=colour, ms=4, label=curve.label)
            ax.set(xscale="log", yscale="log", xlabel=axis)
            ax.set_xscale("log", base=2)
            ax.xaxis.set_major_formatter("{x:g}")
            ax.grid(color=GREY, alpha=0.25, lw=0.6)
            ax.spines[["top", "right"]].set_visible(False)
            ax.legend(loc="upper left", frameon=False, fontsize=9, bbox_to_anchor=(0, 1.16))
        axes[0].set_ylabel("CPU seconds per solve (median)")
        figure.text(
            0.5,
            0.01,
            "One line, one loss support, one BLAS thread, heap kept between solves. Slopes are "
            "fitted to the shaded upper sizes; below, fixed costs per call dominate.",
            ha="center",
            color=GREY,
            fontsize=9,
        )
        figure.tight_layout(rect=(0, 0.05, 1, 1))
        FIGURE.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(FIGURE.with_suffix(".png"), dpi=150)
        figure.savefig(FIGURE.with_suffix(".svg"), metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    show(measure())
