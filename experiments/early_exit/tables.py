"""Times of fine-tuned networks with exits: the network itself, one threshold, and a fitted policy.

    PYTHONPATH=src python experiments/early_exit/tables.py FOLDER --inputs FILE.npz --out FILE.json

FOLDER is what ``EarlyExit.save_pretrained`` wrote. FILE.npz has ``ids`` and ``lengths`` of texts,
or ``pixels`` of images, and ``label``; its rows were not trained on. Policies are fitted to the
answers and the measured times of the first half, the few best are timed on it, and all numbers are
of the second half, in batches of one length. An allowance is held there with one standard error to
spare, for ours and for thresholds. For every batch size, precision and engine one line
per rule: error, its difference to the network's with a standard error (same rows), p50, p99, rows
per second, joules per row where the GPU counts them, exits asked, share of the operations, speed-up
over the network itself, timed in between, and two bounds: the speed-up by the times of the segments
alone for the rows that continue in each batch, without ramps, decisions and regrouping; and the
same with the time that a call takes besides its segments (inputs copied, the launch, the head, the
wait), which the network itself has too. Batches of 8 and 32 are also run by ``stream``, several
together, at the times of a whole window.

Engines: ``graphs`` (CUDA graphs), ``compiled`` (parts compiled by torch.compile, then CUDA graphs),
``eager``. On a CPU: ``eager``, and ``int8``, linear layers with int8 weights. The first engine
searches sets of ramps for its policies; the others fit to the best of these at their own times, and
to all ramps. A run that was stopped continues with what is not yet in FILE.json; ``--seconds`` is
when to start nothing more.

``--plan FILE`` does the work of several command lines, one per line of FILE, in one process:
policies of the next are fitted by other processes while this one is timed.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import shlex
import time
import traceback
from bisect import bisect_left
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

import ttamer as tt
from ttamer import torch as exits
from ttamer.baselines import FAMILIES
from ttamer.torch import tuning
from ttamer.torch.devices import rows_of, take
from ttamer.torch.profiling import full_run, runner_for
from ttamer.torch.runner import group_sizes

LEVELS = (0.0, 0.01)
"""Errors allowed above the network's own."""
CAUTION = 1.0
"""The standard errors to spare."""
ORDER = (("bf16", "graphs"), ("fp32", "graphs"), ("bf16", "compiled"), ("bf16", "eager"),
         ("fp32", "eager"), ("fp32", "compiled"))  # fmt: skip
"""Precisions and engines on a GPU, the most used ones first."""
ROWS = {1: 200, 8: 640, 32: 960}
"""Rows that are timed, by batch size; 1536 for larger batches."""
SHARES = {"graphs": 1.0, "compiled": 0.75, "eager": 0.5, "int8": 1.0}
"""The share of these by engine; in fp32 on a GPU, half of it."""
REPEATS = 2
"""How often the batches are timed."""
WARM_UPS = 8
"""The batches that are run before with graphs, all captured at once; else all are run twice."""
CANDIDATES = 2
"""Policies timed for each level of error."""
INT8_ROWS = 400
"""Rows that are traced with int8 weights."""
CPU_ROWS = 24
"""Rows that are timed on a CPU."""
WINDOWS = {32: (8,), 128: (8, 32)}
"""The batches that ``stream`` runs together, by the rows of a window."""
ATTEMPTS = 2
"""How often a setting is tried that fails."""
SETS = 3
"""Sets of ramps, for each batch size and level, that the other engines fit to."""


def main() -> None:
    """Measure what is not yet measured, line by line."""
    args = parsed(None)
    started = time.perf_counter()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")  # TF32
    torch.backends.cudnn.benchmark = True
    plan = [args]
    if args.plan is not None:
        plan = [parsed(shlex.split(line)) for line in args.plan.read_text().splitlines() if line]
    context = get_context("spawn")
    cores = args.worker_cores
    with ProcessPoolExecutor(args.workers, context, keep_to, (cores,)) as pool:
        for job in [pool.submit(int) for _ in range(args.workers)]:
            job.result()  # started before anything is timed
        while args.after is not None and not args.after.exists():
            time.sleep(0.1)
        complete = measure_all(plan, device, pool, started + args.seconds)
    if not complete:
        raise SystemExit("not everything is measured: run again for the rest")


def parsed(line: list[str] | None) -> argparse.Namespace:
    """Return the arguments of a command line; ``None``: of this process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--inputs", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--batches", type=int, nargs="+", default=[32, 128, 8, 1])
    parser.add_argument("--every", type=int, default=1, help="keep each ramp of this many")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--engines", nargs="+", default=["graphs", "eager", "compiled"])
    parser.add_argument("--precisions", nargs="+", default=["bf16", "fp32"])
    parser.add_argument("--rows", type=int, default=10**9, help="most rows of the inputs")
    parser.add_argument("--share", type=float, default=1.0, help="of the rows that are timed")
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
    """Keep this process to some cores."""
    if cores:
        os.sched_setaffinity(0, cores)


def measure_all(plan: list, device: str, pool: ProcessPoolExecutor, until: float) -> bool:
    """Measure everything in order, and return whether nothing is missing.

    While one setting is timed, policies are fitted for the next, whose parts are timed before;
    not beside settings without graphs, whose times are the host's.
    """
    order = ORDER if device == "cuda" else (("fp32", "eager"), ("fp32", "int8"))
    settings = [(args, *each) for args in plan for each in order
                if each[0] in args.precisions and each[1] in args.engines]  # fmt: skip
    reports = {args.out: read_report(args.out, device) for args in plan}
    complete, waiting = True, None

    def attempted(work, *given):
        """Return what some work returns; ``None`` where it fails, which is noted."""
        try:
            return work(*given)
        except Exception:
            traceback.print_exc()
            args, name = given[0], f"{given[1]} {given[2]}"
            failed = reports[args.out].setdefault("failed", {})
            failed[name] = failed.get(name, 0) + 1
            write_report(args.out, reports[args.out])

    def finish(waiting):
        return waiting is None or bool(attempted(lines_of, *waiting, until))

    with ThreadPoolExecutor(1) as thread:
        for setting in settings:
            alone = setting[2] not in ("graphs", "compiled")
            if alone:
                complete &= finish(waiting)
                waiting = None
            args, *key = setting
            report = reports[args.out]
            wanted = [batch for batch in args.batches if not has(report, *key, batch)]
            often = report.get("failed", {}).get(" ".join(key), 0) >= ATTEMPTS
            late = time.perf_counter() > until
            ready = None
            if wanted and not late and not often:
                found = attempted(prepared, *setting, wanted, report, device, pool, thread)
                ready = found and (*setting, *found)
            complete &= not wanted or ready is not None
            complete &= finish(waiting)
            waiting = ready
            if alone:
                complete &= finish(waiting)
                waiting = None
            gc.collect()
            torch.cuda.empty_cache()
        complete &= finish(waiting)
    return complete


def prepared(args, precision, engine, wanted, report, device, pool, thread):
    """Time the parts of a network, and start to fit policies."""
    print(f"{args.folder.name}, {precision} {engine}", flush=True)
    bench = Bench(args, device, precision, engine, pool, report)
    return bench, wanted, bench.prepare(wanted, thread)


def lines_of(args, precision, engine, bench, wanted, found, until) -> bool:
    """Time a network with the policies found, write the lines, and return whether all are there."""
    count = 0
    for lines in bench.measure(wanted, found.result(), until):
        bench.done["lines"] += [{"precision": precision, "engine": engine, **x} for x in lines]
        for line in lines:
            show(precision, engine, line)
        bench.done["profiles"][f"{precision} {engine}"] = asdict(bench.profile)
        write_report(args.out, bench.done)
        count += 1
    return count == len(wanted)


def read_report(path: Path, device: str) -> dict:
    """Return what a file holds, or a report without lines."""
    return json.loads(path.read_text("utf-8")) if path.exists() else new_report(device)


def write_report(path: Path, report: dict) -> None:
    """Write a report."""
    path.write_text(json.dumps(report, indent=1), "utf-8")


def new_report(device: str) -> dict:
    """Return a report without lines."""
    name = (
        torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} threads"
    )
    return {"device": name, "torch": torch.__version__, "lines": [], "profiles": {}, "sets": {},
            "exits": {}}  # fmt: skip


def has(report: dict, precision: str, engine: str, batch: int) -> bool:
    """Return whether these lines are there already."""
    return any(
        (line["precision"], line["engine"], line["batch"]) == (precision, engine, batch)
        and line["rule"] == "ours"
        for line in report["lines"]
    )


def load(folder: Path, every: int, inputs: Path) -> exits.EarlyExit:
    """Return a network with some of its ramps."""
    other = None
    if folder.name.startswith("resnet"):
        from large import built  # experiments/vision

        with np.load(inputs) as file:
            other = built(folder.name.partition("-")[0], int(file["size"]))
    network = exits.EarlyExit.from_pretrained(folder, other)
    ramps = list(network.exits)
    if every == 1:
        return network
    kept = [ramp if (k + 1) % every == 0 else None for k, ramp in enumerate(ramps[:-1])]
    names = [name for name, ramp in zip(network.names, [*kept, True], strict=True) if ramp]
    blocks = list(network.segments)
    return exits.EarlyExit(blocks, kept, ramps[-1], names=names, trim=network.trim)


def compile_parts(network: exits.EarlyExit) -> None:
    """Compile every block and ramp on its own: blocks of one kind share their code."""
    torch._dynamo.config.recompile_limit = 64
    for part in [*network.segments, *network.exits]:
        for block in part if type(part) is torch.nn.Sequential else [part]:
            block.compile()


class Bench:
    """One network in one precision, run by one engine."""

    def __init__(self, args, device, precision, engine, pool, done):
        self.precision, self.engine, self.pool = precision, engine, pool
        self.cpu_rows = args.cpu_rows
        self.share = args.share * SHARES[self.engine] * (1.0 if precision == "bf16" else 0.5)
        self.done = done
        self.graphs = self.engine in ("graphs", "compiled")
        network = load(args.folder, args.every, args.inputs).to(device)
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self.value, self.labels = read_inputs(args.inputs, device, args.rows, dtype)
        if precision == "bf16":
            network = network.bfloat16()
        if not isinstance(self.value, tuple):
            network = exits.fold_batch_norm(network).to(memory_format=torch.channels_last)
        self.network = network.eval()
        one = take(self.value, torch.arange(1, device=self.labels.device))
        self.flops = exits.count_flops(self.network, one)
        if self.engine == "int8":
            self.network = torch.ao.quantization.quantize_dynamic(network, {torch.nn.Linear})
        self.half = len(self.labels) // 2
        start = time.perf_counter()
        path = args.trace or args.out.with_suffix(f".{precision}.trace.npz")
        self.fit, self.held = self.traced(path)
        done["exits"][f"{precision} {engine}"] = {
            "names": list(self.fit.names), "test_rows": len(self.held),
            "fit": self.fit.wrong().mean(0).tolist(), "test": self.held.wrong().mean(0).tolist(),
            "segments": list(self.flops.segments), "ramps": list(self.flops.ramps),
        }  # fmt: skip
        print(f"{precision} {engine}: traced, {time.perf_counter() - start:.1f} s", flush=True)
        if self.engine == "compiled":
            compile_parts(self.network)

    def traced(self, path: Path):
        """Return the traces of both halves, from a file where there is one.

        Linear layers with int8 weights answer differently: policies are fitted to the network
        itself, and the rows that they are measured on are traced.
        """
        every = torch.arange(len(self.labels), device=self.labels.device)
        if path.exists():
            trace = tt.Trace.read(path).restrict(self.network.names)
        else:
            trace = self.answers(every)
            trace.write(path)
        fit = trace.take(np.arange(self.half))
        if self.engine != "int8":
            return fit, trace.take(np.arange(self.half, len(self.labels)))
        return fit, self.answers(every[self.half : self.half + INT8_ROWS])

    def answers(self, rows):
        """Return the trace of some rows."""
        loader = ((take(self.value, some), self.labels[some]) for some in rows.split(250))
        return exits.trace_of(self.network, loader)

    def prepare(self, batches, thread):
        """Time the parts, and return a promise of policies and thresholds per batch size."""
        start = time.perf_counter()
        example = take(self.value, torch.arange(max(batches), device=self.labels.device))
        self.profile = exits.profile(
            self.network, example, sizes=tuple(sorted(batches)), graphs=self.graphs
        )
        print(f"profile: {time.perf_counter() - start:.1f} s", flush=True)
        return thread.submit(self.fitted, batches)

    def fitted(self, batches):
        """Return, per batch size, policies and a threshold for each level, fitted elsewhere."""
        start = time.perf_counter()
        specs = [self.profile.costs(batch).spec(skip=True) for batch in batches]
        rules = [self.pool.submit(thresholds, self.fit.with_spec(spec)) for spec in specs]
        found = search(self.pool, self.fit, self.profile, batches, self.done["sets"])
        both = {batch: (found[batch], rule.result())
                for batch, rule in zip(batches, rules, strict=True)}  # fmt: skip
        print(f"policies: {time.perf_counter() - start:.1f} s", flush=True)
        return both

    def measure(self, batches, found, until):
        """Yield the lines of each batch size."""
        for batch in batches:
            if time.perf_counter() > until:
                break
            start = time.perf_counter()
            yield self.lines(batch, *found[batch])
            gc.collect()  # graphs of this batch size, and then their memory
            torch.cuda.empty_cache()
            print(f"batch {batch}: {time.perf_counter() - start:.1f} s", flush=True)

    def lines(self, batch, found, limits):
        """Return the lines of one batch size: the network, thresholds, and ours."""
        rows = max(int(self.share * ROWS.get(batch, 1536)), CPU_ROWS)
        if not torch.cuda.is_available():
            rows = self.cpu_rows
        known, _ = self.cut(0, rows // 2, batch)
        test, labels = self.cut(self.half, rows, batch)
        self.example = test[0]
        full = full_run(self.network, test[0], graphs=self.graphs)
        alone, joules = self.timed(full, test)
        held = self.held.with_spec(self.profile.costs(batch).spec(skip=True))
        lines = [{"batch": batch, "rule": "full", "error": float(held.wrong()[:, -1].mean()),
                  **alone.to_dict(), "speed_up": 1.0, "rows": len(labels),
                  "joules": joules}]  # fmt: skip
        usual = self.timed(full, known)[0].mean
        for level, policies, rule in zip(LEVELS, found, limits, strict=True):
            if rule is not None:
                runner = self.threshold(rule)
                error = errors_of(rule, held, len(labels))
                lines.append(self.line("threshold", level, runner, full, test, labels, error))
            runners = [self.runner(each.policy, test[0]) for each in policies]
            times = [self.timed(run, known)[0].mean for run in runners]
            if not times or min(times) > tuning.MAX_TIME_SHARE * usual:
                lines.append({**lines[0], "rule": "ours", "more_error": level,
                              "recommended": "full"})  # fmt: skip
                continue
            chosen = policies[int(np.argmin(times))]
            runner = runners[int(np.argmin(times))]
            fewer = held.restrict(chosen.policy.fitted.spec.names)
            error = errors_of(chosen.policy, fewer, len(labels))
            lines.append(self.line("ours", level, runner, full, test, labels, error))
        if batch in WINDOWS and self.graphs and lines[-1]["rule"] == "ours":
            lines += self.streamed(lines[-1], runner, test) if "bound" in lines[-1] else []
        return lines

    def streamed(self, known, runner, test):
        """Return the lines of smaller batches run together, at the allowance timed last."""
        lines = []
        for small in WINDOWS[known["batch"]]:
            parts = torch.arange(known["batch"], device=self.labels.device).split(small)
            windows = [[take(each, rows) for rows in parts] for each in test]

            def run(at, windows=windows):
                return list(runner.stream(windows[int(at)], window=len(windows[0])))

            took, _ = self.timed(run, list(torch.arange(len(windows))[:, None]))
            lines.append({
                "batch": known["batch"], "rule": f"stream of {small}", "error": known["error"],
                "more_error": known["more_error"], **took.to_dict(),
                "rows_per_second": known["batch"] / took.mean, "rows": known["rows"],
                "speed_up": known["full_mean"] / took.mean,
            })  # fmt: skip
        return lines

    def threshold(self, rule, names=None):
        """Return a runner of a threshold rule, on all ramps or on some."""
        limits = np.full(len(self.network.names), np.nan)
        names = names or self.network.names
        places = [self.network.names.index(name) for name in names]
        limits[places] = np.append(np.broadcast_to(rule.thresholds, len(places) - 1), np.inf)
        return self.runner(exits.threshold_tables(limits), self.example)

    def cut(self, start, rows, batch):
        """Return whole batches from a row on, and their labels."""
        rows = min(rows, len(self.labels) - start, self.half)
        count = max(rows // batch, 1)
        where = torch.arange(start, start + count * batch, device=self.labels.device)
        return [take(self.value, each) for each in where.split(batch)], self.labels[where]

    def runner(self, policy, example):
        """Return a runner of a policy."""
        return runner_for(
            self.network, policy, example, classes=self.fit.classes, graphs=self.graphs,
            regrouping=self.profile.regrouping(),
        )  # fmt: skip

    def line(self, rule, level, runner, full, test, labels, errors):
        """Time a runner twice, and the network in between; without graphs both in turns."""
        batch = rows_of(test[0])
        joules = full_joules = None
        if torch.cuda.is_available() and not self.graphs:
            took, alone = in_turns((runner, full), test)
        else:
            took, joules = self.timed(runner, test)
            alone, full_joules = self.timed(full, test)
        if self.graphs:
            again, _ = self.timed(runner, test)
            took = min(took, again, key=lambda each: each.mean)
        table, sizes = self.profile.regrouping(), group_sizes(batch)
        segments = range(len(self.network.segments))
        ops = np.cumsum(self.flops.segments)
        ramps = np.array([*self.flops.ramps[:-1], 0.0])
        wrong, asked, needed, done = 0, 0.0, 0.0, 0.0
        for each, right in zip(test, labels.split(batch), strict=True):
            answers = runner(each)
            wrong += int((answers.logits.argmax(1) != right).sum())
            asks = answers.asked
            asked += float(asks.float().sum())
            # The segments that a row goes through: up to the last exit that it asks.
            last = (asks * torch.arange(1, asks.shape[1] + 1, device=asks.device)).amax(1).cpu()
            alive = [int((last > k).sum()) for k in segments]
            done += float(ops[last.numpy() - 1].sum() + (asks.cpu().numpy() @ ramps).sum())
            needed += sum(table.time(k, sizes[bisect_left(sizes, n)])
                          for k, n in enumerate(alive) if n)  # fmt: skip
        whole, needed = sum(table.time(k, batch) for k in segments), needed / len(test)
        besides = max(alone.mean - whole, 0.0)
        return {
            "batch": batch, "rule": rule, "more_error": level, **errors,
            "error_of_timed": wrong / len(labels), **took.to_dict(),
            "speed_up": alone.mean / took.mean, "p50_gain": alone.p50 / took.p50,
            "bound": whole / needed, "bound_besides": alone.mean / (needed + besides),
            "besides": besides, "needed": needed, "operations": done / len(labels) / ops[-1],
            "exits_asked": asked / len(labels), "ramps": list(runner.reached),
            "rows": len(labels), "full_mean": alone.mean, "joules": joules,
            "full_joules": full_joules,
        }  # fmt: skip

    def timed(self, run, batches):
        """Return times, and joules per row where the GPU counts them."""
        if not torch.cuda.is_available():
            run(batches[0])
            return tuning.time_batches(run, batches, repeats=1, warm_ups=0), None
        for batch in 2 * batches if not self.graphs else batches[:WARM_UPS]:
            run(batch)
        torch.cuda.synchronize()
        before = joules_so_far()
        took = tuning.time_batches(run, batches, repeats=REPEATS, warm_ups=0)
        if before is None:
            return took, None
        return took, (joules_so_far() - before) / (REPEATS * sum(map(rows_of, batches)))


def in_turns(runs, batches):
    """Return the times of several runs, batch by batch in turns: the host's speed changes."""
    for batch in batches:  # exits are captured the second time that they see a shape
        runs[0](batch)
    seconds = np.empty((len(runs), REPEATS + 1, len(batches)))
    for repeat in range(REPEATS + 1):
        for at, batch in enumerate(batches):
            for k, run in enumerate(runs):
                torch.cuda.synchronize()
                start = time.perf_counter()
                run(batch)
                torch.cuda.synchronize()
                seconds[k, repeat, at] = time.perf_counter() - start
    return [tuning.timing_of(each[1:].ravel(), rows_of(batches[0])) for each in seconds]


def joules_so_far():
    """Return the energy that the GPU has used, by its own counter; ``None`` without one."""
    if not torch.cuda.is_available():
        return None
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        handle, energy = ctypes.c_void_p(), ctypes.c_ulonglong()
        if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)):
            return None
        if library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(energy)):
            return None
    except (OSError, AttributeError):
        return None
    return energy.value / 1e3


def read_inputs(path: Path, device: str, most: int, dtype: torch.dtype):
    """Return inputs on a device, texts padded to one length, and their labels."""
    with np.load(path) as file:
        labels = torch.from_numpy(file["label"][:most].astype(np.int64)).to(device)
        if "pixels" in file.files:
            from large import enlarged  # experiments/vision

            pixels = torch.from_numpy(file["pixels"][:most]).to(device)
            large = [enlarged(part, int(file["size"])).to(dtype) for part in pixels.split(500)]
            return torch.cat(large), labels
        ids = torch.from_numpy(file["ids"][:most].astype(np.int64)).to(device)
        lengths = torch.from_numpy(file["lengths"][:most].astype(np.int64)).to(device)
    mask = torch.arange(ids.shape[1], device=device) < lengths[:, None]
    return (ids, mask), labels


def search(pool, trace, measured, batches, sets):
    """Return, per batch size and level, the policies with the lowest predicted times.

    Sets of ramps grow by one ramp at a time, as in ``tuning.search``, for all batch sizes and
    levels at once; all ramps are tried too. The best sets are noted in ``sets``; where there are
    some, only they, and all ramps, are fitted to.
    """
    brief = all(str(batch) in sets for batch in batches)
    found = {(batch, level): {} for batch in batches for level in LEVELS}
    fits = {}
    every_ramp = tuning.many_ramps(len(measured.names) - 1)

    def fit_all(keys):
        jobs = {key: pool.submit(fastest, trace, measured, *key) for key in keys - set(fits)}
        fits.update({key: job.result() for key, job in jobs.items()})

    def note(batch, level, ramps):
        best = fits[batch, ramps][LEVELS.index(level)]
        if best is not None and best.ramps:
            found[batch, level].setdefault(best.ramps, (best, ramps))
        return float("inf") if best is None else best.seconds

    if brief:
        known = {(batch, tuple(ramps)) for batch in batches for ramps in sets[str(batch)]}
        known |= {(batch, every_ramp) for batch in batches}
        fit_all(known)
        for batch, ramps in known:
            for level in LEVELS:
                note(batch, level, ramps)
    else:
        kept = dict.fromkeys(found, ())
        every = range(len(measured.names) - 1)
        for _ in range(min(tuning.MAX_RAMPS, len(every))):
            grown = {key: [tuple(sorted((*some, ramp))) for ramp in every if ramp not in some]
                     for key, some in kept.items()}  # fmt: skip
            fit_all({(key[0], ramps) for key, several in grown.items() for ramps in several})
            for key, several in grown.items():
                kept[key] = min(several, key=lambda ramps, key=key: note(*key, ramps))
        fit_all({(batch, every_ramp) for batch in batches})
        for batch, level in found:
            note(batch, level, every_ramp)
    ranked = {key: sorted(some.values(), key=lambda pair: pair[0].seconds)
              for key, some in found.items()}  # fmt: skip
    if not brief:
        for batch in batches:
            best = [pair[1] for level in LEVELS for pair in ranked[batch, level][:SETS]]
            sets[str(batch)] = [list(ramps) for ramps in dict.fromkeys(best)]
    return {batch: [[pair[0] for pair in ranked[batch, level][:CANDIDATES]] for level in LEVELS]
            for batch in batches}  # fmt: skip


def fastest(trace, measured, batch, ramps):
    """Return the policy with the lowest predicted time for each level, in a process of its own."""
    own = float(trace.wrong()[:, -1].mean())
    every = tuning.fitted_for(trace, measured, batch, ramps)
    return [
        min(
            (each for each in every if each.error + CAUTION * each.spread <= own + level),
            key=lambda each: each.seconds,
            default=None,
        )
        for level in LEVELS
    ]


def thresholds(trace):
    """Return the cheapest threshold within each allowance, or ``None`` where there is none."""
    rules = [setting.rule for setting in FAMILIES["threshold"].fit(trace)]
    errors = [errors_of(rule, trace) for rule in rules]
    costs = [tt.evaluate(rule, trace, resamples=0).cost for rule in rules]
    found = []
    for level in LEVELS:
        able = [(cost, k) for k, (cost, error) in enumerate(zip(costs, errors, strict=True))
                if error["more"] + CAUTION * error["more_se"] <= level]  # fmt: skip
        found.append(rules[min(able)[1]] if able else None)
    return found


def errors_of(rule, trace, timed=0) -> dict:
    """Return the error of a rule, and its difference to the network's with a standard error.

    For the first rows, those that are timed, also what a runner should come to: the error, and the
    exits asked.
    """
    wrong, played = trace.wrong().astype(float), rule.play(trace)
    its = wrong[np.arange(len(trace)), played.answer]
    more = its - wrong[:, -1]
    found = {"error": float(its.mean()), "more": float(more.mean()),
             "more_se": float(more.std() / np.sqrt(len(trace)))}  # fmt: skip
    if timed:
        found["error_by_trace"] = float(its[:timed].mean())
        found["asked_by_trace"] = float(played.asked[:timed].sum(axis=1).mean())
    return found


def show(precision: str, engine: str, line: dict) -> None:
    """Print a line."""
    more = f"+{100 * line['more_error']:.0f}" if "more_error" in line else ""
    print(
        f"{line['batch']:4} {precision} {engine:8} {line['rule']:9} {more:3} "
        f"error {line['error']:.4f} p50 {1e3 * line['p50']:.3f} p99 {1e3 * line['p99']:.3f} ms, "
        f"{line['rows_per_second']:.0f}/s, {line['speed_up']:.2f} times, "
        f"bound {line.get('bound', 1):.2f}, asked {line.get('exits_asked', 1):.2f} "
        f"{','.join(line.get('ramps', []))} {line.get('recommended', '')}",
        flush=True,
    )


if __name__ == "__main__":
    main()
