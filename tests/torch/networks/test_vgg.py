"""VGG with exits: the paper's layers, and any network laid out as torchvision's."""

import pytest
import torch
from torch import nn

from ttamer.errors import ArgumentError
from ttamer.torch.early_exit import EarlyExit
from ttamer.torch.networks.vgg import (
    MAX_FEATURES,
    MAX_VALUES,
    VGG,
    convolutional_ramp,
    exits_on_vgg,
    pooled_ramp,
    vgg,
)


@pytest.mark.parametrize(("depth", "convolutions"), [(11, 8), (13, 10), (16, 13)])
def test_there_is_an_exit_after_every_convolution_block(depth, convolutions):
    network = vgg(depth, width=8, classes=7).eval()
    ramps = [f"conv{k}" for k in range(1, convolutions)]
    assert network.names == (*ramps, "full")
    for segment in network.segments:
        assert sum(isinstance(m, nn.Conv2d) for m in segment.modules()) == 1
        assert isinstance(segment[0], nn.Conv2d)
    with torch.inference_mode():
        logits = network(torch.zeros(2, 3, 32, 32))
    assert [tuple(each.shape) for each in logits] == [(2, 7)] * convolutions


def test_the_paper_s_widths():
    sizes = [m.out_channels for m in VGG(16, classes=10).modules() if isinstance(m, nn.Conv2d)]
    assert sizes == [64] * 2 + [128] * 2 + [256] * 3 + [512] * 6


class Torchvision(nn.Module):
    """Laid out and run as torchvision's VGG: no normalisation, a large pool, three layers."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2, 2),
            nn.Conv2d(4, 6, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(6, 6, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2, 2),
        )
        self.avgpool = nn.AdaptiveAvgPool2d((7, 7))
        self.classifier = nn.Sequential(
            nn.Linear(6 * 49, 16), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(16, 5)
        )

    def forward(self, inputs):
        return self.classifier(torch.flatten(self.avgpool(self.features(inputs)), 1))


def test_exits_on_a_network_laid_out_as_torchvision_s_leave_its_answers_as_they_are():
    torch.manual_seed(0)
    model = Torchvision().eval()
    network = exits_on_vgg(model, classes=5, size=16).eval()
    inputs = torch.randn(3, 3, 16, 16)
    with torch.inference_mode():
        want = model(inputs)
        assert torch.equal(network.full(inputs), want)
        assert torch.equal(network(inputs)[-1], want)
        assert [tuple(each.shape) for each in network(inputs)] == [(3, 5)] * 3
    assert {id(p) for p in model.parameters()} == {
        id(p) for part in network.backbone() for p in part.parameters()
    }


def test_the_head_s_logits_are_those_of_the_plain_vgg():
    torch.manual_seed(0)
    model = VGG(11, classes=10, width=8).eval()
    inputs = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        want = model.classifier(model.avgpool(model.features(inputs)).flatten(1))
        assert torch.equal(exits_on_vgg(model, classes=10, size=64).eval()(inputs)[-1], want)


@pytest.mark.parametrize("size", [32, 64])
def test_no_ramp_pools_to_more_places_than_there_are(size):
    network = vgg(13, width=4, size=size).eval()
    value, squares = torch.zeros(1, 3, size, size), []
    with torch.inference_mode():
        for segment, ramp in zip(network.segments, network.ramps(), strict=False):
            value = segment(value)
            square = ramp[0](value).shape[-1]
            assert square <= value.shape[-1]
            squares.append(square)
    assert squares[0] == 16
    assert squares[-1] == value.shape[-1] == size // 16


@pytest.mark.parametrize(
    ("channels", "side", "square"), [(64, 32, 4), (512, 4, 2), (512, 1, 1), (4096, 8, 1), (8, 2, 2)]
)
def test_a_ramp_pools_to_the_largest_square_that_is_small_enough(channels, side, square):
    ramp = pooled_ramp(channels, side, 3)
    assert ramp[2].in_features == channels * square**2
    assert square == 1 or ramp[2].in_features <= MAX_FEATURES
    assert ramp(torch.zeros(2, channels, side, side)).shape == (2, 3)


@pytest.mark.parametrize(
    ("channels", "side", "read", "convolutions"),
    [(64, 224, 28, 3), (128, 56, 28, 3), (256, 56, 14, 2), (512, 14, 14, 2), (4096, 8, 8, 1),
     (8, 2, 2, 1)],
)  # fmt: skip
def test_a_convolutional_ramp_reads_few_values_and_halves_its_maps(
    channels, side, read, convolutions
):
    ramp = convolutional_ramp(channels, side, 3, width=4).eval()
    found = [layer for layer in ramp if isinstance(layer, nn.Conv2d)]
    assert len(found) == convolutions
    assert channels * read**2 <= MAX_VALUES or read <= 8
    value = torch.zeros(1, channels, side, side)
    for layer in ramp:
        if layer is found[0]:
            assert value.shape[-1] == read
        value = layer(value)
    assert value.shape == (1, 3)
    assert ramp(torch.zeros(1, channels, side + 4, side + 4)).shape == (1, 3)


def test_vgg_with_convolutional_ramps_is_built_again_from_its_folder(tmp_path):
    network = vgg(11, width=4, size=32, classes=3, ramps="convolutional").eval()
    assert all(isinstance(ramp[-2], nn.Flatten) for ramp in network.ramps())
    network.save_pretrained(tmp_path)
    again = EarlyExit.from_pretrained(tmp_path)
    inputs = torch.randn(2, 3, 32, 32)
    for mine, theirs in zip(network(inputs), again(inputs), strict=True):
        assert torch.equal(mine, theirs)


def test_other_ramps_are_refused():
    with pytest.raises(ArgumentError, match="ramps must be one of pooled, convolutional, not 'x'"):
        vgg(11, ramps="x")


def test_there_is_no_other_depth():
    with pytest.raises(ArgumentError, match="there is no VGG-19; the depth must be 11, 13 or 16"):
        vgg(19)


def test_other_layouts_are_refused_by_name():
    with pytest.raises(ArgumentError, match=r"Linear has no features.*build EarlyExit\(blocks"):
        exits_on_vgg(nn.Linear(2, 2), classes=2, size=8)
    model = Torchvision()
    model.features = nn.Sequential(nn.ReLU(), *model.features)
    with pytest.raises(ArgumentError, match="must begin with a convolution"):
        exits_on_vgg(model, classes=5, size=16)


def test_another_number_of_classes_is_refused():
    with pytest.raises(ArgumentError, match="head of VGG is for 5 classes, and classes is 10"):
        exits_on_vgg(VGG(11, classes=5, width=8), classes=10, size=32)


def test_ramps_compute_in_the_precision_of_the_model():
    network = exits_on_vgg(VGG(11, classes=5, width=8).bfloat16(), classes=5, size=32).eval()
    logits = network(torch.zeros(2, 3, 32, 32, dtype=torch.bfloat16))
    assert {each.dtype for each in logits} == {torch.bfloat16}
