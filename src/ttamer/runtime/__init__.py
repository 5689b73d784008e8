"""Running a policy over model callables, and collecting traces from them."""

from ttamer._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
