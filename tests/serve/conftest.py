"""What the tests of serving share: servers that fail on command, and a small fitted cascade."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import ipaddress
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import ttamer as tt
from support.faulty_upstream import FaultyUpstream
from support.real_llms import MissingPart, serving_llms
from ttamer.trace.spec import CascadeSpec, toml_text

if TYPE_CHECKING:
    from pathlib import Path

COSTS = {"small": 1.0, "middle": 4.0, "large": 12.5}
SKILLS = {"small": 0.6, "middle": 0.75, "large": 0.95}
NAMES = {1: ("small",), 2: ("small", "large"), 3: ("small", "middle", "large")}


@functools.cache
def fitted_ladder(nodes: int, rows: int = 400, hold_out: float = 0.0) -> tt.FittedLadder:
    """A ladder fitted to rows as the fake upstreams give them: who is sure is right more often."""
    names = NAMES[nodes]
    rng = np.random.default_rng(nodes)
    label = rng.integers(0, 4, rows)
    prediction = np.empty((rows, nodes), int)
    confidence = np.empty((rows, nodes))
    for column, name in enumerate(names):
        right = rng.random(rows) < SKILLS[name]
        prediction[:, column] = np.where(right, label, (label + rng.integers(1, 4, rows)) % 4)
        sure = 0.55 + 0.44 * rng.random(rows)
        confidence[:, column] = np.where(right, sure, 0.25 + 0.5 * rng.random(rows))
    letters = np.array(list("ABCD"))
    spec = CascadeSpec.of({name: COSTS[name] for name in names}, order="any")
    trace = tt.Trace.from_arrays(
        spec, confidence, prediction=letters[prediction], label=letters[label]
    )
    return tt.fit(trace, hold_out=hold_out)


@dataclass(frozen=True)
class Served:
    """A cascade ready to be served: its files, its policies and the servers behind it."""

    cascade: Path
    artefact: Path
    ladder: tt.FittedLadder
    upstreams: dict[str, FaultyUpstream]


@pytest.fixture(autouse=True)
def _no_proxy_of_this_machine(monkeypatch):
    for name in (
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)


def write_certificate(path: Path, serial: int = 1) -> Path:
    """Write a certificate for 127.0.0.1, signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = dt.datetime.now(dt.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(address, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    path.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + built.public_bytes(pem)
    )
    return path


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A certificate for 127.0.0.1, signed by itself, and its key."""
    return write_certificate(tmp_path_factory.mktemp("tls") / "server.pem")


@pytest.fixture
def renew_certificate():
    """Write another certificate: ``renew_certificate(path, serial=2)``."""
    return write_certificate


@pytest.fixture
def start_upstream():
    """Start a fake upstream: ``start_upstream("small", skill=0.6)``; stopped at the end."""
    with contextlib.ExitStack() as stack:
        yield lambda name="model", **options: stack.enter_context(FaultyUpstream(name, **options))


@pytest.fixture
def dead_url():
    """A base URL at which every connection is refused."""
    with socket.socket() as taken:  # bound and not listening: the port is no one else's
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/v1"


@pytest.fixture
def make_served(tmp_path, start_upstream):
    """Write a cascade of 1, 2 or 3 nodes with its artefact, and start its upstreams.

    ``make_served(2, serve={"tradeoff": 0.9}, node={"small": {"retries": 1}})``
    """

    def make(nodes: int = 2, *, serve=None, node=None, fit=None) -> Served:
        names = NAMES[nodes]
        upstreams = {name: start_upstream(name, skill=SKILLS[name]) for name in names}
        settings = {"compare": "choice"} | (serve or {})
        if not {"tradeoff", "budget", "error", "mistake_cost", "audit"} & settings.keys():
            settings["tradeoff"] = 0.9
        if settings.get("tradeoff", 0.9) is None:
            del settings["tradeoff"]
        text = '[cascade]\norder = "any"\n\n[serve]\n' + toml_text(settings)
        for name in names:
            table = {"name": name, "cost": COSTS[name], "upstream": upstreams[name].url}
            text += "\n[[node]]\n" + toml_text(table | (node or {}).get(name, {}))
        cascade, artefact = tmp_path / "cascade.toml", tmp_path / "policy.ttamer"
        cascade.write_text(text, "utf-8")
        ladder = fitted_ladder(nodes, **(fit or {}))
        tt.save(ladder, artefact)
        return Served(cascade, artefact, ladder, upstreams)

    return make


@pytest.fixture
def served(make_served):
    """Two nodes, small and large."""
    return make_served(2)


@pytest.fixture(scope="session")
def real_llms(tmp_path_factory):
    """Two real language models, small and large; each has a name and a base URL."""
    try:
        with serving_llms(tmp_path_factory.mktemp("llms")) as llms:
            yield llms
    except MissingPart as missing:
        pytest.fail(str(missing), pytrace=False)


@pytest.fixture
def real_cascade(real_llms, tmp_path):
    """A cascade.toml over the two real models, for answers that are letters."""
    text = '[cascade]\norder = "any"\n\n[serve]\n' + toml_text({"compare": "choice"})
    for name, cost in (("small", 1.0), ("large", 3.0)):
        table = {"name": name, "cost": cost, "upstream": real_llms[name].url, "concurrency": 1}
        text += "\n[[node]]\n" + toml_text(table)
    path = tmp_path / "cascade.toml"
    path.write_text(text, "utf-8")
    return path


@pytest.fixture
def run_gateway(make_served):
    """Serve a cascade: ``run_gateway(2, serve={...}, node={...})``; stopped at the end.

    What it gives has ``served`` besides: the files and the upstreams.
    """
    from support.running_gateway import running

    with contextlib.ExitStack() as stack:

        def run(nodes: int = 2, *, serve=None, node=None, fit=None):
            served = make_served(nodes, serve=serve, node=node, fit=fit)
            found = stack.enter_context(running(served.cascade, served.artefact))
            found.served = served
            return found

        yield run
