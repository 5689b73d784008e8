"""Segments and exits as ONNX files: onnxruntime computes what the network does."""

import json
import sys

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn
from transformers import BertConfig, LlamaConfig

from ttamer.errors import ArgumentError, MissingExtra
from ttamer.torch import EarlyExit, attach, bert, export_onnx, llama


def run(path, values):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    return session.run(None, {name: values[int(name.split("_")[1])] for name in names})


def every_exit(folder, values):
    """Return the logits of every exit, by the files alone."""
    logits = []
    for k in range(len(json.loads((folder / "exits.json").read_text())["names"])):
        values = run(folder / f"segment_{k}.onnx", values)
        logits.append(run(folder / f"exit_{k}.onnx", values)[0])
    return logits


@pytest.mark.parametrize(("family", "config"), [(bert, BertConfig), (llama, LlamaConfig)])
def test_texts_of_any_length(tmp_path, family, config):
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    network = family(config(**sizes, intermediate_size=8), classes=3).eval()
    ids, mask = torch.arange(12).reshape(2, 6), torch.ones(2, 6, dtype=torch.bool)
    export_onnx(network, tmp_path, (ids, mask), tokens=True)
    ids, mask = torch.arange(27).reshape(3, 9) % 20, torch.ones(3, 9, dtype=torch.bool)
    mask[1, 4:] = False
    with torch.no_grad():
        expected = network((ids, mask))
    found = every_exit(tmp_path, [ids.numpy(), mask.numpy()])
    for mine, theirs in zip(expected, found, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


class Weighing(nn.Module):
    """Tokens weighed by a mask of shape (batch, 1, tokens), as blocks of transformers take it."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 4)
        self.layers = nn.ModuleList([Weighed(), Weighed()])
        self.head = nn.Linear(4, 3)

    def forward(self, ids, mask):
        hidden = self.embed(ids)
        weights = mask[:, None].to(hidden.dtype)
        for layer in self.layers:
            hidden = layer(hidden, weights)
        return self.head(hidden[:, 0])


class Weighed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, hidden, weights):
        return hidden + self.linear(weights @ hidden)


def test_values_with_tokens_in_other_dimensions_too(tmp_path):
    torch.manual_seed(0)
    ids, mask = torch.arange(10).reshape(2, 5), torch.ones(2, 5, dtype=torch.int64)
    inputs = {"ids": ids, "mask": mask}
    network = attach(Weighing(), "layers", inputs)
    export_onnx(network, tmp_path, inputs, tokens=True)
    ids, mask = torch.arange(21).reshape(3, 7) % 20, torch.ones(3, 7, dtype=torch.int64)
    mask[1, 4:] = 0
    found = every_exit(tmp_path, [ids.numpy(), mask.numpy()])
    for mine, theirs in zip(network((ids, mask)), found, strict=True):
        np.testing.assert_allclose(mine.detach(), theirs, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_exported_is_refused(tmp_path, monkeypatch):
    class Depending(nn.Module):
        def forward(self, value):
            return value + 1 if value.sum() > 0 else value - 1

    network = EarlyExit([Depending()], [], nn.Linear(4, 2))
    with pytest.raises(ArgumentError, match=r"segment_0\.onnx: Depending cannot be exported"):
        export_onnx(network, tmp_path, torch.randn(2, 4))
    with pytest.raises(ArgumentError, match="example has 1 row; at least 2"):
        export_onnx(network, tmp_path, torch.randn(1, 4))
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingExtra, match=r"needs onnxscript.*ttamer\[onnx\]"):
        export_onnx(network, tmp_path, torch.randn(2, 4))


class Sized(nn.Module):
    """The number of rows is read as a Python number, which a file would hold."""

    def forward(self, value):
        return value + torch.zeros(1, 4).expand(len(value), -1)


def test_a_part_for_one_batch_size_only_is_refused(tmp_path):
    torch.manual_seed(0)
    with pytest.raises(ArgumentError, match=r"segment_0\.onnx: .* would take 2 as the batch size"):
        export_onnx(EarlyExit([Sized()], [], nn.Linear(4, 2)), tmp_path, torch.randn(2, 4))
