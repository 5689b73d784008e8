"""Problems: nodes, edges, loss supports and transition matrices."""

from ttamer._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
