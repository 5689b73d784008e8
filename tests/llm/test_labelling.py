"""``ttamer label``: the choice of rows, labels that survive, and the page in a real browser."""

from __future__ import annotations

import asyncio
import dataclasses
import html
import http.client
import json
import re
import threading
from contextlib import closing
from itertools import islice

import numpy as np
import pytest
from aiohttp import web

from support.browser import headless
from ttamer.cascade import CascadeSpec
from ttamer.cli import main
from ttamer.errors import TraceError
from ttamer.llm.labelling import Labelling, LabelPage
from ttamer.llm.paid import Store
from ttamer.llm.prompts import Answer, AnsweredPrompt, read_answers
from ttamer.trace.trace import Trace

SPEC = CascadeSpec.of({"small": 1.0, "large": 9.0})
EVIL = '<img src=x onerror="document.title=1">'


def trace_of(count=400, seed=0, differ=0.3):
    """Return rows on which two nodes differ with a given chance, and who is right."""
    rng = np.random.default_rng(seed)
    differs = rng.random(count) < differ
    answers = [[f"a{n}", f"b{n}" if one else f"a{n}"] for n, one in enumerate(differs)]
    large = rng.random(count) < np.where(differs, 0.7, 0.9)
    small = np.where(differs, ~large & (rng.random(count) < 0.8), large)
    confidence = np.clip(np.column_stack([small, large]) * 0.3 + rng.random((count, 2)), 0, 1)
    trace = Trace.from_arrays(SPEC, confidence, prediction=answers)
    return trace, np.column_stack([small, large])


def kept(folder, trace, rows=None, **more):
    """Write a trace with its prompts and answers, as ``collect`` does."""
    path = folder / "trace.parquet"
    trace.write(path)
    codes = trace.prediction
    lines = [
        {
            "prompt": f"question {row} {EVIL}",
            "label": None,
            "answers": {
                name: trace.classes[codes[row, v]] if codes[row, v] >= 0 else ""
                for v, name in enumerate(trace.names)
            },
        }
        | more
        for row in range(len(trace) if rows is None else rows)
    ]
    answers = folder / "trace.parquet.answers.jsonl"
    answers.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


@pytest.fixture
def labelling(tmp_path):
    trace, _ = trace_of(12)
    path = kept(tmp_path, trace)
    rows = read_answers(f"{path}.answers.jsonl", trace.names)
    with Labelling(trace, rows, tmp_path / "labels") as labelling:
        yield labelling


def planned(trace, right=None, **options):
    """The labelling of a trace, without a file, with the labels of its first rows in order."""
    rows = [AnsweredPrompt(f"{n}", None, {}) for n in range(len(trace))]
    labelling = Labelling(trace, rows, "unused", **options)
    if right is not None:
        labelling.right = {row: tuple(right[row].tolist()) for row in labelling.order}
    return labelling


def test_rows_with_the_same_prompt_and_answers_are_labelled_once(tmp_path):
    trace = Trace.from_arrays(
        SPEC, [[0.5, 0.6]] * 3, prediction=[["a", "b"], ["c", "d"], ["a", "b"]]
    )
    rows = [AnsweredPrompt("same", None, {"small": Answer("a"), "large": Answer("b")})] * 3
    rows[1] = AnsweredPrompt("other", None, {"small": Answer("c"), "large": Answer("d")})
    for _ in range(2):  # and when the labels are read again
        with Labelling(trace, rows, tmp_path / "labels") as labelling:
            if not labelling.right:
                labelling.add(0, ["large"])
            assert labelling.right == {0: (False, True), 2: (False, True)}
            assert labelling.next() == 1


def test_four_of_five_rows_are_ones_on_which_nodes_differ_and_every_row_comes_once():
    labelling = planned(trace_of()[0])
    assert labelling.agreed[labelling.order[:100]].sum() == 20
    assert sorted(labelling.order) == list(range(400))
    trace, _ = trace_of(60)
    other = Trace.from_arrays(SPEC, trace.confidence, prediction=[["x", "x"]] * 60)
    assert planned(trace, uniform=True).order == planned(other, uniform=True).order


def test_the_trace_for_a_fit_has_the_shares_and_errors_of_all_rows():
    trace, right = trace_of(4000, seed=1)
    labelling = planned(trace, right)
    labelling.right = dict(islice(labelling.right.items(), 600))
    labelled = labelling.labelled()
    assert labelled.spec.target == "label"
    differ = (labelled.prediction[:, 0] != labelled.prediction[:, 1]).mean()
    assert differ == pytest.approx((~labelling.agreed).mean(), abs=0.005)
    assert labelled.loss.mean(axis=0) == pytest.approx((~right).mean(axis=0), abs=0.03)
    assert "do not certify" in labelled.notes[-1]
    labelling.uniform = True
    assert len(labelling.labelled()) == 600


def test_labels_survive_and_belong_to_prompts_and_answers(labelling, tmp_path):
    row = labelling.next()
    labelling.add(row, ["large"])
    labelling.add(row, ["small"])  # changed
    other = labelling.next()
    labelling.add(other, None)
    with Store(tmp_path / "labels") as labels:
        labels.add({"of another prompt": b"[]"})
    assert (tmp_path / "labels").stat().st_mode & 0o777 == 0o600
    moved = list(labelling.rows)
    order = [other, row, *(n for n in range(12) if n not in (row, other))]
    trace = labelling.trace.take(np.array(order))
    with Labelling(trace, [moved[n] for n in order], tmp_path / "labels") as again:
        assert again.right == {1: (True, False)}
        assert again.skipped == {0}
        assert again.next() not in (0, 1)


def test_a_trace_without_its_answers_or_with_others_is_refused(tmp_path, capsys):
    trace, _ = trace_of(12)
    trace.write(tmp_path / "trace.parquet")
    assert main(["label", str(tmp_path / "trace.parquet")]) == 2
    assert "collect writes it" in capsys.readouterr().err
    path = kept(tmp_path, trace, rows=11)
    assert main(["label", str(path), "--no-page"]) == 2
    assert "prompts for 11 rows" in capsys.readouterr().err
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"answers": {"small": "x"}}\n', "utf-8")
    with pytest.raises(TraceError, match="line 1 lacks"):
        read_answers(bad, trace.names)


def test_the_command_writes_the_trace_of_the_labels_there_are(tmp_path, capsys):
    trace, right = trace_of(40)
    path = kept(tmp_path, trace)
    rows = read_answers(f"{path}.answers.jsonl", trace.names)
    with Labelling(trace, rows, f"{path}.labels") as labelling:
        for row in labelling.order[:20]:
            labelling.add(row, [n for n, one in zip(trace.names, right[row], strict=True) if one])
    assert main(["label", str(path), "--no-page", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["labels"] == 20
    labelled = Trace.read(tmp_path / "trace.labelled.parquet")
    assert labelled.spec.target == "label"
    assert len(labelled) >= 20
    assert main(["label", str(path), "--no-page"]) == 0
    shown = capsys.readouterr().out
    assert f"Next: ttamer fit {tmp_path / 'trace.labelled.parquet'}\n" in shown
    assert main(["label", str(path), "--no-page", "-o", str(path)]) == 2


def test_a_csv_is_labelled_at_the_costs_of_the_cascade_beside_it(tmp_path, capsys):
    trace, _ = trace_of(12)
    kept(tmp_path, trace).with_suffix(".parquet.answers.jsonl").rename(
        tmp_path / "trace.csv.answers.jsonl"
    )
    path = tmp_path / "trace.csv"
    trace.write(path)
    rows = read_answers(f"{path}.answers.jsonl", trace.names)
    with Labelling(trace, rows, f"{path}.labels") as labelling:
        labelling.add(0, ["large"])
    assert main(["label", str(path), "--no-page"]) == 2
    assert f"{tmp_path / 'trace.toml'}, which ttamer collect writes" in capsys.readouterr().err
    dataclasses.replace(SPEC, target="last").to_file(tmp_path / "trace.toml")
    assert main(["label", str(path), "--no-page"]) == 0
    cascade = tmp_path / "trace.labelled.toml"
    assert CascadeSpec.from_file(cascade).costs.tolist() == [1.0, 9.0]
    shown = capsys.readouterr().out
    assert f"Next: ttamer fit {tmp_path / 'trace.labelled.csv'} --cascade {cascade}" in shown
    assert 'remove target = "last"' in shown


@pytest.fixture
def server(labelling):
    """The page, served by a thread, with a second page that operates it."""
    page, ready = LabelPage(labelling), threading.Event()
    page.operator = ""

    async def operator(_request):
        return web.Response(text=page.operator, content_type="text/html")

    page.app.router.add_get("/{token}/operator", operator)

    def serve():
        asyncio.run(page.serve(ready=lambda _: ready.set()))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert ready.wait(20)
    yield page
    if thread.is_alive():
        send(page, "POST", f"/{page.token}/done", "{}", **JSON)
    thread.join()


def send(server, method, path, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    headers = {"Host": f"127.0.0.1:{server.port}", **headers}
    with closing(connection):
        connection.request(method, path, body, headers)
        with connection.getresponse() as response:
            return response.status, response.read(), dict(response.getheaders())


JSON = {"Content-Type": "application/json"}


def test_the_server_refuses_what_is_not_its_own_page(server):
    path = f"/{server.token}/"
    assert send(server, "GET", path)[0] == 200
    assert send(server, "GET", "/")[0] == 404
    assert send(server, "GET", "/wrong/next")[0] == 404
    assert send(server, "GET", path + "next", Host="evil.example")[0] == 421
    assert send(server, "GET", path + "next", Origin="http://evil.example")[0] == 403
    label = json.dumps({"row": 0, "right": [True]})
    assert send(server, "POST", path + "label", label, **{"Content-Type": "text/plain"})[0] == 415
    assert send(server, "POST", path + "label", "[]", **JSON)[0] == 400
    for bad in ({"row": 99, "right": []}, {"row": 0, "right": ["x"]}, {"row": 0, "right": [1] * 9}):
        assert send(server, "POST", path + "label", json.dumps(bad), **JSON)[0] == 400
    assert send(server, "POST", path + "other", "{}", **JSON)[0] == 404
    assert send(server, "POST", path + "label", " " * 70_000, **JSON)[0] == 413
    assert send(server, "GET", path + "99")[0] == 404
    assert not server.labelling.right
    policy = send(server, "GET", path)[2]["content-security-policy"]
    assert "default-src 'none'" in policy


OPERATOR = """<!doctype html><meta charset="utf-8"><body style="margin:0">
<iframe style="border:0;width:760px;height:760px" src="/TOKEN/"></iframe><script>
const frame = document.querySelector("iframe"), notes = [];
const pause = time => new Promise(done => setTimeout(done, time));
const page = () => frame.contentDocument, at = id => page()?.getElementById(id);
const until = async test => { for (let n = 0; n < 400 && !test(); n++) await pause(10); };
const count = () => at("count")?.textContent ?? "";
const key = name => frame.contentWindow.dispatchEvent(
  new frame.contentWindow.KeyboardEvent("keydown", {key: name, cancelable: true}));
(async () => {
  await until(() => count());
  notes.push(at("prompt").textContent, page().querySelectorAll("#answers button").length,
    page().images.length, page().title, page().documentElement.scrollWidth <= 760);
  key("Enter");
  await pause(100);
  notes.push(count(), at("save").disabled);
  key("1"); key("Enter");
  await until(() => count().startsWith("1 of"));
  notes.push(count());
  key("0");
  await until(() => count().startsWith("2 of"));
  key("s");
  await until(() => count().includes("skipped"));
  notes.push(count());
  key("b");
  await pause(100);
  key("b");
  await pause(100);
  notes.push([...page().querySelectorAll("#answers button")]
    .map(button => button.getAttribute("aria-pressed")));
  key("2"); key("Enter");
  await pause(200);
  key("q");
  await until(() => !at("end").hidden);
  notes.push(at("end-text").textContent);
  document.body.replaceChildren(Object.assign(document.createElement("pre"),
    {id: "seen", textContent: JSON.stringify(notes)}));
})();
</script></body>"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    """A function that runs headless Chromium on some address."""
    profile = tmp_path_factory.mktemp("chromium")
    return headless(profile, "the labelling page", reach="MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")


def test_the_page_is_operated_by_keyboard_in_a_browser(server, chromium):
    server.operator = OPERATOR.replace("TOKEN", server.token)
    address = f"http://127.0.0.1:{server.port}/{server.token}/operator"
    result = chromium(address, "--dump-dom")
    (seen,) = re.findall(r'<pre id="seen">(.*?)</pre>', result.stdout, re.DOTALL)
    prompt, buttons, images, title, fits, *nothing, one, three, pressed, end = json.loads(
        html.unescape(seen)
    )
    assert re.fullmatch(rf"question \d+ {re.escape(EVIL)}", prompt)
    assert (buttons, images, title, fits) == (2, 0, "ttamer label", True)
    assert nothing == ["0 of 12 rows labelled", True]  # that none is right is a key of its own
    assert one == "1 of 12 rows labelled"
    assert three == "2 of 12 rows labelled, 1 skipped"
    assert pressed == ["false", "false"]
    assert end.startswith("Finished")
    assert server.is_done.is_set()
    assert [sum(label) for label in server.labelling.right.values()] == [1, 1]
    assert "Content Security Policy" not in result.stderr
