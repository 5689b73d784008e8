"""ResNet with an exit after every residual block.

``exits_on_resnet`` takes any network with the parts of torchvision's or timm's ResNet: a stem
(``conv1``, ``bn1``, ``relu`` or ``act1``, ``maxpool``), stages ``layer1`` to ``layer4`` of residual
blocks (He et al. 2016), a pooling (``avgpool`` or ``global_pool``), and ``fc``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ttamer.errors import ArgumentError
from ttamer.torch.devices import evaluating
from ttamer.torch.early_exit import EarlyExit
from ttamer.torch.networks.vgg import check_classes, pooled_ramp

# The parts of a ResNet, each with the names it may have.
PARTS = (
    ("conv1",), ("bn1",), ("relu", "act1"), ("maxpool",), ("layer1",), ("layer2",), ("layer3",),
    ("layer4",), ("avgpool", "global_pool"), ("fc",),
)  # fmt: skip


def exits_on_resnet(
    model: nn.Module,
    *,
    classes: int,
    size: int,
    ramp: Callable[[int, int, int], nn.Module] | None = None,
) -> EarlyExit:
    """Put a ramp after every residual block of a ResNet but the last.

    Args:
        model: A module with the parts of torchvision's or timm's ResNet; its weights are shared.
        classes: The number of classes.
        size: The side of the images in pixels.
        ramp: A function that returns a ramp, given channels, side and classes; by default
            :func:`pooled_ramp`.

    Returns:
        The network with exits, named after the blocks (``layer1_0``); its full output is that of
        the model.

    Raises:
        ArgumentError: The model has other parts, its images are too small for its stages, or it has
            another number of classes.

    Example::

        network = exits_on_resnet(torchvision.models.resnet50(), classes=1000, size=224)
    """
    parts: list[Any] = []
    for allowed in PARTS:
        found = [getattr(model, name) for name in allowed if hasattr(model, name)]
        if not found or not isinstance(found[0], nn.Module):
            raise ArgumentError(
                f"{type(model).__name__} has no {' or '.join(allowed)}; for another layout use "
                "attach(model, points, example), or build EarlyExit(blocks, ramps, head)"
            )
        parts.append(found[0])
    stem, stages, (pool, classifier) = parts[:4], parts[4:8], parts[8:]
    blocks: list[nn.Module] = []
    names: list[str] = []
    for number, stage in enumerate(stages, start=1):
        for k, block in enumerate(stage):
            names.append(f"layer{number}_{k}")
            blocks.append(block if blocks else nn.Sequential(*stem, block))
    head = nn.Sequential(pool, nn.Flatten(), classifier)
    ramps: list[nn.Module] = []
    reference = next(model.parameters())
    value = torch.zeros((1, 3, size, size), device=reference.device, dtype=reference.dtype)
    try:
        with evaluating(model), torch.no_grad():
            for block in blocks[:-1]:
                value = block(value)
                ramps.append((ramp or pooled_ramp)(value.shape[1], value.shape[2], classes))
            logits = head(blocks[-1](value))
    except RuntimeError as error:
        raise ArgumentError(
            f"{type(model).__name__} cannot run on images of 3 x {size} x {size}: {error}"
        ) from error
    check_classes(model, logits.shape[1], classes)
    return EarlyExit(
        blocks, [each.to(reference) for each in ramps], head, names=[*names[:-1], "full"]
    )
