"""CUDA graphs and kernels: capturing, launching, branching, and memory that graphs read."""
