"""A cascade inside Triton Inference Server (business logic scripting).

Every node of the policy is a model of the same repository that takes INPUT and returns
PROBABILITIES, one per class. Its prediction is the most likely class, its confidence how likely.

The repository: models/cascade/{config.pbtxt,policy.ttamer,1/model.py} beside models/small and
models/large; ttamer must be installed for the Python that runs the backend.
"""

import asyncio
import json

import numpy as np
import triton_python_backend_utils as pb_utils

import ttamer as tt
from ttamer.runtime.cascade import Cascade, CascadeFailed


class TritonPythonModel:
    """What Triton loads."""

    def initialize(self, args):
        """Load the policy that the configuration names."""
        parameters = json.loads(args["model_config"])["parameters"]
        settings = {key: value["string_value"] for key, value in parameters.items()}
        policy = tt.load(settings["policy"]).at(float(settings["tradeoff"]))
        names = policy.fitted.spec.names
        self.cascade = Cascade(
            policy, {name: _model(name) for name in names}, deadline=float(settings["deadline"])
        )

    async def execute(self, requests):
        """Answer all requests at once; each asks the models its policy chooses."""
        return await asyncio.gather(*(self._answer(request) for request in requests))

    async def _answer(self, request):
        tensor = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
        try:
            outcome = await self.cascade.arun(tensor)
        except CascadeFailed as failed:
            return pb_utils.InferenceResponse(
                output_tensors=[], error=pb_utils.TritonError(str(failed))
            )
        return pb_utils.InferenceResponse(
            output_tensors=[
                pb_utils.Tensor("CLASS", np.array([outcome.answer], np.int64)),
                pb_utils.Tensor("ANSWERED_BY", np.array([outcome.by.encode()], np.object_)),
                pb_utils.Tensor("COST", np.array([outcome.cost], np.float64)),
            ]
        )


def _model(name):
    """Return a node that asks another model of the repository."""

    async def ask(tensor):
        request = pb_utils.InferenceRequest(
            model_name=name,
            requested_output_names=["PROBABILITIES"],
            inputs=[pb_utils.Tensor("INPUT", tensor)],
        )
        response = await request.async_exec()
        if response.has_error():
            raise RuntimeError(response.error().message())
        likely = pb_utils.get_output_tensor_by_name(response, "PROBABILITIES").as_numpy()
        return int(likely.argmax()), float(likely.max())

    return ask
