"""Hops and groups, with work done again in place of graphs replayed: there is no GPU here."""

import pytest
import torch

from support.exit_networks import adding_network, by_session, evidence, fitted
from ttamer.errors import ArgumentError
from ttamer.torch import graphs
from ttamer.torch import runner as running
from ttamer.torch.decide_triton import TritonDecider
from ttamer.torch.graphs import GraphRunner, full_graph
from ttamer.torch.runner import Regrouping, Runner

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered")


@pytest.fixture
def replayed(monkeypatch):
    """Let capturing run the work as a warm-up and a capture do, and replaying run it again."""
    capturing = []
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: bool(capturing))
    monkeypatch.setattr(running, "decider_for", TritonDecider)

    def captured(work, pool=None):  # noqa: ARG001
        work()
        capturing.append(True)
        work()
        capturing.pop()
        return work

    monkeypatch.setattr(graphs, "captured", captured)


def same(one, two):
    """Compare answers; what was not asked does not count."""
    assert torch.equal(one.exit, two.exit)
    assert torch.equal(one.asked, two.asked)
    assert torch.equal(torch.nan_to_num(one.logits, nan=9.0), torch.nan_to_num(two.logits, nan=9.0))


@pytest.mark.usefixtures("replayed")
@pytest.mark.parametrize(
    ("regrouping", "tradeoff"),
    [(Regrouping.always(), 0.97), (Regrouping.always(), 1.0), (Regrouping.never(), 0.97)],
    ids=str,
)
def test_graphs_answer_as_a_plain_runner_does(regrouping, tradeoff):
    network, policy = adding_network(3), fitted("full", skip=True, exits=3).at(tradeoff)
    batches = [
        evidence(rows, seed=seed, exits=3, broken=0.1)[0] for seed, rows in enumerate([12, 5, 1])
    ]
    runner = GraphRunner(network, policy, batches[0], regrouping=regrouping)
    assert runner.batch == 12
    plain = Runner(network, policy)
    for batch in (*batches, batches[0]):  # what a batch leaves behind must not matter to the next
        same(plain(batch), runner(batch))


@pytest.mark.usefixtures("replayed")
def test_graphs_decide_as_sessions_do():
    policy = fitted("full", skip=False).at(0.97)
    inputs = evidence(24, seed=9)[0]
    answers = GraphRunner(adding_network(), policy, inputs)(inputs)
    names = adding_network().names
    for row, (asked, answer, _) in enumerate(by_session(policy, names, answers)):
        assert asked == tuple(names[k] for k in torch.nonzero(answers.asked[row])[:, 0])
        assert answer == names[answers.exit[row]]


@pytest.mark.usefixtures("replayed")
def test_a_batch_that_does_not_fit_is_refused():
    runner = GraphRunner(
        adding_network(), fitted("full", skip=True).at(0.9), evidence(4, seed=0)[0]
    )
    for rows in (0, 5):
        with pytest.raises(ArgumentError, match=f"the batch has {rows} rows"):
            runner(torch.zeros(rows, evidence(1, seed=0)[0].shape[1]))


@pytest.mark.usefixtures("replayed")
def test_the_whole_network_as_one_graph():
    network, (inputs, _) = adding_network().eval(), evidence(6, seed=1)
    other = evidence(6, seed=2)[0]
    run = full_graph(network, inputs)
    assert torch.equal(run(other), network.full(other))


def test_without_a_gpu_there_are_no_graphs():
    with pytest.raises(ArgumentError, match="CUDA graphs need a GPU and Triton"):
        GraphRunner(adding_network(), fitted("full", skip=True).at(0.9), evidence(4, seed=0)[0])
