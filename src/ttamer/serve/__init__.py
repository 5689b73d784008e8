"""An OpenAI-compatible gateway in front of a cascade, and traces from its upstreams."""

from ttamer._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
