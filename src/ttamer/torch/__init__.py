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

from ttamer._extras import require

require("torch", "torch")

from ttamer.torch.attaching import attach as attach
from ttamer.torch.combining import CombinedExits as CombinedExits, combine_exits as combine_exits
from ttamer.torch.costs import Costs as Costs, count_flops as count_flops
from ttamer.torch.early_exit import EarlyExit as EarlyExit, fold_batch_norm as fold_batch_norm
from ttamer.torch.graphs import GraphRunner as GraphRunner
from ttamer.torch.networks.decoders import (
    exits_on_gpt2 as exits_on_gpt2,
    exits_on_llama as exits_on_llama,
    gpt2 as gpt2,
    llama as llama,
)
from ttamer.torch.networks.encoders import (
    bert as bert,
    exits_on_bert as exits_on_bert,
    exits_on_mpnet as exits_on_mpnet,
    mpnet as mpnet,
)
from ttamer.torch.networks.resnet import exits_on_resnet as exits_on_resnet
from ttamer.torch.networks.vgg import (
    convolutional_ramp as convolutional_ramp,
    exits_on_vgg as exits_on_vgg,
    pooled_ramp as pooled_ramp,
    vgg as vgg,
)
from ttamer.torch.onnx_export import export_onnx as export_onnx
from ttamer.torch.profiling import Profile as Profile, profile as profile
from ttamer.torch.runner import Answers as Answers, Regrouping as Regrouping, Runner as Runner
from ttamer.torch.tables import threshold_tables as threshold_tables
from ttamer.torch.tracing import trace_of as trace_of
from ttamer.torch.training import Recipe as Recipe, train as train
from ttamer.torch.tuning import Recommendation as Recommendation, recommend as recommend
