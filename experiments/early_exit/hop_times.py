"""Where the time of a hop goes: its segments, its ramp, its decision, its launch and its wait.

    PYTHONPATH=src python experiments/early_exit/hop_times.py [mpnet smollm2] [--sizes 1 8]

Networks of real sizes with random weights, bf16, CUDA graphs, 256 tokens; a threshold at one exit
after a quarter of the layers, where every second row stops (of one row, none). In microseconds:
*segments*, *ramp* and *decision* are many in one graph, so that launches do not count; *full* and
*exits* are whole calls of the network and of a runner, with graphs whole and in two parts, and
*added* is by how much the runner takes longer where no row stops. Then, on the clock of the host,
medians of the moments of a call: inputs copied, first hop launched, its decision seen, second hop
launched, call returned, device done. Needs a GPU and Triton.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from ttamer import torch as exits
from ttamer.torch import graphs
from ttamer.torch.graphs import GraphRunner, captured, full_graph
from ttamer.torch.profiling import extra_time, in_sequence
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
    args = parser.parse_args()
    torch.manual_seed(0)
    for name in args.networks:
        build, layers = NETWORKS[name]
        network = build(classes=2).eval().cuda().bfloat16()
        for size in args.sizes:
            times, when, same = measure(network, layers - 1, size)
            shown = ", ".join(f"{key} {1e6 * value:.0f}" for key, value in times.items())
            clock = ", ".join(f"{1e6 * value:.0f}" for value in when)
            print(f"{name} {size}: {shown}; moments {clock}; as without graphs: {same}", flush=True)


if __name__ == "__main__":
    main()
