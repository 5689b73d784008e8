"""Traces: what each node answered on each input, and the cascade it belongs to."""

from ttamer._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
