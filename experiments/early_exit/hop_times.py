"""Where the time of a hop goes: its segments, its ramp, its decision, its launch and its wait.

    PYTHONPATH=src python experiments/early_exit/hop_times.py [mpnet smollm2] [--sizes 1 8]

Networks of real sizes with random weights, bf16, CUDA graphs, 256 tokens; a threshold at one exit
after a quarter of the layers, where every second row stops (of one row, none). In microseconds:
*segments*, *ramp* and *decision* are many in one graph, so that launches do not count; *full* and
*exits* are whole calls of the network and of a runner, with graphs whole and in two parts, and
*added* is by how much the runner takes longer where no row stops. Then, on the clock of the host,
medians of the moments of a call: inputs copied, first hop launched, its decision seen, second hop
launched, call returned, device done. Needs a GPU and Triton.

``--eager``: without graphs, where the host's launches take the time: what a call with the exit
takes longer where no row stops, by the median of pairs of calls, and the host's time for each part
of it: the ramp (and as a graph, its inputs copied), the decision (as Triton launches it, and on the
host by NumPy), what is waited for, the state and the answers of a batch, regrouping, and padding
cut off.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from ttamer import torch as exits
from ttamer.torch import graphs
from ttamer.torch.decide import Decider
from ttamer.torch.decide_cpu import CpuDecider
from ttamer.torch.devices import take
from ttamer.torch.graphs import GraphRunner, captured, full_graph
from ttamer.torch.launching import Launcher
from ttamer.torch.profiling import extra_time, full_run, in_sequence
from ttamer.torch.runner import Runner
from ttamer.torch.tuning import time_batches

NETWORKS = {"mpnet": (exits.mpnet, 3), "smollm2": (exits.llama, 8)}
"""How to build each network, and the layers before its exit."""
CUDA = torch.device("cuda")
MANY = 20
"""How many ramps or decisions are one graph."""
TURNS = 9
"""How often whole calls of all kinds are timed, in turns."""


def tables_for(network, at, limit):
    """Return a threshold at one exit; no other ramp is run."""
    limits = np.full(len(network.names), np.nan)
    limits[at], limits[-1] = limit, 0.0
    return exits.threshold_tables(limits)


@torch.inference_mode()
def measure(network, at, size):
    """Return the times of one network at one batch size."""
    ids = torch.randint(5, 30000, (size, 256), device="cuda")
    value = (ids, torch.ones_like(ids, dtype=torch.bool))
    hidden = value
    for segment in list(network.segments)[: at + 1]:
        hidden = segment(hidden)
    ramp = network.exits[at]
    logits = ramp(hidden)
    some = float(logits.float().softmax(-1).amax(-1).quantile(0.5)) if size > 1 else 1.1
    ways = {}
    for least, name in ((1000, "one graph"), (3, "two")):
        graphs.MIN_SPLIT = least
        ways[f"full, {name}"] = full_graph(network, value)
        ways[f"exits, {name}"] = GraphRunner(network, tables_for(network, at, some), value)
    timings = [{name: time_batches(run, [value] * 40).mean for name, run in ways.items()}
               for _ in range(TURNS)]  # fmt: skip
    found = {name: float(np.median([each[name] for each in timings])) for name in ways}
    runner = ways["exits, two"]
    none = GraphRunner(network, tables_for(network, at, 1.1), value)
    found["added"] = extra_time(waited(none, value), waited(ways["full, two"], value), CUDA)
    answers = runner(value)
    exit_, asked = answers.exit.clone(), answers.asked.clone()
    plain = Runner(network, tables_for(network, at, some))(value)
    same = torch.equal(exit_, plain.exit) and torch.equal(asked, plain.asked)
    decider, carry = runner._decider, runner._carry
    rows = torch.arange(size, device="cuda")
    parts = {
        "segments": captured(lambda: through(network, value, at)),
        "ramp": captured(lambda: [ramp(hidden) for _ in range(MANY)]),
        "decision": captured(
            lambda: [decider.observe(carry, at, rows, logits, first=True) for _ in range(MANY)]
        ),
    }
    times = {name: in_sequence([part], CUDA)[0] for name, part in parts.items()}
    times = {name: took / (1 if name == "segments" else MANY) for name, took in times.items()}
    return {**times, **found}, moments(none, value), same


@torch.inference_mode()
def eager(network, at, size):
    """Return the times of one network at one batch size without graphs."""
    ids = torch.randint(5, 30000, (size, 256), device="cuda")
    value = (ids, torch.ones_like(ids, dtype=torch.bool))
    hidden = through(network, value, at)
    ramp = network.exits[at]
    logits = ramp(hidden)
    half = float(logits.float().softmax(-1).amax(-1).quantile(0.5)) if size > 1 else 1.1
    full = waited(full_run(network, value), value)
    found = {"full": many(full, 12)}
    found["layer"] = found["full"] / len(network.segments)
    for name, limit, changes in (
        ("added", 1.1, {}),
        ("added, launched by Triton", 1.1, {"direct": False}),
        ("half", half, {}),
        ("half, no trim", half, {"trim": None}),
    ):
        try:
            runner = Runner(network, tables_for(network, at, limit))
            kept, network.trim = network.trim, changes.get("trim", network.trim)
            for part in vars(runner._decider).values():
                if isinstance(part, Launcher):
                    part._direct = changes.get("direct", True)
            call = waited(runner, value)
            pairs = sorted(many(call, 4) - many(full, 4) for _ in range(15))
            found[name] = pairs[len(pairs) // 2]
            network.trim = kept
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}"[:300], flush=True)
    other = Runner(network, tables_for(network, at, half))
    other._decider = Decider(other._decider.tables, CUDA)
    ours, theirs = runner(value), other(value)
    same = torch.equal(ours.exit, theirs.exit) and torch.equal(ours.asked, theirs.asked)
    print("as PyTorch's operations decide:", same, flush=True)
    return {**found, **parts_of(network, runner, at, hidden, logits)}


def parts_of(network, runner, at, hidden, logits):
    """Return the host's times for the parts of an exit that is asked."""
    decider, ramp, size = runner._decider, network.exits[at], len(logits)
    carry = decider.start(size, logits.shape[1], logits.dtype)
    rows, some = torch.arange(size, device="cuda"), torch.arange((size + 1) // 2, device="cuda")
    tables = tables_for(network, at, 1.1)
    host, cpu = CpuDecider(tables, torch.device("cpu")), torch.arange(size)
    state = host.start(size, logits.shape[1], logits.dtype)
    static = tuple(each.clone() for each in hidden)
    replay = captured(lambda: ramp(static))

    def observed():
        decider.observe(carry, at, rows, logits, first=True)

    def decided():
        observed()
        decider.wait()

    def on_host():
        host.observe(state, at, cpu, logits.cpu())
        host.going(state, cpu)

    def copied():
        for kept, each in zip(static, hidden, strict=True):
            kept.copy_(each)
        replay()

    works = {
        "ramp": lambda: ramp(hidden),
        "ramp as graph": copied,
        "decision": observed,
        "decision, waited": decided,
        "decision on host": on_host,
        "state": lambda: decider.start(size, logits.shape[1], logits.dtype),
        "answers": lambda: runner._answers(carry),
        "regroup": lambda: decider.regroup(carry, rows, (size + 1) // 2),
        "take": lambda: take(hidden, some),
        "trim": lambda: network.trim(hidden),
    }
    times = {}
    for name, work in works.items():
        try:
            many(work, 20)
            times[name] = min(many(work, 50) for _ in range(3))
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}"[:300], flush=True)
    return times


def many(work, count):
    """Return the seconds of one of several calls."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        work()
    taken = time.perf_counter() - start
    torch.cuda.synchronize()
    return taken / count


def through(network, value, at):
    """Run the segments up to an exit."""
    for segment in list(network.segments)[: at + 1]:
        value = segment(value)
    return value


def waited(run, value):
    """Return a call that is waited for."""

    def call():
        run(value)
        torch.cuda.synchronize()

    return call


def moments(runner, value):
    """Return medians of the moments of a call, from its beginning."""
    marks = []
    now = time.perf_counter

    def marked(work):
        def call(*args):
            got = work(*args)
            marks.append(now())
            return got

        return call

    filled = graphs._fill
    graphs._fill = marked(filled)
    runner._hop = marked(runner._hop)
    runner._decider.wait = marked(runner._decider.wait)
    every = []
    for _ in range(150):
        marks.clear()
        begun = now()
        runner(value)
        marks.append(now())
        torch.cuda.synchronize()
        marks.append(now())
        every.append(np.array(marks) - begun)
    graphs._fill = filled
    return np.median(every[50:], axis=0)


def main() -> None:
    """Print one line per network and batch size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--eager", action="store_true", help="without graphs")
    args = parser.parse_args()
    torch.manual_seed(0)
    for name in args.networks:
        build, layers = NETWORKS[name]
        network = build(classes=2).eval().cuda().bfloat16()
        for size in args.sizes:
            if args.eager:
                shown = ", ".join(
                    f"{key} {1e6 * value:.0f}"
                    for key, value in eager(network, layers - 1, size).items()
                )
                print(f"{name} {size}: {shown}", flush=True)
                continue
            times, when, same = measure(network, layers - 1, size)
            shown = ", ".join(f"{key} {1e6 * value:.0f}" for key, value in times.items())
            clock = ", ".join(f"{1e6 * value:.0f}" for value in when)
            print(f"{name} {size}: {shown}; moments {clock}; as without graphs: {same}", flush=True)


if __name__ == "__main__":
    main()
