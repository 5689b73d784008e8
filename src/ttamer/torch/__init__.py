"""Early-exit networks in PyTorch: exits, training, traces, costs, and running with a policy.

::

    from ttamer import torch as exits

    network = exits.attach(model, "encoder.layers", example)
    exits.train(network, loader, exits.Recipe("ramps", epochs=5, rate=0.02))
    trace = exits.trace_of(network, held_out_loader)

    advice = exits.recommend(network, trace, inputs, batch=32, more_error=0.01)
    advice.speed_up, advice.error
    logits = advice.run(batch)
"""

from ttamer._checks import require

require("torch", "torch")

from ttamer.torch.attaching import attach as attach
from ttamer.torch.cuda import GraphRunner as GraphRunner
from ttamer.torch.deciding import threshold_tables as threshold_tables
from ttamer.torch.early_exit import EarlyExit as EarlyExit, pooled_ramp as pooled_ramp
from ttamer.torch.pretrained import (
    load_pretrained as load_pretrained,
    save_pretrained as save_pretrained,
)
from ttamer.torch.profiling import (
    Costs as Costs,
    Profile as Profile,
    count_flops as count_flops,
    profile as profile,
)
from ttamer.torch.runner import Answers as Answers, Runner as Runner
from ttamer.torch.tracing import trace_of as trace_of
from ttamer.torch.training import Recipe as Recipe, train as train
from ttamer.torch.tuning import Tuning as Tuning, recommend as recommend
