"""Policies: solved tables, what they say, and the sessions and batches that look decisions up."""

from ttamer.policy.base import (
    Batch as Batch,
    Explanation as Explanation,
    Ladder as Ladder,
    Policy as Policy,
    Session as Session,
    StateRule as StateRule,
    StateSession as StateSession,
)
from ttamer.policy.future import Future as Future
from ttamer.policy.index import IndexPolicy as IndexPolicy
from ttamer.policy.joint import JointPolicy as JointPolicy
from ttamer.policy.walk import WalkPolicy as WalkPolicy
