"""The policy in service: loaded from a file, checked against the cascade, replaced while serving.

A request reads :attr:`PolicyStore.active` once, and goes on with it whatever comes after. A file
that cannot be served leaves the policy as it is.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

from ttamer.artefact.file import open_artefact
from ttamer.artefact.records import Deciding
from ttamer.cascade import CascadeSpec, answer_rules
from ttamer.errors import ArtefactError
from ttamer.fitting.inputs import InputFeature
from ttamer.fitting.ladder import FittedLadder
from ttamer.fitting.policy import StepTables
from ttamer.fitting.session import SingleNode, SingleNodeSession
from ttamer.llm.node import ModelNode, Verification, Work
from ttamer.runtime.cascade import Cascade, Decider
from ttamer.runtime.reply import Reply
from ttamer.serve.settings import Point, Settings

log = logging.getLogger("ttamer")


@dataclass(frozen=True, eq=False)
class Active:
    """What answers a request."""

    policy: Decider  # that of the operator's operating point
    version: str  # the first 16 digits of the file's SHA-256
    artefact: Deciding | None
    nodes: Mapping[str, ModelNode | Verification]
    digest: Callable[[Any], Any]  # what a log without texts has of an answer
    max_cost: float | None = None

    @cached_property
    def cascade(self) -> Callable[[Point | None, float | None], Cascade]:
        """From an operating point and a cap on the cost to what runs a request."""
        # Clients choose both, and could choose any number of them.
        return lru_cache(maxsize=64)(self._cascade)

    def _cascade(self, point: Point | None, max_cost: float | None) -> Cascade:
        policy = self.policy
        if point is not None and self.artefact is not None:
            policy = policy_at(self.artefact, point)
        caps = [cap for cap in (self.max_cost, max_cost) if cap is not None]
        asks = {name: partial(self._ask, name) for name in policy.spec.names}
        return Cascade(policy, asks, max_cost=min(caps, default=None))

    def logged(self, answer: Any) -> Any:
        """Return what the log has of an answer: that itself, where the policy's file holds it."""
        return answer if answer in self.classes else self.digest(answer)

    async def _ask(self, name: str, work: Work) -> Reply:
        reply = await self.nodes[name].ask(work)
        # A policy that was fitted to a log without texts knows answers by their digests.
        digest = self.digest(reply.prediction)
        return reply._replace(prediction=digest) if digest in self.classes else reply

    @cached_property
    def classes(self) -> frozenset[str]:
        """The answers that the policy knows; its file holds them."""
        return frozenset(() if self._tables is None else self._tables.belief.classes)

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """What the policy reads of an input."""
        return () if self.artefact is None else self.artefact.record.inputs

    @cached_property
    def vectors(self) -> dict[str, InputFeature]:
        """By name, the vectors that an embedder makes of prompts."""
        prior = None if self._tables is None else self._tables.prior
        features = () if prior is None or prior.spec is None else prior.spec.features
        return {feature.name: feature for feature in features if feature.embedder}

    @cached_property
    def _tables(self) -> StepTables | None:
        tables = None if self.artefact is None else self.artefact.fitted.tables
        return tables if isinstance(tables, StepTables) else None

    def warnings(self) -> list[str]:
        """Return what an operator should know before this is served."""
        warnings = []
        if unread := set(self.reads) - {"prompt"}:
            warnings.append(
                f"the policy reads {', '.join(sorted(unread))}: where a request does not state "
                "its inputs, and no embedder makes them, it decides without"
            )
        promise = getattr(self.policy, "promise", None)
        if promise is not None and not promise.certified:
            warnings.append(f"{promise}; the policy with the lowest error answers")
        elif promise is not None and self.max_cost is not None:
            warnings.append(
                "max_cost can end a request early, and the policy was certified without it"
            )
        return warnings


def policy_at(artefact: Deciding, point: Point | None) -> Decider:
    """Return the policy of an operating point; without one, the ladder's default."""
    if not isinstance(artefact, FittedLadder):
        return artefact
    if point is None:
        return artefact.default()
    name, value = point
    choose: Callable[[float], Decider] = getattr(
        artefact, "at" if name == "tradeoff" else f"for_{name}"
    )
    return choose(value)


class Incumbent:
    """The policy of shadow mode: one node answers, whatever it says.

    >>> spec = CascadeSpec.of({"small": 1.0, "large": 9.0})
    >>> turn = Incumbent(spec, "large").session(key="r1", prompt="What?")
    >>> turn.next, turn.price
    ('large', 9.0)
    """

    def __init__(self, spec: CascadeSpec, node: str) -> None:
        self.spec = spec
        self._rule = SingleNode(spec.names, spec.costs, spec.index_of(node))

    def session(self, max_cost: float | None = None, **_: Any) -> SingleNodeSession:
        """Start one request; nothing that is known of it changes which node is asked."""
        return self._rule.session(max_cost)


class PolicyStore:
    """A policy file, and the policy that was last found good in it.

    Args:
        path: The file; "" for none, in shadow mode.
        settings: The cascade that is served.
        nodes: The nodes by name, once they are open.
        digest: What a log without texts has of an answer.
        force: Whether a policy is served that was fitted for other costs, answers or confidences.
    """

    interval = 2.0  # seconds between two looks at the file

    def __init__(
        self,
        path: str | os.PathLike[str],
        settings: Settings,
        nodes: Mapping[str, ModelNode | Verification],
        digest: Callable[[Any], Any],
        *,
        force: bool = False,
    ) -> None:
        self.path, self._settings, self._force = os.fspath(path), settings, force
        self._nodes, self._digest = nodes, digest
        self.refused = 0  # how often a file was refused since the start
        self.hangup = asyncio.Event()  # set to reload now
        self._stamp = self._stat()
        self.active = self.load()

    def load(self) -> Active:
        """Return the policy in the file.

        Raises:
            ArtefactError: If it cannot be served.
        """
        if self._settings.serve.mode == "shadow":
            incumbent = Incumbent(self._settings.spec, self._settings.incumbent)
            return Active(incumbent, "shadow", None, self._nodes, self._digest)
        opened = open_artefact(self.path)
        artefact, serve = opened.policy, self._settings.serve
        if not isinstance(artefact, Deciding):
            raise ArtefactError(
                f"{self.path}: was solved from a problem, and serving needs a fit, which relates "
                "confidences to errors; make one with: ttamer fit"
            )
        policy = policy_at(artefact, next(iter(serve.stated), None))
        version = str(opened.facts["sha256"])[:16]
        active = Active(policy, version, artefact, self._nodes, self._digest, serve.max_cost)
        for mistake in self._mistakes(active, artefact):
            raise ArtefactError(f"{self.path}: was fitted {mistake}")
        active.cascade(None, None)  # refused now, if no node can be asked within max_cost
        return active

    def _mistakes(self, active: Active, artefact: Deciding) -> Iterator[str]:
        """Yield what a policy was fitted to that is otherwise in the cascade."""
        fitted, spec, rules = (
            artefact.spec,
            self._settings.spec,
            answer_rules(self._settings.source),
        )
        if fitted.names != spec.names:
            yield (
                f"for {', '.join(fitted.names)[:200]}, and the cascade has "
                f"{', '.join(spec.names)}; fit it with the same cascade.toml"
            )
        embeddings = self._settings.serve.embeddings
        makers = {str(feature.embedder) for feature in active.vectors.values()}
        if embeddings is not None and makers - {embeddings.model}:
            yield (
                f"to vectors by {', '.join(sorted(makers))}, and the model of [serve.embeddings] "
                f"is {embeddings.model!r}: use the same, or fit again"
            )
        differences = [
            f"cost {old.cost:g} of {new.name!r}, and it is {new.cost:g} now"
            for old, new in zip(fitted.nodes, spec.nodes, strict=True)
            # Costs that went through a file may differ by a rounding.
            if not math.isclose(old.cost, new.cost, rel_tol=1e-9)
        ]
        if fitted.target != spec.target:
            differences.append(f"target {fitted.target!r}, and it is {spec.target!r} now")
        if fitted.mistakes != spec.mistakes:
            differences.append("other mistakes than the cascade has now")
        differences += [
            f"{name} {str(old)[:200]}, and it is {rules[name]} now"
            for name, old in artefact.fitted.compare.items()
            if rules.get(name, old) != old
        ]
        if differences and not self._force:
            yield (
                f"for {'; '.join(differences)}: write in cascade.toml what it was fitted for, fit "
                "it again with this cascade.toml, or pass --force"
            )

    async def reload(self) -> bool:
        """Load the file again, in a thread; where it cannot be served nothing changes."""
        try:
            # In a thread: requests go on while a large file is read and checked.
            active = await asyncio.to_thread(self.load)
        except Exception as error:  # whatever a file can do: the watch must go on
            self.refused += 1
            log.warning("the policy is as before: %s", error)
            return False
        self.active = active
        log.info("policy %s", active.version)
        return True

    async def watch(self) -> None:
        """Reload on a hangup, and where the file has changed and then kept still for one look."""
        before = self._stamp
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.interval):
                    await self.hangup.wait()
            stamp, is_asked = self._stat(), self.hangup.is_set()
            self.hangup.clear()
            # A file that is still being written has changed since the last look.
            if is_asked or (stamp is not None and stamp == before != self._stamp):
                self._stamp = stamp
                await self.reload()
            before = stamp

    def _stat(self) -> tuple[int, ...] | None:
        try:
            status = os.stat(self.path)  # not Path(""), which is a folder  # noqa: PTH116
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino
