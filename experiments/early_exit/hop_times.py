"""Where the time of a hop goes: its segments, its ramp, its decision, its launch and its wait.

    PYTHONPATH=src python experiments/early_exit/hop_times.py [mpnet smollm2]

Networks of real sizes with random weights, bf16, CUDA graphs, 256 tokens; a threshold at one exit
where every second row stops, after a quarter of the layers. Medians, in microseconds: *segments*,
*ramp* and *decision* are graphs of their own, replayed in a row; *hop* is the graph of all three;
*call* is that graph launched and waited for, as a runner does; *regrouped* is the second hop, with
half of the rows, to the end; *full* and *runner* are whole calls. Needs a GPU and Triton.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch

from ttamer import torch as exits
from ttamer.torch.graphs import GraphRunner, captured
from ttamer.torch.profiling import full_run, in_sequence, timed
from ttamer.torch.runner import Runner
from ttamer.torch.tuning import time_batches

NETWORKS = {"mpnet": (exits.mpnet, 3), "smollm2": (exits.llama, 8)}
"""How to build each network, and the layers before its exit."""
CUDA = torch.device("cuda")


def with_one_ramp(network, layers):
    """Return a network with one of its ramps, in bf16 on the GPU."""
    ramps = [ramp if k == layers - 1 else None for k, ramp in enumerate(list(network.exits)[:-1])]
    blocks = list(network.segments)
    return exits.EarlyExit(blocks, ramps, network.exits[-1]).eval().cuda().bfloat16()


@torch.inference_mode()
def measure(network, size):
    """Return the times of one network at one batch size."""
    ids = torch.randint(5, 30000, (size, 256), device="cuda")
    value = (ids, torch.ones_like(ids, dtype=torch.bool))
    logits = network(value)[0].float()
    # Half of the rows stop; of one row, none.
    limit = float(logits.softmax(-1).amax(-1).quantile(0.5)) if size > 1 else 1.1
    tables = exits.threshold_tables(np.array([limit, 0.0]))
    runner = GraphRunner(network, tables, value)
    answers = runner(value)
    exit_, asked = answers.exit.clone(), answers.asked.clone()
    plain = Runner(network, tables)(value)
    decider, carry = runner._decider, runner._carry
    rows = torch.arange(size, device="cuda")
    held = network.segments[0](value)
    ramp = network.exits[0]
    logits = ramp(held)
    parts = {
        "segments": captured(lambda: network.segments[0](value)),
        "ramp": captured(lambda: ramp(held)),
        "decision": captured(lambda: decider.observe(carry, 0, rows, logits, first=True)),
        "hop": runner._hops[-1, 0, size, size],
    }
    times = {name: in_sequence([part], CUDA)[0] for name, part in parts.items()}

    def call():
        decider.expect()
        parts["hop"]()
        decider.wait()

    def launch():
        parts["hop"]()

    times["call"] = timed(call, CUDA)
    begun = time.perf_counter()
    launch()
    times["launch"] = time.perf_counter() - begun
    rest = next(key for key in runner._hops if key[0] == 0)
    times["regrouped"] = in_sequence([runner._hops[rest]], CUDA)[0]
    full = full_run(network, value, graphs=True)
    times["full"] = time_batches(full, [value] * 20).mean
    times["runner"] = time_batches(runner, [value] * 20).mean
    same = torch.equal(exit_, plain.exit) and torch.equal(asked, plain.asked)
    return times, same, runner._hops.keys()


def main() -> None:
    """Print one line per network and batch size."""
    torch.manual_seed(0)
    for name in sys.argv[1:] or NETWORKS:
        build, layers = NETWORKS[name]
        network = with_one_ramp(build(classes=2), layers)
        for size in (1, 8, 32, 128):
            times, same, hops = measure(network, size)
            shown = ", ".join(f"{key} {1e6 * value:.0f}" for key, value in times.items())
            print(f"{name} {size}: {shown}; as without graphs: {same}; {sorted(hops)}", flush=True)


if __name__ == "__main__":
    main()
