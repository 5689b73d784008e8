"""Put streams with a shift into the package, each with how it was made.

    python experiments/drift/make_streams.py --traces DIR [--out experiments/data]

DIR holds what trace_images.py and trace_reviews.py wrote. Writes a .parquet and a .json for each
stream; what is written is read back and compared.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from ttamer.trace.trace import Trace

FIT, QUIET = 4000, 3000
MAX_BYTES = 2_000_000
LICENCE = "The trace holds numbers and class names: Apache-2.0, as this package."
CONFIDENCE = "the largest softmax probability of the exit, as it comes"
IMAGES = (
    "CIFAR-10 test images, from a mirror that keeps them as JPEG (A. Krizhevsky, Learning Multiple "
    "Layers of Features from Tiny Images, 2009); no image is in the package"
)
REVIEWS = (
    "reviews of IMDB (A. L. Maas et al., Learning Word Vectors for Sentiment Analysis, ACL 2011), "
    "then of Amazon, four domains (J. Blitzer et al., Biographies, Bollywood, Boom-boxes and "
    "Blenders, ACL 2007); no review is in the package"
)


def main() -> None:
    """Write all three."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("experiments/data"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    images = json.loads((args.traces / "images.json").read_text("utf-8"))
    clean = Trace.read(args.traces / "images-clean.npz")
    # No image comes twice in the stream; those changed include the ones fitted to, unchanged.
    later = np.concatenate([np.arange(FIT + QUIET, len(clean)), np.arange(FIT)])
    for kind, text in (
        ("noise", f"Gaussian noise, standard deviation {images['noise']} of white, on every pixel"),
        ("jpeg", f"compressed again as JPEG of quality {images['quality']}"),
    ):
        changed = Trace.read(args.traces / f"images-{kind}.npz").take(later)
        facts = {
            "title": f"VGG-16 on CIFAR-10, then on images with {kind}: 13 exits of one network",
            "source": IMAGES,
            "network": "VGG-16 of the trace vgg16-cifar10, the same weights throughout",
            "made": "by experiments/drift/trace_images.py on a CPU in single precision, torch "
            f"{images['torch']}, and experiments/drift/make_streams.py",
            "shift": text,
            "split": "test images the network was not trained on, shuffled: 4,000 clean ones to "
            "fit on; the stream is 3,000 other clean ones, then 7,000 changed: the 3,000 left, and "
            "the 4,000 fitted to, changed",
        }
        write(args.out / f"vgg16-to-{kind}", clean.take(slice(FIT + QUIET)), changed, facts)
    done = json.loads((args.traces / "reviews.json").read_text("utf-8"))
    imdb = Trace.read(args.traces / "reviews-imdb.npz")
    amazon = Trace.read(args.traces / "reviews-amazon.npz").with_spec(imdb.spec)
    plan = done["plan"]
    facts = {
        "title": "MiniLM on IMDB reviews, then on Amazon's: 6 exits of one network",
        "source": REVIEWS,
        "network": "all-MiniLM-L6-v2 (Apache-2.0), pretrained, six layers, an exit after every "
        "layer, fine-tuned on 25,000 reviews of IMDB and on none of Amazon; the same weights "
        "throughout, and not those of the traces minilm-imdb and minilm-amazon",
        "made": f"by experiments/drift/trace_reviews.py: the backbone {plan['epochs']} epochs, "
        f"then the ramps {plan['ramp_epochs']} on it, frozen; traced in single precision (TF32 "
        f"products), {done['device']}, torch {done['torch']}, transformers "
        f"{done['transformers']}; and experiments/drift/make_streams.py",
        "shift": "reviews of books, DVDs, electronics and kitchen goods in place of films",
        "split": "test reviews of IMDB, shuffled: 4,000 to fit on; the stream is 3,000 others, "
        "then 8,000 reviews of Amazon",
    }
    write(args.out / "minilm-imdb-to-amazon", imdb.take(slice(FIT + QUIET)), amazon, facts)


def write(target: Path, quiet: Trace, changed: Trace, facts: dict[str, Any]) -> None:
    """Write one stream and its facts."""
    whole = dataclasses.replace(Trace.concat([quiet, changed]), left_out={}, notes=())
    whole = dataclasses.replace(whole, spec=dataclasses.replace(whole.spec, name=target.name))
    parquet = target.with_suffix(".parquet")
    whole.write(parquet)
    if Trace.read(parquet).digest != whole.digest:
        raise SystemExit(f"{parquet}: was not written as it is")
    if parquet.stat().st_size > MAX_BYTES:
        raise SystemExit(f"{parquet}: has {parquet.stat().st_size} bytes, more than {MAX_BYTES}")
    right = {
        part: dict(zip(whole.names, (1 - rows.loss.mean(axis=0)).round(4).tolist(), strict=True))
        for part, rows in (("before", quiet), ("after", changed))
    }
    facts |= {
        "confidence": CONFIDENCE,
        "licence": LICENCE,
        "rows": {"fit": FIT, "quiet": QUIET, "changed": len(changed)},
        "accuracy": right,
    }
    text = json.dumps(facts, indent=2, ensure_ascii=False)
    target.with_suffix(".json").write_text(text + "\n", "utf-8")
    print(f"{parquet}: {len(whole)} rows, {parquet.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
