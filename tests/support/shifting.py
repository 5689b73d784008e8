"""Streams whose law is known, and which change at a known row."""

from __future__ import annotations

import numpy as np

from ttamer.cascade import CascadeSpec
from ttamer.drift.monitor import AuditedDecisions
from ttamer.trace.trace import Trace

SPEC = CascadeSpec.of({"small": 1.0, "middle": 3.0, "large": 10.0}, kind="exits", target="last")
CLASSES = 5


def rows_of(count: int, *, seed: int, shifted: bool = False) -> Trace:
    """Exits that agree with the last one the more often the surer they are.

    Shifted, they are as sure as ever and agree less: confidence means less than it did.
    """
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, CLASSES, count)
    ease = rng.beta(2, 1, count)
    said, sure = [], []
    for skill in (0.75, 0.9):
        confidence = np.clip(ease * skill + rng.normal(0, 0.08, count), 0.01, 0.99)
        worth = confidence**2 if shifted else 1 - (1 - confidence) ** 2
        right = rng.random(count) < worth
        other = (truth + rng.integers(1, CLASSES, count)) % CLASSES
        said.append(np.where(right, truth, other))
        sure.append(confidence)
    said.append(truth)
    sure.append(np.full(count, 0.99))
    return Trace.from_arrays(
        SPEC, np.stack(sure, axis=1), prediction=np.stack(said, axis=1).astype(str)
    )


def stream_of(quiet: int, changed: int, *, seed: int) -> Trace:
    parts = [rows_of(quiet, seed=seed)]
    if changed:
        parts.append(rows_of(changed, seed=seed + 1, shifted=True))
    return Trace.concat(parts)


def decided(
    rng: np.random.Generator, rows: int, *, error=0.05, believed=0.05, states=0.0, steps=2
) -> AuditedDecisions:
    """What a policy did, drawn row by row; ``states`` moves them."""
    wrong = rng.random(rows) < error
    lost = np.stack([wrong, rng.random(rows) < 0.02], axis=1)
    found = np.floor(8 * rng.random((rows, steps)) ** (1 - states))
    return AuditedDecisions(
        np.zeros(rows, np.intp), lost, np.ones(rows), np.full(rows, believed), found
    )
