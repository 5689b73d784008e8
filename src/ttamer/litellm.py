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
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from ttamer._checks import require
from ttamer.errors import ArgumentError
from ttamer.llm.client import CHAT, NEVER, Body, Deadline, Kind, Response, UpstreamFailed
from ttamer.llm.node import Usage
from ttamer.llm.settings import NodeSettings
from ttamer.runtime.reply import Outcome
from ttamer.serve.requests import Job, Refused, path_of
from ttamer.serve.service import Service
from ttamer.serve.settings import read_settings


class Deployment:
    """The upstream of a node: a model of LiteLLM."""

    def __init__(self, settings: NodeSettings) -> None:
        self.settings = settings

    async def complete(
        self,
        body: Body,
        deadline: Deadline = NEVER,
        *,
        path: str = CHAT,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """Call the model by the proxy's router; outside of a proxy, by LiteLLM itself.

        The cascade is the fallback: another model in a node's place has other confidences. The
        spend is that of the cascade's own request, which is logged; this call's is not.
        """
        del path, headers
        import litellm

        params = self.settings.params
        removed = {name for name, value in params.items() if value is False}
        fields = {name: v for name, v in {**body, **params}.items() if name not in removed}
        options = {
            **fields,
            "model": self.settings.model,
            "num_retries": self.settings.retries,
            "timeout": min(self.settings.timeout, deadline.left),
            "no-log": True,
            "max_retries": 0,
        }
        router = _router()
        try:
            if router is not None and self.settings.model in router.get_model_names():
                answer = await router.acompletion(**options, disable_fallbacks=True)
            else:
                answer = await litellm.acompletion(**options)
        except Exception as error:  # LiteLLM's own classes, and any other
            raise self._failure(error) from None
        return Response(answer.model_dump(), _dollars(answer))

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


class Provider:
    """LiteLLM's provider ``ttamer``; with LiteLLM's class of providers below it."""

    def __init__(self) -> None:
        super().__init__()
        self._services: dict[str, Service] = {}
        self._opening, self._stack = asyncio.Lock(), AsyncExitStack()

    async def acompletion(self, *args: Any, **options: Any) -> Any:
        """Answer a request."""
        from litellm import ModelResponse

        del args
        job, outcome = await self._outcome(**options)
        answer = ModelResponse(**{**outcome.answer.response, "model": outcome.by, "usage": None})
        answer.usage = _usage(job.work.usage)
        answer._hidden_params["response_cost"] = outcome.cost
        path = ",".join(path_of(outcome.asked))
        answer._hidden_params["additional_headers"] = {"x-ttamer-path": path}
        return answer

    async def astreaming(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        """Answer a request in a stream, once the answer is chosen."""
        del args
        job, outcome = await self._outcome(**options)
        choice = outcome.answer.response["choices"][0]
        yield _chunk(outcome.by, {key: value for key, value in choice["message"].items() if value})
        # LiteLLM drops the usage of a chunk that ends the stream.
        usage = _usage(job.work.usage, cost=outcome.cost)
        yield _chunk(outcome.by, {}, usage=usage)
        yield _chunk(outcome.by, {}, choice.get("finish_reason") or "stop")

    async def _outcome(
        self,
        model: str,
        messages: list[Any],
        optional_params: dict[str, Any],
        timeout: Any = None,
        logging_obj: Any = None,
        **_: Any,
    ) -> tuple[Job, Outcome]:
        from litellm.llms.custom_llm import CustomLLMError

        service = await self._service(model.removeprefix("ttamer/"))
        dropped = ("stream", "stream_options", "model", "messages", "extra_body", "max_retries")
        body = {name: value for name, value in optional_params.items() if name not in dropped}
        body |= {**(optional_params.get("extra_body") or {}), "messages": messages}
        seconds = timeout if isinstance(timeout, int | float) else getattr(timeout, "read", None)
        key = str(getattr(logging_obj, "litellm_call_id", "") or time.time_ns())
        try:
            limit = service.settings.serve.timeout
            deadline = Deadline.after(min(seconds or limit, limit))
            job = await service.job(body, key, {}, deadline)
            outcome = await service.outcome(job)
        except Refused as error:
            raise CustomLLMError(error.status, str(error)) from None
        service.audits.consider(job, outcome)
        return job, outcome

    async def _service(self, name: str) -> Service:
        """Return the cascade of a name, opened where it is used first."""
        async with self._opening:
            if name not in self._services:
                try:
                    self._services[name] = await self._opened(name)
                except Exception as error:
                    from litellm.llms.custom_llm import CustomLLMError

                    raise CustomLLMError(500, f"ttamer/{name}: {error}") from None
            return self._services[name]

    async def _opened(self, name: str) -> Service:
        if "/" in name or "\\" in name:  # with a wildcard in the proxy, clients choose it
            raise ArgumentError("the name of a cascade is that of a file, without a folder")
        folder = Path(os.environ.get("TTAMER_CASCADES", "."))
        settings = read_settings(folder / f"{name}.toml")
        policy = "" if settings.serve.mode == "shadow" else str(folder / f"{name}.ttamer")
        service = Service(settings, policy, connect=lambda node, _: Deployment(node))
        # It stays open until the process ends: LiteLLM does not say when that is.
        await self._stack.enter_async_context(service.opened())
        return service


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
