"""Real traces that come with the package."""

from ttamer._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
