"""Put traces of early-exit networks into the package, each with how it was made.

    python experiments/early_exit/pack.py SOURCE.npz ... --facts FACTS.json --out src/ttamer/data

SOURCE.npz is what experiments/vision/train.py or experiments/text/train.py wrote, called
<network>-<set>.npz, and FACTS.json its training.json or <network>.json. Writes a .parquet and a
.json of the same name. Nothing is rounded and no row moves: what is written is read back and
compared. A trace that does not fit its facts, or of a network that did not learn, is refused.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from ttamer.trace.trace import Trace

MAX_BYTES = 2_000_000
LEARNT = 0.05
"""A network that is not so much better than the most frequent class alone did not learn."""

SOURCES = {
    "cifar10": {
        "inputs": "images",
        "source": "the 10,000 test images of CIFAR-10, from a mirror that keeps them as JPEG "
        "(A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009)"
        "; no image is in the package",
        "label": "the class of the image",
    },
    "imdb": {
        "inputs": "reviews",
        "source": "10,000 of the 25,000 test reviews of the Large Movie Review Dataset, IMDB, "
        "5,000 of each label (A. L. Maas et al., Learning Word Vectors for Sentiment Analysis, ACL "
        "2011); no review is in the package",
        "label": "whether the review is negative or positive",
    },
    "amazon": {
        "inputs": "reviews",
        "source": "4,000 reviews of the Multi-Domain Sentiment Dataset, Amazon: half of each of "
        "four domains and labels, the other half was trained on (J. Blitzer et al., Biographies, "
        "Bollywood, Boom-boxes and Blenders, ACL 2007); no "
        "review is in the package",
        "label": "whether the review is negative or positive",
    },
}
SETS = {"cifar10": "CIFAR-10", "imdb": "IMDB reviews", "amazon": "Amazon reviews"}
VGG = (
    "VGG-{depth} (Simonyan and Zisserman 2015) with batch normalisation for 32 x 32 images; an "
    "exit after every convolution: pooling and one linear layer"
)
BERT_EXIT = "an exit after every layer: the mean of all tokens, a layer with tanh, a linear layer"
NETWORKS = {
    **{f"vgg{depth}": (f"VGG-{depth}", VGG.format(depth=depth)) for depth in (11, 13, 16)},
    "minilm": (
        "MiniLM",
        f"all-MiniLM-L6-v2 (Apache-2.0), pretrained, six layers, fine-tuned here; {BERT_EXIT}",
    ),
    "mpnet": (
        "MPNet",
        f"all-mpnet-base-v2 (Apache-2.0), pretrained, 12 layers, fine-tuned here; {BERT_EXIT}",
    ),
    "smollm2": (
        "SmolLM2-135M",
        "SmolLM2-135M-Instruct (Apache-2.0), pretrained, 30 layers, from 4-bit weights, fine-tuned "
        "here; an exit after every layer: the last token, normalised, and a linear layer",
    ),
}
"""By network: its title, and what it is."""


def main() -> None:
    """Pack the traces asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", type=Path, nargs="+", metavar="SOURCE.npz")
    parser.add_argument("--facts", type=Path, required=True, help="what the training wrote")
    parser.add_argument("--out", type=Path, default=Path("src/ttamer/data"))
    args = parser.parse_args()
    for source in args.sources:
        pack(source, args.facts, args.out)


def pack(source: Path, facts: Path, out: Path) -> None:
    """Write one trace and its facts."""
    name = source.stem
    network, _, inputs = name.rpartition("-")
    if network not in NETWORKS or inputs not in SOURCES:
        raise SystemExit(
            f"{source}: is not called <network>-<set>.npz, where networks are "
            f"{', '.join(NETWORKS)} and sets {', '.join(SOURCES)}"
        )
    trace = Trace.read(source)
    trace = dataclasses.replace(trace, spec=dataclasses.replace(trace.spec, name=name))
    done = json.loads(facts.read_text("utf-8"))
    done = done if done.get("model") == network else done.get(network)
    if done is None:
        raise SystemExit(f"{facts}: has nothing on {network}")
    check(trace, done.get("accuracy") or done.get(f"{inputs} accuracies"), source)
    target = out / f"{name}.parquet"
    trace.write(target)
    size = target.stat().st_size
    if Trace.read(target).digest != trace.digest:
        raise SystemExit(f"{target}: was not written as it is")
    if size > MAX_BYTES:
        raise SystemExit(f"{target}: has {size} bytes, more than {MAX_BYTES}")
    text = json.dumps(facts_of(trace, network, inputs, done), indent=2, ensure_ascii=False)
    target.with_suffix(".json").write_text(text + "\n", "utf-8")
    print(f"{target}: {len(trace)} rows, {len(trace.names)} exits, {size:,} bytes")


def check(trace: Trace, said: dict[str, float] | None, source: Path) -> None:
    """Refuse a trace that is not the one the facts are of, or of a network that did not learn."""
    right = accuracies(trace)
    if said is None or said.keys() != right.keys():
        raise SystemExit(f"{source}: has the exits {', '.join(right)}; the facts have {said}")
    for exit_, share in right.items():
        if abs(share - said[exit_]) > 1.5e-4:  # both are rounded
            raise SystemExit(f"{source}: {exit_} is right on {share}; the facts say {said[exit_]}")
    assert trace.label is not None  # noqa: S101 - accuracies were computed from it
    most = np.bincount(trace.label).max() / len(trace)
    if right[trace.names[-1]] < most + LEARNT:
        raise SystemExit(
            f"{source}: the network did not learn: it is right on {right[trace.names[-1]]}, and "
            f"the most frequent class alone on {most}"
        )


def accuracies(trace: Trace) -> dict[str, float]:
    """Return how often each exit is right."""
    right = 1 - trace.wrong().mean(axis=0)
    return dict(zip(trace.names, right.round(4).tolist(), strict=True))


def facts_of(trace: Trace, network: str, inputs: str, done: dict[str, Any]) -> dict[str, Any]:
    """Return all that the package says about one trace."""
    title, what = NETWORKS[network]
    source = SOURCES[inputs]
    text = source["inputs"] == "reviews"
    half = len(trace) // 2
    right, costs = accuracies(trace), trace.spec.costs.tolist()
    counted = f"a review of {done[f'{inputs} costs']['tokens']} tokens" if text else "one image"
    extras = "; margin and entropy are of the same probabilities" if trace.extras else ""
    return {
        "title": f"{title} on {SETS[inputs]}: {len(trace.names)} exits of one network",
        "source": source["source"],
        "network": f"{what}; {done['parameters']:,} parameters, ramps included",
        "made": made_text(done, inputs) if text else made_image(done),
        "label": source["label"],
        "classes": sorted(trace.classes),
        "confidence": f"the largest softmax probability of the exit, as it comes{extras}",
        "cost": f"operations counted on {counted}: of going on to an exit, its ramp included, as a "
        "share of the network without ramps; asking every exit costs a little more than 1",
        "licence": "The trace holds numbers and class names: Apache-2.0, as this package.",
        "split": f"the {source['inputs']} were shuffled before they were traced: the first half of "
        "the rows is to fit on, the second to test on; the network was trained on neither",
        "rows": {"fit": half, "test": len(trace) - half},
        "nodes": {
            name: {"cost": cost, "accuracy": right[name]}
            for name, cost in zip(trace.names, costs, strict=True)
        },
    }


def made_image(done: dict[str, Any]) -> str:
    """Return how a network for images was trained and traced."""
    backbone, ramps = done["epochs"]
    return (
        f"by experiments/vision/train.py: the backbone {backbone} epochs on the 50,000 training "
        f"images, then the ramps {ramps} epochs on it, frozen; weights rounded to half precision; "
        f"traced in single precision (TF32 products), {done['device']}, torch {done['torch']}"
    )


def made_text(done: dict[str, Any], inputs: str) -> str:
    """Return how a network for text was trained and traced."""
    plan = done["plan"]
    first = (
        "backbone and ramps together, an exit's loss weighted by its depth,"
        if plan.get("joint")
        else "the backbone"
    )
    on_imdb = f"{first} {_epochs(plan['epochs'])} on 25,000 reviews of IMDB"
    after = f"then the ramps {_epochs(plan['ramp_epochs'])} on it, frozen"
    steps = f"{on_imdb}, {after}"
    if inputs == "amazon":
        again = f"{_epochs(plan['amazon_epochs'])} and {_epochs(plan['ramp_epochs'])}"
        steps += f"; then the same, {again}, on 4,000 other reviews of Amazon"
    return (
        f"by experiments/text/train.py: {steps}; of reviews longer than 256 tokens the first and "
        f"the last 128; traced in single precision (TF32 products), {done['device']}, torch "
        f"{done['torch']}, transformers {done['transformers']}"
    )


def _epochs(count: int) -> str:
    return f"{count} epoch" if count == 1 else f"{count} epochs"


if __name__ == "__main__":
    main()
