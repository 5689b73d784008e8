"""Policies: solved tables, what they say, and the sessions and batches that look decisions up."""

from ttamer.policy.base import (
    Future as Future,
    Ladder as Ladder,
    Policy as Policy,
    StateRule as StateRule,
)
from ttamer.policy.index import IndexPolicy as IndexPolicy
from ttamer.policy.joint import JointPolicy as JointPolicy
from ttamer.policy.session import (
    Batch as Batch,
    Explanation as Explanation,
    Session as Session,
    StateSession as StateSession,
)
from ttamer.policy.walk import WalkPolicy as WalkPolicy
