"""The example of a network with exits on Ray Serve, on a real cluster."""

from __future__ import annotations

import importlib.util
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import torch

from support.exit_networks import convolutions
from ttamer import torch as exits
from ttamer.fitting.fits import fit

EXAMPLE = Path(__file__).parents[2] / "examples" / "serving" / "ray_early_exit.py"


class Request:
    """A request as Starlette has it, as far as the example reads it."""

    def __init__(self, row):
        self.row = row

    async def json(self):
        return {"input": self.row}


def test_requests_that_arrive_together_get_the_answers_of_the_runner(
    cluster, tmp_path, monkeypatch
):
    assert cluster.is_initialized()
    from ray import serve

    torch.manual_seed(0)
    network = convolutions(3, size=32).eval()
    images = torch.randn(40, 3, 32, 32)
    trace = exits.trace_of(network, [(images, torch.arange(40) % 3)])
    ladder = fit(trace)
    exits.save_pretrained(network, tmp_path, policy=ladder)
    mine = ModuleType("my_network")
    mine.build = partial(convolutions, 3, size=32)
    monkeypatch.setitem(sys.modules, mine.__name__, mine)
    spec = importlib.util.spec_from_file_location("ray_early_exit", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    app = module.build({"folder": str(tmp_path), "tradeoff": "0.95"})
    serve.start(proxy_location="Disabled")
    handle = serve.run(app, name="exits", route_prefix=None)
    try:
        waiting = [handle.remote(Request(image.tolist())) for image in images]
        found = [response.result(timeout_s=60) for response in waiting]
    finally:
        serve.shutdown()
    answers = exits.Runner(network, ladder.at(0.95))(images)
    assert [each["class"] for each in found] == answers.logits.argmax(1).tolist()
    assert [network.names.index(each["exit"]) for each in found] == answers.exit.tolist()
