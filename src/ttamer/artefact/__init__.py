"""The policy artefact, a ``.ttamer`` file: save, load, inspect (docs/format.md)."""

from ttamer._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
