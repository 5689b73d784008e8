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

from ttamer import _lazy

__getattr__, __dir__, __all__ = _lazy.attach(__name__, extra="torch")
