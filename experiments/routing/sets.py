"""The ten public sets as traces, splits of their rows, and the score of a frontier.

A folder holds the sets; ``README.md`` says where they come from. Prompts are read from it, and
stay in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import ttamer as tt
from ttamer.stats.envelope import area_under, cost_at_error

Floats = NDArray[np.float64]
Points = list[tuple[float, float]]  # mean cost and mean error of each policy

LLM = ("routerbench", "zeroeval", "mmlu", "triviaqa")
SERVICES = ("yelp", "imdb", "ferplus", "rafdb", "digit", "fluent")
EMBEDDER = {"minilm": "all-MiniLM-L6-v2"}
ZEROEVAL = (
    "gemini-1.5-flash",
    "gemma-2-9b-it",
    "deepseek-v2.5-0908",
    "gpt-4o-mini-2024-07-18",
    "Meta-Llama-3.1-70B-Instruct",
    "gemini-1.5-pro",
    "claude-3-5-haiku-20241022",
    "Mistral-Large-2",
    "claude-3-5-sonnet-20241022",
    "gpt-4o-2024-08-06",
)
MOST_FITTED, MOST_TESTED = 4000, 8000  # rows of a split


def load(name: str, folder: Path) -> tt.Trace:
    """Read one of the ten sets."""
    return _services(name, folder) if name in SERVICES else _models(name, folder)


def _services(name: str, folder: Path) -> tt.Trace:
    """Read a set of FrugalML: four services, no inputs."""
    frame = pd.read_parquet(folder / f"frugalml_{name}.parquet")
    listed = pd.read_csv(folder / f"frugalml_{name}_prices.csv", index_col=0)
    prices = {
        str(service).replace("(", "_").replace(")", "").replace("+", "P"): float(price)
        for service, price in zip(listed.iloc[:, 0], listed.iloc[:, 1], strict=True)
    }
    costs = {}
    for node in (column[6:] for column in frame.columns if column.startswith("conf__")):
        near = (p for s, p in prices.items() if s.startswith(node) or node.startswith(s))
        costs[node] = prices[node] if node in prices else next(near)
    costs = dict(sorted(costs.items(), key=lambda item: item[1]))

    def columns(kind: str) -> Any:
        return frame[[f"{kind}__{node}" for node in costs]]

    return tt.Trace.from_arrays(
        costs,
        columns("conf").to_numpy(float),
        prediction=columns("pred").astype(str).to_numpy(object),
        correct=columns("correct").to_numpy(float),
    )


def _models(name: str, folder: Path) -> tt.Trace:
    """Read a log of LLMs: prompts, their embeddings, costs by row; confidences where logged."""
    file = f"llm9_{name}" if name in ("mmlu", "triviaqa") else name
    inside = folder if file != name else folder / "routing"
    frame = pd.read_parquet(inside / f"{file}.parquet")
    models = [column[:-8] for column in frame.columns if column.endswith(".correct")]
    if name == "zeroeval":
        models = list(ZEROEVAL)

    def columns(kind: str) -> Any:
        return frame[[f"{model}.{kind}" for model in models]]

    text = columns("prediction").fillna("").astype(str).to_numpy(object)
    cost = columns("cost").to_numpy(float)
    has_confidence = f"{models[0]}.confidence" in frame
    return tt.Trace.from_arrays(
        dict(zip(models, cost.mean(axis=0).tolist(), strict=True)),
        columns("confidence").to_numpy(float) if has_confidence else np.zeros(cost.shape),
        prediction=np.where(text == "", None, text),
        score=columns("correct").to_numpy(float),
        cost=cost,
        prompt=frame.prompt.to_numpy(object),
        inputs={"minilm": np.load(folder / "routing" / f"{file}-minilm.npy").astype(np.float32)},
    )


def split(trace: tt.Trace, seed: int, rows: int) -> tuple[tt.Trace, tt.Trace]:
    """Return rows to fit to, and others: half of all, or the first of that half."""
    order = np.random.default_rng(seed).permutation(len(trace))
    half = len(trace) // 2
    return trace.take(order[: min(rows or MOST_FITTED, half)]), trace.take(
        order[half : half + MOST_TESTED]
    )


# ---------------------------------------------------------------- scores
def point(
    trace: tt.Trace, asked: NDArray[np.bool_], answer: NDArray[np.intp]
) -> tuple[float, float]:
    """Return the mean cost and error of decisions on rows of separate models."""
    error = trace.loss[np.arange(len(trace)), answer].mean()
    return float((asked * trace.costs).sum(axis=1).mean()), float(error)


def alone(trace: tt.Trace) -> Points:
    """Return the points of the single models."""
    return [*zip(trace.costs.mean(axis=0).tolist(), trace.loss.mean(axis=0).tolist(), strict=True)]


@dataclass(frozen=True)
class Score:
    """How good a frontier is on rows that nothing was fitted to."""

    area: float
    """Under the error-cost envelope, over that of the single models."""
    cost: float
    """At the error of the best model of the fit rows, as a share of its cost."""


def score(points: Points, fit: tt.Trace, test: tt.Trace) -> Score:
    """Return the score of a frontier; the cheapest model is always a point of it."""
    single = alone(test)
    cheapest, best = min(single), single[int(fit.loss.mean(axis=0).argmin())]
    low, high = cheapest[0], max(cost for cost, _ in single)

    def area(frontier: Points) -> float:
        costs, errors = zip(*frontier, cheapest, strict=True)
        return area_under(costs, errors, low, high)

    costs, errors = zip(*points, cheapest, best, strict=True)
    reached = cost_at_error(costs, errors, best[1])
    return Score(area(points) / area(single), (reached or best[0]) / best[0])


# ---------------------------------------------------------------- results
def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the results so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def write_line(path: Path, **line: Any) -> None:
    """Append a result."""
    rounded = {k: round(v, 5) if isinstance(v, float) else v for k, v in line.items()}
    with path.open("a") as file:
        file.write(json.dumps(rounded) + "\n")


def mean_and_error(values: Iterable[float]) -> tuple[float, float]:
    """Return a mean over splits and its standard error."""
    array = np.array([*values])
    return float(array.mean()), float(array.std(ddof=1) / len(array) ** 0.5) if len(
        array
    ) > 1 else float("nan")


def numbers(text: str) -> Iterator[int]:
    """Read seeds: ``3`` is 0 to 2, ``4:8`` is 4 to 7."""
    first, colon, last = text.partition(":")
    yield from range(int(first), int(last)) if colon else range(int(first))
