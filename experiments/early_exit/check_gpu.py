"""Whether a GPU decides as the host does, for tests on a machine without a GPU cannot tell.

    make gpu        # or, without an installation:
    PYTHONPATH=src python experiments/early_exit/check_gpu.py [--sizes 1 32] [--seconds 90]

A transformer of 12 layers on 256 tokens and VGG-16, both with random weights, in bf16 and fp32, run
with two fitted policies, by beliefs and by the paper's learner, and with thresholds by which a
quarter of the rows that are left stops at every third exit: by CUDA graphs, and without them. The
class of the surest exit counts as right, so that policies part rows; of the policies of a fit the
one is taken that asks the most sets of exits. Printed per network, precision, rule and batch
size: how many rows are decided otherwise than on the host, which observes the same confidences; how
far logits of ramps in one kernel are from those of PyTorch's operations; the exits a row asks; and
the times of a call of the network, of the network as a graph, of a runner, and of a runner with
graphs. After so many seconds no further setting is begun, and those left are named. The exit status
is 1 where anything differs. Needs a GPU, Triton, NVIDIA's cuda-bindings, msgspec, safetensors and
threadpoolctl.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "vision"))
NEEDED = ("numpy", "torch", "triton", "cuda.bindings", "msgspec", "safetensors", "threadpoolctl")


def lacking() -> list[str]:
    """Return the names of libraries that are not installed."""
    return [name for name in NEEDED if not is_installed(name)]


def is_installed(name: str) -> bool:
    """Return whether a module is there; of a package that is not, nothing is."""
    package = name.partition(".")[0]
    return find_spec(package) is not None and find_spec(name) is not None


try:
    import numpy as np
    import torch
    from torch import nn
    from vgg import vgg

    import ttamer as tt
    from ttamer import torch as exits
    from ttamer.torch.profiling import full_run
except ImportError as error:
    raise SystemExit(f"not installed: {', '.join(lacking()) or error}") from None

ROUNDING = {torch.bfloat16: 0.02, torch.float32: 1e-3}
"""By how much a ramp in a kernel may differ, as a share of the largest logit."""
ROWS = 1000
"""Rows that policies are fitted to."""
RULES = ("answers", "markov", "thresholds")
"""What decides."""
CLASSES = {"texts": ("0", "1"), "vgg16": tuple(map(str, range(10)))}
"""The names of the classes of each network."""


class Layer(nn.Module):
    """One layer of a transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """Attend to the tokens that are seen."""
        rows, tokens, width = hidden.shape
        parts = self.project(self.before(hidden)).view(rows, tokens, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        hidden = hidden + self.out(mixed.transpose(1, 2).reshape(rows, tokens, width))
        return hidden + self.down(nn.functional.gelu(self.up(self.after(hidden))))


class Texts(nn.Module):
    """A classifier of texts, of the size of MPNet-base."""

    def __init__(self, width: int = 768, layers: int = 12) -> None:
        super().__init__()
        self.embed = nn.Embedding(30_000, width)
        self.layers = nn.ModuleList(Layer(width, width // 64) for _ in range(layers))
        self.head = nn.Linear(width, 2)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        hidden = self.embed(input_ids)
        seen = attention_mask[:, None, None, :] > 0
        for layer in self.layers:
            hidden = layer(hidden, seen)
        return self.head(hidden[:, 0])


def texts(rows: int, device: str) -> dict[str, torch.Tensor]:
    """Return random texts, most of them padded."""
    lengths = torch.randint(8, 257, (rows, 1), device=device)
    mask = (torch.arange(256, device=device) < lengths).long()
    return {"input_ids": torch.randint(30_000, (rows, 256), device=device), "attention_mask": mask}


def build(name: str, dtype: torch.dtype, device: str):
    """Return a network, and a function that returns inputs for it."""
    torch.manual_seed(0)
    if name == "texts":
        model = Texts().to(device, dtype)
        return exits.attach(model, "layers", texts(4, device)), lambda rows: texts(rows, device)
    network = vgg(16).to(device, dtype).eval()
    return network, lambda rows: torch.randn(rows, 3, 32, 32, device=device, dtype=dtype)


def part_of(inputs, rows: slice):
    """Return some rows of inputs."""
    if isinstance(inputs, torch.Tensor):
        return inputs[rows]
    return {name: tensor[rows] for name, tensor in inputs.items()}


def differing(policy, network, answers) -> int:
    """Return how many rows a session on the host decides otherwise."""
    confidence, prediction = answers.confidence.tolist(), answers.prediction.tolist()
    asked, owners, differ = answers.asked.tolist(), answers.exit.tolist(), 0
    for row in range(len(owners)):
        turn = policy.session()
        while turn.next is not None:
            k = network.names.index(turn.next)
            sure = confidence[row][k]
            turn.observe(confidence=sure, margin=sure, prediction=prediction[row][k])
        names = [name for name, was in zip(network.names, asked[row], strict=True) if was]
        differ += list(turn.asked) != names or turn.answer != network.names[owners[row]]
    return differ


def thresholds(trace) -> np.ndarray:
    """Return thresholds by which a quarter of the rows left stops at every third exit."""
    limits = np.full(len(trace.names), np.nan)
    left = np.ones(len(trace), bool)
    for k in range(0, len(limits) - 1, 3):
        limits[k] = np.quantile(trace.confidence[left, k], 0.75)
        left &= trace.confidence[:, k] < limits[k]
    return limits


def stopping(limits: np.ndarray, answers) -> int:
    """Return how many rows thresholds decide otherwise on the host."""
    sure = answers.confidence.double().cpu().numpy() >= limits  # NaN, for no exit, is not
    sure[:, -1] = True
    return int((sure.argmax(axis=1) != answers.exit.cpu().numpy()).sum())


@torch.inference_mode()
def ramps_apart(network, inputs) -> float:
    """Return the largest difference of a ramp in a kernel, as a share of the largest logit."""
    value = tuple(inputs.values()) if isinstance(inputs, dict) else inputs
    apart = 0.0
    for segment, ramp in zip(network.segments, network.ramps(), strict=False):
        value = segment(value)
        kernel = ramp(value).float()
        with torch.inference_mode(mode=False), torch.enable_grad():
            given = tuple(part.clone() for part in value) if isinstance(value, tuple) else value
            plain = ramp(given.clone() if isinstance(given, torch.Tensor) else given).float()
        apart = max(apart, float((kernel - plain).abs().max() / plain.abs().max()))
    return apart


def milliseconds(run, inputs, repeats: int = 20) -> float:
    """Return the median time of a call that is waited for."""
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run(inputs)
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return float(np.median(times))


def check(name: str, dtype: torch.dtype, sizes: list[int], end: float) -> tuple[int, list[str]]:
    """Print lines for a network; return how much differs, and the rules there was no time for."""
    network, make = build(name, dtype, "cuda")
    apart = ramps_apart(network, make(33))
    faults = int(not apart <= ROUNDING[dtype])
    print(f"{name} {dtype}: ramps differ by {apart:.2g}", flush=True)
    rows, labels = make(ROWS), torch.zeros(100, dtype=torch.int64)
    parts = [part_of(rows, slice(start, start + 100)) for start in range(0, ROWS, 100)]
    trace = exits.trace_of(network, [(part, labels) for part in parts], classes=CLASSES[name])
    surest = trace.prediction[np.arange(ROWS), trace.confidence.argmax(axis=1)]
    trace, largest = replace(trace, label=surest), make(max(sizes))
    alone = {size: full_run(network, part_of(largest, slice(size)), graphs=True) for size in sizes}
    for number, rule in enumerate(RULES):
        if time.monotonic() > end:
            return faults, [f"{name} {dtype} {left}" for left in RULES[number:]]
        if rule == "thresholds":
            limits = thresholds(trace)
            policy, differ = exits.threshold_tables(limits), partial(stopping, limits)
        else:
            ladder = tt.fit(trace, belief=rule)
            policy = max(ladder, key=lambda one: len(np.unique(one.play(trace).asked, axis=0)))
            differ = partial(differing, policy, network)
        graphs, plain = exits.GraphRunner(network, policy, largest), exits.Runner(network, policy)
        for size in sizes:
            part = part_of(largest, slice(size))
            answers = [run(part) for run in (plain, graphs)]
            counts = [differ(answer) for answer in answers]
            faults += sum(counts)
            asked = float(answers[0].asked.sum()) / size
            with torch.inference_mode():
                runs = (network.full, alone[size], plain, graphs)
                times = ", ".join(f"{milliseconds(run, part):.3f}" for run in runs)
            print(
                f"{name} {str(dtype)[6:]} {rule} {size}: {counts[0]}, {counts[1]}; {asked:.1f}; "
                f"{times}",
                flush=True,
            )
    return faults, []


def main() -> None:
    """Print one line per network, precision, rule and batch size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=["texts", "vgg16"])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--seconds", type=float, default=float("inf"))
    args = parser.parse_args()
    if not torch.cuda.is_available() or lacking():
        raise SystemExit(f"there is no GPU, or not installed: {', '.join(lacking())}")
    end, faults, left = time.monotonic() + args.seconds, 0, list[str]()
    print(torch.cuda.get_device_name(), "PyTorch", torch.__version__)
    print(
        "network, precision, rule, rows: rows that differ (runner, graphs); exits; ms: full,"
        " full as a graph, runner, runner with graphs"
    )
    for dtype in (torch.bfloat16, torch.float32):
        for name in args.networks:
            if time.monotonic() > end:
                left.append(f"{name} {dtype}")
                continue
            differ, rules = check(name, dtype, args.sizes, end)
            faults, left = faults + differ, left + rules
    print(f"differences: {faults}; no time for: {', '.join(left) or 'nothing'}")
    raise SystemExit(bool(faults))


if __name__ == "__main__":
    main()
