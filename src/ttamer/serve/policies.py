"""The policies of an artefact: which of them answers a request, and replacing them while serving.

A new artefact is loaded in a thread and checked against the cascade. Only then is it activated, by
one assignment: a request reads ``PolicyStore.current`` once and ends on what it read. The former
artefact is kept, so that :meth:`PolicyStore.rollback` needs no file. A file that is not valid
changes nothing: it is reported, and the active artefact stays.
"""

from __future__ import annotations

import asyncio
import math
import signal
from collections import OrderedDict
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from decimal import ROUND_FLOOR, Context
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttamer.artefact.files import open_artefact
from ttamer.drift.decisions import decide
from ttamer.drift.loop import CertifiedServing, FallbackServing
from ttamer.errors import ArgumentError, ArtefactError, TTamerError
from ttamer.fitted.ladder import FittedLadder, FittedPolicy
from ttamer.runtime.cascade import Cascade
from ttamer.serve.hangups import take_hangup
from ttamer.serve.http import HttpError
from ttamer.serve.observability.status import Frontier, Rung, frontier_of

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from ttamer.drift.fallback import AskLast
    from ttamer.drift.loop import Serving
    from ttamer.fitted.mixture import Mixture
    from ttamer.fitted.promise import Promise
    from ttamer.serve.config import NodeSettings, ServeSettings
    from ttamer.serve.processes.accepted import AcceptedFiles
    from ttamer.trace.spec import CascadeSpec

__all__ = [
    "ActivePolicy",
    "Artefact",
    "ChoiceNotAllowed",
    "LoadedArtefact",
    "Policies",
    "PolicyStore",
    "Reload",
    "check_fitted_for",
    "load_artefact",
    "on_grid",
    "unfilled_columns",
]

Artefact = FittedLadder | FittedPolicy
"""What an artefact for serving may hold."""
MAX_CHOICES = 512
"""The number of operating points chosen by requests whose policies are kept ready."""
CHOICE_REST = 3.0
"""The pause after making a policy for a choice, as a multiple of the time that it took."""
CERTIFIED, NOT_CERTIFIED = "certified", "not-certified"
"""The values of the header ``x-ttamer-promise``."""
SHORT_VERSION = 16
"""The number of digits of a version in responses, logs and metrics."""
MAX_NAMES_SHOWN = 200
"""The most characters of a foreign file's node names in an error."""


_DIGITS = {"budget": 3, "error": 2}


def on_grid(name: str, value: float) -> float:
    """Return the value on the grid of choices that is not above this one.

    Budgets have three significant digits, errors two, since a policy for an error is certified in
    some milliseconds: all errors from 0.01 to 1 are 180 policies, which are kept.

    >>> on_grid("budget", 12.3456), on_grid("error", 0.0567), on_grid("tradeoff", 0.9712)
    (12.3, 0.056, 0.9712)
    """
    if name == "tradeoff" or value <= 0:
        return value
    return float(Context(prec=_DIGITS[name], rounding=ROUND_FLOOR).create_decimal(repr(value)))


class ChoiceNotAllowed(HttpError):
    """A request chose an operating point that the operator does not allow."""

    code = "choice_not_allowed"
    param = "ttamer"


@dataclass(frozen=True)
class ActivePolicy:
    """The policy that answers a request."""

    cascade: Cascade
    version: str
    """The version of the policy in responses."""
    promise: str | None = None
    """For an operating point in error: "certified" or "not-certified"."""


class Policies:
    """The policies of one artefact, by the operating point that a request chooses."""

    def __init__(
        self,
        artefact: Artefact,
        version: str,
        serve: ServeSettings,
        nodes: Mapping[str, Callable[[Any], Awaitable[Any]]],
        serving: CertifiedServing | None = None,
        *,
        has_token_prices: bool = False,
    ) -> None:
        self._artefact, self._version, self._serve, self._nodes = artefact, version, serve, nodes
        self._has_token_prices = has_token_prices
        self.serving = serving
        """What the drift loop begins with, where it runs."""
        self._chosen: OrderedDict[tuple[str, float], ActivePolicy] = OrderedDict()
        self._choosing = asyncio.Lock()
        self._next_choice = 0.0
        """When the next policy may be made, by the clock of the event loop."""
        point = serve.operating_point
        if isinstance(artefact, FittedPolicy) and (point is not None or serve.allow):
            raise ArgumentError(
                "the artefact holds one policy, which has one operating point; fit a ladder, or "
                "remove the operating point and allow from [serve]"
            )
        self.warnings: list[str] = []
        """Warnings about the policy, each in one line."""
        self._frontier: Callable[[], Frontier]
        if serving is None:
            policy = self._policy(point)
            self.described = f"{_point_text(point, artefact)}: {policy.described}"
            """The operating point, in words."""
            if policy.single_node is not None and len(self._spec.nodes) > 1:
                self.warnings.append(
                    f"this policy only ever asks {policy.single_node!r}; with another "
                    "mistake_cost, budget or tradeoff in [serve] a second model is asked"
                )
            self.standard = ActivePolicy(self._cascade(policy), version, self._promised(policy))
            """The policy that answers requests without a choice."""
            self._frontier = cache(partial(frontier_of, artefact, policy))
        else:
            policy = serving.policy
            self.described = f"the drift loop begins with {policy.described}"
            self.activate(serving, version)
        promise = getattr(policy, "promise", None)
        if promise is not None and self.standard.promise == NOT_CERTIFIED:
            self.warnings.append(_uncertified(promise))

    async def choose(self, choice: tuple[str, float] | None) -> ActivePolicy:
        """Return the policy that answers a request, or refuse its choice.

        A policy for a new choice is made in a thread, one at a time, and kept. Choices lie on a
        grid (:func:`on_grid`), so that random values do not cost a new policy each.
        """
        if choice is None:
            return self.standard
        name, value = choice
        if name not in self._serve.allow:
            allowed = ", ".join(self._serve.allow) or "nothing"
            raise ChoiceNotAllowed(f"a request may not choose {name} here; it may choose {allowed}")
        low, high = getattr(self._serve, f"{name}_range")
        if not low <= value <= high:
            raise ChoiceNotAllowed(f"{name} is {value:g}; allowed here is {low:g} to {high:g}")
        point = name, max(low, on_grid(name, value))
        active = self._chosen.get(point)
        if active is None:
            active = await self._made(point)
        self._chosen.move_to_end(point)
        return active

    async def _made(self, point: tuple[str, float]) -> ActivePolicy:
        """Make a policy in a thread, once earlier ones have left time for other requests.

        A thread cannot be stopped: where the request is cancelled, the next one waits all the same.
        """
        await self._choosing.acquire()
        loop = asyncio.get_running_loop()
        active = self._chosen.get(point)
        if active is not None:
            self._choosing.release()
            return active
        try:
            await asyncio.sleep(max(0.0, self._next_choice - loop.time()))
        except BaseException:
            self._choosing.release()
            raise
        made = loop.create_task(asyncio.to_thread(self._choose, point))
        made.add_done_callback(partial(self._keep, point, loop.time()))
        return await asyncio.shield(made)

    def _keep(
        self, point: tuple[str, float], start: float, made: asyncio.Task[ActivePolicy]
    ) -> None:
        """Keep a policy that has been made, and let the next one be made."""
        end = made.get_loop().time()
        self._next_choice = end + CHOICE_REST * (end - start)
        self._choosing.release()
        if made.cancelled() or made.exception() is not None:
            return
        self._chosen[point] = made.result()
        if len(self._chosen) > MAX_CHOICES:
            self._chosen.popitem(last=False)

    def _choose(self, point: tuple[str, float]) -> ActivePolicy:
        """Make the policy of an operating point; takes milliseconds."""
        try:
            policy = self._policy(point)
            cascade = self._cascade(policy)
        except ArgumentError as error:
            raise ChoiceNotAllowed(f"{point[0]} cannot be {point[1]:g}: {error}") from None
        return ActivePolicy(cascade, self._version, self._promised(policy))

    def activate(self, serving: Serving, version: str) -> None:
        """Answer requests without a choice by another policy, from the next request on."""
        promise: str | None
        if isinstance(serving, FallbackServing):
            # With target = "last" the last node is right by definition.
            promise = self._promise(is_certified=self._spec.target == "last")
            self._frontier = cache(partial(self._fallback_frontier, serving.policy))
        else:
            promise = self._promised(serving.policy)
            self._frontier = cache(partial(frontier_of, serving.ladder, serving.policy))
        self.standard = ActivePolicy(self._cascade(serving.policy), version, promise)

    @property
    def frontier(self) -> Frontier:
        """The estimated cost and error of each policy, and of the one that answers."""
        return self._frontier()

    def _fallback_frontier(self, fallback: AskLast) -> Frontier:
        """Return the artefact's frontier, with the fallback policy as the one that answers."""
        assert self.serving is not None  # noqa: S101 - only a loop activates it
        found = decide(fallback, self.serving.reference)
        ladder = self.serving.ladder
        rungs = frontier_of(ladder, ladder.at(1.0)).rungs
        return Frontier(rungs, Rung(1.0, float(found.cost.mean()), found.mean_loss))

    def _cascade(self, policy: FittedPolicy | Mixture | AskLast) -> Cascade:
        serve = self._serve
        return Cascade(policy, self._nodes, max_cost=serve.max_cost, hedge=serve.hedge)

    def _promised(self, policy: FittedPolicy | Mixture) -> str | None:
        promise = getattr(policy, "promise", None)
        return None if promise is None else self._promise(is_certified=promise.certified)

    def _promise(self, *, is_certified: bool) -> str:
        # A policy is certified without max_cost: where that may end a request early, it is not.
        # With a price of tokens it always may: a prompt can have any length.
        limit, most = self._serve.max_cost, sum(node.cost for node in self._spec.nodes)
        is_capped = limit is not None and (self._has_token_prices or limit < most)
        return CERTIFIED if is_certified and not is_capped else NOT_CERTIFIED

    @property
    def _spec(self) -> CascadeSpec:
        return self._artefact.fitted.spec

    def _policy(self, point: tuple[str, float] | None) -> FittedPolicy | Mixture:
        """Return the policy of an operating point; without one, the ladder's default."""
        ladder = self._artefact
        if isinstance(ladder, FittedPolicy):
            return ladder
        if point is None:
            return ladder.default()
        name, value = point
        if name == "tradeoff":
            return ladder.at(value)
        if name == "mistake_cost":
            return ladder.for_mistake_cost(value)
        return ladder.for_budget(value) if name == "budget" else ladder.for_error(value)


def _uncertified(promise: Promise) -> str:
    """Return why responses do not say that a promise is certified."""
    if promise.certified:
        return (
            "max_cost can end a request early, and the policy was certified without it: responses "
            f"have x-ttamer-promise: {NOT_CERTIFIED}"
        )
    return f"{promise}; the policy with the lowest error answers"


def _point_text(point: tuple[str, float] | None, artefact: Artefact) -> str:
    if isinstance(artefact, FittedPolicy):
        return "the artefact's policy"
    if point is None:
        return "no operating point is stated, so the default: as accurate as the best single model"
    return f"{point[0].replace('_', ' ')} {point[1]:g}"


@dataclass(frozen=True, eq=False)
class LoadedArtefact:
    """An artefact that is or was active, and the policies built from it."""

    artefact: Artefact
    version: str
    """The SHA-256 of the file, 64 digits."""
    path: str
    policies: Policies

    @property
    def short_version(self) -> str:
        """The first 16 digits of the version."""
        return self.version[:SHORT_VERSION]


@dataclass(frozen=True)
class Reload:
    """The result of one attempt to change the artefact, or the settings with it."""

    ok: bool
    action: str
    """``"load"``, ``"reload"`` or ``"rollback"``."""
    cause: str
    """``"start"``, ``"file"``, ``"signal"`` or ``"admin"``."""
    version: str
    """The version that is active now."""
    changed: bool
    message: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def load_artefact(path: str | os.PathLike[str], nodes: Sequence[str]) -> tuple[Artefact, str]:
    """Return a fitted policy or ladder for these nodes, and its version; reads the file once."""
    opened = open_artefact(path)
    artefact, version = opened.policy, str(opened.facts["sha256"])
    if not isinstance(artefact, FittedLadder | FittedPolicy):
        raise ArtefactError(
            f"{path}: was solved from a problem, and serving needs a fit, which relates "
            "confidences to errors; make one with: ttamer fit"
        )
    names = artefact.fitted.spec.names
    if names != tuple(nodes):
        raise ArtefactError(
            f"{path}: was fitted for {_listed(names)}, and the cascade has {_listed(nodes)}; fit "
            "it with the same cascade.toml"
        )
    return artefact, version


def check_fitted_for(
    artefact: Artefact, spec: CascadeSpec, signals: Sequence[str] | None = None
) -> None:
    """Refuse an artefact that was fitted for other costs, answers, confidences or signals.

    Args:
        artefact: The artefact, for the same nodes.
        spec: The cascade that is served.
        signals: The signals that are computed for each request; by default all that it needs.

    Raises:
        ArtefactError: If a cost, the target, the mistakes, the comparison of answers, the source
            of a confidence or a price of tokens differs (of the last three, an artefact fitted
            without them has no record), or a signal is missing.
    """
    fitted = artefact.spec
    differences = [
        f"cost {old.cost:g} of {new.name!r}, and it is {new.cost:g} now"
        for old, new in zip(fitted.nodes, spec.nodes, strict=True)
        if not math.isclose(old.cost, new.cost, rel_tol=1e-9)
    ]
    if fitted.target != spec.target:
        differences.append(f"target {fitted.target!r}, and it is {spec.target!r} now")
    if fitted.mistakes != spec.mistakes:
        now = "there are others" if spec.mistakes else "there are none"
        differences.append(f"{'its own' if fitted.mistakes else 'equal'} mistakes, and {now} now")
    unpriced, plan = {"cost_per_token": "not set"}, artefact.fitted.plan
    rules = {**unpriced, **spec.answer_rules}
    fitted_rules = {**unpriced, **plan} if "compare" in plan else plan
    differences += [
        f"{name} {_listed([old])}, and it is {rules[name]} now"
        for name, old in fitted_rules.items()
        if rules.get(name, old) != old
    ]
    used = getattr(getattr(artefact.fitted, "belief", None), "signals", None)
    missing = [] if used is None or signals is None else [*set(used.names) - set(signals)]
    if missing:
        differences.append(
            f"signals {_listed(sorted(missing))}, which are not computed now (signals = true, and "
            "signals of [serve.embeddings])"
        )
    if differences:
        raise ArtefactError(
            f"the artefact was fitted for {'; '.join(differences)}: write in cascade.toml what it "
            "was fitted for, fit it again with this cascade.toml, or pass --force"
        )


def unfilled_columns(artefact: Artefact, nodes: Mapping[str, NodeSettings]) -> list[str]:
    """Return a warning for each node whose margin or entropy is read, and not computed.

    Args:
        artefact: The artefact, for the same nodes.
        nodes: The settings of the nodes.

    Returns:
        Warnings, each in one line.
    """
    found = []
    for name, columns in artefact.fitted.reads.items():
        filled = nodes[name].extras
        if not set(columns) <= set(filled):
            wanted = ", ".join(f'"{each}"' for each in sorted({*columns, *filled}, reverse=True))
            found.append(
                f"the policy reads {' and '.join(columns)} of {_listed([name])}, which its "
                f"settings do not compute: its answers are judged by their confidence alone; add "
                f"extras = [{wanted}] to its [[node]]"
            )
    return found


def _listed(names: Sequence[str]) -> str:
    """Return the names of a foreign file, short and printable."""
    text = ", ".join(names)
    text = text if len(text) <= MAX_NAMES_SHOWN else f"{text[:MAX_NAMES_SHOWN]}..."
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class PolicyStore:
    """Holds the active artefact, and replaces it on demand.

    ``build`` makes the policies of an artefact and its version; a
    :class:`~ttamer.errors.TTamerError` from it refuses the file. ``notify`` receives the result of
    every attempt. ``accepted`` keeps copies of what can be served, for processes that start later.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        nodes: Sequence[str],
        build: Callable[[Artefact, str], Policies],
        notify: Callable[[Reload], None] = lambda _: None,
        accepted: AcceptedFiles | None = None,
    ) -> None:
        self._path, self._accepted = Path(path), accepted
        self._nodes = tuple(nodes)
        self._build = build
        self._notify = notify
        self._current: LoadedArtefact | None = None
        self._former: LoadedArtefact | None = None
        self._signature: object = None
        self._changing = asyncio.Lock()

    @property
    def current(self) -> LoadedArtefact:
        """The active artefact. Read it once per request."""
        if self._current is None:
            raise ArtefactError("no policy is loaded yet")
        return self._current

    def read(self) -> LoadedArtefact:
        """Load the first artefact, without a report; a file that is not valid is an error here.

        Where other processes serve another one, it is theirs; the file is looked at later.
        """
        copy = None if self._accepted is None else self._accepted.instead_of(self._path)
        self._signature = self._read_signature() if copy is None else None
        self._current = self._load(copy or self._path)
        return self._current

    def load(self) -> LoadedArtefact:
        """Load the first artefact, unless :meth:`read` did, and report it."""
        current = self._current or self.read()
        self._report(True, "load", "start", changed=True)
        return current

    async def reload(
        self, cause: str = "admin", steps: Sequence[Callable[[], None]] = ()
    ) -> Reload:
        """Load the file again, in a thread, and activate it if it is valid.

        ``steps`` are what changes with it: they run once the file is known to be valid. The first
        may still refuse the reload by an error, the others may not: nothing is undone.
        """
        async with self._changing:
            self._signature = await asyncio.to_thread(self._read_signature)
            try:
                new = await asyncio.to_thread(self._load, self._path)
                for step in steps:
                    step()
            except TTamerError as error:
                return self.refuse(cause, str(error))
            except Exception as error:  # no file may end the task that watches it
                return self.refuse(
                    cause, f"{self._path}: could not be loaded: {type(error).__name__}"
                )
            if new.version == self.current.version:
                text = "the file holds the active policy"
                return self._report(True, "reload", cause, changed=False, message=text)
            self._former, self._current = self._current, new
            return self._report(True, "reload", cause, changed=True)

    async def rollback(self) -> Reload:
        """Activate the former artefact; a second rollback activates the newer one again.

        The file is not changed: it is read again when it changes, or on the next reload.
        """
        async with self._changing:
            if self._former is None:
                text = "there is no former policy to return to"
                return self._report(False, "rollback", "admin", changed=False, message=text)
            self._former, self._current = self._current, self._former
            return self._report(True, "rollback", "admin", changed=True)

    def refuse(self, cause: str, message: str) -> Reload:
        """Report a reload that was refused."""
        return self._report(False, "reload", cause, changed=False, message=message)

    @asynccontextmanager
    async def watching(
        self,
        interval: float,
        on_hangup: Callable[[str], Awaitable[object]] | None = None,
    ) -> AsyncIterator[None]:
        """Inside, reload on SIGHUP and when the file changes.

        ``interval`` is in seconds; 0 does not check the file. ``on_hangup`` is called on SIGHUP
        instead of :meth:`reload`.
        """
        loop = asyncio.get_running_loop()
        hangups = asyncio.Event()
        tasks = [loop.create_task(_on_hangups(hangups, on_hangup or self.reload))]
        if interval > 0:
            tasks.append(loop.create_task(self._watch_file(interval)))
        has_handler = _handle_hangup(loop, hangups)
        try:
            yield
        finally:
            if has_handler:
                loop.remove_signal_handler(signal.SIGHUP)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch_file(self, interval: float) -> None:
        """Reload a file that has changed, once two checks in a row agree."""
        before = self._signature
        while True:
            await asyncio.sleep(interval)
            now = await asyncio.to_thread(self._read_signature)
            if now == before and now not in (None, self._signature):
                await self.reload("file")
            before = now

    def _read_signature(self) -> object:
        """Return what distinguishes two states of the file; ``None`` where there is no file."""
        with suppress(OSError, ValueError):
            found = self._path.stat()
            return found.st_mtime_ns, found.st_size, found.st_ino
        return None

    def _load(self, path: Path) -> LoadedArtefact:
        artefact, version = load_artefact(path, self._nodes)
        loaded = LoadedArtefact(artefact, version, str(path), self._build(artefact, version))
        if self._accepted is not None:
            self._accepted.copy(path, version)
        return loaded

    def _report(
        self, ok: bool, action: str, cause: str, *, changed: bool, message: str = ""
    ) -> Reload:
        now = self.current
        text = message or f"serving {now.short_version} from {now.path}"
        result = Reload(ok, action, cause, now.version, changed, text)
        self._notify(result)
        return result


async def _on_hangups(hangups: asyncio.Event, reload: Callable[[str], Awaitable[object]]) -> None:
    while True:
        await hangups.wait()
        hangups.clear()
        await reload("signal")


def _handle_hangup(loop: asyncio.AbstractEventLoop, hangups: asyncio.Event) -> bool:
    """Handle SIGHUP, where there is such a signal and this is the main thread."""
    try:
        loop.add_signal_handler(signal.SIGHUP, hangups.set)
    except (AttributeError, NotImplementedError, RuntimeError, ValueError):
        return False
    if take_hangup():
        hangups.set()
    return True
