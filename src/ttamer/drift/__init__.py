"""Traffic that changes: audit a share of it, test for change, re-fit, certify, swap or fall back.

::

    from ttamer.drift import Loop, LoopSettings, serving_of

    settings = LoopSettings(at_most=0.05)
    loop = Loop(serving_of(ladder, held_out_rows, settings), settings, notify=print)
    loop.update(audited_rows, numbers)
    loop.policy
"""

from ttamer.drift.auditor import Auditor as Auditor
from ttamer.drift.audits import (
    AuditLog as AuditLog,
    AuditRow as AuditRow,
    NodeAnswer as NodeAnswer,
    Retention as Retention,
    read_log as read_log,
)
from ttamer.drift.decisions import Decisions as Decisions, decide as decide
from ttamer.drift.eprocess import (
    ConformalPValues as ConformalPValues,
    Growth as Growth,
    MixtureEProcess as MixtureEProcess,
    bet_sizes as bet_sizes,
    pvalue_increments as pvalue_increments,
)
from ttamer.drift.fallback import AskLast as AskLast
from ttamer.drift.loop import (
    CertifiedServing as CertifiedServing,
    Event as Event,
    FallbackServing as FallbackServing,
    Loop as Loop,
    Serving as Serving,
    serving_of as serving_of,
    status_of as status_of,
)
from ttamer.drift.monitor import (
    Alarm as Alarm,
    Bound as Bound,
    Evidence as Evidence,
    Monitor as Monitor,
)
from ttamer.drift.refit import RefitProcess as RefitProcess
from ttamer.drift.replay import (
    Arm as Arm,
    ReplayResult as ReplayResult,
    replay_stream as replay_stream,
)
from ttamer.drift.sampling import (
    AuditSampler as AuditSampler,
    Budget as Budget,
    Draw as Draw,
    Estimate as Estimate,
    estimate as estimate,
)
from ttamer.drift.settings import LoopSettings as LoopSettings
