"""``ttamer collect``, ``label`` and ``import``: traces from models, people and other logs."""

import asyncio
import dataclasses
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import numpy as np

from ttamer._checks import counted
from ttamer.cascade import CascadeSpec
from ttamer.cli.options import (
    Command,
    command,
    errors_of,
    json_option,
    node_table,
    option,
    output_option,
    print_notes,
    progress_line,
    skip_option,
    to_json,
)
from ttamer.errors import ArgumentError
from ttamer.trace.decisions import is_decision_log, read_decisions
from ttamer.trace.io import beside, suffix_of
from ttamer.trace.trace import OnBad, Trace


@command("collect")
@click.argument("cascade")
@output_option(
    "trace.parquet",
    text="The trace to write (.parquet, .csv or .npz); its cascade is written beside it.",
)
@skip_option
@json_option
@option("--prompts", "FILE", "JSON lines, CSV, or text with one prompt per line.")
@option("--prompts-from", "TRACE", "A log whose prompts are asked; its answers are kept.")
@option("--only", "NODE", "With --prompts-from: a node to ask, such as a new one.", multiple=True)
@option(
    "--budget",
    "C",
    "The most that all answers may cost, in the cascade's units; a random "
    "part of the prompts is asked.",
    type=float,
)
@option("--label", "FIELD", "The field of the reference answer.", default="label")
@option("--max-tokens", "N", "The longest answer.", type=click.IntRange(1), default=256)
@option(
    "--cache",
    "FILE",
    "Where responses are kept, so that none is paid for twice (default OUTPUT.cache).",
)
@click.option("--dry-run", is_flag=True, help="Ask nothing; print the calls, and their cost.")
@option("--judge", "NODE", "A node that judges which answers are right.")
@option("--rubric", "FILE", "With --judge: a text that defines what is right.")
@click.option("--graded", is_flag=True, help="With --judge: scores, which become losses.")
def collect_command(
    cascade: str,
    output: str,
    skip_bad: bool,
    as_json: bool,
    dry_run: bool,
    **options: Any,
) -> None:
    """Ask the upstreams of CASCADE.toml about prompts, and write the trace and its cascade.

    Models that are Python callables are collected in Python: ttamer.collect.
    """
    from ttamer.llm.collecting import collect_prompts, plan_collection

    suffix_of(output)  # refused before any model is called
    progress = progress_line(quiet=as_json)
    spec, log, prompts, judge = _asked(cascade, **options)
    paid, answers = Path(options["cache"] or f"{output}.cache"), Path(f"{output}.answers.jsonl")
    if dry_run:
        plan = plan_collection(spec, prompts, paid, only=options["only"], judge=judge)
        print(to_json(dataclasses.asdict(plan)) if as_json else plan)
        return
    noun = "answers" if judge is None else "answers and verdicts"

    def report(done: int, total: int, failed: int) -> None:
        progress(f"{done} of {total} {noun}" + (f", {failed} failed" if failed else ""))

    try:
        trace = collect_prompts(
            spec,
            prompts,
            paid,
            log=log,
            only=options["only"],
            on_error="skip" if skip_bad else "refuse",
            answers=answers,
            judge=judge,
            budget=options["budget"],
            progress=report,
        )
    except KeyboardInterrupt:
        print(
            f"\nstopped: the answers so far are kept in {paid}, and the same command asks only "
            "for those that are missing",
            file=sys.stderr,
        )
        raise
    progress("")
    written = [output, str(answers), *_write(trace, output, cascade)]
    if as_json:
        costs = dict(zip(trace.names, trace.costs.mean(axis=0).tolist(), strict=True))
        facts = {"rows": len(trace), "costs": costs, "left_out": dict(trace.left_out)}
        print(
            to_json(
                {
                    **facts,
                    "errors": errors_of(trace),
                    "notes": list(trace.notes),
                    "written": written,
                }
            )
        )
        return
    print(f"{counted(len(trace), 'row')}\n\n{node_table(trace)}")
    left_out = [f"{counted(n, 'prompt')} left out: {why}" for why, n in trace.left_out.items()]
    for note in [*left_out, *trace.notes, f"written to {' and '.join(written)}"]:
        print(f"\n  {note}")
    print(f"\nNext: ttamer fit {output}{_cascade_words(output)}")


def _asked(cascade: str, **options: Any) -> tuple[CascadeSpec, Trace | None, list[Any], Any]:
    """Return the cascade, the log, the prompts and the judge that options name."""
    from ttamer.llm.collecting import prompts_of
    from ttamer.llm.judging import Judge
    from ttamer.llm.prompts import read_prompts, read_text

    if not cascade.endswith(".toml"):
        raise ArgumentError(
            f"{cascade} is no cascade.toml; models that are Python callables are collected in "
            "Python: ttamer.collect(inputs, nodes)"
        )
    judge = None
    if options["judge"] is not None:
        rubric = read_text(Path(options["rubric"])).strip() if options["rubric"] else ""
        judge = Judge(options["judge"], rubric, options["graded"])
    for name in ("rubric", "graded"):
        if options[name] and judge is None:
            raise ArgumentError(f"--{name} is for a judge: give --judge NODE")
    if bool(options["only"]) != (options["prompts_from"] is not None):
        raise ArgumentError("--only NODE and --prompts-from TRACE go together: give both")
    if (options["prompts"] is None) == (options["prompts_from"] is None):
        raise ArgumentError(
            "--prompts FILE is needed: the prompts to collect answers for; or --prompts-from "
            "TRACE with --only NODE"
        )
    spec, label, request = CascadeSpec.from_file(cascade), options["label"], _request(**options)
    if options["prompts"] is None:
        log = Trace.read(options["prompts_from"])
        return spec, log, prompts_of(log, request), judge
    prompts = read_prompts(options["prompts"], label=label, request=request)
    if label != "label" and all(prompt.label is None for prompt in prompts):
        raise ArgumentError(f"--label {label}: no prompt of {options['prompts']} has that field")
    return spec, None, prompts, judge


def _request(max_tokens: int, **_: Any) -> dict[str, Any]:
    return {"temperature": 0, "max_tokens": max_tokens}


def _write(trace: Trace, output: str | Path, cascade: str | None = None) -> list[str]:
    """Write a trace, and its cascade beside it unless it is that file; return the latter."""
    trace.write(output)
    target = beside(output, ".toml")
    if cascade is not None and target.resolve() == Path(cascade).resolve():
        return []
    trace.spec.to_file(target)
    return [str(target)]


def _cascade_words(output: str | Path) -> str:
    """Return the option that a trace needs; only CSV keeps no cascade inside."""
    is_csv = suffix_of(output) in (".csv", ".csv.gz")
    return f" --cascade {beside(output, '.toml')}" if is_csv else ""


@command("label")
@click.argument("trace")
@output_option(text="The labelled trace (default: TRACE with .labelled before its suffix).")
@option(
    "--within", "X", "Label until differences in error are known to X.", type=float, default=0.02
)
@click.option(
    "--uniform",
    is_flag=True,
    help="All rows are equally likely to come next, as a certificate needs.",
)
@option(
    "--port",
    "N",
    "The local port of the page (default: any free one).",
    type=int,
    default=0,
    show_default=False,
)
@click.option(
    "--no-page", is_flag=True, help="Do not open the page: write the trace from the labels so far."
)
@option("--judge", "NODE", "In place of a person: a node of --cascade decides.")
@option("--cascade", "FILE", "With --judge: a cascade.toml with its upstream.")
@click.option("--graded", is_flag=True, help="With --judge: scores, which become losses.")
@json_option
def label_command(
    trace: str,
    output: str | None,
    judge: str | None,
    cascade: str | None,
    graded: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Label the answers of TRACE, made by ttamer collect or import, on a local page.

    Rows on which nodes differ come first. Labels are saved one by one: the same command continues
    where it stopped. The labelled trace is for ttamer fit. TRACE may be a server's decision log
    with texts: its requests come in random order, and the log takes their labels.
    """
    from ttamer.llm.judging import Judge, judge_answers
    from ttamer.llm.prompts import read_answers

    source = Path(trace)
    if _is_decision_log(source):
        if output or judge or cascade:
            raise ArgumentError(
                "the labels of a decision log go into the log: leave out --output; a judge is set "
                "in the server, [serve.audit] judge"
            )
        facts, lines = _label_log(source, quiet=as_json, **options)
        print(to_json(facts) if as_json else "\n\n  ".join(lines))
        return
    target = Path(output or beside(source, f".labelled{suffix_of(source)}"))
    if target.resolve() == source.resolve():
        raise ArgumentError(f"--output is {output!r}, the trace itself; choose another file")
    beside_it = beside(source, ".toml") if _cascade_words(source) else None
    if beside_it is not None and source.exists() and not beside_it.exists():
        raise ArgumentError(
            f"{source}: keeps no cascade, and {beside_it}, which ttamer collect writes beside it, "
            "is missing; run ttamer collect again, which asks no model again"
        )
    if (judge is None) != (cascade is None) or (graded and judge is None):
        raise ArgumentError("--judge NODE and --cascade FILE go together, and --graded with them")
    log = Trace.read(source, beside_it)
    if judge is None:
        rows = read_answers(f"{source}.answers.jsonl", log.names)
        labelled, _, facts, lines = _by_hand(log, source, rows, quiet=as_json, **options)
    else:
        rows, judging = (
            read_answers(f"{source}.answers.jsonl", log.names),
            Judge(judge, graded=graded),
        )
        labelled = judge_answers(log, rows, cascade or "", judging, f"{source}.verdicts")
        facts, lines = {"notes": labelled.notes, "written": []}, [labelled.notes[-1]]
    if labelled is not None:
        facts["written"] = [str(target), *_write(labelled, target), *facts["written"]]
    if as_json:
        print(to_json(facts))
        return
    print("\n\n  ".join([*lines, f"written to {' and '.join(facts['written'])}"]))
    if labelled is not None:
        print(f"\nNext: ttamer fit {target}{_cascade_words(target)}")
        if log.spec.target == "last":
            print('  and remove target = "last" from the cascade.toml that serves it')


def _label_log(source: Path, **options: Any) -> tuple[dict[str, Any], list[str]]:
    """Let a person label requests of a decision log; return facts, and lines to print."""
    from ttamer.serve.records import add_labels, prompts_of  # needs the server's libraries

    decisions = read_decisions(source)
    audited, rows = prompts_of(decisions)
    # Audited requests are a sample of the traffic, and so must be those with a label.
    options["uniform"] = True
    log = decisions.trace.take(np.array(audited, int))
    _, right, facts, _ = _by_hand(log, source, rows, **options)
    add_labels(
        source,
        {
            decisions.requests[audited[row]]: dict(
                zip(log.names, map(float, verdicts), strict=True)
            )
            for row, verdicts in right.items()
        },
    )
    facts |= {"notes": [], "written": [str(source), *facts["written"]]}
    return facts, [f"{source} has labels of {counted(len(right), 'request')}"]


def _is_decision_log(source: Path) -> bool:
    with suppress(OSError, ValueError, TypeError), source.open("rb") as file:
        return is_decision_log(tuple(json.loads(file.readline(2**20))))
    return False


def _by_hand(
    log: Trace,
    source: Path,
    rows: Sequence[Any],
    *,
    within: float,
    uniform: bool,
    port: int,
    no_page: bool,
    quiet: bool,
) -> tuple[Trace | None, dict[int, tuple[bool, ...]], dict[str, Any], list[str]]:
    """Let a person label; return the labelled trace, labels, facts, and lines to print."""
    from ttamer.llm.labelling import Labelling, LabelPage

    def ready(url: str) -> None:
        stream = sys.stderr if quiet else sys.stdout
        print(f"open {url}\n(Ctrl-C or the page's Finish ends it)", file=stream, flush=True)

    labels = Path(f"{source}.labels")
    with Labelling(log, rows, labels, within=within, uniform=uniform) as labelling:
        if not no_page:
            with suppress(KeyboardInterrupt):
                try:
                    asyncio.run(LabelPage(labelling).serve(port, ready))
                except (OSError, OverflowError) as error:
                    raise ArgumentError(
                        f"--port is {port}, which cannot be used: {error}"
                    ) from None
        estimate, right = labelling.estimate(), labelling.right
        labelled = labelling.labelled() if right else None
    notes = [] if labelled is None else list(labelled.notes[-1:])
    facts = {
        "labels": len(right),
        "skipped": len(labelling.skipped),
        "more": estimate.more,
        "unknown": labelling.unknown,
        "notes": notes,
        "written": [str(labels)],
    }
    if labelling.unknown:
        unknown = counted(labelling.unknown, "label")
        notes = [*notes, f"{unknown} of other prompts or answers: not counted"]
    return labelled, right, facts, [str(estimate), *notes]


@click.group("import", no_args_is_help=False)
def import_command() -> None:
    """Write a log of another form as a trace, and its cascade.toml beside it.

    A log with one line per call needs no import: ttamer frontier LOG reads it.
    """


@import_command.command("answers", cls=Command)
@click.argument("log")
@option(
    "--cascade",
    "FILE",
    "A cascade.toml: names and costs of the nodes, and under [serve] how answers are compared.",
    required=True,
)
@output_option(text="The trace to write (.parquet, .csv or .npz).", required=True)
@skip_option
@json_option
def import_answers_command(
    log: str, cascade: str, output: str, skip_bad: bool, as_json: bool
) -> None:
    """Import answers in free text.

    A log has <node>.answer, label, and costs or tokens, as JSON lines or CSV; the spend logs of
    LiteLLM and the batch files of OpenAI are read too.
    """
    from ttamer.llm.importing import import_answers

    suffix_of(output)  # refused before the log is read
    on_bad: OnBad = "skip" if skip_bad else "refuse"
    trace = import_answers(log, cascade, on_bad=on_bad, answers=f"{output}.answers.jsonl")
    print_notes(trace, log)
    written = [output, *_write(trace, output, cascade)]
    if as_json:
        print(to_json({"rows": len(trace), "written": written, "notes": list(trace.notes)}))
        return
    print(f"{node_table(trace)}\n")
    print(f"  {counted(len(trace), 'row')}, written to {' and '.join(written)}")
    if errors_of(trace):
        print(f"\nNext: ttamer frontier {output}{_cascade_words(output)}")
    else:
        print(
            "\nNo answer is known to be right, which a fit needs: add a label to every row, or "
            f'write target = "last" under [cascade] in {cascade}, and import again'
        )
