"""The bill beside what upstreams saw, for every kind of fault.

``python experiments/serving/bill.py [--requests N] [--json FILE]``

Gateways in this process serve upstreams that fail in every way and count what they would charge:
calls that they refuse (a status from 400 to 499, or 503) cost nothing, responses whose usage was
delivered cost their tokens, and of any other call the gateway must book the most that it can have
cost, by the bytes and ``max_tokens`` of the request that the upstream saw. Each kind of request is
made with a price for calls, and again with prices for tokens; the sums must be equal.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import ttamer as tt
from ttamer.trace.spec import toml_text

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from support.billing import GATEWAYS, KINDS, gateway_sums, make_requests, tables, upstream_sums
from support.faulty_upstream import FaultyUpstream
from support.running_gateway import RunningGateway, running

COSTS = {"small": 1.0, "spare": 1.0, "large": 12.5}


def make_ladder() -> Any:
    """Fit a ladder to rows as the upstreams answer."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, 4, 400)
    sure, predicted = [], []
    for skill in (0.6, 0.95):
        right = rng.random(400) < skill
        predicted.append(np.where(right, label, (label + rng.integers(1, 4, 400)) % 4))
        low, width = np.where(right, 0.55, 0.25), np.where(right, 0.44, 0.5)
        sure.append(low + width * rng.random(400))
    letters = np.array(list("ABCD"))
    spec = tt.CascadeSpec.of({name: COSTS[name] for name in ("small", "large")}, order="any")
    trace = tt.Trace.from_arrays(
        spec, np.stack(sure, 1), prediction=letters[np.stack(predicted, 1)], label=letters[label]
    )
    return tt.fit(trace)


@contextlib.contextmanager
def gateway_of(setup: str, ladder: Any, *, has_tokens: bool) -> Any:
    """Run one of the gateways with its upstreams; give both."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upstreams = {
            name: stack.enter_context(FaultyUpstream(name, skill=skill))
            for name, skill in (("small", 0.6), ("spare", 0.6), ("large", 0.95))
        }
        audits = str(folder / "audits")
        serve, nodes = tables(setup, upstreams["spare"].url, audits, has_tokens=has_tokens)
        settings = {"compare": "choice", **serve}
        if "audit" not in settings:
            settings["tradeoff"] = 0.9
        text = '[cascade]\norder = "any"\n\n[serve]\n' + toml_text(settings)
        for name, options in nodes.items():
            node = {"name": name, "cost": COSTS[name], "upstream": upstreams[name].url}
            text += "\n[[node]]\n" + toml_text(node | options)
        (folder / "cascade.toml").write_text(text)
        tt.save(ladder, folder / "policy.ttamer")
        served = running(folder / "cascade.toml", folder / "policy.ttamer")
        yield stack.enter_context(served), upstreams


def measure(
    gateway: RunningGateway,
    upstreams: dict[str, FaultyUpstream],
    kind: str,
    requests: int,
    *,
    has_tokens: bool,
) -> dict[str, Any]:
    """Make the requests of one kind, and return what they added to both sums."""
    before = upstream_sums(upstreams, COSTS, has_tokens=has_tokens), gateway_sums(gateway)
    asyncio.run(make_requests(gateway, upstreams, kind, requests))
    after = upstream_sums(upstreams, COSTS, has_tokens=has_tokens), gateway_sums(gateway)
    (seen, booked), (seen_before, booked_before) = after, before
    row: dict[str, Any] = {"kind": kind, "has_tokens": has_tokens, "requests": requests}
    row["calls"] = seen.calls - seen_before.calls
    for part in ("known", "estimated"):
        row[f"seen {part}"] = getattr(seen, part) - getattr(seen_before, part)
        row[f"booked {part}"] = getattr(booked, part) - getattr(booked_before, part)
    row["equal"] = all(
        abs(row[f"seen {part}"] - row[f"booked {part}"]) < 1e-6 for part in ("known", "estimated")
    )
    return row


def main() -> None:
    """Make all kinds of requests, and print both sums."""
    parser = argparse.ArgumentParser(description="The bill beside what upstreams saw.")
    parser.add_argument("--requests", type=int, default=10, help="requests of each kind")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers")
    options = parser.parse_args()
    ladder, rows = make_ladder(), []
    heads = ("prices of", "calls", "seen", "booked", "seen est.", "booked est.")
    print(f"{'':32}" + "".join(f"{head:>12}" for head in heads))
    for has_tokens in (False, True):
        for setup in GATEWAYS:
            kinds = [k for k, how in KINDS.items() if how.get("gateway", "plain") == setup]
            with gateway_of(setup, ladder, has_tokens=has_tokens) as (gateway, upstreams):
                for kind in kinds:
                    row = measure(gateway, upstreams, kind, options.requests, has_tokens=has_tokens)
                    rows.append(row)
                    cells = [row["seen known"], row["booked known"]]
                    cells += [row["seen estimated"], row["booked estimated"]]
                    print(f"{kind:32}{'tokens' if has_tokens else 'calls':>12}{row['calls']:12}"
                          + "".join(f"{cell:12.2f}" for cell in cells)
                          + ("" if row["equal"] else "   NOT EQUAL"), flush=True)  # fmt: skip
    is_equal = all(row["equal"] for row in rows)
    requests, calls = sum(row["requests"] for row in rows), sum(row["calls"] for row in rows)
    verdict = "the bill is what the upstreams saw" if is_equal else "NOT EQUAL"
    print(f"{requests} requests, {calls} calls, {len(KINDS)} kinds: {verdict}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(0 if is_equal else 1)


if __name__ == "__main__":
    os.environ["no_proxy"] = "127.0.0.1"
    logging.disable()  # the upstreams fail on purpose
    main()
