"""What a ladder and its policies do, as figures: which node answers, recall, when to stop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ttamer._numbers import percent, percents
from ttamer.evaluation.frontiers import Point
from ttamer.fitted.quantiser import edges_of
from ttamer.policy.base import Policy
from ttamer.policy.index import IndexPolicy
from ttamer.reporting.style import (
    BLANK_COLOUR,
    FAINT,
    GO_COLOUR,
    HURT_COLOUR,
    INK,
    MUTED,
    STOP_COLOUR,
    new_figure,
    plain_axes,
    printable,
    style,
)
from ttamer.theory.synthetic import Experiment
from ttamer.trace.trace import Losses, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# The most panels, bars or curves in one figure.
MAX_PANELS = 12
# The width of a figure, in inches.
WIDTH = 4.7
# Colours from the cheapest node to the most expensive: darker and darker, so that the order is
# visible without colour.
_SHADES = ("#f2a541", "#c9bb6c", "#74b096", "#1b7f79", "#2b5f80", "#3b4484")
# The number of bins of a reliability curve.
_BINS = 10


def node_colours(nodes: Sequence[str]) -> dict[str, str]:
    """Return a colour per node, the cheapest first."""
    from matplotlib.colors import LinearSegmentedColormap, to_hex

    shades = LinearSegmentedColormap.from_list("nodes", _SHADES)
    return {name: to_hex(shades(i / max(len(nodes) - 1, 1))) for i, name in enumerate(nodes)}


def draw_answered(
    rungs: Sequence[Point], nodes: Sequence[str], marked: Sequence[Point], unit: float
) -> Figure:
    """Draw, for each policy of a ladder from cheap to expensive, the share each node answers.

    Costs are shown as shares of ``unit``.
    """
    columns = _legend_columns(nodes)
    with style():
        # A long legend makes the picture taller, not the bars shorter.
        figure = new_figure(WIDTH, 3.2 + 0.19 * max(-(-len(nodes) // columns) - 3, 0))
        axes = figure.subplots()
        plain_axes(axes, grid="y")
        at = np.arange(len(rungs))
        bottom = np.zeros(len(rungs))
        for name, colour in node_colours(nodes).items():
            share = np.array([rung.result.answered[name] for rung in rungs])
            axes.bar(at, share, 0.86, bottom, color=colour, label=printable(name))
            bottom = bottom + share
        _cost_axis(axes, rungs, marked, unit, top=1.0)
        axes.set_ylim(0, 1.09)
        axes.set_yticks([0, 0.5, 1], ["0%", "50%", "100%"])
        axes.set_title("share of inputs", loc="left", color=MUTED, fontsize=9.5)
        _legend(figure, axes, columns=columns)
    return figure


def draw_recall(rungs: Sequence[Point], marked: Sequence[Point], unit: float) -> Figure:
    """Draw, for each policy, where an earlier answer was returned and whether that was better."""
    helped = np.array([rung.result.recall_helped for rung in rungs])
    hurt = np.array([rung.result.recall_hurt for rung in rungs])
    same = np.array([rung.result.recalled for rung in rungs]) - helped - hurt
    with style():
        figure = new_figure(WIDTH, 3.2)
        used, gained = figure.subplots(2, 1, sharex=True, height_ratios=(2, 3))
        at = np.arange(len(rungs))
        for axes in (used, gained):
            plain_axes(axes, grid="y")
            axes.yaxis.set_major_formatter(lambda share, _: f"{100 * abs(share):.3g}%")
        used.bar(at, same, 0.86, color=FAINT, label="same outcome")
        used.set_ylim(0, max(1.15 * same.max(), 0.01))
        gained.bar(at, helped, 0.86, color=STOP_COLOUR, label="helped")
        gained.bar(at, -hurt, 0.86, color=HURT_COLOUR, label="hurt")
        gained.axhline(0, color=MUTED, lw=0.8)
        reach = max(helped.max(), hurt.max(), 0.002)
        gained.set_ylim(-max(1.2 * hurt.max(), 0.2 * reach), 1.3 * reach)
        _cost_axis(gained, rungs, marked, unit, top=1.08 * reach)
        used.tick_params(labelbottom=False)
        used.set_title("inputs given an earlier answer", loc="left", color=MUTED, fontsize=9.5)
        if not (helped.any() or hurt.any() or same.any()):
            gained.annotate(
                "the last answer was always the one returned", (0.5, 0.6), color=MUTED,
                xycoords="axes fraction", ha="center",
            )  # fmt: skip
        handles = [*gained.get_legend_handles_labels()[0], *used.get_legend_handles_labels()[0]]
        figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False,
                      fontsize=9, labelcolor=INK, handlelength=1.1)  # fmt: skip
    return figure


def draw_stop_panels(policy: Policy) -> Figure:
    """Draw the if-stop matrices of a policy, one per node that can be followed by another.

    The horizontal axis has the node's states, the most confident first. The vertical axis has the
    best loss so far, in the order of the grid; it is never above the node's own loss. The node
    asked first has no earlier answer, so each of its states has one colour.
    """
    problem = policy.problem
    shown = [node for node in problem.order if problem.outgoing[node]][:MAX_PANELS]
    across = min(3, max(len(shown), 1))
    down = -(-len(shown) // across)
    with style():
        figure = new_figure(WIDTH, 0.55 + 1.75 * down)
        panels = figure.subplots(down, across, squeeze=False).ravel()
        for axes in panels[len(shown) :]:
            axes.set_visible(False)
        for number, (axes, node) in enumerate(zip(panels, shown, strict=False)):
            _stop_panel(axes, policy, node)
            if number % across == 0:
                axes.set_ylabel("best loss so far", color=MUTED, fontsize=8.5)
            if number >= len(shown) - across:
                axes.set_xlabel("most … least confident", color=MUTED, fontsize=8.5)
        _stop_legend(figure, "go on", "cannot happen")
    return figure


def draw_step_bars(
    policy: Policy,
    steps: Sequence[Sequence[str]],
    *,
    ends: tuple[str, str] = ("likely right", "likely wrong"),
) -> Figure:
    """Draw a walk without recall: a bar per step that is reached, a piece per state.

    ``steps`` names, for each node of the problem, the nodes that have been asked there. The
    horizontal axis has the states, from the least loss to the largest.
    """
    shown = reached_steps(policy)[:MAX_PANELS]
    with style():
        figure = new_figure(WIDTH, 0.65 + 0.62 * len(shown))
        axes = figure.subplots()
        plain_axes(axes)
        for row, node in enumerate(shown):
            order = np.argsort(policy.problem.nodes[node].losses, kind="stable")
            choice = policy.choice(policy.problem.names[node])[order, 0]
            left, width = np.arange(len(choice)) / len(choice), 1 / len(choice)
            for going, colour in ((False, STOP_COLOUR), (True, GO_COLOUR)):
                at = left[(choice >= 0) == going]
                axes.barh(
                    np.full(len(at), row), width, 0.46, at, align="edge", color=colour, ec=colour,
                    lw=0.4,
                )  # fmt: skip
            onward = [set(steps[target]) - set(steps[node]) for target in choice[choice >= 0]]
            names = list(dict.fromkeys(name for names in onward for name in sorted(names)))
            share = percent(policy.asked[policy.problem.names[node]])
            asked = _joined([printable(name, 12) for name in steps[node]]) or "at the start"
            then = "ask " + " or ".join(printable(name, 12) for name in names) if names else ""
            # Out of the layout: a text that is too long must not squeeze the bars.
            axes.text(0, row - 0.08, f"{asked}  ({share})", color=INK, fontsize=8.5,
                      in_layout=False)  # fmt: skip
            axes.text(1, row - 0.08, then, color=MUTED, fontsize=8.5, ha="right", in_layout=False)
        axes.set_xlim(0, 1)
        axes.set_ylim(len(shown) - 0.45, -0.5)
        axes.set_xticks([0, 1], ends)
        axes.set_yticks([])
        first, last = axes.get_xticklabels()
        first.set_horizontalalignment("left")
        last.set_horizontalalignment("right")
        _stop_legend(figure, "go on")
    return figure


def reached_steps(policy: Policy) -> list[int]:
    """Return the nodes that are reached and have a successor, the most often reached first."""
    problem = policy.problem
    chance = list(policy.asked.values())
    ways = [node for node in problem.order if problem.outgoing[node] and chance[node] >= 1e-3]
    # Rounded: steps that are always taken stay in their order, whatever their chances sum to.
    return sorted(ways, key=lambda node: -round(chance[node], 9))


def draw_index_bars(policy: IndexPolicy) -> Figure:
    """Draw the index of each node, the first to be asked on top, a bar per state of its parent.

    The node is asked while the best loss so far lies above its index, and else the search stops.
    """
    problem, weight = policy.problem, policy.tradeoff
    order = sorted(range(len(problem.nodes)), key=lambda node: float(policy.sigma[node].min()))
    shown = order[:MAX_PANELS]
    finite = problem.grid.values[np.isfinite(problem.grid.values)]
    most = float(finite.max(initial=0.0)) or 1.0
    with style():
        figure = new_figure(WIDTH, 1.0 + 0.52 * len(shown))
        axes = figure.subplots()
        plain_axes(axes, grid="x")
        for row, node in enumerate(shown):
            sigma = policy.sigma[node]
            index = np.clip(sigma / weight if weight else np.full(len(sigma), most), 0, most)
            height = 0.74 / len(index)
            at = row - 0.37 + height * (np.arange(len(index)) + 0.5)
            axes.barh(at, index, height, color=STOP_COLOUR)
            axes.barh(at, most - index, height, left=index, color=GO_COLOUR)
        axes.set_yticks(range(len(shown)), [printable(problem.names[node]) for node in shown])
        axes.tick_params(axis="y", labelcolor=INK)
        axes.set_ylim(len(shown) - 0.45, -0.55)
        axes.set_xlim(0, most)
        axes.xaxis.set_major_formatter(lambda loss, _: f"{100 * loss:.3g}%")
        axes.set_xlabel("best loss so far", color=MUTED, fontsize=9)
        _stop_legend(figure, "ask it")
    return figure


def draw_calibration(trace: Trace, nodes: Sequence[str]) -> Figure:
    """Draw how often each node is right, by its confidence; or what it loses."""
    colours = node_colours(nodes)
    shown = some_of(nodes)
    across = 2 if len(shown) in (2, 4) else min(3, len(shown))
    down = -(-len(shown) // across)
    graded = trace.is_graded
    outcome = trace.losses() if graded else ~trace.wrong()
    with style():
        figure = new_figure(WIDTH, 0.3 + (1.95 if across == 2 else 1.6) * down)
        panels = figure.subplots(down, across, squeeze=False, sharey=True).ravel()
        for axes in panels[len(shown) :]:
            axes.set_visible(False)
        for number, (axes, name) in enumerate(zip(panels, shown, strict=False)):
            plain_axes(axes, grid="both")
            column = trace.names.index(name)
            confidence = trace.confidence[:, column]
            mean, share, count = reliability(confidence, outcome[:, column])
            chance = bool(confidence.min() >= 0 and confidence.max() <= 1)
            if chance and not graded:
                axes.plot([0, 1], [0, 1], color=MUTED, lw=0.9, ls=(0, (1, 3)))
                axes.set_xlim(-0.03, 1.03)
                axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
            axes.plot(mean, share, "o-", color=colours[name], lw=1.6, ms=3.6)
            if not graded:
                low, high = _wilson(share, count)
                axes.fill_between(mean, low, high, color=colours[name], alpha=0.22, lw=0)
                axes.set_ylim(-0.03, 1.03)
                axes.set_yticks([0, 0.5, 1], ["0%", "50%", "100%"])
            axes.tick_params(labelsize=8.5)
            axes.set_title(printable(name, 40 // across), color=INK, fontsize=9.5)
            if number >= len(shown) - across:
                axes.set_xlabel("confidence", color=MUTED, fontsize=9)
            if number % across == 0:
                label = "mean loss" if graded else "right"
                axes.set_ylabel(label, color=MUTED, fontsize=9)
    return figure


def some_of(nodes: Sequence[str]) -> list[str]:
    """Return the nodes that get a panel: all, or as many as there is room for, evenly spread.

    >>> some_of([str(k) for k in range(25)])[-3:]
    ['20', '22', '24']
    """
    if len(nodes) <= MAX_PANELS:
        return list(nodes)
    return [nodes[round(k)] for k in np.linspace(0, len(nodes) - 1, MAX_PANELS).tolist()]


def reliability(
    confidence: NDArray[np.float64], right: Losses
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.intp]]:
    """Return per bin of confidence its mean, the mean outcome, and how many rows.

    Bins hold about as many rows each; equal confidences stay together.

    >>> mean, share, rows = reliability(np.array([0.2, 0.2, 0.8]), np.array([True, False, True]))
    >>> mean.tolist(), share.tolist(), rows.tolist()
    ([0.2, 0.8], [0.5, 1.0], [2, 1])
    """
    edges = edges_of(confidence, states=_BINS, method="quantile")
    bin_of = np.searchsorted(edges, confidence, side="right")
    rows = np.bincount(bin_of, minlength=len(edges) + 1)
    some = rows > 0
    mean = np.bincount(bin_of, confidence, len(rows))[some] / rows[some]
    return mean, np.bincount(bin_of, right, len(rows))[some] / rows[some], rows[some]


def _wilson(
    share: NDArray[np.float64], rows: NDArray[np.intp]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the ends of Wilson's 95% interval."""
    z = 1.96
    middle = (share + z * z / (2 * rows)) / (1 + z * z / rows)
    half = z * np.sqrt(share * (1 - share) / rows + z * z / (4 * rows**2)) / (1 + z * z / rows)
    return middle - half, middle + half


def _stop_panel(axes: Axes, policy: Policy, node: int) -> None:
    problem = policy.problem
    name = problem.names[node]
    own = problem.grid.positions[node]
    columns = len(problem.grid) - 1
    stops = policy.if_stop(name)
    first = all(problem.ends[edge][0] < 0 for edge in problem.incoming[node])
    count = stops.sum(axis=1)  # it stops up to a column, and not beyond
    if first:
        possible = np.full(len(own), columns)
        stopped = np.where(count > own, columns, 0)
    else:
        possible = own + 1
        stopped = np.minimum(count, possible)
    order = np.argsort(own, kind="stable")
    at = np.arange(len(own))
    plain_axes(axes)
    low, high = stopped[order], possible[order]
    axes.bar(at, columns, 1.0, color=BLANK_COLOUR, ec=BLANK_COLOUR, lw=0.4)
    axes.bar(at, low, 1.0, color=STOP_COLOUR, ec=STOP_COLOUR, lw=0.4)
    axes.bar(at, high - low, 1.0, low, color=GO_COLOUR, ec=GO_COLOUR, lw=0.4)
    axes.set_xlim(-0.5, len(own) - 0.5)
    axes.set_ylim(0, columns)
    axes.set_xticks([])
    marks = sorted({0, columns // 2, columns - 1})
    axes.set_yticks(
        [mark + 0.5 for mark in marks],
        [percent(problem.grid.values[mark]) for mark in marks],
    )
    axes.tick_params(labelsize=8)
    targets = {problem.ends[edge][1] for edge in problem.outgoing[node]}
    then = f"\n→ {printable(problem.names[targets.pop()], 16)}" if len(targets) == 1 else ""
    axes.set_title(printable(name, 18) + then, color=INK, fontsize=9)


def _cost_axis(
    axes: Axes, rungs: Sequence[Point], marked: Sequence[Point], unit: float, *, top: float
) -> None:
    """Label bars, one per policy, by cost as a share of ``unit``; point at the marked ones."""
    ticks = np.unique(np.linspace(0, len(rungs) - 1, min(6, len(rungs))).round().astype(int))
    labels = percents([rungs[i].result.cost / unit if unit else 0.0 for i in ticks])
    first = [place for place, label in enumerate(labels) if label not in labels[:place]]
    axes.set_xticks(ticks[first], [labels[place] for place in first])
    axes.tick_params(axis="x", pad=6)  # clear of the 0% of the other axis
    axes.set_xlim(-0.6, len(rungs) - 0.4)
    axes.set_xlabel("cost per input, one bar per policy", color=MUTED, fontsize=9)
    for number, rung in enumerate(rungs):
        if any(rung is each for each in marked):
            axes.plot([number], [1.045 * top], "v", color=INK, ms=6, clip_on=False)


def _legend_columns(nodes: Sequence[str]) -> int:
    """Return into how many columns the names go; those of many exits are short."""
    columns = 4 if sum(map(len, nodes)) <= 34 else 3
    if len(nodes) > 6:
        columns = max(columns, 60 // (max(map(len, nodes)) + 5))
    rows = -(-len(nodes) // columns)
    return -(-len(nodes) // rows)


def _joined(names: Sequence[str], longest: int = 44) -> str:
    """Return the nodes that have been asked; of many, the first and the last.

    >>> _joined(["a", "b"]), _joined(["conv1", "conv2", "conv3", "conv4"], longest=20)
    ('a + b', 'conv1 + 2 more + conv4')
    """
    text = " + ".join(names)
    if len(text) <= longest or len(names) < 3:
        return text
    return f"{names[0]} + {len(names) - 2} more + {names[-1]}"


def _legend(figure: Figure, axes: Axes, *, columns: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=min(columns, len(labels)), frameon=False,
        fontsize=9, labelcolor=INK, handlelength=1.1, columnspacing=1.4,
    )  # fmt: skip


def _stop_legend(figure: Figure, go: str, *blank: str) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=STOP_COLOUR, label="stop"), Patch(color=GO_COLOUR, label=go)]
    handles += [Patch(color=BLANK_COLOUR, label=label) for label in blank]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9,
                  labelcolor=INK, handlelength=1.1)  # fmt: skip


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
    """Draw the panels in the style that is set."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    colours = ListedColormap([BLANK_COLOUR, GO_COLOUR, STOP_COLOUR])
    figure = new_figure(3.1 * len(experiments), 6.6)
    axes = figure.subplots(2, len(experiments), sharex=True, sharey=True, squeeze=False)
    for column, experiment in enumerate(experiments):
        names = experiment.policy.problem.names
        for row, place in enumerate((0, len(names) - 2)):
            axis = axes[row][column]
            axis.imshow(
                _shades(experiment, place), origin="lower", extent=(0, 1, 0, 1), cmap=colours,
                vmin=0, vmax=2, interpolation="nearest", aspect="equal",
            )  # fmt: skip
            for side in axis.spines.values():
                side.set_visible(False)
            axis.tick_params(length=0, labelsize=8, colors=INK)
            axis.set_xticks([0, 0.5, 1])
            axis.set_yticks([0, 0.5, 1])
            if column == 0:
                axis.set_ylabel(f"after node {place + 1}\nbest loss so far", color=INK)
            if row == 1:
                axis.set_xlabel("loss of the node just asked", color=INK, fontsize=9)
        excess = experiment.excess_with_recall
        verdict = "is optimal" if excess < 1e-9 else f"is {excess:.2%} above"
        axes[0][column].set_title(
            f"{experiment.name}\none threshold {verdict}", fontsize=10, color=INK
        )
    figure.legend(
        handles=[
            Patch(color=STOP_COLOUR, label="stop"),
            Patch(color=GO_COLOUR, label="go on"),
            Patch(color=BLANK_COLOUR, label="cannot happen"),
        ],
        loc="outside lower center", ncols=3, frameon=False,
    )  # fmt: skip
    figure.suptitle(
        "When to stop: with independent losses only the best so far matters; with correlated ones "
        "the last one does too",
        color=INK, fontsize=12,
    )  # fmt: skip
    return figure


def _shades(experiment: Experiment, place: int) -> NDArray[np.int_]:
    """Rows are the best loss so far, columns the current loss: 0 impossible, 1 go on, 2 stop."""
    policy = experiment.policy
    problem = policy.problem
    reached = problem.parent_edge(0).probabilities[0] > 0
    stops = policy.if_stop(problem.names[place])[:, :-1]
    possible = np.tril(np.ones(stops.shape, bool)) & reached[:, np.newaxis] & reached
    return np.where(possible, np.where(stops, 2, 1), 0).T
