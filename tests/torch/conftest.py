"""One thread: these networks are small, and the tests' machines are shared."""

import torch

torch.set_num_threads(1)
