"""Make the trace ``routerbench`` of the package: numbers only, no text.

    python experiments/routing/make_dataset.py DATA src/ttamer/datasets/data

1,000 rows of RouterBench (Hu et al. 2024, MIT), chosen by ``numpy.random.default_rng(0)``; the
first 500 are to fit on. Prompts are 256 hashed words and pairs of words: signed log counts of unit
length, in steps of 1/64. Answers are numbers, equal where the text is equal.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
from sets import load
from sklearn.feature_extraction.text import HashingVectorizer

import ttamer as tt

ROWS, WORDS, STEP = 1000, 256, 64
NOTE = "none logged: 0 everywhere"


def main() -> None:
    """Write two parts and a description."""
    source, folder = Path(sys.argv[1]), Path(sys.argv[2])
    trace = load("routerbench", source)
    trace = trace.take(np.random.default_rng(0).permutation(len(trace))[:ROWS])
    words = HashingVectorizer(n_features=WORDS, ngram_range=(1, 2))
    counts = words.transform([text[:4000] for text in trace.prompt]).toarray()
    levels = np.sign(counts) * np.log1p(np.abs(counts))
    levels /= np.maximum(np.linalg.norm(levels, axis=1, keepdims=True), 1e-9)
    answered = trace.prediction >= 0
    order = np.argsort(trace.costs.mean(axis=0))
    spec = tt.CascadeSpec.of({trace.names[v]: float(trace.costs[:, v].mean()) for v in order})
    trace = tt.Trace.from_arrays(
        dataclasses.replace(spec, name="routerbench"),
        trace.confidence[:, order],
        prediction=np.where(answered, trace.prediction.astype(str), None)[:, order],
        score=1 - trace.loss[:, order],
        cost=np.round(trace.costs[:, order], 8),
        inputs={"words": (np.rint(levels * STEP) / STEP).astype(np.float32)},
    )
    half = ROWS // 2
    for part, rows in (("fit", slice(half)), ("test", slice(half, ROWS))):
        path = folder / f"routerbench-{part}.npz"
        trace.take(rows).write(path)
        with np.load(path) as file:
            arrays = dict(file)
        np.savez_compressed(path, **arrays)
    facts = {
        "title": "Eleven LLMs on prompts of many tasks, from Mistral 7B to GPT-4",
        "made": "by experiments/routing/make_dataset.py",
        "source": "1,000 rows of RouterBench (Hu et al. 2024)",
        "licence": "RouterBench is MIT. The trace holds numbers, no prompt and no answer in text.",
        "cost": "dollars per call, by its tokens",
        "label": "not in the logs; a prediction is the number of an answer, and its score, from 0 "
        "to 1, is in the logs",
        "inputs": "words: 256 hashed words and pairs of words of the prompt",
        "split": "shuffled, then halved",
        "rows": {"fit": half, "test": ROWS - half},
        "nodes": {
            name: {"accuracy": round(1 - float(loss), 4), "confidence": NOTE}
            for name, loss in zip(trace.names, trace.loss.mean(axis=0), strict=True)
        },
    }
    (folder / "routerbench.json").write_text(json.dumps(facts, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
