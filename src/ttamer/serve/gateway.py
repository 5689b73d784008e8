"""The gateway: the active policy, the nodes, and the sinks of request records."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import secrets
import time
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Self, TypedDict

from ttamer.errors import CascadeError, TTamerError
from ttamer.fitted.mixture import Mixture
from ttamer.llm.confidence import question_text
from ttamer.llm.prompts import embedding_signals, prompt_signals
from ttamer.runtime.calling import Call, CallResult, call_async
from ttamer.runtime.reply import CascadeFailed, NodeCall, error_text
from ttamer.serve.accounts import KeyRefused, Ledger, change_accounts
from ttamer.serve.admission import ADMIN, Client, ConcurrencyLimit, Keys, Watchdog, check_key
from ttamer.serve.bill import Bill
from ttamer.serve.config import EMBEDDINGS_NODE
from ttamer.serve.drift import (
    Audits,
    DriftControl,
    audit_from,
    concealer,
    open_audits,
    starting_policy,
)
from ttamer.serve.formats.openai import CASCADE, CLASSIFICATIONS
from ttamer.serve.http import HttpError, TooManyRequests
from ttamer.serve.observability.logging import JsonLog
from ttamer.serve.observability.metrics import Metrics
from ttamer.serve.observability.otel import NO_NODE, NO_SPAN, NO_TRACING, Tracing
from ttamer.serve.observability.status import Status, summed
from ttamer.serve.observability.trace_log import TraceLog
from ttamer.serve.policies import (
    SHORT_VERSION,
    ChoiceNotAllowed,
    Policies,
    PolicyStore,
    check_fitted_for,
    unfilled_columns,
)
from ttamer.serve.processes.owner import AuditCalls, PolicyBoard, RemoteAudits
from ttamer.serve.processes.workers import added_up
from ttamer.serve.reloading import changes
from ttamer.serve.routes import ASKING, POLLED, ROUTES
from ttamer.serve.streaming import SpeculationBudget
from ttamer.serve.upstreams.client import HttpClient
from ttamer.serve.upstreams.embedding import Embedder, LocalEmbedder, comparer_of
from ttamer.serve.upstreams.node import open_nodes
from ttamer.serve.upstreams.upstream import UpstreamFailed

if TYPE_CHECKING:
    import os
    from collections.abc import (
        AsyncIterator,
        Awaitable,
        Callable,
        Coroutine,
        Generator,
        Mapping,
        Sequence,
    )

    from ttamer.runtime.reply import Outcome, Reply
    from ttamer.serve.accounts import Account
    from ttamer.serve.config import ServeSettings, Settings
    from ttamer.serve.http import HttpExchange
    from ttamer.serve.observability.record import Refusal, RequestRecord
    from ttamer.serve.policies import ActivePolicy, Artefact, Reload
    from ttamer.serve.processes.accepted import AcceptedFiles
    from ttamer.serve.processes.workers import WorkerPlace
    from ttamer.serve.request import RequestContext
    from ttamer.serve.upstreams.embedding import TextVectors
    from ttamer.serve.upstreams.node import Node, NodeAnswer
    from ttamer.trace.spec import CascadeSpec

__all__ = ["Gateway", "UnknownModel"]

FLUSH_DELAY = 0.02
"""The seconds after which the records of finished requests go to the sinks."""
REFRESH_SECONDS = 30.0
"""The most seconds that a worker has to load a policy of the drift loop."""
REFRESH_PAUSE = 0.5
"""The seconds before workers that do not serve it are called again."""
REFUSAL_LOG_INTERVAL = 10.0
"""The seconds between two log lines about connections refused for the same reason."""


class _Concurrency(TypedDict):
    """The settings of a :class:`~ttamer.serve.admission.ConcurrencyLimit`."""

    limit: int
    queue: int
    wait: float
    retry_after: float


class UnknownModel(HttpError):
    """There is no model of that name."""

    status = 404
    code = "model_not_found"
    param = "model"


class Gateway:
    """The state of one server, open inside ``async with``.

    Args:
        settings: The cascade and its settings.
        artefact: The file that ``ttamer fit`` wrote.
        log: Where log lines go; standard error by default.
        force: Serve an artefact that was fitted for other costs, another target, comparison of
            answers or source of confidences.
        reread: Returns the settings as their file states them now, for :meth:`reload`; without it
            only the policy is reloaded.
        place: Which of several workers this is.
        embed: From a list of texts to a vector for each, plain or async: a local model in place of
            ``[serve.embeddings]``, for ``compare = "embedding"``.

    Raises:
        CascadeError: If the settings cannot be served.

    ::

        gateway = Gateway(read_settings("cascade.toml"), "policy.ttamer")
        app = make_app(gateway)  # an ASGI application
    """

    def __init__(
        self,
        settings: Settings,
        artefact: str | os.PathLike[str],
        *,
        log: JsonLog | None = None,
        force: bool = False,
        reread: Callable[[], Settings] | None = None,
        place: WorkerPlace | None = None,
        embed: Callable[[list[str]], Any] | None = None,
    ) -> None:
        serve, self._splits = settings.serve, settings.spec.has_verify_costs
        self._spec = settings.spec
        """The cascade as its file states it."""
        settings = settings.split_verified()
        if serve.compare.kind == "embedding":
            _check_embedding(serve, has_function=embed is not None)
        self.place = place
        """Which of several workers this is; ``None`` for the only one."""
        self._reread = reread
        self._reloading = asyncio.Lock()
        self.on_reload: list[Callable[[], Callable[[], None]]] = []
        """Called on every reload: each checks something, and returns what changes it. An error of
        the check refuses the reload; the change itself does not fail."""
        self.settings = settings
        self.log = JsonLog() if log is None else log
        self._force = force
        self.keys = Keys.of(serve)
        admin = Client(ADMIN, (ADMIN,))
        self.admin_keys = (
            None
            if serve.admin_keys_env is None
            else Keys.from_env(serve.admin_keys_env, client=admin)
        )
        self._ledger = None if place is None else Ledger(place.folder / "accounts")
        self.accounts: dict[str, Account] = {}
        """The spending of each client that has a key, by name."""
        change_accounts(self.accounts, serve.key, _names(self.keys), self._ledger)
        self.hosts = serve.hosts
        """The host names that are served; ``None`` for every name."""
        self.limit = ConcurrencyLimit(**_concurrency(serve))
        billed = () if serve.embeddings is None else (EMBEDDINGS_NODE,)
        self.metrics = Metrics(settings.spec.names, ROUTES, self.accounts, billed)
        self.log.on_lost = self.metrics.log_lines_lost
        self.metrics.watch_queue(lambda: self.limit.waiting)
        self.tracing = NO_TRACING if serve.otel is None else Tracing.to(serve.otel)
        self.trace_log: TraceLog | None = None
        costs = {node.name: node.cost for node in settings.spec.nodes}
        by_token = [n for n, node in settings.nodes.items() if node.cost_per_token is not None]
        self.status = Status(costs, settings.spec.name or CASCADE, priced_by_token=by_token)
        self.names = tuple(dict.fromkeys([settings.spec.name or CASCADE, CASCADE]))
        """The model names of the cascade."""
        if taken := set(self.names) & set(settings.spec.names):
            raise CascadeError(
                f"a node is called {taken.pop()!r}, the name of the whole cascade; rename it"
            )
        self._accepted = None if place is None else place.accepted
        self.policies = PolicyStore(
            artefact, settings.spec.names, self._policies, self._reloaded, self._accepted
        )
        self.ready = False
        self.watchdog = Watchdog()
        self.audits: Audits | RemoteAudits | None = None
        self.embedder: Embedder | None = None
        self.texts: TextVectors | None = None if embed is None else LocalEmbedder(embed)
        """What embeds answers, where they are compared so."""
        self.speculation = SpeculationBudget(serve.speculate_budget)
        self.drift: DriftControl | None = None
        self._unflushed: list[RequestRecord] = []
        self._logged: dict[tuple[str, ...], float] = {}
        self._secret = secrets.token_bytes(32) if place is None else place.secret
        self._board: PolicyBoard | None = None
        """The policy that the drift loop has activated in another process."""
        self._refreshing = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.nodes: dict[str, Node] = {}
        """The open nodes, by name."""
        self._stack = AsyncExitStack()

    def load(self) -> None:
        """Load the artefact and refuse one that cannot be served, before the gateway opens.

        Raises:
            ArtefactError: If the artefact cannot be loaded, or is for other nodes.
            CascadeError: If ``[serve.audit]`` is not valid.
        """
        if self.settings.serve.audit is not None:
            audit_from(self.settings)
        self.policies.read()

    async def __aenter__(self) -> Self:
        serve = self.settings.serve
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(HttpClient(_connections(serve)))
            self._client = client
            if serve.embeddings is not None:
                self.embedder = Embedder(serve.embeddings, client)
                self.texts = self.texts or self.embedder
            self.nodes = dict(self._open_nodes(client))
            self.policies.load()
            is_worker = self.place is not None and not self.place.is_owner
            if serve.trace_log is not None and (self.place is None or is_worker):
                self.trace_log = TraceLog(
                    serve.trace_log if self.place is None else self.place.own(serve.trace_log),
                    max_bytes=serve.trace_log_bytes,
                    keep=serve.trace_log_files,
                    predictions=serve.log_predictions,
                    on_lost=self.metrics.row_lost,
                )
                stack.push_async_callback(asyncio.to_thread, self.trace_log.close)
            stack.push_async_callback(asyncio.to_thread, self.tracing.close)
            answers: dict[str, Callable[..., Any]] = {
                "metrics": self.own_metrics,
                "status": self.status_now,
            }
            if serve.audit is not None and self.place is not None and is_worker:
                self.audits = RemoteAudits(self.settings, self.place, self.metrics)
                await stack.enter_async_context(self.audits.opened())
                if serve.audit.reference is not None:
                    self._board = PolicyBoard(self.place.folder, serve.audit.loop.seed)
                    answers["refresh"] = self.refresh
            elif serve.audit is not None:
                audits = self.audits = await stack.enter_async_context(self._open_audits())
                answers |= AuditCalls(audits, self.drift).answers()
            if self.place is not None:
                failed = partial(self.log.failure, "")
                await stack.enter_async_context(self.place.answering(answers, failed))
            await self.refresh()
            await stack.enter_async_context(self.policies.watching(serve.watch, self.reload))
            self._stack = stack.pop_all()
        self.ready = True
        version = self.policies.current.short_version
        self.log.event("start", nodes=len(self.nodes), policy=version)
        policies = self.policies.current.policies
        self.log.event("operating point", message=policies.described)
        self._log_warnings()
        return self

    async def reload(self, cause: str = "admin") -> Reload:
        """Read the settings and the policy again; where one cannot be served, nothing changes.

        Nodes' servers, limits and API keys change at once, for requests that begin from now on.

        Args:
            cause: What asked for it, for the log.

        Returns:
            Whether it succeeded, and which policy is active.
        """
        async with self._reloading:
            try:
                steps = [each() for each in self.on_reload]
                if self._reread is not None:
                    new = await asyncio.to_thread(self._reread)
                    steps = [*self._changing_to(new, cause), *steps]
            except (TTamerError, OSError) as error:
                return self.policies.refuse(cause, str(error))
            return await self.policies.reload(cause, steps)

    def _changing_to(self, new: Settings, cause: str) -> list[Callable[[], None]]:
        """Return what changes the settings to these; raise where they cannot be served."""
        spec, new = new.spec, new.split_verified()
        changed, keys = changes(self.settings, new), Keys.of(new.serve)
        if (keys is None) != (self.keys is None):
            raise CascadeError("[serve]: API keys cannot be added or removed without a restart")
        if keys is not None and not keys.equals(self.keys):
            changed.append("API keys")
        if not changed:
            return []
        old = self.settings.nodes
        kept = {n: self.nodes[n].upstream for n, node in new.nodes.items() if node == old[n]}
        nodes = open_nodes(new, self._client, texts=self.texts, kept=kept)
        moved = {
            name: nodes[name]
            for name, node in new.nodes.items()
            if not {name, node.verifier or name} <= kept.keys()
        }
        return [partial(self._change, spec, new, keys, moved, changed, cause)]

    def _change(
        self,
        spec: CascadeSpec,
        new: Settings,
        keys: Keys | None,
        nodes: Mapping[str, Node],
        changed: Sequence[str],
        cause: str,
    ) -> None:
        """Serve with settings that were checked, from now on."""
        serve = new.serve
        change_accounts(self.accounts, serve.key, _names(keys), self._ledger)  # may still refuse
        self.nodes.update(nodes)  # in place: audits use them too
        self._spec, self.settings, self.keys = spec, new, keys
        self.metrics.add_keys(self.accounts)
        self.limit.change(**_concurrency(serve))
        self._client.change(_connections(serve))
        if isinstance(self.audits, Audits):
            self.audits.change(new)
        self.log.event("settings", cause=cause, changed=changed)
        self.status.event("settings", f"changed: {', '.join(changed)}", ok=True)

    def _open_nodes(self, client: HttpClient) -> Mapping[str, Node]:
        """Return the nodes by name; :mod:`ttamer.ray` has others."""
        return open_nodes(self.settings, client, texts=self.texts)

    @asynccontextmanager
    async def _open_audits(self) -> AsyncIterator[Audits]:
        loop = None
        audit = self.settings.serve.audit
        conceal = None if audit is None or audit.log_answers else concealer(self._secret)
        if audit is not None and self.policies.current.policies.serving is not None:
            board = None
            if self.place is not None:
                published = partial(self._published, asyncio.get_running_loop())
                board = PolicyBoard(self.place.folder, audit.loop.seed, conceal, published)
            self.drift = DriftControl(
                self.settings, self.policies, self.metrics, self.log, conceal, board
            )
            loop = self.drift.loop

        def concealed(text: str) -> str:
            return text if conceal is None else conceal(text, self.policies.current.artefact)

        async with open_audits(
            self.settings,
            self.nodes,
            self.metrics,
            loop=loop,
            conceal=concealed,
            lost=lambda reason: self.log.event("audit", message=reason),
            texts=self.texts,
        ) as audits:
            try:
                yield audits
            finally:
                if self.drift is not None:
                    self.drift.stop()

    def _published(self, event_loop: asyncio.AbstractEventLoop, version: str) -> None:
        """Let workers read the policy that the drift loop has activated; called in any thread."""

        def begin() -> None:
            self._in_background(self._refresh_workers(version))

        if not event_loop.is_closed():
            event_loop.call_soon_threadsafe(begin)

    async def _refresh_workers(self, version: str) -> None:
        """Call workers until each of them serves a policy, or another one is active."""
        assert self.place is not None  # noqa: S101 - the owner has a place
        while self.policies.current.policies.standard.version == version:
            found = await self.place.others("refresh", seconds=REFRESH_SECONDS)
            if found.count(version) == self.place.count:
                self.log.event("activated", policy=version, workers=len(found))
                return
            await asyncio.sleep(REFRESH_PAUSE)

    async def refresh(self) -> str:
        """Serve the policy that the drift loop has activated in its process.

        Returns:
            The version of the policy that serves.
        """
        async with self._refreshing:
            current = self.policies.current
            policies, board = current.policies, self._board
            notice = None if board is None else board.read(current.version)
            if (
                board is not None
                and notice is not None
                and policies.serving is not None
                and notice.version != policies.standard.version
            ):
                serving = await asyncio.to_thread(board.serving, notice, policies.serving)
                if serving is not None:
                    policies.activate(serving, notice.version)
                    self.metrics.policy(notice.version, "drift")
                    self.log.event("activated", policy=notice.version)
            return policies.standard.version

    async def act(self, action: str) -> dict[str, Any]:
        """Do something that an operator may do to the drift loop.

        Args:
            action: One of :data:`ttamer.serve.drift.ACTIONS`.

        Returns:
            The state of the loop after it.

        Raises:
            ArgumentError: If it cannot be done now.
        """
        if isinstance(self.audits, RemoteAudits):
            return await self.audits.act(action)
        assert self.drift is not None  # noqa: S101 - only then is there a route for it
        return await self.drift.act(action)

    def _in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        """Work on something until it ends, or the gateway closes."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def __aexit__(self, *_: object) -> None:
        self.ready = False
        for task in self._tasks:
            task.cancel()
        self.flush()
        self.log.event("stop", running=self.limit.running)
        await self._stack.aclose()

    def admit(self, exchange: HttpExchange) -> None:
        """Check the key of a request that may cost something, and open its bill.

        Args:
            exchange: The request, whose client and bill are set.

        Raises:
            HttpError: If the key is missing or not known, or the key's limits are reached.
        """
        exchange.client = check_key(self.keys, exchange, "ask")
        account = self.accounts.get(exchange.client)
        if account is not None:
            account.admit()
        exchange.bill = Bill(self.settings.serve.max_cost, account)

    def refused(self, error: HttpError, client: str) -> None:
        """Count a request that is refused by a limit.

        Args:
            error: The refusal; others are not counted.
            client: The name of the client.
        """
        if isinstance(error, TooManyRequests):
            self.metrics.refused()
        elif isinstance(error, KeyRefused):
            self.metrics.key_refused(client, error.reason)

    def finished(self, record: RequestRecord) -> None:
        """Take the record of one request; the sinks receive it a moment later, with others.

        Writing each record at once delayed the next request.

        Args:
            record: The record of the request.
        """
        self._unflushed.append(record)
        self.speculation.spent += record.cost
        if len(self._unflushed) == 1:
            asyncio.get_running_loop().call_later(FLUSH_DELAY, self.flush)

    def flush(self) -> None:
        """Hand the records of finished requests to the sinks."""
        records, self._unflushed = self._unflushed, []
        for record in records:
            self.metrics.finished(record)
            if record.endpoint in ASKING:
                self.status.finished(record)
                if self.trace_log is not None:
                    self.trace_log.finished(record)
            elif record.cost:
                self.status.paid(record)
        self.log.finished(
            [each for each in records if each.status >= 400 or each.endpoint not in POLLED]
        )

    def own_metrics(self) -> str:
        """Return the metrics of this process.

        Returns:
            Prometheus's text format.
        """
        self.flush()
        return self.metrics.text().decode()

    async def all_metrics(self) -> bytes:
        """Return the metrics of all workers, added up.

        Returns:
            Prometheus's text format.
        """
        if self.place is None:
            return self.own_metrics().encode()
        return added_up([self.own_metrics(), *await self.place.others("metrics")]).encode()

    def connection_refused(self, reason: Refusal) -> None:
        """Count a refused connection; log each reason at most once in 10 seconds.

        Args:
            reason: Why the connection was refused.
        """
        self.metrics.connection_refused(reason)
        self._log_rarely("connection", refused=reason)

    def _log_rarely(self, name: str, **facts: str) -> None:
        """Log an event, at most once in 10 seconds for the same facts."""
        now, key = time.monotonic(), (name, *facts.values())
        if now - self._logged.get(key, -math.inf) >= REFUSAL_LOG_INTERVAL:
            self._logged[key] = now
            self.log.event(name, **facts)

    def single_node(self, model: str) -> str | None:
        """Return the node that a model name stands for.

        Args:
            model: The model name of a request.

        Returns:
            The name of the node; ``None`` for the cascade.

        Raises:
            UnknownModel: If there is no model of that name.
            ChoiceNotAllowed: If a call of the node costs more than ``max_cost``.
        """
        names = self.settings.models
        if model in self.names:
            return names[0] if len(names) == 1 else None
        if self.settings.serve.direct and model in names:
            cost, limit = self.settings.nodes[model].cost, self.settings.serve.max_cost
            if limit is not None and cost > limit:
                raise ChoiceNotAllowed(
                    f"a call of {model!r} costs {cost:g}, and max_cost is {limit:g} here"
                )
            return model
        raise UnknownModel(f"there is no model {model[:64]!r}; use {self.names[0]!r}")

    async def all_status(self) -> dict[str, Any]:
        """Return the data of the status page, of all workers together.

        Returns:
            Plain values, for JSON.
        """
        if self.place is None:
            return self.status_now()
        return summed([self.status_now(), *await self.place.others("status")])

    def status_now(self) -> dict[str, Any]:
        """Return the data of the status page, of this process.

        Returns:
            Plain values, for JSON.
        """
        self.flush()
        current = self.policies.current
        active = current.policies.standard.version
        worker = {} if self.place is None else {"worker": self.place.name}
        return worker | self.status.to_dict(
            current.policies.frontier,
            version=current.version if active == current.short_version else active,
            running=self.limit.running,
            waiting=self.limit.waiting,
            rows_lost=0 if self.trace_log is None else self.trace_log.lost,
            drift=None if self.audits is None else self.audits.status(),
            admin=self.admin_keys is not None,
            accounts=self.accounts,
        )

    def models(self) -> list[str]:
        """Return the model names that a request may use.

        Returns:
            The names of the cascade; with ``direct``, those of the nodes too.
        """
        return [*self.names, *(self.settings.models if self.settings.serve.direct else ())]

    async def answer(self, request: RequestContext, policy: ActivePolicy) -> Outcome:
        """Answer one request by the cascade.

        Args:
            request: The request.
            policy: The policy that decides.

        Returns:
            The answer, the calls made and their cost.

        Raises:
            CascadeFailed: If no node returned an answer.
        """
        steps = await self.steps(request, policy)
        try:
            question = next(steps)
            while True:
                if question.hedge is not None:
                    question = steps.send(await call_async(question))
                    continue
                # A node of the gateway keeps to its time: that needs no task of its own.
                start, returned, error, paid = time.monotonic(), None, None, 1
                try:
                    returned = await question.function(request)
                except Exception as raised:  # the policy goes on without the node
                    error, paid = raised, int(getattr(raised, "paid", True))
                seconds = time.monotonic() - start
                question = steps.send(CallResult(returned, error, 1, paid, seconds))
        except StopIteration as done:
            outcome: Outcome = done.value
            cost = request.bill.cost
            return outcome if outcome.cost == cost else dataclasses.replace(outcome, cost=cost)

    async def steps(
        self, request: RequestContext, policy: ActivePolicy
    ) -> Generator[Call, CallResult, Outcome]:
        """Return the calls that a policy makes for a request; see ``Cascade.steps``.

        Args:
            request: The request.
            policy: The policy that decides.

        Returns:
            A generator of calls: send the result of each; its return value is the outcome.
        """
        request.signals = await self._signals(request) if self.settings.serve.signals else None
        # Only draws need the key: of a mixture, and of the requests to audit.
        if self.audits is not None or isinstance(policy.cascade.policy, Mixture):
            request.key = self.request_key(request.client, request.request_id)
        deadline = max(request.seconds_left, 1e-3)
        return policy.cascade.steps(request, request.key, deadline, request.signals)

    async def _signals(self, request: RequestContext) -> dict[str, float]:
        """Return the signals of a prompt; without its embedding where the upstream fails."""
        signals = prompt_signals(request.body)
        embeddings = self.settings.serve.embeddings
        if self.embedder is not None and embeddings is not None and embeddings.signals:
            context = request.calls()
            try:
                (vector,) = await self.embedder.vectors([question_text(request.body)], context)
            except UpstreamFailed as error:
                self._log_rarely("embedding", error=str(error))
            else:
                signals |= embedding_signals(vector, embeddings.signals)
        return signals

    def request_key(self, client: str, request_id: str) -> str:
        """Return the key by which a request draws the side of a mixture and receives its label.

        A client may choose the id, so the key depends on the client and on a secret of the process.

        Args:
            client: The name of the client.
            request_id: The id of the request.

        Returns:
            32 hexadecimal digits.
        """
        text = f"{client}\0{request_id}".encode()
        return blake2b(text, key=self._secret, digest_size=16).hexdigest()

    async def answer_alone(self, request: RequestContext, name: str) -> tuple[NodeAnswer, NodeCall]:
        """Answer one request by one node; nothing is compared.

        The upstream's own response is relayed, except for a classifier's.

        Args:
            request: The request.
            name: The name of the node.

        Returns:
            The answer, and the call with its cost and time.

        Raises:
            CascadeFailed: If the node returned no answer.
        """
        is_alone = request.endpoint is not CLASSIFICATIONS
        ask = partial(self._ask, name, alone=is_alone)
        start, hedge, calls = time.monotonic(), self.settings.serve.hedge, 1
        error: Exception | None = None
        if hedge is None:
            try:
                answer = await ask(request)
            except UpstreamFailed as failed:
                error = failed
        else:
            result = await call_async(Call(ask, request, hedge=hedge))
            answer, error, calls = result.returned, result.error, result.calls
        seconds, cost = time.monotonic() - start, request.bill.cost
        if error is not None:
            asked = NodeCall(name, None, None, cost, seconds, error_text(error), calls)
            raise CascadeFailed("no node returned an answer", (asked,)) from None
        prediction, confidence = answer.prediction, answer.confidence
        return answer, NodeCall(name, prediction, confidence, cost, seconds, None, calls)

    async def _ask(self, name: str, request: RequestContext, *, alone: bool = False) -> NodeAnswer:
        """Ask one node for an answer and, unless it answers alone, its confidence."""
        span = NO_NODE if request.span is NO_SPAN else request.span.node(name)
        node, context = self.nodes[name], request.calls(span)
        path, verified = request.endpoint.upstream_path, node.settings.verifies
        try:
            if verified is not None:
                answer = await node.verify(request.answers[verified], request.body, context)
            elif alone:
                answer = await node.ask_alone(path, request.body, context)
            else:
                answer = await node.ask(path, request.body, context)
        except UpstreamFailed as error:
            request.failures[name] = error.facts
            span.finish(cost=request.bill.cost_of(name), error=error)
            raise
        if span is not NO_NODE:
            span.finish(cost=request.bill.cost_of(name), confidence=answer.confidence)
        return answer if alone else await self.taken(request, name, answer)

    async def taken(self, request: RequestContext, name: str, answer: NodeAnswer) -> NodeAnswer:
        """Return an answer as the policy takes it, and keep it where it may be verified.

        Args:
            request: The request.
            name: The name of the node.
            answer: The node's answer.

        Returns:
            The answer; where the comparison is not transitive, with the first earlier prediction
            of the request that it equals.
        """
        compare = self.settings.serve.compare
        if not compare.is_transitive:
            context = request.calls()
            matched = answer.prediction
            try:
                comparer = comparer_of(compare, self.texts, context)
                matched = await comparer.matched(matched, request.predictions)
            except UpstreamFailed as error:  # it stays an answer of its own
                self._log_rarely("embedding", error=str(error))
            request.predictions.append(matched)
            answer = dataclasses.replace(answer, prediction=matched)
        if self._splits:
            request.answers[name] = answer
        return answer

    def _policies(self, artefact: Artefact, version: str) -> Policies:
        """Build the policies of an artefact, over the nodes of this gateway."""

        def asker(name: str) -> Callable[[RequestContext], Awaitable[Reply]]:
            async def ask(request: RequestContext) -> Reply:
                try:
                    return (await self._ask(name, request)).reply
                except UpstreamFailed:
                    raise
                except Exception as error:  # the policy goes on without the node
                    self.log.failure(request.request_id, error)
                    raise

            return ask

        settings = self.settings
        if not self._force:
            check_fitted_for(artefact, settings.spec, settings.serve.signal_names)
        policies = Policies(
            artefact,
            version[:SHORT_VERSION],
            settings.serve,
            {name: asker(name) for name in settings.spec.names},
            starting_policy(artefact, settings),
            has_token_prices=any(n.cost_per_token is not None for n in settings.nodes.values()),
        )
        policies.warnings += unfilled_columns(artefact, settings.nodes)
        return policies

    def _log_warnings(self) -> None:
        """Log what the active policy warns of."""
        for warning in self.policies.current.policies.warnings:
            self.log.event("warning", message=warning)

    def _accept(self, accepted: AcceptedFiles, reload: Reload) -> None:
        """Let processes that start later serve what this one serves."""
        if not reload.ok or (reload.action == "load" and not accepted.is_empty):
            return
        try:
            accepted.accept(self._spec, reload.version)
        except (OSError, CascadeError) as error:
            self.log.event("warning", message=f"not kept for workers that start later: {error}")

    def _reloaded(self, reload: Reload) -> None:
        if self._accepted is not None:
            self._accept(self._accepted, reload)
        if reload.changed:
            self.metrics.policy(reload.version[:SHORT_VERSION], reload.cause)
        if reload.action != "load":
            self.metrics.reloaded(reload.ok)
            if reload.changed and self.drift is not None:
                self.drift.reloaded(reload.cause)
            if reload.changed and self._board is not None:
                self._in_background(self.refresh())
        self.log.event("policy", **reload.to_dict())
        if reload.changed and reload.action != "load":
            self._log_warnings()
        self.status.event(reload.action, reload.message, ok=reload.ok)


def _check_embedding(serve: ServeSettings, *, has_function: bool) -> None:
    """Refuse a comparison by embeddings that lacks its threshold or its embeddings."""
    if serve.compare.threshold is None:
        raise CascadeError(
            '[serve]: compare = "embedding" has no threshold; ttamer collect fits one and prints '
            'it: write compare = {kind = "embedding", threshold = ...}'
        )
    if serve.embeddings is None and not has_function:
        raise CascadeError(
            '[serve]: compare = "embedding" needs the table [serve.embeddings], with upstream'
        )


def _names(keys: Keys | None) -> tuple[str, ...]:
    """Return the names of all clients that have a key."""
    return () if keys is None else keys.names


def _connections(serve: ServeSettings) -> int:
    """Return the most connections to upstreams: two for each request, as with hedges."""
    return 2 * serve.max_concurrent


def _concurrency(serve: ServeSettings) -> _Concurrency:
    """Return the settings of the limit of concurrent requests."""
    return {
        "limit": serve.max_concurrent,
        "queue": serve.queue,
        "wait": serve.timeout,
        "retry_after": serve.retry_after,
    }
