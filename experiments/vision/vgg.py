"""VGG-11, 13 and 16 for small images, with an exit after every convolution block.

The layers are those of Simonyan and Zisserman (2015), with batch normalisation.
"""

from __future__ import annotations

from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ttamer import torch as exits

LAYERS = {
    11: ((64, 1), (128, 1), (256, 2), (512, 2), (512, 2)),
    13: ((64, 2), (128, 2), (256, 2), (512, 2), (512, 2)),
    16: ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)),
}
"""By depth: (channels, convolutions) of each of the five stages; each ends with a pooling."""


def vgg(depth: int, *, classes: int = 10, size: int = 32, width: int = 64) -> exits.EarlyExit:
    """Return a network with random weights; ``width``: the channels of the first stage."""
    blocks: list[nn.Module] = []
    ramps: list[nn.Module] = []
    channels, side = 3, size
    for wide, convolutions in LAYERS[depth]:
        for number in range(convolutions):
            out = wide * width // 64
            convolution = nn.Conv2d(channels, out, 3, padding=1, bias=False)
            nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
            layers = [convolution, nn.BatchNorm2d(out), nn.ReLU(inplace=True)]
            channels = out
            if number == convolutions - 1:
                layers.append(nn.MaxPool2d(2))
                side //= 2
            blocks.append(nn.Sequential(*layers))
            ramps.append(exits.pooled_ramp(channels, side, classes))
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
    names = [*(f"conv{k}" for k in range(1, len(blocks))), "full"]
    return exits.EarlyExit(blocks, ramps[:-1], head, names=names)


def folded(network: exits.EarlyExit) -> exits.EarlyExit:
    """Return the network for inference: batch normalisations are folded into convolutions."""
    network.eval()
    for block in [part for part in network.modules() if isinstance(part, nn.Sequential)]:
        for k in reversed(range(len(block) - 1)):
            if isinstance(block[k], nn.Conv2d) and isinstance(block[k + 1], nn.BatchNorm2d):
                block[k] = fuse_conv_bn_eval(block[k], block[k + 1])
                del block[k + 1]
    return network
