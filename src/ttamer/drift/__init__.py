"""Traffic that changes: audit a share of it, test for change, re-fit, certify, swap or fall back.

::

    from ttamer.drift import Loop, LoopSettings, serving_of

    settings = LoopSettings(at_most=0.05)
    loop = Loop(serving_of(ladder, held_out_rows, settings), settings, notify=print)
    loop.update(audited_rows, numbers)
    loop.policy
"""

from ttamer._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
