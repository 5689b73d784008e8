from ttamer.policy.base import Ladder as Ladder
from ttamer.policy.base import Policy as Policy
from ttamer.policy.batch import Batch as Batch
from ttamer.policy.future import Future as Future
from ttamer.policy.index import IndexPolicy as IndexPolicy
from ttamer.policy.session import Explanation as Explanation
from ttamer.policy.session import Session as Session
from ttamer.policy.walk import WalkPolicy as WalkPolicy
