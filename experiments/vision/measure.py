"""Wall-clock: the network as it was, a threshold, and ours, by batch size and precision.

    python experiments/vision/measure.py --data cifar10_jpeg.npz --weights vgg16.pt --out m.json

For every batch size and precision: the parts are timed where they run (``profile``), policies are
fitted to those costs on one half of the test images, the few best are timed whole on the same
half, and the fastest is measured on the other half. Everything that is compared runs the same way,
as CUDA graphs or launch by launch. What a runner saw is replayed through the policy on the host:
the decisions must be the same.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import time
from pathlib import Path

import numpy as np
import torch
from cifar import CLASSES, Images, normalised

import ttamer as tt
from ttamer.baselines import FAMILIES
from ttamer.torch.early_exit import fold_batch_norm
from ttamer.torch.networks.vgg import vgg
from ttamer.torch.profiling import full_run, profile, runner_for, timed
from ttamer.torch.runner import decider_for
from ttamer.torch.tables import tables_of, threshold_tables
from ttamer.torch.tracing import trace_of
from ttamer.torch.tuning import recommend, time_batches
from ttamer.trace.trace import Trace

HEAD = (
    f"{'batch':>5} {'':5} {'':7} {'+err':>5} {'rule':10} {'error':>7} {'p50 ms':>8} {'p99 ms':>8} "
    f"{'rows/s':>9} {'latency':>8} {'through':>8} ramps"
)
LEVELS = (0.0, 0.01)
"""Errors allowed, in points above the network's own."""


def main() -> None:
    """Measure every setting asked for, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--depth", type=int, default=16)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--precisions", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--engines", nargs="+", default=["graphs", "eager"])
    parser.add_argument("--most", type=int, default=5000, help="test images to time on")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    test = Images.read(args.data, "test")
    order = torch.randperm(len(test.labels), generator=torch.Generator().manual_seed(0))
    test = test.take(order).to(device)
    report = {
        "machine": torch.cuda.get_device_name() if device == "cuda" else platform.processor(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "network": f"VGG-{args.depth}",
        "settings": [],
    }
    print(HEAD, flush=True)
    for precision in args.precisions:
        network = load(args, device, precision)
        images = normalised(test.pixels).contiguous(memory_format=torch.channels_last)
        images = images.to(next(network.parameters()).dtype)
        trace = traced(network, images, test.labels)
        for engine in args.engines:
            for batch in args.batches:
                bench = Bench(network, images, test.labels, trace, batch, engine, args.most)
                for line in bench.lines():
                    report["settings"].append({"precision": precision, "engine": engine, **line})
                    show(precision, engine, line)
                args.out.write_text(json.dumps(report, indent=1))


def load(args: argparse.Namespace, device: str, precision: str) -> torch.nn.Module:
    """Return the trained network, folded, in a precision, on the device."""
    network = vgg(args.depth)
    stored = torch.load(args.weights, map_location="cpu", weights_only=True)
    network.load_state_dict(stored)
    network = fold_batch_norm(network).to(device, memory_format=torch.channels_last)
    return network.bfloat16() if precision == "bf16" else network


def traced(network: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> Trace:
    """Return the trace of all images."""
    return trace_of(
        network, zip(images.split(500), labels.split(500), strict=True), classes=CLASSES
    )


class Bench:
    """One network at one batch size, run one way."""

    def __init__(self, network, images, labels, trace, batch, engine, most):
        self.network, self.batch = network, batch
        self.graphs = engine == "graphs"
        half = len(labels) // 2
        count = min(most, half, 1000 if batch == 1 else half)
        count = max(count // batch, 1) * batch
        self.known = images[: max(min(2048, count), batch) if batch > 1 else 300]
        self.test_batches = list(images[half : half + count].split(batch))
        self.test_labels = labels[half : half + count]
        self.trace = trace.take(np.arange(half))
        self.profile = profile(network, images[:batch], sizes=(batch,), graphs=self.graphs)

    def lines(self):
        """Yield one dictionary per rule and level of error."""
        example = self.test_batches[0]
        full = full_run(self.network, example, graphs=self.graphs)
        alone = time_batches(full, self.test_batches)
        yield {"batch": self.batch, "rule": "full", "error": self.error(full), **alone.to_dict(),
               "speed_up": 1.0, "throughput_gain": 1.0,
               "profile": dataclasses.asdict(self.profile)}  # fmt: skip
        priced = self.trace.with_spec(self.profile.costs(self.batch).spec(skip=True))
        own = float(priced.wrong()[:, -1].mean())
        for level in LEVELS:
            rules = [setting.rule for setting in FAMILIES["threshold"].fit(priced)]
            for plain in cheapest(rules, priced, own + level):
                tables = threshold_tables(np.append(plain.thresholds, np.inf))
                runner = runner_for(self.network, tables, example, graphs=self.graphs,
                                    regrouping=self.profile.regrouping())  # fmt: skip
                yield self.line("threshold", level, runner, full)
            start = time.perf_counter()
            found = recommend(
                self.network, self.trace, self.known, batch=self.batch, more_error=level,
                caution=0.0,  # as for thresholds
                classes=CLASSES, graphs=self.graphs, measured=self.profile,
            )  # fmt: skip
            seconds = time.perf_counter() - start
            if found.runner is None:
                yield {"batch": self.batch, "rule": "ours", "more_error": level,
                       "error": self.error(full), **alone.to_dict(), "speed_up": 1.0,
                       "throughput_gain": 1.0, "recommended": "full",
                       "tuning_seconds": seconds}  # fmt: skip
                continue
            line = self.line("ours", level, found.runner, full)
            line["tuning_seconds"] = seconds
            line["checked_rows"] = self.check(found.runner, found.policy)
            line |= self.decision_share(found.runner, found.policy, alone)
            yield line

    def line(self, rule, level, runner, full):
        """Time a runner on the test half, the network beside it before and after."""
        before = time_batches(full, self.test_batches)
        took = time_batches(runner, self.test_batches)
        after = time_batches(full, self.test_batches)
        return {
            "batch": self.batch, "rule": rule, "more_error": level,
            "error": self.error(lambda batch: runner(batch).logits), **took.to_dict(),
            "speed_up": (before.p50 + after.p50) / 2 / took.p50,
            "throughput_gain": (before.mean + after.mean) / 2 / took.mean,
            "ramps": list(runner.reached),
        }  # fmt: skip

    def error(self, run) -> float:
        """Return the share of test images answered wrong."""
        wrong = 0
        labels = self.test_labels.split(self.batch)
        for batch, right in zip(self.test_batches, labels, strict=True):
            wrong += int((run(batch).argmax(1) != right).sum())
        return wrong / len(self.test_labels)

    def check(self, runner, policy) -> int:
        """Replay what a runner saw through the policy on the host: it must decide the same."""
        checked = 0
        for batch in self.test_batches[:20]:
            answers = runner(batch)
            asked, seen = answers.asked.cpu().numpy(), answers.confidence.cpu().numpy()
            said, owner = answers.prediction.cpu().numpy(), answers.exit.cpu().numpy()
            names = policy.fitted.spec.names  # the ramps it may ask, and the head
            places = [self.network.names.index(name) for name in names]
            filled = np.where(asked, seen, 0.5).astype(np.float64)
            trace = Trace(policy.fitted.spec, filled[:, places],
                          prediction=np.maximum(said, 0)[:, places],
                          label=np.zeros(len(filled), np.int32), classes=CLASSES)  # fmt: skip
            played = policy.play(trace)
            theirs = np.array(places)[played.answer]
            if (played.asked != asked[:, places]).any() or (theirs != owner).any():
                raise SystemExit("the device decided otherwise than the policy on the host")
            for row in range(min(len(filled), 8)):
                turn = policy.session()
                while turn.next is not None:
                    node = self.network.names.index(turn.next)
                    turn.observe(confidence=seen[row, node], prediction=CLASSES[said[row, node]])
                if turn.answer != self.network.names[owner[row]]:
                    raise SystemExit("the device decided otherwise than a session")
            checked += len(filled)
        return checked

    def decision_share(self, runner, policy, alone) -> dict:
        """Time the decision alone, as often as a batch takes it, against the whole network."""
        device = self.test_batches[0].device
        decider = decider_for(tables_of(policy, self.network.names, CLASSES), device)
        logits = torch.randn(self.batch, len(CLASSES), device=device)
        rows = torch.arange(self.batch, device=device)
        exit_ = self.network.names.index(runner.reached[0])
        with torch.inference_mode():
            carry = decider.start(self.batch, len(CLASSES), logits.dtype)

            def decide() -> None:
                decider.observe(carry, exit_, rows, logits)

            if self.graphs:
                from ttamer.torch.cuda.capturing import captured

                decide = captured(decide)
            once = timed(decide, device)
        runner.waits = 0
        for batch in self.test_batches:
            runner(batch)
        waits = runner.waits / len(self.test_batches)
        return {"decision_us": once * 1e6, "waits_per_batch": waits,
                "decision_share": once * waits / alone.mean}  # fmt: skip


def cheapest(rules, trace, most_error) -> list:
    """Return the cheapest rule that errs at most so much, if there is one."""
    results = [(tt.evaluate(rule, trace, resamples=0), rule) for rule in rules]
    able = [(result.cost, k) for k, (result, _) in enumerate(results) if result.error <= most_error]
    return [results[min(able)[1]][1]] if able else []


def show(precision: str, engine: str, line: dict) -> None:
    """Print a line of the table."""
    more = f"{100 * line['more_error']:.0f}" if "more_error" in line else ""
    ramps = ",".join(line.get("ramps", [])) or line.get("recommended", "")
    share = f" decision {line['decision_share']:.2%}" if "decision_share" in line else ""
    print(
        f"{line['batch']:5} {precision:5} {engine:7} {more:>5} {line['rule']:10} "
        f"{line['error']:7.4f} {1e3 * line['p50']:8.3f} {1e3 * line['p99']:8.3f} "
        f"{line['rows_per_second']:9.0f} {line['speed_up']:8.2f} "
        f"{line['throughput_gain']:8.2f} {ramps}{share}",
        flush=True,
    )


if __name__ == "__main__":
    main()
