"""Decide, per input, which model to ask, when to stop, and whose answer to return.

>>> import ttamer as tt
>>> cascade = tt.Problem.line(
...     losses=[0.05, 0.5],
...     costs=[0.1, 0.2],
...     probabilities=[[0.6, 0.4], [[0.95, 0.05], [0.7, 0.3]]],
...     names=["small", "large"],
... )
>>> turn = tt.solve(cascade, tradeoff=0.6).session()
>>> turn.next
'small'
>>> turn.observe(1)  # small was seen in state 1, where it loses 0.5
>>> turn.next
'large'
>>> turn.observe(0)
>>> turn.next, turn.answer
(None, 'large')
"""

from ttamer._lazy import attach
from ttamer._version import __version__ as __version__

__getattr__, __dir__, __all__ = attach(__name__)
