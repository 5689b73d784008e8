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

from ttamer import __version__
from ttamer._checks import counted, percent, priced, require, require_path
from ttamer.errors import ArgumentError
from ttamer.evaluation.frontiers import Frontier, family_names, frontier, learning_curve
from ttamer.fitting.ladder import FittedPolicy, shown_error
from ttamer.reporting import figures
from ttamer.reporting.recommendation import Recommendation, recommend
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
    resamples: int = 1000,
    progress: ProgressOption = None,
) -> Frontier:
    """Fit, compare with the baselines, and write the page.

    Args:
        trace: The rows. Without ``test_trace`` one random half is fitted to, and the other
            measured.
        path: Where to write the page; its figures are in a folder beside it.
        test_trace: The rows to measure on; ``trace`` is then fitted to.
        families: The families to compare; by default all. ``"ttamer"`` is always among them.
        resamples: Bootstrap resamples for the intervals of each point.
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
        result = frontier(trace, test_trace, families=names, resamples=resamples, progress=hook)
        write_page(result, path, fit_trace=trace, progress=hook)
    return result


def write_page(
    frontier: Frontier,
    path: str | os.PathLike[str],
    *,
    fit_trace: Trace | None = None,
    progress: Callable[[str], None] | None = None,
) -> None:
    """Write a comparison with the family ``"ttamer"`` as a page, and its figures beside it.

    With the rows that were fitted to it has a learning curve.
    """
    target, advice, trace = require_page(path), recommend(frontier), frontier.test_trace
    notes = [*advice.notes]
    if fit_trace is not None and frontier.reference.cost > 0:  # two more fits
        more = advice.more_error
        notes.append(learning_curve(frontier, fit_trace, more_error=more, progress=progress))
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
        pictures=[(name, *words, markup(p.svg())) for name, (*words, p) in pictures.items()],
        frontier=frontier,
        recommended=advice.family,
        families=frontier.cells(dict.fromkeys([*frontier.ranked, *frontier.families])),
        policies=_policies(advice),
        facts=_facts(frontier),
        script=markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page, "utf-8")
    for name, (*_, chart) in pictures.items():  # for slides and papers, which cannot use the page
        figures.save_figure(chart.figure, target.with_name(f"{target.stem}_figures") / name)


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
    trace, points = frontier.test_trace, frontier.of(family)
    corners = [points[k] for k in lower_envelope(*frontier.curve(family))]
    result = points[advice.mix.expensive].result
    pictures = {
        "frontier": (
            "Error against cost",
            "Each curve is what a family reaches when two of its settings may be mixed. Point at a "
            "mark for its numbers.",
            figures.frontier_chart(frontier),
        ),
        "answered": (
            f"Who answers: {family}",
            "Each bar is a setting on the frontier. At "
            f"{priced(result.cost, result.unit)} per input an earlier answer than the last is "
            f"returned on {percent(result.recalled)} of inputs: that helped on "
            f"{percent(result.recall_helped)} and hurt on {percent(result.recall_hurt)}.",
            figures.answered_chart(corners, trace),
        ),
        "calibration": (
            "Calibration",
            "Rows in ten groups by a node's confidence; dotted: it is the chance of being right.",
            figures.calibration_chart(trace),
        ),
    }
    # Without confidences there is no calibration.
    return {name: picture for name, picture in pictures.items() if not picture[-1].is_empty}


def _policies(advice: Recommendation) -> list[dict[str, Any]]:
    """Return ttamer's policies on the frontier, with the line that serves each."""
    frontier, measure, used = advice.frontier, advice.frontier.measure, {*advice.mix[:2]}
    points, rows = frontier.of("ttamer"), []
    for number in lower_envelope(*frontier.curve("ttamer")).tolist():
        result, rule = points[number].result, points[number].rule
        error, *ends = (shown_error(e, measure) for e in (result.error, *result.error_interval))
        asked = percent(result.asked[frontier.reference.node])
        cells = [priced(result.cost, result.unit), error, " to ".join(ends), asked]
        # The expected cost by the fit, with which for_budget compares, not that on these rows.
        budget = f"{getattr(rule, 'cost', result.cost):.6g}"
        use = advice.family == "ttamer" and number in used
        rows.append({"cells": cells, "budget": budget, "use": use})
    return rows


def _facts(frontier: Frontier) -> list[str]:
    """Return where the numbers come from, and what reading the rows left out or decided."""
    trace = frontier.test_trace
    left_out = [
        f"{counted(count, 'row', ',')} left out: {why}." for why, count in trace.left_out.items()
    ]
    # The paper's guarantees rest on the Markov property.
    tested = {
        p.rule.record.markov for p in frontier.of("paper") if isinstance(p.rule, FittedPolicy)
    }
    markov = [f"{record} (the family paper)." for record in tested if record is not None]
    source = f"Digest {trace.digest[:12]}; target {trace.spec.target}; ttamer {__version__}."
    return [*left_out, *trace.notes, *markov, source]
