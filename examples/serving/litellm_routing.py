"""The policy inside LiteLLM: a custom routing strategy that sends every call to the node it is for.

A strategy of LiteLLM picks one deployment for a call; a cascade makes several calls and stops when
the policy decides so. So the strategy looks up the node that the policy asks now, and
``acompletion`` makes the calls. The deployments of one model group are named like the nodes of the
policy, in ``model_info.id``. Providers, keys and callbacks stay LiteLLM's; of deployments that
fail, the policy takes care, not LiteLLM's cooldown.

Run it with: python examples/serving/litellm_routing.py policy.ttamer small=URL large=URL
where a URL is the base of an OpenAI-compatible server. Needs: pip install litellm (1.106 was tried)
"""

import asyncio
import sys

from litellm import Router
from litellm.types.router import CustomRoutingStrategyBase

import ttamer as tt
from ttamer.llm import Comparison, probability_of_answer
from ttamer.runtime import Cascade

GROUP = "cascade"


class CascadeRouting(CustomRoutingStrategyBase):
    """Routes the calls of one model group as a fitted policy decides."""

    def __init__(self, router, policy, *, compare="normalised", **limits):
        self.router = router
        self.policy = policy
        self.compare = Comparison(compare)
        nodes = {name: self._node(name) for name in policy.fitted.spec.names}
        self.cascade = Cascade(policy, nodes, **limits)
        router.set_custom_routing_strategy(self)

    async def acompletion(self, messages, **options):
        """Answer one request; return LiteLLM's response, and what came of the cascade."""
        outcome = await self.cascade.arun({"messages": messages, **options})
        return outcome.answer, outcome

    async def async_get_available_deployment(self, model, request_kwargs=None, **_):
        """Return the deployment of the node that this call is for."""
        return self.get_available_deployment(model, request_kwargs)

    def get_available_deployment(self, model, request_kwargs=None, **_):
        """Return the deployment of the node that this call is for; else of the policy's first."""
        metadata = (request_kwargs or {}).get("metadata") or {}
        node = metadata.get("ttamer_node") or self.policy.session().next
        for deployment in self.router.get_model_list(model):
            if deployment["model_info"]["id"] == node:
                return deployment
        raise ValueError(f"model group {model!r} has no deployment with model_info.id {node!r}")

    def _node(self, name):
        async def ask(request):
            response = await self.router.acompletion(
                model=GROUP, logprobs=True, metadata={"ttamer_node": name}, **request
            )
            reply = response.model_dump()
            text = reply["choices"][0]["message"]["content"] or ""
            return self.compare.prediction(text), probability_of_answer(reply), response

        return ask


def router_over(addresses, **settings):
    """Return a router with one deployment for each node: a mapping of names to base URLs."""
    deployments = [
        {
            "model_name": GROUP,
            "litellm_params": {"model": f"openai/{name}", "api_base": url, "api_key": "none"},
            "model_info": {"id": name},
        }
        for name, url in addresses.items()
    ]
    return Router(model_list=deployments, num_retries=0, **settings)


async def main(policy_file, addresses):
    """Ask one question."""
    routing = CascadeRouting(router_over(addresses), tt.load(policy_file).at(0.95), deadline=60.0)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    response, outcome = await routing.acompletion(messages, max_tokens=32)
    print(response.choices[0].message.content)
    print(f"the answer of {outcome.by}, after asking {', '.join(outcome.path)}: {outcome.why}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], dict(argument.split("=", 1) for argument in sys.argv[2:])))
