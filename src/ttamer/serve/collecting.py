"""From prompts to a trace: ask every upstream of a cascade about every prompt.

Each node is asked by as many workers as its ``concurrency`` says. What was answered is in the
journal at once, so that the same call goes on after any kind of end.
"""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ttamer.errors import TraceError
from ttamer.serve.asking import nodes_of
from ttamer.serve.comparing import prediction_of
from ttamer.serve.journal import Entry, Journal, key_of
from ttamer.serve.upstream import UpstreamFailed, open_session
from ttamer.trace.trace import OnBad, Trace

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

    from ttamer.serve.asking import Node
    from ttamer.serve.prompts import Endpoint, Prompt
    from ttamer.serve.settings import Settings

__all__ = ["collect_upstreams"]

GIVE_UP = 10
"""A node that fails so many times in a row is not asked any more."""

_SAME_ANSWER = ("timeout", "retries", "concurrency", "max_response", "key_env", "fallback")
"""What may change in a node without its answers being asked again."""


def collect_upstreams(
    settings: Settings,
    prompts: Sequence[Prompt],
    journal: str | os.PathLike[str],
    *,
    endpoint: Endpoint = "chat/completions",
    on_error: OnBad = "refuse",
    progress: Callable[[int, int, int], None] | None = None,
) -> Trace:
    """Ask every node about every prompt, and return what they said as a trace.

    A prompt for which some node failed is refused once everything else is asked; with
    ``on_error="skip"`` it is left out, and counted. ``progress(done, total, failed)`` is
    called with numbers of answers. The trace has a cost per row where calls differ in cost.
    """
    labels = _labels(settings, prompts)
    with Journal(journal) as kept:
        work = _Work(settings, prompts, kept, f"/{endpoint}", progress)
        try:
            asyncio.run(work.all())
        except ExceptionGroup as errors:  # of workers: the first says what is wrong
            raise errors.exceptions[0] from None
        return _trace(settings, work, labels, on_error)


@dataclass
class _Work:
    """What is to be asked, what was answered, and what failed."""

    settings: Settings
    prompts: Sequence[Prompt]
    journal: Journal
    path: str
    progress: Callable[[int, int, int], None] | None
    failed: dict[tuple[str, int], str] = field(default_factory=dict)
    done: int = 0

    def __post_init__(self) -> None:
        how = {"path": self.path, "compare": self.settings.serve.compare}
        self._how = {name: how | self._identity(name) for name in self.settings.nodes}

    def _identity(self, name: str) -> dict[str, Any]:
        """Return what a node's answers depend on."""
        node = dataclasses.asdict(self.settings.nodes[name])
        judge = node["verifier"]
        if judge is not None:
            node["verifier"] = dataclasses.asdict(self.settings.nodes[judge])
        return {k: v for k, v in node.items() if k not in _SAME_ANSWER}

    def key(self, name: str, row: int) -> str:
        return key_of(self._how[name], self.prompts[row].body)

    async def all(self) -> None:
        """Ask what is not in the journal."""
        total = len(self.prompts) * len(self.settings.nodes)
        waiting = {
            name: [
                row for row in range(len(self.prompts)) if self.key(name, row) not in self.journal
            ]
            for name in self.settings.nodes
        }
        self.done = total - sum(map(len, waiting.values()))
        self._tell()
        async with open_session() as session, asyncio.TaskGroup() as group:
            for name, node in nodes_of(self.settings, session).items():
                rows, in_a_row = iter(waiting[name]), _Failures()
                for _ in range(min(node.settings.concurrency, len(waiting[name]))):
                    group.create_task(self._worker(node, rows, in_a_row))

    async def _worker(self, node: Node, rows: Iterator[int], in_a_row: _Failures) -> None:
        name = node.settings.name
        for row in rows:
            if in_a_row.too_many:
                self.failed[name, row] = "was not asked any more"
            else:
                await self._one(node, row, in_a_row)
            self.done += 1
            self._tell()

    async def _one(self, node: Node, row: int, in_a_row: _Failures) -> None:
        name = node.settings.name
        try:
            said = await node.ask(self.path, self.prompts[row].body)
        except UpstreamFailed as error:
            self.failed[name, row] = str(error).partition(": ")[2]
            in_a_row.count += 1
            return
        in_a_row.count = 0
        self.journal.add(self.key(name, row), Entry(said.prediction, said.confidence, said.cost))

    def _tell(self) -> None:
        if self.progress is not None:
            total = len(self.prompts) * len(self.settings.nodes)
            self.progress(self.done, total, len(self.failed))


@dataclass
class _Failures:
    """How often a node failed in a row."""

    count: int = 0

    @property
    def too_many(self) -> bool:
        return self.count >= GIVE_UP


def _labels(settings: Settings, prompts: Sequence[Prompt]) -> list[str] | None:
    """Return the reference answers as they are compared; ``None`` where there are none."""
    given = [prompt.label is not None for prompt in prompts]
    if not any(given):
        if settings.spec.target == "label":
            raise TraceError(
                "the prompts have no reference answers: give each a label, or let the last node "
                'be right by definition with target = "last" under [cascade]'
            )
        return None
    labels = []
    for row, prompt in enumerate(prompts):
        label = prediction_of(prompt.label or "", settings.serve.compare)
        if label is None:
            raise TraceError(
                f"prompt {row} (counting from 0): the label {prompt.label!r} is none under "
                f'compare = "{settings.serve.compare}"; give every prompt a label, or none'
            )
        labels.append(label)
    return labels


def _trace(settings: Settings, work: _Work, labels: list[str] | None, on_error: OnBad) -> Trace:
    names = tuple(settings.nodes)
    left_out: dict[str, int] = {}
    rows, table = [], []
    for row in range(len(work.prompts)):
        entries = [work.journal.get(work.key(name, row)) for name in names]
        found = [entry for entry in entries if entry is not None]
        if len(found) == len(names):
            rows.append(row)
            table.append(found)
        else:
            name = names[entries.index(None)]
            reason = f"{name} {work.failed[name, row]}"
            left_out[reason] = left_out.get(reason, 0) + 1
    if left_out and (on_error == "refuse" or not rows):
        reasons = "; ".join(f"{reason}: {count}" for reason, count in left_out.items())
        raise TraceError(
            f"{sum(left_out.values())} of {len(work.prompts)} prompts lack an answer ({reasons}); "
            "mend that and run the same again, which asks those alone, or leave them out"
        )
    cost = np.array([[entry.cost for entry in found] for found in table])
    return Trace.from_arrays(
        settings.spec,
        [[entry.confidence for entry in found] for found in table],
        prediction=[[entry.prediction for entry in found] for found in table],
        label=None if labels is None else [labels[row] for row in rows],
        cost=None if (cost == settings.spec.costs).all() else cost,
        left_out=left_out,
    )
