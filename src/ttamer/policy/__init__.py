"""Policies: solved tables, what they say, and the sessions and batches that look decisions up."""

from ttamer._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
