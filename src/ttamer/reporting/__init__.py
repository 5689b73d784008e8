"""Reports: the comparison as one offline page with figures and a recommendation."""

from ttamer._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
