"""Baselines: common practice and published rules, under one contract.

Every family has a ``name`` and ``fit(trace)``, which returns its settings on the lower convex
envelope of the fit rows; every knob is chosen there. A rule sees of a row only the replies of the
nodes it asked; only the oracle uses the labels too (``uses_labels``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ttamer._checks import require_kind
from ttamer.baselines.chain import Chain, Pairwise
from ttamer.baselines.frugalml import FrugalML
from ttamer.baselines.reference import Always, Oracle
from ttamer.baselines.rules import Router, Unsuitable
from ttamer.baselines.threshold import (
    Calibrated,
    Confidence,
    Patience,
    Threshold,
    ThresholdPerExit,
    TraceColumn,
)
from ttamer.errors import ArgumentError
from ttamer.fitting.replay import Family, Setting
from ttamer.trace.trace import Trace

# Every baseline by name, in the order they are shown.
FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Always("always-first", 0),
        Always("always-last", -1),
        Always("always-best"),
        Threshold("threshold", lambda _: Confidence()),
        ThresholdPerExit(),
        Threshold("entropy", lambda _: TraceColumn("entropy", -1.0), sign=-1.0),
        Threshold("margin", lambda _: TraceColumn("margin")),
        Patience(),
        Threshold("calibrated", Calibrated.fit),
        Chain(),
        Pairwise(),
        FrugalML(),
        Router("router", max_nodes=1),
        Oracle(),
    )
}


def known_names(names: Iterable[str], families: Mapping[str, Family]) -> list[str]:
    """Return the names of families as a list, each once; refuse others.

    Args:
        names: The names.
        families: The families by name.

    Returns:
        The names, in their order.

    >>> known_names(["chain", "oracle", "chain"], FAMILIES)
    ['chain', 'oracle']
    >>> known_names("chain", FAMILIES)
    Traceback (most recent call last):
    ttamer.errors.ArgumentError: families must be a list of names: write ['chain']
    """
    if isinstance(names, str):  # it would be taken letter by letter
        raise ArgumentError(f"families must be a list of names: write [{names!r}]")
    require_kind(names, Iterable, "families must be a list of names", "write ['name']")
    wanted = list(dict.fromkeys(names))
    for name in wanted:
        if name not in families:
            raise ArgumentError(f"there is no family {name!r}; there are {', '.join(families)}")
    return wanted


def fit_families(
    trace: Trace,
    names: Iterable[str] | None = None,
    *,
    families: Mapping[str, Family] = FAMILIES,
    progress: Callable[[str], None] | None = None,
) -> tuple[dict[str, list[Setting]], dict[str, str]]:
    """Fit families to a trace.

    Args:
        trace: The rows to fit on.
        names: The families to fit; by default all.
        families: The families by name; by default the baselines.
        progress: Called with a line of text for each family.

    Returns:
        The settings of each by name, and why others were left out.

    >>> from ttamer import datasets
    >>> fit_families(datasets.load("minilm-imdb").take(slice(50)), ["always-first", "chain"])[1]
    {'chain': 'it takes nodes for separate models, and these are exits of one network'}
    """
    names = list(families) if names is None else known_names(names, families)
    settings: dict[str, list[Setting]] = {}
    left_out: dict[str, str] = {}
    for number, name in enumerate(names, start=1):
        if progress:
            progress(f"fitting {name} ({number} of {len(names)})")
        try:
            settings[name] = families[name].fit(trace)
        except Unsuitable as reason:
            left_out[name] = str(reason)
    return settings, left_out
