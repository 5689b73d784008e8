"""A network with its policy in one folder."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from support.exit_networks import adding_network, convolutions, evidence, fitted
from ttamer import save
from ttamer.errors import ArgumentError
from ttamer.torch import EarlyExit, Runner, attach, load_pretrained, save_pretrained


def test_weights_policy_and_classes_come_back(tmp_path):
    network, ladder, inputs = adding_network(), fitted(), evidence(50, seed=3)[0]
    with torch.no_grad():
        network.exits[0].linear.weight.mul_(2)
    expected = Runner(network, ladder.at(0.9))(inputs)
    save_pretrained(network, tmp_path / "new" / "folder", policy=ladder, classes=list("abcd"))
    again = adding_network().train()
    policies, classes = load_pretrained(tmp_path / "new" / "folder", again)
    assert not again.training
    assert classes == tuple("abcd")
    answers = Runner(again, policies.at(0.9))(inputs)
    assert torch.equal(answers.exit, expected.exit)
    assert torch.equal(answers.logits, expected.logits)
    save_pretrained(network, tmp_path / "new" / "folder")  # the old policy goes
    assert load_pretrained(tmp_path / "new" / "folder", again) == (None, None)


def test_an_attached_network_is_loaded_into_one_attached_in_the_same_way(tmp_path):
    def model():
        return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))

    network, again = (attach(model(), ["0"], torch.randn(2, 4)) for _ in range(2))
    save_pretrained(network, tmp_path)
    load_pretrained(tmp_path, again)
    assert torch.equal(again.full(torch.ones(2, 4)), network.full(torch.ones(2, 4)))


def test_a_network_that_cannot_be_saved_leaves_the_folder_as_it_is(tmp_path):
    class Packed(nn.Linear):
        def get_extra_state(self):
            return torch.int8

    network = adding_network()
    save_pretrained(network, tmp_path)
    network.exits[1] = Packed(2, 2)
    with pytest.raises(ArgumentError, match=r"exits\.1\._extra_state is not a tensor, as in netw"):
        save_pretrained(network, tmp_path)
    load_pretrained(tmp_path, adding_network())


def test_a_policy_for_other_exits_is_refused(tmp_path):
    network = EarlyExit([nn.Identity()], [], nn.Linear(4, 2), names=["other"])
    with pytest.raises(ArgumentError, match="the policy is for exit1, exit2, exit3, full"):
        save_pretrained(network, tmp_path, policy=fitted().at(0.9))
    with pytest.raises(ArgumentError, match="policy is a str; it must be a fitted policy or lad"):
        save_pretrained(network, tmp_path, policy="best")
    assert list(tmp_path.iterdir()) == []
    policy = fitted("markov").at(0.9)
    save_pretrained(adding_network(), tmp_path, policy=policy)
    save(policy.rule.solved, tmp_path / "policy.ttamer")
    with pytest.raises(ArgumentError, match="must be a fitted policy or ladder"):
        load_pretrained(tmp_path, adding_network())


def rewritten(folder, facts=None, without=None):
    """Write the weights again, with other facts or without one of them."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights.pop(without, None)
    save_file(
        weights, path, facts or {"exits": '["exit1", "exit2", "exit3", "full"]', "classes": "null"}
    )


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda p: (p / "model.safetensors").unlink(), "cannot be loaded: No such file"),
        (lambda p: (p / "model.safetensors").write_bytes(b"x" * 50), "cannot be loaded"),
        (lambda p: rewritten(p, {"other": "[]"}), "cannot be loaded: 'exits'"),
        (lambda p: rewritten(p, {"exits": "[", "classes": "null"}), "cannot be loaded"),
        (
            lambda p: rewritten(p, {"exits": '["a"]', "classes": "null"}),
            r"the exits are \['a'\], not \['exit1'",
        ),
        (lambda p: rewritten(p, without="exits.0.2.bias"), r"(?s)cannot be.*exits\.0\.2\.bias"),
        (lambda p: save_pretrained(convolutions(3, width=8), p), "(?s)cannot be loaded.*size mism"),
    ],
    ids=range(7),
)
def test_folders_that_do_not_fit_are_refused(tmp_path, damage, text):
    save_pretrained(convolutions(3), tmp_path)
    damage(tmp_path)
    network = convolutions(3)
    before = [part.clone() for part in network.state_dict().values()]
    with pytest.raises(ArgumentError, match=text):
        load_pretrained(tmp_path, network)
    if "size" not in text and "bias" not in text:
        assert all(map(torch.equal, before, network.state_dict().values()))
