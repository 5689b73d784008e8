"""Early exits on a GPU: kernels for ramps and decisions, and CUDA graphs.

Other modules import from here only. Kernels need Triton; in tests its interpreter runs them.
"""

from ttamer.torch.cuda.branching import captured as captured, release_memory as release_memory
from ttamer.torch.cuda.graphs import GraphRunner as GraphRunner, full_graph as full_graph
from ttamer.torch.early_exit import HAS_TRITON

if HAS_TRITON:
    from ttamer.torch.cuda.decide_kernel import KernelDecider as KernelDecider
    from ttamer.torch.cuda.ramp_kernel import run_ramp as run_ramp
