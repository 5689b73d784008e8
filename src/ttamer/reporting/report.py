"""The report: what to deploy in one sentence, and the figures that show why."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ttamer import __version__
from ttamer._arguments import require_path
from ttamer._display.progress import ProgressOption, shown
from ttamer._numbers import counted, number, percent
from ttamer.errors import ArgumentError
from ttamer.evaluation.families import SUMMARIES, family_names, uses_labels
from ttamer.evaluation.frontiers import Frontier, Point, require_frontier
from ttamer.fitted.ladder import FittedLadder, FittedPolicy
from ttamer.fitted.mixture import shown_error
from ttamer.policy.index import IndexPolicy
from ttamer.reporting.frontier_figure import draw_frontier, family_colours, point_name
from ttamer.reporting.page import Cell, Page, Pick, Picture, Tile, render
from ttamer.reporting.policy_figures import (
    MAX_PANELS,
    draw_answered,
    draw_calibration,
    draw_index_bars,
    draw_recall,
    draw_step_bars,
    draw_stop_panels,
    reached_steps,
)
from ttamer.reporting.recommendation import (
    Recommendation,
    Share,
    budget_of,
    difference,
    point_in_words,
    quality,
    recommend,
    settings_at,
)
from ttamer.reporting.style import drawn, less, require_matplotlib, svg_of
from ttamer.stats.envelope import lower_envelope
from ttamer.trace.checks import require_trace
from ttamer.trace.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# What a cell shows where there is no number.
NONE = "\N{EN DASH}"


def report(
    fit_trace: Trace,
    test_trace: Trace,
    path: str | os.PathLike[str],
    *,
    families: Iterable[str] | None = None,
    title: str | None = None,
    progress: ProgressOption = None,
) -> Frontier:
    """Fit, compare with the baselines, and write the page: one call for ``ttamer report``.

    Args:
        fit_trace: The rows to fit on.
        test_trace: The rows to measure on.
        path: Where to write the page; its figures are in a folder beside it.
        families: The families to compare; by default all. ``"ttamer"`` is always among them.
        title: The title of the page.
        progress: Called with a line of text as the work proceeds; ``True`` shows the progress.

    Returns:
        The frontier that the page shows.

    Raises:
        ArgumentError: As :func:`ttamer.frontier`, and if ``path`` does not end in ``.html``.
        MissingExtra: If matplotlib is not installed.

    >>> import tempfile
    >>> from ttamer import datasets
    >>> fit, test = (datasets.load("langid", part).take(slice(300)) for part in ("fit", "test"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = report(fit, test, Path(folder, "report.html"), families=["chain"])
    ...     sorted(each.name for each in Path(folder).iterdir())
    ['report.html', 'report_figures']
    """
    from ttamer.evaluation.frontiers import frontier
    from ttamer.fitting.plans import fit

    require_trace(test_trace, "a report")  # before the fit, which takes long
    require_page(path)
    require_matplotlib()
    names = None
    if families is not None:
        names = ["ttamer", *(each for each in family_names(families) if each != "ttamer")]
    with shown(progress) as hook:
        ladder = fit(fit_trace, progress=hook)
        found = frontier(fit_trace, test_trace, families=names, ladder=ladder, progress=hook)
    write_report(found, ladder, test_trace, path, title=title)
    return found


def write_report(
    frontier: Frontier,
    ladder: FittedLadder,
    test_trace: Trace,
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    png: bool = True,
) -> list[Path]:
    """Write one self-contained HTML file, and its figures as PNG and SVG in a folder beside it.

    Args:
        frontier: What :func:`ttamer.evaluation.frontier` returned.
        ladder: A fit that is one of the frontier's families: fitted to the same rows with the same
            options.
        test_trace: The rows on which the frontier was measured.
        path: Where to write the page. The folder of figures has its name and ``_figures``.
        title: The title of the page; by default the name of the cascade, or its nodes.
        png: Whether to write the figures as PNG too.

    Returns:
        The paths written, the page first.

    Raises:
        ArgumentError: If the ladder or the trace does not belong to the frontier, or ``path`` does
            not end in ``.html``.
        MissingExtra: If matplotlib is not installed.

    >>> import tempfile
    >>> import ttamer as tt
    >>> from ttamer import datasets
    >>> from ttamer.evaluation import frontier
    >>> fit_rows, test_rows = (datasets.load("langid", part).take(slice(300))
    ...                        for part in ("fit", "test"))
    >>> found = frontier(fit_rows, test_rows, families=["ttamer", "chain"], resamples=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     paths = write_report(found, tt.fit(fit_rows), test_rows, Path(folder) / "report.html")
    >>> paths[0].name, paths[1].name
    ('report.html', 'frontier.png')
    """
    require_frontier(frontier, "write_report")
    require_trace(test_trace, "write_report")
    require_page(path)
    test_trace = test_trace.with_verification()
    if len(test_trace) != frontier.test_rows:
        raise ArgumentError(
            f"the frontier was measured on {counted(frontier.test_rows, 'row')}, and the trace has "
            f"{len(test_trace)}: give the trace it was measured on"
        )
    family = _family_of(ladder, frontier, test_trace)
    advice = recommend(frontier, test_trace, family=family)
    pictures = _pictures(frontier, ladder, test_trace, family, advice)
    page = Page(
        title=title or test_trace.spec.name or _listed(test_trace.names),
        sentence=advice.sentence,
        strong="" if advice.saving is None else f"costs {less(advice.saving)}",
        notes=advice.notes,
        tiles=_tiles(frontier, advice),
        pictures=pictures,
        table_caption=_table_caption(frontier, advice),
        head=("family", "same", *list(frontier.margins)[1:], "mean"),
        rows=_rows(frontier, advice),
        left_out=list(frontier.left_out.items()),
        summaries=[(name, SUMMARIES[name]) for name in frontier.families if name in SUMMARIES],
        provenance=_provenance(frontier, ladder, test_trace),
        pick_caption=(
            f"The policies of {family} on its frontier, measured on "
            f"{counted(frontier.test_rows, 'row', ',')}; costs as shares of what "
            f"{advice.against} costs. Budgets are expected costs by the fit."
        ),
        pick_head=(
            "cost per input",
            "share",
            *_latency_head(frontier),
            frontier.measure,
            "95% interval",
            "asked",
            "",
        ),
        picks=_picks(frontier, ladder, family, advice),
        remarks=_remarks(test_trace),
    )
    target = Path(path)
    folder = target.with_name(f"{target.stem}_figures")
    folder.mkdir(parents=True, exist_ok=True)
    target.write_text(render(page), encoding="utf-8")
    written = [target]
    for picture in pictures:
        if picture.drawn is not None:
            if png:
                written.append(folder / f"{picture.name}.png")
                written[-1].write_bytes(picture.drawn.png())
            written.append(folder / f"{picture.name}.svg")
            written[-1].write_bytes(picture.drawn.svg)
    return written


def require_page(path: str | os.PathLike[str]) -> None:
    """Refuse a path that does not name an HTML file.

    >>> require_page("r.png")
    Traceback (most recent call last):
    ttamer.errors.ArgumentError: r.png: a report is an HTML page: give a name that ends in .html
    """
    require_path(path, "a report")
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise ArgumentError(f"{path}: a report is an HTML page: give a name that ends in .html")


def _family_of(ladder: FittedLadder, frontier: Frontier, trace: Trace) -> str:
    """Return the family of the frontier whose settings decide as the ladder's policies do."""
    tradeoffs = set(ladder.tradeoffs)
    for family in frontier.families:
        points = frontier.of(family)
        if not all(point.knob.get("tradeoff") in tradeoffs for point in points):
            continue
        ends = {0, len(points) // 2, len(points) - 1}
        plays = {i: ladder.at(points[i].knob["tradeoff"]).play(trace) for i in ends}
        if all(_alike(frontier.played[family][i], played) for i, played in plays.items()):
            return family
    raise ArgumentError(
        "the ladder is none of the frontier's families: fit it on the same rows and with the "
        "same options as the frontier's"
    )


def _alike(one: Any, other: Any) -> bool:
    return np.array_equal(one.answer, other.answer) and np.array_equal(one.asked, other.asked)


def _pictures(
    frontier: Frontier, ladder: FittedLadder, trace: Trace, family: str, advice: Recommendation
) -> list[Picture]:
    rungs = sorted(frontier.of(family), key=lambda point: point.result.cost)
    settings = advice.settings
    if family != advice.family:
        settings = settings_at(frontier, family, advice.more_error)
    marked = [each.point for each in settings]
    nodes = _cheapest_first(trace)

    def draw(*, narrow: bool) -> Figure:
        more = advice.more_error
        return draw_frontier(frontier, arrow=advice.family, more_error=more, narrow=narrow)

    colours = family_colours(frontier, advice.family)
    pointer = (
        "▼ marks the settings recommended."
        if family == advice.family
        else (f"▼ marks the settings of {family} nearest to that accuracy.")
    )
    return [
        Picture(
            "frontier",
            "Error against cost",
            "Lower and further left is better. Each line is what a family reaches when two of its "
            "settings may be mixed; bars are 95% intervals.",
            f"Error against cost for {counted(len(frontier.families), 'family')}, {len(colours)} "
            f"of them in colour. {advice.sentence}",
            drawn(draw(narrow=False)),
            svg_of(draw(narrow=True)),
            wide=True,
        ),
        Picture(
            "answered",
            "Which node answers",
            f"Whose answer {family} returns, from its cheapest policy to its most expensive. "
            f"{pointer}",
            _answered_label(marked[0], nodes, family),
            drawn(draw_answered(rungs, nodes, marked, _unit(frontier))),
        ),
        _recall_picture(rungs, marked, _unit(frontier)),
        _stop_picture(ladder.at(marked[0].knob["tradeoff"]), point_in_words(Share(marked[0], 1.0))),
        Picture(
            "calibration",
            "Calibration",
            _calibration_text(trace) + _shown_of(len(nodes)),
            f"Reliability curves of {_listed(nodes)}.",
            drawn(draw_calibration(trace, nodes)),
        ),
    ]


def _picks(
    frontier: Frontier, ladder: FittedLadder, family: str, advice: Recommendation
) -> list[Pick]:
    """Return the policies on the family's envelope, the cheapest first."""
    points = frontier.of(family)
    wanted = [each.point for each in advice.settings]
    picks = []
    for place in lower_envelope(*frontier.curve(family)).tolist():
        result = points[place].result
        share = result.cost / _unit(frontier) if _unit(frontier) else 0.0
        error, low, high = (
            shown_error(value, result.measure, digits=1)
            for value in (result.error, *result.error_interval)
        )
        budget = budget_of(ladder, Share(points[place], 1.0))
        asked = sum(result.asked.values())
        picks.append(
            Pick(
                point_name(place),
                [
                    number(result.cost),
                    percent(share),
                    *(number(t) for t in (result.latency, result.latency_p95) if t is not None),
                    error,
                    f"{low} to {high}",
                    f"{asked:.2f} nodes",
                ],
                f"{number(result.cost)} per input ({percent(share)}), {result.measure} {error}, "
                f"{asked:.2f} nodes asked",
                [
                    ("Python", f'tt.load("policy.ttamer").for_budget({budget})'),
                    ("gateway", f"[serve] budget = {budget}"),
                    ("check", f"ttamer evaluate policy.ttamer TRACE --budget {budget}"),
                ],
                any(points[place] is each for each in wanted),
            )
        )
    return picks


def _answered_label(point: Point, nodes: Sequence[str], family: str) -> str:
    shares = ", ".join(f"{name} {percent(point.result.answered[name])}" for name in nodes)
    return f"Share of inputs answered by each node along {family}'s ladder; where marked: {shares}."


def _recall_picture(rungs: Sequence[Point], marked: Sequence[Point], unit: float) -> Picture:
    result = marked[0].result
    caption = "Where marked, the last answer was always the one returned."
    if result.recalled:
        caption = (
            f"An earlier answer than the last was returned on {percent(result.recalled)} of inputs "
            f"(where marked): it helped on {percent(result.recall_helped)} and hurt on "
            f"{percent(result.recall_hurt)}."
        )
    if not any(rung.result.recalled for rung in rungs):
        caption = "The last answer was always the one returned."
    drawing = drawn(draw_recall(rungs, marked, unit))
    return Picture("recall", "What recall did", caption, caption, drawing)


def _stop_picture(fitted_policy: FittedPolicy, name: str) -> Picture:
    """Return when to stop: as matrices, as indices, or as bars, by the kind of the policy."""
    policy = fitted_policy.policy
    problem = policy.problem
    names = fitted_policy.fitted.spec.names
    heading, rule = "When to stop", f"The rule of the policy at {name}. "
    if len(names) == 1:
        return Picture("stop", heading, f"There is one node: {names[0]} always answers.")
    if isinstance(policy, IndexPolicy) and not problem.is_line:
        how = (
            "From top to bottom, a node is asked while the best loss so far is above its index, "
            "where the colour changes; else the search stops."
        )
        count, drawing = len(names), drawn(draw_index_bars(policy))
    elif policy.recall:
        how = "After each node: across, its confidence; up, the best loss so far."
        count = sum(bool(edges) for edges in problem.outgoing[:-1])
        drawing = drawn(draw_stop_panels(policy))
    else:
        across = "how likely the best answer so far is to be wrong"
        ends = ("likely right", "likely wrong")
        if fitted_policy.fitted.measure != "error":
            across, ends = "the expected loss of the best answer so far", ("low loss", "high loss")
        how = f"Which nodes have been asked, and on what share of inputs; across, {across}."
        steps = [[names[node] for node in step] for step in fitted_policy.fitted.steps]
        count, drawing = len(reached_steps(policy)), drawn(draw_step_bars(policy, steps, ends=ends))
    label = f"When to stop, among {_listed(names)}. {how}"
    return Picture("stop", heading, rule + how + _shown_of(count, "The first "), label, drawing)


def _calibration_text(trace: Trace) -> str:
    if trace.is_graded:
        return "The mean loss of each node's answers, by its confidence."
    return (
        "How often each node is right, by its confidence, with 95% intervals. On the dotted "
        "line the confidence is the probability of being right."
    )


def _shown_of(count: int, which: str = "") -> str:
    return f" {which}{MAX_PANELS} of {count} are shown." if count > MAX_PANELS else ""


def _tiles(frontier: Frontier, advice: Recommendation) -> list[Tile]:
    measure, noun = frontier.measure, quality(frontier)
    more = difference(advice.more_error, frontier)
    near = f"within {more} of" if advice.more_error else "at"
    place = f"{near} the {noun} of {advice.against}"
    low, high = advice.saving_interval
    if not frontier.reference.cost:
        saving = Tile(NONE, f"{advice.against} costs nothing", "there is nothing to save", None)
    elif advice.saving is None:
        least, theirs = (
            shown_error(value, measure, digits=1)
            for value in (min(frontier.curve(advice.family)[1]), frontier.reference.error)
        )
        saving = Tile(NONE, f"{advice.family} falls short of the {noun} of {advice.against}",
                      f"its least {measure} is {least}, against {theirs}", None)  # fmt: skip
    else:
        interval = f"95% interval {percent(low)} to {percent(high)}"
        if low == -np.inf:
            short = percent(advice.falls_short)
            interval = f"95% interval up to {percent(high)}; {short} of resamples fall short"
        saving = Tile(less(advice.saving), f"cost of {advice.family} {place}",
                      interval, advice.saving)  # fmt: skip
    error = advice.error_at_price
    if error is None:
        accuracy = Tile(NONE, f"{noun} at the price of {advice.against}",
                        f"{advice.family} has no setting that cheap", None)  # fmt: skip
    else:
        low, high = advice.error_at_price_interval
        values = (error, low, high, frontier.reference.error)
        if measure == "error":  # shown as accuracies, where high and low change places
            values = (1 - error, 1 - high, 1 - low, 1 - frontier.reference.error)
        mine, low_text, high_text, theirs = (
            shown_error(value, measure, digits=1) for value in values
        )
        accuracy = Tile(
            mine,
            f"{noun} of {advice.family} at the price of {advice.against}",
            f"95% interval {low_text} to {high_text}; {advice.against} has {theirs}",
            values[0],
        )
    share = advice.reference_unasked
    unasked = Tile(
        percent(share),
        f"of inputs answered without asking {frontier.reference.node}",
        f"with {advice.family}, {place}",
        share,
    )
    return [saving, accuracy, unasked]


def _latency_head(frontier: Frontier) -> tuple[str, ...]:
    """Return the columns of latencies, where they are known."""
    known = frontier.points[0].result.latency is not None
    return ("mean latency", "95% within") if known else ()


def _table_caption(frontier: Frontier, advice: Recommendation) -> str:
    measure = frontier.measure
    theirs = shown_error(frontier.reference.error, measure, digits=1)
    more = "0.5 to 5 points more" if measure == "error" else "1% to 10% more"
    return (
        f"What each family costs at the {measure} of {advice.against} ({theirs}) and at "
        f"{more}, as a share of what {advice.against} costs "
        f"({number(_unit(frontier))} per input). Mean: the mean "
        f"{'error' if measure == 'error' else 'loss'} over all costs."
    )


def _unit(frontier: Frontier) -> float:
    """Return the cost that all shares on the page are of: the reference's, unless that is 0."""
    return frontier.reference.cost or frontier.full_cost


def _rows(frontier: Frontier, advice: Recommendation) -> list[tuple[str, str | None, list[Cell]]]:
    """Return the table, the cheapest at the reference's error first, the oracle last."""
    summary = frontier.to_dict()["families"]
    colours = family_colours(frontier, advice.family)

    def numbers(family: str) -> list[float | None]:
        costs = summary[family]["cost_at_error"].values()
        shares = (None if cost is None else cost / _unit(frontier) for cost in costs)
        return [*shares, summary[family]["area"]]

    def rank(family: str) -> tuple[Any, ...]:
        cost, *_, area = numbers(family)
        return uses_labels(family), np.inf if cost is None else cost, area

    deployable = [numbers(family) for family in summary if not uses_labels(family)]
    best = [min((v for v in column if v is not None), default=None)
            for column in zip(*deployable, strict=True)]  # fmt: skip
    rows = []
    for family in sorted(summary, key=rank):
        cells = []
        for place, value in enumerate(numbers(family)):
            shown = NONE if value is None else f"{value:.{2 if value < 0.0995 else 1}%}"
            if value is not None and place == len(frontier.margins) and frontier.measure != "error":
                shown = f"{value:.4g}"
            is_best = value is not None and value == best[place] and not uses_labels(family)
            cells.append(Cell(shown, value, is_best))
        rows.append((family, colours.get(family), cells))
    return rows


def _provenance(frontier: Frontier, ladder: FittedLadder, trace: Trace) -> list[tuple[str, str]]:
    fitted = ladder.fitted
    options = ", ".join(f"{name} {value}" for name, value in fitted.plan.items())
    fit_rows, test_rows = (counted(n, "row", ",") for n in (frontier.fit_rows, frontier.test_rows))
    return [
        ("ttamer", __version__),
        ("fitted on", f"{fit_rows}, digest {fitted.trace_digest[:12]}"),
        ("measured on", f"{test_rows}, digest {trace.digest[:12]}"),
        ("fit", options),
        ("ladder", counted(len(ladder), "tradeoff")),
        ("order", trace.spec.order),
        ("target", trace.spec.target),
    ]


def _remarks(trace: Trace) -> list[str]:
    """Return what reading the rows left out or decided."""
    left_out = [
        f"{counted(count, 'row', ',')} left out: {why}." for why, count in trace.left_out.items()
    ]
    return [*left_out, *trace.notes]


def _cheapest_first(trace: Trace) -> list[str]:
    """Return the nodes by cost; the exits of a network in their order."""
    if trace.spec.is_network:
        return list(trace.names)
    cost = dict(zip(trace.names, trace.costs.mean(axis=0).tolist(), strict=True))
    return sorted(trace.names, key=lambda name: cost[name])


def _listed(names: Sequence[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
