"""Language models as nodes: prompts, confidences, comparing answers, judging and labelling."""

from ttamer.llm.compare import (
    Comparer as Comparer,
    Comparison as Comparison,
    FittedThreshold as FittedThreshold,
    cosines as cosines,
    fit_threshold as fit_threshold,
)
from ttamer.llm.confidence import probability_of_answer as probability_of_answer
from ttamer.llm.prompts import Prompt as Prompt, read_prompts as read_prompts
