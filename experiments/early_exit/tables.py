"""Times of fine-tuned networks with exits: the network itself, one threshold, and a fitted policy.

    PYTHONPATH=src python experiments/early_exit/tables.py FOLDER --inputs FILE.npz --out FILE.json

FOLDER is what ``EarlyExit.save_pretrained`` wrote. FILE.npz has ``ids`` and ``lengths`` of texts,
or ``pixels`` of images, and ``label``; its rows were not trained on. Policies are fitted to the
answers and the measured times of the first half, the few best are timed on it, and all numbers are
of the second half, in batches of one length. An allowance is held, by cross-fitting on the first
half, with two standard errors to spare, by ours and by thresholds. For every batch size, precision
and engine one line per rule, all timed in turns with the network itself: error, its difference to
the network's with a standard error (same rows), p50, p99, rows per second, exits asked, share of
the operations, speed-up, and two bounds: the speed-up by the times of the segments alone for the
rows that continue in each batch, without ramps, decisions and regrouping; and the same with the
time that a call takes besides its segments (inputs copied, the launch, the head, the wait), which
the network itself has too. In bf16 with CUDA graphs, batches of 8 and 32 are also run by
``stream``, several together, at the times of a whole window.

The network itself is timed for 0.6 seconds at each batch size, and the others with the same
batches: at least 16 of them, 96 of single rows; at most 2,048 rows.

Engines: ``graphs`` (CUDA graphs), ``compiled`` (parts compiled by torch.compile, then CUDA graphs),
``eager``. On a CPU: ``eager``, and ``int8``, linear layers with int8 weights. The first engine
searches sets of ramps for its policies; the others fit to the best of these at their own times, and
to all ramps. A run that was stopped continues with what is not yet in FILE.json.

``--plan FILE`` does the work of several command lines, one per line of FILE, in one process:
policies of the next are fitted by other processes while this one is timed.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shlex
import time
import traceback
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

import torch
from bench import CPU_ROWS, Bench
from choosing import choose

ORDER = (("bf16", "graphs"), ("fp32", "graphs"), ("bf16", "compiled"), ("bf16", "eager"),
         ("fp32", "eager"), ("fp32", "compiled"))  # fmt: skip
"""Precisions and engines on a GPU, the most used ones first."""
MAX_TRIES = 3
"""How often a step of the work on a setting may have begun before another: there are two steps."""


def main() -> None:
    """Measure what is not yet measured, line by line."""
    args = parsed(None)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")  # TF32
    torch.backends.cudnn.benchmark = True
    plan = [args]
    if args.plan is not None:
        plan = [parsed(shlex.split(line)) for line in args.plan.read_text().splitlines() if line]
    with (
        ProcessPoolExecutor(
            args.workers, get_context("spawn"), keep_to, (args.worker_cores,)
        ) as pool,
        ThreadPoolExecutor(1) as thread,
    ):
        for job in [pool.submit(int) for _ in range(args.workers)]:
            job.result()  # started before anything is timed
        settings = settings_of(plan, device)
        while args.after is not None and not args.after.exists():
            settings[0].load_early()
            time.sleep(0.1)
        measure_all(settings, pool, thread)
    if any(setting.missing for setting in settings):
        raise SystemExit("not everything is measured: run again for the rest")


def parsed(line: list[str] | None) -> argparse.Namespace:
    """Return the arguments of a command line; ``None``: of this process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--inputs", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--every", type=int, default=1, help="keep each ramp of this many")
    parser.add_argument("--engines", nargs="+", default=["graphs", "eager", "compiled"])
    parser.add_argument("--precisions", nargs="+", default=["bf16", "fp32"])
    parser.add_argument("--candidates", type=int, default=2, help="policies timed for each level")
    parser.add_argument("--cpu-rows", type=int, default=CPU_ROWS, help="rows timed on a CPU")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--worker-cores", type=int, nargs="+", help="where policies are fitted")
    parser.add_argument("--trace", type=Path, help="fit to this trace in place of the own one")
    parser.add_argument("--plan", type=Path, help="a file of command lines")
    parser.add_argument("--after", type=Path, help="begin when this file is there")
    args = parser.parse_args(line)
    if args.plan is None and None in (args.folder, args.inputs, args.out):
        parser.error("give a folder with --inputs and --out, or --plan")
    return args


def keep_to(cores: list[int] | None) -> None:
    """Keep this process to some cores, and to one thread."""
    torch.set_num_threads(1)
    if cores:
        os.sched_setaffinity(0, cores)


def settings_of(plan: list, device: str) -> list[Setting]:
    """Return the settings of command lines, in their order."""
    order = ORDER if device == "cuda" else (("fp32", "eager"), ("fp32", "int8"))
    reports = {args.out: read_report(args.out, device) for args in plan}
    return [
        Setting(args, device, *each, reports[args.out])
        for args in plan
        for each in order
        if each[0] in args.precisions and each[1] in args.engines
    ]


def read_report(path: Path, device: str) -> dict:
    """Return what a file holds, or a report without lines."""
    if path.exists():
        return json.loads(path.read_text("utf-8"))
    threads = f"{torch.get_num_threads()} threads"
    name = torch.cuda.get_device_name() if device == "cuda" else threads
    return {"device": name, "torch": torch.__version__, "lines": [], "profiles": {}, "sets": {},
            "exits": {}}  # fmt: skip


def measure_all(settings: list[Setting], pool: ProcessPoolExecutor, thread) -> None:
    """Measure settings in order; one that fails does not stop the others.

    While one is timed, policies are fitted for the next, whose parts are timed before; not beside
    settings without graphs, whose times are the host's.
    """
    waiting: Setting | None = None

    def finish() -> None:
        nonlocal waiting
        if waiting is not None:
            waiting.attempt(waiting.measure)
            waiting.bench = None
        waiting = None

    for setting in settings:
        if not setting.graphs:
            finish()
        ready = setting.can_begin() and setting.attempt(lambda s=setting: s.prepare(pool, thread))
        finish()
        waiting = setting if ready else None
        if not setting.graphs:
            finish()
        gc.collect()
        torch.cuda.empty_cache()
    finish()


class Setting:
    """A network in one precision, run by one engine."""

    def __init__(self, args, device: str, precision: str, engine: str, report: dict) -> None:
        self.args, self.device, self.report = args, device, report
        self.precision, self.engine = precision, engine
        self.name = f"{precision} {engine}"
        self.graphs = engine in ("graphs", "compiled")
        self.bench: Bench | None = None
        self.early = 0

    @property
    def missing(self) -> list[int]:
        """The batch sizes that are not measured."""
        done = {
            line["batch"]
            for line in self.report["lines"]
            if (line["precision"], line["engine"]) == (self.precision, self.engine)
            and line["rule"] == "ours"
        }
        return [batch for batch in self.args.batches if batch not in done]

    def can_begin(self) -> bool:
        """Return whether there is something to measure, and a network."""
        tries = self.report.get("tries", {}).get(self.name, 0)
        there = self.args.inputs.exists() and (self.args.folder / "model.safetensors").exists()
        return bool(self.missing) and there and tries < MAX_TRIES

    def attempt(self, work) -> bool:
        """Work on this setting, and return whether that did not fail.

        The process ends where the GPU can no longer be used: it is to be started again.
        """
        tries = self.report.setdefault("tries", {})
        tries[self.name] = tries.get(self.name, 0) + 1
        self.write()
        try:
            work()
        except Exception as error:
            traceback.print_exc()
            if "CUDA error" in str(error):
                os._exit(3)
            return False
        return True

    def load_early(self) -> None:
        """Load the network while timing has to wait; files that are not complete yet may fail."""
        if self.bench is None and self.early < MAX_TRIES and self.can_begin():
            self.early += 1
            time.sleep(1)
            try:
                self.bench = Bench(self.args, self.device, self.precision, self.engine)
            except Exception as error:
                print(f"{self.args.folder.name} is not loaded yet: {error}", flush=True)

    def prepare(self, pool: ProcessPoolExecutor, thread) -> None:
        """Time the parts, and let policies be fitted."""
        start = time.perf_counter()
        print(f"{self.args.folder.name}, {self.name}", flush=True)
        bench = self.bench or Bench(self.args, self.device, self.precision, self.engine)
        self.bench = bench
        self.report["exits"][self.name] = bench.exits()
        print(f"loaded, traced: {time.perf_counter() - start:.1f} s", flush=True)
        start = time.perf_counter()
        bench.measure_parts(self.args.batches)
        self.report["profiles"][self.name] = asdict(bench.profile)
        print(f"profile: {time.perf_counter() - start:.1f} s", flush=True)
        self.found = thread.submit(self.fitted, pool)

    def fitted(self, pool: ProcessPoolExecutor) -> dict:
        """Return policies and thresholds for each batch size."""
        start, bench = time.perf_counter(), self.bench
        found = choose(pool, bench.fit, bench.profile, self.report["sets"], self.args.candidates)
        print(f"policies: {time.perf_counter() - start:.1f} s", flush=True)
        return found

    def measure(self) -> None:
        """Time the network with the policies found, and write the lines of each batch size."""
        found = self.found.result()
        for batch in self.missing:
            start = time.perf_counter()
            lines = self.bench.lines(batch, *found[batch])
            own = {"precision": self.precision, "engine": self.engine}
            self.report["lines"] += [{**own, **line} for line in lines]
            self.write()
            for line in lines:
                show(self.name, line)
            print(f"batch {batch}: {time.perf_counter() - start:.1f} s", flush=True)

    def write(self) -> None:
        """Write what there is, so that a stopped run counts."""
        path = self.args.out.with_suffix(".part")
        path.write_text(json.dumps(self.report, indent=1), "utf-8")
        path.replace(self.args.out)


def show(name: str, line: dict) -> None:
    """Print a line."""
    level = f"+{100 * line['more_error']:.0f}" if "more_error" in line else ""
    more = f"{100 * line['more']:+.2f} ± {100 * line['more_se']:.2f}" if "more" in line else ""
    print(
        f"{line['batch']:4} {name:13} {line['rule']:9} {level:3} error {line['error']:.4f} {more} "
        f"p50 {1e3 * line['p50']:.3f} p99 {1e3 * line['p99']:.3f} ms, "
        f"{line['rows_per_second']:.0f}/s, {line['speed_up']:.2f} times, "
        f"bound {line.get('bound', 1):.2f}, asked {line.get('exits_asked', 1):.2f} "
        f"{','.join(line.get('ramps', []))} {line.get('recommended', '')}",
        flush=True,
    )


if __name__ == "__main__":
    main()
