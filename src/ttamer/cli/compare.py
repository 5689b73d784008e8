"""``ttamer frontier``, ``report`` and ``demo``: every family on rows it was not fitted to."""

import functools
import textwrap
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

import ttamer.cli.options as cli
from ttamer import datasets
from ttamer._checks import counted
from ttamer.artefact.file import save
from ttamer.cascade import CascadeSpec
from ttamer.errors import ArgumentError
from ttamer.evaluation.frontiers import Frontier, family_names, frontier
from ttamer.reporting.page import report, require_page, write_page
from ttamer.reporting.recommendation import recommend
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

    def described(self, result: Frontier, output: str = "") -> tuple[dict[str, Any], str]:
        """Return facts and text: the comparison, the recommendation, and what comes next."""
        if "ttamer" not in result.families:
            return result.to_dict(), str(result)
        advice = recommend(result)
        if output:  # fitted to one half: what is written is what was measured
            save(advice.policy, output)
            after = f"  written to {output}, fitted to {counted(result.fit_rows, 'row', ',')}"
        elif advice.budget is not None:
            after = (
                f"Next: ttamer fit {self.trace or self.fit}{self.reading.words}\n"
                "and choose that policy by its expected cost:\n"
                f"  for_budget({advice.budget}) in Python, budget = {advice.budget} in [serve]"
            )
        else:
            rows = self.trace or f"--fit {self.fit} --test {self.test}"
            after = f"Next: ttamer frontier {rows}{self.reading.words} -o policy.ttamer"
        if advice.outcome == "nothing" and not output:
            after = ""
        said = textwrap.fill(f"What to use: {advice}", 80, break_on_hyphens=False)
        facts = {**result.to_dict(), "recommendation": advice.to_dict()}
        return facts, f"{result}\n\n{said}\n\n{after}".rstrip()


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
    fit, test = rows.read()
    settings = {"families": families, "resamples": resamples, "progress": cli.progress_line()}
    cli.show(*rows.described(frontier(fit, test, **settings), output or ""))


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
    fit, test = rows.read()
    facts, text = rows.described(
        report(fit, output, test_trace=test, families=families, **settings)
    )
    cli.show({**facts, "written": [output]}, f"{text}\n\n  written to {output}")


@cli.command("demo")
@cli.option("--trace", "NAME", f"One of {', '.join(datasets.names())}.", default="langid")
@cli.output_option("Of the report.", cli.Output(name="folder", makes_folders=True), default="out")
def demo_command(trace: str, output: str) -> None:
    """Fit, compare and report on a real trace that comes with the package.

    Language detectors of very different speed, nine LLMs, or the exits of a network. It needs no
    network access and no GPU.
    """
    page, about = Path(output, f"{trace}.html"), datasets.about(trace)
    require_page(page)
    progress = cli.progress_line()
    fit, test = datasets.load(trace, "fit"), datasets.load(trace, "test")
    test = replace(test, spec=replace(test.spec, unit=about.get("unit", "")))
    result = frontier(fit, test, resamples=200, progress=progress)
    write_page(result, page, progress=progress)
    advice, nodes = recommend(result), ", ".join(test.names)
    cli.show(
        {**result.to_dict(), "recommendation": advice.to_dict(), "written": [str(page)]},
        f"{textwrap.fill(str(advice), 80, break_on_hyphens=False)}\n\n{trace}: {about['title']}\n"
        f"{nodes}\ncost: {about['cost'].partition(';')[0]}\n\n{result}\n\n"
        "The same for a log of yours: ttamer report LOG --cascade cascade.toml\n"
        f"The report, to open in a browser: {page}",
    )
