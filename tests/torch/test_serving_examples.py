"""A network with exits in Triton Inference Server, by a stand-in for its Python API."""

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from support.exit_networks import convolutions
from ttamer import torch as exits
from ttamer.fitting.fits import fit

EXAMPLES = Path(__file__).parents[2] / "examples" / "serving"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with a tiny network and policies, some images, and its answers to them."""
    torch.manual_seed(0)
    network = convolutions(3, size=32).eval()
    images = torch.randn(60, 3, 32, 32)
    trace = exits.trace_of(network, [(images, torch.arange(60) % 3)])
    ladder = fit(trace)
    folder = tmp_path_factory.mktemp("network")
    exits.save_pretrained(network, folder, policy=ladder)
    answers = exits.Runner(network, ladder.at(0.95))(images)
    return SimpleNamespace(folder=folder, images=images, answers=answers, names=network.names)


def load(path):
    """Import an example by its path."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Tensor(SimpleNamespace):
    def as_numpy(self):
        return self.values


TEXT = (EXAMPLES / "triton_early_exit/config.pbtxt").read_text("utf-8")


@pytest.fixture
def model(monkeypatch):
    """The model that Triton would load."""
    utils = ModuleType("triton_python_backend_utils")
    utils.Tensor = lambda name, values: Tensor(name=name, values=values)
    utils.InferenceResponse = lambda output_tensors: SimpleNamespace(tensors=output_tensors)
    utils.get_input_tensor_by_name = lambda request, name: request[name]
    monkeypatch.setitem(sys.modules, utils.__name__, utils)
    mine = ModuleType("my_network")
    mine.build = lambda: convolutions(3, size=32)
    monkeypatch.setitem(sys.modules, mine.__name__, mine)
    return load(EXAMPLES / "triton_early_exit/1/model.py").TritonPythonModel()


def configured(folder):
    """Return the configuration as Triton passes it on."""
    pairs = re.findall(r'key: "(\w+)", value: \{ string_value: "([^"]+)" \}', TEXT)
    parameters = {key: {"string_value": value} for key, value in pairs}
    parameters["folder"]["string_value"] = str(folder)
    return {"model_config": json.dumps({"parameters": parameters})}


def test_triton_runs_each_instance_on_its_own_gpu(saved, model, monkeypatch):
    current, moved = [], []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, to: moved.append(to) or self)
    on = {"model_instance_kind": "GPU", "model_instance_device_id": "1"}
    model.initialize(configured(saved.folder) | on)
    assert current == ["cuda:1"]
    assert "cuda:1" in moved


def test_triton_runs_the_requests_of_a_batch_together(saved, model):
    model.initialize(configured(saved.folder))
    cuts = [slice(0, 1), slice(1, 8), slice(8, 60)]
    requests = [{"INPUT": Tensor(values=saved.images[cut].numpy())} for cut in cuts]
    calls = []
    run = model.runner
    model.runner = lambda batch: (calls.append(len(batch)), run(batch))[1]
    responses = model.execute(requests)
    assert calls == [60]
    for response, cut in zip(responses, cuts, strict=True):
        classes, by = (tensor.as_numpy() for tensor in response.tensors)
        assert classes[:, 0].tolist() == saved.answers.logits[cut].argmax(1).tolist()
        assert [name.decode() for name in by[:, 0]] == [
            saved.names[k] for k in saved.answers.exit[cut].tolist()
        ]
    outputs = re.findall(r'name: "([A-Z]+)", data_type', TEXT)
    assert outputs == ["INPUT", *(tensor.name for tensor in responses[0].tensors)]
    taken = re.search(r'name: "INPUT", .* dims: \[ ([-0-9, ]+) \]', TEXT)[1]
    assert [int(size) for size in taken.split(",")] == [*saved.images.shape[1:]]
    assert "dynamic_batching" in TEXT
