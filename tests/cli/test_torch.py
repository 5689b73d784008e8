"""``ttamer torch``: played as a newcomer would."""

import json

import pytest

from ttamer.cascade import CascadeSpec
from ttamer.cli import main
from ttamer.torch import profiling
from ttamer.torch.profiling import Profile

MODULE = """
from torch import nn, zeros
from ttamer.torch import EarlyExit

def tiny():
    blocks = [nn.Linear(4, 4), nn.Linear(4, 4)]
    return EarlyExit(blocks, [nn.Linear(4, 2)], nn.Linear(4, 2)), zeros(3, 4)

def by_name():
    network, inputs = tiny()
    network.input_names = ("inputs",)
    return network, {"inputs": inputs}

def nothing():
    return 3

def broken():
    raise RuntimeError("there are no weights")
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    (tmp_path / "my_networks.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)


def test_a_network_of_ones_own_is_profiled(capsys):
    argv = ["torch", "profile", "my_networks:tiny", "--batch", "2,1", "--device", "cpu"]
    assert main([*argv, "--cascade", "cascade.toml", "--threads", "1"]) == 0
    out = capsys.readouterr().out
    assert "my_networks:tiny on cpu, fp32" in out
    assert "reach, 1" in out
    assert "the network, no ramps" in out
    assert "once per call with exits" in out
    spec = CascadeSpec.from_file("cascade.toml")
    assert (spec.names, spec.kind, spec.asks_each) == (("exit1", "full"), "exits", False)
    assert main([*argv, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sizes"] == [1, 2]


def test_an_example_may_be_a_mapping(capsys):
    assert main(["torch", "profile", "my_networks:by_name", "--batch", "2", "--device", "cpu"]) == 0
    assert "my_networks:by_name on cpu, fp32" in capsys.readouterr().out


def test_columns_are_of_the_batch_sizes_that_were_asked_for(monkeypatch, capsys):
    times = ((0.001, 0.002, 0.004), (0.003, 0.006, 0.009))
    found = Profile(
        names=("early", "full"),
        sizes=(1, 8),
        groups=(1, 4, 8),
        segments=times,
        asking=((0.011, 0.012), (0.013, 0.014)),
        device="a test",
        precision="fp32",
        graphs=False,
        per_call=(0.021, 0.022),
    )
    monkeypatch.setattr(profiling, "profile", lambda *_, **__: found)
    assert main(["torch", "profile", "my_networks:tiny", "--device", "cpu"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["early", "1", "11", "4", "12"] in lines
    assert ["full", "3", "13", "9", "14"] in lines
    assert ["once", "per", "call", "with", "exits", "-", "21", "-", "22"] in lines


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["nope"], "there is no network 'nope'; name a function of yours"),
        (["my_networks:missing"], "my_networks:missing cannot be imported"),
        (["no_such_module:x"], "no_such_module:x cannot be imported"),
        (["my_networks:broken"], "unexpected RuntimeError: there are no weights"),
        (["my_networks:nothing"], "returned int; it must return an EarlyExit"),
        (["my_networks:tiny", "--device", "cuda:77"], "--device cuda:77: cannot be used"),
        (["my_networks:tiny", "--device", "toaster"], "--device toaster: cannot be used"),
        (
            ["my_networks:tiny", "--batch", "0", "--device", "cpu"],
            "a batch size is 0; it must be a whole",
        ),
        (["my_networks:tiny", "--threads", "0"], "'--threads': 0 is not in the range"),
        (["my_networks:tiny", "--graphs", "--device", "cpu"], "CUDA graphs need a network on"),
    ],
)
def test_errors_are_one_line(capsys, argv, error):
    assert main(["torch", "profile", *argv]) == 2
    err = capsys.readouterr().err.splitlines()[-1]
    assert "error: " in err
    assert error in err
