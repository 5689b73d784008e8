"""A cascade whose cheap model changes its ways, served with audits."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx2 as httpx

import ttamer as tt
from support.faulty_upstream import FaultyUpstream, truth, uniform
from support.waiting import LONGEST_WAIT
from ttamer.trace.spec import CascadeSpec, toml_text

if TYPE_CHECKING:
    from pathlib import Path

    from support.running_gateway import RunningGateway

COSTS = {"small": 1.0, "large": 10.0}
ADMIN = "an-admin-key-of-the-tests"
LOOP = {"error": 0.25, "refit_rows": 120, "shadow_rows": 20}


def answers(upstreams: dict[str, FaultyUpstream], rows: int, name: str, target: str) -> tt.Trace:
    """What the models say to prompts that begin with a name, without asking over HTTP."""
    said = [
        [upstream.answer(f"{name} {row}", 0) for upstream in upstreams.values()]
        for row in range(rows)
    ]
    labels = {"label": [row[1][0] for row in said]} if target == "label" else {}
    return tt.Trace.from_arrays(
        CascadeSpec.of(COSTS, order="any", target=target),
        [[sure for _, sure in row] for row in said],
        prediction=[[text for text, _ in row] for row in said],
        **labels,
    )


def modest(prompt: str, sample: int) -> tuple[str, float]:
    """A model that is right where it is half sure, and never surer than that."""
    del sample
    right = truth(prompt)
    if uniform("modest", prompt) < 0.8:
        return right, 0.5
    return "ABCD"[(ord(right) - 64) % 4], 0.3


def boast(prompt: str, sample: int) -> tuple[str, float]:
    """A model that is very sure, whatever it says."""
    del sample
    return "ABCD"[int(uniform("boast", prompt) * 4)], 0.9 + 0.09 * uniform("sure", prompt)


def models() -> dict[str, FaultyUpstream]:
    """The two models as they are before any change, not started."""
    return {"small": FaultyUpstream("small", skill=0.8), "large": FaultyUpstream("large", skill=1)}


@functools.cache
def fitted(target: str) -> tt.FittedLadder:
    """A ladder for them."""
    return tt.fit(answers(models(), 500, "fit", target))


@dataclass
class Changing:
    """The files of the cascade, and the models behind it."""

    cascade: Path
    artefact: Path
    reference: Path
    log: Path
    upstreams: dict[str, FaultyUpstream]


def write_changing(
    folder: Path,
    upstreams: dict[str, FaultyUpstream],
    *,
    audit: dict[str, Any] | None = None,
    serve: dict[str, Any] | None = None,
    target: str = "last",
    loop: bool = True,
) -> Changing:
    """Fit to some answers, keep others as a reference, and write all files."""
    found = Changing(
        folder / "cascade.toml",
        folder / "policy.ttamer",
        folder / "reference.parquet",
        folder / "audits",
        upstreams,
    )
    tt.save(fitted(target), found.artefact)
    answers(models(), 300, "held", target).write(found.reference)
    table = {"share": 1.0, "log": str(found.log)}
    if loop:
        table |= {"reference": str(found.reference)} | LOOP
    head = toml_text({"order": "any", "target": target})
    text = f"[cascade]\n{head}\n[serve]\n" + toml_text({"compare": "choice"} | (serve or {}))
    text += "\n[serve.audit]\n" + toml_text(table | (audit or {}))
    for name, cost in COSTS.items():
        node = {"name": name, "cost": cost, "upstream": upstreams[name].url}
        text += "\n[[node]]\n" + toml_text(node)
    found.cascade.write_text(text, "utf-8")
    return found


class Traffic:
    """Requests, one after the other."""

    def __init__(self, gateway: RunningGateway) -> None:
        self.gateway, self.sent = gateway, 0
        self.client = httpx.Client(base_url=gateway.root, timeout=30)

    def __enter__(self) -> Traffic:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def send(
        self, count: int, *, headers: dict[str, str] | None = None, **more: Any
    ) -> list[httpx.Response]:
        """Send new prompts; return the responses."""
        found = []
        for _ in range(count):
            self.sent += 1
            message = {"role": "user", "content": f"prompt {self.sent}"}
            body = {"model": "ttamer", "messages": [message], **more}
            found.append(self.client.post("/v1/chat/completions", json=body, headers=headers))
        assert all(response.status_code == 200 for response in found)
        return found

    def post(self, path: str, key: str = ADMIN, **more: Any) -> httpx.Response:
        """Do what a person does."""
        headers = {"authorization": f"Bearer {key}"}
        return self.client.post(path, headers=headers, **more)

    @property
    def status(self) -> dict[str, Any]:
        """What the status page shows of audits and the loop."""
        return self.client.get("/status.json").json()["drift"]

    def settle(self) -> dict[str, Any]:
        """Wait until all audits so far are worked off, and return the status."""
        until = time.monotonic() + LONGEST_WAIT
        while time.monotonic() < until:
            now = self.status
            whole = now["audited"] - now["failed"] - now["lost"]
            known = whole - now["unlabelled"] if now["loop"] else 0
            if now["written"] >= whole and now["seen"] >= known and not self._is_fitting:
                return now
            time.sleep(0.01)
        raise TimeoutError(f"audits are not worked off: {now}")

    @property
    def _is_fitting(self) -> bool:
        adapting = self.gateway.gateway.drift
        return adapting is not None and adapting.loop.state in ("refitting", "certifying")
