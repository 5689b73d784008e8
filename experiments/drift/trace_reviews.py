"""Train MiniLM with exits on IMDB alone, and trace reviews of IMDB and of Amazon with it.

    python experiments/drift/trace_reviews.py --data DIR --out DIR

DIR is what experiments/text/prepare.py wrote. The network is taught as experiments/text/train.py
teaches it on IMDB, with the same seed; what follows there on Amazon is left out, so that reviews of
Amazon are another domain to it. Writes reviews-imdb.npz (test reviews), reviews-amazon.npz (all
reviews of Amazon, none of which it has seen) and reviews.json, what was done; make_streams.py makes
a stream of them. A minute on a GPU.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "text"))

from train import PLANS, SEED, TEST, TRACED, TRAIN, Run, build, choose_rows, read_reviews


def main() -> None:
    """Teach, and trace both sets."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="what prepare.py wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--traced", type=int, default=TRACED, help="test reviews of IMDB")
    args = parser.parse_args()
    torch.set_float32_matmul_precision("high")  # TF32
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.manual_seed(SEED)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    args.out.mkdir(parents=True, exist_ok=True)
    plan = PLANS["minilm"]
    network = build("minilm", args.data, tiny=False).to(device)
    run = Run("reviews", network, plan, args.out)
    reviews = args.data / "minilm-reviews.npz"

    def batches(rows: np.ndarray) -> object:
        return read_reviews(reviews, rows, longest=None, batch=plan.batch, device=device)

    train = choose_rows(reviews, imdb=True, split=TRAIN, most=None)
    run.teach("imdb", batches(train), rate=plan.rate, epochs=plan.epochs)
    tested = choose_rows(reviews, imdb=True, split=TEST, most=args.traced)
    run.trace("imdb", replace(batches(tested), order="given"))
    other = np.concatenate(
        [choose_rows(reviews, imdb=False, split=split, most=None) for split in (TRAIN, TEST)]
    )
    other = np.random.default_rng(SEED).permutation(other)
    run.trace("amazon", replace(batches(other), order="given"))
    run.write_notes()


if __name__ == "__main__":
    main()
