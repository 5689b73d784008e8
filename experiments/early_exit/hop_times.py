"""Where the time of an exit goes: its segments, its ramp, its decision, and the rest.

    PYTHONPATH=src python experiments/early_exit/hop_times.py [mpnet smollm2] [--sizes 1 8]

Networks of real sizes with random weights, bf16, CUDA graphs, 256 tokens; thresholds at one, two
and four exits, where every second row stops at each (of one row, none). In microseconds:
*segments*, those of a quarter of the network, *ramp* and *decision* are many in one graph, so that
launches do not count; *full* and *exits* are whole calls of the network and of a runner, *launch*
is how long the host takes to launch the runner's graphs, and *added* is by how much a call takes
longer for each exit asked where no row stops. Needs a GPU and Triton.

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
from ttamer.torch.capturing import captured
from ttamer.torch.decide import Decider
from ttamer.torch.decide_cpu import CpuDecider
from ttamer.torch.devices import rows_of, take
from ttamer.torch.graphs import GraphRunner, full_graph
from ttamer.torch.launching import Launcher
from ttamer.torch.profiling import extra_time, full_run, in_sequence
from ttamer.torch.runner import Runner
from ttamer.torch.tuning import time_batches

NETWORKS = {"mpnet": exits.mpnet, "smollm2": exits.llama}
"""How to build each network."""
COUNTS = (1, 2, 4)
"""The numbers of exits with thresholds."""
CUDA = torch.device("cuda")
MANY = 20
"""How many ramps or decisions are one graph."""
TURNS = 9
"""How often whole calls of all kinds are timed, in turns."""


@torch.inference_mode()
def measure(network, size):
    """Return the times of one network at one batch size."""
    ids = torch.randint(5, 30000, (size, 256), device="cuda")
    value = (ids, torch.ones_like(ids, dtype=torch.bool))
    layers = len(network.segments)
    ways = {"full": full_graph(network, value)}
    same, runners = [], {}
    for count in COUNTS:
        places = [round(layers * (k + 1) / (count + 1)) - 1 for k in range(count)]
        some = tables_for(network, {place: middle(network, place, value) for place in places})
        none = tables_for(network, dict.fromkeys(places, 1.1))
        ways[f"exits {count}"] = GraphRunner(network, some, value)
        runners[count] = GraphRunner(network, none, value)
        same.append(agree(ways[f"exits {count}"], Runner(network, some), value))
    timings = [{name: time_batches(run, [value] * 40).mean for name, run in ways.items()}
               for _ in range(TURNS)]  # fmt: skip
    found = {name: float(np.median([each[name] for each in timings])) for name in ways}
    for count, runner in runners.items():
        more = extra_time(waited(runner, value), waited(ways["full"], value), CUDA)
        found[f"added {count}"] = more / count
    runner = ways[f"exits {COUNTS[-1]}"]
    found["launch"] = launch_time(runner._graphs[size])
    at = layers // 4 - 1
    hidden = through(network, value, at)
    ramp = network.exits[at]
    logits = ramp(hidden)
    decider, carry = runner._decider, runner._carry
    rows = torch.arange(size, device="cuda")

    def decide():
        for _ in range(MANY):
            decider.observe(carry, at, rows, logits, awaited=False, first=True)

    parts = {
        "segments": captured(lambda: through(network, value, at)),
        "ramp": captured(lambda: [ramp(hidden) for _ in range(MANY)]),
        "decision": captured(decide),
    }
    times = {name: in_sequence([part], CUDA)[0] for name, part in parts.items()}
    times = {name: took / (1 if name == "segments" else MANY) for name, took in times.items()}
    return {**times, **found}, all(same)


def tables_for(network, limits):
    """Return thresholds at some exits; no other ramp is run."""
    every = np.full(len(network.names), np.nan)
    every[-1] = 0.0
    for place, limit in limits.items():
        every[place] = limit
    return exits.threshold_tables(every)


def middle(network, place, value):
    """Return the confidence of an exit that half of the rows have; of one row, more than it has."""
    if rows_of(value) == 1:
        return 1.1
    logits = network.exits[place](through(network, value, place))
    return float(logits.float().softmax(-1).amax(-1).quantile(0.5))


def agree(runner, plain, value):
    """Return whether two runners take the same decisions."""
    answers = runner(value)
    found = answers.exit.clone(), answers.asked.clone()
    wanted = plain(value)
    return torch.equal(found[0], wanted.exit) and torch.equal(found[1], wanted.asked)


def launch_time(launch):
    """Return the median time that the host takes to launch a graph on an idle device."""
    times = []
    for _ in range(50):
        torch.cuda.synchronize()
        start = time.perf_counter()
        launch()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


@torch.inference_mode()
def eager(network, at, size):
    """Return the times of one network at one batch size without graphs."""
    ids = torch.randint(5, 30000, (size, 256), device="cuda")
    value = (ids, torch.ones_like(ids, dtype=torch.bool))
    hidden = through(network, value, at)
    ramp = network.exits[at]
    logits = ramp(hidden)
    half = middle(network, at, value)
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
            runner = Runner(network, tables_for(network, {at: limit}))
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
    other = Runner(network, tables_for(network, {at: half}))
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
    tables = tables_for(network, {at: 1.1})
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


def main() -> None:
    """Print one line per network and batch size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--eager", action="store_true", help="without graphs")
    args = parser.parse_args()
    torch.manual_seed(0)
    for name in args.networks:
        network = NETWORKS[name](classes=2).eval().cuda().bfloat16()
        for size in args.sizes:
            if args.eager:
                shown = ", ".join(
                    f"{key} {1e6 * value:.0f}"
                    for key, value in eager(network, len(network.segments) // 4 - 1, size).items()
                )
                print(f"{name} {size}: {shown}", flush=True)
                continue
            times, same = measure(network, size)
            shown = ", ".join(f"{key} {1e6 * value:.0f}" for key, value in times.items())
            print(f"{name} {size}: {shown}; decides as without graphs: {same}", flush=True)


if __name__ == "__main__":
    main()
