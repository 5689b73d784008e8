"""The kernels of the GPU, interpreted, and NumPy on the CPU decide as PyTorch's operations do."""

import dataclasses
import functools

import numpy as np
import pytest
import torch

from support.torch_oracle import Oracle
from ttamer.cascade import CascadeSpec
from ttamer.errors import ArgumentError
from ttamer.fitting.fits import fit
from ttamer.torch.cuda.decide_kernel import BLOCK, KernelDecider
from ttamer.torch.deciding import HostDecider, scores_of, tables_of, threshold_tables
from ttamer.trace.trace import Trace

CPU = torch.device("cpu")
EXITS, CLASSES = 4, 3
NAMES = tuple(f"e{k}" for k in range(EXITS))
COLUMNS = ("margin", "entropy")
# Taking NaN from NaN is no mistake on a GPU, and NumPy warns of it.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered")


def some_logits(rows, seed, *, broken=0.1):
    """Return logits, shape (exits, rows, classes), that grow surer from exit to exit."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, CLASSES, rows)
    logits = rng.standard_normal((EXITS, rows, CLASSES)).astype(np.float32)
    for k in range(EXITS):
        logits[k, np.arange(rows), label] += 0.6 * (k + 1)
    logits[rng.random((EXITS, rows)) < broken] = np.nan
    return torch.from_numpy(logits), label.astype(np.int32)


@functools.cache
def fitted(belief, *, skip, predictions=True):
    """Return a ladder for such exits."""
    logits, label = some_logits(2000, 0, broken=0.0)
    confidence, prediction = logits.softmax(-1).max(-1)
    if skip:
        costs, passing = dict.fromkeys(NAMES, 0.25), dict.fromkeys(NAMES, 0.2)
        spec = CascadeSpec.of(costs, kind="exits", reach=passing)
    else:
        spec = CascadeSpec.of(dict.fromkeys(NAMES, 0.2), kind="exits")
    said = prediction.T.int().numpy()
    seen = confidence.T.double().numpy()
    if predictions:
        classes = tuple(map(str, range(CLASSES)))
        trace = Trace(spec, seen, prediction=said, label=label, classes=classes)
    else:
        trace = Trace(spec, seen, correct=said == label[:, None])
    return fit(trace, belief=belief, states=6, tradeoffs=[0.95, 1.0])


def assert_same(tables, logits, *, padding=0):
    """All deciders, exit by exit, come to the same places, owners, counts, groups and answers."""
    assert_host_same(tables, logits)
    size = logits.shape[1]
    plain, kernel = Oracle(tables, CPU), KernelDecider(tables, CPU)
    one = plain.start(size, CLASSES, logits.dtype)
    two = kernel.start(size, CLASSES, logits.dtype)
    two.place.fill_(7)  # left by an earlier batch
    two.owner.fill_(3)
    two.best.fill_(0)
    two.asked.fill_(31)
    rows = torch.arange(size)
    filled = torch.cat([rows, torch.full((padding,), -1)])
    first = True
    for k in tables.reached:
        more = torch.zeros(padding, CLASSES, dtype=logits.dtype)
        plain.observe(one, k, rows, logits[k])
        kernel.observe(two, k, filled, torch.cat([logits[k], more]), first=first)
        first = False
        assert torch.equal(one.place, two.place)
        assert torch.equal(one.owner, two.owner)
        assert torch.equal(one.asked, two.asked)
        found = plain.going(one, rows)
        assert kernel.going(two, filled) == found
        if alive := found[0]:
            for mine, theirs in zip(
                plain.regroup(one, rows, alive), kernel.regroup(two, filled, alive), strict=True
            ):
                assert torch.equal(mine, theirs)
        bits = (one.asked[:, None] >> torch.arange(EXITS)) & 1 == 1
        seen, theirs = one.confidence[bits], two.confidence[bits]
        torch.testing.assert_close(seen, theirs, rtol=1e-6, atol=0, equal_nan=True)
        assert torch.equal(one.prediction[bits], two.prediction[bits])
        assert torch.equal(one.odds[bits], two.odds[bits])
    done = one.place < 0
    assert done.all()
    mine, theirs = plain.answers(one), kernel.collect(two)[0]
    assert torch.equal(torch.nan_to_num(mine, nan=9.0), torch.nan_to_num(theirs, nan=9.0))
    return one


def assert_host_same(tables, logits):
    size = logits.shape[1]
    plain, host = Oracle(tables, CPU), HostDecider(tables, CPU)
    one, two = (each.start(size, CLASSES, logits.dtype) for each in (plain, host))
    rows = torch.arange(size).flip(0)
    for k in tables.reached:
        plain.observe(one, k, rows, logits[k])
        host.observe(two, k, rows, logits[k])
        for name in ("place", "owner", "asked", "prediction", "confidence"):
            mine, theirs = (
                torch.nan_to_num(torch.as_tensor(getattr(each, name))) for each in (one, two)
            )
            assert torch.equal(mine, theirs), name
        bits = (one.asked[:, None] >> torch.arange(EXITS)) & 1 == 1
        assert torch.equal(one.odds[bits], torch.as_tensor(two.odds)[bits])
        assert host.going(two, rows) == plain.going(one, rows)
    assert torch.equal(
        torch.nan_to_num(plain.answers(one), nan=9.0),
        torch.nan_to_num(host.collect(two)[0], nan=9.0),
    )


@pytest.mark.parametrize(
    ("belief", "skip", "size"),
    [
        ("full", True, 1),
        ("full", True, 3),
        ("full", True, BLOCK),
        ("full", True, BLOCK + 9),
        ("full", False, BLOCK + 9),
        ("calibrated", True, BLOCK),
        ("calibrated", True, BLOCK + 9),
        ("calibrated", False, 1),
        ("calibrated", False, BLOCK + 9),
    ],
)
def test_kernels_decide_as_operations_do(belief, skip, size):
    asked = set()
    for policy in fitted(belief, skip=skip):
        tables = tables_of(policy, NAMES, CLASSES)
        carry = assert_same(tables, some_logits(size, 5)[0])
        asked |= set(carry.asked.tolist())
    assert size == 1 or len(asked) > 1


def test_the_class_of_an_answer_shifts_its_state():
    logits, _ = some_logits(BLOCK + 9, 5)
    tables = tables_of(fitted("full", skip=False)[0], NAMES, CLASSES)
    shifts = np.random.default_rng(0).integers(-3, 4, tables.shifts.shape) / 2
    plain = assert_same(tables, logits)
    shifted = assert_same(dataclasses.replace(tables, shifts=shifts), logits)
    assert not torch.equal(plain.asked, shifted.asked)


def test_without_predictions():
    policy = fitted("full", skip=False, predictions=False).at(0.95)
    assert_same(tables_of(policy, NAMES, CLASSES), some_logits(20, 6)[0])


@functools.cache
def reading_columns(*, all_margins):
    """Return a ladder for exits that are right by margin or entropy, not by confidence.

    Where all margins are known, they take the place of confidences.
    """
    rng = np.random.default_rng(3)
    logits = torch.from_numpy(2 * rng.standard_normal((EXITS, 3000, CLASSES)).astype(np.float32))
    scores = scores_of(logits)
    chance = torch.stack(
        [0.3 + 0.1 * k + 0.6 * scores.margin[k] for k in range(2)]
        + [1.0 - (0.7 - 0.1 * k) * scores.entropy[k + 2] for k in range(2)]
    )
    shuffled = torch.from_numpy(rng.random((EXITS, 3000)))
    margin = scores.margin.T.double().numpy().copy()
    margin[:, 0] = margin[:, 0] if all_margins else np.nan
    trace = Trace(
        CascadeSpec.of(dict.fromkeys(NAMES, 0.2), kind="exits"),
        (scores.confidence + 0.3 * shuffled).T.double().numpy(),
        correct=(torch.from_numpy(rng.random((EXITS, 3000))) < chance).T.numpy(),
        margin=margin,
        entropy=scores.entropy.T.double().numpy(),
    )
    return fit(trace, belief="answers", states=6, tradeoffs=[0.6, 0.8, 0.95])


@pytest.mark.parametrize(("size", "all_margins"), [(3, False), (BLOCK + 9, False), (5, True)])
def test_margins_and_entropies(size, all_margins):
    ladder = reading_columns(all_margins=all_margins)
    reads = {"e1.margin", "e2.entropy", "e3.entropy"}
    if all_margins:
        reads = {f"{name}.margin" for name in NAMES}
        assert all((own.levels == 0).all() for own in ladder.fitted.belief.extras.values())
    assert reads <= set(ladder.fitted.columns_read)
    for policy in ladder:
        tables = tables_of(policy, NAMES, CLASSES)
        logits = some_logits(size, 11)[0]
        carry = assert_same(tables, logits)
        every = scores_of(logits)
        for row in range(size):
            turn = policy.session()
            while turn.next is not None:
                k = NAMES.index(turn.next)
                found = {name: getattr(every, name)[k, row].item() for name in COLUMNS}
                turn.observe(confidence=every.confidence[k, row].item(), **found)
            assert NAMES[carry.owner[row]] == turn.answer
            assert carry.asked[row] == sum(1 << NAMES.index(name) for name in turn.asked)


def test_margins_of_some_exits_of_a_network():
    policy = reading_columns(all_margins=False).at(0.8)
    names = ("e0", "another", "e1", "e2", "e3")
    tables, fewer = (tables_of(policy, each, CLASSES) for each in (names, NAMES))
    assert np.array_equal(tables.terms[[0, 2, 3, 4]], fewer.terms)
    assert (tables.terms[1] == 0).all()


def test_thresholds():
    tables = threshold_tables(np.array([0.6, np.nan, 0.7, 0.0]))
    assert_same(tables, some_logits(40, 7)[0])


def test_rows_that_fill_a_batch_up_count_for_nothing():
    tables = tables_of(fitted("full", skip=True).at(0.95), NAMES, CLASSES)
    assert_same(tables, some_logits(21, 8)[0], padding=11)
    assert_same(tables, some_logits(BLOCK + 1, 8)[0], padding=11)


def test_half_precision():
    tables = tables_of(fitted("full", skip=False).at(0.95), NAMES, CLASSES)
    assert_same(tables, some_logits(20, 9)[0].bfloat16())


def test_a_group_too_large_for_one_program_is_refused():
    decider = KernelDecider(threshold_tables(np.array([0.5, 0.0])), CPU)
    with pytest.raises(ArgumentError, match="at most 8192 rows"):
        decider.lists(8193)
