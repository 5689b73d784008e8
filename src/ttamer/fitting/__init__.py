"""Fitting: from a trace to a ladder of policies."""

from ttamer._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
