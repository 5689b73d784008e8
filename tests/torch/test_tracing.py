"""Traces of networks: the answer of every exit to every input, in one pass."""

import numpy as np
import pytest
import torch
from torch import nn

from support.exit_networks import EXITS, Calls, adding_network, batches, echo_network, evidence
from ttamer.cascade import CascadeSpec
from ttamer.errors import ArgumentError, TraceError
from ttamer.torch.profiling import count_flops
from ttamer.torch.tracing import trace_of

NAN = float("nan")


def test_a_trace_holds_the_scores_of_every_exit():
    network = adding_network()
    inputs, labels = evidence(50, seed=0)
    trace = trace_of(network, batches(inputs, labels, 16))
    assert len(trace) == 50
    assert trace.names == network.names
    for k, logits in enumerate(network(inputs)):
        chances = logits.detach().double().softmax(dim=1)
        ranked = chances.sort(dim=1, descending=True)
        np.testing.assert_allclose(trace.confidence[:, k], ranked.values[:, 0], rtol=1e-5)
        assert np.array_equal(trace.prediction[:, k], logits.argmax(dim=1))
        margin, entropy = ranked.values[:, 0] - ranked.values[:, 1], -chances.xlogy(chances).sum(1)
        np.testing.assert_allclose(trace.margin[:, k], margin, atol=1e-6)
        np.testing.assert_allclose(trace.entropy[:, k], entropy, atol=1e-5)
    assert np.array_equal(trace.label, labels)
    assert trace.left_out == {}


def test_every_part_runs_once_per_batch():
    network = adding_network()
    inputs, labels = evidence(40, seed=0)
    spec = CascadeSpec.of(dict.fromkeys(network.names, 1.0), kind="exits")
    calls, done = Calls.of(network), []
    trace = trace_of(network, batches(inputs, labels, 16), spec=spec, progress=done.append)
    assert calls.segments == calls.ramps == {k: [16, 16, 8] for k in range(EXITS)}
    assert (trace.spec, done) == (spec, [16, 32, 40])


def test_costs_are_operations_ramps_included_as_shares_of_the_network_without():
    torch.manual_seed(0)
    network = adding_network(3, 2)
    inputs, labels = evidence(10, seed=0, exits=3, classes=2)
    trace = trace_of(network, batches(inputs, labels))
    width = 2 * 4 + 3
    segment, ramp = 2 * width * width, 2 * width * 2
    full = 3 * segment + ramp
    assert trace.spec.kind == "exits"
    np.testing.assert_allclose(trace.spec.costs, [(segment + ramp) / full] * 3)
    assert trace.spec == count_flops(network, inputs).spec()


def test_the_network_is_traced_as_it_evaluates():
    torch.manual_seed(0)
    network = adding_network()
    network.segments[0] = nn.Sequential(network.segments[0], nn.Dropout(0.9))
    network.train()
    inputs, labels = evidence(30, seed=0)
    trace = trace_of(network, batches(inputs, labels))
    assert not network.training
    want = trace_of(adding_network(), batches(inputs, labels))
    assert np.array_equal(trace.confidence, want.confidence)


def test_rows_with_nan_logits_are_left_out_and_counted():
    inputs, labels = evidence(200, seed=0, broken=0.1)
    trace = trace_of(adding_network(), batches(inputs, labels, 64))
    whole = (inputs[:, -EXITS:] == 0).all(dim=1)
    assert 0 < whole.sum() < 200
    assert trace.left_out == {"an exit returned NaN logits": 200 - int(whole.sum())}
    assert np.array_equal(trace.label, labels[whole])
    want = trace_of(adding_network(), batches(inputs[whole], labels[whole]))
    assert np.array_equal(trace.confidence, want.confidence)
    assert np.array_equal(trace.prediction, want.prediction)


def test_classes_are_named():
    inputs, labels = evidence(10, seed=0)
    names = ["ant", "bee", "cat", "dog"]
    trace = trace_of(adding_network(), batches(inputs, labels), classes=names)
    assert trace.classes == tuple(names)
    assert trace_of(adding_network(), batches(inputs, labels)).classes == ("0", "1", "2", "3")
    with pytest.raises(
        TraceError, match="there are 2 classes, and a label or prediction is class 3"
    ):
        trace_of(adding_network(), batches(inputs, labels), classes=names[:2])


def test_a_class_without_predictions_is_known_by_its_labels():
    logits = torch.zeros(3, 2, 2)
    trace = trace_of(echo_network(2), [(logits, torch.tensor([0, 1, 5]))], spec=two_exits())
    assert trace.classes == ("0", "1", "2", "3", "4", "5")
    assert trace.loss.tolist() == [[False, False], [True, True], [True, True]]


def two_exits():
    return CascadeSpec.of({"exit1": 1.0, "full": 1.0}, kind="exits")


@pytest.mark.parametrize(
    ("loader", "text"),
    [
        ([], "the loader has no inputs; give at least one"),
        ([(torch.zeros(0, 2, 3), torch.zeros(0).long())], "the loader has no inputs; give at leas"),
        ([(torch.full((3, 2, 3), NAN), torch.zeros(3).long())], "NaN logits for each of the 3 inp"),
    ],
)
def test_without_answers_there_is_no_trace(loader, text):
    with pytest.raises(TraceError, match=text):
        trace_of(echo_network(2), loader, spec=two_exits())


def test_an_empty_batch_among_others_changes_nothing():
    inputs, labels = evidence(20, seed=0)
    empty = (inputs[:0], labels[:0])
    found = trace_of(
        adding_network(), [empty, (inputs[:5], labels[:5]), empty, (inputs[5:], labels[5:])]
    )
    assert found.digest == trace_of(adding_network(), [(inputs, labels)]).digest


def test_half_precision():
    inputs, labels = evidence(60, seed=0)
    want = trace_of(adding_network(), batches(inputs, labels))
    # Evidence is whole numbers and small: bfloat16 holds it.
    for network, given, precision in (
        (adding_network().bfloat16(), inputs.bfloat16(), "fp32"),
        (adding_network(), inputs, "bf16"),
    ):
        trace = trace_of(network, batches(given, labels), precision=precision)
        assert np.array_equal(trace.confidence, want.confidence)
        assert trace.confidence.dtype == np.float64
    with pytest.raises(ArgumentError, match='"fp32" or "bf16", not \'fp16\''):
        trace_of(adding_network(), batches(inputs, labels), precision="fp16")
