"""Language models as nodes: prompts, confidences, comparing answers, judging and labelling."""

from ttamer.llm.compare import Comparer as Comparer
from ttamer.llm.compare import Comparison as Comparison
from ttamer.llm.compare import FittedThreshold as FittedThreshold
from ttamer.llm.compare import cosines as cosines
from ttamer.llm.compare import fit_threshold as fit_threshold
from ttamer.llm.confidence import probability_of_answer as probability_of_answer
from ttamer.llm.prompts import Prompt as Prompt
from ttamer.llm.prompts import read_prompts as read_prompts
