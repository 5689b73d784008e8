"""The status page, served with its own headers and looked at in headless Chromium."""

from __future__ import annotations

import html
import json
import re
import threading
import urllib.error
import urllib.request
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from matplotlib.image import imread

from support.browser import headless
from support.changing import ADMIN, Traffic, models, write_changing
from support.running_gateway import running
from support.shifting import SPEC, rows_of, stream_of
from support.traces import answering_trace
from ttamer.drift.auditor import Auditor
from ttamer.drift.loop import Loop, serving_of
from ttamer.drift.sampling import AuditSampler
from ttamer.drift.settings import LoopSettings
from ttamer.fitting.plans import fit
from ttamer.serve.accounts import Account
from ttamer.serve.observability.record import FAILURES, RequestRecord
from ttamer.serve.observability.status import PAGE, PAGE_HEADERS, Status, frontier_of, summed

if TYPE_CHECKING:
    import subprocess

COSTS = {"small": 1.0, "middle": 4.0, "large": 20.0}
EVIL = '<img src=x onerror="document.title=1">'


def asked(node, error=None):
    cost = COSTS.get(node, 1.0)
    return SimpleNamespace(
        node=node, prediction="a", confidence=0.5, cost=cost, seconds=0.1, error=error
    )


def request(*path, status=200, by=None, failed=()):
    nodes = tuple(asked(node, "timeout" if node in failed else None) for node in path)
    cost = sum(seen.cost for seen in nodes)
    return RequestRecord("id", "/v1/x", status, 0.2, asked=nodes, by=by, cost=cost)


def busy_status(name="support answers") -> Status:
    """What a gateway knows after a while."""
    now = iter([1_800_000_000.0, *(1_800_004_000.0 + 7 * i for i in range(1000))])
    status = Status(COSTS, name, clock=lambda: next(now))
    for _ in range(700):
        status.finished(request("small", by="small"))
    for _ in range(420):
        status.finished(request("small", "middle", by="middle"))
    for _ in range(160):
        status.finished(request("small", "large", by="large"))
    for _ in range(23):
        status.finished(request("small", "middle", "large", by="large", failed=["middle"]))
    status.finished(request("small", "middle", "large", status=502, failed=COSTS))
    for _ in range(3):
        status.finished(RequestRecord("id", "/v1/x", 429, 0.0, error="rate_limited"))
    status.event("load", "serving")
    status.event("reload", "serving")
    status.event(
        "reload",
        "policy.ttamer: is cut short: 812 bytes, and the header announces 5160; "
        "copy the file again from where it came, or save the policy again",
        ok=False,
    )
    status.event("rollback", "serving")
    return status


def reported(number, kind, text, state="suspected", time=1_800_003_000.0):
    return {
        "number": number, "state": state, "kind": kind, "text": text, "facts": {},
        "time": time,
    }  # fmt: skip


FOUND = (
    "states are not as they were on the last 147 audited rows: mean rank 0.61, not 0.50; "
    "the change seems to be at row 3032"
)
GAVE_UP = (
    "gave up after 4 attempts; the fallback policy (large answers) stays active, manual action "
    "required"
)
STEPS = [
    reported(3178, "fallback", "the fallback policy (large answers) serves", time=1_800_003_002.0),
    reported(3178, "alarm", FOUND),
]


def loop_status(state="watching", **facts) -> dict:
    """The status of a loop, as ``ttamer.drift.status_of`` shapes it."""
    progress = {"calibration": 0.0, "promise": 0.42, "states": 0.128}
    return {
        "state": state,
        "held": False,
        "serving": "Mixture(75.0% at tradeoff 0.799286, 25.0% at 0.857073)",
        "promised": {"kind": "error", "at_most": 0.05, "confidence": 0.95, "certified": True},
        "false_alarms": 0.05,
        "row": 6239,
        "audited": 312,
        "tests": [
            {"test": test, "e_value": 60**share, "threshold": 60.0, "progress": share}
            for test, share in progress.items()
        ],
        "waiting": None,
        "can_roll_back": False,
        "events": [],
        **facts,
    }


def fallback(state: str, **facts) -> dict:
    """A loop that has had an alarm: the last node answers."""
    status = loop_status(
        state,
        serving="the fallback policy (large answers)",
        can_roll_back=True,
        events=STEPS,
        **facts,
    )
    status["promised"]["certified"] = None
    status["tests"][2]["progress"] = 1.0
    return status


def drift_status(loop: dict | None = None, **facts) -> dict:
    """The status of an auditor."""
    return {
        "share": 0.05,
        "requests": 6240,
        "audited": 312,
        "uncovered": 0,
        "spent": 7800.0,
        "written": 312,
        "seen": 312,
        "outdated": 0,
        "waiting": 0,
        "unlabelled": 0,
        "failed": 0,
        "lost": 0,
        "loop": loop,
        **facts,
    }


SUSPECTED = fallback("suspected", waiting={"rows": 120, "of": 400, "for": "re-fit"})
SHADOWING = fallback("shadowing", waiting={"rows": 20, "of": 50, "for": "swap"})
FALLEN = fallback("fallback") | {"events": [reported(5100, "give up", GAVE_UP), *STEPS]}


@pytest.fixture
def answer(frontier):
    """Return what status.json says of some drift."""

    def make(drift, *, admin=True) -> tuple[int, dict]:
        facts = busy_status().to_dict(frontier, version="ab" * 32, drift=drift, admin=admin)
        return 200, facts

    return make


@pytest.fixture(scope="module")
def frontier():
    ladder = fit(answering_trace(1000), order="any", states=16)
    return frontier_of(ladder, ladder.at(0.9876))


PROBE = """<!doctype html><meta charset="utf-8"><body>%s<script>
const frames = [...document.querySelectorAll("iframe")];
const drift = (page, shown) => {
  const card = page.querySelector("#drift"), of = id => page.querySelector(id);
  const said = element => ["role", "aria-valuemin", "aria-valuemax", "aria-valuenow",
    "aria-valuetext", "aria-label"].map(name => element.getAttribute(name));
  const filled = bar => bar.firstElementChild.getBoundingClientRect().width
    / bar.getBoundingClientRect().width;
  return {shown: shown(card), text: card.innerText, tone: card.className,
    stand: of("#stand").textContent, why: of("#why").textContent,
    meters: [...card.querySelectorAll("[role=meter]")].map(bar => [said(bar), filled(bar)]),
    kinds: [...card.querySelectorAll("[role=meter] i")].map(part => part.className),
    waiting: shown(of("#waiting")) ? [of("#waiting-what").textContent,
      of("#waiting-rows").textContent, said(of("#waiting-bar")), filled(of("#waiting-bar"))] : null,
    facts: Object.fromEntries([...card.querySelectorAll("dt")].map(name =>
      [name.textContent, name.nextElementSibling.textContent])),
    bad: [...card.querySelectorAll("dd.bad")].map(fact => fact.textContent),
    events: [...card.querySelectorAll("#drift-events li")].map(item => [item.className,
      ...[...item.children].map(cell => cell.tagName === "TIME" ? cell.dateTime
        : cell.textContent)]),
    buttons: [...card.querySelectorAll("button")].filter(shown).map(button => button.textContent)};
};
const ready = frame => frame.contentDocument?.querySelector("#contact")?.className;
(async () => {
  while (!frames.every(ready)) await new Promise(done => setTimeout(done, 50));
  await new Promise(done => setTimeout(done, %d));
  const seen = frames.map(frame => {
    const page = frame.contentDocument, root = page.documentElement;
    const shown = element => element.getClientRects().length > 0;
    const beyond = [...page.querySelectorAll("body *")].filter(element => {
      const box = element.getBoundingClientRect();
      return box.width > 0 && !element.closest("svg *") && box.right > root.clientWidth + 1;
    }).map(element => element.tagName + "#" + element.id);
    const marks = [...page.querySelectorAll("svg .here, svg .now, svg .rung, svg text")];
    const picture = page.querySelector("svg")?.getBoundingClientRect();
    const outside = marks.filter(mark => {
      const box = mark.getBoundingClientRect();
      return box.left < picture.left - 1 || box.right > picture.right + 1
        || box.top < picture.top - 1 || box.bottom > picture.bottom + 1;
    }).length;
    return {width: root.clientWidth, scroll: root.scrollWidth, beyond, outside,
      text: page.body.innerText, title: page.title, door: shown(page.querySelector("#door")),
      contact: page.querySelector("#contact").textContent,
      nodes: [...page.querySelectorAll("#nodes tr")].map(row => [...row.children]
        .map(cell => cell.textContent).filter(text => text)),
      labels: [...page.querySelectorAll("#nodes tr:first-child td[data-label]")]
        .map(cell => getComputedStyle(cell, "::before").content),
      bars: [...page.querySelectorAll("#nodes .bar")].map(bar => [...bar.children]
        .map(part => part.getBoundingClientRect().width / bar.getBoundingClientRect().width)),
      marks: ["here", "now", "rung"].map(kind => page.querySelectorAll("svg ." + kind).length),
      scripts: page.scripts.length, images: page.images.length,
      headline: page.querySelector("h1").textContent,
      drift: drift(page, shown),
      asked: frame.contentWindow.performance.getEntriesByType("resource")
        .map(entry => new URL(entry.name).pathname)};
  });
  document.body.innerHTML = "";
  document.body.append(Object.assign(document.createElement("pre"),
    {id: "seen", textContent: JSON.stringify(seen)}));
})();
</script></body>"""


HANDS = """<!doctype html><meta charset="utf-8"><body>
<iframe style="border:0;height:900px;width:360px" src="/status"></iframe><script>
const frame = document.querySelector("iframe"), notes = [];
const pause = time => new Promise(done => setTimeout(done, time));
const until = async test => { while (!test()) await pause(20); };
const at = id => frame.contentDocument.getElementById(id);
const shown = id => at(id).getClientRects().length > 0;
const text = id => at(id).textContent;
const focused = () => frame.contentDocument.activeElement.id;
const kept = () => frame.contentWindow.sessionStorage.getItem("admin-key");
const note = (...seen) => notes.push(...seen);
const press = id => { at(id).focus(); at(id).click(); };
const enter = key => { at("admin-key").value = key; at("admin-go").click(); };
const looks = () => frame.contentWindow.performance.getEntriesByType("resource")
  .filter(entry => entry.name.endsWith("/status.json")).length;
const overflow = () => frame.contentDocument.documentElement.scrollWidth > 360;
(async () => {
  try {
    await until(() => at("contact")?.className);
    DO
  } catch (error) { notes.push(String(error)); }
  document.body.replaceChildren(Object.assign(document.createElement("pre"),
    {id: "seen", textContent: JSON.stringify(notes)}));
})();
</script></body>"""


class Site:
    """Serves the page, and status.json from ``answers``, the last one again and again.

    What is posted is kept in ``posted``, and answered by ``replies`` in the same way; ``later`` is
    what status.json says after a post that succeeded.
    """

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict]] = []
        self.replies: list[tuple[int, dict]] = [(200, {"state": "watching", "held": True})]
        self.later: list[tuple[int, dict]] = []
        self.posted: list[tuple[str, str | None, bytes]] = []
        self.hands = ""
        self.given: list[str | None] = []
        self.page = PAGE
        self.headers = dict(PAGE_HEADERS)
        self.stay = 0
        self.widths = (390, 1280)
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.reply(*site.respond(self.path, self.headers))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                site.posted.append((self.path, self.headers["authorization"], body))
                self.reply(*site.act(self.path, self.headers))

            def reply(self, status: int, headers: dict[str, str], body: bytes) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def respond(self, path, headers):
        if path == "/status":
            return 200, self.headers, self.page
        if path == "/status.json":
            self.given.append(headers.get("authorization"))
            status, data = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            return status, {"content-type": "application/json"}, json.dumps(data).encode()
        if path == "/probe":
            frame = '<iframe style="border:0;height:900px;width:%dpx" src="/status"></iframe>'
            page = PROBE % ("".join(frame % width for width in self.widths), self.stay)
            return 200, {"content-type": "text/html"}, page.encode()
        if path == "/hands":
            page = HANDS.replace("DO", self.hands)
            return 200, {"content-type": "text/html"}, page.encode()
        return 404, {}, b""

    def act(self, path, headers):
        del path, headers
        status, data = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if status == 200 and self.later:
            self.answers = [self.later.pop(0)]
        return status, {"content-type": "application/json"}, json.dumps(data).encode()

    def change(self, old: bytes, new: bytes) -> None:
        """Change the page, and let its policy allow that."""
        assert old in self.page
        self.page = self.page.replace(old, new, 1)
        policy = self.headers["content-security-policy"]
        self.headers["content-security-policy"] = re.sub(
            "'sha256-[^']*'", "'unsafe-inline'", policy
        )

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class Before(Site):
    """Stands before a gateway that runs, and adds a script that uses its page."""

    def __init__(self, root: str) -> None:
        self.root = root
        super().__init__()

    def respond(self, path, headers):
        if path == "/hands":
            return super().respond(path, headers)
        return self.handed_on(urllib.request.Request(self.root + path))  # noqa: S310

    def act(self, path, headers):
        key = {"authorization": headers["authorization"]}
        request = urllib.request.Request(self.root + path, b"", key, method="POST")  # noqa: S310
        return self.handed_on(request)

    def handed_on(self, request):
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:  # noqa: S310 - our own
                return reply.status, self.headers_of(reply), reply.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, self.headers_of(error), error.read()

    def headers_of(self, reply):
        names = ("content-type", "content-security-policy")
        return {name: reply.headers[name] for name in names if name in reply.headers}


@pytest.fixture
def site():
    site = Site()
    yield site
    site.close()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    """Run headless Chromium on some address; return its output and messages."""
    return headless(
        tmp_path_factory.mktemp("profile"),
        "the status page",
        reach="MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        milliseconds=9000,
    )


def looked_at(chromium, site: Site) -> list[dict]:
    """Lay the page out at phone and desk width, and measure it."""
    return noted(chromium(f"{site.url}/probe", "--dump-dom"))


def handled(chromium, site: Site, hands: str) -> list:
    """Use the page as a person would, by a script beside it; return what the script noted."""
    site.hands = hands
    return noted(chromium(f"{site.url}/hands", "--dump-dom"))


def noted(done: subprocess.CompletedProcess[str]) -> list:
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr
    return json.loads(html.unescape(found[1]))


def complaints(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_in_a_browser_all_is_shown_and_nothing_overflows(chromium, site, frontier):
    site.answers = [(200, busy_status().to_dict(frontier, version="ab" * 32, rows_lost=7))]
    for seen in looked_at(chromium, site):
        assert seen["contact"] == "live"
        assert seen["scroll"] <= seen["width"]
        assert seen["beyond"] == []
        assert seen["outside"] == 0
        assert seen["headline"].startswith("1,304 requests decided, ")
        assert seen["headline"].endswith("% cheaper than always asking large")
        assert seen["nodes"] == [
            ["small", "failed: 1 no response in time", "1,304", "700", "1", "1,304"],
            ["middle", "failed: 24 no response in time", "444", "420", "24", "1,776"],
            ["large", "failed: 1 no response in time", "184", "183", "1", "3,680"],
        ]
        assert seen["bars"][1] == pytest.approx([420 / 1304, 0, 24 / 1304], abs=0.01)
        names = ['"Asked"', '"Answered"', '"Failed"', '"Cost"']
        assert seen["labels"] == (names if seen["width"] < 700 else ["none"] * 4)
        assert seen["marks"] == [1, 1, len(frontier.rungs)]
        assert "abababababababab" in seen["text"]
        assert "rollback at" in seen["text"]
        assert "is cut short" in seen["text"]
        assert set(seen["asked"]) == {"/status.json"}
        assert not seen["door"]


def test_in_a_browser_the_page_follows_what_happens(chromium, site, frontier):
    status = Status(COSTS, clock=lambda: 1_800_000_000.0)
    first = status.to_dict(frontier, version="ab" * 32)
    status.finished(request("large", by="large"))
    second = status.to_dict(frontier, version="cd" * 32)
    site.widths, site.stay = (1280,), 5000
    site.answers = [(200, first), (500, {}), (200, second)]
    (seen,) = looked_at(chromium, site)
    assert seen["nodes"][2] == ["large", "1", "1", "0", "20"]
    assert "cdcdcdcdcdcdcdcd" in seen["text"]
    assert seen["contact"] == "live"
    assert len(site.given) >= 3


def test_in_a_browser_before_the_first_request(chromium, site, frontier):
    site.answers = [(200, Status(COSTS).to_dict(frontier, version="ab" * 32))]
    for seen in looked_at(chromium, site):
        assert seen["headline"] == "No request has been decided yet"
        assert seen["marks"] == [1, 0, len(frontier.rungs)]
        assert "NaN" not in seen["text"]
        assert "undefined" not in seen["text"]


def test_in_a_browser_names_from_outside_stay_text(chromium, site, frontier):
    status = Status({EVIL: 1.0, "b": 2.0}, EVIL)
    status.finished(RequestRecord("id", "/v1/x", 200, 0.2, asked=(asked(EVIL),), by=EVIL, cost=1.0))
    status.event("reload", EVIL, ok=False)
    status.event(EVIL, EVIL)
    site.answers = [(200, status.to_dict(frontier, version=EVIL))]
    for seen in looked_at(chromium, site):
        assert seen["images"] == 0
        assert seen["title"] == f"{EVIL}: ttamer status"
        assert seen["nodes"][0][0] == EVIL
        assert seen["scripts"] == 1
        assert seen["scroll"] <= seen["width"]


def test_in_a_browser_each_key_has_its_spending(chromium, site, frontier):
    status = Status(COSTS)
    record = RequestRecord("id", "/v1/x", 200, 0.2, by="small", cost=2.5, client=EVIL)
    status.finished(record)
    account = Account(EVIL, budget=10.0)
    account.reserve(2.5)
    facts = status.to_dict(frontier, version="ab" * 32, accounts={EVIL: account})
    facts = summed([{"worker": 0, **facts}, {"worker": 1, **facts, "version": "cd", "keys": []}])
    site.answers = [(200, facts)]
    for seen in looked_at(chromium, site):
        assert EVIL in seen["text"]
        assert "2; another policy is served by 1" in seen["text"]
        assert "7.5 of 10" in seen["text"]
        assert seen["images"] == 0
        assert seen["scroll"] <= seen["width"]


def test_in_a_browser_a_key_is_asked_for(chromium, site, frontier):
    site.answers = [(401, {})]
    (seen, _) = looked_at(chromium, site)
    assert seen["door"]
    assert seen["contact"] == "key needed"
    site.answers = [(200, busy_status().to_dict(frontier, version="ab" * 32))]
    typed = b'<script>sessionStorage.setItem("key", "correct-horse-battery");'
    site.change(b"<script>", typed)  # in the place of someone who types
    site.given.clear()
    (seen, _) = looked_at(chromium, site)
    assert not seen["door"]
    assert set(site.given) == {"Bearer correct-horse-battery"}


@pytest.mark.parametrize(("theme", "paper"), [(1, (247, 244, 239)), (0, (22, 21, 19))])
def test_in_a_browser_the_page_complains_of_nothing_and_looks_right(
    chromium, site, frontier, tmp_path, theme, paper
):
    site.answers = [(200, busy_status().to_dict(frontier, version="ab" * 32))]
    shot = tmp_path / "shot.png"
    done = chromium(f"{site.url}/status", f"--screenshot={shot}", "--window-size=1280,1300",
                    f"--blink-settings=preferredColorScheme={theme}")  # fmt: skip
    assert complaints(done) == []
    pixels = (255 * imread(shot)[..., :3]).round().astype(int)
    assert pixels.shape[:2] == (1300, 1280)
    assert (np.abs(pixels[5, 5] - paper).max()) <= 2
    accent = [(27, 127, 121), (75, 179, 171)][1 - theme]
    assert (np.abs(pixels - accent).max(axis=2) <= 2).sum() > 2000


def test_the_browser_checks_would_notice(chromium, site, frontier):
    site.answers = [(200, busy_status().to_dict(frontier, version="ab" * 32))]
    site.change(b"</main>", b'<div id="far">far</div></main>')
    site.change(b"</style>", b"#far { width: 900px; }</style>")
    narrow, wide = looked_at(chromium, site)
    assert narrow["scroll"] > narrow["width"]
    assert "DIV#far" in narrow["beyond"]
    assert wide["beyond"] == []


def test_the_page_s_own_policy_stops_what_is_not_the_page(chromium, site, frontier):
    site.answers = [(200, busy_status().to_dict(frontier, version="ab" * 32))]
    site.page = PAGE.replace(b"</main>", b"<script>document.title = 'taken'</script></main>")
    done = chromium(f"{site.url}/status", "--dump-dom")
    assert any("Content Security Policy" in line for line in complaints(done))
    assert "<title>support answers: ttamer status</title>" in done.stdout


def test_in_a_browser_a_gateway_that_runs_is_shown(chromium, make_served):
    ready = make_served(2)
    ask = {"model": "ttamer", "messages": [{"role": "user", "content": "A, B, C or D?"}]}
    with running(ready.cascade, ready.artefact) as gateway:
        request = urllib.request.Request(  # noqa: S310 - our own server
            f"{gateway.url}/chat/completions",
            json.dumps(ask).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as reply:  # noqa: S310
            by = reply.headers["x-ttamer-answered-by"]
            version = reply.headers["x-ttamer-policy"]
        done = chromium(f"{gateway.root}/status", "--dump-dom")
    assert complaints(done) == []
    assert "1 request decided" in done.stdout
    assert f'<code id="version" title="{version}' in done.stdout
    assert re.search(rf'<th scope="row">{by}</th>.*?data-label="Answered">1<', done.stdout)
    assert "load at" in done.stdout
    assert '<circle class="here"' in done.stdout


def test_in_a_browser_without_audits_nothing_is_reported_of_drift(chromium, site, answer):
    site.answers = [answer(None)]
    for seen in looked_at(chromium, site):
        assert seen["contact"] == "live"
        assert not seen["drift"]["shown"]
        assert "Changing traffic" not in seen["text"]


@pytest.mark.parametrize(
    ("loop", "tone", "stand", "why"),
    [
        (loop_status(), "fine", "Watching: nothing has changed", "is ever an alarm is at most 5%."),
        (SUSPECTED, "warn", "Suspected: the last node answers everything until", FOUND),
        (SHADOWING, "warn", "In the shadow: a new policy decides audited rows", ""),
        (fallback("refitting"), "warn", "Fitting again:", ""),
        (fallback("certifying"), "warn", "Certifying:", ""),
        (loop_status("swapped"), "fine", "Swapped: a new policy serves", ""),
        (FALLEN, "bad", "Fallback: the last node answers everything", GAVE_UP),
        (loop_status(held=True), "warn", "Held by a person: nothing is changed", "The tests go on"),
        (SUSPECTED | {"held": True}, "warn", "Held by a person", "Nothing is fitted until"),
        (loop_status("toString"), "warn", "toString", ""),
        (None, "fine", "Audits only: rows are logged, and no loop runs", "No test for change runs"),
    ],
)
def test_in_a_browser_every_state_has_its_words(chromium, site, answer, loop, tone, stand, why):
    site.answers, site.widths = [answer(drift_status(loop))], (360, 1280)
    for seen in looked_at(chromium, site):
        drift = seen["drift"]
        assert drift["shown"]
        assert drift["tone"].split()[-1] == tone
        assert drift["stand"].startswith(stand)
        assert why in drift["why"]
        assert bool(drift["why"]) == bool(why)
        assert ("Tests for a change" in drift["text"]) == (loop is not None)
        assert ("What the loop did" in drift["text"]) == (loop is not None)
        assert seen["scroll"] <= seen["width"]
        assert seen["beyond"] == []
        assert "undefined" not in drift["text"]
        assert "NaN" not in drift["text"]


def test_in_a_browser_meters_say_how_near_an_alarm_is(chromium, site, answer):
    loop = loop_status()
    loop["tests"][0]["progress"] = 0.75
    site.answers, site.widths = [answer(drift_status(loop))], (1280,)
    (seen,) = looked_at(chromium, site)
    labels, widths = zip(*seen["drift"]["meters"], strict=True)
    assert labels == (
        ["meter", "0", "1", "0.75", "75% of the way to an alarm", "calibration"],
        ["meter", "0", "1", "0.42", "42% of the way to an alarm", "promise"],
        ["meter", "0", "1", "0.13", "12% of the way to an alarm", "states"],
    )
    assert widths == pytest.approx((0.75, 0.42, 0.128), abs=0.01)
    assert seen["drift"]["kinds"] == ["near", "answered", "answered"]
    assert "An alarm at 100%." in seen["drift"]["text"]
    assert seen["drift"]["waiting"] is None
    site.answers = [answer(drift_status(SUSPECTED))]
    (seen,) = looked_at(chromium, site)
    labels, widths = zip(*seen["drift"]["meters"], strict=True)
    assert [label[3:5] for label in labels] == [
        ["0.00", "no sign of a change"],
        ["0.42", "42% of the way to an alarm"],
        ["1.00", "alarm"],
    ]
    assert widths == pytest.approx((0, 0.42, 1), abs=0.01)
    assert seen["drift"]["kinds"][2] == "alarm"
    assert "The tests rest" in seen["drift"]["text"]


@pytest.mark.parametrize(
    ("loop", "what", "rows", "of"),
    [
        (SUSPECTED, "Audited rows to fit again", 120, 400),
        (SHADOWING, "Audited rows before it may serve", 20, 50),
    ],
)
def test_in_a_browser_what_the_loop_waits_for(chromium, site, answer, loop, what, rows, of):
    site.answers, site.widths = [answer(drift_status(loop))], (360,)
    (seen,) = looked_at(chromium, site)
    assert "The tests rest" in seen["drift"]["text"]
    said, counted, label, filled = seen["drift"]["waiting"]
    assert (said, counted) == (what, f"{rows} of {of}")
    assert label[:4] == ["progressbar", "0", str(of), str(rows)]
    assert filled == pytest.approx(rows / of, abs=0.01)


def test_in_a_browser_what_serves_what_is_audited_and_what_it_cost(chromium, site, answer):
    quiet = drift_status(loop_status())
    busy = drift_status(
        SUSPECTED, waiting=3, unlabelled=37, outdated=4, uncovered=1, failed=2, lost=5, spent=-1e-16
    )
    seen, site.widths = [], (1280,)
    for drift in (quiet, busy, drift_status()):
        site.answers = [answer(drift)]
        seen.append(looked_at(chromium, site)[0]["drift"])
    assert seen[0]["facts"] == {
        "Serves": "Mixture(75.0% at tradeoff 0.799286, 25.0% at 0.857073)",
        "Promised": "error at most 5%, with confidence 95%",
        "Certified": "yes",
        "Audited": "312 of 6,240 requests",
        "Stated share": "5%",
        "Spent on audits": "7,800",
    }
    assert seen[0]["text"].endswith("nothing yet")
    assert seen[1]["facts"]["Certified"] == "no certificate for what serves now"
    assert seen[1]["facts"]["Spent on audits"] == "0"
    assert seen[1]["facts"]["In the queue"] == "3 rows"
    assert seen[1]["facts"]["Without a label"] == "37 rows, not used until there is one"
    assert (
        seen[1]["facts"]["Too late"] == "4 rows from before the last change, not used by the loop"
    )
    assert seen[1]["facts"]["Not covered"] == "1 request: the budget was spent"
    assert seen[1]["bad"] == ["2 audits: a node did not answer", "5 rows"]
    assert list(seen[2]["facts"]) == ["Audited", "Stated share", "Spent on audits", "Rows logged"]


def test_in_a_browser_the_loop_s_steps_the_latest_first(chromium, site, answer):
    undated = reported(3032, "certified", "error at most 5%: certified", time=None)
    loop = FALLEN | {"events": [*FALLEN["events"], undated]}
    site.answers, site.widths = [answer(drift_status(loop))], (360,)
    (seen,) = looked_at(chromium, site)
    assert seen["drift"]["events"] == [
        ["bad", "2027-01-15T08:50:00.000Z", "give up", GAVE_UP],
        ["warn", "2027-01-15T08:50:02.000Z", "fallback", STEPS[0]["text"]],
        ["warn", "2027-01-15T08:50:00.000Z", "alarm", FOUND],
        ["fine", "row 3,032", "certified", "error at most 5%: certified"],
    ]


def test_in_a_browser_what_the_loop_reports_stays_text(chromium, site, answer):
    loop = fallback(EVIL, waiting={"rows": 1, "of": 2, "for": EVIL})
    loop |= {"serving": EVIL, "events": [reported(1, EVIL, EVIL), reported(1, "alarm", EVIL)]}
    loop["promised"] = loop["promised"] | {"kind": EVIL}
    loop["tests"][0]["test"] = EVIL
    site.answers, site.widths = [answer(drift_status(loop))], (360, 1280)
    for seen in looked_at(chromium, site):
        assert seen["images"] == 0
        assert seen["scripts"] == 1
        assert seen["title"] == "support answers: ttamer status"
        drift = seen["drift"]
        assert drift["stand"] == drift["facts"]["Serves"] == drift["waiting"][0] == EVIL
        assert drift["meters"][0][0][-1] == EVIL
        assert drift["events"][0][2:] == [EVIL, EVIL]
        assert seen["scroll"] <= seen["width"]
        assert seen["beyond"] == []


def test_in_a_browser_a_loop_that_runs_is_shown(chromium, site, answer):
    fitted, held = rows_of(1500, seed=1).split(0.6, 0)
    settings = LoopSettings(0.08, refit_rows=300, shadow_rows=30)
    loop = Loop(serving_of(fit(fitted), held, settings), settings, clock=lambda: 1_800_000_000.0)
    stream = stream_of(100, 500, seed=60)
    while loop.state == "watching":
        row = loop.number + 1
        loop.update(stream.take(slice(row, row + 1)), [row])
    auditor = Auditor(SPEC, AuditSampler(1.0), loop=loop)
    auditor.draw("request-1")
    auditor.close()
    drift = auditor.status()
    assert drift.keys() == drift_status().keys()
    assert drift["loop"].keys() == loop_status().keys()
    site.answers = [answer(drift)]
    for seen in looked_at(chromium, site):
        assert seen["drift"]["stand"].startswith("Suspected")
        assert seen["drift"]["facts"]["Audited"] == "1 of 1 request"
        assert seen["drift"]["facts"]["Serves"] == "the fallback policy (large answers)"
        assert [event[2] for event in seen["drift"]["events"]] == ["fallback", "alarm"]
        assert seen["drift"]["why"] == loop.events[0].text
        assert [meter[0][-1] for meter in seen["drift"]["meters"]] == [
            test["test"] for test in drift["loop"]["tests"]
        ]


def test_in_a_browser_the_loop_of_a_gateway_that_runs_is_held(chromium, tmp_path, monkeypatch):
    monkeypatch.setenv("ADMIN_KEYS", ADMIN)
    with ExitStack() as stack:
        upstreams = {name: stack.enter_context(each) for name, each in models().items()}
        changing = write_changing(tmp_path, upstreams, serve={"admin_keys_env": "ADMIN_KEYS"})
        gateway = stack.enter_context(running(changing.cascade, changing.artefact))
        traffic = stack.enter_context(Traffic(gateway))
        traffic.send(5)
        traffic.settle()
        site = Before(gateway.root)
        stack.callback(site.close)
        hands = """
        note(text("stand").split(":")[0]);
        press("hold");
        enter("not-the-key-of-the-tests");
        await until(() => shown("admin-door"));
        note(text("said"), kept());
        enter("KEY");
        await until(() => text("hold") === "Let it go on");
        note(text("stand"), text("said"));
        """
        noted = handled(chromium, site, hands.replace("KEY", ADMIN))
        wrong, held = "This admin key is wrong", "Held by a person: nothing is changed"
        assert noted == ["Watching", wrong, None, held, ""]
        status = traffic.status
        assert status["audited"] == 5
        assert status["loop"]["held"]
        assert [event["kind"] for event in status["loop"]["events"]] == ["hold"]


@pytest.mark.parametrize(
    ("loop", "admin", "buttons"),
    [
        (loop_status(), True, ["Hold"]),
        (loop_status(held=True), True, ["Let it go on"]),
        (loop_status(can_roll_back=True), True, ["Hold", "Roll back"]),
        (FALLEN, True, ["Hold", "Try again", "Roll back"]),
        (FALLEN, False, []),
        (None, True, []),
    ],
)
def test_in_a_browser_only_what_can_be_done_is_offered(
    chromium, site, answer, loop, admin, buttons
):
    site.answers, site.widths = [answer(drift_status(loop), admin=admin)], (360,)
    (seen,) = looked_at(chromium, site)
    assert seen["drift"]["buttons"] == buttons


def test_in_a_browser_a_person_holds_the_loop_and_lets_it_go_on(chromium, site, answer):
    going = answer(drift_status(loop_status()))
    site.answers, site.later = [going], [answer(drift_status(loop_status(held=True))), going]
    hands = """
    press("hold");
    note(shown("admin-door"), at("admin-key").type, text("admin-what"), focused(), overflow());
    enter("correct-horse");
    await until(() => text("hold") === "Let it go on");
    note(text("stand"), text("said"), shown("admin-door"), focused(), kept());
    note(at("admin-key").value);
    press("hold");
    await until(() => text("hold") === "Hold");
    note(text("stand").split(":")[0], shown("admin-door"), focused());
    """
    assert handled(chromium, site, hands) == [
        True, "password", "Admin key, to hold the loop", "admin-key", False,
        "Held by a person: nothing is changed", "", False, "hold", "correct-horse", "",
        "Watching", False, "hold",
    ]  # fmt: skip
    assert site.posted == [
        ("/admin/drift/hold", "Bearer correct-horse", b""),
        ("/admin/drift/release", "Bearer correct-horse", b""),
    ]
    assert set(site.given) == {None}  # the admin key is for /admin alone


def test_in_a_browser_a_wrong_admin_key_is_forgotten_and_asked_for_again(chromium, site, answer):
    site.answers = [answer(drift_status(loop_status()))]
    site.later = [answer(drift_status(loop_status(held=True)))]
    site.replies = [(401, {"error": {"message": "no"}}), (200, {})]
    hands = """
    press("hold");
    enter("   ");
    note(shown("admin-door"), text("said"));
    enter("\u0142");
    note(shown("admin-door"), text("said"));
    enter("wrong");
    note(kept());
    await until(() => shown("admin-door"));
    note(text("said"), at("said").className, kept(), focused(), at("admin-key").value);
    enter("right");
    await until(() => text("hold") === "Let it go on");
    note(text("said"), kept());
    """
    wrong = "This admin key is wrong"
    assert handled(chromium, site, hands) == [
        True, "", True, wrong, "wrong", wrong, "bad", None, "admin-key", "", "", "right",
    ]  # fmt: skip
    assert [key for _, key, _ in site.posted] == ["Bearer wrong", "Bearer right"]


def test_in_a_browser_what_cannot_be_done_is_reported(chromium, site, answer):
    site.answers = [answer(drift_status(loop_status()))]
    site.replies = [
        (409, {"error": {"message": f"the loop is busy {EVIL}"}}),
        (500, {}),
        (200, {"state": "watching", "held": True}),
    ]
    hands = """
    press("hold");
    enter("key");
    await until(() => text("said").includes("busy"));
    note(text("said"), at("said").className, text("hold"), overflow());
    press("hold");
    await until(() => text("said").includes("500"));
    note(text("said"));
    press("hold");
    await until(() => text("said") === "");
    note(frame.contentDocument.images.length);
    """
    assert handled(chromium, site, hands) == [
        f"the loop is busy {EVIL}", "bad", "Hold", False, "The gateway answered 500", 0,
    ]  # fmt: skip


def test_in_a_browser_rolling_back_takes_a_second_press(chromium, site, answer):
    site.answers = [answer(drift_status(SUSPECTED))]
    site.later = [answer(drift_status(loop_status(held=True)))]
    hands = """
    frame.contentWindow.sessionStorage.setItem("admin-key", "key");
    frame.contentWindow.location.reload();
    await until(() => !at("contact")?.className);
    await until(() => at("contact")?.className === "live");
    press("rollback");
    note(text("rollback"), text("said"), overflow());
    at("hold").focus();
    note(text("rollback"), text("said"));
    press("rollback");
    frame.contentDocument.body.click();
    note(text("rollback"));
    press("rollback");
    at("rollback").dispatchEvent(new KeyboardEvent("keydown", {key: "Escape", bubbles: true}));
    note(text("rollback"));
    press("rollback");
    press("rollback");
    await until(() => !shown("rollback"));
    note(text("stand"), focused());
    """
    assert handled(chromium, site, hands) == [
        "Press again to roll back", "The former policy would serve again, and the loop would hold.",
        False, "Roll back", "", "Roll back", "Roll back", "Held by a person: nothing is changed",
        "hold",
    ]  # fmt: skip
    assert site.posted == [("/admin/drift/rollback", "Bearer key", b"")]


def test_in_a_browser_what_was_to_be_confirmed_is_dropped_when_another_policy_serves(
    chromium, site, answer
):
    site.answers = [
        answer(drift_status(loop_status(can_roll_back=True))),
        answer(drift_status(SUSPECTED)),
    ]
    hands = """
    press("rollback");
    note(text("rollback"));
    await until(() => text("stand").startsWith("Suspected"));
    note(text("rollback"), focused());
    """
    assert handled(chromium, site, hands) == ["Press again to roll back", "Roll back", "rollback"]
    assert site.posted == []


def test_in_a_browser_trying_again_can_be_cancelled(chromium, site, answer):
    site.answers, site.later = [answer(drift_status(FALLEN))], [answer(drift_status(SUSPECTED))]
    hands = """
    press("retry");
    note(shown("admin-door"), text("admin-go"));
    press("admin-cancel");
    note(shown("admin-door"), focused());
    press("retry");
    at("admin-key").dispatchEvent(new KeyboardEvent("keydown", {key: "Escape", bubbles: true}));
    note(shown("admin-door"), focused());
    press("retry");
    enter("key");
    await until(() => !shown("retry"));
    note(text("stand").split(":")[0], focused());
    """
    assert handled(chromium, site, hands) == [
        True, "Try again", False, "retry", False, "retry", "Suspected", "hold",
    ]  # fmt: skip
    assert site.posted == [("/admin/drift/retry", "Bearer key", b"")]


def test_in_a_browser_focus_and_what_is_typed_outlive_the_next_looks(chromium, site, answer):
    site.answers = [answer(drift_status(loop_status())), answer(drift_status(SUSPECTED))]
    hands = """
    const before = at("hold"), meter = at("meters").firstElementChild;
    press("hold");
    at("admin-key").value = "half a k";
    await until(() => looks() >= 3 && text("stand").startsWith("Suspected"));
    note(focused(), at("admin-key").value, at("hold") === before);
    note(at("meters").firstElementChild === meter);
    before.focus();
    const seen = looks();
    await until(() => looks() > seen + 1);
    note(focused(), before.tagName, before.type);
    """
    assert handled(chromium, site, hands) == [
        "admin-key", "half a k", True, True, "hold", "BUTTON", "button",
    ]  # fmt: skip


def test_in_a_browser_the_card_complains_of_nothing(chromium, site, answer):
    site.answers = [answer(drift_status(FALLEN, failed=2))]
    assert complaints(chromium(f"{site.url}/status", "--dump-dom")) == []


SLOW_LOOK = """
    const page = frame.contentWindow, fetched = page.fetch;
    let arrive, begun = false;
    const arrived = new Promise(done => { arrive = done; });
    page.fetch = async (...what) => {
      const reply = await fetched(...what);
      if (what[0] === "status.json" && !begun) { begun = true; await arrived; }
      return reply;
    };
    await until(() => begun);
"""


@pytest.mark.parametrize("slow", [False, True])
def test_in_a_browser_what_was_done_is_looked_at_at_once(chromium, site, answer, slow):
    site.answers = [answer(drift_status(loop_status()))]
    site.later = [answer(drift_status(loop_status(held=True)))]
    hands = f"""
    {SLOW_LOOK if slow else "const arrive = () => null;"}
    press("hold");
    enter("key");
    await until(() => text("said") === "");
    const then = performance.now();
    arrive();
    await until(() => text("hold") === "Let it go on");
    note(performance.now() - then < 1000);
    """
    assert handled(chromium, site, hands) == [True]


def test_the_page_has_words_for_every_failure():
    named = re.search(r"const FAILED_BY = \{(.*?)\};", PAGE.decode(), re.DOTALL)
    assert sorted(re.findall(r"(\w+): \"", named[1])) == sorted(FAILURES)
