"""A learning curve: what fits to fewer rows save, and what more rows would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ttamer._checks import counted, percent
from ttamer.evaluation.frontiers import Frontier, frontier
from ttamer.trace.trace import Trace


@dataclass(frozen=True)
class LearningCurve:
    """What policies cost at one error, by the number of rows that they were fitted to.

    >>> print(LearningCurve((250, 500, 1000), (0.6, 0.5, 0.46), "large alone"))
    Fitted to 250, 500 and 1,000 rows, ttamer costs 60%, 50% and 46% of what large alone costs; \
1,000 rows more would save about 2% more.
    """

    rows: tuple[int, ...]
    """How many rows each fit had: a quarter, half, all."""
    shares: tuple[float | None, ...]
    """The cost at the reference's error, as a share of the reference's; None: not reached."""
    against: str
    """What families are compared with: "the full network", or "large alone"."""

    @property
    def further(self) -> float | None:
        """What as many rows again would save, as a share of the reference's cost.

        Costs fall about as ``a + b / rows``, so that doubling the rows saves half of what the last
        doubling saved.
        """
        half, full = self.shares[-2:]
        return None if half is None or full is None else max((half - full) / 2, 0.0)

    def __str__(self) -> str:
        *rows, last_rows = (f"{count:,}" for count in self.rows)
        *shares, last = (
            "(not reached)" if share is None else percent(share) for share in self.shares
        )
        curve = (
            f"Fitted to {', '.join(rows)} and {last_rows} rows, ttamer costs {', '.join(shares)} "
            f"and {last} of what {self.against} costs"
        )
        if self.further is None:
            return f"{curve}."
        more = counted(self.rows[-1], "row", ",")
        saved = "nothing more" if self.further < 0.005 else f"about {percent(self.further)} more"
        return f"{curve}; {more} more would save {saved}."


def learning_curve(
    full: Frontier,
    fit_trace: Trace,
    *,
    more_error: float = 0.0,
    progress: Callable[[str], None] | None = None,
) -> LearningCurve:
    """Fit to a quarter and to half of the rows, and measure as ``full`` was measured.

    Args:
        full: The frontier of the fit to all rows, with the family ``"ttamer"``.
        fit_trace: The rows that it was fitted to.
        more_error: The margin of error at which costs are compared.
        progress: Called with a line of text as the work proceeds.

    Returns:
        The cost at the reference's error for each number of rows.
    """
    parts, fronts = [fit_trace.split(share, seed=0)[0] for share in (0.25, 0.5)], []
    for count, part in enumerate(parts, start=1):
        if progress is not None:
            progress(f"learning curve: fit {count} of {len(parts)}")
        measured = frontier(part, full.test_trace, families=["ttamer"], resamples=0)
        fronts.append(replace(measured, reference=full.reference))
    costs = [front.cost_at("ttamer", more_error) for front in (*fronts, full)]
    price = full.reference.cost
    return LearningCurve(
        rows=(*map(len, parts), len(fit_trace)),
        shares=tuple(None if cost is None or not price else cost / price for cost in costs),
        against=full.alone,
    )
