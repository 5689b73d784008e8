"""A cascade of language models that are asked without a socket, or by one where a test needs it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.faulty_upstream import FaultyUpstream
from ttamer.cascade import toml_text
from ttamer.llm.client import NEVER, Client, Response, UpstreamFailed

COSTS = {"small": 1.0, "large": 12.5}
SKILLS = {"small": 0.6, "large": 0.95}


class Direct:
    """What a node asks in a test: the model behind a server, without the server."""

    def __init__(self, settings, model):
        self.settings, self.model, self.client = settings, model, Client(settings, None)

    async def complete(self, body, deadline=NEVER, *, headers=None):
        del deadline, headers
        await asyncio.sleep(0)
        model, sent = self.model, self.client.adapted(body)
        model.requests.append(sent)
        mode = model.plan.pop(0) if model.plan else model.mode
        if mode == "error":
            kind = "refused" if model.status < 500 else "error"
            detail = f"returned status {model.status}: out of order"
            raise UpstreamFailed(self.settings.name, kind, detail, status=model.status)
        if mode == "garbage":
            raise UpstreamFailed(self.settings.name, "garbage", "returned no JSON object")
        if model.raw is not None:
            return Response(json.loads(model.raw))
        response = model._completion(sent)
        if not model.states_usage:
            del response["usage"]
        return Response(response)


@dataclass
class Served:
    """A cascade's file, and the models behind its nodes."""

    cascade: Path
    upstreams: dict[str, FaultyUpstream]

    def upstream(self, settings):
        return Direct(settings, self.upstreams[settings.name])

    def change(self, old, new):
        """Change the cascade's file."""
        text = self.cascade.read_text("utf-8")
        assert old in text
        self.cascade.write_text(text.replace(old, new), "utf-8")

    @property
    def counts(self):
        return [upstream.count for upstream in self.upstreams.values()]


@pytest.fixture
def make_served(tmp_path):
    """Write a cascade: ``make_served(serve={...}, node={"small": {...}}, sockets=False)``."""
    with contextlib.ExitStack() as stack:

        def make(*, serve=None, node=None, sockets=False):
            models = {name: FaultyUpstream(name, skill=skill) for name, skill in SKILLS.items()}
            text = "[serve]\n" + toml_text({"compare": "choice"} | (serve or {}))
            for name, model in models.items():
                if sockets:
                    stack.enter_context(model)
                table = {"name": name, "cost": COSTS[name], "upstream": model.url}
                text += "\n[[node]]\n" + toml_text(table | (node or {}).get(name, {}))
            cascade = tmp_path / "cascade.toml"
            cascade.write_text(text, "utf-8")
            return Served(cascade, models)

        yield make


@pytest.fixture
def served(make_served):
    return make_served()
