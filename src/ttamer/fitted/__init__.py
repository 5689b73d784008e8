"""Fitted policies: policies with the model that turns observations into states."""

from ttamer._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
