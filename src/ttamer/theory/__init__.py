"""The paper's theory as running code: optima to compare with, and its two demonstrations."""

from ttamer._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
