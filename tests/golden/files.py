"""Files that were written once: what is read from them, and what it decides, never changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ttamer as tt
from golden.fits import ROWS, of_decisions, of_mixture, reported
from golden.parts import GROUPS, Entries, loaded, saved_bytes

HERE = Path(__file__).parent / "files"


def with_promises(kind: str, count: int, **options: Any) -> tt.FittedLadder:
    ladder = tt.fit(ROWS[kind]("fit", count), hold_out=0.5, **options)
    return ladder.with_promise(ladder.for_error(0.3)).with_promise(ladder.for_drop(0.05))


FILES: dict[str, tuple[str, Callable[[], Any]]] = {
    "models-ladder": ("models", lambda: with_promises("models", 160)),
    "exits-ladder": ("exits", lambda: with_promises("exits", 160)),
    "inputs-policy": ("models", lambda: tt.fit(ROWS["models"]("fit", 650)).at(0.9)),
    "markov-ladder": (
        "models",
        lambda: with_promises(
            "models", 160, belief="markov", states=4, tradeoffs=[0.5, 0.9, 0.97, 1.0]
        ),
    ),
    "threshold-mixture": (
        "exits",
        lambda: tt.fit(ROWS["exits"]("fit", 160), belief="threshold").for_drop(0.05),
    ),
}


def of_file(name: str) -> Entries:
    policy = tt.load(HERE / f"{name}.ttamer")
    facts = reported("inspect", HERE / f"{name}.ttamer")
    yield "inspected", {key: value for key, value in facts.items() if key != "file"}
    again = saved_bytes(policy, notes=facts["notes"])
    yield "saved again", saved_bytes(loaded(again), notes=facts["notes"]) == again
    if isinstance(policy, tt.FittedLadder):
        for promise in policy.promises:
            kept = of_mixture(policy.mixed(promise.mix, promise=promise))
            yield f"certified, {promise.kind}", kept
        yield "another certificate", of_mixture(policy.for_error(0.25))
    rows = ROWS[FILES[name][0]]("test", 200)
    yield from of_decisions(list(policy) if hasattr(policy, "points") else [policy], rows)


for _name in FILES:
    GROUPS[f"file/{_name}"] = lambda name=_name: of_file(name)
