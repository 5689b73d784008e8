"""One network in one precision, run by one engine: its trace, its profile, and its lines."""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from choosing import LEVELS, errors_of

import ttamer as tt
from ttamer import torch as exits
from ttamer.torch.devices import rows_of, take, wait
from ttamer.torch.networks.ramps import Ramp
from ttamer.torch.profiling import full_run, runner_for
from ttamer.torch.runner import Answers, group_sizes
from ttamer.torch.tuning import Timing, clearly_faster, time_each_batch, timing_of

if TYPE_CHECKING:
    from pathlib import Path

SECONDS, MIN_BATCHES, MIN_SINGLE, MAX_ROWS = 0.6, 16, 96, 2048
"""How long the network itself is timed at a batch size; the fewest batches, those of single rows,
and the most rows."""
CHOOSING = 0.25
"""The share of this for the choice between policies, on the rows that they were fitted to."""
INT8_ROWS = 400
"""Rows that are traced with int8 weights."""
CPU_ROWS = 24
"""Rows that are timed on a CPU."""
WINDOWS = {32: (8,), 128: (8, 32)}
"""The batches that ``stream`` runs together, by the rows of a window."""


def load(folder: Path, every: int, inputs: Path) -> exits.EarlyExit:
    """Return a network with one of every few of its ramps."""
    other = None
    if folder.name.startswith("resnet"):
        from large import built  # experiments/vision

        with np.load(inputs) as file:
            other = built(folder.name.partition("-")[0], int(file["size"]))
    network = exits.EarlyExit.from_pretrained(folder, other)
    if every == 1:
        return network
    ramps = list(network.exits)
    kept = [ramp if (k + 1) % every == 0 else None for k, ramp in enumerate(ramps[:-1])]
    names = [name for name, ramp in zip(network.names, [*kept, True], strict=True) if ramp]
    blocks = list(network.segments)
    return exits.EarlyExit(blocks, kept, ramps[-1], names=names, trim=network.trim)


def read_inputs(path: Path, device: str, dtype: torch.dtype):
    """Return inputs on a device, texts padded to one length, and their labels."""
    with np.load(path) as file:
        labels = torch.from_numpy(file["label"].astype(np.int64)).to(device)
        if "pixels" in file.files:
            from large import enlarged  # experiments/vision

            pixels = torch.from_numpy(file["pixels"]).to(device)
            large = [enlarged(part, int(file["size"])).to(dtype) for part in pixels.split(500)]
            return torch.cat(large), labels
        ids = torch.from_numpy(file["ids"].astype(np.int64)).to(device)
        lengths = torch.from_numpy(file["lengths"].astype(np.int64)).to(device)
    mask = torch.arange(ids.shape[1], device=device) < lengths[:, None]
    return (ids, mask), labels


def compile_parts(network: exits.EarlyExit) -> None:
    """Compile every block and ramp on its own: blocks of one kind share their code.

    Ramps on tokens are few kernels already, written by hand.
    """
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 1024
    ramps = [ramp for ramp in network.exits if not (isinstance(ramp, Ramp) and ramp.pool)]
    for part in [*network.segments, *ramps]:
        for block in blocks_of(part):
            block.compile()


def blocks_of(part: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the blocks of a sequence of blocks; another part is one."""
    inner = list(part.children())
    if type(part) is torch.nn.Sequential and all(any(each.children()) for each in inner):
        return [block for each in inner for block in blocks_of(each)]
    return [part]


@dataclass(frozen=True)
class Timed:
    """What one run took."""

    times: Timing
    """Its times."""
    seconds: np.ndarray
    """The time of each batch."""
    answers: list[tuple[torch.Tensor, torch.Tensor]]
    """Per batch the classes answered and the exits asked, where the run has exits."""


class Bench:
    """One network in one precision, run by one engine."""

    def __init__(self, args, device, precision, engine):
        self.engine, self.graphs = engine, engine in ("graphs", "compiled")
        self.streams = (precision, engine) == ("bf16", "graphs")
        self.cpu_rows = args.cpu_rows if device == "cpu" else None
        network = load(args.folder, args.every, args.inputs).to(device)
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self.value, self.labels = read_inputs(args.inputs, device, dtype)
        if not isinstance(self.value, tuple):
            network = exits.fold_batch_norm(network).to(memory_format=torch.channels_last)
        self.network = network.to(dtype).eval()
        self.flops = exits.count_flops(self.network, self.rows(0, 1))
        if engine == "int8":
            self.network = torch.ao.quantization.quantize_dynamic(network, {torch.nn.Linear})
        self.half = len(self.labels) // 2
        path = args.trace or args.out.with_suffix(f".{precision}.trace.npz")
        self.fit, self.held = self.traced(path)
        if engine == "compiled":
            compile_parts(self.network)

    def exits(self) -> dict:
        """Return the errors of all exits, and their operations."""
        return {
            "names": list(self.fit.names), "test_rows": len(self.held),
            "fit": self.fit.wrong().mean(0).tolist(), "test": self.held.wrong().mean(0).tolist(),
            "segments": list(self.flops.segments), "ramps": list(self.flops.ramps),
        }  # fmt: skip

    def rows(self, start, count):
        """Return some inputs."""
        return take(self.value, torch.arange(start, start + count, device=self.labels.device))

    def traced(self, path: Path):
        """Return the answers to the rows that policies are fitted to, and to those measured.

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

    def measure_parts(self, batches):
        """Time the parts, for all batch sizes."""
        example = self.rows(0, max(batches))
        sizes = tuple(sorted(batches))
        self.profile = exits.profile(self.network, example, sizes=sizes, graphs=self.graphs)

    def lines(self, batch, found, limits):
        """Return the lines of one batch size: the network, thresholds, and ours."""
        self.example = self.rows(self.half, batch)
        full = full_run(self.network, self.example, graphs=self.graphs)
        chosen = self.chosen(batch, full, found)
        rules = []
        for level, rule in zip(LEVELS, limits, strict=True):
            if rule is not None:
                same = next((each[-1] for each in rules if each[2] is rule), None)
                rules.append(("threshold", level, rule, same or self.threshold(rule)))
        for level, each in zip(LEVELS, chosen, strict=True):
            rules += [("ours", level, *each)] if each else []
        test = self.cut(self.half, full, batch)
        alone, *timed = self.timed((full, *(each[-1] for each in rules)), test)
        held = self.held.with_spec(self.profile.costs(batch).spec(skip=True))
        lines = [{"batch": batch, "rule": "full", "error": float(held.wrong()[:, -1].mean()),
                  **alone.times.to_dict(), "speed_up": 1.0, "rows": batch * len(test)}]  # fmt: skip
        for (rule, level, policy, runner), its in zip(rules, timed, strict=True):
            names, target = held.names, {}
            if rule == "ours":
                names, target = policy.fitted.spec.names, {"target": policy.fitted.spec.target}
            errors = errors_of(policy, held.restrict(names), batch * len(test))
            lines.append({"batch": batch, "rule": rule, "more_error": level, **target, **errors,
                          "ramps": list(runner.reached), **self.outcome(its, alone)})  # fmt: skip
        lines += [{**lines[0], "rule": "ours", "more_error": level, "recommended": "full"}
                  for level, each in zip(LEVELS, chosen, strict=True) if not each]  # fmt: skip
        if self.streams and chosen[-1]:
            lines += self.streamed(next(x for x in reversed(lines) if "bound" in x),
                                   chosen[-1][1], test)  # fmt: skip
        return lines

    def chosen(self, batch, full, found):
        """Return, per level, the policy that is fastest on the rows fitted to, and its runner.

        Nothing where none is clearly faster than the network itself.
        """
        known = self.cut(0, full, batch, CHOOSING)
        runners = [[self.runner(each.policy) for each in policies] for policies in found]
        usual, *timed = self.timed((full, *(run for some in runners for run in some)), known)
        best, tried = [], []  # what keeps a smaller allowance keeps a larger one too
        for policies, some in zip(found, runners, strict=True):
            tried += [(timed.pop(0), each.policy, run)
                      for each, run in zip(policies, some, strict=True)]  # fmt: skip
            fast = min(tried, key=lambda each: each[0].times.mean, default=None)
            clear = fast is not None and clearly_faster(fast[0].seconds, usual.seconds)
            best.append(fast[1:] if clear else None)
        return best

    def streamed(self, known, runner, test):
        """Return the lines of smaller batches run together, at the allowance timed last."""
        lines = []
        for small in WINDOWS.get(known["batch"], ()):
            parts = torch.arange(known["batch"], device=self.labels.device).split(small)
            windows = [[take(each, rows) for rows in parts] for each in test]

            def run(at, windows=windows):
                return list(runner.stream(windows[int(at)], window=len(windows[0])))

            took = self.timed((run,), list(torch.arange(len(windows))[:, None]))[0].times
            lines.append({
                "batch": known["batch"], "rule": f"stream of {small}", "error": known["error"],
                "more_error": known["more_error"], **took.to_dict(),
                "rows_per_second": known["batch"] / took.mean, "rows": known["rows"],
                "speed_up": known["full_mean"] / took.mean,
            })  # fmt: skip
        return lines

    def threshold(self, rule):
        """Return a runner of a threshold rule on all ramps."""
        limits = np.append(np.broadcast_to(rule.thresholds, len(self.network.names) - 1), np.inf)
        return self.runner(exits.threshold_tables(limits))

    def runner(self, policy):
        """Return a runner of a policy."""
        return runner_for(
            self.network, policy, self.example, classes=self.fit.classes, graphs=self.graphs,
            regrouping=self.profile.regrouping(),
        )  # fmt: skip

    def cut(self, start, full, batch, share=1.0):
        """Return batches from a row on, as many as the time allows: more where they are short."""
        if self.cpu_rows:
            count = int(share * self.cpu_rows) // batch
        else:
            for _ in range(3):
                wait()
                begun = time.perf_counter()
                full(self.example)
                wait()
            seconds = time.perf_counter() - begun
            count = max(int(SECONDS / seconds), MIN_SINGLE if batch == 1 else MIN_BATCHES)
            count = min(int(share * count), MAX_ROWS // batch)
        count = max(min(count, self.half // batch), 1)
        return [self.rows(start + k * batch, batch) for k in range(count)]

    def timed(self, runs, batches):
        """Time runs in turns, after what is done once for a shape.

        Without CUDA graphs groups have many shapes, and exits are captured at the second sight.
        """
        for run in runs:
            for batch in batches[:2] if self.graphs or self.cpu_rows else batches:
                run(batch)
        answers: list[list] = [[] for _ in runs]

        def keep(k, out):
            if isinstance(out, Answers):
                answers[k].append((out.logits.argmax(1), out.asked))

        seconds = time_each_batch(runs, batches, repeats=1, warm_ups=0, keep=keep)
        rows = rows_of(batches[0])
        return [Timed(timing_of(took, rows), took, some)
                for took, some in zip(seconds, answers, strict=True)]  # fmt: skip

    def outcome(self, its, alone):
        """Return times, speed-up, bounds, and what was asked and answered in the rows timed."""
        batch = len(its.answers[0][0])
        table, sizes = self.profile.regrouping(), group_sizes(batch)
        segments = range(len(self.network.segments))
        ops = np.cumsum(self.flops.segments)
        ramps = np.array([*self.flops.ramps[:-1], 0.0])
        needed, done = 0.0, 0.0
        for _, asks in its.answers:
            asked = asks.cpu().numpy()
            # The segments that a row goes through: up to the last exit that it asks.
            last = (asked * np.arange(1, asked.shape[1] + 1)).max(axis=1)
            alive = [int((last > k).sum()) for k in segments]
            done += float(ops[last - 1].sum() + (asked @ ramps).sum())
            needed += sum(table.time(k, sizes[bisect_left(sizes, n)])
                          for k, n in enumerate(alive) if n)  # fmt: skip
        rows = batch * len(its.answers)
        answered = torch.cat([classes for classes, _ in its.answers])
        wrong = int((answered != self.labels[self.half : self.half + rows]).sum())
        asked = float(sum(asks.float().sum() for _, asks in its.answers))
        mean, whole = alone.times.mean, sum(table.time(k, batch) for k in segments)
        needed /= len(its.answers)
        return {
            "error_of_timed": wrong / rows, **its.times.to_dict(),
            "speed_up": mean / its.times.mean, "bound": whole / needed,
            "bound_besides": mean / (needed + max(mean - whole, 0.0)),
            "operations": done / rows / ops[-1], "exits_asked": asked / rows, "rows": rows,
            "full_mean": mean,
        }  # fmt: skip
