"""When to stop on synthetic losses: the paper's Figure 8."""

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from ttamer.theory import Experiment

INK, BLANK, GO, STOP = "#2b2b2b", "#f1efec", "#f2a541", "#1b7f79"


def draw_if_stop(experiments: Sequence[Experiment]) -> Figure:
    """Draw two panels for each experiment: after its first node, and after its last but one.

    The horizontal axis is the loss of the node just asked. The vertical axis is the best loss so
    far, which can be no larger, so the upper left half stays blank.
    """
    colours = ListedColormap([BLANK, GO, STOP])
    figure = Figure(figsize=(3.1 * len(experiments), 6.6), layout="constrained")
    axes = figure.subplots(2, len(experiments), sharex=True, sharey=True, squeeze=False)
    for column, experiment in enumerate(experiments):
        names = experiment.policy.problem.names
        for row, index in enumerate((0, len(names) - 2)):
            axis = axes[row][column]
            axis.imshow(
                shades(experiment, index),
                origin="lower",
                extent=(0, 1, 0, 1),
                cmap=colours,
                vmin=0,
                vmax=2,
                interpolation="nearest",
                aspect="equal",
            )
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
            Patch(color=STOP, label="stop"),
            Patch(color=GO, label="go on"),
            Patch(color=BLANK, label="cannot happen"),
        ],
        loc="outside lower center",
        ncols=3,
        frameon=False,
    )
    figure.suptitle(
        "When to stop: with independent losses only the best so far matters; with correlated ones "
        "the last one does too",
        color=INK,
        fontsize=12,
    )
    return figure


def shades(experiment: Experiment, index: int) -> NDArray[np.int_]:
    """Rows are the best loss so far, columns the current loss: 0 impossible, 1 go on, 2 stop."""
    policy = experiment.policy
    problem = policy.problem
    reached = problem.parent_edge(0).probabilities[0] > 0
    stops = policy.if_stop(problem.names[index])[:, :-1]
    possible = np.tril(np.ones(stops.shape, bool)) & reached[:, np.newaxis] & reached
    return np.where(possible, np.where(stops, 2, 1), 0).T
