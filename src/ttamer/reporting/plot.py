"""Pictures. They compute nothing themselves; matplotlib loads when one is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ttamer.errors import MissingExtra

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from ttamer.theory.synthetic import Experiment

__all__ = ["draw_if_stop", "save_figure"]

STOP_COLOUR = "#1b7f79"
GO_COLOUR = "#f2a541"
BLANK_COLOUR = "#f1efec"
INK = "#2b2b2b"


def draw_if_stop(experiments: Sequence[Experiment]) -> Any:
    """Draw the if-stop matrix of the first node of each experiment, and of the last but one.

    Along: the loss of the node just asked. Up: the best loss so far, which can be no larger, so
    the upper left half stays blank. Returns a matplotlib figure.
    """
    pyplot = _pyplot()
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    colours = ListedColormap([BLANK_COLOUR, GO_COLOUR, STOP_COLOUR])
    figure, axes = pyplot.subplots(
        2, len(experiments), figsize=(3.1 * len(experiments), 6.6), sharex=True, sharey=True,
        squeeze=False, layout="constrained",
    )  # fmt: skip
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


def save_figure(figure: Any, path: str | os.PathLike[str]) -> list[Path]:
    """Write a figure as PNG and as SVG beside it; return both paths."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    paths = [target.with_suffix(".png"), target.with_suffix(".svg")]
    for each in paths:
        figure.savefig(each, dpi=160, metadata={"Date": None} if each.suffix == ".svg" else None)
    _pyplot().close(figure)
    return paths


def _shades(experiment: Experiment, place: int) -> Any:
    """Rows the best loss so far, columns the current loss: 0 cannot happen, 1 go on, 2 stop."""
    policy = experiment.policy
    problem = policy.problem
    reached = problem.parent_edge(0).probabilities[0] > 0
    stops = policy.if_stop(problem.names[place])[:, :-1]
    possible = np.tril(np.ones(stops.shape, bool)) & reached[:, np.newaxis] & reached
    return np.where(possible, np.where(stops, 2, 1), 0).T


def _pyplot() -> Any:
    try:
        import matplotlib as mpl
    except ImportError:
        raise MissingExtra("matplotlib", "plot") from None
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    return plt
