"""``ttamer bench``: compare all families on a folder of traces."""

from __future__ import annotations

import argparse
from typing import Any

from ttamer._numbers import counted
from ttamer.evaluation.benchmark import TraceBench
from ttamer.evaluation.frontiers import Frontier


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "bench",
        help="compare all families on a folder of traces",
        description="Fit every family on one half of each trace of a folder, and measure it on the "
        "other.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "folder", help="a folder of traces, each with NAME.toml (or one cascade.toml) beside it"
    )
    parser.add_argument(
        "--families",
        metavar="A,B",
        help="the families to compare, such as ttamer,threshold,chain (default: all that apply)",
    )
    parser.add_argument("--resamples", type=int, default=200, metavar="N",
                        help="bootstrap resamples for the intervals (default 200)")  # fmt: skip
    parser.add_argument("-o", "--output", metavar="FILE", help="write the numbers as JSON here")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Run and print one table."""
    from pathlib import Path

    from ttamer.cli.frontier import named_families
    from ttamer.cli.output import as_json, progress_line
    from ttamer.evaluation.benchmark import bench

    progress = progress_line(quiet=args.json)
    done = bench(
        args.folder, families=named_families(args), resamples=args.resamples, progress=progress
    )
    progress("")
    text = as_json([each.to_dict() for each in done])
    if args.output:
        Path(args.output).write_text(text + "\n", "utf-8")
    print(text if args.json else _text(done))


def _text(done: list[TraceBench]) -> str:
    from ttamer.cli.output import table

    parts = []
    wins = {"win": 0, "tie": 0, "loss": 0}
    for each in done:
        result, best = each.frontier, each.frontier.reference
        rows = []
        for family in result.families:
            cost, error = result.cost_at(family), result.error_at(family, best.cost)
            comparison = next((c for c in each.comparisons if c.rival == family), None)
            low, high = (0.0, 0.0) if comparison is None else comparison.interval
            rows.append([
                family,
                "-" if cost is None or not best.cost else f"{1 - cost / best.cost:.0%}",
                "-" if error is None else _quality(error, result),
                f"{result.area(family):.4f}",
                "" if comparison is None else f"{comparison.gain:+.1%}",
                "" if comparison is None else f"{low:+.1%} to {high:+.1%}",
                "" if comparison is None else comparison.verdict,
            ])  # fmt: skip
        for comparison in each.comparisons:
            wins[comparison.verdict] += 1
        noun = "accuracy" if result.measure == "error" else result.measure
        head = ["family", "saving", noun, "area", "gain", "95%", ""]
        parts.append(
            f"{each.name}: {counted(result.fit_rows, 'row')} to fit, {result.test_rows} to test; "
            f"{best.node} alone: {noun} {_quality(best.error, result)}\n\n" + table(head, rows)
        )
    first = done[0].frontier.families[0]
    parts.append(
        "saving: at that node's accuracy; accuracy: at its price; area: mean error over all "
        f"costs;\ngain: how much smaller {first}'s area is. {first} against all others: "
        f"{wins['win']} wins, {wins['tie']} ties, {wins['loss']} losses."
    )
    return "\n\n".join(parts)


def _quality(error: float, result: Frontier) -> str:
    """Return an accuracy, or a mean loss."""
    return f"{1 - error:.2%}" if result.measure == "error" else f"{error:.4g}"
