"""Statistics that fits and tests share: regressions, envelopes, confidence bounds."""

from ttamer._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
