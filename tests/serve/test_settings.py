"""Settings: what is allowed, what is refused, and where those of old went."""

import pytest

from support.served import write_cascade
from ttamer.cascade import NODE_KEYS, OPTION_KEYS, CascadeSpec
from ttamer.errors import ArgumentError, ArtefactError, CascadeError
from ttamer.llm.settings import EmbeddingSettings, NodeSettings
from ttamer.serve import create
from ttamer.serve.server import check_exposure
from ttamer.serve.settings import AuditSettings, ServeSettings, Settings

HEAD = "name = 'a'\ncost = 1\nupstream = 'http://h/v1'"


def read(serve="", node="", more=""):
    nodes = [f"[[node]]\n{HEAD}\n{node}", "[[node]]\n" + HEAD.replace("'a'", "'b'")]
    return Settings.of(CascadeSpec.from_toml("\n".join(["[serve]", serve, more, *nodes])))


def test_the_defaults_are_safe():
    settings = read()
    assert settings.serve == ServeSettings()
    assert settings.compare.kind == "normalised"
    assert settings.incumbent == "b"


TABLES = {
    ServeSettings: r"\[serve\]",
    AuditSettings: r"\[serve.audit\]",
    NodeSettings: r"\('a'\)",
    EmbeddingSettings: r"\[serve.embeddings\]",
}


def test_there_are_at_most_forty_settings():
    names = [name for table in TABLES for name in table.__struct_fields__]
    # A node's name and cost are those of any cascade; two keys of [serve] are tables.
    assert len(names) - 4 <= 40


def test_every_command_knows_the_keys_that_a_node_may_have():
    of_ray = {"replicas", "cpus", "gpus"}
    assert {*OPTION_KEYS} == {*NodeSettings.__struct_fields__} - {*NODE_KEYS} | of_ray


@pytest.mark.parametrize("table", TABLES)
def test_a_setting_that_is_gone_says_where_it_went(table):
    written = {
        ServeSettings: {"serve": "{}"},
        NodeSettings: {"node": "{}"},
        AuditSettings: {"more": "[serve.audit]\nshare = 0.1\n{}"},
        EmbeddingSettings: {"more": "[serve.embeddings]\nupstream = 'http://h/v1'\n{}"},
    }
    for key in table.removed:
        ((where, text),) = written[table].items()
        assert key not in table.__struct_fields__
        message = rf"{TABLES[table]}: {key} is no setting any more: .{{9}}"
        with pytest.raises(CascadeError, match=message):
            read(**{where: text.format(f"{key} = 1")})


def test_a_confidence_that_is_gone_says_what_to_write():
    with pytest.raises(CascadeError, match='confidence = "margin" is gone: write "logprobs"'):
        read(node='confidence = "margin"')


@pytest.mark.parametrize(
    ("serve", "more", "message"),
    [
        ("tradeoff = 1.5", "", "tradeoff is 1.5; it must be a number at most 1"),
        ("tradeoff = 0.5\nbudget = 2", "", "has tradeoff and budget, and there is one"),
        ("error = 1.5", "", "error is 1.5; it must be at most 1"),
        ("allow = ['speed']", "", "allow is .*; it must be 'budget' or"),
        ("timeouts = 3", "", "unknown key 'timeouts'; did you mean 'timeout'"),
        ("max_concurrent = 0", "", "max_concurrent is 0; it must be a whole number at least 1"),
        ("compare = 'like'", "", "compare: kind is 'like'"),
        ("compare = 3", "", "compare is 3; it must be a kind"),
        ("compare = {kind = 'numeric', x = 1}", "", "unknown key 'x'; allowed are kind, tolerance"),
        ("", "[serve.embeddings]\nmodel = 'm'", r"\[serve.embeddings\]: it lacks upstream"),
        ("mode = 'shadow'", "", 'mode = "shadow" needs log, and .serve.audit.'),
        ("incumbent = 'a'", "", 'has incumbent, which needs mode = "shadow"'),
        ("incumbent = 'c'", "", "incumbent is 'c'; the nodes are a, b"),
        ("", "[serve.audit]\nbudget = 3", "lacks share"),
        ("", "[serve.audit]\nshare = 0", "share is 0; it must be a number above 0"),
        ("", "[serve.audit]\nshare = 0.1", "audited rows go to the log; set log"),
        ("log = 'x'", "[serve.audit]\nshare = 0.1\nreference = 'r'", "set error in .serve."),
    ],
)
def test_a_setting_that_is_wrong_is_one_line_with_what_is_allowed(serve, more, message):
    with pytest.raises(CascadeError, match=message) as error:
        read(serve, more=more)
    assert "\n" not in str(error.value)


def test_audits_and_verification_costs_exclude_each_other():
    with pytest.raises(CascadeError, match="verify_cost"):
        read(
            "log = 'x'", "verify_cost = 1\nconfidence = 'self-report'", "[serve.audit]\nshare = 0.1"
        )


@pytest.mark.parametrize(
    ("host", "has_token", "is_refused"),
    [
        ("127.0.0.1", False, False),
        ("::1", False, False),
        ("localhost", False, False),
        ("0.0.0.0", False, True),  # noqa: S104
        ("::", False, True),
        ("10.0.0.1", False, True),
        ("example.com", False, True),
        ("0.0.0.0", True, False),  # noqa: S104
    ],
)
def test_an_open_address_needs_a_token(host, has_token, is_refused):
    if is_refused:
        with pytest.raises(ArgumentError, match=r"set token_env in \[serve\]"):
            check_exposure(host, has_token=has_token)
    else:
        check_exposure(host, has_token=has_token)


def test_an_asgi_server_is_told_which_variable_is_missing(monkeypatch):
    monkeypatch.delenv("TTAMER_CASCADE", raising=False)
    with pytest.raises(CascadeError, match="variable TTAMER_CASCADE is not set; export it"):
        create()


def test_what_cannot_be_served_is_refused_before_a_port_opens(serve):
    with pytest.raises(CascadeError, match="the environment variable NO_TOKEN is not set"):
        serve(serve={"token_env": "NO_TOKEN"})
    served = serve(3)
    served.service.policies._settings = serve(2).service.settings
    write_cascade(served.folder, 3)
    with pytest.raises(ArtefactError, match="was fitted for small, middle, large, and the cascade"):
        served.service.policies.load()
    with pytest.raises(ArtefactError, match="was fitted for cost 1 of 'small', and it is 2 now"):
        serve(node={"small": {"cost": 2.0}})
    assert serve(node={"small": {"cost": 2.0}}, force=True).chat().status_code == 200
