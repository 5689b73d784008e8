from __future__ import annotations

import dataclasses
import math

import pytest

from ttamer.errors import CascadeError
from ttamer.llm import Comparison
from ttamer.serve.config import (
    AuditSettings,
    NodeSettings,
    ServeSettings,
    TokenCost,
    read_settings,
    settings_from,
)
from ttamer.trace.spec import CascadeSpec

NODE = '[[node]]\nname = "small"\ncost = 1\nupstream = "http://127.0.0.1:8081/v1"\n'
TWO_NODES = NODE + NODE.replace("small", "large")


def settings(text: str):
    return settings_from(CascadeSpec.from_toml(text))


def refused(text: str) -> str:
    with pytest.raises(CascadeError) as caught:
        settings(text)
    return str(caught.value)


def test_everything_but_the_upstream_may_be_left_out():
    found = settings(NODE)
    assert found.serve == ServeSettings()
    assert found.nodes == {"small": NodeSettings("small", 1.0, "http://127.0.0.1:8081/v1", "small")}


def test_defaults_are_safe():
    serve = ServeSettings()
    assert (serve.allow, serve.direct, serve.admin_keys_env, serve.trace_log) == (
        (),
        False,
        None,
        None,
    )


def test_all_of_a_file_is_read(tmp_path):
    path = tmp_path / "cascade.toml"
    path.write_text(
        """
[cascade]
order = "any"
target = "last"

[serve]
compare = "exact"
max_cost = 30
tradeoff = 0.9
allow = ["tradeoff", "budget"]
tradeoff_range = [0.5, 1]
budget_range = [1, 20.5]
keys_env = "KEYS"
direct = true

[[node]]
name = "small"
cost = 1.0
upstream = "https://models.example:8443/v1///"
model = "smollm2"
key_env = "SMALL_KEY"
confidence = "agreement"
samples = 3
cost_per_token = {input = 0.1, output = 1}

[[node]]
name = "large"
cost = 5.0
upstream = "http://[::1]:8082/v1"
confidence = "verifier"
verifier = "small"
timeout = 2
retries = 1
fallback = "http://127.0.0.1:9/v1"
""",
        "utf-8",
    )
    found = read_settings(path)
    assert (found.serve.compare, found.serve.max_cost) == (Comparison("exact"), 30.0)
    assert found.serve.allow == ("tradeoff", "budget")
    assert (found.serve.tradeoff_range, found.serve.budget_range) == ((0.5, 1.0), (1.0, 20.5))
    assert found.serve.error_range == (0.0, 1.0)
    small, large = found.nodes.values()
    assert small.upstream == "https://models.example:8443/v1"
    assert (small.model, small.samples) == ("smollm2", 3)
    assert small.cost_per_token == TokenCost(0.1, 1.0)
    assert (large.verifier, large.timeout, large.retries) == ("small", 2.0, 1)
    assert large.upstream == "http://[::1]:8082/v1"
    assert found.spec.target == "last"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("port = 1", "unknown key 'port'; allowed are compare, max_cost"),
        ('compare = "fuzzy"', '"exact", "normalised", "choice"'),
        ("compare = 3", '"exact", "normalised", "choice"'),
        ("compare = {tolerance = 1}", "a table with kind"),
        ('compare = {kind = "numeric", near = 1}', "a table with kind"),
        ('compare = {kind = "numeric", tolerance = -1}', "a number from 0"),
        ('compare = {kind = "exact", tolerance = 1}', "tolerance applies to"),
        ('compare = {kind = "json", fields = []}', "a list of paths"),
        ('compare = {kind = "regex", pattern = "("}', "not a regular expression"),
        ("max_cost = 0", "above 0"),
        ("max_cost = inf", "a number"),
        ("timeout = nan", "a number"),
        ("timeout = true", "a number"),
        ('timeout = "1"', "a number"),
        ("tradeoff = 1.5", "from 0 to 1"),
        ("error = 5", "error is 5; it must be at most 1, as 0.05 for 5%"),
        ("error_range = [0.0, 2.0]", "error_range is 2; it must be at most 1"),
        ("tradeoff = 0.5\nbudget = 3", "tradeoff and budget"),
        ('allow = "tradeoff"', "a list of"),
        ('allow = ["upstream"]', "a list of"),
        ("allow = [[]]", "a list of"),
        ("tradeoff_range = [0.9, 0.5]", "the lowest first"),
        ("tradeoff_range = [0.9]", "two numbers"),
        ("tradeoff_range = [0.9, 1.1]", "from 0 to 1"),
        ("direct = 1", "true or false"),
        ("max_body = 0", "a whole number from 1"),
        ("max_body = 1.5", "a whole number from 1"),
        ("max_depth = 501", "to 500"),
        ('keys_env = ""', "text"),
        ('keys_env = "a\\nb"', "text"),
        ('otel = "collector"', "a URL"),
        ('cors = "https://app.example"', "a list of origins"),
        ('cors = ["https://app.example/page"]', "without a path"),
        ('cors = ["*", "https://app.example"]', "a list of origins"),
    ],
)
def test_what_is_wrong_with_serve_is_reported(line, said):
    text = refused(f"[serve]\n{line}\n{NODE}")
    assert text.startswith("[serve]: ")
    assert said in text


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("tiemout = 1", "unknown key 'tiemout'; did you mean 'timeout'?"),
        ("max_rate = 0", "above 0"),
        ("max_wait = 1", "needs max_concurrent or max_rate"),
        ('headers = {host = "x"}', "which the gateway sets itself"),
        ('headers = {"a b" = "x"}', "no name of a header"),
        ('headers = {x = {environ = "A"}}', "a table like"),
        ('key_header = "api-key"', "needs key_env"),
        ('key_env = "A"\nkey_header = "api key"', "the name of a header"),
        ("query = {}", "a table like"),
        ('proxy = "https://proxy:3128"', '"http://proxy.example:3128"'),
        ('proxy = "http://user@proxy:3128"', "without user"),
        ('proxy_auth_env = "A"', "needs proxy"),
        ("timeout = 0", "above 0"),
        ("retries = -1", "from 0 to 10"),
        ('confidence = "guess"', '"verifier", "self-report", "field"'),
        ('confidence = "agreement"', "needs samples"),
        ('confidence = "verifier"', "needs verifier"),
        ('confidence = "field"', "needs field"),
        ('confidence = "agreement"\nsamples = 1', "needs at least 2"),
        ("samples = 3", 'to confidence = "agreement" only, not "logprobs"'),
        ('field = "a.b"', 'to confidence = "field" only'),
        ('confidence = "verifier"\nverifier = "judge"', "no such node; the nodes are small"),
        ("cost_per_token = 1", "a table like"),
        ("cost_per_token = {inputs = 1}", "a table like"),
        ("cost_per_token = {input = -1}", "from 0"),
    ],
)
def test_what_is_wrong_with_a_node_is_reported(line, said):
    text = refused(NODE + line)
    assert text.startswith("[[node]] 1 ('small'): ")
    assert said in text


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8081/v1",
        "ftp://127.0.0.1/v1",
        "file:///etc/passwd",
        "http:///v1",
        "http://user:secret@127.0.0.1/v1",
        "http://127.0.0.1:99999/v1",
        "http://127.0.0.1/v1?to=elsewhere",
        "http://127.0.0.1/v1#part",
        "http://127.0.0.1/v 1",
        "http://127.0.0.1/\\u0001",
        "http://[::1/v1",
    ],
)
@pytest.mark.parametrize("key", ["upstream", "fallback"])
def test_an_upstream_is_a_plain_url(key, url):
    other = "" if key == "upstream" else 'upstream = "http://127.0.0.1/v1"\n'
    text = refused(f'[[node]]\nname = "small"\ncost = 1\n{other}{key} = "{url}"\n')
    assert f"{key} is" in text
    assert "a URL like" in text


def test_an_upstream_is_a_base_url():
    text = refused(NODE.replace("8081/v1", "8081/v1/chat/completions/"))
    assert "a base URL, without /chat/completions at its end" in text


def test_a_node_without_an_upstream_cannot_be_served(tmp_path):
    path = tmp_path / "cascade.toml"
    path.write_text('[[node]]\nname = "small"\ncost = 1\n', "utf-8")
    with pytest.raises(
        CascadeError, match=r"cascade\.toml: \[\[node\]\] 1 \('small'\): lacks upstr"
    ):
        read_settings(path)


@pytest.mark.parametrize("kind", [ServeSettings, NodeSettings, AuditSettings])
def test_every_setting_is_declared_with_its_check(kind):
    names = {field.name for field in dataclasses.fields(kind) if "check" not in field.metadata}
    of_the_cascade = {"name", "cost", "verifies"}  # no keys of a table
    assert names == (of_the_cascade if kind is NodeSettings else set())


def test_ranges_take_in_the_operating_points_there_can_be():
    serve = ServeSettings()
    assert serve.budget_range == (0.0, math.inf)


AUDIT = '[serve.audit]\nshare = 0.1\nreference = "held.parquet"\n'


@pytest.mark.parametrize(
    ("head", "largest"),
    [("max_loss = 50", 50.0), ("[cascade.mistakes]\nfraud = {'*' = 20}", 20.0)],
)
def test_errors_are_mean_losses_where_answers_have_losses(head, largest):
    def serve(text):
        return settings_from(CascadeSpec.from_toml(f"[cascade]\n{head}\n{text}\n{TWO_NODES}")).serve

    assert serve("").error_range == (0.0, largest)
    assert serve("[serve]\nerror = 2.5").error == 2.5
    assert serve(f"{AUDIT}drop = 2.5").audit.drop == 2.5
    with pytest.raises(CascadeError, match=f"drop is 51; .* at most {largest:g}, the largest loss"):
        serve(f"{AUDIT}drop = 51")


def test_what_the_trace_log_may_contain():
    found = settings("[serve]\nlog_predictions = true\ntrace_log_bytes = 1024\n" + NODE).serve
    assert (found.log_predictions, found.trace_log_bytes) == (True, 1024)
    assert not ServeSettings().log_predictions
    assert "from 1024" in refused("[serve]\ntrace_log_bytes = 1023\n" + NODE)
    assert "true or false" in refused("[serve]\nlog_predictions = 1\n" + NODE)


def test_what_a_file_has_on_a_cluster_does_not_affect_one_gateway():
    text = """
    [[node]]
    name = "small"
    cost = 1
    upstream = "http://127.0.0.1:1/v1"
    replicas = [1, 4]
    cpus = 2.0
    gpus = 1
    """
    assert settings_from(CascadeSpec.from_toml(text)).nodes["small"].cost == 1.0


@pytest.mark.parametrize(
    ("line", "comparison"),
    [
        ('"contains"', Comparison("contains")),
        ('{kind = "numeric", tolerance = 1}', Comparison("numeric", tolerance=1.0)),
        ('{kind = "json", fields = ["a", "b.0"]}', Comparison("json", fields=("a", "b.0"))),
        ("{kind = 'regex', pattern = '(\\w+)'}", Comparison("regex", pattern=r"(\w+)")),
    ],
)
def test_a_comparison_is_a_name_or_a_table(line, comparison):
    text = f"[serve]\ncompare = {line}\n[[node]]\nname='a'\ncost=1\nupstream='http://127.0.0.1/v1'"
    assert settings_from(CascadeSpec.from_toml(text)).serve.compare == comparison
