"""A cascade as a model of LiteLLM: ``model: ttamer/NAME``, for its proxy and for its SDK.

::

    litellm_settings:
      custom_provider_map:
        - {provider: ttamer, custom_handler: ttamer.litellm.provider}

``NAME`` stands for ``NAME.toml`` and ``NAME.ttamer`` in the folder of the environment variable
``TTAMER_CASCADES``. The ``model`` of a node is a model of the proxy (or, in the SDK, of LiteLLM):
keys, prices and load balancing stay where they are; its ``upstream`` is not called. What a request
costs is the sum of its calls, in dollars.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ttamer._extras import require
from ttamer.llm.client import CHAT, NEVER, Body, Deadline, Kind, Response, UpstreamFailed
from ttamer.llm.node import Node, Usage, Verification, Work, open_nodes
from ttamer.llm.settings import NodeSettings
from ttamer.runtime.reply import CascadeFailed, NodeCall, Outcome, Reply
from ttamer.serve.answering import path_of, run
from ttamer.serve.policies import PolicyStore
from ttamer.serve.refusals import Refused
from ttamer.serve.settings import read_settings
from ttamer.serve.sinks import DecisionLog

OWN = ("stream", "stream_options", "model", "messages", "extra_body", "max_retries")


class Deployment:
    """The upstream of a node: a model of LiteLLM."""

    def __init__(self, settings: NodeSettings) -> None:
        self.settings = settings

    async def complete(
        self, body: Body, deadline: Deadline = NEVER, *, path: str = CHAT,
        headers: Mapping[str, str] | None = None,
    ) -> Response:  # fmt: skip
        """Call the model by the proxy's router; outside of a proxy, by LiteLLM itself.

        The cascade is the fallback: another model in a node's place has other confidences. The
        spend is that of the cascade's own request, which is logged; this call's is not.
        """
        del path, headers
        import litellm

        start, wanted = time.monotonic(), {**body, **self.settings.params}
        wanted = {key: value for key, value in wanted.items() if value is not False}
        options = {
            **wanted, "model": self.settings.model, "num_retries": self.settings.retries,
            "timeout": min(self.settings.timeout, deadline.left), "no-log": True, "max_retries": 0,
        }  # fmt: skip
        router = _router()
        try:
            if router is not None and self.settings.model in router.get_model_names():
                answer = await router.acompletion(**options, disable_fallbacks=True)
            else:
                answer = await litellm.acompletion(**options)
        except Exception as error:  # LiteLLM's own classes, and any other
            raise self._failure(error) from None
        return Response(answer.model_dump(), _dollars(answer), time.monotonic() - start)

    def _failure(self, error: Exception) -> UpstreamFailed:
        import litellm

        status = getattr(error, "status_code", 0) or 0
        kind: Kind = "refused" if 400 <= status < 500 else "error"
        if isinstance(error, litellm.Timeout | TimeoutError):
            kind = "timeout"
        elif status in (429, 503):
            kind = "busy"
        return UpstreamFailed(self.settings.name, kind, type(error).__name__, status=status)


def _router() -> Any:
    proxy = sys.modules.get("litellm.proxy.proxy_server")
    return getattr(proxy, "llm_router", None)


def _dollars(answer: Any) -> float:
    """Return what LiteLLM books for a call; 0 for a model without prices."""
    import litellm

    cost = (getattr(answer, "_hidden_params", None) or {}).get("response_cost")
    if cost is None:
        try:
            cost = litellm.completion_cost(answer)
        except Exception:  # whatever a model without prices raises
            cost = 0.0
    return float(cost)


class Loaded:
    """One cascade with its nodes and its policy."""

    def __init__(self, name: str) -> None:
        folder = Path(os.environ.get("TTAMER_CASCADES", "."))
        settings = read_settings(folder / f"{name}.toml")
        self.settings = settings
        self.nodes: dict[str, Node | Verification] = open_nodes(
            settings.source, settings.nodes, Deployment, settings.compare
        )
        asks = {node: partial(self._ask, node) for node in self.nodes}
        policy = "" if settings.serve.mode == "shadow" else str(folder / f"{name}.ttamer")
        self.policies = PolicyStore(policy, settings, asks)
        self.log = DecisionLog(settings.serve.log, settings.spec.names)
        self.log.start()
        self.watcher = asyncio.get_running_loop().create_task(self.policies.watch())

    async def _ask(self, name: str, work: Work) -> Reply:
        return await self.nodes[name].ask(work)


class Provider:
    """LiteLLM's provider ``ttamer``; with LiteLLM's class of providers below it."""

    def __init__(self) -> None:
        super().__init__()
        self._loaded: dict[str, Loaded] = {}

    async def acompletion(self, *args: Any, **options: Any) -> Any:
        """Answer a request."""
        from litellm import ModelResponse

        del args
        work, outcome = await self._outcome(**options)
        answer = ModelResponse(**{**outcome.answer.response, "model": outcome.by, "usage": None})
        answer.usage = _usage(work.usage)
        answer._hidden_params["response_cost"] = outcome.cost
        answer._hidden_params["additional_headers"] = {"x-ttamer-path": _path(outcome.asked)}
        return answer

    async def astreaming(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        """Answer a request in a stream, once the answer is chosen."""
        del args
        work, outcome = await self._outcome(**options)
        choice = outcome.answer.response["choices"][0]
        yield _chunk(outcome.by, {key: value for key, value in choice["message"].items() if value})
        # LiteLLM drops the usage of a chunk that ends the stream.
        usage = _usage(work.usage, cost=outcome.cost)
        yield _chunk(outcome.by, {}, usage=usage)
        yield _chunk(outcome.by, {}, choice.get("finish_reason") or "stop")

    async def _outcome(
        self, model: str, messages: list[Any], optional_params: dict[str, Any],
        timeout: Any = None, logging_obj: Any = None, **_: Any,
    ) -> tuple[Work, Outcome]:  # fmt: skip
        from litellm.llms.custom_llm import CustomLLMError

        loaded = self._cascade(model.removeprefix("ttamer/"))
        seconds = timeout if isinstance(timeout, int | float) else getattr(timeout, "read", None)
        limit = loaded.settings.serve.timeout
        body = {key: value for key, value in optional_params.items() if key not in OWN}
        body |= optional_params.get("extra_body") or {}
        work = Work({**body, "messages": messages}, Deadline.after(min(seconds or limit, limit)))
        key = str(getattr(logging_obj, "litellm_call_id", "") or time.time_ns())
        active = loaded.policies.active
        try:
            outcome = await run(active.cascade(), work, key, None)
        except CascadeFailed as error:
            refused = Refused.of(error, work.failures)
            raise CustomLLMError(refused.status, str(refused)) from None
        assert isinstance(outcome, Outcome)  # noqa: S101 - nothing was relayed
        loaded.log.write(
            key, active.version, work.body, outcome.asked, by=outcome.by, cost=outcome.cost,
            asked=outcome.path, classes=active.classes,
        )  # fmt: skip
        return work, outcome

    def _cascade(self, name: str) -> Loaded:
        if name not in self._loaded:
            try:
                self._loaded[name] = Loaded(name)
            except Exception as error:
                from litellm.llms.custom_llm import CustomLLMError

                raise CustomLLMError(500, f"ttamer/{name}: {error}") from None
        return self._loaded[name]


def _path(calls: tuple[NodeCall, ...]) -> str:
    return ",".join(path_of(calls))


def _usage(usage: Usage, **more: float) -> Any:
    import litellm

    total = usage.prompt + usage.completion
    return litellm.Usage(
        prompt_tokens=usage.prompt, completion_tokens=usage.completion, total_tokens=total, **more
    )


def _chunk(model: str, delta: dict[str, Any], finish: str | None = None, **more: Any) -> Any:
    from litellm import ModelResponseStream

    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return ModelResponseStream(model=model, choices=[choice], **more)


def __getattr__(name: str) -> Any:
    """Return ``provider``, which is made when LiteLLM asks for it."""
    if name != "provider":
        raise AttributeError(name)
    base = require("litellm", "litellm").CustomLLM
    instance = globals()["provider"] = type("Provider", (Provider, base), {})()
    return instance
