"""The kernels of the GPU, interpreted, and NumPy on the CPU decide as PyTorch's operations do."""

import functools

import numpy as np
import pytest
import torch

from support.torch_oracle import Oracle
from ttamer.errors import ArgumentError
from ttamer.fitting.fits import fit
from ttamer.torch.cuda.decide_kernel import BLOCK, KernelDecider
from ttamer.torch.deciding import HostDecider, confidence_of, tables_of, threshold_tables
from ttamer.torch.profiling import Costs
from ttamer.trace.trace import Trace

CPU = torch.device("cpu")
EXITS, CLASSES = 4, 3
NAMES = tuple(f"e{k}" for k in range(EXITS))
# Taking NaN from NaN is no mistake on a GPU, and NumPy warns of it.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered")


def some_logits(rows, seed, *, broken=0.1):
    """Return labels, and logits of shape (exits, rows, classes) that grow surer by exit."""
    generator = np.random.default_rng(seed)
    label = generator.integers(0, CLASSES, rows)
    logits = generator.standard_normal((EXITS, rows, CLASSES)).astype(np.float32)
    for k in range(EXITS):
        logits[k, np.arange(rows), label] += 0.6 * (k + 1)
    logits[generator.random((EXITS, rows)) < broken] = np.nan
    return torch.from_numpy(logits), label.astype(np.int32)


@functools.cache
def fitted(belief, *, predictions=True):
    """Return a ladder for such exits."""
    logits, label = some_logits(1500, 0, broken=0.0)
    confidence, prediction = (part.T.numpy() for part in confidence_of(logits))
    spec = Costs(NAMES, (0.2,) * EXITS, (0.05,) * EXITS).spec()
    known = {"correct": prediction == label[:, None]}
    if predictions:
        known = {"prediction": prediction, "label": label, "classes": tuple("012")}
    return fit(Trace(spec, confidence.astype(float), **known), belief=belief)


def policies(belief, **options):
    return [fitted(belief, **options).at(tradeoff) for tradeoff in (0.8, 0.95, 1.0)]


def assert_same(tables, logits, *, padding=0):
    """All deciders, exit by exit, come to the same stages, owners, counts, groups and answers."""
    size = logits.shape[1]
    oracle, host, kernel = (kind(tables, CPU) for kind in (Oracle, HostDecider, KernelDecider))
    wanted, by_host, by_kernel = (
        decider.start(size, CLASSES, logits.dtype) for decider in (oracle, host, kernel)
    )
    by_kernel.stage.fill_(7)  # left by an earlier batch
    by_kernel.owner.fill_(3)
    by_kernel.best.fill_(0)
    by_kernel.asked.fill_(31)
    rows, first = torch.arange(size), True
    filled = torch.cat([rows, torch.full((padding,), -1)])
    for k in tables.reached:
        oracle.observe(wanted, k, rows, logits[k])
        host.observe(by_host, k, rows.flip(0), logits[k].flip(0))
        more = torch.zeros(padding, CLASSES, dtype=logits.dtype)
        kernel.observe(by_kernel, k, filled, torch.cat([logits[k], more]), first=first)
        first = False
        bits = (wanted.asked[:, None] >> torch.arange(EXITS)) & 1 == 1
        for decider, carry, given in ((host, by_host, rows), (kernel, by_kernel, filled)):
            for name in ("stage", "owner", "asked"):
                assert torch.equal(getattr(wanted, name), torch.as_tensor(getattr(carry, name)))
            for name in ("prediction", "odds"):
                parts = (torch.as_tensor(getattr(each, name))[bits] for each in (wanted, carry))
                assert torch.equal(*parts), name
            sure = torch.as_tensor(carry.confidence)[bits]
            torch.testing.assert_close(
                wanted.confidence[bits], sure, rtol=1e-6, atol=0, equal_nan=True
            )
            alive, _ = counts = oracle.going(wanted, rows)
            assert decider.going(carry, given) == counts
            if alive:
                groups = oracle.regroup(wanted, rows, alive), decider.regroup(carry, given, alive)
                assert all(torch.equal(*pair) for pair in zip(*groups, strict=True))
    assert (wanted.stage < 0).all()
    for decider, carry in ((host, by_host), (kernel, by_kernel)):
        answers = oracle.answers(wanted), decider.collect(carry)[0]
        assert torch.equal(*(torch.nan_to_num(each, nan=9.0) for each in answers))
    return wanted


@pytest.mark.parametrize(
    ("belief", "size"),
    [
        ("answers", 1),
        ("answers", BLOCK),
        ("answers", BLOCK + 9),
        ("markov", BLOCK + 9),
        ("threshold", BLOCK + 9),
    ],
)
def test_kernels_decide_as_operations_do(belief, size):
    asked = set()
    for policy in policies(belief):
        carry = assert_same(tables_of(policy, NAMES, CLASSES), some_logits(size, 5)[0])
        asked |= set(carry.asked.tolist())
    assert size == 1 or len(asked) > 1


def test_other_tables_and_half_precision():
    for policy in policies("answers", predictions=False):
        assert_same(tables_of(policy, NAMES, CLASSES), some_logits(20, 6)[0])
    assert_same(threshold_tables(np.array([0.6, np.nan, 0.7, 0.0])), some_logits(40, 7)[0])
    tables = tables_of(fitted("answers").at(0.95), NAMES, CLASSES)
    assert_same(tables, some_logits(20, 9)[0].bfloat16())


def test_rows_that_fill_a_batch_up_count_for_nothing():
    tables = tables_of(fitted("answers").at(0.95), NAMES, CLASSES)
    assert_same(tables, some_logits(21, 8)[0], padding=11)
    assert_same(tables, some_logits(BLOCK + 1, 8)[0], padding=11)


def test_a_group_too_large_for_one_program_is_refused():
    decider = KernelDecider(threshold_tables(np.array([0.5, 0.0])), CPU)
    with pytest.raises(ArgumentError, match="at most 8192 rows"):
        decider.lists(8193)
