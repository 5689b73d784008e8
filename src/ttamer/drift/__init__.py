"""Traffic that changes: audit a share of it, test for change, re-fit, certify, swap or fall back.

::

    from ttamer.drift import Loop, LoopSettings, serving_of

    settings = LoopSettings(at_most=0.05)
    loop = Loop(serving_of(ladder, held_out_rows, settings), settings)
    loop.update(audited_rows, numbers)
    loop.policy, loop.events
"""

from ttamer.drift.job import WatchResult as WatchResult, watch as watch
from ttamer.drift.loop import (
    CertifiedServing as CertifiedServing,
    Event as Event,
    Loop as Loop,
    LoopSettings as LoopSettings,
    serving_of as serving_of,
)
from ttamer.drift.monitor import Alarm as Alarm, Bound as Bound, Monitor as Monitor
