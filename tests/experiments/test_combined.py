"""The experiment's combined exits are those of the network."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from support.exit_networks import echo_network, measured  # noqa: E402
from ttamer.torch import combine_exits, trace_of  # noqa: E402

SCRIPT = Path(__file__).parents[2] / "experiments" / "early_exit" / "combined.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("early_exit_combined", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_trace_of_combined_exits_is_that_of_the_combined_network(script):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(300, 3, 4, generator=generator)
    labels = torch.randint(4, (300,), generator=generator)
    known = np.arange(200)
    network = echo_network(3)
    spec = measured(3).spec()
    trace = trace_of(network, [(logits, labels)], spec=spec)
    found = script.combined(trace, logits.double().permute(1, 0, 2), trace.label, known)
    network = combine_exits(network, [(logits[:200], labels[:200])])
    wanted = trace_of(network, [(logits, labels)], spec=spec)
    assert (found.prediction == wanted.prediction).all()
    np.testing.assert_allclose(found.confidence, wanted.confidence, rtol=1e-5)
    for name in ("margin", "entropy"):
        np.testing.assert_allclose(found.extras[name], wanted.extras[name], rtol=1e-3, atol=1e-5)
