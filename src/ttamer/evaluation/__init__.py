"""Evaluation: how a rule does on a trace, and the frontiers of many rules."""

from ttamer._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
