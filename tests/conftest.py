"""Hypothesis draws the same examples every time; HYPOTHESIS_PROFILE=explore looks for new ones.

Triton's kernels are interpreted, so that they are tested where there is no GPU.
"""

import os

from hypothesis import settings

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is defined

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
