"""Early exits under onnxruntime: the network as ONNX files, the decision by a session.

Run it with: python examples/early_exit_onnx.py
"""

import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import nn

import ttamer as tt
from ttamer import torch as exits

torch.manual_seed(0)


def block(inside, outside):
    """Return one layer."""
    return nn.Sequential(nn.Linear(inside, outside), nn.ReLU())


# Which of three numbers is the largest: a network of two blocks learns it, with a ramp between.
network = exits.EarlyExit(
    [block(8, 32), block(32, 64)],
    [nn.Linear(32, 3)],
    nn.Linear(64, 3),
)
inputs = torch.randn(6000, 8)
labels = inputs[:, :3].argmax(1)
loader = list(zip(inputs[:4000].split(64), labels[:4000].split(64), strict=True))
exits.train(network, loader, exits.Recipe("all", epochs=3, rate=0.01, optimiser="adamw"))
trace = exits.trace_of(network, [(inputs[4000:], labels[4000:])])
policy = tt.fit(trace).at(tradeoff=0.9)

folder = Path(tempfile.mkdtemp())
exits.export_onnx(network, folder, inputs[:2])

# From here on no PyTorch is needed: the files, onnxruntime, and the policy.
names = policy.fitted.spec.names
parts = {path.stem: onnxruntime.InferenceSession(path) for path in folder.glob("*.onnx")}


def run(part, values):
    """Run one file."""
    session = parts[part]
    return session.run(None, dict(zip([i.name for i in session.get_inputs()], values, strict=True)))


for row in inputs[4000:4005]:
    turn, values, done = policy.session(), [row[None].numpy()], 0
    logits = {}
    while turn.next is not None:
        k = names.index(turn.next)
        for segment in range(done, k + 1):
            values = run(f"segment_{segment}", values)
        done = k + 1
        logits[turn.next] = run(f"exit_{k}", values)[0][0]
        scores = np.exp(logits[turn.next] - logits[turn.next].max())
        chances = scores / scores.sum()
        second, first = np.sort(chances)[-2:]
        turn.observe(
            confidence=float(first),
            prediction=int(chances.argmax()),
            margin=float(first - second),
            entropy=float(-(chances * np.log(chances + 1e-30)).sum()),
        )
    print(f"class {logits[turn.answer].argmax()}, the answer of {turn.answer}; asked {turn.asked}")
