"""``ttamer frontier``, ``report`` and ``demo``: every family on rows it was not fitted to."""

import functools
import textwrap
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click

from ttamer import datasets
from ttamer._checks import counted, require_whole
from ttamer.artefact.file import save
from ttamer.baselines import FAMILIES
from ttamer.cascade import CascadeSpec
from ttamer.cli.options import (
    POLICY,
    Function,
    Output,
    Reading,
    command,
    json_option,
    measurable,
    option,
    output_option,
    progress_line,
    reading_options,
    to_json,
)
from ttamer.errors import ArgumentError
from ttamer.evaluation.frontiers import Frontier, family_names, frontier
from ttamer.fitting.ladder import FittedPolicy, Mixture
from ttamer.reporting.page import require_page, write_report
from ttamer.reporting.recommendation import budget_of, recommend
from ttamer.reporting.savings import Savings, savings
from ttamer.trace.decisions import read_decisions
from ttamer.trace.trace import Trace


def _families(_: click.Context, __: click.Parameter, text: str | None) -> list[str] | None:
    """Read A,B; families that there are not are refused before any work."""
    return None if not text else family_names(name.strip() for name in text.split(","))


def _resamples(_: click.Context, __: click.Parameter, value: int) -> int:
    require_whole(value, "resamples")
    return value


@dataclass(frozen=True)
class Split:
    """Rows to fit on and to measure on, as the options name them."""

    trace: str | None
    fit: str | None
    test: str | None
    reading: Reading

    def read(self) -> tuple[Trace, Trace]:
        """Read one trace, halved at random, or two."""
        if self.trace and not (self.fit or self.test):
            fit, test = self.reading.read(self.trace).split(0.5, seed=0)
        elif self.fit and self.test and not self.trace:
            fit, test = self.reading.read(self.fit), self.reading.read(self.test)
        else:
            raise ArgumentError(
                "give one TRACE, which is halved at random, or --fit TRACE and --test TRACE"
            )
        return fit, measurable(test, skip_bad=self.reading.skip_bad)

    @property
    def words(self) -> str:
        """The words of a command that compares on the same rows."""
        return f"{self.trace or f'--fit {self.fit} --test {self.test}'}{self.reading.words}"

    @property
    def fit_words(self) -> str:
        """The words of a command that fits to the same rows."""
        return f"{self.trace or self.fit}{self.reading.words}"


def comparison_options(function: Function) -> Function:
    """Add the options of a comparison, as ``rows``, ``families`` and ``resamples``."""

    @click.argument("trace", required=False)
    @option("--fit", "TRACE", "Rows to fit on.")
    @option("--test", "TRACE", "Rows to measure on.")
    @reading_options
    @option(
        "--families",
        "A,B",
        "The families to compare, such as ttamer,threshold,chain (default: all that apply).",
        callback=_families,
    )
    @option(
        "--resamples",
        "N",
        "Bootstrap resamples for the intervals.",
        type=int,
        default=1000,
        callback=_resamples,
    )
    @json_option
    @functools.wraps(function)
    def compared(*, trace: Any, fit: Any, test: Any, reading: Reading, **options: Any) -> Any:
        return function(rows=Split(trace, fit, test, reading), **options)

    return compared


@command("frontier")
@comparison_options
@output_option(text="Write the recommended policy, to evaluate and to serve.", kind=POLICY)
def frontier_command(rows: Split, as_json: bool, output: str | None, **options: Any) -> None:
    """Compare ttamer with thresholds, chains and other rules, and recommend one.

    Every family is fitted on some rows and measured on others: one TRACE, halved at random, or two
    (--fit and --test).
    """
    if output and options["families"] is not None and "ttamer" not in options["families"]:
        raise ArgumentError("-o writes what is recommended beside ttamer: add it to --families")
    progress = progress_line(quiet=as_json)
    result = frontier(*rows.read(), progress=progress, **options)
    progress("")
    if output:
        save(_recommended(result), output)
    print(to_json(result.to_dict()) if as_json else f"{result}{_advice(result, rows)}")
    if output and not as_json:
        print(f"\n  written to {output}, fitted to {counted(result.fit_rows, 'row', ',')}")


def _recommended(result: Frontier) -> FittedPolicy | Mixture:
    """Return the policy that the recommendation names."""
    advice, ladder = recommend(result), result.ladder
    if advice.family == "ttamer" and ladder is not None:
        if advice.outcome == "nothing":
            return ladder.alone(result.reference.node)
        return ladder.for_budget(float(budget_of(ladder, *advice.settings)))
    point = min((part.point for part in advice.settings), key=lambda point: point.result.error)
    assert isinstance(point.rule, FittedPolicy)  # noqa: S101 - what is recommended can be served
    return point.rule


def _advice(result: Frontier, rows: Split) -> str:
    """Return the recommendation, and the command that comes next."""
    if "ttamer" not in result.families:
        return ""
    advice = recommend(result)
    text = f"\n\n{_wrapped(f'What to use: {advice}')}"
    fits = {"paper": "--belief markov", "router": "--max-nodes 1"}  # to all rows
    if advice.outcome == "loses" and advice.family in fits:
        return f"{text}\n\nNext: ttamer fit {rows.fit_words} {fits[advice.family]}"
    if advice.outcome == "loses":
        return f"{text}\n\nNext: ttamer frontier {rows.words} -o policy.ttamer"
    if advice.outcome == "nothing" or result.ladder is None:
        return text
    budget = budget_of(result.ladder, *advice.settings)
    return (
        f"{text}\n\nNext: ttamer fit {rows.fit_words}\n"
        "and choose that policy by its expected cost:\n"
        f"  for_budget({budget}) in Python, budget = {budget} in [serve]"
    )


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 80, break_on_hyphens=False)


@command("report")
@comparison_options
@output_option("report.html", text="Where to write the page.", kind=Output(makes_folders=True))
@click.option("--title", help="The title of the page.")
@option(
    "--against",
    "NODE",
    "In place of the page: what a policy would have saved on a server's "
    "decision log, where NODE answers everything.",
)
def report_command(
    rows: Split,
    against: str | None,
    families: list[str] | None,
    resamples: int,
    output: str,
    title: str | None,
    as_json: bool,
) -> None:
    """Write the comparison of ttamer frontier as one HTML page that opens offline.

    Its figures are written beside it as PNG and SVG.
    """
    options: dict[str, Any] = {"resamples": resamples, "progress": progress_line(quiet=as_json)}
    if against is not None:
        saved = _savings(rows, against, **options)
        options["progress"]("")
        print(to_json(asdict(saved)) if as_json else saved)
        return
    require_page(output)
    if families is not None:
        families = family_names(["ttamer", *families])  # the page is about its policies
    fit_trace, test_trace = rows.read()
    result = frontier(fit_trace, test_trace, families=families, **options)
    paths = write_report(
        result, output, title=title, fit_trace=fit_trace, progress=options["progress"]
    )
    options["progress"]("")
    if as_json:
        print(to_json({**result.to_dict(), "written": [str(path) for path in paths]}))
    else:
        print(f"{result}{_advice(result, rows)}\n\n  written to {paths[0]}")


def _savings(rows: Split, against: str, **options: Any) -> Savings:
    if rows.trace is None:
        raise ArgumentError("--against takes one LOG, in place of --fit and --test")
    spec = rows.reading.spec
    log = read_decisions(rows.trace, CascadeSpec.from_file(spec) if isinstance(spec, str) else spec)
    return savings(log.trace, against, spent=float(log.audit_cost.sum()), **options)


@command("demo")
@option("--trace", "NAME", f"Which trace: {', '.join(datasets.names())}.", default="langid")
@output_option("out", text="The folder for the report.", kind=Output("folder", makes_folders=True))
def demo_command(trace: str, output: str) -> None:
    """Fit, compare and report on a real trace that comes with the package.

    Language detectors of very different speed, nine LLMs, or the exits of a network. It needs no
    network access and no GPU.
    """
    file = require_page(Path(output, f"{trace}.html"))
    facts, progress = datasets.about(trace), progress_line()
    # Two cores share the work; the intervals of other families are not shown.
    with ProcessPoolExecutor(1, get_context("spawn")) as second:
        others = second.submit(_measured, trace, ["paper", *FAMILIES], resamples=0)
        ours = _measured(trace, ["ttamer"], resamples=200, progress=progress)
        progress("comparing with other rules")
        rivals = others.result()
    result = replace(
        ours,
        points=ours.points + rivals.points,
        played={**ours.played, **rivals.played},
        left_out=rivals.left_out,
    )
    page = write_report(result, file, png=False, progress=progress)[0]
    progress("")
    print(f"{_wrapped(str(recommend(result)))}\n\n{trace}: {facts['title']}")
    print(", ".join(result.test_trace.names))
    print(f"cost: {facts['cost'].partition(';')[0]}\n\n{result}")
    print("\nThe same for a log of yours: ttamer report LOG --cascade cascade.toml")
    print(f"The report, to open in a browser: {page}")


def _measured(name: str, families: list[str], **options: Any) -> Frontier:
    """Fit families to a trace of the package, and measure them, with the unit of its costs."""
    fit, test = datasets.load(name, "fit"), datasets.load(name, "test")
    spec = replace(fit.spec, unit=datasets.about(name).get("unit", ""))
    fit, test = replace(fit, spec=spec), replace(test, spec=spec)
    return frontier(fit, test, families=families, **options)
