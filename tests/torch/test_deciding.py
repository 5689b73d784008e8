"""Policies as arrays: networks decide as sessions do, bit for bit, on the host and in kernels."""

import dataclasses
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from support.examples import examples
from support.exit_networks import (
    CLASSES,
    EXITS,
    adding_network,
    batches,
    echo_network,
    evidence,
    fitted,
)
from support.torch_oracle import Oracle
from ttamer.errors import ArgumentError
from ttamer.fitting.belief import PairTable
from ttamer.fitting.crossfit import fit_steps
from ttamer.fitting.planner import Log, PlanOptions
from ttamer.fitting.regression import BeliefOptions
from ttamer.fitting.session import SingleNode
from ttamer.torch.cuda.decide_kernel import KernelDecider
from ttamer.torch.deciding import (
    BeliefTables,
    HostDecider,
    LossTables,
    confidence_of,
    tables_of,
    threshold_tables,
)
from ttamer.torch.tracing import trace_of

CPU = torch.device("cpu")
# Taking NaN from NaN is no mistake on a GPU, and NumPy warns of it.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered")


def logits_of(generator, rows, exits, classes, broken=0.0):
    """Return few different whole numbers, so that equal confidences and agreement are likely."""
    logits = generator.integers(-2, 3, (exits, rows, classes)).astype(np.float32)
    logits[generator.random((exits, rows)) < broken] = np.nan
    return torch.from_numpy(logits)


@st.composite
def policies(draw):
    """Return a policy, and logits: those of the rows that it was fitted to, and others."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    exits, classes, rows = draw(st.sampled_from([3, 4, 2, 1])), draw(st.integers(2, 3)), 150
    logits = logits_of(generator, rows, exits, classes)
    label = np.where(generator.random(rows) < 0.2, 0, logits[-1].argmax(dim=1))
    confidence, prediction = confidence_of(logits)
    codes = prediction.numpy().T
    names = echo_network(exits).names
    known = draw(st.sampled_from([classes, 1, 0]))  # the last class is new; no predictions
    with_classes = {"codes": codes, "classes": tuple(map(str, range(classes)))} if known else {}
    log = Log(
        (codes != label[:, None]).astype(float),
        np.ones((rows, exits)),
        confidence.numpy().T.astype(float),
        kind="exits",
        **with_classes,
    )
    belief = BeliefOptions(memory=draw(st.sampled_from([2, 3, 1])), pooled=True)
    fit = fit_steps(names, log, belief=belief, options=PlanOptions(points=8))
    tables = fit.tables
    if draw(st.integers(0, 3)):
        tables = dataclasses.replace(tables, belief=shaken(tables.belief, generator))
    reads = draw(st.sampled_from(["confidence", "margin"]))
    belief = dataclasses.replace(tables.belief, reads=reads)
    tables = dataclasses.replace(tables, belief=belief)
    policy = tables.policy(draw(st.integers(0, len(tables) // 2)))
    texts = [str(k) for k in range(classes)]
    if 0 < known < classes:
        texts[-1] = "new"
    fresh = logits_of(generator, 40, exits, classes, broken=0.15)
    return policy, texts, torch.cat([logits[:, :60], fresh], dim=1)


def shaken(belief, generator):
    """Return a belief whose weights are all random: a fit to few rows leaves some at 0."""

    def some(*shape):
        return generator.integers(-4096, 4097, shape) / 4096

    weights = {key: some(*own.shape) for key, own in belief.weights.items()}
    count = len(belief.classes)
    keys = np.flatnonzero(generator.random((count + 1) ** 2) < 0.8)
    pairs = {key: PairTable(keys, some(len(keys))) for key in permutations(range(belief.count), 2)}
    masked, every = some(*belief.masked.shape), tuple(range(belief.count))
    shifts = {every[: k + 1]: some(count + 1) for k in range(belief.count - 1)} if count else {}
    pairs = pairs if count else {}
    return dataclasses.replace(belief, weights=weights, pairs=pairs, masked=masked, shifts=shifts)


def by_sessions(policy, texts, logits):
    """Return, per row, the exits asked and whose answer a session returns."""
    (confidence, prediction), margin, decided = (
        confidence_of(logits),
        confidence_of(logits, by_margin=True)[0],
        [],
    )
    for row in range(logits.shape[1]):
        turn = policy.session()
        while turn.next is not None:
            k = policy.names.index(turn.next)
            code = int(prediction[k, row])
            text = None if code < 0 else texts[code]
            sure = {"confidence": float(confidence[k, row]), "margin": float(margin[k, row])}
            turn.observe(**sure, prediction=text)
        decided.append((turn.asked, turn.answer))
    return decided


@examples(40)
@given(policies(), st.sampled_from(["before", "between", None]))
def test_all_deciders_decide_as_sessions_do(drawn, passed):
    policy, texts, logits = drawn
    names, numbers = list(policy.names), list(range(len(policy.names)))
    if passed:  # the network has an exit that the policy was not fitted for
        at = 0 if passed == "before" else len(names) - 1
        names.insert(at, "other")
        numbers = [k for k in range(len(names)) if k != at]
    tables = tables_of(policy, names, texts)
    expected = by_sessions(policy, texts, logits)
    rows = torch.arange(logits.shape[1])
    for decider in (HostDecider(tables, CPU), Oracle(tables, CPU), KernelDecider(tables, CPU)):
        carry = decider.start(len(rows), logits.shape[2], logits.dtype)
        first = True
        for k in tables.reached:
            decider.observe(carry, k, rows, logits[numbers.index(k)], first=first)
            first = False
        _, owner, asked, *_ = decider.collect(carry)
        decided = [
            (tuple(name for k, name in enumerate(names) if bits >> k & 1), names[exit_])
            for bits, exit_ in zip(asked.tolist(), owner.tolist(), strict=True)
        ]
        assert decided == expected, type(decider)


@pytest.mark.parametrize("belief", ["answers", "markov"])
def test_exits_that_are_not_reached_are_never_asked(belief):
    inputs, labels = evidence(400, seed=2)
    ladder = fitted(belief)
    trace = trace_of(adding_network(), batches(inputs, labels), spec=ladder.spec)
    sizes = []
    for policy in list(ladder)[::6]:
        tables = tables_of(policy, trace.names, CLASSES)
        asked = {int(k) for k in np.flatnonzero(policy.play(trace).asked.any(axis=0))}
        assert asked <= set(tables.reached)
        assert list(tables.reached) == sorted(set(tables.reached))
        sizes.append(len(tables.reached))
    assert sizes[0] == 1  # at the least tradeoff one exit answers all
    assert max(sizes) == EXITS


def test_numbers_are_those_of_the_policy_in_double_precision():
    names = adding_network().names
    for belief, kind in (("markov", LossTables), ("answers", BeliefTables)):
        policy = fitted(belief).at(0.9)
        tables, own = tables_of(policy, names, CLASSES), policy.rule.tables
        assert isinstance(tables, kind)
        bounds = own.edges if belief == "markov" else own.belief.bounds
        for row, numbers in zip(tables.bounds, bounds, strict=True):
            assert row[: len(numbers)].tolist() == numbers.tolist()
            assert np.isinf(row[len(numbers) :]).all()


def test_offsets_follow_the_names_of_classes():
    names, policy = adding_network().names, fitted().at(0.9)
    plain = tables_of(policy, names, CLASSES)
    assert np.abs(plain.offsets).sum() > 0
    turned = tables_of(policy, names, ["2", "0", "other", "1", "3"])
    assert np.array_equal(turned.offsets[:, [1, 3, 0, 4]], plain.offsets)


def test_thresholds_leave_out_ramps_without_one():
    tables = threshold_tables(np.array([np.nan, 0.8, np.nan, np.inf, 0.5]))
    assert (tables.first, tables.reached, len(tables.bounds)) == (1, (1, 3, 4), 5)
    assert threshold_tables(np.array([np.nan, np.nan])).reached == (1,)
    assert threshold_tables(np.array([0.5])).reached == (0,)


@pytest.mark.parametrize("before", [(), (0, 1)])
def test_one_exit_by_itself(before):
    logits = logits_of(np.random.default_rng(0), 20, 4, 3, broken=0.3)
    names = echo_network(4).names
    tables = tables_of(SingleNode(names, np.ones(4), 2, before), names, 3)
    decider, rows = HostDecider(tables, CPU), torch.arange(20)
    carry = decider.start(20, 3, logits.dtype)
    for k in tables.reached:
        decider.observe(carry, k, rows, logits[k])
    assert tables.reached == (*before, 2)
    assert decider.collect(carry)[1].tolist() == [2] * 20


def test_what_a_network_cannot_run_is_refused():
    generator = np.random.default_rng(0)
    names = ("a", "b", "c")
    log = Log(
        (generator.random((200, 3)) < 0.3).astype(float),
        np.ones((200, 3)),
        generator.random((200, 3)),
        generator.integers(0, 2, (200, 3)),
        ("no", "yes"),
        kind="exits",
    )
    fit = fit_steps(names, log, options=PlanOptions(points=4))
    policy = fit.tables.policy(1)
    with pytest.raises(
        ArgumentError, match=r"classes are no, yes .* network's are 0, 1 .*classes="
    ):
        tables_of(policy, names, 2)
    with pytest.raises(ArgumentError, match=r"3 exits \(a, b, c\) and the network has 2 \(a, b\)"):
        tables_of(policy, names[:2], ["no", "yes"])
    with pytest.raises(ArgumentError, match=r"and the network has 3 \(c, b, a\): fit it on a"):
        tables_of(policy, names[::-1], ["no", "yes"])
    # On confidence alone names of classes do not matter.
    assert len(tables_of(fitted("markov").at(0.9), fitted().spec.names, 7).bounds) == EXITS
    backwards = dataclasses.replace(fit.tables, node=np.zeros_like(fit.tables.node))
    price = next(k for k in range(4) if len(fit.tables.policy(k).ways) > 1)
    with pytest.raises(ArgumentError, match="in another order than the network has"):
        tables_of(backwards.policy(price), names, ["no", "yes"])
