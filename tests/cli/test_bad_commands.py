"""Bad commands: one line on stderr that says what to do, exit code 2, and nothing done."""

from __future__ import annotations

import contextlib
import shlex

import pytest

import ttamer as tt
from support.three_models import three_models
from support.traces import answering_trace
from ttamer.cli import main

CASCADE = '[[node]]\nname = "{}"\ncost = {}\nupstream = "http://127.0.0.1:1/v1"\n'
HEAD = "small.confidence,middle.confidence,large.confidence\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files that commands read: logs, policies, problems, cascades, and broken ones."""
    path = tmp_path_factory.mktemp("bad")
    for seed, name in ((0, "fit.parquet"), (0, "fit.csv"), (1, "test.parquet")):
        answering_trace(300, seed=seed).write(path / name)
    answering_trace(10).spec.to_file(path / "cascade.toml")
    (path / "alone").mkdir()  # without a cascade.toml beside it
    answering_trace(40).to_frame().to_parquet(path / "alone" / "bare.parquet")
    ladder = tt.fit(tt.Trace.read(path / "fit.parquet"))
    test = tt.Trace.read(path / "test.parquet")
    with_promise = ladder.with_promise(ladder.for_error(0.3, on=test))
    three_models().to_file(path / "problem.json")
    policies = {"ladder": ladder, "one": ladder[-1], "certified": with_promise}
    policies["solved"] = tt.solve(three_models(), 0.9)
    for name, policy in policies.items():
        tt.save(policy, path / f"{name}.ttamer")
    texts = {
        "torn.json": "{",
        "lacks.json": '{"moves": "walk"}',
        "empty.json": '{"moves": "walk", "nodes": [], "edges": []}',
        "torn.ttamer": "no policy",
        "empty.csv": "",
        "few.csv": "small.confidence\n0.5\n",
        "infinite.csv": f"{HEAD}0.5,inf,0.1\n",
        "words.csv": f"{HEAD}0.5,x,0.1\n",
        "empty.toml": "",
        "asked.toml": CASCADE.format("a", 1) + CASCADE.format("b", 2),
        "answers.jsonl": '{"a.answer": "x", "b.answer": {"c": 1}, "label": "x"}\n',
        "words.jsonl": "[1, 2]\n",
        "prompts.jsonl": '{"prompt": "2 + 2?"}\n',
        "file": "",
    }
    for name, text in texts.items():
        (path / name).write_text(text)
    return path


BAD = """
nonsense                                         | No such command 'nonsense'
--nope                                           | No such option '--nope'
fit                                              | Missing argument 'TRACE' (see ttamer fit --help)
fit none.csv                                     | none.csv: cannot be read: No such file
fit fit.csv                                      | keeps no cascade: give --cascade cascade.toml
fit fit.csv cascade.toml                         | unexpected extra argument (cascade.toml)
fit fit.csv --cascade none.toml                  | none.toml: cannot be read
fit fit.csv --cascade empty.toml                 | there are no nodes: add one [[node]]
fit fit.csv --cascade cascade.toml --cost a=1    | --cost is in place of --cascade
fit fit.csv --cost small                         | 'small' is not NAME=COST
fit fit.csv --cost small=-1                      | 'small=-1' is not NAME=COST
fit fit.csv --cost small=1 --cost small=2        | 'small' has two costs
fit fit.csv --cost small=1                       | add a [[node]], or a --cost, for each of them
fit fit.parquet --prices | --prices takes the costs of --cascade or --cost
fit fit.parquet --belief none | 'none' is not one of 'answers', 'markov'
fit fit.parquet --max-nodes 0 | --max-nodes is 0; it must be a whole number
fit fit.parquet --hold-out 7 | --hold-out is 7
fit fit.parquet --without nope | there is no node 'nope'
fit fit.parquet --rename small | --rename takes OLD=NEW, not small
fit fit.parquet --rename small=large | the name 'large' is taken
fit fit.parquet -o p.txt | a .ttamer file is written
fit fit.parquet -o no/p.ttamer | -o no/p.ttamer: there is no folder no
fit fit.parquet -o . | -o .: it is a folder
fit fit.parquet -o fit.parquet | the command reads it, and would replace it
fit fit.parquet --cascade cascade.toml -o cascade.toml | the command reads it, and would replace it
fit empty.csv --cascade cascade.toml             | empty.csv: is empty
fit few.csv --cascade cascade.toml               | the column 'middle.confidence' is missing
fit infinite.csv --cascade cascade.toml          | skip these rows with --skip-bad
fit infinite.csv --sample 9 --cascade cascade.toml | --skip-bad
fit fit.parquet --sample 0 | --sample is 0; it must be a whole number
fit words.csv --cascade cascade.toml             | row 0
fit file | the suffix must be one of .parquet
evaluate                                         | Missing argument 'POLICY'
evaluate fit.parquet ladder.ttamer | fit.parquet is a trace; ttamer fit makes a policy
evaluate none.ttamer test.parquet | none.ttamer: cannot be read
evaluate torn.ttamer test.parquet | torn.ttamer: is not a ttamer file
evaluate solved.ttamer test.parquet | was solved from a problem.json
evaluate ladder.ttamer test.parquet --tradeoff 2 | --tradeoff must be a number from 0
evaluate ladder.ttamer test.parquet --budget nan | --budget is nan
evaluate ladder.ttamer test.parquet --budget 0.001 | no policy of this ladder costs as little
evaluate ladder.ttamer test.parquet --mistake-cost 0 | --mistake-cost is 0.0
evaluate ladder.ttamer test.parquet --tradeoff .5 --budget 3 | cannot be used with --tradeoff
evaluate ladder.ttamer test.parquet --against test.parquet | is not a ttamer file
evaluate one.ttamer test.parquet --tradeoff 0.5 | holds one policy, so that there is nothing
certify fit.parquet ladder.ttamer | fit.parquet is a trace; ttamer fit makes a policy
certify one.ttamer test.parquet --error 0.1 | is no ladder made by ttamer fit
certify ladder.ttamer                            | holds no certificate: make one with --error
certify ladder.ttamer --error 0.1                | ttamer fit --hold-out 0.2
certify ladder.ttamer test.parquet --error 2 | --error is 2.0
certify ladder.ttamer test.parquet --error 1 --drop 1 | --drop cannot be used with --error
certify ladder.ttamer test.parquet --error 0.3 --against large | is for a new certificate with
certify ladder.ttamer test.parquet --drop 0.1 --against nope | --against is 'nope'
certify ladder.ttamer --error 0.2 --exceeded-at-most 0.1 | with --budget: state that too
certify ladder.ttamer test.parquet --error 0.2 --confidence 1 | --confidence is 1.0
certify certified.ttamer test.parquet | the rows that a certificate in
certify certified.ttamer test.parquet --confidence 0.99 | --confidence is for a new certificate
certify certified.ttamer test.parquet -o new.ttamer | --output is for a new certificate
frontier                                         | give one TRACE, which is halved at random
frontier test.parquet --fit fit.parquet | give one TRACE, which is halved at random
frontier none.csv --families threshold,magic     | there is no family 'magic'; there are ttamer
frontier none.csv --resamples -5                 | -5 is not in the range x>=0
frontier fit.parquet --families chain -o q.ttamer | -o writes what is recommended beside ttamer
frontier alone/bare.parquet | (--cost small=1.0 --cost middle=1.0
report none.csv --families magic                 | there is no family 'magic'
report fit.parquet -o report.png | give a name that ends in .html
report fit.parquet -o file/r.html | there is no folder file
report --against large                           | --against takes one LOG
report words.jsonl --against large               | or give the decision log of a server
report none.jsonl --against large                | none.jsonl: cannot be read
demo --trace nothing                             | the traces are langid, llm-mmlu
demo -o file                                     | it is a file, and a folder is written
inspect none.ttamer                              | none.ttamer: cannot be read
inspect torn.ttamer                              | torn.ttamer: is not a ttamer file
solve none.json --tradeoff 0.5                   | none.json: cannot be read
solve torn.json --tradeoff 0.5                   | torn.json: is not JSON: line 1
solve lacks.json --tradeoff 0.5                  | nodes
solve empty.json --tradeoff 0.5                  | no nodes
solve problem.json                               | give one of --tradeoff L
solve problem.json --tradeoff 0.5 --ladder 3     | give one of --tradeoff L
solve problem.json --tradeoff much               | 'much' is not a valid float
solve problem.json --tradeoff -0.1               | from 0
solve problem.json --tradeoff nan                | from 0
solve problem.json --ladder 1                    | 1 is not in the range x>=2
solve problem.json --ladder 3 --draw p.svg       | --draw needs --tradeoff
solve problem.json --tradeoff 0.5 --draw p.png   | a .svg file is written
theory                                           | Missing command
theory no-recall --alpha 1                       | --alpha must be a number above 1
theory figure 3                                  | run it in the root of a clone
label fit.parquet | ttamer collect writes it beside the trace
label fit.parquet --judge a | --judge NODE and --cascade FILE go together
label fit.parquet -o fit.parquet | the command reads it, and would replace it
import answers fit.csv --cascade asked.toml -o t.bin | the suffix must be one of
import answers file --cascade asked.toml -o t.parquet | the suffix must be one of .jsonl
import answers answers.jsonl --cascade asked.toml -o t.parquet | skip such rows with --skip-bad
collect short=models:short                       | collected in Python: ttamer.collect
collect asked.toml                               | give --prompts FILE, what to ask
collect asked.toml --prompts none.txt            | none.txt: cannot be read
collect asked.toml --prompts prompts.jsonl --label truth | no prompt of prompts.jsonl has that field
collect asked.toml --prompts prompts.jsonl --only a | --prompts-from TRACE together with --only
collect asked.toml --prompts prompts.jsonl --budget -1 | -1.0 is not in the range x>=0
collect asked.toml --prompts prompts.jsonl --max-tokens 0 | 0 is not in the range x>=1
collect asked.toml --prompts prompts.jsonl -o t.bin | the suffix must be one of
drift log.jsonl --policy ladder.ttamer           | a promise is needed: give --error or --drop
drift log.jsonl --policy ladder.ttamer --error 1 --drop 1 | --drop cannot be used with --error
drift log.jsonl --policy ladder.ttamer --error 0.1 | log.jsonl: cannot be read
forget none.jsonl request                        | none.jsonl: there is no such file
serve asked.toml                                 | a policy is needed: ttamer serve CASCADE POLICY
serve asked.toml fit.parquet | fit.parquet is a trace
serve ladder.ttamer asked.toml                   | the cascade comes first
serve asked.toml ladder.ttamer --check           | was fitted for small, middle, large
torch profile nope                               | name a function of yours as MODULE:FUNCTION
"""
TABLE = [line.split(" | ", 1) for line in BAD.strip().splitlines()]


@pytest.mark.parametrize(("command", "message"), TABLE, ids=[line[0].strip() for line in TABLE])
def test_a_bad_command_is_one_line_and_does_nothing(folder, capsys, command, message):
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    with contextlib.chdir(folder):
        assert main(shlex.split(command)) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    *progress, error = shown.err.splitlines()
    assert all(line.startswith("... ") for line in progress)
    assert message.strip() in error
    assert error.startswith("ttamer")
    assert "please report" not in error
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
