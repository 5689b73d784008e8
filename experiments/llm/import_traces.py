"""Turn the logs of nine LLMs into the traces of the package: numbers only.

    python experiments/llm/import_traces.py LOGS FOLDER

``LOGS`` holds ``llm9_mmlu.parquet``, ``llm9_triviaqa.parquet`` and a cascade beside each, converted
from the public logs of Zellinger and Thomson, "Rational Tuning of LLM Cascades via Probabilistic
Modeling" (2025). Prompts are left out. Predictions of MMLU are letters; those of TriviaQA are free
text, and are replaced by numbers in a random order, equal where the text is equal. The rows are
shuffled by ``numpy.random.default_rng(0).permutation`` and halved: the first half is to fit on.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

import numpy as np

from ttamer.trace.trace import Trace

BENCHMARKS = {"mmlu": "MMLU", "triviaqa": "TriviaQA"}
LABEL = {
    "mmlu": "not in the logs; a prediction is the letter of one choice, and correct is in the logs",
    "triviaqa": "not in the logs; a prediction is the number of an answer, and correct is "
    "whether it matches an alias of the true one",
}


def main() -> None:
    """Write two parts and a description of each benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("logs", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    for name, title in BENCHMARKS.items():
        path = args.logs / f"llm9_{name}.parquet"
        trace = cleaned(Trace.read(path, path.with_suffix(".toml")), f"llm-{name}", name)
        rows = np.random.default_rng(0).permutation(len(trace))
        half = len(trace) // 2
        for part, which in (("fit", rows[:half]), ("test", rows[half:])):
            trace.take(which).write(args.folder / f"llm-{name}-{part}.npz")
        facts = described(trace, title, name, {"fit": half, "test": len(trace) - half})
        text = json.dumps(facts, indent=2) + "\n"
        (args.folder / f"llm-{name}.json").write_text(text, "utf-8")


def cleaned(trace: Trace, name: str, benchmark: str) -> Trace:
    """Return the trace under its new name, at the mean costs of its rows, without any text."""
    spec = trace.spec.with_costs(dict(zip(trace.names, trace.costs.mean(axis=0), strict=True)))
    classes = trace.classes
    if benchmark == "triviaqa":
        order = np.random.default_rng(1).permutation(len(classes))
        classes = tuple(str(number) for number in order.tolist())
    return dataclasses.replace(
        trace, spec=dataclasses.replace(spec, name=name), classes=classes, notes=()
    )


def described(trace: Trace, title: str, name: str, rows: dict[str, int]) -> dict[str, object]:
    """Return the description of a trace."""
    right = 1 - trace.loss.mean(axis=0)
    return {
        "title": f"Nine LLMs on {title}, from Llama 3.2 1B to Llama 3.1 405B and GPT-4o",
        "made": "by experiments/llm/import_traces.py",
        "source": "the public logs of Zellinger and Thomson, Rational Tuning of LLM Cascades via "
        "Probabilistic Modeling (2025)",
        "licence": "The trace holds numbers and letters, no question and no answer in text: "
        "Apache-2.0, as this package.",
        "cost": "dollars per call, by its tokens",
        "latency": "milliseconds per call",
        "label": LABEL[name],
        "split": "shuffled, then halved",
        "rows": rows,
        "nodes": {
            node: {
                "accuracy": round(float(right[v]), 4),
                "confidence": "the confidence of the answer in the logs",
            }
            for v, node in enumerate(trace.names)
        },
    }


if __name__ == "__main__":
    main()
