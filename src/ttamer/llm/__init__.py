"""Language models as nodes: prompts, confidences, comparing answers, judging and labelling."""

from ttamer.llm.collecting import (
    CollectionPlan as CollectionPlan,
    collect_more as collect_more,
    collect_prompts as collect_prompts,
    plan_collection as plan_collection,
)
from ttamer.llm.compare import Comparer as Comparer, Comparison as Comparison
from ttamer.llm.confidence import probability_of_answer as probability_of_answer
from ttamer.llm.importing import import_answers as import_answers
from ttamer.llm.judging import Judge as Judge, judge_answers as judge_answers
from ttamer.llm.likeness import (
    FittedThreshold as FittedThreshold,
    cosines as cosines,
    fit_threshold as fit_threshold,
)
from ttamer.llm.prompts import Prompt as Prompt, read_prompts as read_prompts
