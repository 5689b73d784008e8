"""A network with early exits on Ray Serve, in batches.

    serve run examples.serving.ray_early_exit:build folder=network tradeoff=0.95

``folder`` is one that ``save_pretrained`` wrote with a ladder of policies, and ``build()`` in
my_network.py returns the network as it was built before it was trained. Requests that arrive within
5 ms run as one batch; rows that the policy is done with leave it part way.

    curl localhost:8000 -d @image.json

``image.json`` holds one input of the network, such as an image: ``{"input": [[[0.1, ...]]]}``.
"""

import asyncio

import torch
from my_network import build as build_network
from ray import serve

from ttamer import torch as exits


@serve.deployment(max_ongoing_requests=128)
class EarlyExitServer:
    """One replica: the network, and its policy."""

    def __init__(self, network, folder, tradeoff):
        device = "cuda" if torch.cuda.is_available() else "cpu"
        policies, classes = exits.load_pretrained(folder, network)
        policy = policies.at(tradeoff)
        self.runner = exits.Runner(network.to(device), policy, classes=classes)

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.005)
    async def answer(self, rows):
        """Run rows as one batch, outside the event loop, so that others can arrive meanwhile."""
        answers = await asyncio.to_thread(self.runner, torch.stack(rows))
        names = self.runner.network.names
        return [
            {"class": class_, "exit": names[exit_]}
            for class_, exit_ in zip(
                answers.logits.argmax(1).tolist(), answers.exit.tolist(), strict=True
            )
        ]

    async def __call__(self, request):
        """Answer one request."""
        return await self.answer(torch.tensor((await request.json())["input"]))


def build(args):
    """Return the application for ``serve run``."""
    return EarlyExitServer.bind(build_network(), args["folder"], float(args["tradeoff"]))
