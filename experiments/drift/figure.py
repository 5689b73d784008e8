"""A figure of a replayed stream: error and cost over time, and the events of the loop."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from replay import ReplayResult

from ttamer.fitting.ladder import shown_error

# Label, colour and line width of each arm.
LOOKS = {
    "adapted": ("with the loop", "#1b7f79", 2.4),
    "fixed": ("without adaptation", "#c8553d", 1.6),
    "retuned": ("thresholds re-tuned", "#f2a541", 1.6),
    "fallback": ("the last node alone", "#9a9a9a", 1.2),
}
# The colour of text and axes.
INK = "#2b2b2b"
# The labels of the events that are marked.
MARKED = {"alarm": "alarm", "swap": "swap", "give up": "gave up"}
# The number of rows over which error and cost are averaged.
SMOOTH = 400


def draw_replay(
    replayed: ReplayResult,
    *,
    shift: int | None = None,
    title: str = "",
    smooth: int = SMOOTH,
    onto: Any = None,
) -> Any:
    """Draw error and cost of every arm over the stream.

    Args:
        replayed: The result of the replay.
        shift: The row at which the traffic changes, where it is known.
        title: The title of the figure.
        smooth: The number of rows over which error and cost are averaged.
        onto: A figure, or a part of one, to draw onto; by default a new figure is made.

    Returns:
        The matplotlib figure.
    """
    figure = Figure(figsize=(8.6, 5.6), layout="constrained") if onto is None else onto
    above, below = figure.subplots(2, 1, sharex=True)
    settings, measure = replayed.settings, replayed.measure
    factor = 100.0 if measure == "error" else 1.0  # errors are shown in percent
    promised = factor * settings.at_most
    for name, arm in reversed(replayed.arms.items()):
        label, colour, width = LOOKS[name]
        row, lost = _smoothed(arm.lost, smooth)
        _, cost = _smoothed(arm.cost, smooth)
        if name != "fallback" or np.any(lost):
            above.plot(row, factor * lost, color=colour, lw=width)
        below.plot(row, cost, color=colour, lw=width, label=label)
    above.axhline(promised, color=INK, lw=1, ls="--")
    above.annotate(
        f"promised: {shown_error(settings.at_most, measure, digits=1)}",
        (1.0, promised),
        xycoords=("axes fraction", "data"),
        xytext=(-2, 3),
        textcoords="offset points",
        fontsize=8,
        color=INK,
        ha="right",
    )
    noun = measure if settings.kind == "error" else settings.kind
    above.set_ylabel(f"{noun}, %" if measure == "error" else noun, color=INK)
    below.set_ylabel("cost per row", color=INK)
    below.set_xlabel(f"row of the stream (means over the {smooth} rows before)", color=INK)
    for axis in (above, below):
        axis.set_ylim(bottom=min(0, axis.get_ylim()[0]) if settings.kind == "drop" else 0)
        axis.set_xlim(0, len(replayed))
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
        axis.tick_params(labelsize=8, colors=INK)
        if shift is not None:
            axis.axvspan(shift, len(replayed), color="#efe9dd", zorder=0)
        for event in replayed.events:
            if event.kind in MARKED:
                axis.axvline(event.number, color=INK, lw=0.8, ls=":")
    top = above.get_ylim()[1]
    for event in replayed.events:
        if event.kind in MARKED:
            above.text(event.number, top, f" {MARKED[event.kind]}", fontsize=8, color=INK, va="top")
    if shift is not None:
        above.text(
            shift, 0.02 * top, "the traffic changes here ", fontsize=8, color=INK, ha="right"
        )
    handles, labels = below.get_legend_handles_labels()
    figure.legend(
        handles[::-1], labels[::-1], loc="outside lower center", fontsize=8, frameon=False, ncols=4
    )
    if title:
        figure.suptitle(title, fontsize=11, color=INK)
    return figure


def _smoothed(
    values: NDArray[np.float64], rows: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the ends of all windows of this many rows, and the means in them."""
    rows = min(rows, len(values))
    total = np.concatenate([[0.0], np.cumsum(values)])
    means = np.asarray((total[rows:] - total[:-rows]) / rows, np.float64)
    return np.arange(len(means), dtype=np.float64) + rows, means
