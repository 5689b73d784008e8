"""The options of a fit: one list for :func:`ttamer.fit`, files, batches, clusters and commands."""

from __future__ import annotations

from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Literal, TypedDict

import numpy as np

from ttamer._arguments import require_number, require_whole
from ttamer._numbers import is_number
from ttamer.errors import ArgumentError
from ttamer.fitted.quantiser import MAX_STATES, METHODS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ttamer._display.progress import ProgressOption
    from ttamer.fitted.quantiser import Method
    from ttamer.trace.spec import Order

__all__ = ["BeliefKind", "FitKeywords", "FitOptions"]

BeliefKind = Literal["full", "calibrated", "none", "threshold"]
BELIEFS = ("full", "calibrated", "none", "threshold")
MAX_HOLD_OUT = 0.9
"""At most this share of the rows is held out."""


class FitKeywords(TypedDict, total=False):
    """The fields of :class:`FitOptions` as keywords of a function."""

    belief: BeliefKind
    order: Order | None
    states: int | None
    quantise: Method
    smoothing: float
    tradeoffs: Iterable[float] | None
    folds: int
    seed: int
    hold_out: float
    latency_weight: float | None
    progress: ProgressOption


@dataclass(frozen=True)
class FitOptions:
    """What can be chosen about a fit.

    >>> FitOptions(belief="calibrated", states=8).states
    8
    """

    belief: BeliefKind = "full"
    """What a state loses: ``"full"``, ``"calibrated"``, or ``"none"`` for the paper as written.
    ``"threshold"`` fits nothing: each policy is one threshold on the confidence for all nodes, and
    promises are tested on all rows."""
    order: Order | None = None
    """Overrides the cascade's; ``"auto"`` tries what the cascade allows."""
    states: int | None = None
    """How many states a node has; by default chosen by cross-validation."""
    quantise: Method = "quantile"
    """How confidences become states: ``"quantile"``, ``"uniform"`` or ``"kmeans"``."""
    smoothing: float = 1.0
    """How many rows of a node's own law are added to each row of transitions."""
    tradeoffs: Iterable[float] | None = None
    """The tradeoffs to solve for, from 0 to 1; by default a range that spans the frontier. With
    belief ``"threshold"``, the thresholds."""
    folds: int = 5
    """The number of folds of cross-validation, at least 2."""
    seed: int = 0
    """The seed of the folds, and of the choice of rows held out."""
    hold_out: float = 0.0
    """The share of rows held out to test the ladder on, which promises need
    (``ladder.for_error``, ``ladder.for_drop``); at most 0.9."""
    latency_weight: float | None = None
    """What a unit of latency is worth, in the unit of cost: policies minimise the loss and ``cost +
    latency_weight * latency``. By default the cascade's."""
    progress: ProgressOption = None
    """Called with a line of text as the fit proceeds; ``True`` shows the progress (``tqdm``, or a
    line with the time left)."""

    def __post_init__(self) -> None:
        if self.belief not in BELIEFS:
            raise ArgumentError(f"belief must be one of {', '.join(BELIEFS)}, not {self.belief!r}")
        if self.quantise not in METHODS:
            raise ArgumentError(
                f"quantise must be one of {', '.join(METHODS)}, not {self.quantise!r}"
            )
        states = self.states
        whole = isinstance(states, int | np.integer)
        if states is not None and (not whole or not 1 <= states <= MAX_STATES):
            raise ArgumentError(f"states must be from 1 to {MAX_STATES}, not {states!r}")
        require_whole(self.folds, "folds", least=2)
        require_whole(self.seed, "seed")
        require_number(self.smoothing, "smoothing")
        if self.latency_weight is not None:
            require_number(self.latency_weight, "latency_weight")
        if not is_number(self.hold_out) or not 0 <= self.hold_out <= MAX_HOLD_OUT:
            raise ArgumentError(
                f"hold_out is {self.hold_out!r}; it must be from 0 to {MAX_HOLD_OUT}"
            )

    @classmethod
    def of(cls, given: FitKeywords) -> FitOptions:
        """Return the options that a function was given as keywords.

        Args:
            given: The keywords.

        Returns:
            The options, all others at their defaults.

        Raises:
            ArgumentError: There is no such option, or a value is out of range.

        >>> FitOptions.of({"beleif": "none"})
        Traceback (most recent call last):
            ...
        ttamer.errors.ArgumentError: a fit has no option 'beleif': did you mean 'belief'?
        """
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                alike = get_close_matches(name, known, n=1)
                hint = f"did you mean {alike[0]!r}?" if alike else f"it has {', '.join(known)}"
                raise ArgumentError(f"a fit has no option {name!r}: {hint}")
        return cls(**given)

    def report(self, text: str) -> None:
        """Pass a line of text to ``progress``, where there is one.

        Args:
            text: The line, without a line break.
        """
        if callable(self.progress):
            self.progress(text)
