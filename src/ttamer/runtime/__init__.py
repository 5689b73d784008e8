"""Running a policy over model callables, and collecting traces from them."""

from ttamer.runtime.batching import BatchOutcome as BatchOutcome
from ttamer.runtime.calling import batched as batched
from ttamer.runtime.cascade import Cascade as Cascade
from ttamer.runtime.collecting import collect as collect
from ttamer.runtime.reply import (
    CascadeFailed as CascadeFailed,
    NodeCall as NodeCall,
    Outcome as Outcome,
)
