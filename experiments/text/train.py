"""Fine-tune a pretrained text model with exits on reviews, and write the answers of every exit.

    python experiments/text/train.py MODEL --data DIR --out DIR

MODEL is minilm (6 layers), mpnet (12) or smollm2 (30). DIR is what prepare.py wrote. First IMDB,
then Amazon from there. MiniLM: the backbone, then the ramps on it, frozen; the others: all exits
together, an exit's loss weighted by its depth, then the ramps. Writes MODEL-imdb.npz and
MODEL-amazon.npz, traces of test reviews (10,000 and 4,000, shuffled), MODEL.json, what was done,
the inputs of the traces, and the network in OUT/MODEL-imdb. ``--backbone-only`` fine-tunes without
exits on IMDB and writes the error alone (MODEL-alone.json). ``--inputs-only`` writes the network
and the test reviews, without a trace. ``--compile`` compiles the layers for training, for texts of
any length. What is written is not done again.

Needs PyTorch, transformers and NumPy; ttamer from the source tree with PYTHONPATH=src.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
import transformers
from packed import unpack

from ttamer.torch.costs import count_flops
from ttamer.torch.devices import device_of
from ttamer.torch.early_exit import EarlyExit
from ttamer.torch.networks.decoders import exits_on_llama
from ttamer.torch.networks.encoders import exits_on_bert, exits_on_mpnet
from ttamer.torch.networks.tokens import Layer
from ttamer.torch.tracing import trace_of
from ttamer.torch.training import Part, Recipe, train

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from ttamer.torch.devices import Precision

SEED = 0
TRAIN, TEST = 0, 1
CLASSES = ("negative", "positive")
POOL_OF_BATCHES = 50
"""Batches are cut from this many at once, sorted by length: little padding, still random."""
MULTIPLE = 16
"""Batches are padded to a multiple of this: attention kernels are faster for aligned lengths."""
TRACED = 10_000
"""Test reviews of IMDB that are traced, as many of each label."""
TINY_ROWS, TINY_TOKENS = 200, 32
DIRECT = contextlib.nullcontext()
MEASURED = 30
"""Steps that are timed before it is decided how many epochs there is time for."""


@dataclass(frozen=True)
class Plan:
    """How one model is trained; by default on IMDB, and then on Amazon."""

    rate: float
    epochs: int
    amazon_rate: float
    amazon_epochs: int = 3
    ramp_rate: float = 1e-3
    ramp_epochs: int = 2
    batch: int = 64
    weight_decay: float = 0.01
    joint: bool = False
    """Train backbone and ramps together, so that early layers learn what early exits need."""


PLANS = {
    "minilm": Plan(rate=5e-5, epochs=3, amazon_rate=3e-5),
    "mpnet": Plan(rate=3e-5, epochs=3, amazon_rate=2e-5, ramp_epochs=1, batch=32, joint=True),
    "smollm2": Plan(rate=8e-5, epochs=3, amazon_rate=4e-5, ramp_epochs=1, batch=32, joint=True),
}


@dataclass(frozen=True)
class Batches:
    """Reviews in batches, on the device as a whole."""

    ids: Tensor
    """Shape (rows, 256), padded with 0."""
    lengths: Tensor
    """Shape (rows,), not on the device: batches are cut without waiting for it."""
    labels: Tensor
    batch: int
    order: Literal["given", "random"] = "random"

    def __len__(self) -> int:
        return -(-len(self.lengths) // self.batch)

    def __iter__(self) -> Iterator[tuple[tuple[Tensor, Tensor], Tensor]]:
        if self.order == "given":
            cuts = list(torch.arange(len(self.lengths)).split(self.batch))
        else:
            cuts = []
            shuffled = torch.randperm(len(self.lengths))
            for pool in shuffled.split(self.batch * POOL_OF_BATCHES):
                cuts += pool[self.lengths[pool].argsort()].split(self.batch)
            cuts = [cuts[k] for k in torch.randperm(len(cuts))]
        for rows in cuts:
            longest = int(self.lengths[rows].max())
            width = min(-(-longest // MULTIPLE) * MULTIPLE, self.ids.shape[1])
            there = rows.to(self.ids.device, non_blocking=True)
            lengths = self.lengths[rows].to(self.ids.device, non_blocking=True)
            mask = torch.arange(width, device=self.ids.device) < lengths[:, None]
            yield (self.ids[there, :width], mask), self.labels[there]

    def take(self, count: int) -> list[tuple[tuple[Tensor, Tensor], Tensor]]:
        """Return some batches, as a loader that goes round them as often as needed."""
        some = list(self)
        return [some[k % len(some)] for k in range(count)]


def read_reviews(
    path: Path, rows: np.ndarray, *, longest: int | None, batch: int, device: torch.device
) -> Batches:
    """Put some reviews on a device, in the order given; tokens beyond the longest are cut off."""
    with np.load(path) as file:
        tokens, offsets, label = file["tokens"], file["offsets"], file["label"]
    lengths = np.diff(offsets)[rows].clip(max=longest)
    ids = np.zeros((len(rows), int(lengths.max())), np.int64)
    for place, row in enumerate(rows):
        ids[place, : lengths[place]] = tokens[offsets[row] : offsets[row] + lengths[place]]
    return Batches(
        torch.from_numpy(ids).to(device),
        torch.from_numpy(lengths.astype(np.int64)),
        torch.from_numpy(label[rows].astype(np.int64)).to(device),
        batch,
    )


def choose_rows(path: Path, *, imdb: bool, split: int, most: int | None) -> np.ndarray:
    """Return rows of one set and split, shuffled: at most ``most``, as many of each label."""
    with np.load(path) as file:
        label, domain, splits = file["label"], file["domain"], file["split"]
    rng = np.random.default_rng(SEED)
    rows = rng.permutation(np.flatnonzero(((domain == 0) == imdb) & (splits == split)))
    if most is not None:
        rows = np.concatenate([rows[label[rows] == c][: most // 2] for c in (0, 1)])
        rows = rng.permutation(rows)
    return rows


def build(model: str, data: Path, *, tiny: bool) -> EarlyExit:
    """Return a network with its pretrained weights; tiny ones have random ones."""
    config = json.loads((data / f"{model}-config.json").read_text("utf-8"))
    if tiny:
        config |= {"num_hidden_layers": 4, "hidden_size": 24, "intermediate_size": 32}
        config |= {"num_attention_heads": 3, "num_key_value_heads": 3}
    kinds = {
        "minilm": (transformers.BertConfig, transformers.BertModel, exits_on_bert),
        "mpnet": (transformers.MPNetConfig, transformers.MPNetModel, exits_on_mpnet),
        "smollm2": (transformers.LlamaConfig, transformers.LlamaModel, exits_on_llama),
    }
    config_kind, kind, with_exits = kinds[model]
    encoder = model != "smollm2"
    options = {"add_pooling_layer": False} if encoder else {}
    network = kind(config_kind(**config), **options)
    if not tiny:
        network.load_state_dict(unpack(data / f"{model}-weights.npz"))
    built = {"pool": "mean"} if encoder else {}
    if model == "minilm":  # its layers do not learn with their exits
        built["ramps"] = "dense"
    return with_exits(network, classes=len(CLASSES), **built)


@contextlib.contextmanager
def norms_of(network: EarlyExit) -> Iterator[list[list[np.ndarray]]]:
    """Record the norm of what the last linear layer of every exit reads, batch by batch."""
    norms: list[list[np.ndarray]] = []
    hooks = []
    for ramp in network.exits:
        last = [layer for layer in ramp.modules() if isinstance(layer, torch.nn.Linear)][-1]
        found: list[np.ndarray] = []
        norms.append(found)

        def note(_, inputs, found=found):
            found.append(inputs[0].detach().float().norm(dim=-1).cpu().numpy())

        hooks.append(last.register_forward_pre_hook(note))
    try:
        yield norms
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def compiled(network: EarlyExit) -> Iterator[None]:
    """Compile the layers for as long as this lasts; all share the code of one, for any length."""
    layers = [layer for layer in network.modules() if isinstance(layer, Layer)]
    for layer in layers:
        layer.compile(dynamic=True)
    try:
        yield
    finally:
        for layer in layers:
            layer._compiled_call_impl = None


class Run:
    """One model's training, and the notes taken of it."""

    def __init__(
        self, model: str, network: EarlyExit, plan: Plan, out: Path, *, compiles: bool = False
    ) -> None:
        self.model, self.network, self.plan, self.out = model, network, plan, out
        self.compiles = compiles
        self.device = device_of(network)
        self.precision: Precision = "bf16" if self.device.type == "cuda" else "fp32"
        self.started = time.perf_counter()
        self.notes: dict[str, object] = {
            "model": model,
            "parameters": sum(p.numel() for p in network.parameters()),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "device": (
                torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"
            ),
            "precision": {"training": self.precision, "tracing": "fp32, TF32 products on CUDA"},
            "seed": SEED,
        }
        self.seconds: dict[str, float] = {}
        self.say(f"{self.notes['parameters']:,} parameters on {self.notes['device']}")

    def say(self, text: str) -> None:
        """Print a line with the time so far."""
        print(f"[{time.perf_counter() - self.started:6.1f} s] {self.model}: {text}", flush=True)

    def recipe(self, part: Part, rate: float, epochs: int) -> Recipe:
        """Return the recipe for one part of the network."""
        return Recipe(
            part,
            epochs=epochs,
            rate=rate,
            optimiser="adamw",
            weight_decay=self.plan.weight_decay,
            clip=1.0,
            precision=self.precision,
            seed=SEED,
            exit_weights="depth",
        )

    def measure(self, reviews: Batches, *, steps: int) -> float:
        """Return the seconds an epoch of the backbone takes, from some steps on a copy."""
        network = copy.deepcopy(self.network)
        torch.manual_seed(SEED)
        some = reviews.take(steps)
        recipe = self.recipe("backbone", self.plan.rate, 1)
        # The first time, kernels are chosen and memory is found for every length.
        train(network, some, recipe)
        self.wait()
        begun = time.perf_counter()
        train(network, some, recipe)
        self.wait()
        return (time.perf_counter() - begun) / steps * len(reviews)

    def fit_plan(self, reviews: Batches, amazon_rows: int, minutes: float) -> None:
        """Lower the epochs of the backbone to what there is time for."""
        epoch = self.measure(reviews, steps=min(MEASURED, len(reviews)))
        plan = self.plan
        share = amazon_rows / len(reviews.lengths)
        # Ramps need forward passes alone, and so do traces, of about half as many reviews, at
        # single precision.
        after = epoch * (share * plan.amazon_epochs + (1 + share) * 0.5 * plan.ramp_epochs + 0.6)
        left = minutes * 60 - (time.perf_counter() - self.started)
        fitting = int((left - after) / epoch)
        self.plan = replace(plan, epochs=max(1, min(plan.epochs, fitting)))
        self.say(
            f"an epoch of the backbone takes {epoch:.1f} s, all the rest about {after:.0f} s; of "
            f"{minutes:g} minutes {left:.0f} s are left: {self.plan.epochs} of {plan.epochs} epochs"
            + ("" if fitting >= 1 else ", which will not be enough time")
        )
        self.notes["seconds per epoch, measured beforehand"] = round(epoch, 2)

    def teach(self, name: str, reviews: Batches, *, rate: float, epochs: int) -> None:
        """Train the backbone, and then the ramps on it."""
        for recipe in (
            self.recipe("all" if self.plan.joint else "backbone", rate, epochs),
            self.recipe("ramps", self.plan.ramp_rate, self.plan.ramp_epochs),
        ):
            begun = time.perf_counter()
            with compiled(self.network) if self.compiles and recipe.part != "ramps" else DIRECT:
                losses = train(
                    self.network, reviews, recipe, progress=lambda text: self.say(f"{name}, {text}")
                )
            self.wait()
            self.seconds[f"{name} {recipe.part}"] = round(time.perf_counter() - begun, 1)
            self.notes[f"{name} {recipe.part} losses"] = [round(loss, 4) for loss in losses]

    def trace(self, name: str, reviews: Batches) -> None:
        """Write what every exit says, its costs counted on a review of median length."""
        begun = time.perf_counter()
        middle = int(reviews.lengths.median())
        row = int((reviews.lengths == middle).nonzero()[0])
        costs = count_flops(
            self.network,
            (
                reviews.ids[row : row + 1, :middle],
                torch.ones(1, middle, dtype=torch.bool, device=self.device),
            ),
        )
        with norms_of(self.network) as norms:
            trace = trace_of(self.network, reviews, spec=costs.spec(), classes=CLASSES)
        self.write_inputs(name, reviews)
        # Of two classes, margin and entropy are functions of the confidence.
        norm = np.stack([np.concatenate(each)[-len(trace) :] for each in norms], axis=1)
        trace = replace(trace, extras={})
        np.savez_compressed(
            self.out / f"{self.model}-{name}-norm.npz", norm=norm.astype(np.float16)
        )
        trace.write(self.out / f"{self.model}-{name}.npz")
        self.seconds[f"{name} trace"] = round(time.perf_counter() - begun, 1)
        accuracies = 1 - trace.wrong().mean(axis=0)
        self.notes[f"{name} costs"] = asdict(costs) | {"tokens": middle}
        self.notes[f"{name} rows"] = len(trace)
        self.notes[f"{name} accuracies"] = {
            node: round(float(accuracy), 4)
            for node, accuracy in zip(trace.names, accuracies, strict=True)
        }
        shown = "  ".join(
            f"{node} {accuracy:.3f}" for node, accuracy in zip(trace.names, accuracies, strict=True)
        )
        self.say(f"{name}, {len(trace)} test reviews: {shown}")

    def write_inputs(self, name: str, reviews: Batches) -> None:
        """Write the reviews that are traced."""
        np.savez(
            self.out / f"{self.model}-{name}-inputs.npz",
            ids=reviews.ids.cpu().numpy().astype(np.uint16),
            lengths=reviews.lengths.numpy().astype(np.int16),
            label=reviews.labels.cpu().numpy().astype(np.uint8),
        )

    def train_alone(self, reviews: Batches, test: Batches) -> None:
        """Fine-tune the network without exits, and write its error."""
        begun = time.perf_counter()
        train(self.network, reviews, self.recipe("backbone", self.plan.rate, self.plan.epochs))
        wrong = []
        with torch.inference_mode():
            for value, labels in test:
                wrong.append((self.network.full(value).argmax(1) != labels).float())
        error = float(torch.cat(wrong).mean())
        seconds = round(time.perf_counter() - begun, 1)
        self.say(f"without exits: error {error:.4f}, {seconds} s")
        notes = self.notes | {"error": error, "plan": asdict(self.plan), "seconds": seconds}
        (self.out / f"{self.model}-alone.json").write_text(json.dumps(notes, indent=1) + "\n")

    def write_notes(self) -> None:
        """Write what was done so far."""
        self.notes |= {
            "plan": asdict(self.plan),
            "seconds": self.seconds,
            "seconds in all": round(time.perf_counter() - self.started, 1),
        }
        if self.device.type == "cuda":
            self.notes["GiB at most"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
        (self.out / f"{self.model}.json").write_text(json.dumps(self.notes, indent=1) + "\n")

    def wait(self) -> None:
        """Wait for the device, so that times are of work done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def main() -> None:
    """Train one model on both sets."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", choices=sorted(PLANS))
    parser.add_argument("--data", type=Path, required=True, help="what prepare.py wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs-backbone", type=int, help="on IMDB, at most")
    parser.add_argument("--epochs-amazon", type=int)
    parser.add_argument("--epochs-ramps", type=int)
    parser.add_argument("--rate", type=float, help="of the backbone, on IMDB")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--minutes", type=float, help="in all: fewer epochs if time is short")
    parser.add_argument("--imdb-only", action="store_true")
    parser.add_argument("--backbone-only", action="store_true")
    parser.add_argument("--inputs-only", action="store_true", help="no traces")
    parser.add_argument("--compile", action="store_true", help="layers, while all is trained")
    parser.add_argument("--tiny", action="store_true", help="few short reviews, to try the script")
    given = parser.parse_args()
    asked = {
        "epochs": given.epochs_backbone,
        "amazon_epochs": given.epochs_amazon,
        "ramp_epochs": given.epochs_ramps,
        "rate": given.rate,
        "batch": given.batch,
    }
    plan = replace(PLANS[given.model], **{k: v for k, v in asked.items() if v is not None})
    torch.set_float32_matmul_precision("high")  # TF32
    # cuDNN makes a new plan for every length of batch.
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.manual_seed(SEED)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    given.out.mkdir(parents=True, exist_ok=True)
    network = build(given.model, given.data, tiny=given.tiny).to(device)
    run = Run(given.model, network, plan, given.out, compiles=given.compile)

    reviews = given.data / f"{given.model}-reviews.npz"
    most = TINY_ROWS if given.tiny else None

    def batches(*, imdb: bool, split: int, most: int | None) -> Batches:
        rows = choose_rows(reviews, imdb=imdb, split=split, most=most)
        longest = TINY_TOKENS if given.tiny else None
        found = read_reviews(reviews, rows, longest=longest, batch=plan.batch, device=device)
        return found if split == TRAIN else replace(found, order="given")

    imdb = batches(imdb=True, split=TRAIN, most=most)
    amazon = batches(imdb=False, split=TRAIN, most=most)
    run.say(f"{len(imdb.lengths)} reviews of IMDB and {len(amazon.lengths)} of Amazon to learn")
    if given.minutes is not None:
        run.fit_plan(imdb, len(amazon.lengths), given.minutes)
    test = batches(imdb=True, split=TEST, most=most or TRACED)
    if given.backbone_only:
        run.train_alone(imdb, test)
        return
    kept = given.out / f"{given.model}-imdb"
    if not (kept / "model.safetensors").exists():
        run.teach("imdb", imdb, rate=run.plan.rate, epochs=run.plan.epochs)
        if given.inputs_only:
            run.write_inputs("imdb", test)
        else:
            run.trace("imdb", test)
        run.write_notes()
        network.save_pretrained(kept, classes=CLASSES)
    else:
        network.load_state_dict(EarlyExit.from_pretrained(kept).state_dict())
    if given.imdb_only:
        return
    run.teach("amazon", amazon, rate=run.plan.amazon_rate, epochs=run.plan.amazon_epochs)
    run.trace("amazon", batches(imdb=False, split=TEST, most=most))
    run.write_notes()
    run.say(f"seconds: {run.seconds}")


if __name__ == "__main__":
    main()
