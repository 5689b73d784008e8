"""The plug-in for LiteLLM beside a stand-in for it; ``make litellm`` tries the real proxy."""

import asyncio
import sys
from types import ModuleType, SimpleNamespace

import pytest

from ttamer.litellm import Deployment, Provider
from ttamer.llm.settings import NodeSettings


class CustomLLMError(Exception):
    """LiteLLM's error of a provider."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


@pytest.fixture
def sent(monkeypatch):
    """Install the stand-in; give what its models are asked."""
    requests = []

    async def acompletion(**options):
        requests.append(options)
        body = {"choices": [{"message": {"content": "A"}}]}
        hidden = {"response_cost": 0.25}
        return SimpleNamespace(model_dump=lambda: body, _hidden_params=hidden)

    litellm, errors = ModuleType("litellm"), ModuleType("litellm.llms.custom_llm")
    litellm.ModelResponse = dict
    litellm.acompletion, errors.CustomLLMError = acompletion, CustomLLMError
    for module in (litellm, ModuleType("litellm.llms"), errors):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return requests


def test_a_node_gets_what_the_client_sent_and_its_own_parameters(sent):
    params = {"temperature": False, "reasoning_effort": "low"}
    node = NodeSettings(name="a", cost=1.0, upstream="http://h/v1", model="m", params=params)
    body = {"messages": [], "parallel_tool_calls": False, "temperature": 0.5}
    response = asyncio.run(Deployment(node).complete(body))
    assert response.cost == 0.25
    (options,) = sent
    assert options["parallel_tool_calls"] is False  # the client's own
    assert (options["model"], options["reasoning_effort"]) == ("m", "low")
    assert "temperature" not in options


@pytest.mark.parametrize("name", ["../secret", "a/b", "a\\b"])
def test_the_name_of_a_cascade_is_no_path(sent, name):
    call = Provider().acompletion(model=f"ttamer/{name}", messages=[], optional_params={})
    with pytest.raises(CustomLLMError, match="that of a file, without a folder"):
        asyncio.run(call)
    assert not sent
