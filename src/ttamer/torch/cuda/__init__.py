"""Early exits on a GPU: kernels for ramps and decisions, and CUDA graphs. Needs Triton."""

from ttamer.torch.cuda.graphs import GraphRunner as GraphRunner
