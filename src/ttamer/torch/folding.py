"""Batch normalisation folded into the convolution before it: the same network in fewer steps."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

if TYPE_CHECKING:
    from ttamer.torch.early_exit import EarlyExit

__all__ = ["folded"]


def folded(network: EarlyExit) -> EarlyExit:
    """Return a copy for inference, every batch normalisation folded into its convolution.

    >>> from torch import nn
    >>> from ttamer.torch.vgg_exits import vgg
    >>> sum(isinstance(module, nn.BatchNorm2d) for module in folded(vgg(11, width=8)).modules())
    0
    """
    copy = deepcopy(network).eval()
    for part in [module for module in copy.modules() if isinstance(module, nn.Sequential)]:
        layers = list(part.children())
        kept: list[nn.Module] = []
        for layer in layers:
            if isinstance(layer, nn.BatchNorm2d) and kept and isinstance(kept[-1], nn.Conv2d):
                kept[-1] = fuse_conv_bn_eval(kept[-1], layer)
            else:
                kept.append(layer)
        if len(kept) < len(layers):
            for name in list(part._modules):
                del part._modules[name]
            for number, layer in enumerate(kept):
                part.add_module(str(number), layer)
    return copy
