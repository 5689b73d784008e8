"""Figures of a report: the frontier, who answers, calibration, and when to stop.

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

from ttamer._checks import in_unit, number, percent, priced
from ttamer._extras import require
from ttamer.evaluation.frontiers import Frontier, Point, require_frontier
from ttamer.fitting.ladder import shown_error
from ttamer.fitting.replay import Played
from ttamer.show.curves import as_percent, printable, style
from ttamer.stats.envelope import lower_envelope
from ttamer.trace.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours that follow the page's light or dark theme, by the name of the page's variable.
THEME = {"ink": "#2b2b2b", "muted": "#67615a", "rule": "#e3ded6"}
INK, MUTED, RULE = THEME.values()
# The colours of ttamer, and of other families and nodes: readable on light and on dark.
OURS = "#1b7f79"
PALETTE = (
    "#d9822b",
    "#3d78b8",
    "#c8553d",
    "#8e6bbf",
    "#5f8f3e",
    "#b0599b",
    "#3f8ea8",
    "#a5721f",
    "#7d8590",
    "#d46a8c",
    "#9aa23c",
)
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
        figure = new_figure(5.6, height)
        axes = figure.subplots()
        plain_axes(axes, grid=grid)
        axes.set_title(title, loc="left", color=MUTED, fontsize=11)
        axes.set_xlabel(x_label, color=MUTED)
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
        size: float = 4.5,
    ) -> None:
        """Draw a line, and a mark on each of its points."""
        self.axes.plot(x, y, color=colour, lw=width, label=label, zorder=3)
        for across, up, tip in zip(x, y, tips, strict=True):
            [dot] = self.axes.plot([across], [up], "o", ms=size, color=colour, zorder=4)
            self.mark(dot, tip)

    def mark(self, artist: Any, tip: str) -> None:
        """Give a mark of the figure what it says when it is pointed at."""
        name = f"mark-{id(self.tips)}-{len(self.tips)}"
        artist.set_gid(name)
        self.tips[name] = tip

    def legend(self) -> Chart:
        """Draw the legend below the axes, if there is something in them."""
        labels = self.axes.get_legend_handles_labels()[1]
        if labels:
            columns = 3 if max(map(len, labels)) < 14 else 2
            self.figure.legend(
                loc="outside lower center",
                ncols=columns,
                frameon=False,
                fontsize=10,
                labelcolor=INK,
            )
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
        svg = svg[svg.index("<svg") :]
        for name, colour in THEME.items():
            svg = svg.replace(colour, f"var(--{name})")
        for mark, tip in self.tips.items():
            title = f'<g id="{mark}" class="mark"><title>{escape(tip)}</title>'
            svg = svg.replace(f'<g id="{mark}">', title)
        return svg


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, in inches."""
    require("matplotlib", "report")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def plain_axes(axes: Axes, *, grid: Any = "both") -> None:
    """Leave of the axes only what is read: ``grid`` is "x", "y", "both" or nothing."""
    axes.set_facecolor("none")
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(which="both", length=0, labelsize=10, colors=MUTED)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(axis=grid, color=RULE, lw=0.8)


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> list[Path]:
    """Write a figure as PNG and as SVG beside it.

    Args:
        figure: A matplotlib figure, such as :func:`~ttamer.reporting.draw_frontier` returns.
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


def draw_frontier(frontier: Frontier) -> Figure:
    """Draw error against cost: what each family reaches when two of its settings may be mixed.

    Args:
        frontier: What :func:`ttamer.frontier` returned.

    Returns:
        A matplotlib figure; :func:`save_figure` writes it.

    Raises:
        MissingExtra: If matplotlib is not installed.

    >>> from ttamer import datasets
    >>> from ttamer.evaluation import frontier
    >>> rows = datasets.load("langid", "fit").take(slice(400))
    >>> result = frontier(rows, families=["threshold", "chain"], resamples=0)
    >>> len(draw_frontier(result).axes)
    1
    """
    require_frontier(frontier, "draw_frontier")
    with style():
        return frontier_chart(frontier).figure


def frontier_chart(frontier: Frontier) -> Chart:
    """Draw the frontier: the best families in colour, others in grey."""
    best, measure = frontier.reference, frontier.measure
    unit = best.cost or frontier.full_cost or 1.0
    chart = Chart.empty(4.6, measure, f"cost per input, of {printable(best.node)}'s")
    axes = chart.axes
    ranked = sorted(frontier.deciding, key=frontier.area)
    strong = ranked[:5]
    if "ttamer" in ranked and "ttamer" not in strong:
        strong[-1] = "ttamer"
    colours = iter(PALETTE)
    costs, errors = [1.0], [best.error]
    for family in [*strong, *(name for name in ranked if name not in strong)]:
        points = frontier.of(family)
        corners = [points[k] for k in lower_envelope(*frontier.curve(family))]
        x = [point.result.cost / unit for point in corners]
        y = [point.result.error for point in corners]
        if family not in strong:
            axes.plot(x, y, color=MUTED, lw=0.8, alpha=0.45, zorder=2)
            continue
        colour, width = (OURS, 2.4) if family == "ttamer" else (next(colours), 1.6)
        tips = [_tip(point, unit, best.node) for point in corners]
        chart.line(x, y, tips, colour, family, width=width)
        costs += x
        errors += y
    [ring] = axes.plot(
        [best.cost / unit],
        [best.error],
        "o",
        ms=10,
        mfc="none",
        mec=INK,
        mew=1.8,
        zorder=7,
        ls="none",
        label=printable(frontier.alone, 34),
    )
    chart.mark(ring, f"{frontier.alone}: {measure} {shown_error(best.error, measure)}")
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
        f"{percent(result.cost / unit)} of {node}'s; asks {node} on {percent(result.asked[node])} "
        "of inputs"
    )


def _shown_nodes(trace: Trace) -> list[int]:
    """Return the numbers of at most ``MAX_NODES`` nodes, the first and the last among them."""
    last = len(trace.names) - 1
    return sorted({round(k * last / (MAX_NODES - 1)) for k in range(MAX_NODES)})


def _node_colour(node: int) -> str:
    return (OURS, *PALETTE)[node % (len(PALETTE) + 1)]


def answered_chart(points: Sequence[Point], trace: Trace) -> Chart:
    """Draw which node answers what share of inputs, from the cheapest setting to the dearest."""
    chart = Chart.empty(3.9, "answered by", in_unit("cost per input", trace.spec.unit), grid="y")
    places, below = np.arange(len(points)), np.zeros(len(points))
    for node, name in enumerate(trace.names):
        shares = np.array([point.result.answered[name] for point in points])
        if not shares.any():
            continue
        bars = chart.axes.bar(
            places,
            shares,
            bottom=below,
            width=0.86,
            label=printable(name),
            color=_node_colour(node),
        )
        for bar, share, point in zip(bars, shares, points, strict=True):
            chart.mark(
                bar,
                f"{name} answers {percent(share)} of inputs, and is asked on "
                f"{percent(point.result.asked[name])}, at "
                f"{priced(point.result.cost, trace.spec.unit)} per input",
            )
        below += shares
    labelled = places[:: max(1, -(-len(points) // 6))]
    chart.axes.set_xticks(labelled, [number(points[k].result.cost) for k in labelled])
    chart.axes.yaxis.set_major_formatter(as_percent)
    return chart.legend()


def _groups(values: NDArray[np.float64]) -> list[NDArray[np.intp]]:
    """Return rows in ten groups of about equal size, by value; equal values stay together."""
    order = np.argsort(values, kind="stable")
    edges = np.searchsorted(values[order], np.quantile(values, np.linspace(0, 1, 11))[1:-1])
    return [group for group in np.split(order, np.unique(edges)) if len(group)]


def calibration_chart(trace: Trace) -> Chart:
    """Draw how often each node is right, by its confidence; or what it loses."""
    losses, is_graded = trace.loss * trace.unit, trace.measure != "error"
    chart = Chart.empty(4.2, "mean loss" if is_graded else "right", "confidence")
    within = not is_graded
    for node in _shown_nodes(trace):
        name, confidence = trace.names[node], trace.confidence[:, node]
        answered = np.flatnonzero(np.isfinite(confidence) & np.isfinite(losses[:, node]))
        if not answered.size:
            continue
        groups = [answered[group] for group in _groups(confidence[answered])]
        if len(groups) < 2:  # a node that states no confidence
            continue
        x = [float(confidence[group].mean()) for group in groups]
        y = [float(losses[group, node].mean()) for group in groups]
        if not is_graded:
            y = [1 - error for error in y]
        within = within and min(x) >= 0 and max(x) <= 1
        tips = [
            f"{name}, confidence {across:.3g}: "
            + (f"mean loss {up:.4g}" if is_graded else f"right on {percent(up)}")
            + f" of {len(group)} rows"
            for across, up, group in zip(x, y, groups, strict=True)
        ]
        chart.line(x, y, tips, _node_colour(node), printable(name))
    if within and chart.axes.lines:
        chart.axes.plot([0, 1], [0, 1], color=MUTED, lw=1, ls=(0, (1, 3)), zorder=2)
    if not is_graded:
        chart.axes.yaxis.set_major_formatter(as_percent)
    return chart.legend()


def stopping_chart(played: Played, trace: Trace) -> Chart:
    """Draw how often a policy stops after each node, by that node's confidence."""
    chart = Chart.empty(4.2, "stops there", "confidence of the node just asked")
    for node in _shown_nodes(trace):
        name, confidence, stop = trace.names[node], trace.confidence[:, node], played.last == node
        asked = np.flatnonzero(played.asked[:, node] & np.isfinite(confidence))
        if not asked.size or stop[asked].all():  # the end of every path says nothing
            continue
        groups = [asked[group] for group in _groups(confidence[asked])]
        x = [float(confidence[group].mean()) for group in groups]
        y = [float(stop[group].mean()) for group in groups]
        tips = [
            f"after {name} with confidence {across:.3g} it stops on {percent(up)} of "
            f"{len(group)} rows"
            for across, up, group in zip(x, y, groups, strict=True)
        ]
        chart.line(x, y, tips, _node_colour(node), printable(name))
    chart.axes.set_ylim(-0.04, 1.04)
    chart.axes.yaxis.set_major_formatter(as_percent)
    return chart.legend()
