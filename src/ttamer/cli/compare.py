"""``ttamer frontier``, ``report`` and ``demo``: every family on rows it was not fitted to."""

import functools
import textwrap
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click

import ttamer.cli.options as cli
from ttamer import datasets
from ttamer._checks import counted
from ttamer.artefact.file import save
from ttamer.baselines import FAMILIES
from ttamer.cascade import CascadeSpec
from ttamer.errors import ArgumentError
from ttamer.evaluation.frontiers import Frontier, family_names, frontier
from ttamer.reporting.page import require_page, write_report
from ttamer.reporting.recommendation import Recommendation, recommend
from ttamer.reporting.savings import savings
from ttamer.trace.decisions import read_decisions
from ttamer.trace.trace import Trace


def _families(_: click.Context, __: click.Parameter, text: str | None) -> list[str] | None:
    """Read A,B; families that there are not are refused before any work."""
    return None if not text else family_names(name.strip() for name in text.split(","))


@dataclass(frozen=True)
class Split:
    """Rows to fit on and to measure on, as the options name them."""

    trace: str | None
    fit: str | None
    test: str | None
    reading: cli.Reading

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
        return fit, cli.measurable(test, skip_bad=self.reading.skip_bad)

    def next_after(self, advice: Recommendation) -> str:
        """Return the command that follows a recommendation."""
        fits = {"paper": " --belief markov", "router": " --max-nodes 1", "ttamer": ""}
        if advice.outcome == "nothing":
            return ""
        if advice.family not in fits:  # no option of ttamer fit makes it
            rows = self.trace or f"--fit {self.fit} --test {self.test}"
            return f"\n\nNext: ttamer frontier {rows}{self.reading.words} -o policy.ttamer"
        words = f"{self.trace or self.fit}{self.reading.words}{fits[advice.family]}"
        text = f"\n\nNext: ttamer fit {words}"
        if advice.budget is None:
            return text
        return (
            f"{text}\nand choose that policy by its expected cost:\n"
            f"  for_budget({advice.budget}) in Python, budget = {advice.budget} in [serve]"
        )


def comparison_options(function: cli.Function) -> cli.Function:
    """Add the options of a comparison, as ``rows``, ``families`` and ``resamples``."""

    @click.argument("trace", required=False)
    @cli.option("--fit", "TRACE", "Rows to fit on.")
    @cli.option("--test", "TRACE", "Rows to measure on.")
    @cli.reading_options
    @cli.option("--families", "A,B", "Those to compare (default: all).", callback=_families)
    @cli.option("--resamples", "N", "For intervals.", type=click.IntRange(0), default=1000)
    @functools.wraps(function)
    def compared(*, trace: Any, fit: Any, test: Any, reading: Any, **options: Any) -> Any:
        return function(rows=Split(trace, fit, test, reading), **options)

    return compared


@cli.command("frontier")
@comparison_options
@cli.output_option("Write the recommended policy, to evaluate and to serve.", cli.POLICY)
def frontier_command(rows: Split, output: str | None, families: Any, resamples: int) -> None:
    """Compare ttamer with thresholds, chains and other rules, and recommend one.

    Every family is fitted on some rows and measured on others: one TRACE, halved at random, or two
    (--fit and --test).
    """
    if output and families is not None and "ttamer" not in families:
        raise ArgumentError("-o writes what is recommended beside ttamer: add it to --families")
    settings = {"families": families, "resamples": resamples, "progress": cli.progress_line()}
    result = frontier(*rows.read(), **settings)
    written = ""
    if output:  # fitted to one half: what is written is what was measured
        save(recommend(result).policy, output)
        written = f"\n\n  written to {output}, fitted to {counted(result.fit_rows, 'row', ',')}"
    cli.show(result.to_dict(), f"{result}{_advice(result, rows)}{written}")


def _advice(result: Frontier, rows: Split) -> str:
    """Return the recommendation, and the command that comes next."""
    if "ttamer" not in result.families:
        return ""
    advice = recommend(result)
    return f"\n\n{_wrapped(f'What to use: {advice}')}{rows.next_after(advice)}"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 80, break_on_hyphens=False)


@cli.command("report")
@comparison_options
@cli.output_option("The page.", cli.Output(makes_folders=True), default="report.html")
@cli.option("--against", "NODE", "In place of the page: what a policy saves on a decision log.")
def report_command(
    rows: Split, against: str | None, output: str, families: Any, resamples: int
) -> None:
    """Write the comparison of ttamer frontier as one HTML page that opens offline.

    Its figures are written beside it as PNG and SVG. With --against NODE it prints instead what a
    policy would have saved on a server's decision log, where NODE answers everything.
    """
    settings: Any = {"resamples": resamples, "progress": cli.progress_line()}
    if against is not None:
        if rows.trace is None:
            raise ArgumentError("--against takes one LOG, in place of --fit and --test")
        spec = rows.reading.spec  # a decision log has its own cascade, unless one is stated
        spec = CascadeSpec.from_file(spec) if isinstance(spec, str) else spec
        log = read_decisions(rows.trace, spec)
        saved = savings(log.trace, against, spent=float(log.audit_cost.sum()), **settings)
        cli.show(asdict(saved), saved)
        return
    require_page(output)  # and its libraries, before the work
    if families is not None:
        families = family_names(["ttamer", *families])  # the page is about its policies
    fit_trace, test_trace = rows.read()
    result = frontier(fit_trace, test_trace, families=families, **settings)
    paths = write_report(result, output, fit_trace=fit_trace, progress=settings["progress"])
    facts = {**result.to_dict(), "written": [str(path) for path in paths]}
    cli.show(facts, f"{result}{_advice(result, rows)}\n\n  written to {paths[0]}")


@cli.command("demo")
@cli.option("--trace", "NAME", f"One of {', '.join(datasets.names())}.", default="langid")
@cli.output_option("Of the report.", cli.Output(name="folder", makes_folders=True), default="out")
def demo_command(trace: str, output: str) -> None:
    """Fit, compare and report on a real trace that comes with the package.

    Language detectors of very different speed, nine LLMs, or the exits of a network. It needs no
    network access and no GPU.
    """
    file = require_page(Path(output, f"{trace}.html"))
    facts, progress = datasets.about(trace), cli.progress_line()
    # Two cores share the work; the intervals of other families are not shown.
    with ProcessPoolExecutor(1, get_context("spawn")) as second:
        job = second.submit(_measured, trace, ["paper", *FAMILIES], resamples=0)
        ours = _measured(trace, ["ttamer"], resamples=200, progress=progress)
        progress("comparing with other rules")
        rivals = job.result()
    result = replace(
        ours,
        points=ours.points + rivals.points,
        played={**ours.played, **rivals.played},
        left_out=rivals.left_out,
    )
    page = write_report(result, file, png=False, progress=progress)[0]
    nodes, cost = ", ".join(result.test_trace.names), facts["cost"].partition(";")[0]
    cli.show(
        {**result.to_dict(), "written": [str(page)]},
        f"{_wrapped(str(recommend(result)))}\n\n{trace}: {facts['title']}\n{nodes}\ncost: {cost}"
        f"\n\n{result}\n\nThe same for a log of yours: ttamer report LOG --cascade cascade.toml\n"
        f"The report, to open in a browser: {page}",
    )


def _measured(name: str, families: list[str], **options: Any) -> Frontier:
    """Fit families to a trace of the package, and measure them, with the unit of its costs."""
    fit, test = datasets.load(name, "fit"), datasets.load(name, "test")
    spec = replace(fit.spec, unit=datasets.about(name).get("unit", ""))
    fit, test = replace(fit, spec=spec), replace(test, spec=spec)
    return frontier(fit, test, families=families, **options)
