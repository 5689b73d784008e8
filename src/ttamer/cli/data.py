"""``ttamer collect``, ``label`` and ``import``: traces from models, people and other logs."""

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

import ttamer.cli.options as cli
from ttamer._checks import counted
from ttamer.cascade import CascadeSpec
from ttamer.errors import ArgumentError, TraceError
from ttamer.llm.collecting import collect_prompts, plan_collection, prompts_of
from ttamer.llm.importing import import_answers
from ttamer.llm.judging import Judge, judge_answers
from ttamer.llm.labelling import Labelling, LabelPage
from ttamer.llm.prompts import read_answers, read_prompts, read_text
from ttamer.trace.decisions import is_decision_log, read_decisions
from ttamer.trace.io import beside, suffix_of
from ttamer.trace.trace import Trace


@cli.command("collect")
@click.argument("cascade")
@cli.output_option("The trace to write (.parquet, .csv or .jsonl).", default="trace.parquet")
@cli.option("--prompts", "FILE", "JSON lines, CSV, or text with one prompt per line.")
@cli.option("--prompts-from", "TRACE", "A log whose prompts are asked; its answers are kept.")
@cli.option("--only", "NODE", "With --prompts-from: a node to ask.", multiple=True)
@cli.number("--budget", "C", "The most that all answers may cost.", type=click.FloatRange(0))
@cli.option("--label", "FIELD", "The field of the reference answer.", default="label")
@cli.option("--max-tokens", "N", "The longest answer.", type=click.IntRange(1), default=256)
@cli.option("--cache", "FILE", "The responses, none of which is paid twice (OUTPUT.cache).")
@cli.flag("--dry-run", help="Ask nothing; print the calls, and their cost.")
@cli.skip_option
def collect_command(
    cascade: str,
    output: str,
    prompts: str | None,
    prompts_from: str | None,
    only: tuple[str, ...],
    budget: float | None,
    label: str,
    max_tokens: int,
    cache: str | None,
    dry_run: bool,
    skip_bad: bool,
) -> None:
    """Ask the upstreams of CASCADE.toml about prompts, and write the trace and its cascade.

    Models that are Python callables are collected in Python: ttamer.collect.
    """
    suffix_of(output)  # refused before any model is called
    if not cascade.endswith(".toml"):
        raise ArgumentError(
            f"{cascade} is no cascade.toml; models that are Python callables are collected in "
            "Python: ttamer.collect(inputs, nodes)"
        )
    if (prompts is None) == (prompts_from is None) or bool(only) != (prompts_from is not None):
        raise ArgumentError(
            "give --prompts FILE, what to ask, or --prompts-from TRACE together with --only NODE"
        )
    # At temperature 0 an answer that is in the cache is the answer that would come again.
    spec, request = CascadeSpec.from_file(cascade), {"temperature": 0, "max_tokens": max_tokens}
    log = None
    if prompts is None:
        log = Trace.read(prompts_from or "")
        rows = prompts_of(log, request)
    else:
        rows = read_prompts(prompts, label=label, request=request)
        if label != "label" and all(prompt.label is None for prompt in rows):
            raise ArgumentError(f"--label {label}: no prompt of {prompts} has that field")
    paid, answers = Path(cache or f"{output}.cache"), f"{output}.answers.jsonl"
    if dry_run:
        plan = plan_collection(spec, rows, paid, only=only, budget=budget)
        cli.show(asdict(plan), plan)
        return
    try:
        trace = collect_prompts(
            spec,
            rows,
            paid,
            log=log,
            only=only,
            on_error=cli.Reading(skip_bad=skip_bad).on_bad,
            answers=answers,
            budget=budget,
            progress=_report("answers"),
        )
    except KeyboardInterrupt:
        print(
            f"\nstopped: the answers so far are kept in {paid}, and the same command asks only "
            "for those that are missing",
            file=sys.stderr,
        )
        raise
    _finish(trace, output, [answers], cascade)


def _finish(
    trace: Trace, output: str | Path, files: list[str], cascade: str = "", **more: Any
) -> None:
    """Write a trace, and its cascade beside it unless it is that file; print what it has."""
    trace.write(output)
    files, toml, errors = [str(output), *files], beside(output, ".toml"), {}
    if not cascade or toml.resolve() != Path(cascade).resolve():
        trace.spec.to_file(toml)
        files.append(str(toml))
    with suppress(TraceError):  # nothing says which answers are right
        errors = _means(trace, trace.loss * trace.unit)
    lines = [f"{counted(count, 'row')} left out: {why}" for why, count in trace.left_out.items()]
    lines += [*trace.notes, f"written to {' and '.join(files)}"]
    after = f"ttamer fit {output}{_cascade_words(output)}"
    if not errors:
        after = (
            f'ttamer label {output}\n  or target = "last" under [cascade]: the last node is right'
        )
    cli.show(
        {
            "rows": len(trace),
            "costs": _means(trace, trace.costs),
            "errors": errors,
            "left_out": dict(trace.left_out),
            "notes": list(trace.notes),
            "written": files,
            **more,
        },
        "\n\n  ".join([f"{counted(len(trace), 'row')}\n\n{trace.table()}", *lines])
        + f"\n\nNext: {after}",
    )


def _means(trace: Trace, values: NDArray[np.float64]) -> dict[str, float]:
    means = np.ma.masked_invalid(values).mean(axis=0).filled(np.nan)
    return dict(zip(trace.names, means, strict=True))


def _report(noun: str) -> Callable[[int, int, int], None]:
    """Return what shows the progress of calls."""
    progress = cli.progress_line()

    def report(done: int, total: int, failed: int) -> None:
        progress(f"{done} of {total} {noun}" + (f", {failed} failed" if failed else ""))

    return report


def _cascade_words(output: str | Path) -> str:
    """Return the option that a trace needs; only Parquet keeps the cascade inside."""
    keeps_it = suffix_of(output) == ".parquet"
    return "" if keeps_it else f" --cascade {beside(output, '.toml')}"


@cli.command("label")
@click.argument("trace")
@cli.output_option("The labelled trace (default: TRACE with .labelled before its suffix).")
@cli.flag("--uniform", help="All rows are equally likely to be next, as a certificate needs.")
@cli.option("--port", "N", "The local port of the page; 0 for any.", default=0)
@cli.flag("--no-page", help="Write the trace from the labels so far, without the page.")
@cli.option("--judge", "NODE", "In place of a person: a node of --cascade decides.")
@cli.option("--cascade", "FILE", "With --judge: a cascade.toml with its upstream.")
@cli.option("--rubric", "FILE", "With --judge: a text that defines what is right.")
def label_command(
    trace: str,
    output: str | None,
    judge: str | None,
    cascade: str | None,
    rubric: str | None,
    **page: Any,
) -> None:
    """Label the answers of TRACE, made by ttamer collect or import, on a local page.

    Rows on which nodes differ come first. Labels are saved one by one: the same command continues
    where it stopped. The labelled trace is for ttamer fit. TRACE may be a server's decision log
    with texts: its requests come in random order, and the log takes their labels.
    """
    source = Path(trace)
    if _is_decision_log(source):
        if output or judge or cascade:
            raise ArgumentError(
                "the labels of a decision log go into the log: leave out --output; a judge is set "
                "in the server, [serve.audit] judge"
            )
        _label_log(source, **page)
        return
    target = Path(output or beside(source, f".labelled{suffix_of(source)}"))
    if target.resolve() == source.resolve():
        raise ArgumentError(f"--output is {output!r}, the trace itself; choose another file")
    toml = beside(source, ".toml") if _cascade_words(source) else None
    if toml is not None and source.exists() and not toml.exists():
        raise ArgumentError(
            f"{source}: keeps no cascade, and {toml}, which ttamer collect writes beside it, "
            "is missing; run ttamer collect again, which asks no model again"
        )
    if (judge is None) != (cascade is None) or (rubric and judge is None):
        raise ArgumentError("--judge NODE and --cascade FILE go together, and --rubric with them")
    log = Trace.read(source, toml)
    rows = read_answers(f"{source}.answers.jsonl", log.names)
    if judge is None:
        facts, labelling = _by_hand(log, source, rows, **page)
        if not labelling.right:
            cli.show(facts, f"no labels yet\n\n  written to {facts['written'][0]}")
            return
        labelled, files = labelling.labelled(), facts.pop("written")
    else:
        judging = Judge(judge, read_text(Path(rubric)).strip() if rubric else "")
        verdicts, progress = f"{source}.verdicts", _report("verdicts")
        labelled = judge_answers(log, rows, cascade or "", judging, verdicts, progress=progress)
        facts, files = {}, []
    if log.spec.target == "last":
        note = 'remove target = "last" from the cascade.toml that serves it'
        labelled = replace(labelled, notes=(*labelled.notes, note))
    _finish(labelled, target, files, **facts)


def _is_decision_log(source: Path) -> bool:
    with suppress(OSError, ValueError, TypeError), source.open("rb") as file:
        return is_decision_log(tuple(json.loads(file.readline(2**20))))
    return False


def _label_log(source: Path, **page: Any) -> None:
    """Let a person label requests of a decision log."""
    from ttamer.serve import records  # with the server's libraries

    decisions = read_decisions(source)
    audited, rows = records.prompts_of(decisions)
    log = decisions.trace.take(np.array(audited, int))
    # Audited requests are a sample of the traffic, and so must be those with a label.
    facts, labelling = _by_hand(log, source, rows, **{**page, "uniform": True})
    scores = {
        decisions.requests[audited[row]]: dict(zip(log.names, map(float, right), strict=True))
        for row, right in labelling.right.items()
    }
    records.add_labels(source, scores)
    facts |= {"notes": [], "written": [str(source), *facts["written"]]}
    cli.show(facts, f"{source} has labels of {counted(len(labelling.right), 'request')}")


def _by_hand(
    log: Trace, source: Path, rows: Sequence[Any], *, port: int, no_page: bool, **how: Any
) -> tuple[dict[str, Any], Labelling]:
    """Let a person label on the local page; return facts, and the labels."""

    def ready(url: str) -> None:
        # On stderr: what is printed after it may be JSON.
        print(f"open {url}\n(Ctrl-C or the page's Finish ends it)", file=sys.stderr, flush=True)

    labels = Path(f"{source}.labels")  # kept beside the log: the same command continues there
    with Labelling(log, rows, labels, **how) as labelling:
        if not no_page:
            with suppress(KeyboardInterrupt):
                try:
                    asyncio.run(LabelPage(labelling).serve(port, ready))
                except (OSError, OverflowError) as error:
                    raise ArgumentError(
                        f"--port is {port}, which cannot be used: {error}"
                    ) from None
    facts = {
        "labels": len(labelling.right),
        "skipped": len(labelling.skipped),
        "written": [str(labels)],
    }
    return facts, labelling


@click.group("import", no_args_is_help=False)
def import_command() -> None:
    """Write a log of another form as a trace, and its cascade.toml beside it.

    A log with one line per call needs no import: ttamer frontier LOG reads it.
    """


@import_command.command("answers", cls=cli.Command)
@click.argument("log")
@cli.option("--cascade", "FILE", "Its [serve] says how answers are compared.", required=True)
@cli.output_option("The trace to write (.parquet, .csv or .jsonl).", required=True)
@cli.skip_option
def import_answers_command(log: str, cascade: str, output: str, skip_bad: bool) -> None:
    """Import answers in free text.

    A log has <node>.answer, label, and costs or tokens, as JSON lines or CSV; the spend logs of
    LiteLLM and the batch files of OpenAI are read too.
    """
    suffix_of(output)  # refused before the log is read
    on_bad = cli.Reading(skip_bad=skip_bad).on_bad
    answers = f"{output}.answers.jsonl"
    trace = import_answers(log, cascade, on_bad=on_bad, answers=answers)
    _finish(trace, output, [answers], cascade)
