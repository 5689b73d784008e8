"""The page of a report: one self-contained HTML file, made from ``page.html.j2``.

The page fetches nothing. Its content security policy allows exactly one script, which shows what a
mark of a figure is when it is pointed at; without it the browser's own tooltips do. Every string
from outside is escaped by the template.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Iterable
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from ttamer import __version__
from ttamer._checks import counted, percent, priced, require_path
from ttamer._extras import require
from ttamer.errors import ArgumentError
from ttamer.evaluation.frontiers import (
    SUMMARIES,
    Frontier,
    family_names,
    frontier,
    learning_curve,
    require_frontier,
)
from ttamer.fitting.ladder import shown_error
from ttamer.reporting import figures
from ttamer.reporting.recommendation import Recommendation, Share, budget_of, less, recommend
from ttamer.show import ProgressOption, shown
from ttamer.show.curves import style
from ttamer.stats.envelope import lower_envelope
from ttamer.trace.checks import require_trace
from ttamer.trace.trace import Trace


def report(
    trace: Trace,
    path: str | os.PathLike[str],
    *,
    test_trace: Trace | None = None,
    families: Iterable[str] | None = None,
    progress: ProgressOption = None,
) -> Frontier:
    """Fit, compare with the baselines, and write the page: one call for ``ttamer report``.

    Args:
        trace: The rows. Without ``test_trace`` one random half is fitted to, and the other
            measured.
        path: Where to write the page; its figures are in a folder beside it.
        test_trace: The rows to measure on; ``trace`` is then fitted to.
        families: The families to compare; by default all. ``"ttamer"`` is always among them.
        progress: Called with a line of text as the work proceeds; ``True`` shows the progress.

    Returns:
        The frontier that the page shows.

    Raises:
        ArgumentError: As :func:`ttamer.frontier`, and if ``path`` does not end in ``.html``.
        MissingExtra: If matplotlib or jinja2 is not installed.

    >>> import tempfile
    >>> from ttamer import datasets
    >>> rows = datasets.load("langid", "fit").take(slice(400))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = report(rows, Path(folder, "report.html"), families=["chain"])
    ...     sorted(file.name for file in Path(folder).iterdir())
    ['report.html', 'report_figures']
    """
    require_page(path)
    require_trace(trace, "a report")
    names = None if families is None else list(dict.fromkeys(["ttamer", *family_names(families)]))
    if test_trace is None:
        trace, test_trace = trace.split(0.5, seed=0)
    with shown(progress) as hook:
        result = frontier(trace, test_trace, families=names, progress=hook)
        write_report(result, path, fit_trace=trace, progress=hook)
    return result


def write_report(
    frontier: Frontier,
    path: str | os.PathLike[str],
    *,
    png: bool = True,
    fit_trace: Trace | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[Path]:
    """Write one self-contained HTML file, and its figures as PNG and SVG in a folder beside it.

    Args:
        frontier: What :func:`ttamer.frontier` returned, with the family ``"ttamer"``.
        path: Where to write the page. The folder of figures has its name and ``_figures``.
        png: Whether to write the figures too.
        fit_trace: The rows fitted to, for a learning curve.
        progress: Called with a line of text as the work proceeds.

    Returns:
        The paths written, the page first.

    Raises:
        ArgumentError: If the frontier lacks ``"ttamer"``, or ``path`` does not end in ``.html``.
        MissingExtra: If matplotlib or jinja2 is not installed.

    >>> import tempfile
    >>> from ttamer import datasets
    >>> from ttamer.evaluation import frontier
    >>> rows = datasets.load("langid", "fit").take(slice(400))
    >>> result = frontier(rows, families=["ttamer", "chain"], resamples=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in write_report(result, Path(folder, "page.html"), png=False)]
    ['page.html']
    """
    require_frontier(frontier, "write_report")
    target = require_page(path)
    advice, trace = recommend(frontier), frontier.test_trace
    notes = [*advice.notes]
    if advice.outcome == "loses":
        notes.append("ttamer frontier LOG -o policy.ttamer writes the recommended policy.")
    if fit_trace is not None and frontier.reference.cost > 0:  # two more fits
        curve = learning_curve(frontier, fit_trace, more_error=advice.more_error, progress=progress)
        notes.append(str(curve))
    if progress is not None:
        progress("drawing the report")
    with style():
        pictures = _pictures(advice)
    jinja2, markup = require("jinja2", "report"), require("markupsafe", "report").Markup
    # Names come from logs: an undefined one is an error, and every one is escaped.
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template, script = (
        resources.files("ttamer.reporting").joinpath(name).read_text("utf-8")
        for name in ("page.html.j2", "page.js")
    )
    page = environment.from_string(template).render(
        title=trace.spec.name or ", ".join(trace.names[:6]),
        sentence=advice.sentence,
        notes=notes,
        tiles=_tiles(advice),
        pictures=[(name, *words, markup(p.svg())) for name, (*words, p) in pictures.items()],
        frontier=frontier,
        recommended=advice.family,
        families=frontier.cells(dict.fromkeys([*frontier.ranked, *frontier.families])),
        unserved=[name for name in frontier.ranked if name not in frontier.servable],
        summaries=SUMMARIES,
        policies=_policies(advice),
        facts=_facts(frontier),
        script=markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page, "utf-8")
    paths = [target]
    if png:  # for slides and papers, which cannot use the page
        folder = target.with_name(f"{target.stem}_figures")
        for name, (*_, chart) in pictures.items():
            paths += figures.save_figure(chart.figure, folder / name)
    return paths


def require_page(path: str | os.PathLike[str]) -> Path:
    """Refuse a name that is no page's, and a report where its libraries are not installed."""
    require_path(path, "a report")
    target = Path(path)
    if target.suffix.lower() not in (".html", ".htm"):
        raise ArgumentError(
            f"{target}: a report is an HTML page: give a name that ends in .html", param="path"
        )
    for library in ("matplotlib", "jinja2"):
        require(library, "report")
    return target


def _pictures(advice: Recommendation) -> dict[str, tuple[str, str, figures.Chart]]:
    """Return heading, caption and figure by name."""
    frontier, family = advice.frontier, advice.family
    trace, points, setting = frontier.test_trace, frontier.of(family), advice.settings[0].point
    corners = [points[k] for k in lower_envelope(*frontier.curve(family))]
    played, result = frontier.played[family][points.index(setting)], setting.result
    recall = "the last answer was always the one returned"
    if result.recalled:
        recall = (
            f"an earlier answer than the last was returned on {percent(result.recalled)} of "
            f"inputs: it helped on {percent(result.recall_helped)} and hurt on "
            f"{percent(result.recall_hurt)}"
        )
    price = f"{priced(result.cost, frontier.unit)} per input"
    groups = "Rows in ten groups by a node's confidence."
    if trace.measure == "error":
        groups += " On the dotted line the confidence is the chance of being right."
    pictures = {
        "frontier": (
            "Error against cost",
            "Each curve is what a family reaches when two of its settings may be mixed; grey: "
            "other families. Point at a mark for its numbers.",
            figures.frontier_chart(frontier),
        ),
        "answered": (
            f"Who answers: {family}",
            f"Each bar is a setting on the frontier. At {price}, {recall}.",
            figures.answered_chart(corners, trace),
        ),
        "calibration": ("Calibration", groups, figures.calibration_chart(trace)),
        "stopping": (
            f"When to stop: {family}",
            f"At {price}: on what share of the inputs that a node was asked on the search stopped "
            "there, by its confidence.",
            figures.stopping_chart(played, trace),
        ),
    }
    # Without confidences there is no calibration, and a router never goes on.
    return {name: picture for name, picture in pictures.items() if not picture[-1].is_empty}


Tile = tuple[str, str, str]  # a large number, what it is, and more about it


def _tiles(advice: Recommendation) -> list[Tile]:
    """Return the numbers that matter: what is saved, at what error, and what is not asked."""
    frontier, family = advice.frontier, advice.family
    best, measure, against = frontier.reference, frontier.measure, frontier.alone
    low, high = advice.saving_interval
    label, detail = (
        f"cost of {family} {advice.compared_at}",
        f"95% interval {percent(low)} to {percent(high)}",
    )
    saved = "-" if advice.saving is None else less(advice.saving)
    if not best.cost:
        saved, label, detail = "-", f"{against} costs nothing", "there is nothing to save"
    elif advice.saving is None:
        label, detail = f"{family} does not reach the {advice.quality} of {against}", ""
    elif low == -np.inf:  # an interval without a lower end is no interval to print
        detail = f"up to {percent(high)}; {percent(advice.falls_short)} of resamples fall short"
    error, theirs = (shown_error(e, measure, digits=1) for e in (advice.error, best.error))
    unasked = percent(1 - advice.asked[best.node])
    return [
        (saved, label, detail),
        (error, f"{measure} of {family}", f"{against} has {theirs}"),
        (unasked, f"of inputs answered without asking {best.node}", f"with {family}"),
    ]


def _policies(advice: Recommendation) -> list[dict[str, Any]]:
    """Return ttamer's policies on the frontier, with the line that serves each."""
    frontier, ladder, measure = advice.frontier, advice.frontier.ladder, advice.frontier.measure
    if ladder is None:
        return []
    points, used = frontier.of("ttamer"), [share.point for share in advice.settings]
    rows = []
    for point in (points[k] for k in lower_envelope(*frontier.curve("ttamer"))):
        result = point.result
        error, *ends = (shown_error(e, measure) for e in (result.error, *result.error_interval))
        asked = percent(result.asked[frontier.reference.node])
        cells = [priced(result.cost, frontier.unit), error, " to ".join(ends), asked]
        budget = budget_of(ladder, Share(point, 1.0))
        rows.append({"cells": cells, "budget": budget, "use": point in used})
    return rows


def _facts(frontier: Frontier) -> list[str]:
    """Return where the numbers come from, and what reading the rows left out or decided."""
    trace = frontier.test_trace
    left_out = [
        f"{counted(count, 'row', ',')} left out: {why}." for why, count in trace.left_out.items()
    ]
    markov = [] if frontier.markov is None else [f"{frontier.markov} (the family paper)."]
    source = f"Digest {trace.digest[:12]}; target {trace.spec.target}; ttamer {__version__}."
    return [*left_out, *trace.notes, *markov, source]
