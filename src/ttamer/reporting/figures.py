"""Figures of a report: the frontier, who answers, and calibration.

Figures are made without pyplot, so that nothing global is touched.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ttamer._checks import in_unit, number, percent, priced, require
from ttamer.evaluation.frontiers import Frontier, Point
from ttamer.fitting.ladder import shown_error
from ttamer.show.curves import as_percent, printable, style
from ttamer.stats.envelope import lower_envelope
from ttamer.trace.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours that follow the page's light or dark theme, by the name of the page's variable.
THEME = {"ink": "#2b2b2b", "muted": "#67615a", "rule": "#e3ded6"}
# The colours of ttamer, and of other families and nodes: readable on light and on dark.
OURS = "#1b7f79"
PALETTE = [f"C{number}" for number in range(10)]
# The most nodes that are drawn apart.
MAX_NODES = 8


@dataclass(frozen=True)
class Chart:
    """A figure, and what each of its marks says when it is pointed at."""

    figure: Figure
    axes: Axes
    tips: dict[str, str] = field(default_factory=dict)

    @classmethod
    def empty(cls, height: float, title: str, x_label: str, *, grid: Any = "both") -> Chart:
        """Return axes to draw in, as wide as a column of the page."""
        require("matplotlib", "report")
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5.6, height), layout="constrained")
        axes = figure.subplots()
        axes.set_facecolor("none")
        axes.spines[:].set_visible(False)
        axes.tick_params(which="both", length=0, labelsize=10, colors=THEME["muted"])
        axes.set_axisbelow(True)
        axes.grid(axis=grid, color=THEME["rule"], lw=0.8)
        axes.set_title(title, loc="left", color=THEME["muted"], fontsize=11)
        axes.set_xlabel(x_label, color=THEME["muted"])
        return cls(figure, axes)

    def line(
        self,
        x: Sequence[float],
        y: Sequence[float],
        tips: Sequence[str],
        colour: str,
        label: str,
        *,
        width: float = 1.6,
    ) -> None:
        """Draw a line, and a mark on each of its points."""
        self.axes.plot(x, y, color=colour, lw=width, label=label, zorder=3)
        for across, up, tip in zip(x, y, tips, strict=True):
            [dot] = self.axes.plot([across], [up], "o", ms=4.5, color=colour, zorder=4)
            self.mark(dot, tip)

    def mark(self, artist: Any, tip: str) -> None:
        """Give a mark of the figure what it says when it is pointed at."""
        # Several figures are on one page: their marks must not have one name.
        name = f"mark-{id(self.tips)}-{len(self.tips)}"
        artist.set_gid(name)
        self.tips[name] = tip

    def legend(self) -> Chart:
        """Draw the legend below the axes, if there is something in them."""
        labels = self.axes.get_legend_handles_labels()[1]
        if labels:
            style: Any = {"frameon": False, "fontsize": 10, "labelcolor": THEME["ink"]}
            # Long names in three columns would be wider than the figure, which would shrink.
            columns = 3 if max(map(len, labels)) < 14 else 2
            self.figure.legend(loc="outside lower center", ncols=columns, **style)
        return self

    @property
    def is_empty(self) -> bool:
        """Whether nothing is drawn."""
        return not (self.axes.lines or self.axes.patches)

    def svg(self) -> str:
        """Return the figure as SVG for a page: colours by theme, marks with titles."""
        text = io.StringIO()
        with style():
            self.figure.savefig(text, format="svg", metadata={"Date": None}, transparent=True)
        svg = text.getvalue()
        svg = svg[svg.index("<svg") :]  # a page has no place for an XML declaration
        for name, colour in THEME.items():
            svg = svg.replace(colour, f"var(--{name})")
        for mark, tip in self.tips.items():
            title = f'<g id="{mark}" class="mark"><title>{escape(tip)}</title>'
            svg = svg.replace(f'<g id="{mark}">', title)
        return svg


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> list[Path]:
    """Write a figure as PNG and as SVG beside it.

    Args:
        figure: A matplotlib figure.
        path: Where to write; its suffix is replaced. Missing folders are made.

    Returns:
        The two paths, the PNG first.

    Raises:
        OSError: If a file cannot be written.

    >>> import tempfile
    >>> from matplotlib.figure import Figure
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in save_figure(Figure(), Path(folder) / "empty.png")]
    ['empty.png', 'empty.svg']
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    paths = [target.with_suffix(".png"), target.with_suffix(".svg")]
    with style():
        figure.savefig(paths[0], dpi=160, facecolor="white")
        figure.savefig(paths[1], metadata={"Date": None}, facecolor="white")
    return paths


def frontier_chart(frontier: Frontier) -> Chart:
    """Draw the frontier of the best families, and of ours."""
    best, measure, alone = frontier.reference, frontier.measure, frontier.alone
    unit = best.cost or 1.0  # where that is free, any unit will do
    chart = Chart.empty(4.6, measure, f"cost per input, of {printable(best.node)}'s")
    axes, colours = chart.axes, iter(PALETTE)
    costs, errors = [1.0], [best.error]
    for family in dict.fromkeys([*frontier.ranked[:5], "ttamer"]):  # more cannot be distinguished
        points = frontier.of(family)
        corners = [points[k] for k in lower_envelope(*frontier.curve(family))]
        x = [point.result.cost / unit for point in corners]
        y = [point.result.error for point in corners]
        colour, width = (OURS, 2.4) if family == "ttamer" else (next(colours), 1.6)
        tips = [_tip(point, unit, best.node) for point in corners]
        chart.line(x, y, tips, colour, family, width=width)
        costs += x
        errors += y
    ring: Any = {"ms": 10, "mfc": "none", "mec": THEME["ink"], "mew": 1.8, "zorder": 7}
    [mark] = axes.plot(
        [best.cost / unit], [best.error], "o", ls="", label=printable(alone, 34), **ring
    )
    chart.mark(mark, f"{alone}: {measure} {shown_error(best.error, measure)}")
    # Far above the reference nothing is worth reading: the axes end a little beyond it.
    top = best.error + 1.5 * max(best.error - min(errors), 0.25 * best.error)
    shown = [cost for cost, error in zip(costs, errors, strict=True) if error <= top]
    widest = 1.06 * max([1.0, *(cost for cost in shown if cost < 2)])
    if 0 < min(shown) < 0.1:  # or most settings would lie on the axis
        axes.set_xscale("log")
        axes.set_xlim(0.8 * min(shown), 1.15 * widest)
    else:
        axes.set_xlim(-0.02, widest)
    axes.set_ylim(max(0.0, min(errors) - 0.08 * (top - min(errors))), top or 1.0)
    axes.xaxis.set_major_formatter(as_percent)
    if measure == "error":
        axes.yaxis.set_major_formatter(as_percent)
    return chart.legend()


def _tip(point: Point, unit: float, node: str) -> str:
    result = point.result
    low, high = (shown_error(end, result.measure) for end in result.error_interval)
    return (
        f"{point.policy}: {result.measure} {shown_error(result.error, result.measure)} "
        f"({low} to {high}) at {priced(result.cost, result.unit)} per input, "
        f"{percent(result.cost / unit)} of {node}'s"
    )


def _node_colour(node: int) -> str:
    return [OURS, *PALETTE][node % (len(PALETTE) + 1)]


def answered_chart(points: Sequence[Point], trace: Trace) -> Chart:
    """Draw which node answers what share of inputs, from the cheapest setting to the dearest."""
    unit = trace.spec.unit
    chart = Chart.empty(3.9, "answered by", in_unit("cost per input", unit), grid="y")
    bars, below = np.arange(len(points)), np.zeros(len(points))
    for node, name in enumerate(trace.names):
        shares = np.array([point.result.answered[name] for point in points])
        if not shares.any():
            continue
        look: Any = {"width": 0.86, "label": printable(name), "color": _node_colour(node)}
        drawn = chart.axes.bar(bars, shares, bottom=below, **look)
        for bar, share, point in zip(drawn, shares, points, strict=True):
            asked, cost = percent(point.result.asked[name]), priced(point.result.cost, unit)
            answers = f"{name} answers {percent(share)} of inputs"
            chart.mark(bar, f"{answers}, and is asked on {asked}, at {cost} per input")
        below += shares
    # Some six labels fit below the bars.
    labelled = bars[:: max(1, -(-len(points) // 6))]
    chart.axes.set_xticks(labelled, [number(points[k].result.cost) for k in labelled])
    chart.axes.yaxis.set_major_formatter(as_percent)
    return chart.legend()


def calibration_chart(trace: Trace) -> Chart:
    """Draw the mean loss, or how often a node is right, in ten groups of rows by its confidence."""
    what, graded = "mean loss" if trace.is_graded else "right", trace.is_graded
    values = trace.loss * trace.unit if graded else 1 - trace.loss
    chart = Chart.empty(4.2, what, "confidence")
    # Confidences have no common scale: each node has groups of its own.
    last = len(trace.names) - 1  # of many nodes some are shown, the first and the last among them
    for node in sorted({round(k * last / (MAX_NODES - 1)) for k in range(MAX_NODES)}):
        name, confidence = trace.names[node], trace.confidence[:, node]
        rows = np.flatnonzero(np.isfinite(confidence) & np.isfinite(values[:, node]))
        groups = [rows[group] for group in _groups(confidence[rows])] if rows.size else []
        if len(groups) < 2:  # a node that states no confidence
            continue
        x = [float(confidence[group].mean()) for group in groups]
        y = [float(values[group, node].mean()) for group in groups]
        tips = [
            f"{name}, confidence {across:.3g}: {what} "
            f"{f'{up:.4g}' if graded else f'on {percent(up)}'} of {len(group)} rows"
            for across, up, group in zip(x, y, groups, strict=True)
        ]
        chart.line(x, y, tips, _node_colour(node), printable(name))
    if not graded:
        chart.axes.yaxis.set_major_formatter(as_percent)
        shown = trace.confidence[trace.answered]
        if not chart.is_empty and shown.min() >= 0 and shown.max() <= 1:
            chart.axes.plot([0, 1], [0, 1], color=THEME["muted"], lw=1, ls=(0, (1, 3)), zorder=2)
    return chart.legend()


def _groups(values: NDArray[np.float64]) -> list[NDArray[np.intp]]:
    """Return rows in ten groups of about equal size, by value; equal values stay together."""
    order = np.argsort(values, kind="stable")
    edges = np.searchsorted(values[order], np.quantile(values, np.linspace(0, 1, 11))[1:-1])
    return [group for group in np.split(order, np.unique(edges)) if len(group)]
