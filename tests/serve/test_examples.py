"""The examples of other people's servers: with the real package where it is small, else a stand-in.

LiteLLM (310 MB) and Triton Inference Server (a container) are not installed for the tests. What
stands in for them here calls the example as they do, and nothing more.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from starlette.testclient import TestClient

import ttamer as tt
from support.faulty_upstream import truth
from ttamer.serve.config import NodeSettings
from ttamer.serve.upstreams.client import HttpClient
from ttamer.serve.upstreams.upstream import Upstream

EXAMPLES = Path(__file__).parents[2] / "examples" / "serving"


def load(path: str):
    spec = importlib.util.spec_from_file_location("example_" + Path(path).stem, EXAMPLES / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# FastAPI


@pytest.fixture(scope="module")
def primes():
    example = load("fastapi_cascade.py")
    with TestClient(example.make_app(example.fitted_policy())) as client:
        yield client


@pytest.mark.parametrize(("number", "answer"), [(7, "prime"), (2021, "composite"), (2999, "prime")])
def test_fastapi_answers_with_the_node_that_answered(primes, number, answer):
    said = primes.get(f"/prime/{number}").json()
    assert said["answer"] == answer
    assert said["by"] == said["path"][-1]
    assert said["cost"] == sum({"small": 3.0, "large": 50.0}[node] for node in said["path"])
    assert said["why"]


def test_fastapi_asks_the_large_model_only_where_it_pays(primes):
    paths = [primes.get(f"/prime/{number}").json()["path"] for number in range(2000, 2100)]
    small_alone = sum(path == ["small"] for path in paths)
    assert 50 < small_alone < 100


@pytest.mark.parametrize("number", ["1", "-7", "x", str(10**13)])
def test_fastapi_refuses_what_is_no_question(primes, number):
    assert primes.get(f"/prime/{number}").status_code == 422


# LiteLLM


class StandInRouter:
    """As much of ``litellm.Router`` as a custom strategy meets."""

    def __init__(self, model_list, num_retries, **_):
        assert num_retries == 0
        self.model_list = model_list

    def set_custom_routing_strategy(self, strategy):
        self.async_get_available_deployment = strategy.async_get_available_deployment

    def get_model_list(self, model_name):
        return [each for each in self.model_list if each["model_name"] == model_name]

    async def acompletion(self, model, messages, **options):
        deployment = await self.async_get_available_deployment(
            model=model, messages=messages, request_kwargs=options
        )
        options.pop("metadata", None)
        params = deployment["litellm_params"]
        name = deployment["model_info"]["id"]
        node = NodeSettings(name, 1.0, params["api_base"], params["model"])
        async with HttpClient() as session:
            reply = await Upstream(node, session).call(
                "/chat/completions", {"messages": messages, **options}
            )
        content = reply.body["choices"][0]["message"]["content"]
        choice = SimpleNamespace(message=SimpleNamespace(content=content))
        return SimpleNamespace(model_dump=lambda: reply.body, choices=[choice])


@pytest.fixture
def litellm(monkeypatch):
    whole, types, router = (
        ModuleType(f"litellm{part}") for part in ("", ".types", ".types.router")
    )
    whole.Router = StandInRouter
    router.CustomRoutingStrategyBase = object
    for module in (whole, types, router):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return load("litellm_routing.py")


def test_litellm_sends_calls_where_the_policy_asks(litellm, served):
    urls = {name: upstream.url for name, upstream in served.upstreams.items()}
    policy = served.ladder.at(0.97)

    async def go():
        routing = litellm.CascadeRouting(litellm.router_over(urls), policy, compare="choice")
        return [
            await routing.acompletion([{"role": "user", "content": f"Question {i}?"}], max_tokens=3)
            for i in range(20)
        ]

    answers = asyncio.run(go())
    for response, outcome in answers:
        assert response.choices[0].message.content == outcome.prediction
    small, large = served.upstreams.values()
    assert small.count == 20
    assert 0 < large.count == sum("large" in outcome.path for _, outcome in answers) < 20
    right = [o.prediction == truth(f"Question {i}?") for i, (_, o) in enumerate(answers)]
    assert sum(right) > 12


def test_litellm_goes_on_where_a_deployment_fails(litellm, served):
    urls = {name: upstream.url for name, upstream in served.upstreams.items()}
    served.upstreams["small"].mode = "error"

    async def go():
        routing = litellm.CascadeRouting(litellm.router_over(urls), served.ladder.at(0.97))
        return await routing.acompletion([{"role": "user", "content": "Which?"}])

    _, outcome = asyncio.run(go())
    assert (outcome.path, outcome.by) == (("small", "large"), "large")


def test_litellm_sends_a_plain_call_to_the_first_node(litellm, served):
    router = litellm.router_over({"small": "http://s/v1", "large": "http://l/v1"})
    routing = litellm.CascadeRouting(router, served.ladder.at(0.97))
    assert routing.get_available_deployment("cascade")["model_info"]["id"] == "small"
    with pytest.raises(ValueError, match="no deployment"):
        routing.get_available_deployment("other")


def test_litellm_example_as_a_command(litellm, served, capsys):
    urls = {name: upstream.url for name, upstream in served.upstreams.items()}
    asyncio.run(litellm.main(str(served.artefact), urls))
    assert "the answer of " in capsys.readouterr().out


# Triton


class Tensor:
    def __init__(self, name, values):
        self.values, self._name = values, name

    def name(self):
        return self._name

    def as_numpy(self):
        return self.values


class Response:
    def __init__(self, output_tensors, error=None):
        self.tensors, self._error = output_tensors, error

    def has_error(self):
        return self._error is not None

    def error(self):
        return self._error


class TritonError:
    def __init__(self, text):
        self.text = text

    def message(self):
        return self.text


@pytest.fixture
def triton(monkeypatch):
    """``triton_python_backend_utils`` with two models, small and large, that can be set to fail."""
    broken: set[str] = set()

    class Request:
        def __init__(self, model_name, requested_output_names, inputs):
            assert requested_output_names == ["PROBABILITIES"]
            self.model, self.inputs = model_name, inputs

        async def async_exec(self):
            await asyncio.sleep(0)
            if self.model in broken:
                return Response([], TritonError("out of order"))
            sure = {"small": 0.3, "large": 0.9}[self.model]
            values = np.full(4, (1 - sure) / 3, np.float32)
            values[int(self.inputs[0].as_numpy()[0])] = sure
            return Response([Tensor("PROBABILITIES", values)])

    def named(tensors, name):
        return next(each for each in tensors if each.name() == name)

    utils = ModuleType("triton_python_backend_utils")
    utils.InferenceRequest, utils.InferenceResponse = Request, Response
    utils.Tensor, utils.TritonError = Tensor, TritonError
    utils.get_input_tensor_by_name = lambda request, name: named(request.inputs, name)
    utils.get_output_tensor_by_name = lambda response, name: named(response.tensors, name)
    monkeypatch.setitem(sys.modules, utils.__name__, utils)
    return broken


def parameters_of(text: str) -> dict[str, dict[str, str]]:
    pairs = re.findall(r'key: "(\w+)", value: \{ string_value: "([^"]+)" \}', text)
    return {key: {"string_value": value} for key, value in pairs}


def asked_of_triton(served, numbers):
    parameters = parameters_of((EXAMPLES / "triton_bls/config.pbtxt").read_text("utf-8"))
    assert set(parameters) == {"policy", "tradeoff", "deadline"}
    parameters["policy"]["string_value"] = str(served.artefact)
    model = load("triton_bls/1/model.py").TritonPythonModel()
    model.initialize({"model_config": json.dumps({"parameters": parameters})})
    requests = [
        SimpleNamespace(inputs=[Tensor("INPUT", np.array([number], np.float32))])
        for number in numbers
    ]
    return asyncio.run(model.execute(requests))


def test_triton_answers_every_request_with_the_policys_choice(triton, served):
    assert not triton
    responses = asked_of_triton(served, [0, 3, 2])
    for response, number in zip(responses, [0, 3, 2], strict=True):
        found = {tensor.name(): tensor.as_numpy() for tensor in response.tensors}
        assert found["CLASS"].tolist() == [number]
        assert found["ANSWERED_BY"].tolist() == [b"large"]
        assert found["COST"].tolist() == [13.5]


def test_triton_goes_on_where_a_model_fails_and_reports_when_all_do(triton, served):
    triton.add("small")
    (response,) = asked_of_triton(served, [1])
    assert not response.has_error()
    triton.add("large")
    (response,) = asked_of_triton(served, [1])
    assert "out of order" in response.error().message()


def test_triton_outputs_are_those_of_the_configuration():
    text = (EXAMPLES / "triton_bls/config.pbtxt").read_text("utf-8")
    code = (EXAMPLES / "triton_bls/1/model.py").read_text("utf-8")
    outputs = re.findall(r'name: "([A-Z_]+)", data_type', text)
    assert outputs == ["INPUT", "CLASS", "ANSWERED_BY", "COST"]
    assert all(f'"{name}"' in code for name in outputs)


def test_the_policy_in_an_example_is_a_ladders(served):
    assert isinstance(tt.load(served.artefact), tt.FittedLadder)
