"""Exits by the names of blocks: on models laid out as timm's, transformers' and PyTorch's own."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import ttamer as tt
from ttamer.errors import ArgumentError
from ttamer.torch import (
    Recipe,
    Runner,
    attach,
    count_flops,
    profile,
    threshold_tables,
    trace_of,
    train,
)

CLASSES = 3


class Attention(nn.Module):
    """One block of a vision transformer, as timm writes them."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, 2, batch_first=True)

    def forward(self, x):
        y = self.norm(x)
        return x + self.attn(y, y, y, need_weights=False)[0]


class VisionTransformer(nn.Module):
    """Laid out as timm's: patch embedding, class token, a Sequential of blocks, a head."""

    def __init__(self, width=8, depth=3):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, width, 4, 4)
        self.cls_token = nn.Parameter(torch.randn(1, 1, width))
        self.pos_embed = nn.Parameter(torch.randn(1, 17, width))
        self.blocks = nn.Sequential(*(Attention(width) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x):
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


class ConvNet(nn.Module):
    """Laid out as timm's ConvNeXt: a stem, a list of stages of halving size, a head."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, 2, 1)
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU())
            for a, b in [(4, 6), (6, 8), (8, 10)]
        )
        self.fc = nn.Linear(10, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return self.fc(x.mean((2, 3)))


class TextLayer(nn.Module):
    """One layer of a text model; it returns as much besides the hidden states as the layout has."""

    def __init__(self, width, layout):
        super().__init__()
        self.linear, self.layout = nn.Linear(width, width), layout

    def forward(self, hidden, mask=None, positions=None, bias=None):
        scores = hidden @ hidden.transpose(1, 2)
        if positions is not None:
            scores = scores + positions[0] * positions[1]
        if self.layout == "t5" and bias is None:  # the first layer computes it for all
            bias = scores.masked_fill(~mask, -1e9).detach()
        if bias is not None:
            scores = scores + bias
        if mask is not None:
            scores = scores.masked_fill(~mask, -1e9)
        hidden = hidden + self.linear(scores.softmax(-1) @ hidden).tanh()
        return {"bert": (hidden, scores), "t5": (hidden, bias)}.get(self.layout, hidden)


class Texts(nn.Module):
    """Laid out as text classifiers of transformers.

    "bert": layers return a tuple. "llama": they get no mask where nothing is padded, and positions
    that have no batch. "modernbert": some get another mask than the first. "t5": the first returns
    a bias that all others get.
    """

    def __init__(self, layout="bert", width=8):
        super().__init__()
        self.embed, self.head = nn.Embedding(40, width), nn.Linear(width, CLASSES)
        self.layers = nn.ModuleList(TextLayer(width, layout) for _ in range(3))
        self.layout = layout

    def forward(self, input_ids, attention_mask):
        hidden, mask, bias = self.embed(input_ids), attention_mask.bool()[:, None], None
        place = torch.arange(input_ids.shape[1])
        for k, layer in enumerate(self.layers):
            if self.layout == "bert":
                hidden = layer(hidden, mask)[0]
            elif self.layout == "llama":
                positions = place[None, :, None] / 9, place[None, None].cos()
                hidden = layer(hidden, mask=None if mask.all() else mask, positions=positions)
            elif self.layout == "modernbert":
                near = (place[:, None] - place).abs() < 2
                hidden = layer(hidden, mask=mask & near if k % 2 else mask)
            else:
                hidden, bias = layer(hidden, mask, bias=bias)
        logits = self.head(hidden[:, 0])
        return {"logits": logits} if self.layout == "t5" else SimpleNamespace(logits=logits)


def images(rows=5):
    return torch.randn(rows, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def tokens(rows=5, *, padding=True):
    """Inputs as a tokeniser returns them; padding comes last."""
    ids = torch.randint(3, 40, (rows, 7), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    if padding:
        mask[1, 4:] = mask[3, 2:] = 0
        ids = ids.where(mask.bool(), 0)
    return {"input_ids": ids, "attention_mask": mask}


MODELS = {
    "timm vit": (VisionTransformer, "blocks", images),
    "timm convnet": (ConvNet, "stages", images),
    "bert": (lambda: Texts("bert"), "layers", tokens),
    "llama": (lambda: Texts("llama"), "layers", tokens),
    "modernbert": (lambda: Texts("modernbert"), "layers", tokens),
    "t5": (lambda: Texts("t5"), "layers", tokens),
    "vit by name": (VisionTransformer, "blocks", lambda: {"x": images()}),
}


def build(name):
    """Return a model with weights large enough to matter, the name of its blocks, an example."""
    torch.manual_seed(0)
    make, points, example = MODELS[name]
    model = make().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model, points, example()


def call(model, example):
    output = model(**example) if isinstance(example, dict) else model(example)
    return output["logits"] if isinstance(output, dict) else getattr(output, "logits", output)


def apart(network, inputs):
    """Return the full output, by running the blocks one by one."""
    return network(inputs)[-1]


def value_of(example):
    values = tuple(example.values()) if isinstance(example, dict) else (example,)
    return values if len(values) > 1 else values[0]


@pytest.mark.parametrize("name", MODELS)
def test_the_full_output_is_unchanged_and_rows_leave_on_their_own(name):
    model, points, example = build(name)
    with torch.no_grad():
        expected = call(model, example)
        network = attach(model, points, example)
        assert network.names[-1] == "full"
        assert len(network.names) == 3
        inputs = value_of(example)
        assert torch.equal(network.full(inputs), expected)
        torch.testing.assert_close(apart(network, inputs), expected, atol=1e-5, rtol=1e-5)
        every = network(inputs)
        assert [tuple(logits.shape) for logits in every] == [(5, CLASSES)] * 3
        # Half way between two confidences, so that rounding decides nothing.
        ordered = [each.softmax(-1).amax(-1).sort().values for each in every]
        middles = np.array([float((each[1] + each[2]) / 2) for each in ordered])
        answers = Runner(network, threshold_tables(middles), classes=["a", "b", "c"])(inputs)
        assert len(answers.exit.unique()) > 1
        for row, exit_ in enumerate(answers.exit.tolist()):
            torch.testing.assert_close(answers.logits[row], every[exit_][row], atol=1e-4, rtol=1e-4)
    # The model itself is as it was.
    torch.testing.assert_close(call(model, example), expected)


def test_training_tracing_and_counting_work_on_an_attached_network():
    model, points, example = build("timm convnet")
    network = attach(model, points, example)
    labels = torch.tensor([0, 1, 2, 0, 1])
    before = network.full(example).detach()
    losses = train(network, [(example, labels)] * 4, Recipe("ramps", epochs=4, rate=0.05))
    assert losses[-1] < losses[0]
    assert torch.equal(network.full(example), before)
    train(network, [(example, labels)] * 4, Recipe("backbone", epochs=2, rate=0.05))
    assert not torch.equal(network.full(example), before)
    assert trace_of(network, [(example, labels)]).names == ("stages_0", "stages_1", "full")
    assert count_flops(network, example).full > 0
    copied = copy.deepcopy(network)
    names = [name for name, _ in network.named_parameters()]
    assert len(names) == len(set(names)) == len(network.state_dict()) - 3 * 3  # batch statistics
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    assert not torch.equal(copied.full(example), network.full(example))


@pytest.mark.parametrize("name", ["llama", "modernbert", "t5"])
def test_batches_with_and_without_padding(name):
    model, points, example = build(name)
    network = attach(model, points, example)
    for padding in (True, False):
        inputs = tokens(3, padding=False) if not padding else tokens(4)
        with torch.no_grad():
            found, expected = apart(network, value_of(inputs)), call(model, inputs)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_points_may_be_some_blocks_of_a_list_or_modules_one_after_another():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)), nn.Linear(4, CLASSES))
    network = attach(model, ["0", "2"], torch.randn(3, 4))
    assert network.names == ("0", "2", "full")
    assert len(network.segments[1]) == 2
    last = attach(model, ["4"], torch.randn(3, 4))
    assert last.names == ("4", "full")

    class Stages(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer1, self.layer2 = nn.Linear(4, 6), nn.Linear(6, 5)
            self.fc = nn.Linear(5, CLASSES)

        def forward(self, x):
            return self.fc(self.layer2(self.layer1(2 * x)).relu())

    model, inputs = Stages(), torch.randn(3, 4)
    network = attach(model, ["layer1", "layer2"], inputs)
    assert network.names == ("layer1", "layer2", "full")
    torch.testing.assert_close(apart(network, inputs), model(inputs))


def test_a_ramp_of_ones_own():
    model, points, example = build("timm vit")
    made = []

    def ramp(hidden):
        made.append(tuple(hidden.shape))
        return nn.Linear(8, CLASSES, bias=False)

    network = attach(model, points, example, ramp=ramp, pool="first")
    assert made == [(5, 17, 8)] * 2
    with torch.no_grad():
        hidden = network.segments[0](example)[0]
        assert torch.equal(network(example)[0], next(network.ramps()).layers(hidden[:, 0]))


@pytest.mark.parametrize(
    ("ramp", "text"),
    [
        (nn.Linear(5, CLASSES), r"output of shape \(5, 17, 8\), and the example gives Runtime"),
        (nn.Linear(8, 7), r"blocks\.0 must return logits of shape \(5, 3\).* gives shape \(5, 7\)"),
    ],
)
def test_ramps_that_do_not_fit_are_refused(ramp, text):
    with pytest.raises(ArgumentError, match=text):
        attach(VisionTransformer(), "blocks", images(), ramp=lambda _: ramp)


class Odd(nn.Module):
    """A model that breaks one rule."""

    def __init__(self, rule):
        super().__init__()
        self.rule = rule
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.fc = nn.Linear(4, CLASSES)

    def forward(self, x):
        start = x
        blocks = self.blocks[::-1] if self.rule == "order" else self.blocks
        for block in blocks:
            x = block(x)
            if self.rule == "between":
                x = x.relu()
        if self.rule == "skipped":
            x = self.blocks[0](start)
        if self.rule == "random":
            x = x + torch.rand_like(x)
        if self.rule == "one":
            return x[:, :1]
        return (self.fc(x),) if self.rule == "tuple" else self.fc(x)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("order", "must run once each, in the order blocks.0"),
        ("skipped", "must run once each"),
        ("between", r"blocks\.1 does not get the output of blocks\.0"),
        ("random", "the full output for 3 inputs would differ"),
        ("tuple", "returns tuple; it must return logits"),
        ("one", r"returns shape \(3, 1\); it must return logits .* of 2 classes or more"),
    ],
)
def test_models_that_cannot_have_exits_are_refused(rule, text):
    torch.manual_seed(0)
    with pytest.raises(ArgumentError, match=text):
        attach(Odd(rule), "blocks", torch.randn(3, 4))


class Caching(nn.Module):
    """Blocks that get something besides the hidden state."""

    def __init__(self, extra):
        super().__init__()
        self.blocks = nn.ModuleList(Taking() for _ in range(3))
        self.more = extra

    def forward(self, x):
        for k, block in enumerate(self.blocks):
            x = block(x, self.more(k, x))
        return x


class Taking(nn.Module):
    def forward(self, x, extra):
        return x + (extra if isinstance(extra, torch.Tensor) else 1)


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        (lambda _k, _x: object(), "gets a object.*use_cache = False"),
        (
            lambda k, x: x.mean(0) if k else None,
            r"blocks\.1 gets a tensor of shape \(3,\) that dep",
        ),
        (lambda k, x: torch.ones(1) * (6 // int(x[0, 0])) if k else None, r"blocks\.1 gets"),
    ],
)
def test_blocks_get_only_what_is_known_before_they_run(extra, text):
    with pytest.raises(ArgumentError, match=text):
        attach(Caching(extra), "blocks", torch.zeros(3, CLASSES))


def test_later_blocks_may_get_tensors_that_the_first_does_not_get():
    model = Caching(lambda k, x: torch.full((len(x), 1), 10.0**k) if k else None)
    network = attach(model, "blocks", torch.randn(4, CLASSES))
    inputs = torch.randn(2, CLASSES)
    torch.testing.assert_close(apart(network, inputs), inputs + 111)


def encoder(**options):
    """PyTorch's own encoder with padding, by default with the tokens first."""

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 16, **options)
            self.encoder = nn.TransformerEncoder(layer, 3)
            self.head, self.first = nn.Linear(8, CLASSES), options.get("batch_first", False)

        def forward(self, x, padding):
            x = self.encoder(x if self.first else x.transpose(0, 1), src_key_padding_mask=padding)
            return self.head(x.mean(1 if self.first else 0))

    return Encoder().eval()


def test_blocks_must_return_tensors_and_always_run():
    class Naming(nn.Linear):
        def forward(self, x):
            return {"hidden": super().forward(x)}

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.head = Naming(4, 4), nn.Linear(4, CLASSES)

        def forward(self, x):
            return self.head(self.encoder(x)["hidden"])

    with pytest.raises(
        ArgumentError, match=r"encoder returns a dict; a block must return a tensor"
    ):
        attach(Named(), ["encoder"], torch.randn(3, 4))

    class Even(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

        def forward(self, x):
            x = self.blocks[0](x)
            return self.blocks[1](x) if len(x) % 2 else x

    with pytest.raises(ArgumentError, match=r"must run once each, .* of 4 inputs the model ran"):
        attach(Even(), "blocks", torch.randn(3, 4))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
def test_blocks_must_return_the_batch_first():
    padding = torch.arange(6) >= torch.tensor([[6], [4], [2], [6], [6], [6]])
    example = {"x": torch.randn(6, 6, 8), "padding": padding}
    with pytest.raises(
        ArgumentError, match=r"layers\.0 returns shape \(6, 6, 8\) for 6 inputs, and"
    ):
        attach(encoder(), "encoder.layers", example)
    model = encoder(batch_first=True)
    with pytest.raises(ArgumentError, match=r"a nested .*Tensor; .* enable_nested_tensor=False"):
        attach(model, "encoder.layers", example)
    model.encoder.use_nested_tensor = False
    network = attach(model, "encoder.layers", example)
    some = {key: value[1:3] for key, value in example.items()}
    with torch.no_grad():
        torch.testing.assert_close(apart(network, some), model(**some))


def test_a_mask_that_only_a_later_block_gets_is_missed_in_an_example_without_padding():
    """As where the first layers are local, and the mask of the others masks nothing."""

    class Masked(Caching):
        def forward(self, inputs, attention_mask):
            mask = None if attention_mask.all() else attention_mask
            for k, block in enumerate(self.blocks):
                inputs = block(inputs, mask if k else torch.ones(1, 1))
            return inputs

    example = {"inputs": torch.randn(4, CLASSES), "attention_mask": torch.ones(4, CLASSES)}
    network = attach(Masked(None), "blocks", example)
    torch.testing.assert_close(apart(network, example), example["inputs"] + 3)
    example["attention_mask"][1, 2:] = 0
    with pytest.raises(ArgumentError, match="attach with an example that has padding"):
        apart(network, example)


class Halving(nn.Module):
    """A block that gets the sides of images, as a constant, and returns those of its output."""

    def forward(self, x, sides):
        rows, width = x.shape[0], x.shape[2]
        x = x.view(rows, sides[0] // 2, 2, sides[1], width).mean(2).flatten(1, 2)
        return x, (sides[0] // 2, sides[1])


class WithSides(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Halving() for _ in range(3))

    def forward(self, x):
        sides = x.shape[1:3]
        x = x.flatten(1, 2)
        for block in self.blocks:
            x, (height, width) = block(x, sides)
            sides = torch.Size((height, width))
        return x.sum(1)


def test_blocks_may_get_and_return_sizes():
    images = torch.randn(4, 8, 2, CLASSES)
    network = attach(WithSides(), "blocks", images)
    with torch.no_grad():
        torch.testing.assert_close(apart(network, images[:2]), images[:2].sum((1, 2)) / 8)
    with pytest.raises(ArgumentError, match="get other values for these inputs than"):
        apart(network, torch.randn(4, 16, 2, CLASSES))


@pytest.mark.parametrize("part", ["ramps", "all"])
def test_ramps_learn_before_a_block_that_changes_its_input(part):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 8),
        nn.ReLU(inplace=True),
        nn.Linear(8, 8),
        nn.ReLU(inplace=True),
        nn.Linear(8, CLASSES),
    )
    inputs, labels = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
    network = attach(model, ["0", "2"], inputs)
    losses = train(network, [(inputs, labels)], Recipe(part, epochs=3, rate=0.1))
    assert losses[-1] < losses[0]
    with torch.no_grad():
        torch.testing.assert_close(network(inputs)[-1], model(inputs))


class Sounds(nn.Module):
    """As for audio, where many samples become one token."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv1d(1, 8, 8, 8), nn.Linear(8, CLASSES)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, input_values, attention_mask):
        hidden = self.conv((input_values * attention_mask)[:, None]).transpose(1, 2)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden.mean(1))


def test_ramps_read_a_mask_that_is_longer_than_the_tokens():
    torch.manual_seed(0)
    mask = (torch.arange(400) < torch.tensor([[400], [117]])).long()
    sounds = {"input_values": torch.randn(2, 400), "attention_mask": mask}
    with torch.no_grad():
        network = attach(Sounds().eval(), "layers", sounds)
        ramp, hidden = next(network.ramps()), network.segments[0](tuple(sounds.values()))[0]
        assert hidden.shape[1] == 50
        mean = hidden[1, :15].mean(0)  # of 8 samples for each token, 117 begin before the end
        torch.testing.assert_close(network(sounds)[0][1], ramp.layers(mean))


NAMED = {"inputs": torch.randn(4, 4), "labels": torch.zeros(4)}


@pytest.mark.parametrize(
    ("model", "points", "example", "text"),
    [
        ("resnet18", "stages", images(), "attach needs a model of PyTorch, not str"),
        (ConvNet(), "layers", images(), "has no module 'layers'; lists of blocks are stages"),
        (nn.Sequential(nn.Linear(4, 2)), [1], NAMED["inputs"], "no module 1; its modules are '0'"),
        (ConvNet(), [], images(), "points is empty"),
        (ConvNet(), None, images(), "points is a NoneType, not a name or a list of names"),
        (ConvNet(), ConvNet().stages, images(), "points is a ModuleList, not a name"),
        (ConvNet(), [*ConvNet().stages], images(), "points is a list, not a name or a list of na"),
        (ConvNet(), "fc", images(), "fc is a Linear; give the name of a ModuleList"),
        (ConvNet(), "stages", images(1), "have 1 rows; give the same number, at least 2"),
        (ConvNet(), "stages", (images(3), images(2)), "have 3, 2 rows"),
        (ConvNet(), "stages", {"pixels": images()}, "cannot be called with .* as pixels"),
        (ConvNet(), "stages", [3], "inputs must be a tensor, or a tuple of tensors"),
        (ConvNet(), "stages", None, "inputs must be a tensor, or a tuple of tensors"),
        (ConvNet(), "stages", np.zeros((4, 4)), "inputs must be a tensor, or a tuple of tensors"),
        (ConvNet(), "stages", NAMED, r"example holds 'labels'.*leave labels out"),
        (
            ConvNet().to("meta"),
            "stages",
            images(),
            "on the meta device, without weights: load them",
        ),
    ],
)
def test_models_points_and_examples_that_do_not_fit_are_refused(model, points, example, text):
    with pytest.raises(ArgumentError, match=text):
        attach(model, points, example)


def test_outputs_without_a_default_ramp_need_one():
    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Identity() for _ in range(2))

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return x.flatten(1)[:, :CLASSES]

    inputs = torch.randn(3, 2, 4, 6)
    with pytest.raises(ArgumentError, match=r"returns shape \(3, 2, 4, 6\).*give ramp="):
        attach(Wide(), "blocks", inputs)
    flat = attach(
        Wide(), "blocks", inputs, ramp=lambda _: nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
    )
    assert flat.names == ("blocks_0", "full")
    with pytest.raises(ArgumentError, match="pool must be one of first, mean, last"):
        attach(Wide(), "blocks", inputs, pool="max")


class Pairs(nn.Module):
    """A block that returns exactly two parts, of which the model unpacks both, as DeBERTa's."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x).tanh(), None


class OfPairs(nn.Module):
    def __init__(self, strict=False):
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Pairs() for _ in range(3)), nn.Linear(4, CLASSES)
        self.strict = strict

    def forward(self, inputs):
        for block in self.blocks:
            before = inputs
            inputs, _ = block(inputs)
            if self.strict and inputs.data_ptr() == before.data_ptr():
                raise ValueError("too little was computed")
        return self.head(inputs)


def test_outputs_of_blocks_keep_their_number_of_parts():
    example = torch.randn(4, 4)
    network = attach(OfPairs(), "blocks", example)
    assert [logits.shape for logits in network(example)] == [(4, CLASSES)] * 3
    with pytest.raises(ArgumentError, match="OfPairs cannot run with its blocks apart: ValueError"):
        attach(OfPairs(strict=True), "blocks", example)
    with pytest.raises(ArgumentError, match="the network takes 1 tensor, as in the example, not 2"):
        apart(network, (example, example))


def test_a_network_takes_what_it_was_attached_with():
    example = {"inputs": torch.randn(4, 4)}
    network = attach(OfPairs(), "blocks", example)
    more = {"inputs": torch.randn(2, 4), "other": torch.zeros(2)}
    assert torch.equal(apart(network, more), apart(network, more["inputs"]))
    with pytest.raises(ArgumentError, match="inputs are other, and the network also takes in"):
        apart(network, {"other": torch.zeros(2)})


def test_mappings_are_taken_wherever_inputs_are():
    ids = torch.randint(20, (8, 6), generator=torch.Generator().manual_seed(0))
    tokens = {"input_ids": ids, "attention_mask": (torch.arange(6) < 4).expand(8, 6).long()}
    labels = torch.arange(8) % 2
    network = attach(Texts(), "layers", tokens)
    tables = threshold_tables(np.array([0.5, 0.5, 0.0]))
    train(network, [{**tokens, "labels": labels}], Recipe("ramps", epochs=1, rate=0.1))
    assert len(trace_of(network, [{**tokens, "labels": labels}])) == 8
    assert count_flops(network, tokens) == count_flops(network, tuple(tokens.values()))
    assert profile(network, tokens, sizes=(2,)).sizes == (2,)
    runner = Runner(network, tables)
    expected = runner(tuple(tokens.values())).logits
    assert torch.equal(runner(dict(reversed(tokens.items()))).logits, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_ramps_compute_in_the_precision_of_the_model(dtype):
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)).to(dtype)
    example = torch.randn(4, 4).to(dtype)
    network = attach(model, ["0"], example)
    assert {logits.dtype for logits in network(example)} == {dtype}


def test_the_only_padding_of_an_example_may_be_in_any_row():
    texts, model = tokens(), Texts().eval()
    texts["attention_mask"][:-1] = 1
    texts["attention_mask"][-1, 3:] = 0
    network = attach(model, "layers", texts)
    with torch.no_grad():
        for some in (tokens(), tokens(padding=False)):
            torch.testing.assert_close(apart(network, some), model(**some).logits)


def test_a_forward_of_a_blocks_own_stays():
    """As accelerate and others set it: on the instance."""
    model = VisionTransformer().eval()
    block = model.blocks[1]
    usual = block.forward
    block.forward = lambda x: 2 * usual(x)
    with torch.no_grad():
        expected = model(images())
        network = attach(model, "blocks", images())
        torch.testing.assert_close(apart(network, images()), expected, rtol=0, atol=0)
        torch.testing.assert_close(model(images()), expected, rtol=0, atol=0)


class Scaled(nn.Module):
    """A block that gets a number beside the hidden states."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, hidden, tokens):
        return self.linear(hidden) / tokens


class ByLength(nn.Module):
    """Blocks get the number of tokens, which is 1 more while training."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(40, 4)
        self.layers = nn.ModuleList(Scaled() for _ in range(3))
        self.head = nn.Linear(4, CLASSES)

    def forward(self, ids):
        hidden = self.embed(ids)
        for layer in self.layers:
            hidden = layer(hidden, ids.shape[1] + self.training)
        return self.head(hidden.mean(1))


def test_numbers_that_blocks_get_must_be_those_of_the_example():
    ids, model = tokens()["input_ids"], ByLength()
    network = attach(model, "layers", ids)
    with torch.no_grad():
        torch.testing.assert_close(apart(network, ids[:2]), model(ids[:2]))
    with pytest.raises(ArgumentError, match="get other values for these inputs than"):
        apart(network, ids[:, :5])
    train(network, [(ids, torch.zeros(5, dtype=torch.int64))], Recipe("all", epochs=1, rate=0.1))


@pytest.mark.parametrize(
    "compiled",
    [
        lambda model: torch.compile(model, backend="eager"),
        lambda model: model.compile(backend="eager") or model,
        lambda model: model.blocks[1].compile(backend="eager") or model,
    ],
)
def test_a_compiled_model_gets_its_exits_before(compiled):
    model = compiled(VisionTransformer())
    (points,) = (name for name, _ in model.named_modules() if name.endswith("blocks"))
    with pytest.raises(ArgumentError, match="before it is compiled"):
        attach(model, points, images())


@pytest.mark.parametrize("run", [1, 2], ids=["before the blocks", "after the blocks"])
def test_threads_do_not_meet_the_blocks_of_others(run):
    model = VisionTransformer().eval()
    network = attach(model, "blocks", images())
    with torch.no_grad():
        expected = network(images())
    inside, done, runs = threading.Event(), threading.Event(), []

    def pause(*_):
        if threading.current_thread() is not threading.main_thread():
            runs.append(1)
            if len(runs) == run:
                inside.set()
                assert done.wait(60)

    def call():
        with torch.no_grad():
            return network(images())

    model.patch_embed.register_forward_hook(pause)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(call)
        assert inside.wait(60)
        try:
            found = call()
        finally:
            done.set()
        for each in (found, other.result()):
            torch.testing.assert_close(each, expected, rtol=0, atol=0)
    assert not any("forward" in vars(block) for block in model.blocks)


def test_the_full_network_is_the_model_itself_until_segments_are_compiled():
    model = VisionTransformer().eval()
    network = attach(model, "blocks", images())
    calls = []
    model.patch_embed.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        for each in (network, copy.deepcopy(network)):
            assert torch.equal(each.full(images()), model(images()))
            assert len(calls) == 2
            calls.clear()
        with pytest.raises(ArgumentError, match="the network takes 1 tensor, as in the example, n"):
            network.full((images(), images()))
        network.segments[1].compile(backend="eager")
        torch.testing.assert_close(network.full(images()), model(images()))
        assert len(calls) == 3  # before the first block, and for the head


class Small(nn.Module):
    """What quantize_dynamic puts in the place of a linear layer: no subclass of it."""

    def __init__(self, layer):
        super().__init__()
        self.weight, self.bias, self.out_features = layer.weight, layer.bias, layer.out_features

    def forward(self, x):
        return nn.functional.linear(x, self.weight, self.bias)


def quantized(module):
    """Return a copy with all of its linear layers replaced."""
    module = copy.deepcopy(module)
    for parent in [*module.modules()]:
        for name, child in parent.named_children():
            if isinstance(child, nn.Linear):
                setattr(parent, name, Small(child))
    return module


def test_linear_layers_may_be_replaced_inside_blocks_and_not_as_blocks():
    texts, labels = tokens(), torch.arange(5) % CLASSES
    network = attach(Texts(), "layers", texts)
    policy = tt.fit(trace_of(network, [(texts, labels)] * 20)).at(tradeoff=0.9)
    answers = Runner(quantized(network), policy)(texts)
    torch.testing.assert_close(answers.logits, Runner(network, policy)(texts).logits)
    model, inputs = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, CLASSES)), torch.randn(3, 4)
    with pytest.raises(ArgumentError, match="such as a Linear: where modules are replaced, as by"):
        apart(quantized(attach(model, ["0"], inputs)), inputs)
    before = attach(quantized(model), ["0"], inputs)
    torch.testing.assert_close(apart(before, inputs), model(inputs))


def test_a_model_that_returns_nan_is_named():
    model = VisionTransformer()
    nn.init.constant_(model.head.bias, float("nan"))
    with pytest.raises(ArgumentError, match="VisionTransformer returns NaN or infinite logits"):
        attach(model, "blocks", images())
