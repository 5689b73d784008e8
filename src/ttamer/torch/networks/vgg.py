"""VGG-11, 13 and 16 with an exit after every convolution block, and ramps for feature maps.

The layers are those of Simonyan and Zisserman (2015), with batch normalisation. ``exits_on_vgg``
takes any network with the parts of torchvision's VGG (``features``, ``avgpool``, ``classifier``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, cast

from torch import nn

from ttamer.errors import ArgumentError
from ttamer.torch.early_exit import EarlyExit

# By depth: (channels, convolutions) of each of the five stages; each ends with a pooling.
LAYERS: dict[int, tuple[tuple[int, int], ...]] = {
    11: ((64, 1), (128, 1), (256, 2), (512, 2), (512, 2)),
    13: ((64, 2), (128, 2), (256, 2), (512, 2), (512, 2)),
    16: ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)),
}
# The largest number of pooled features that a ramp reads, unless there are more channels.
MAX_FEATURES = 2048
# The largest side of the maps that a convolutional ramp reads, and the largest that it does not
# halve.
MAX_SIDE, MIN_SIDE = 28, 8
# The largest number of values that a convolutional ramp reads, unless its maps are small.
MAX_VALUES = 128 * MAX_SIDE**2


class VGG(nn.Module):
    """VGG with batch normalisation, with the parts of torchvision's."""

    def __init__(self, depth: int, *, classes: int, width: int = 64) -> None:
        super().__init__()
        if depth not in LAYERS:
            raise ArgumentError(f"there is no VGG-{depth}; the depth must be 11, 13 or 16")
        features: list[nn.Module] = []
        channels = 3
        for wide, convolutions in LAYERS[depth]:
            out = wide * width // 64
            for _ in range(convolutions):
                features += [
                    nn.Conv2d(channels, out, 3, padding=1, bias=False),
                    nn.BatchNorm2d(out),
                    nn.ReLU(inplace=True),
                ]
                channels = out
            features.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*features)
        self.avgpool: nn.Module = nn.AdaptiveAvgPool2d(1)
        self.classifier: nn.Module = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def vgg(
    depth: int,
    *,
    classes: int = 10,
    size: int = 32,
    width: int = 64,
    ramps: Literal["pooled", "convolutional"] = "pooled",
) -> EarlyExit:
    """Return VGG with an exit after every convolution block, for square images.

    Args:
        depth: 11, 13 or 16.
        classes: The number of classes.
        size: The side of the images in pixels.
        width: The number of channels of the first stage: 64 in the paper, fewer for tests.
        ramps: What the ramps are: :func:`pooled_ramp` or :func:`convolutional_ramp`.

    Returns:
        A network with random weights.

    Raises:
        ArgumentError: There is no VGG of this depth, or there are no such ramps.

    >>> vgg(11, width=8).names
    ('conv1', 'conv2', 'conv3', 'conv4', 'conv5', 'conv6', 'conv7', 'full')
    """
    kinds = {"pooled": pooled_ramp, "convolutional": convolutional_ramp}
    if ramps not in kinds:
        raise ArgumentError(f"ramps must be one of {', '.join(kinds)}, not {ramps!r}")
    model = VGG(depth, classes=classes, width=width)
    network = exits_on_vgg(model, classes=classes, size=size, ramp=kinds[ramps])
    network.config = {"family": "vgg", "depth": depth, "classes": classes, "size": size,
                      "width": width}  # fmt: skip
    if ramps != "pooled":
        network.config["ramps"] = ramps
    return network


def exits_on_vgg(
    model: nn.Module,
    *,
    classes: int,
    size: int,
    ramp: Callable[[int, int, int], nn.Module] | None = None,
) -> EarlyExit:
    """Put a ramp after every convolution block of a VGG with the parts of torchvision's.

    Args:
        model: A module with ``features``, ``avgpool`` and ``classifier``; its weights are shared.
        classes: The number of classes.
        size: The side of the images in pixels.
        ramp: A function that returns a ramp, given channels, side and classes; by default
            :func:`pooled_ramp`.

    Returns:
        The network with exits; its full output is that of the model.

    Raises:
        ArgumentError: The model has other parts, or another number of classes.

    >>> exits_on_vgg(VGG(11, classes=5, width=8), classes=5, size=32).names[-2:]
    ('conv7', 'full')
    """
    parts = [getattr(model, part, None) for part in ("features", "avgpool", "classifier")]
    if not all(isinstance(part, nn.Module) for part in parts):
        raise ArgumentError(
            f"{type(model).__name__} has no features, avgpool and classifier; for another layout "
            "build EarlyExit(blocks, ramps, head) from its parts"
        )
    features, avgpool, classifier = (cast("nn.Module", part) for part in parts)
    blocks = _blocks(list(features.children()))
    linear = [layer for layer in classifier.modules() if isinstance(layer, nn.Linear)]
    if linear:
        check_classes(model, linear[-1].out_features, classes)
    ramps, side = [], size
    for block in blocks[:-1]:
        channels = next(m for m in block if isinstance(m, nn.Conv2d)).out_channels
        side //= 2 ** sum(isinstance(m, nn.MaxPool2d) for m in block)
        ramps.append((ramp or pooled_ramp)(channels, side, classes))
    head = nn.Sequential(avgpool, nn.Flatten(), classifier)
    names = [*(f"conv{k}" for k in range(1, len(blocks))), "full"]
    reference = next(model.parameters())
    return EarlyExit(blocks, [each.to(reference) for each in ramps], head, names=names)


def check_classes(model: nn.Module, found: int, classes: int) -> None:
    """Refuse ramps for another number of classes than the head of a model has."""
    if found != classes:
        raise ArgumentError(
            f"the head of {type(model).__name__} is for {found} classes, and classes is {classes}: "
            f"give classes={found}, or a model with another head"
        )


def pooled_ramp(channels: int, side: int, classes: int) -> nn.Sequential:
    """Return a ramp for feature maps: average pooling to a small square, then one linear layer.

    Args:
        channels: The number of channels.
        side: The side of the feature maps.
        classes: The number of classes.

    Returns:
        Pooling, flattening, and a linear layer.

    >>> pooled_ramp(64, 32, 10)[2].in_features
    1024
    """
    square = 1
    while square * 2 <= side and channels * (square * 2) ** 2 <= MAX_FEATURES:
        square *= 2
    # Where the side is a multiple, plain pooling is the same and faster.
    pool = nn.AvgPool2d(side // square) if side % square == 0 else nn.AdaptiveAvgPool2d(square)
    return nn.Sequential(pool, nn.Flatten(), nn.Linear(channels * square**2, classes))


def convolutional_ramp(
    channels: int, side: int, classes: int, *, width: int = 128
) -> nn.Sequential:
    """Return a ramp for large feature maps: average pooling, one to three convolutions, a layer.

    After few convolutions on large images a place in a map depends on few pixels, and a linear
    layer cannot tell classes apart. The convolutions of the ramp see the whole image, on maps of at
    most 28 x 28. They have about 1% of the operations of VGG-16 at 224 x 224.

    Args:
        channels: The number of channels.
        side: The side of the feature maps.
        classes: The number of classes.
        width: The number of channels of the ramp's convolutions.

    Returns:
        The layers; they take maps of other sides too.

    >>> ramp = convolutional_ramp(64, 112, 10)
    >>> sum(isinstance(layer, nn.Conv2d) for layer in ramp)
    3
    """
    step = 1
    while side // step > MAX_SIDE or (
        side // step > MIN_SIDE and channels * (side // step) ** 2 > MAX_VALUES
    ):
        step *= 2
    layers: list[nn.Module] = [nn.AvgPool2d(step)] if step > 1 else []
    left = side // step
    while True:
        layers += [
            nn.Conv2d(channels, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
        ]
        channels = width
        if left <= MIN_SIDE:
            break
        layers.append(nn.MaxPool2d(2))
        left //= 2
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)]
    return nn.Sequential(*layers, *head)


def _blocks(layers: Sequence[nn.Module]) -> list[nn.Sequential]:
    """Split layers before every convolution, so that pooling ends the block it follows."""
    starts = [k for k, layer in enumerate(layers) if isinstance(layer, nn.Conv2d)]
    if not starts or starts[0] != 0:
        raise ArgumentError(
            "the features must begin with a convolution; build EarlyExit(blocks, ramps, "
            "head) instead"
        )
    ends = [*starts[1:], len(layers)]
    return [nn.Sequential(*layers[start:end]) for start, end in zip(starts, ends, strict=True)]
