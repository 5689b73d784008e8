"""Running a policy over model callables, and collecting traces from them."""

from ttamer.runtime.calling import batched as batched
from ttamer.runtime.cascade import BatchOutcome as BatchOutcome, Cascade as Cascade
from ttamer.runtime.collecting import collect as collect
from ttamer.runtime.reply import (
    CascadeFailed as CascadeFailed,
    NodeCall as NodeCall,
    Outcome as Outcome,
)
