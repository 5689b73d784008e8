"""The frontier as a figure: error against cost, one curve per family."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ttamer.evaluation.frontiers import Frontier, require_frontier
from ttamer.fitted.mixture import shown_error
from ttamer.reporting.style import (
    BACKGROUND,
    GO_COLOUR,
    HURT_COLOUR,
    INK,
    MUTED,
    PAPER,
    STOP_COLOUR,
    less,
    new_figure,
    plain_axes,
    printable,
    style,
)
from ttamer.stats.envelope import lower_envelope

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Threshold families: only the best of them is drawn in colour.
THRESHOLDS = ("threshold", "threshold-per-exit", "calibrated", "entropy", "margin")
_COLOURS = {
    "ttamer": STOP_COLOUR,
    "paper": GO_COLOUR,
    "chain": "#3d6fa5",
    "frugalml": HURT_COLOUR,
}
_THRESHOLD_COLOUR = "#8e5572"
_EXTRA_COLOUR = "#6b7d3a"
# The colour and the line style of each family in the background.
_BACKGROUND = (
    ("#5b83c4", "-"),
    ("#a5721f", (0, (5, 1.5))),
    ("#5f8f3e", (0, (2, 1.5))),
    ("#b0599b", (0, (1, 1))),
    ("#3f8ea8", (0, (6, 1.5, 1, 1.5))),
    ("#8d6fc0", (0, (9, 3))),
)
# The width of a letter of the legend, and of a handle with its margins, as shares of a figure.
_LETTER, _HANDLE = 0.0078, 0.066
# The size of text for narrow screens, in points: at least 12 pixels on a screen of 400.
_NARROW_FONT = 11.8
# Costs are drawn on a logarithmic scale if the arrow would end below this share of its start.
_CLOSE = 0.1


def draw_frontier(
    frontier: Frontier,
    *,
    arrow: str | None = "ttamer",
    more_error: float = 0.0,
    narrow: bool = False,
) -> Figure:
    """Draw error against cost: what each family reaches when two of its settings may be mixed.

    Args:
        frontier: What :func:`ttamer.evaluation.frontier` returned.
        arrow: The family whose saving an arrow marks; None for no arrow.
        more_error: How far above the reference's error the arrow is drawn.
        narrow: Whether to draw for a narrow screen.

    Returns:
        A matplotlib figure; :func:`save_figure` writes it.

    Raises:
        MissingExtra: If matplotlib is not installed.

    >>> from ttamer import datasets
    >>> from ttamer.evaluation import frontier
    >>> fit_rows, test_rows = (datasets.load("langid", part).take(slice(300))
    ...                        for part in ("fit", "test"))
    >>> found = frontier(fit_rows, test_rows, families=["ttamer", "chain"], resamples=0)
    >>> len(draw_frontier(found).axes)
    1
    """
    require_frontier(frontier, "draw_frontier")
    with style():
        figure = new_figure(4.6, 4.2) if narrow else new_figure(8.4, 4.9)
        axes = figure.subplots()
        plain_axes(axes, grid="both")
        _Drawing(frontier, axes, arrow, more_error).draw()
        handles, labels = axes.get_legend_handles_labels()
        columns = _legend_columns(labels)
        if narrow:
            axes.tick_params(labelsize=_NARROW_FONT)
            axes.xaxis.label.set_fontsize(_NARROW_FONT)
            axes.set_title(frontier.measure, loc="left", color=MUTED, fontsize=_NARROW_FONT, pad=8)
            axes.set_xlabel(axes.get_xlabel().replace(" (", "\n("), color=MUTED)
            columns = 2 if max(map(len, labels)) <= 20 else 1
            rows = -(-len(labels) // columns)
            figure.set_size_inches(4.6, 4.2 + 0.235 * rows)
        figure.legend(
            handles, labels, loc="outside lower center", ncols=columns, frameon=False,
            fontsize=_NARROW_FONT if narrow else 9.5, handlelength=2.2, columnspacing=1.2,
            labelcolor=INK,
        )  # fmt: skip
    return figure


def _legend_columns(labels: Sequence[str]) -> int:
    """Return into how many columns a legend goes: at most four, and none of them cut off.

    >>> _legend_columns(["ttamer", "chain", "paper", "oracle"])
    4
    >>> _legend_columns(["threshold-per-exit (the reference)"] * 14)
    3
    """
    for columns in (4, 3, 2):
        rows = -(-len(labels) // columns)
        longest = (max(map(len, labels[at : at + rows])) for at in range(0, len(labels), rows))
        if sum(_HANDLE + _LETTER * length for length in longest) <= 1:
            return columns
    return 1


def point_name(place: int) -> str:
    """Return the id in the drawing of a setting of the family, by its place in the frontier."""
    return f"setting{place}"


def family_colours(frontier: Frontier, arrow: str | None) -> dict[str, str]:
    """Return the colour of each family that is drawn in colour: at most seven."""
    kinds = [name for name in THRESHOLDS if name in frontier.families]
    best = min(kinds, key=frontier.area, default=None)
    colours = {name: colour for name, colour in _COLOURS.items() if name in frontier.families}
    if best is not None:
        colours[best] = _THRESHOLD_COLOUR
    if arrow in frontier.families and arrow is not None:
        colours.setdefault(arrow, _EXTRA_COLOUR)
    return colours


class _Drawing:
    """One drawing of a frontier on one pair of axes."""

    def __init__(
        self, frontier: Frontier, axes: Axes, arrow: str | None, more_error: float
    ) -> None:
        self.frontier, self.axes, self.arrow = frontier, axes, arrow
        self.more_error = more_error
        self.unit = frontier.reference.cost or frontier.full_cost
        self.colours = family_colours(frontier, arrow)
        self.dots = [f for f in frontier.families if len(frontier.of(f)) == 1]
        cost = None if arrow not in frontier.families else frontier.cost_at(arrow or "", more_error)
        near = cost is not None and cost < _CLOSE * frontier.reference.cost
        self.log = near and all(point.result.cost > 0 for point in frontier.points)
        self.curves = {f: self._curve(f) for f in frontier.families if f not in self.dots}

    def draw(self) -> None:
        axes, reference = self.axes, self.frontier.reference
        x, y = reference.cost / self.unit, reference.error
        self._set_range(x, y)
        axes.axhline(y, color=MUTED, lw=0.8, ls=(0, (1, 3)), zorder=1)
        for family, colour in self.colours.items():
            if family in self.curves:
                ours = family == "ttamer"
                axes.plot(
                    *self.curves[family], color=colour, lw=2.6 if ours else 1.7, label=family,
                    zorder=6 if ours else 4, solid_capstyle="round", solid_joinstyle="round",
                )  # fmt: skip
        if "ttamer" in self.curves:
            self._intervals("ttamer")
        axes.plot(
            [x], [y], "o", ms=10, mfc="none", mec=INK, mew=1.8, zorder=8, ls="none",
            label=f"{printable(reference.node)}: the reference",
        )  # fmt: skip
        self._dots(x, y)
        others = [family for family in self.curves if family not in self.colours]
        for family, (colour, dashes) in zip(others, itertools.cycle(_BACKGROUND), strict=False):
            curve = self.curves[family]
            axes.plot(*curve, color=colour, lw=1.1, ls=dashes, zorder=2, label=family)
        self._saving(x, y + self.more_error)
        scale = ", logarithmic" if self.log else ""
        whole = printable(reference.node)
        axes.set_xlabel(f"cost per input{scale} (100% = {whole})", color=MUTED)
        axes.set_title(self.frontier.measure, loc="left", color=MUTED, fontsize=10, pad=8)

    def _curve(self, family: str) -> tuple[list[float], list[float]]:
        costs, errors = self.frontier.curve(family)
        kept = lower_envelope(costs, errors)
        x = np.array(costs)[kept] / self.unit
        y = np.array(errors)[kept]
        if self.log:  # a mixture is straight in cost, not in its logarithm
            fine = np.unique(np.concatenate([x, np.geomspace(x[0], x[-1], 200)]))
            x, y = fine, np.interp(fine, x, y)
        return x.tolist(), y.tolist()

    def _set_range(self, x: float, y: float) -> None:
        """Show the coloured curves from the least error to some points above the reference's."""
        from matplotlib.ticker import LogLocator, NullLocator

        strong = [self.curves[f] for f in self.colours if f in self.curves]
        errors = [error for _, each in strong for error in each]
        widest = max(self.frontier.margins.values())
        top = y + 1.2 * max(widest, y - min(errors, default=y))
        shown = [
            (cost, error)
            for curve in strong
            for cost, error in zip(*curve, strict=True)
            if error <= top
        ]
        across = [x, *(cost for cost, _ in shown)]
        up = [y, *(error for _, error in shown)]
        wide, tall = max(across) or 1.0, (max(up) - min(up)) or max(up) or 0.1
        self.axes.set_xlim(-0.02 * wide, 1.06 * wide)
        if self.log:
            self.axes.set_xscale("log")
            self.axes.set_xlim(min(across) / 1.2, 1.2 * wide)
            self.axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            self.axes.xaxis.set_minor_locator(NullLocator())
        self.axes.set_ylim(max(min(up) - 0.15 * tall, -0.02 * tall), max(up) + 0.08 * tall)
        rates = self.frontier.measure == "error"
        for axis in (self.axes.xaxis, self.axes.yaxis) if rates else (self.axes.xaxis,):
            axis.set_major_formatter(lambda share, _: f"{100 * share:.4g}%")

    def _intervals(self, family: str) -> None:
        """Draw the settings on the envelope, with 95% intervals of error and of cost."""
        unit, points = self.unit, self.frontier.of(family)
        kept = lower_envelope(*self.frontier.curve(family)).tolist()
        for place in kept:
            result = points[place].result
            x, y = result.cost / unit, result.error
            (left, right), (low, high) = result.cost_interval, result.error_interval
            for xs, ys in (([left / unit, right / unit], [y, y]), ([x, x], [low, high])):
                self.axes.plot(xs, ys, color=STOP_COLOUR, lw=1.0, alpha=0.45, zorder=5)
            [dot] = self.axes.plot(
                [x], [y], "o", ms=6.5, color=STOP_COLOUR, mec=PAPER, mew=0.8, zorder=7
            )
            dot.set_gid(point_name(place))

    def _dots(self, x: float, y: float) -> None:
        """Draw the families of one setting, except the reference itself; the oracle is faint."""
        (left, right), (low, high) = self.axes.get_xlim(), self.axes.get_ylim()
        marks = iter("v^s<>PX" * 3)
        for family in self.dots:
            result = self.frontier.of(family)[0].result
            cost, error = result.cost / self.unit, result.error
            faint = family == "oracle"
            colour = BACKGROUND if faint else self.colours.get(family, MUTED)
            mark = "*" if faint else next(marks)
            where = ""
            if abs(cost - x) + abs(error - y) < 1e-9:
                where = " (the reference)"
            elif not (left <= cost <= right and low <= error <= high):
                shown = shown_error(error, self.frontier.measure, digits=1)
                where = f" (outside: {shown} at {cost:.0%})"
            self.axes.plot(
                [] if where else [cost], [] if where else [error], mark, ms=9 if faint else 5.5,
                color=colour, zorder=3, label=f"{family}{where}", ls="none",
            )  # fmt: skip

    def _saving(self, x: float, y: float) -> None:
        """Draw an arrow from the reference to the family's curve at the same error."""
        if self.arrow is None or self.arrow not in self.frontier.families:
            return
        cost = self.frontier.cost_at(self.arrow, self.more_error)
        price = self.frontier.reference.cost
        if cost is None or cost > 0.97 * price or not price:
            return
        colour = self.colours[self.arrow]
        end = cost / self.unit
        self.axes.annotate(
            "", (end, y), (x, y), zorder=9,
            arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 2.0, "shrinkA": 7,
                        "shrinkB": 3, "mutation_scale": 15},
        )  # fmt: skip
        self.axes.annotate(
            less(1 - cost / price), (x, y), (-9, 8), zorder=9, ha="right",
            textcoords="offset points", color=colour, fontsize=12, fontweight="bold",
            bbox={"facecolor": PAPER, "edgecolor": "none", "alpha": 0.8, "pad": 1.5},
        )  # fmt: skip
