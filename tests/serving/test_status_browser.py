"""The status page, served with its own headers and looked at in headless Chromium."""

from __future__ import annotations

import html
import json
import re
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from matplotlib.image import imread

from browser import headless
from running_gateway import running
from traces import answering_trace
from ttamer.fitting import fit
from ttamer.serve.served import Served
from ttamer.serve.status import PAGE, PAGE_HEADERS, Status, frontier_of

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
    return Served("id", "/v1/x", status, 0.2, asked=nodes, by=by, cost=cost)


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
        status.finished(Served("id", "/v1/x", 429, 0.0, error="rate_limited"))
    status.event("load", "serving")
    status.event("reload", "serving")
    status.event(
        "reload",
        "policy.ttamer: is cut short: 812 bytes, and the header tells of 5160; "
        "copy the file again from where it came, or save the policy again",
        ok=False,
    )
    status.event("rollback", "serving")
    return status


@pytest.fixture(scope="module")
def frontier():
    ladder = fit(answering_trace(1000), order="any", states=16)
    return frontier_of(ladder, ladder.at(0.9876))


PROBE = """<!doctype html><meta charset="utf-8"><body>%s<script>
const frames = [...document.querySelectorAll("iframe")];
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
      asked: frame.contentWindow.performance.getEntriesByType("resource")
        .map(entry => new URL(entry.name).pathname)};
  });
  document.body.innerHTML = "";
  document.body.append(Object.assign(document.createElement("pre"),
    {id: "seen", textContent: JSON.stringify(seen)}));
})();
</script></body>"""


class Site:
    """Serves the page, and status.json from ``answers``, the last one again and again."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict]] = []
        self.given: list[str | None] = []
        self.page = PAGE
        self.headers = dict(PAGE_HEADERS)
        self.stay = 0
        self.widths = (390, 1280)
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, headers, body = site.respond(self.path, self.headers)
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
        return 404, {}, b""

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
    done = chromium(f"{site.url}/probe", "--dump-dom")
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
            ["small", "1,304", "700", "1", "1,304"],
            ["middle", "444", "420", "24", "1,776"],
            ["large", "184", "183", "1", "3,680"],
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
    status.finished(Served("id", "/v1/x", 200, 0.2, asked=(asked(EVIL),), by=EVIL, cost=1.0))
    status.event("reload", EVIL, ok=False)
    status.event(EVIL, EVIL)
    site.answers = [(200, status.to_dict(frontier, version=EVIL))]
    for seen in looked_at(chromium, site):
        assert seen["images"] == 0
        assert seen["title"] == f"{EVIL}: ttamer status"
        assert seen["nodes"][0][0] == EVIL
        assert seen["scripts"] == 1
        assert seen["scroll"] <= seen["width"]


def test_in_a_browser_a_key_is_asked_for(chromium, site, frontier):
    site.answers = [(401, {})]
    (seen, _) = looked_at(chromium, site)
    assert seen["door"]
    assert seen["contact"] == "key needed"
    site.answers = [(200, busy_status().to_dict(frontier, version="ab" * 32))]
    typed = b'<script>sessionStorage.setItem("key", "correct-horse-battery");'
    site.change(b"<script>", typed)  # in the place of somebody who types
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
