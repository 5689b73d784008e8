"""Language models as nodes: prompts, confidences, comparing answers, judging and labelling."""

from ttamer.llm.collecting import (
    CollectionPlan as CollectionPlan,
    collect_prompts as collect_prompts,
    plan_collection as plan_collection,
    prompts_of as prompts_of,
)
from ttamer.llm.compare import Comparison as Comparison
from ttamer.llm.confidence import probability_of_answer as probability_of_answer
from ttamer.llm.importing import import_answers as import_answers
from ttamer.llm.judging import Judge as Judge, judge_answers as judge_answers
from ttamer.llm.prompts import Prompt as Prompt, read_prompts as read_prompts
