"""Early-exit networks in PyTorch: exits, training, traces, costs, and running with a policy.

::

    from ttamer import torch as exits

    network = exits.EarlyExit(blocks, ramps, head)
    exits.train(network, loader, exits.Recipe("backbone", epochs=30, rate=0.1))
    exits.train(network, loader, exits.Recipe("ramps", epochs=5, rate=0.02))
    trace = exits.trace_of(network, held_out_loader)

    found = exits.recommend(network, trace, inputs, batch=32, more_error=0.01)
    found.speed_up, found.error
    logits = found.run(batch)
"""

from typing import TYPE_CHECKING

from ttamer.lazy_names import lazy_names

if TYPE_CHECKING:
    from ttamer.torch.bert_exits import bert, exits_on_bert
    from ttamer.torch.costs import Costs
    from ttamer.torch.early_exit import EarlyExit
    from ttamer.torch.flops import count_flops
    from ttamer.torch.folding import folded
    from ttamer.torch.gpt2_exits import exits_on_gpt2, gpt2
    from ttamer.torch.graphs import GraphRunner
    from ttamer.torch.profiling import Profile, profile
    from ttamer.torch.regrouping import Regrouping
    from ttamer.torch.running import Answers, Runner
    from ttamer.torch.tables import threshold_tables
    from ttamer.torch.tracing import trace_of
    from ttamer.torch.training import Recipe, train
    from ttamer.torch.tuning import Recommendation, recommend
    from ttamer.torch.vgg_exits import exits_on_vgg, pooled_ramp, vgg

# Where each public name lives; they load when first used.
_HOMES = {
    "bert_exits": ("bert", "exits_on_bert"),
    "costs": ("Costs",),
    "early_exit": ("EarlyExit",),
    "flops": ("count_flops",),
    "folding": ("folded",),
    "gpt2_exits": ("exits_on_gpt2", "gpt2"),
    "graphs": ("GraphRunner",),
    "profiling": ("Profile", "profile"),
    "regrouping": ("Regrouping",),
    "running": ("Answers", "Runner"),
    "tables": ("threshold_tables",),
    "tracing": ("trace_of",),
    "training": ("Recipe", "train"),
    "tuning": ("Recommendation", "recommend"),
    "vgg_exits": ("exits_on_vgg", "pooled_ramp", "vgg"),
}

__all__ = [
    "Answers",
    "Costs",
    "EarlyExit",
    "GraphRunner",
    "Profile",
    "Recipe",
    "Recommendation",
    "Regrouping",
    "Runner",
    "bert",
    "count_flops",
    "exits_on_bert",
    "exits_on_gpt2",
    "exits_on_vgg",
    "folded",
    "gpt2",
    "pooled_ramp",
    "profile",
    "recommend",
    "threshold_tables",
    "trace_of",
    "train",
    "vgg",
]


__getattr__ = lazy_names("ttamer.torch", _HOMES, needs="torch")


def __dir__() -> list[str]:
    return __all__
