"""Where the time of an exit goes: its segments, its ramp, its decision, and the rest.

    PYTHONPATH=src python experiments/early_exit/hop_times.py [mpnet smollm2 vgg16] [--sizes 1 8]

Networks of real sizes with random weights, bf16, CUDA graphs, texts of 256 tokens or images of 32
pixels; thresholds at one, two and four exits. ``--only`` chooses what is measured, in microseconds:

- *parts*: the *segments* of a quarter of the network, the *ramp*, the *decision* and copies of the
  rows that continue, many in one graph, so that launches do not count;
- *added*: by how much a call takes longer for each exit asked where no row stops, and by least
  squares over the counts, what a call adds *once* and what it adds *per exit*;
- *profile*: the same two as ``exits.profile`` finds them, and how long it takes;
- *unreached*: by how much it takes longer for all exits that might follow, where every row stops at
  the third;
- *differ*: how many rows are decided otherwise than without graphs, where every second row stops at
  each exit (of one row, none);
- *calls*: whole calls of the network (*full*) and of such a runner (*exits*), and how long the host
  takes to launch its graphs.

``--ramps dense`` is for encoders: ramps like BERT's head. ``--check`` compares kernels with
PyTorch's operations. Needs a GPU and Triton. Where decisions or kernels differ, the exit status is
1: ``make gpu`` runs that, for tests on a machine without a GPU cannot.

``--eager``: without graphs, where the host's launches take the time: what a call with the exit
takes longer where no row stops, by the median of pairs of calls (*uncaptured*: without the small
graph of an exit), and the host's time for each part of it: the ramp (and as a graph, its inputs
copied), the decision (and on the host by NumPy), what is waited for, the state and the answers of a
batch, regrouping, and padding cut off.
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import numpy as np
import torch
from torch import nn

from ttamer import torch as exits
from ttamer.torch import asking
from ttamer.torch.cuda.capturing import captured
from ttamer.torch.cuda.copying_triton import copy_rows
from ttamer.torch.decide import Decider
from ttamer.torch.decide_cpu import CpuDecider
from ttamer.torch.devices import rows_of, take, tensors_of
from ttamer.torch.graphs import GraphRunner, full_graph
from ttamer.torch.networks.ramps import Ramp, dense_layers, pooled
from ttamer.torch.profiling import full_run, in_sequence, timed_in_turns
from ttamer.torch.runner import Runner
from ttamer.torch.tuning import time_batches

NETWORKS = {
    "mpnet": partial(exits.mpnet, classes=2),
    "smollm2": partial(exits.llama, classes=2),
    "vgg16": partial(exits.vgg, 16),
}
"""How to build each network."""
ONLY = ("parts", "added", "profile", "unreached", "differ", "calls")
"""What can be measured with graphs."""
CUDA = torch.device("cuda")
MANY = 20
"""How many ramps or decisions are one graph."""
TURNS = 9
"""How often whole calls of all kinds are timed, in turns."""
LAUNCHES = 100
"""How often a kernel is compared with itself."""
ROUNDING = {torch.bfloat16: 0.01, torch.float32: 1e-5}
"""By how much a ramp in a kernel may differ, as a share of the largest logit."""
CHECKED = (
    (1, 256, 768, "mean", "layer"),
    (128, 256, 768, "mean", "layer"),
    (33, 300, 576, "last", "rms"),
    (7, 19, 100, "mean", "none"),
    (8, 256, 768, "first", "dense"),
    (8, 256, 768, "mean", "dense"),
)
"""The rows, tokens, width, pooling and layers of ramps that are compared."""


def inputs_of(name, size):
    """Return a batch for a network."""
    if name == "vgg16":
        return torch.randn(size, 3, 32, 32, device="cuda", dtype=torch.bfloat16)
    ids = torch.randint(5, 30000, (size, 256), device="cuda")
    return ids, torch.ones_like(ids, dtype=torch.bool)


@torch.inference_mode()
def measure(network, value, counts, only):
    """Return the times of one network at one batch size in seconds, and rows that differ."""
    layers, full = len(network.segments), full_graph(network, value)
    ways, found, differ, more = {"full": full}, {}, {}, {}
    for count in counts:
        places = [round(layers * (k + 1) / (count + 1)) - 1 for k in range(count)]
        if "added" in only:
            none = tables_for(network, dict.fromkeys(places, 1.1))
            runner = GraphRunner(network, none, value, sizes=[rows_of(value)])
            more[count] = longer(runner, full, value)
            found[f"added {count}"] = more[count] / count
        if {"differ", "calls"} & set(only):
            some = tables_for(network, {place: middle(network, place, value) for place in places})
            runner = ways[f"exits {count}"] = GraphRunner(network, some, value)
            differ[count] = differing(runner, Runner(network, some), value)
    if len(more) > 1:
        each, once = np.polyfit(list(more), list(more.values()), 1)
        found |= {"once": float(once), "per exit": float(each)}
    if "profile" in only:
        found |= profiled(network, value)
    if "unreached" in only:
        one, many = (dict.fromkeys(range(2, end), 0.0) for end in (3, layers - 1))
        runners = (GraphRunner(network, tables_for(network, each), value) for each in (many, one))
        found[f"unreached {len(many) - 1}"] = longer(*runners, value)
    if "calls" in only:
        timings = [{name: time_batches(run, [value] * 40).mean for name, run in ways.items()}
                   for _ in range(TURNS)]  # fmt: skip
        found |= {name: float(np.median([each[name] for each in timings])) for name in ways}
        found["launch"] = launch_time(runner._graphs[rows_of(value)])
    parts = parts_in_graphs(network, value) if "parts" in only else {}
    return {**parts, **found}, differ


def profiled(network, value):
    """Return what a profile finds that a call adds once and per exit, and how long it takes."""
    start, size = time.perf_counter(), rows_of(value)
    measured = exits.profile(network, value, sizes=(size,), graphs=True)
    taken = time.perf_counter() - start
    each = float(np.median([row[0] for row in measured.asking[:-1]]))
    return {"profile once": measured.per_call[0], "profile per exit": each, "profile takes": taken}


def longer(run, other, value):
    """Return by how much a call takes longer than another, in turns."""
    calls = waited(run, value), waited(other, value)
    turns = [np.array(timed_in_turns(calls, CUDA)) for _ in range(TURNS)]
    return float(np.median([np.median(each[:, 0] - each[:, 1]) for each in turns]))


def parts_in_graphs(network, value):
    """Return the times of segments, a ramp, a decision, and copies of rows."""
    at = len(network.segments) // 4 - 1
    hidden = through(network, value, at)
    ramp = network.exits[at]
    logits = ramp(hidden)
    decider = Runner(network, tables_for(network, {at: 1.1}))._decider
    carry = decider.start(len(logits), logits.shape[1], logits.dtype)
    rows = torch.arange(len(logits), device="cuda")
    half = torch.where(rows < (len(rows) + 1) // 2, rows, -1)
    sources = tensors_of(hidden)
    targets = tuple(torch.empty(each.shape, dtype=each.dtype, device="cuda") for each in sources)

    def select():
        for source, target in zip(sources, targets, strict=True):
            torch.index_select(source, 0, rows, out=target)

    works = {
        "ramp": lambda: ramp(hidden),
        "decision": lambda: decider.observe(carry, at, rows, logits, awaited=False, first=True),
        "half copied": lambda: copy_rows(sources, targets, half, positions=rows),
        "all selected": select,
    }

    def many_of(work):
        for _ in range(MANY):
            work()

    times = {"segments": in_sequence([captured(lambda: through(network, value, at))], CUDA)[0]}
    for name, work in works.items():
        times[name] = in_sequence([captured(partial(many_of, work))], CUDA)[0] / MANY
    return times


@torch.inference_mode()
def check():
    """Print by how much ramps in kernels differ from PyTorch's operations, and from themselves.

    Return how many differ by more than rounding.
    """
    faults = 0
    for dtype in (torch.bfloat16, torch.float32):
        for rows, tokens, width, pool, kind in CHECKED:
            hidden = torch.randn(rows, tokens, width, device="cuda", dtype=dtype)
            lengths = torch.randint(1, tokens + 1, (rows, 1), device="cuda")
            mask = torch.arange(tokens, device="cuda") < lengths
            before = {"layer": (nn.LayerNorm(width),), "rms": (nn.RMSNorm(width),), "none": (),
                      "dense": dense_layers(width, 2, dropout=0.1)[:-1]}[kind]  # fmt: skip
            ramp = Ramp(*before, nn.Linear(width, 2), pool=pool).cuda().to(dtype).eval()
            wanted = ramp.layers(pooled(hidden.float(), mask, pool).to(dtype))
            first = ramp((hidden, mask))
            again = torch.zeros((), dtype=torch.int64, device="cuda")

            def repeat(ramp=ramp, value=(hidden, mask), first=first, again=again):
                for _ in range(LAUNCHES):
                    again.add_((ramp(value) != first).sum())

            repeat()
            for _ in range(3):
                captured(repeat)()
            apart, most = (float(x.abs().max()) for x in (first.float() - wanted.float(), wanted))
            faults += bool(int(again)) or not apart <= ROUNDING[dtype] * most
            print(f"{dtype} {rows} {tokens} {width} {pool} {kind}: {apart:.2g} of {most:.2g}; "
                  f"{int(again)} change", flush=True)  # fmt: skip
    return faults


def tables_for(network, limits):
    """Return thresholds at some exits; no other ramp is run."""
    every = np.full(len(network.names), np.nan)
    every[-1] = 0.0
    for place, limit in limits.items():
        every[place] = limit
    return exits.threshold_tables(every)


def middle(network, place, value):
    """Return a confidence that about half of the rows have; of one row, more than it has."""
    if rows_of(value) == 1:
        return 1.1
    logits = network.exits[place](through(network, value, place))
    ordered = logits.float().softmax(-1).amax(-1).sort().values
    count = len(ordered)
    gaps = ordered[count // 4 + 1 : -(count // 4) or None] - ordered[count // 4 : -(count // 4) - 1]
    after = count // 4 + int(gaps.argmax())  # the widest gap: rounding changes no decision
    return float(ordered[after : after + 2].mean())


def differing(runner, plain, value):
    """Return how many rows two runners decide otherwise."""
    answers = runner(value)
    exit_, asked = answers.exit.clone(), answers.asked.clone()
    wanted = plain(value)
    return int(((exit_ != wanted.exit) | (asked != wanted.asked).any(dim=1)).sum())


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
def eager(network, at, value, only):
    """Return the times of one network at one batch size without graphs."""
    hidden = through(network, value, at)
    logits = network.exits[at](hidden)
    half = middle(network, at, value)
    full = waited(full_run(network, value), value)
    found = {"full": many(full, 12)}
    found["layer"] = found["full"] / len(network.segments)
    for name, limit, graphs in (
        ("added", 1.1, asking.MAX_GRAPHS),
        ("added, uncaptured", 1.1, 0),
        ("half", half, asking.MAX_GRAPHS),
        ("half, uncaptured", half, 0),
    ):
        asking.MAX_GRAPHS, kept = graphs, asking.MAX_GRAPHS
        runner = Runner(network, tables_for(network, {at: limit}))
        call = waited(runner, value)
        many(call, 3)
        pairs = sorted(many(call, 3) - many(full, 3) for _ in range(11))
        found[name] = pairs[len(pairs) // 2]
        asking.MAX_GRAPHS = kept
    other = Runner(network, tables_for(network, {at: half}))
    other._decider = Decider(other._decider.tables, CUDA)
    differ = {1: differing(runner, other, value)}
    parts = parts_of(network, runner, at, hidden, logits) if "parts" in only else {}
    return {**found, **parts}, differ


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
    parser.add_argument("networks", nargs="*", default=["mpnet", "smollm2"])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 4], help="of exits")
    parser.add_argument("--only", nargs="+", choices=ONLY, default=ONLY)
    parser.add_argument("--ramps", choices=("linear", "dense"), help="of mpnet")
    parser.add_argument("--eager", action="store_true", help="without graphs")
    parser.add_argument("--check", action="store_true", help="compare kernels first")
    args = parser.parse_args()
    torch.manual_seed(0)
    faults = check() if args.check else 0
    for name in args.networks:
        options = {"ramps": args.ramps} if args.ramps and name == "mpnet" else {}
        network = NETWORKS[name](**options).eval().cuda().bfloat16()
        for size in args.sizes:
            value = inputs_of(name, size)
            try:
                if args.eager:
                    at = len(network.segments) // 4 - 1
                    times, differ = eager(network, at, value, args.only)
                else:
                    times, differ = measure(network, value, args.counts, args.only)
            except Exception as error:  # the others are still measured
                print(f"{name} {size}: {type(error).__name__}: {error}"[:500], flush=True)
                faults += 1
                continue
            faults += any(differ.values())
            shown = [f"{key} {1e6 * value:.1f}" for key, value in times.items()]
            shown += [f"differ {key} {value}" for key, value in differ.items()]
            print(f"{name} {args.ramps or ''} {size}: {', '.join(shown)}", flush=True)
    if faults:
        raise SystemExit(f"{faults} faults: kernels or decisions differ, or a network failed")


if __name__ == "__main__":
    main()
