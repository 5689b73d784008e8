"""A network with its policy in one folder."""

import copy
import json

import pytest
import torch
from torch import nn
from transformers import BertConfig, GPT2Config, LlamaConfig, MPNetConfig

from support.exit_networks import adding_network, evidence, fitted
from ttamer.errors import ArgumentError
from ttamer.solvers import solve
from ttamer.torch import (
    EarlyExit,
    GraphRunner,
    Runner,
    attach,
    bert,
    combine_exits,
    fold_batch_norm,
    gpt2,
    llama,
    mpnet,
    trace_of,
    vgg,
)
from ttamer.torch.pretrained import load_pretrained

SMALL = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
SMALL |= {"intermediate_size": 8}
TOKENS = (torch.arange(12).reshape(2, 6), torch.ones(2, 6, dtype=torch.bool))
FAMILIES = {
    "vgg": (lambda: vgg(11, width=4, classes=3, size=32), torch.randn(2, 3, 32, 32)),
    "bert": (lambda: bert(BertConfig(**SMALL), classes=3), TOKENS),
    "bert mean": (lambda: bert(BertConfig(**SMALL), classes=3, pool="mean"), TOKENS),
    "mpnet": (lambda: mpnet(MPNetConfig(**SMALL), classes=3), TOKENS),
    "llama": (lambda: llama(LlamaConfig(**SMALL), classes=3), TOKENS),
    "gpt2": (
        lambda: gpt2(
            GPT2Config(
                vocab_size=20, n_embd=8, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2
            ),
            classes=3,
        ),
        TOKENS,
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_built_again_from_its_folder(family, tmp_path):
    torch.manual_seed(0)
    make, inputs = FAMILIES[family]
    network = make().eval()
    network.save_pretrained(tmp_path / "new" / "folder")
    files = sorted(path.name for path in (tmp_path / "new" / "folder").iterdir())
    assert files == ["exits.json", "model.safetensors"]
    torch.manual_seed(1)
    loaded = EarlyExit.from_pretrained(tmp_path / "new" / "folder")
    assert loaded.names == network.names
    assert not loaded.training
    with torch.no_grad():
        for mine, theirs in zip(network(inputs), loaded(inputs), strict=True):
            assert torch.equal(mine, theirs)


@pytest.mark.parametrize("family", ["vgg", "bert", "llama"])
def test_a_family_is_built_again_in_its_precision(family, tmp_path):
    torch.manual_seed(0)
    make, inputs = FAMILIES[family]
    network = make().bfloat16().eval()
    inputs = inputs.bfloat16() if isinstance(inputs, torch.Tensor) else inputs
    labels = torch.tensor([0, 1])
    for each in (network, combine_exits(network, [(inputs, labels)])):  # fp32 in part
        each.save_pretrained(tmp_path)
        loaded = EarlyExit.from_pretrained(tmp_path)
        with torch.no_grad():
            for mine, theirs in zip(each(inputs), loaded(inputs), strict=True):
                assert mine.dtype == theirs.dtype
                assert torch.equal(mine, theirs)
        into = EarlyExit.from_pretrained(tmp_path, copy.deepcopy(each).float())
        assert {parameter.dtype for parameter in into.parameters()} == {torch.float32}


def test_a_network_that_cannot_be_saved_leaves_the_folder_as_it_is(tmp_path):
    class Packed(nn.Linear):
        def get_extra_state(self):
            return torch.int8

    network = adding_network()
    network.save_pretrained(tmp_path)
    network.exits[1] = Packed(2, 2)
    with pytest.raises(ArgumentError, match=r"exits\.1\._extra_state is not a tensor, as in netw"):
        network.save_pretrained(tmp_path)
    assert EarlyExit.from_pretrained(tmp_path, adding_network()).names == network.names


@pytest.mark.parametrize("build", [bert, mpnet])
def test_a_folder_that_does_not_record_its_ramps_has_dense_ones(build, tmp_path):
    small = {bert: BertConfig, mpnet: MPNetConfig}[build](**SMALL)
    network = build(small, classes=3, ramps="dense").eval()
    network.save_pretrained(tmp_path)
    config = dict(network.config)
    config.pop("ramps")
    changed(tmp_path, network=config)
    loaded = EarlyExit.from_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(network(TOKENS)[0], loaded(TOKENS)[0])


def test_other_networks_are_loaded_into_one_built_the_same_way(tmp_path):
    network = adding_network()
    with torch.no_grad():
        network.exits[0].linear.weight.mul_(2)
    network.save_pretrained(tmp_path)
    with pytest.raises(ArgumentError, match=r"belongs to no family.*give it as network="):
        EarlyExit.from_pretrained(tmp_path)
    inputs, _ = evidence(4, seed=0)
    given = adding_network()
    assert EarlyExit.from_pretrained(tmp_path, given) is given
    assert torch.equal(given(inputs)[0], network(inputs)[0])
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    attached = attach(model, ["0"], torch.randn(2, 4))
    attached.save_pretrained(tmp_path)
    again = attach(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)), ["0"], torch.randn(2, 4))
    EarlyExit.from_pretrained(tmp_path, again)
    assert torch.equal(again.full(torch.ones(2, 4)), model(torch.ones(2, 4)))
    fold_batch_norm(vgg(11, width=4)).save_pretrained(tmp_path)
    with pytest.raises(ArgumentError, match="belongs to no family"):
        EarlyExit.from_pretrained(tmp_path)


def test_the_policy_comes_with_it(tmp_path):
    ladder, inputs = fitted("full"), evidence(50, seed=3)[0]
    expected = Runner(adding_network(), ladder.at(0.9))(inputs)
    adding_network().save_pretrained(tmp_path, policy=ladder.at(0.9))
    found = Runner.from_pretrained(tmp_path, adding_network())(inputs)
    assert torch.equal(found.exit, expected.exit)
    assert torch.equal(found.asked, expected.asked)
    adding_network().save_pretrained(tmp_path, policy=ladder)
    with pytest.raises(ArgumentError, match="a ladder of policies; choose one by tradeoff="):
        Runner.from_pretrained(tmp_path, adding_network())
    found = Runner.from_pretrained(tmp_path, adding_network(), tradeoff=0.9)(inputs)
    assert torch.equal(found.exit, expected.exit)
    adding_network().save_pretrained(tmp_path)  # the old policy goes
    with pytest.raises(ArgumentError, match="has no policy"):
        Runner.from_pretrained(tmp_path, adding_network())


def test_a_runner_with_graphs_needs_an_example_and_a_gpu(tmp_path):
    adding_network().save_pretrained(tmp_path, policy=fitted("full").at(0.9))
    with pytest.raises(ArgumentError, match=r"give example=, or use Runner\.from_pretrained"):
        GraphRunner.from_pretrained(tmp_path, adding_network())
    inputs, _ = evidence(4, seed=0)
    with pytest.raises(ArgumentError, match="CUDA graphs need a GPU and Triton"):
        GraphRunner.from_pretrained(tmp_path, adding_network(), example=inputs)


def test_names_of_classes_come_with_it(tmp_path):
    from ttamer.fitting import fit

    inputs, labels = evidence(2000, seed=1)
    names = ["ant", "bee", "cat", "dog"]
    trace = trace_of(adding_network(), [(inputs, labels)], classes=names)
    policy = fit(trace, tradeoffs=[0.9])[0]
    adding_network().save_pretrained(tmp_path, policy=policy, classes=names)
    assert load_pretrained(tmp_path, adding_network()).classes == tuple(names)
    found = Runner.from_pretrained(tmp_path, adding_network())(inputs[:20])
    expected = Runner(adding_network(), policy, classes=names)(inputs[:20])
    assert torch.equal(found.exit, expected.exit)


def test_a_policy_for_other_exits_is_refused(tmp_path):
    network = EarlyExit([nn.Identity()], [], nn.Linear(4, 2), names=["other"])
    with pytest.raises(ArgumentError, match="the policy is for exit1, exit2, exit3, full"):
        network.save_pretrained(tmp_path, policy=fitted("full").at(0.9))
    with pytest.raises(ArgumentError, match="policy is a str; it must be a fitted policy or lad"):
        network.save_pretrained(tmp_path, policy="best")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda p: (p / "exits.json").unlink(), "no readable exits.json"),
        (lambda p: (p / "exits.json").write_text("["), "no readable exits.json"),
        (lambda p: (p / "exits.json").write_text("[]"), "no readable exits.json"),
        (lambda p: changed(p, format="new"), "not the description of a network"),
        (lambda p: changed(p, format=2), "format 2 is newer than 1; upgrade"),
        (lambda p: changed(p, names=["a"]), "the exits are a, and those of the network"),
        (lambda p: changed(p, network={"family": "toaster"}), "family 'toaster'"),
        (lambda p: changed(p, network={"family": "vgg", "deep": 3}), "cannot build a network"),
        (lambda p: (p / "model.safetensors").unlink(), "cannot be read"),
        (lambda p: (p / "model.safetensors").write_bytes(b"x" * 50), "cannot be read"),
        (lambda p: vgg(11, width=4).save_pretrained(p), r"has shape \(10, 1024\) in the file"),
    ],
    ids=range(11),
)
def test_folders_that_do_not_fit_are_refused(tmp_path, damage, text):
    vgg(11, width=8).save_pretrained(tmp_path)
    damage(tmp_path)
    network = vgg(11, width=8) if "shape" in text else None
    with pytest.raises(ArgumentError, match=text):
        EarlyExit.from_pretrained(tmp_path, network)


def changed(folder, **changes):
    path = folder / "exits.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_file_without_some_weights_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    vgg(11, width=8).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights.pop("exits.0.2.bias")
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ArgumentError, match=r"exits\.0\.2\.bias is missing"):
        EarlyExit.from_pretrained(tmp_path)


def test_a_solved_policy_is_refused(tmp_path):
    from ttamer import save

    policy = fitted("calibrated").at(0.9)
    adding_network().save_pretrained(tmp_path, policy=policy)
    save(solve(policy.policy.problem, 0.9), tmp_path / "policy.ttamer")
    with pytest.raises(ArgumentError, match="must be a fitted policy or ladder"):
        load_pretrained(tmp_path, adding_network())
