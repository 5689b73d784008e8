"""The names of ``ttamer.torch``: frozen, and each of them there."""

from support.public import names_of
from ttamer import torch as exits

NAMES = [
    "Answers",
    "Costs",
    "EarlyExit",
    "GraphRunner",
    "Profile",
    "Recipe",
    "Regrouping",
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
