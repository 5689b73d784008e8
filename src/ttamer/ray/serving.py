"""A Ray Serve application from ``cascade.toml`` and a policy: one deployment for each node.

::

    serve run ttamer.ray:build cascade=cascade.toml policy=policy.ttamer

The deployment of each node scales by itself. The ingress is the gateway (``ttamer serve``) with all
its endpoints, keys, limits and metrics; instead of upstreams it calls deployments. A request whose
replica dies is sent to another replica.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray import serve
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException

from ttamer.errors import ArgumentError, CascadeError
from ttamer.ray.replicas import Failed, Placement, Replica, read_placements
from ttamer.serve.app import App, make_app
from ttamer.serve.bill import Bill, Usage
from ttamer.serve.config import NodeSettings, Settings
from ttamer.serve.gateway import Gateway
from ttamer.serve.policies import load_artefact
from ttamer.serve.upstreams.client import HttpClient
from ttamer.serve.upstreams.node import Node, NodeAnswer
from ttamer.serve.upstreams.upstream import NO_REQUEST, CallContext, UpstreamFailed
from ttamer.trace.spec import CascadeSpec

if TYPE_CHECKING:
    from ray.serve import Application
    from ray.serve.handle import DeploymentHandle


# The number of times a request is sent to another replica after its replica died.
RETRIES = 5
# The seconds before the first retry; the k-th waits k times as long.
PAUSE = 0.05
# The seconds between health checks of a replica.
HEALTH_CHECK_PERIOD = 2.0


def application(
    cascade: CascadeSpec | str | os.PathLike[str], policy: str | os.PathLike[str]
) -> Application:
    """Return a Ray Serve application with one deployment for each node.

    ::

        ray.serve.run(application("cascade.toml", "policy.ttamer"))

    Args:
        cascade: The cascade; the machines of the replicas must be able to import its models.
        policy: The policy file; the machine of the ingress must see it under the same name.

    Returns:
        The application.

    Raises:
        CascadeError: Where the cascade cannot be served on a cluster.
        ArtefactError: Where the policy cannot be loaded, or is for other nodes.
    """
    spec = cascade if isinstance(cascade, CascadeSpec) else CascadeSpec.from_file(cascade)
    settings, placements = read_placements(spec)
    if settings.serve.direct:
        raise CascadeError(
            "[serve]: direct = true relays the responses of upstreams, and a cluster has "
            "deployments instead; remove it, or use ttamer serve"
        )
    if spec.has_verify_costs:
        raise CascadeError(
            "[[node]]: verify_cost needs a verification by itself, and a cluster has one "
            "deployment for each node; remove it, or use ttamer serve"
        )
    path = Path(policy).absolute()
    load_artefact(path, spec.names)
    text = spec.to_toml()
    handles = {
        name: _deployment(number, settings.nodes[name], placements[name]).bind(text, name)
        for number, name in enumerate(spec.names, start=1)
    }
    ingress: Any = serve.deployment(
        _Ingress,
        name="ingress",
        max_ongoing_requests=settings.serve.max_concurrent + settings.serve.queue,
        health_check_period_s=HEALTH_CHECK_PERIOD,
        ray_actor_options={"num_cpus": 0},
    )
    served: Application = ingress.bind(text, str(path), handles)
    return served


def build(args: dict[str, str]) -> Application:
    """Return the application for ``serve run ttamer.ray:build``.

    ::

        build({"cascade": "cascade.toml", "policy": "policy.ttamer"})

    Args:
        args: The arguments of the command: ``cascade=FILE policy=FILE``.

    Returns:
        The application.

    Raises:
        ArgumentError: Where an argument is missing or unknown.
        CascadeError: Where the cascade cannot be served on a cluster.
        ArtefactError: Where the policy cannot be loaded, or is for other nodes.
    """
    if args.keys() != {"cascade", "policy"}:
        raise ArgumentError(
            "the arguments are cascade=cascade.toml and policy=policy.ttamer; received "
            + (", ".join(args) or "none")
        )
    return application(args["cascade"], args["policy"])


def _deployment(number: int, node: NodeSettings, placement: Placement) -> Any:
    """Return the deployment of a node."""
    low, high = placement.replicas
    options: dict[str, Any] = {"num_replicas": low}
    if low < high:
        aim = max(1, node.concurrency // 2)
        scaling = {"min_replicas": low, "max_replicas": high, "target_ongoing_requests": aim}
        options = {"autoscaling_config": scaling}
    return serve.deployment(
        Replica,
        name=f"node-{number}-" + re.sub(r"[^A-Za-z0-9_-]", "-", node.name),
        max_ongoing_requests=node.concurrency,
        health_check_period_s=HEALTH_CHECK_PERIOD,
        ray_actor_options={"num_cpus": placement.cpus, "num_gpus": placement.gpus},
        **options,
    )


class _Remote(Node):
    """A node that is called through the handle of its deployment."""

    def __init__(self, settings: NodeSettings, handle: DeploymentHandle[Any]) -> None:
        self.settings = settings
        self._handle = handle

    @property
    def can_stream(self) -> bool:
        """No: a deployment returns whole answers."""
        return False

    async def ask(
        self,
        path: str,
        body: Mapping[str, Any],
        context: CallContext = NO_REQUEST,
    ) -> NodeAnswer:
        """Call a replica, and book its answer; a failure that is paid is an estimate."""
        node, bill = self.settings, context.bill or Bill()
        try:
            answer = await self._ask(path, body, context)
        except BaseException as error:
            if getattr(error, "paid", True):
                is_estimate = node.cost_per_token is not None
                bill.book(node.name, node.cost, None, is_estimate=is_estimate)
            raise
        bill.book(node.name, answer.cost, Usage.of(answer.response), is_estimate=False)
        return answer

    async def _ask(
        self,
        path: str,
        body: Mapping[str, Any],
        context: CallContext,
    ) -> NodeAnswer:
        """Call a replica; if it dies, call another one."""
        node = self.settings
        limit = min(node.timeout, context.seconds_left)
        end = time.monotonic() + limit
        try:
            async with asyncio.timeout(limit):
                for attempt in range(RETRIES + 1):
                    left = end - time.monotonic()
                    try:
                        found = await self._handle.ask.remote(
                            path, dict(body), left, dict(context.headers)
                        )
                    except RayTaskError as error:
                        raise UpstreamFailed(node.name, "error", _line(error.cause)) from None
                    except RayServeException as error:
                        raise UpstreamFailed(node.name, "busy", _line(error)) from None
                    except RayError as error:  # the replica died, or cannot be reached
                        if attempt == RETRIES:
                            raise UpstreamFailed(node.name, "connect", _line(error)) from None
                        await asyncio.sleep(PAUSE * (attempt + 1))
                    else:
                        break
        except TimeoutError:
            raise UpstreamFailed(node.name, "timeout", f"no answer in {limit:.4g} s") from None
        if isinstance(found, Failed):
            raise UpstreamFailed(
                node.name, found.kind, found.text, status=found.status, code=found.code
            )
        answer: NodeAnswer = found
        return answer


class _Gateway(Gateway):
    """The gateway, with deployments instead of upstreams."""

    def __init__(
        self, settings: Settings, policy: str, handles: Mapping[str, DeploymentHandle[Any]]
    ) -> None:
        super().__init__(settings, policy)
        self._handles = handles

    def _open_nodes(self, client: HttpClient) -> Mapping[str, Node]:
        """Return the deployments; their replicas call the upstreams."""
        del client
        nodes = self.settings.nodes
        return {name: _Remote(nodes[name], self._handles[name]) for name in nodes}

    def single_node(self, model: str) -> str | None:
        """Return ``None`` for a node: every request goes through the policy."""
        return None if model in self.names else super().single_node(model)


@serve.ingress()
class _Ingress:
    """The policy, and the endpoints of the gateway."""

    def __init__(self, cascade: str, policy: str, handles: dict[str, Any]) -> None:
        settings, _ = read_placements(CascadeSpec.from_toml(cascade))
        self._gateway = _Gateway(settings, policy, handles)

    def __serve_build_asgi_app__(self) -> App:
        return make_app(self._gateway)


def _line(error: object) -> str:
    """Return an error as one short line."""
    return " ".join(str(error).split())[:200]
