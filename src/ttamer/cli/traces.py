"""What the commands that make traces print about them."""

import numpy as np

from ttamer._checks import number
from ttamer.cli.options import refuse_trace as refuse_trace
from ttamer.errors import TraceError
from ttamer.fitting.ladder import shown_error
from ttamer.show.tables import table
from ttamer.trace.trace import Trace


def errors_of(trace: Trace) -> dict[str, float]:
    """Return the error of each node, where it is known which answers are right."""
    try:
        errors = np.nanmean(trace.loss, axis=0) * trace.unit
    except TraceError:
        return {}
    return dict(zip(trace.names, errors.tolist(), strict=True))


def node_table(trace: Trace) -> str:
    """Return the mean cost of each node, and its error where that is known."""
    errors, costs = errors_of(trace), trace.costs.mean(axis=0).tolist()
    head = ["node", "mean cost", *([trace.measure] if errors else [])]
    text = table(head, [
        [name, number(cost), *([shown_error(errors[name], trace.measure)] if errors else [])]
        for name, cost in zip(trace.names, costs, strict=True)
    ])  # fmt: skip
    if errors and trace.spec.target == "last":
        text += f"\n\n  {trace.measure}: against {trace.names[-1]}, which is right by definition"
    return text
