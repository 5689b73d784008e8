from ttamer.torch.bert_exits import bert as bert
from ttamer.torch.bert_exits import exits_on_bert as exits_on_bert
from ttamer.torch.costs import Costs as Costs
from ttamer.torch.early_exit import EarlyExit as EarlyExit
from ttamer.torch.flops import count_flops as count_flops
from ttamer.torch.folding import folded as folded
from ttamer.torch.gpt2_exits import exits_on_gpt2 as exits_on_gpt2
from ttamer.torch.gpt2_exits import gpt2 as gpt2
from ttamer.torch.graphs import GraphRunner as GraphRunner
from ttamer.torch.profiling import Profile as Profile
from ttamer.torch.profiling import profile as profile
from ttamer.torch.regrouping import Regrouping as Regrouping
from ttamer.torch.running import Answers as Answers
from ttamer.torch.running import Runner as Runner
from ttamer.torch.tables import threshold_tables as threshold_tables
from ttamer.torch.tracing import trace_of as trace_of
from ttamer.torch.training import Recipe as Recipe
from ttamer.torch.training import train as train
from ttamer.torch.tuning import Recommendation as Recommendation
from ttamer.torch.tuning import recommend as recommend
from ttamer.torch.vgg_exits import (
    exits_on_vgg as exits_on_vgg,
)
from ttamer.torch.vgg_exits import (
    pooled_ramp as pooled_ramp,
)
from ttamer.torch.vgg_exits import (
    vgg as vgg,
)
