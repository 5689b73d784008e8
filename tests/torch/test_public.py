"""The names of ``ttamer.torch``: frozen, and each of them there."""

from pathlib import Path

from support.public import names_of
from ttamer import torch as exits

NAMES = [
    "Answers",
    "Costs",
    "EarlyExit",
    "GraphRunner",
    "Profile",
    "Recipe",
    "Runner",
    "Tuning",
    "attach",
    "count_flops",
    "load_pretrained",
    "pooled_ramp",
    "profile",
    "recommend",
    "save_pretrained",
    "threshold_tables",
    "trace_of",
    "train",
]


def test_the_public_names():
    assert names_of("ttamer.torch") == NAMES
    for name in NAMES:
        assert callable(getattr(exits, name))


def test_kernels_and_graphs_have_one_entry_point():
    package = Path(exits.__file__).parent
    for file in package.glob("*.py"):
        assert "ttamer.torch.cuda." not in file.read_text("utf-8"), file.name
