"""Traces of networks: the answer of every exit to every input, in one pass."""

import numpy as np
import pytest
import torch
from torch import nn

from support.exit_networks import (
    CLASSES,
    EXITS,
    Calls,
    adding_network,
    batches,
    echo_network,
    evidence,
    pair_network,
    pair_of,
)
from ttamer.cascade import CascadeSpec
from ttamer.errors import ArgumentError, TraceError
from ttamer.torch.profiling import Costs, count_flops
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
    calls = Calls.of(network)
    trace_of(network, batches(inputs, labels, 16), spec=spec)
    assert calls.segments == calls.ramps == {k: [16, 16, 8] for k in range(EXITS)}


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


def test_a_cascade_that_is_given_is_kept():
    spec = Costs(adding_network().names, (1.0,) * EXITS, (0.5,) * EXITS, "s").spec()
    inputs, labels = evidence(10, seed=0)
    trace = trace_of(adding_network(), batches(inputs, labels), spec=spec)
    assert trace.spec is spec


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


def test_where_all_rows_have_nan_logits_there_is_no_trace():
    inputs, labels = evidence(3, seed=0)
    with pytest.raises(TraceError, match="NaN logits for each of the 3 inputs"):
        trace_of(adding_network(), [(inputs * float("nan"), labels)])


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


@pytest.mark.parametrize("spec", [None, two_exits()])
@pytest.mark.parametrize(
    "loader",
    [[], [(torch.zeros(0, 2, 3), torch.zeros(0, dtype=torch.int64))]],
    ids=["no batch", "an empty batch"],
)
def test_without_inputs_there_is_no_trace(loader, spec):
    with pytest.raises(TraceError, match="the loader has no inputs; give at least one"):
        trace_of(echo_network(2), loader, spec=spec)


def test_an_empty_batch_among_others_changes_nothing():
    inputs, labels = evidence(20, seed=0)
    empty = (inputs[:0], labels[:0])
    found = trace_of(
        adding_network(), [empty, (inputs[:5], labels[:5]), empty, (inputs[5:], labels[5:])]
    )
    assert found.digest == trace_of(adding_network(), [(inputs, labels)]).digest


def test_tuples_and_lists_of_tensors_are_inputs():
    inputs, labels = evidence(20, seed=0)
    spec = CascadeSpec.of(dict.fromkeys(adding_network().names, 1.0), kind="exits")
    want = trace_of(adding_network(), [(inputs, labels)], spec=spec)
    for kind in (tuple, list):
        found = trace_of(pair_network(), [(kind(pair_of(inputs)), labels)], spec=spec)
        assert found.digest == want.digest
    with pytest.raises(ArgumentError, match="a tensor, or a tuple of tensors, not dict"):
        trace_of(adding_network(), [({"inputs": inputs}, labels)])


def test_progress_is_reported_in_rows():
    done = []
    inputs, labels = evidence(40, seed=0)
    trace_of(adding_network(), batches(inputs, labels, 16), progress=done.append)
    assert done == [16, 32, 40]


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


def test_a_trace_can_be_written_and_read(tmp_path):
    inputs, labels = evidence(30, seed=0)
    trace = trace_of(adding_network(), batches(inputs, labels))
    trace.write(tmp_path / "trace.npz")
    assert type(trace).read(tmp_path / "trace.npz").digest == trace.digest
    assert trace.confidence.shape == (30, EXITS)
    assert len(trace.classes) == CLASSES
