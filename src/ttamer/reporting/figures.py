"""Figures of a report: the frontier, who answers, calibration, and when to stop.

Figures are made without pyplot, so that nothing global is touched. Names come from users: they are
drawn as they stand (no mathematics), cut to a length, and without what cannot be printed.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ttamer._checks import number, percent, priced
from ttamer._extras import require
from ttamer.evaluation.frontiers import Frontier, Point, require_frontier, uses_labels
from ttamer.fitting.ladder import shown_error
from ttamer.fitting.replay import Played
from ttamer.stats.envelope import lower_envelope
from ttamer.theory.synthetic import Experiment
from ttamer.trace.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours that follow the page's light or dark theme, by the name of the page's variable.
THEME = {"ink": "#2b2b2b", "muted": "#67615a", "rule": "#e3ded6", "blank": "#f1efec"}
INK, MUTED, RULE, BLANK = THEME.values()
# ttamer's own colour, and what stops; what goes on.
OURS, GO = "#1b7f79", "#f2a541"
# The colours of other families and of nodes, readable on light and on dark.
PALETTE = ("#d9822b", "#3d78b8", "#c8553d", "#8e6bbf", "#5f8f3e", "#b0599b", "#3f8ea8", "#a5721f")
# The most nodes that are drawn apart.
MAX_NODES = 8
# The number of groups of rows by confidence.
BINS = 10


@dataclass(frozen=True)
class Drawing:
    """A figure, and what each of its marks says when it is pointed at."""

    figure: Figure
    tips: dict[str, str] = field(default_factory=dict)

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

    def mark(self, artist: Any, tip: str) -> None:
        """Give a mark of the figure what it says when it is pointed at."""
        name = f"mark-{id(self.tips)}-{len(self.tips)}"
        artist.set_gid(name)
        self.tips[name] = tip


@contextmanager
def style() -> Iterator[None]:
    """Draw or save with the settings that all figures share."""
    mpl = require("matplotlib", "report")
    settings: dict[str, Any] = {
        "text.parse_math": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "ttamer",
        "font.size": 11.0,
        "font.family": "sans-serif",
    }
    with mpl.rc_context(settings), warnings.catch_warnings():
        # A name in a script the font lacks: the page shows it, the PNG shows boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


def printable(name: object, length: int = 24) -> str:
    r"""Return a name fit to be drawn: one line, no control characters, not too long.

    >>> printable("a\n b\x00"), printable("x" * 40)
    ('a b�', 'xxxxxxxxxxxxxxxxxxxxxxx…')
    """
    text = "".join(c if c.isprintable() else "�" for c in " ".join(str(name).split()))
    text = text if len(text) <= length else text[: length - 1] + "…"
    return f" {text}" if text.startswith("_") else text  # matplotlib hides labels with _ in front


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
    return frontier_drawing(frontier).figure


def frontier_drawing(frontier: Frontier) -> Drawing:
    """Draw the frontier: the best families in colour, the settings of ttamer with intervals."""
    reference = frontier.reference
    unit = reference.cost or frontier.full_cost or 1.0
    with style():
        drawing = Drawing(new_figure(5.6, 4.6))
        axes = drawing.figure.subplots()
        plain_axes(axes)
        ranked = sorted((f for f in frontier.families if not uses_labels(f)), key=frontier.area)
        strong = ranked[:5]
        if "ttamer" in ranked and "ttamer" not in strong:
            strong[-1] = "ttamer"
        colours = iter(PALETTE)
        costs, errors = [1.0], [reference.error]
        for family in [*strong, *(f for f in ranked if f not in strong)]:
            points = frontier.of(family)
            corners = [points[k] for k in lower_envelope(*frontier.curve(family))]
            x = [point.result.cost / unit for point in corners]
            y = [point.result.error for point in corners]
            if family not in strong:
                axes.plot(x, y, color=MUTED, lw=0.8, alpha=0.45, zorder=2)
                continue
            colour = OURS if family == "ttamer" else next(colours)
            axes.plot(x, y, color=colour, lw=2.4 if family == "ttamer" else 1.6, zorder=4,
                      label=family, marker="s" if len(corners) == 1 else None)  # fmt: skip
            costs += x
            errors += y
            for point, cost, error in zip(corners, x, y, strict=True):
                [dot] = axes.plot([cost], [error], "o", ms=5, color=colour, zorder=6)
                drawing.mark(dot, _tip(point, unit, reference.node))
        [ring] = axes.plot([reference.cost / unit], [reference.error], "o", ms=10, mfc="none",
                           mec=INK, mew=1.8, zorder=7, ls="none",
                           label=printable(frontier.alone, 34))  # fmt: skip
        drawing.mark(ring, f"{frontier.alone}: {frontier.measure} "
                     f"{shown_error(reference.error, frontier.measure)}")  # fmt: skip
        top = reference.error + 1.5 * max(reference.error - min(errors), 0.25 * reference.error)
        shown = [cost for cost, error in zip(costs, errors, strict=True) if error <= top]
        widest = 1.06 * max([1.0, *(cost for cost in shown if cost < 2)])
        lowest = min(shown)
        if 0 < lowest < 0.1:  # or most settings would lie on the axis
            axes.set_xscale("log")
            axes.set_xlim(0.8 * lowest, 1.15 * widest)
        else:
            axes.set_xlim(-0.02, widest)
        axes.set_ylim(max(0.0, min(errors) - 0.08 * (top - min(errors))), top or 1.0)
        axes.xaxis.set_major_formatter(lambda share, _: f"{100 * share:.4g}%")
        if frontier.measure == "error":
            axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.4g}%")
        axes.set_xlabel(f"cost per input, of {printable(reference.node)}'s", color=MUTED)
        axes.set_title(frontier.measure, loc="left", color=MUTED, fontsize=11)
        drawing.figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=10,
                              labelcolor=INK)  # fmt: skip
    return drawing


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
    count = len(trace.names)
    return sorted({round(k * (count - 1) / max(MAX_NODES - 1, 1)) for k in range(MAX_NODES)})[
        :count
    ]


def answered_drawing(points: Sequence[Point], trace: Trace) -> Drawing:
    """Draw which node answers what share of inputs, from the cheapest setting to the dearest."""
    with style():
        drawing = Drawing(new_figure(5.6, 3.9))
        axes = drawing.figure.subplots()
        plain_axes(axes, grid="y")
        places, below = np.arange(len(points)), np.zeros(len(points))
        for node, name in enumerate(trace.names):
            shares = np.array([point.result.answered[name] for point in points])
            if not shares.any():
                continue
            bars = axes.bar(places, shares, bottom=below, width=0.86, color=_node_colour(node),
                            label=printable(name))  # fmt: skip
            for bar, share, point in zip(bars, shares, points, strict=True):
                asked, cost = point.result.asked[name], point.result.cost
                drawing.mark(bar, f"{name} answers {percent(share)} of inputs, and is asked on "
                             f"{percent(asked)}, at {priced(cost, trace.spec.unit)} per "
                             "input")  # fmt: skip
            below += shares
        labelled = places[:: max(1, -(-len(points) // 6))]
        axes.set_xticks(labelled, [number(points[k].result.cost) for k in labelled])
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.4g}%")
        unit = f" ({trace.spec.unit})" if trace.spec.unit else ""
        axes.set_xlabel(f"cost per input{unit}", color=MUTED)
        axes.set_title("answered by", loc="left", color=MUTED, fontsize=11)
        drawing.figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=10,
                              labelcolor=INK)  # fmt: skip
    return drawing


def _node_colour(node: int) -> str:
    return (OURS, *PALETTE)[node % (len(PALETTE) + 1)]


def _groups(values: NDArray[np.float64]) -> list[NDArray[np.intp]]:
    """Return rows in groups of about equal size, by rising value; equal values stay together."""
    order = np.argsort(values, kind="stable")
    edges = np.searchsorted(values[order], np.quantile(values, np.linspace(0, 1, BINS + 1))[1:-1])
    return [group for group in np.split(order, np.unique(edges)) if len(group)]


def calibration_drawing(trace: Trace) -> Drawing:
    """Draw how often each node is right, by its confidence; or what it loses."""
    losses = trace.loss * trace.unit
    graded = trace.measure != "error"
    with style():
        drawing = Drawing(new_figure(5.6, 4.2))
        axes = drawing.figure.subplots()
        plain_axes(axes)
        confidences = []
        for node in _shown_nodes(trace):
            name, confidence = trace.names[node], trace.confidence[:, node]
            answered = np.flatnonzero(np.isfinite(confidence) & np.isfinite(losses[:, node]))
            if not answered.size:
                continue
            groups = [answered[group] for group in _groups(confidence[answered])]
            x = np.array([confidence[group].mean() for group in groups])
            loss = np.array([losses[group, node].mean() for group in groups])
            y = loss if graded else 1 - loss
            confidences += [x.min(), x.max()]
            axes.plot(x, y, color=_node_colour(node), lw=1.6, label=printable(name), zorder=3)
            for across, up, group in zip(x, y, groups, strict=True):
                [dot] = axes.plot([across], [up], "o", ms=4.5, color=_node_colour(node), zorder=4)
                value = f"mean loss {up:.4g}" if graded else f"right on {percent(up)}"
                drawing.mark(dot, f"{name}, confidence {across:.3g}: {value} of {len(group)} rows")
        if not graded and confidences and min(confidences) >= 0 and max(confidences) <= 1:
            axes.plot([0, 1], [0, 1], color=MUTED, lw=1, ls=(0, (1, 3)), zorder=2)
        if not graded:
            axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.4g}%")
        axes.set_xlabel("confidence", color=MUTED)
        axes.set_title("mean loss" if graded else "right", loc="left", color=MUTED, fontsize=11)
        drawing.figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=10,
                              labelcolor=INK)  # fmt: skip
    return drawing


def stopping_drawing(played: Played, trace: Trace) -> Drawing:
    """Draw how often a policy stops after each node, by that node's confidence."""
    stops = {node: played.last == node for node in _shown_nodes(trace)}
    with style():
        drawing = Drawing(new_figure(5.6, 4.2))
        axes = drawing.figure.subplots()
        plain_axes(axes)
        for node, stop in stops.items():
            confidence = trace.confidence[:, node]
            asked = np.flatnonzero(played.asked[:, node] & np.isfinite(confidence))
            if not asked.size or stop[asked].all():  # the end of every path says nothing
                continue
            groups = [asked[group] for group in _groups(confidence[asked])]
            x = [float(confidence[group].mean()) for group in groups]
            y = [float(stop[group].mean()) for group in groups]
            name = trace.names[node]
            axes.plot(x, y, color=_node_colour(node), lw=1.6, label=printable(name), zorder=3)
            for across, up, group in zip(x, y, groups, strict=True):
                [dot] = axes.plot([across], [up], "o", ms=4.5, color=_node_colour(node), zorder=4)
                drawing.mark(dot, f"after {name} with confidence {across:.3g} it stops on "
                             f"{percent(up)} of {len(group)} rows")  # fmt: skip
        axes.set_ylim(-0.04, 1.04)
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.4g}%")
        axes.set_xlabel("confidence of the node just asked", color=MUTED)
        axes.set_title("stops there", loc="left", color=MUTED, fontsize=11)
        if axes.lines:
            drawing.figure.legend(loc="outside lower center", ncols=3, frameon=False,
                                  fontsize=10, labelcolor=INK)  # fmt: skip
    return drawing


def draw_if_stop(experiments: Sequence[Experiment]) -> Figure:
    """Draw the if-stop matrices of the paper's synthetic experiments.

    Each experiment has two panels: after its first node, and after its last node but one. The
    horizontal axis is the loss of the node just asked. The vertical axis is the best loss so far,
    which can be no larger, so the upper left half stays blank.

    Args:
        experiments: What :func:`ttamer.theory.if_stop_experiments` returns.

    Returns:
        A matplotlib figure; :func:`save_figure` writes it.

    Raises:
        MissingExtra: If matplotlib is not installed.

    >>> from ttamer.theory import if_stop_experiments
    >>> len(draw_if_stop(if_stop_experiments(nodes=3, states=6)).axes)
    8
    """
    with style():
        return _if_stop(experiments)


def _if_stop(experiments: Sequence[Experiment]) -> Figure:
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    colours = ListedColormap([BLANK, GO, OURS])
    figure = new_figure(3.1 * len(experiments), 6.6)
    axes = figure.subplots(2, len(experiments), sharex=True, sharey=True, squeeze=False)
    for column, experiment in enumerate(experiments):
        names = experiment.policy.problem.names
        for row, index in enumerate((0, len(names) - 2)):
            axis = axes[row][column]
            axis.imshow(
                _shades(experiment, index), origin="lower", extent=(0, 1, 0, 1), cmap=colours,
                vmin=0, vmax=2, interpolation="nearest", aspect="equal",
            )  # fmt: skip
            for side in axis.spines.values():
                side.set_visible(False)
            axis.tick_params(length=0, labelsize=8, colors=INK)
            axis.set_xticks([0, 0.5, 1])
            axis.set_yticks([0, 0.5, 1])
            if column == 0:
                axis.set_ylabel(f"after node {index + 1}\nbest loss so far", color=INK)
            if row == 1:
                axis.set_xlabel("loss of the node just asked", color=INK, fontsize=9)
        excess = experiment.excess_with_recall
        verdict = "is optimal" if excess < 1e-9 else f"is {excess:.2%} above"
        axes[0][column].set_title(
            f"{experiment.name}\none threshold {verdict}", fontsize=10, color=INK
        )
    figure.legend(
        handles=[
            Patch(color=OURS, label="stop"),
            Patch(color=GO, label="go on"),
            Patch(color=BLANK, label="cannot happen"),
        ],
        loc="outside lower center", ncols=3, frameon=False,
    )  # fmt: skip
    figure.suptitle(
        "When to stop: with independent losses only the best so far matters; with correlated ones "
        "the last one does too",
        color=INK, fontsize=12,
    )  # fmt: skip
    return figure


def _shades(experiment: Experiment, index: int) -> NDArray[np.int_]:
    """Rows are the best loss so far, columns the current loss: 0 impossible, 1 go on, 2 stop."""
    policy = experiment.policy
    problem = policy.problem
    reached = problem.parent_edge(0).probabilities[0] > 0
    stops = policy.if_stop(problem.names[index])[:, :-1]
    possible = np.tril(np.ones(stops.shape, bool)) & reached[:, np.newaxis] & reached
    return np.where(possible, np.where(stops, 2, 1), 0).T
