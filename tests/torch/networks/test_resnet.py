"""ResNet with exits: any network with the parts of torchvision's or timm's."""

import pytest
import torch
from torch import nn

from ttamer.errors import ArgumentError
from ttamer.torch import convolutional_ramp, exits_on_resnet, fold_batch_norm


class Residual(nn.Module):
    """A basic block, as torchvision writes it."""

    def __init__(self, inside, outside, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.downsample = nn.Identity()
        if stride > 1 or inside != outside:
            self.downsample = nn.Sequential(nn.Conv2d(inside, outside, 1, stride))

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + self.downsample(x))


class ResNet(nn.Module):
    def __init__(self, *, timm=False):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.add_module("act1" if timm else "relu", nn.ReLU(inplace=True))
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        widths = [4, 4, 6, 8, 10]
        for k in range(1, 5):
            stride = 1 if k == 1 else 2
            blocks = Residual(widths[k - 1], widths[k], stride), Residual(widths[k], widths[k], 1)
            self.add_module(f"layer{k}", nn.Sequential(*blocks))
        self.add_module("global_pool" if timm else "avgpool", nn.AdaptiveAvgPool2d(1))
        self.fc = nn.Linear(10, 5)

    def forward(self, x):
        stem = [self.conv1, self.bn1, getattr(self, "relu", None) or self.act1, self.maxpool]
        x = nn.Sequential(*stem)(x)
        x = nn.Sequential(self.layer1, self.layer2, self.layer3, self.layer4)(x)
        pool = self.avgpool if hasattr(self, "avgpool") else self.global_pool
        return self.fc(pool(x).flatten(1))


@pytest.mark.parametrize("timm", [False, True])
def test_exits_after_every_block_leave_the_full_output_as_it_is(timm):
    torch.manual_seed(0)
    model = ResNet(timm=timm).train()
    means = model.bn1.running_mean.clone()
    network = exits_on_resnet(model, classes=5, size=64)
    assert torch.equal(model.bn1.running_mean, means)
    assert model.training
    names = [f"layer{stage}_{k}" for stage in range(1, 5) for k in range(2)]
    assert network.names == (*names[:-1], "full")
    inputs = torch.randn(3, 3, 64, 64)
    with torch.no_grad():
        network.train()
        network(inputs)  # so that there is something to fold
        network.eval()
        assert torch.equal(network.full(inputs), model(inputs))
        assert [tuple(each.shape) for each in network(inputs)] == [(3, 5)] * 8
        folded = fold_batch_norm(network)
        torch.testing.assert_close(folded.full(inputs), model(inputs), rtol=1e-4, atol=1e-4)


def test_ramps_of_another_kind():
    network = exits_on_resnet(ResNet(), classes=5, size=64, ramp=convolutional_ramp).eval()
    assert all(isinstance(ramp[0], nn.Conv2d) for ramp in network.ramps())
    assert [tuple(each.shape) for each in network(torch.zeros(2, 3, 64, 64))] == [(2, 5)] * 8


def test_other_layouts_are_refused():
    with pytest.raises(ArgumentError, match=r"Linear has no conv1; .* attach\(model"):
        exits_on_resnet(nn.Linear(2, 2), classes=2, size=64)
    model = ResNet()
    model.conv1 = nn.Conv2d(1, 4, 7)
    with pytest.raises(ArgumentError, match="ResNet cannot run on images of 3 x 64 x 64"):
        exits_on_resnet(model, classes=5, size=64)


def test_another_number_of_classes_is_refused():
    with pytest.raises(ArgumentError, match="head of ResNet is for 5 classes, and classes is 10"):
        exits_on_resnet(ResNet(), classes=10, size=64)
