"""What the fit and the baselines of version 0.2 read; it goes with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import TraceError
from ttamer.trace.losses import losses_of

if TYPE_CHECKING:
    from ttamer.trace.trace import Trace

Losses: TypeAlias = "NDArray[np.bool_] | NDArray[np.float64]"
# Columns of a node that a belief may read beside its confidence.
BELIEF_FIELDS = ("margin", "entropy")
# Columns that a node may have besides its confidence, prediction, correctness and cost.
EXTRA_FIELDS = (*BELIEF_FIELDS, "latency")


class OldTrace:
    """Losses without gaps, signals and extras."""

    def wrong(self, target: Any = None) -> NDArray[np.bool_]:
        """Return, shape (T, n), where each node is wrong; refuse gaps."""
        trace = cast("Trace", self)
        if trace.is_graded:
            raise TraceError("answers of this trace have losses: read loss")
        return np.asarray(_complete(trace, losses_of(trace, target)) > 0)

    def losses(self, target: Any = None) -> Losses:
        """Return, shape (T, n), what each answer loses; refuse gaps."""
        trace = cast("Trace", self)
        if trace.is_graded:
            return _complete(trace, losses_of(trace, target))
        return self.wrong(target)

    def loss_shares(self, target: Any = None) -> Losses:
        """Return the losses as shares of the unit."""
        losses = self.losses(target)
        return losses if losses.dtype == np.bool_ else losses / cast("Trace", self).unit

    @property
    def loss_scale(self) -> float:
        """The unit of loss."""
        return cast("Trace", self).unit

    @property
    def signals(self) -> Mapping[str, NDArray[np.float64]]:
        """The inputs that are numbers."""
        inputs = cast("Trace", self).inputs
        return {name: v for name, v in inputs.items() if v.ndim == 1 and v.dtype.kind == "f"}

    @property
    def extras(self) -> Mapping[str, NDArray[np.float64]]:
        """Margin, entropy and latency."""
        columns = {name: getattr(self, name) for name in EXTRA_FIELDS}
        return {name: values for name, values in columns.items() if values is not None}


def _complete(trace: Trace, losses: NDArray[np.float64]) -> NDArray[np.float64]:
    bad = np.argwhere(np.isnan(losses))
    if not len(bad):
        return losses
    row, node = bad[0]
    rows = len(np.unique(bad[:, 0]))
    if trace.answered[row, node]:
        what = f"the loss of {trace.names[node]!r} is not known (no label, or no correct)"
    else:
        what = f"{trace.names[node]!r} has no answer"
    raise TraceError(
        f"row {row} (counting from 0): {what}, and so {rows} of {len(losses)} rows; this needs "
        "complete rows: leave these out with trace.take(~np.isnan(trace.loss).any(axis=1))"
    )
