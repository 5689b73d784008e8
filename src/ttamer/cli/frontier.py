"""``ttamer frontier``: every family, measured on rows it was not fitted to."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any

from ttamer._numbers import counted
from ttamer.evaluation.frontiers import Frontier
from ttamer.fitted.ladder import FittedLadder
from ttamer.trace.trace import Trace

# The most characters in a line of prose.
LINE = 80


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "frontier",
        help="compare ttamer with thresholds, chains and other rules, and recommend one",
        description="Fit every family on some rows, measure it on others, and compare: one "
        "trace, halved at random, or two (--fit and --test).",
        allow_abbrev=False,
    )
    add_comparison_options(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="write the comparison as JSON here")
    parser.set_defaults(run=run)


def add_comparison_options(parser: Any) -> None:
    """Add the options of a comparison; ``ttamer report`` has them too."""
    from ttamer.cli.traces import add_reading_options

    parser.add_argument("trace", nargs="?",
                        help="the rows: one random half is fitted, the other measured")  # fmt: skip
    parser.add_argument("--fit", metavar="TRACE", help="rows to fit on")
    parser.add_argument("--test", metavar="TRACE", help="rows to measure on")
    add_reading_options(parser)
    parser.add_argument("--families", metavar="A,B",
                        help="the families to compare, such as ttamer,threshold,chain "
                        "(default: all that apply)")  # fmt: skip
    parser.add_argument("--resamples", type=int, default=1000, metavar="N",
                        help="bootstrap resamples for the intervals (default 1000)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> None:
    """Compare and print."""
    from pathlib import Path

    from ttamer.cli.output import as_json, progress_line
    from ttamer.evaluation.frontiers import frontier
    from ttamer.fitting.plans import fit

    names = named_families(args)
    fit_trace, test_trace = two_traces(args)
    progress = progress_line(quiet=args.json)
    ladder = fit(fit_trace, progress=progress) if names is None or "ttamer" in names else None
    result = frontier(
        fit_trace, test_trace, families=names, ladder=ladder, resamples=args.resamples,
        progress=progress,
    )  # fmt: skip
    progress("")
    text = as_json(result.to_dict())
    if args.output:
        Path(args.output).write_text(text + "\n", "utf-8")
    if args.json:
        print(text)
    else:
        print(frontier_text(result, test_trace, args, ladder))
        if args.output:
            print(f"\n  written to {args.output}")


def named_families(args: argparse.Namespace) -> list[str] | None:
    """Return the families that the options name; ``None`` for all that suit.

    Options that cannot be used are refused here, before any work.
    """
    from ttamer.evaluation.bootstrap import check_resampling
    from ttamer.evaluation.families import family_names

    check_resampling(args.resamples, seed=0)
    if not args.families:
        return None
    return family_names(name.strip() for name in args.families.split(","))


def two_traces(args: argparse.Namespace) -> tuple[Trace, Trace]:
    """Return the rows to fit on and those to measure on: two files, or the halves of one."""
    from ttamer.cli.traces import read
    from ttamer.errors import ArgumentError

    if args.trace is not None and args.fit is None and args.test is None:
        return read(args.trace, args).split(0.5, seed=0)
    if args.trace is not None or args.fit is None or args.test is None:
        raise ArgumentError(
            "give one TRACE, which is halved at random, or --fit TRACE and --test TRACE"
        )
    return read(args.fit, args), read(args.test, args)


def frontier_text(
    result: Frontier,
    test_trace: Trace,
    args: argparse.Namespace | None = None,
    ladder: FittedLadder | None = None,
) -> str:
    """Return the comparison as a table, the recommendation, and for a command what comes next."""
    from ttamer._numbers import number
    from ttamer.cli.output import table
    from ttamer.fitted.mixture import shown_error
    from ttamer.reporting.recommendation import budget_of, recommend, reference_in_words

    best, alone = result.reference, reference_in_words(result, test_trace)
    margins, measure = result.margins, result.measure
    head = ["family", *(name if more else f"its {measure}" for name, more in margins.items())]
    mean = "mean error" if measure == "error" else measure
    wider = "0.5 to 5 points more" if measure == "error" else "1% to 10% more"
    rows = []
    for family in result.families:
        cells = []
        for more in margins.values():
            cost = result.cost_at(family, more)
            cells.append("-" if cost is None else f"{cost / best.cost:.1%}" if best.cost else "0")
        rows.append([family, *cells, shown_error(result.area(family), measure)])
    lines = [
        f"Fitted and measured on the same {counted(result.fit_rows, 'row', ',')}: errors are "
        "too low. Split them."
        if result.same_rows
        else f"Fitted on {counted(result.fit_rows, 'row', ',')}, measured on "
        f"{counted(result.test_rows, 'other', ',')}.",
        f"Compared with {alone}: {measure} {shown_error(best.error, measure)}, "
        f"cost {number(best.cost)} per input.",
        "",
        f"Cost as a share of what {alone} costs, at its {measure} and at {wider}",
        f"('-': not reached); {mean} over all costs:",
        "",
        table([*head, mean], rows),
    ]
    if result.left_out:
        lines.append("")
        lines += [f"  left out: {name}: {why}" for name, why in result.left_out.items()]
    if "ttamer" in result.families:
        advice = recommend(result, test_trace)
        advised = f"What to use: {' '.join([advice.sentence, *advice.notes])}"
        lines += ["", textwrap.fill(advised, LINE, break_on_hyphens=False)]
        cascade = f" --cascade {args.cascade}" if args and args.cascade else ""
        if args is not None and advice.outcome == "loses" and advice.family == "threshold":
            lines += ["", f"Next: ttamer fit {args.trace or args.fit}{cascade} --belief threshold"]
        if args is not None and ladder is not None and advice.outcome in ("wins", "ties"):
            budget = budget_of(ladder, *advice.settings)
            lines += [
                "",
                f"Next: ttamer fit {args.trace or args.fit}{cascade}",
                "and choose that policy by its expected cost:",
                f"  for_budget({budget}) in Python, budget = {budget} in [serve]",
            ]
    return "\n".join(lines)
