"""Hypothesis draws the same examples every time; HYPOTHESIS_PROFILE=explore looks for new ones.

Triton's kernels are interpreted, so that they are tested where there is no GPU. One thread per
process: several test processes share the cores, and threads that wait for each other would spin.
"""

import os

from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when NumPy or PyTorch is loaded
os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is defined

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
