"""A network with early exits inside Triton Inference Server, in batches.

Triton's dynamic batcher hands over several requests at once. They run as one batch: rows that the
policy is done with leave it part way. The repository: models/early_exit/{config.pbtxt,network,
1/model.py, 1/my_network.py}, where network is a folder that ``save_pretrained`` wrote with a ladder
of policies, and ``build()`` in my_network.py returns the network as it was built before it was
trained; ttamer[torch] must be installed for the Python that runs the backend.
"""

import json

import numpy as np
import torch
import triton_python_backend_utils as pb_utils
from my_network import build

from ttamer import torch as exits


class TritonPythonModel:
    """What Triton loads."""

    def initialize(self, args):
        """Load the network and the policy that the configuration names."""
        parameters = json.loads(args["model_config"])["parameters"]
        settings = {key: value["string_value"] for key, value in parameters.items()}
        device = "cpu"
        if args.get("model_instance_kind") == "GPU":
            device = f"cuda:{args['model_instance_device_id']}"
            torch.cuda.set_device(device)  # a network runs on the current GPU
        network = build()
        policies, classes = exits.load_pretrained(settings["folder"], network)
        policy = policies.at(float(settings["tradeoff"]))
        self.runner = exits.Runner(network.to(device), policy, classes=classes)
        self.names = np.array([name.encode() for name in network.names], np.object_)

    def execute(self, requests):
        """Run the rows of all requests as one batch, and return each request its own."""
        rows = [
            torch.from_numpy(pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy())
            for request in requests
        ]
        answers = self.runner(torch.cat(rows))
        classes = answers.logits.argmax(1).cpu().numpy()
        answered_by = self.names[answers.exit.cpu().numpy()]
        responses, start = [], 0
        for each in rows:
            end = start + len(each)
            responses.append(
                pb_utils.InferenceResponse(
                    output_tensors=[
                        pb_utils.Tensor("CLASS", classes[start:end, None]),
                        pb_utils.Tensor("EXIT", answered_by[start:end, None]),
                    ]
                )
            )
            start = end
        return responses
