"""The names of ``ttamer.torch``: frozen, and each of them there."""

from support.public import names_of
from ttamer import torch as exits

NAMES = [
    "Answers",
    "CombinedExits",
    "Costs",
    "EarlyExit",
    "GraphRunner",
    "Profile",
    "Recipe",
    "Recommendation",
    "Regrouping",
    "Runner",
    "attach",
    "bert",
    "combine_exits",
    "convolutional_ramp",
    "count_flops",
    "exits_on_bert",
    "exits_on_gpt2",
    "exits_on_llama",
    "exits_on_mpnet",
    "exits_on_resnet",
    "exits_on_vgg",
    "export_onnx",
    "fold_batch_norm",
    "gpt2",
    "llama",
    "mpnet",
    "pooled_ramp",
    "profile",
    "recommend",
    "threshold_tables",
    "trace_of",
    "train",
    "vgg",
]


def test_the_public_names():
    assert names_of("ttamer.torch") == NAMES
    for name in NAMES:
        assert callable(getattr(exits, name))
