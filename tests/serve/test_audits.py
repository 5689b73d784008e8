"""Audits, shadow mode and the decision log: no request waits, and what is lost is counted."""

import asyncio
import contextlib
import json
import time
from types import SimpleNamespace

import numpy as np
import pytest
from starlette.requests import ClientDisconnect

import ttamer as tt
from support.fake_models import uniform
from support.served import COSTS, fitted_ladder
from ttamer.cascade import CascadeSpec
from ttamer.cli import main
from ttamer.fitting.inputs import hashed_prompt
from ttamer.llm.labelling import Labelling
from ttamer.runtime.reply import NodeCall
from ttamer.serve import audits as auditing
from ttamer.serve.records import DecisionLog, prompts_of
from ttamer.trace.decisions import read_decisions


def rows_of(path):
    head, *rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert head["v"] == 1
    assert "cascade" in head
    return rows


@pytest.fixture
def logged(serve, tmp_path):
    """Serve with a decision log; ``logged(share=0.5, serve={...})``."""

    def make(share=None, budget=None, nodes=2, **tables):
        table = {"log": str(tmp_path / "decisions.jsonl"), **tables.pop("serve", {})}
        if share is not None:
            table["audit"] = {"share": share} | ({} if budget is None else {"budget": budget})
        served = serve(nodes, serve=table, **tables)
        served.log = tmp_path / "decisions.jsonl"
        return served

    return make


def requests(count, **fields):
    return [{"content": f"prompt {number}", **fields} for number in range(count)]


def test_every_request_is_a_row_with_gaps_and_no_text(logged):
    served = logged()
    responses = served.chat(*requests(20))
    rows = rows_of(served.log)
    assert len(rows) == 20
    for row, response in zip(rows, responses, strict=True):
        assert row["v"] == 1
        assert row["request"] == response.headers["x-request-id"]
        assert row["by"] == response.headers["x-ttamer-answered-by"]
        path = response.headers["x-ttamer-path"].split(",")
        for name, node in row["nodes"].items():
            assert ("confidence" in node) == (name in path)
            assert node["chance"] == (1.0 if name in path else 0.0)
    assert rows[3]["prompt"] == hashed_prompt("prompt 3")
    assert '"prompt ' not in served.log.read_text()


def test_answers_are_digests_but_those_that_the_policy_knows(logged):
    served = logged(serve={"compare": "exact"}, force=True)
    for model in served.models.values():
        model.text = "my secret"
    served.chat(*requests(2))
    rows = rows_of(served.log)
    kept = {n["prediction"] for row in rows for n in row["nodes"].values() if "prediction" in n}
    assert len(kept) == 1
    assert kept.pop().startswith("#")
    assert "secret" not in served.log.read_text()
    key = served.log.with_name("decisions.jsonl.key")
    assert key.stat().st_mode & 0o777 == served.log.stat().st_mode & 0o777 == 0o600


def test_an_audited_request_has_every_node_and_its_chance(logged):
    served = logged(share=0.5)
    responses = served.chat(*requests(60))
    audited = served.run(lambda client: client.metric("ttamer_audits_total"))
    rows = {row["request"]: row for row in rows_of(served.log)}
    complete = [r for r in rows.values() if all("confidence" in n for n in r["nodes"].values())]
    assert 15 < audited < 45
    for response in responses:
        row = rows[response.headers["x-request-id"]]
        path = response.headers["x-ttamer-path"].split(",")
        for name, node in row["nodes"].items():
            assert node["chance"] == (1.0 if name in path else 0.5)
    assert len(complete) >= audited
    assert {len(model.bodies) for model in served.models.values()} != {60}


def test_no_request_waits_for_an_audit_and_a_failed_one_is_no_part_of_a_sample(logged):
    served = logged(share=1.0, serve={"tradeoff": 0.0})
    served.models["large"].plan = ["error"]

    async def scenario(client):
        await client.chat("prompt 1")
        await served.settle()
        served.models["large"].delay = 0.3
        response = await asyncio.wait_for(client.chat("prompt 2"), 0.2)
        await served.settle()
        return response

    response = served.run(scenario)
    assert response.headers["x-ttamer-path"] == "small"
    failed, good = rows_of(served.log)
    assert failed["nodes"]["large"]["chance"] is None
    assert failed["nodes"]["large"]["failed"] == "error"
    assert good["nodes"]["large"]["chance"] == 1.0


def test_a_node_that_failed_is_asked_once_more_and_both_calls_are_paid(logged):
    served = logged(share=1.0, serve={"tradeoff": 0.0})
    served.models["small"].plan = ["timeout"]
    assert served.chat().json()["ttamer"]["cost"] == 13.5  # a call that was late is paid
    (row,) = rows_of(served.log)
    assert row["nodes"]["small"]["cost"] == 2.0
    assert "confidence" in row["nodes"]["small"]
    assert read_decisions(served.log).audit_cost.tolist() == [1.0]


def test_a_node_that_cannot_take_a_request_had_no_chance_there(logged):
    served = logged(share=1.0, serve={"tradeoff": 0.0}, node={"large": {"context": 5}})
    served.chat({"content": "prompt " * 20})
    (row,) = rows_of(served.log)
    assert (row["nodes"]["small"]["chance"], row["nodes"]["large"]["chance"]) == (1.0, 0.0)
    assert row["nodes"]["large"]["failed"] == "ineligible"


def test_a_request_that_chose_for_itself_is_not_audited(logged):
    served = logged(share=1.0, serve={"allow": ["tradeoff"]})
    served.chat(*requests(3, ttamer={"tradeoff": 0.0}))
    assert [row["nodes"]["large"]["chance"] for row in rows_of(served.log)] == [0.0] * 3


def test_a_budget_ends_audits_and_not_answers(logged):
    served = logged(share=1.0, budget=40.0, serve={"tradeoff": 0.0})
    assert {response.status_code for response in served.chat(*requests(60))} == {200}
    assert len(served.models["large"].bodies) * 12.5 <= 40.0


def test_audits_that_would_pile_up_are_left_out(logged, monkeypatch):
    monkeypatch.setattr(auditing.Audits, "max_waiting", 2)
    served = logged(share=1.0, serve={"tradeoff": 0.0})
    served.models["large"].delay = 0.3
    served.chat(*requests(6))
    chances = [row["nodes"]["large"]["chance"] for row in rows_of(served.log)]
    assert chances.count(None) == 4


@pytest.mark.parametrize("how", ["relayed", "whole", "leaves"])
def test_a_stream_is_audited_once_it_was_sent_and_says_nothing_of_the_audit(logged, how):
    node = {} if how == "relayed" else {"small": {"confidence": "agreement", "samples": 2}}
    table = {"tradeoff": 0.0, "compare": "exact"}
    served = logged(share=1.0, serve=table, force=True, node=node)
    # More events than wait to be sent: one for each character, or for 64.
    served.models["small"].text = "word " * (40 if how == "relayed" else 400)
    bodies = served.models["large"].bodies

    async def scenario(client):
        sent = []

        async def send(message):
            assert not bodies
            sent.append(message.get("body", b""))
            if how == "leaves" and len(sent) > 5:
                raise OSError

        body = {"stream": True, "stream_options": {"include_usage": True}}
        with contextlib.suppress(OSError, ClientDisconnect):
            await served.asked(body, send)
        await served.settle()
        del client
        return b"".join(sent)

    text = served.run(scenario)
    (row,) = rows_of(served.log)
    assert len(bodies) == 1
    assert "confidence" in row["nodes"]["large"]
    if how != "leaves":
        chunks = [json.loads(line[6:]) for line in text.splitlines() if line[6:7] == b"{"]
        assert chunks[-1]["usage"]["completion_tokens"] == len(served.models["small"].bodies)


def test_a_judge_is_a_part_of_what_an_audit_may_cost(serve, tmp_path):
    table = {"share": 1.0, "judge": "large", "budget": 38.0}  # 13.5 for answers, 25 for verdicts
    with pytest.raises(tt.CascadeError, match=r"38 per hour and one audit may cost 38.5"):
        serve(serve={"log": str(tmp_path / "x"), "audit": table})


class TestShadow:
    def shadow(self, logged, **more):
        tables = {"mode": "shadow", "tradeoff": None} | more
        return logged(share=0.5, serve=tables, policy=False)

    def test_clients_get_the_incumbents_answer_always(self, logged):
        served = self.shadow(logged)
        responses = served.chat(*requests(40))
        served.models["small"].plan = ["timeout"] * 99
        responses += served.chat(*requests(10))
        for number, response in enumerate(responses):
            assert response.headers["x-ttamer-path"] == "large"
            text = response.json()["choices"][0]["message"]["content"]
            assert text == served.models["large"].answer(f"prompt {number % 40}")[0]
        rows = rows_of(served.log)
        assert len(rows) == 50
        assert {row["nodes"]["large"]["chance"] for row in rows} == {1.0}
        assert {row["nodes"]["small"]["chance"] for row in rows} == {0.5, None}

    def test_another_node_can_be_the_incumbent_and_streams_are_its_own(self, logged):
        served = self.shadow(logged, incumbent="small")
        whole, stream = served.chat({}, {"stream": True})
        assert whole.json()["model"] == "small"
        assert served.models["small"].answer("prompt 1")[0] in stream.text

    def test_nobody_can_choose_another_point(self, logged):
        served = self.shadow(logged, allow=["tradeoff"])
        response = served.chat({"ttamer": {"tradeoff": 0.0}})
        assert response.headers["x-ttamer-path"] == "large"
        refused = served.chat({"ttamer": {"max_cost": 1.0}})
        assert refused.json()["error"]["param"] == "ttamer"


class TestFeedback:
    def test_labels_and_thumbs_are_rows_of_the_log(self, logged):
        served = logged(serve={"log_texts": True})
        request = {"request": served.chat().headers["x-request-id"]}
        said = ({"label": "B"}, {"score": 0}, {}, {"label": 3})
        responses = served.post("/feedback", *(request | body for body in said))
        assert [response.status_code for response in responses] == [200, 200, 400, 400]
        _, label, score = rows_of(served.log)
        assert (label["feedback"], score["score"]) == (request["request"], 0)
        assert set(label["scores"].values()) <= {0.0, 1.0}  # the answers were at hand

    def test_what_is_said_is_bounded(self, logged):
        odd = [
            {"request": "x" * 65, "score": 1},
            {"request": "a b", "score": 1},
            {"request": "a", "label": "x" * 70_000},
            {"request": "a", "score": 2},
        ]
        assert {response.status_code for response in logged().post("/feedback", *odd)} == {400}

    @pytest.mark.parametrize(
        ("compare", "label", "row"),
        [("choice", "B", True), ("contains", "B | C", False), ("choice", "???", None)],
    )
    def test_a_label_that_cannot_be_compared_counts_no_answer_as_wrong(
        self, logged, compare, label, row
    ):
        """Such as one for a request of another replica, or of before the last start."""
        served = logged(serve={"compare": compare}, force=True)
        (response,) = served.post("/feedback", {"request": "earlier", "label": label})
        assert response.status_code == (400 if row is None else 200)
        assert served.log.exists() == bool(row)


class TestPeople:
    def test_a_log_with_texts_is_labelled_on_the_page_and_takes_the_labels(self, logged, capsys):
        served = logged(share=0.5, serve={"log_texts": True})
        served.chat(*requests(40))
        decisions = read_decisions(served.log)
        rows, prompts = prompts_of(decisions)
        assert 10 < len(rows) < 40
        log = decisions.trace.take(np.array(rows))
        with Labelling(log, prompts, f"{served.log}.labels", uniform=True) as labelling:
            for row in range(10):
                labelling.add(row, ["large"])
        assert main(["label", str(served.log), "--no-page"]) == 0
        assert "has labels of 10 requests" in capsys.readouterr().out
        loss = read_decisions(served.log).trace.loss[rows]
        assert not np.isnan(loss[:10]).any()
        assert np.isnan(loss[10:]).all()
        assert (loss[:10, 1] == 0).all()
        assert main(["label", str(served.log), "--no-page", "-o", "x.parquet"]) == 2
        assert "leave out --output" in capsys.readouterr().err

    def test_a_log_without_texts_or_audits_cannot_be_labelled(self, logged, capsys):
        served = logged(share=1.0)
        served.chat(*requests(3))
        assert main(["label", str(served.log), "--no-page"]) == 2
        assert "set log_texts = true in [serve]" in capsys.readouterr().err
        served = logged(serve={"log": str(served.folder / "other.jsonl"), "log_texts": True})
        served.chat()
        assert main(["label", str(served.folder / "other.jsonl"), "--no-page"]) == 2
        assert "has no audited request" in capsys.readouterr().err


class TestLog:
    def log(self, path, **options):
        log = DecisionLog(str(path), CascadeSpec.of({"small": 1.0}), **options)
        self.write(log)
        return log

    def write(self, log, request="r", text="", calls=()):
        work = SimpleNamespace(answers={}, body={"messages": [{"role": "user", "content": text}]})
        active = SimpleNamespace(version="v", logged=log.digest)
        job = SimpleNamespace(id=request, work=work, active=active, inputs=None)
        log.write(job, calls, None, 0.0)

    def test_a_disk_that_is_full_costs_rows_that_are_counted(self, tmp_path):
        log = self.log(tmp_path / "d.jsonl")
        log.path = str(tmp_path)  # a folder cannot be written
        log.flush()
        assert log.lost == 1
        log.max_characters = 150
        for _ in range(5):
            self.write(log, text="x" * 100)
        assert log.lost == 4  # two wait, with 200 characters

    def test_a_log_that_cannot_be_written_is_refused_before_a_port_opens(self, tmp_path):
        for texts in (False, True):
            with pytest.raises(tt.CascadeError, match=r"log is .*: No such file or directory"):
                self.log(tmp_path / "missing" / "d.jsonl", texts=texts)

    def test_a_log_is_rotated_and_may_be_renamed(self, tmp_path):
        path = tmp_path / "d.jsonl"
        log = self.log(path)
        log.max_bytes = 1000
        for number in range(100):
            self.write(log, f"r{number}")
            log.flush()
        files = sorted(tmp_path.glob("d.jsonl*"))
        assert len(files) == log.files + 2  # and the key, and the lock
        assert all(file.stat().st_size <= 1200 for file in files)  # each with its cascade
        path.rename(tmp_path / "away")
        self.write(log, "last")
        log.flush()
        assert len(rows_of(path)) == 1

    def test_a_row_after_half_a_line_is_read(self, tmp_path):
        path = tmp_path / "d.jsonl"
        log = self.log(path, texts=True)
        log.flush()
        with path.open("ab") as file:
            file.write(b'{"v": 1, "half')  # as after kill -9
        self.write(log, "after")
        log.flush()
        assert read_decisions(path).requests == ("r", "after")

    def test_the_answers_that_are_kept_as_text_are_bounded(self, tmp_path):
        log = self.log(tmp_path / "d.jsonl")
        log.max_answers, log.max_recent = 500, 20
        for number in range(60):
            text = "x" * (300 if number % 2 else 600)
            self.write(log, f"{number}", calls=[NodeCall("small", text, 0.5, 1.0, 0.1)])
        assert list(log.recent) == [f"{number}" for number in range(21, 60, 2)]

    def test_two_processes_have_one_key(self, tmp_path):
        one, two = self.log(tmp_path / "d.jsonl"), self.log(tmp_path / "d.jsonl")
        assert one.digest("x") == two.digest("x") != two.digest("y")
        assert uniform("a") != uniform("b")


class TestDrift:
    def rows(self, count, skill, seed):
        """Rows as the models give them; ``skill`` is that of the small one."""
        rng = np.random.default_rng(seed)
        right = rng.random((count, 2)) < [skill, 0.97]
        high, low = rng.uniform(0.55, 0.99, right.shape), rng.uniform(0.25, 0.75, right.shape)
        sure = np.where(right, high, low)
        spec = tt.CascadeSpec.of({name: COSTS[name] for name in ("small", "large")})
        return right, tt.Trace.from_arrays(spec, sure, correct=right)

    def drifting(self, logged, tmp_path, monkeypatch):
        held = self.rows(300, 0.6, 1)[1]
        held.write(tmp_path / "held.csv")
        ladder = fitted_ladder(2).with_holdout(held)
        monkeypatch.setattr("support.served.fitted_ladder", lambda *_: ladder)
        table = {"error": 0.2, "tradeoff": None}
        table["audit"] = {"share": 1.0, "reference": str(tmp_path / "held.csv")}
        return logged(serve=table)

    def test_the_job_runs_beside_the_server_and_its_policy_serves(
        self, logged, tmp_path, monkeypatch, caplog
    ):
        monkeypatch.setattr(auditing.DriftJob, "pause", 0.2)
        caplog.set_level("INFO")
        served = self.drifting(logged, tmp_path, monkeypatch)
        version = served.service.policies.active.version
        right, trace = self.rows(160, 0.05, 2)
        lines = [{"v": 1, "cascade": served.service.settings.spec.to_toml()}]
        for row in range(160):
            nodes = {
                name: {
                    "chance": 1.0,
                    "cost": COSTS[name],
                    "seconds": 0.1,
                    "prediction": "A",
                    "confidence": 0.95,
                    "score": float(right[row, node]),
                }
                for node, name in enumerate(trace.names)
            }
            nodes["small"]["prediction"] = "B"
            facts = {"request": f"r{row}", "time": 1.0 + row, "policy": version, "drawn": 1.0}
            lines.append({"v": 1, "by": "large", "cost": 1.0, "nodes": nodes, **facts})
        served.log.write_text("".join(json.dumps(line) + "\n" for line in lines))

        async def scenario(client):
            end = time.monotonic() + 55
            while served.service.policies.active.version == version and time.monotonic() < end:
                await asyncio.sleep(0.1)
            return await client.chat("prompt 1"), await client.metric("ttamer_swaps_total")

        response, swaps = served.run(scenario)
        assert response.headers["x-ttamer-policy"] != version
        assert response.headers["x-ttamer-path"] == "large"  # until another policy is certified
        assert swaps == 1
        assert "drift: row" in caplog.text
        assert not served.service.audits._tasks

    def test_what_the_job_cannot_do_is_refused_before_a_port_opens(
        self, logged, tmp_path, monkeypatch
    ):
        served = self.drifting(logged, tmp_path, monkeypatch)
        path = tmp_path / "policy.ttamer"
        tt.save(tt.load(path).at(0.5), path)
        settings, policies = served.service.settings, served.service.policies
        policies.active = policies.load()
        with pytest.raises(tt.CascadeError, match="holds one policy; fit a ladder"):
            auditing.DriftJob(settings, "held.csv", policies, served.service.metrics)
        (tmp_path / "policy.ttamer.drift").touch()  # the job put it there
        monkeypatch.setenv("A_KEY", "secret")
        job = auditing.DriftJob(settings, "held.csv", policies, served.service.metrics)
        assert "A_KEY" not in job._env
        assert "PATH" in job._env
