"""Why a family is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ttamer.errors import TTamerError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ttamer.baselines.moves import Moves
    from ttamer.trace.trace import Trace

__all__ = ["Unsuitable", "predictions_of", "separate_models"]


class Unsuitable(TTamerError):  # noqa: N818 - the name says what happened
    """A family has nothing to offer on this kind of trace; the message says why."""


def separate_models(moves: Moves) -> None:
    """Say that nodes which are passed at a cost are no separate models."""
    if moves.passes:
        raise Unsuitable("it takes nodes for separate models, and these are exits of one network")


def predictions_of(trace: Trace) -> NDArray[np.int32]:
    """Return the predictions, or say that there are none."""
    if trace.prediction is None:
        raise Unsuitable("it compares predictions, and the trace has none")
    return trace.prediction
