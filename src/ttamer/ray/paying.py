"""When a cluster pays, by constants measured with experiments/ray/growth.py.

Seconds of a fit on a cluster: ``start + rows / (workers * ROWS_PER_SECOND)``, and
``rows / LOCAL_ROWS_PER_SECOND`` here. What both do alike, choosing a plan on the sample, is left
out. The constants are wall times on a machine of two cores, with three nodes; that more than two
workers add up is assumed. A hint, and no more.
"""

from __future__ import annotations

import math

__all__ = ["hint", "pays_from"]

LOCAL_ROWS_PER_SECOND = 3_600_000
ROWS_PER_SECOND = 3_400_000
"""Of one worker with one core, of two."""
STARTING = 0.5
"""Seconds until the workers of a cluster have loaded what they need."""
STARTING_CLUSTER = 3.0
"""Seconds until a cluster is there, where one is started for the fit."""


def pays_from(workers: int, *, new_cluster: bool = False) -> float:
    """Return from how many rows on so many workers are faster than a local fit.

    >>> pays_from(1)
    inf
    >>> pays_from(64) < pays_from(2) < pays_from(2, new_cluster=True)
    True
    """
    start = STARTING + STARTING_CLUSTER * new_cluster
    gain = 1 / LOCAL_ROWS_PER_SECOND - 1 / (workers * ROWS_PER_SECOND)
    return start / gain if gain > 0 else math.inf


def hint(rows: int, workers: int, *, new_cluster: bool = False) -> str | None:
    """Return a line that says so where a local fit would be faster.

    >>> hint(10**12, workers=64)
    >>> hint(1000, workers=2)
    '1000 rows on 2 workers: a local fit would be faster, up to about 4,000,000 rows; use
     ttamer.fitting.streaming.fit_file (ttamer fit --stream)'
    """
    least = pays_from(workers, new_cluster=new_cluster)
    if rows >= least:
        return None
    upto = "whatever the rows" if math.isinf(least) else f"up to about {_rounded(least)} rows"
    return (
        f"{rows} rows on {workers} worker{'s' * (workers > 1)}: a local fit would be faster, "
        f"{upto}; use ttamer.fitting.streaming.fit_file (ttamer fit --stream)"
    )


def _rounded(rows: float) -> str:
    return f"{float(f'{rows:.1g}'):,.0f}"
