from __future__ import annotations

import datetime as dt
import pickle

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ttamer.cascade import CascadeNode, CascadeSpec, from_tables, to_tables
from ttamer.errors import ArgumentError, CascadeError
from ttamer.fitting.replay import full_cost
from ttamer.trace.trace import Trace

TREE = """
[cascade]
name = "reviews"
kind = "models"
target = "last"

[[node]]
name = "small.v2"
cost = 1
upstream = "http://localhost:1"
timeout = 2.5

[[node]]
name = "large"
cost = 12.5
after = "small.v2"
"""


def test_a_node_with_prices_by_token_needs_no_cost():
    toml = "[[node]]\nname = 'a'\ncost_per_token = {input = 0.1, output = 0.4}"
    assert CascadeSpec.from_toml(toml).nodes[0].cost == 0.0


def test_a_file_holds_everything(tmp_path):
    path = tmp_path / "cascade.toml"
    path.write_text(f"\ufeff{TREE}", "utf-8")  # with a byte order mark
    spec = CascadeSpec.from_file(path)
    assert (spec.name, spec.kind, spec.target) == ("reviews", "models", "last")
    assert spec.names == ("small.v2", "large")
    assert spec.costs.tolist() == [1.0, 12.5]
    assert spec.costs.dtype == np.float64
    assert not spec.costs.flags.writeable
    assert spec.parents == ((), (0,))
    assert spec.nodes[0].options == {"upstream": "http://localhost:1", "timeout": 2.5}
    assert len(spec) == 2


def test_defaults():
    spec = CascadeSpec.from_toml('[[node]]\nname = "a"\ncost = 0')
    assert (spec.kind, spec.target, spec.name, spec.unit) == ("models", "label", None, "")


NODE = '[[node]]\nname = "a"\ncost = 1\n'
EXITS = "[cascade]\nkind = 'exits'\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no nodes"),
        ("node = []", "no nodes"),
        ("[cascade]\nkind = 'exits'", "no nodes"),
        ("[cascade\n", "line 1"),
        (NODE + "cost = 2", "is not TOML that can be read"),
        ("[node]\nname = 'a'\ncost = 1", "two brackets"),
        ("[node]\nname = 'a'\ncost = 1\n[node]\nname = 'b'\ncost = 1", "two brackets"),
        ("node = [1]", "[[node]] 1 must be a table"),
        ("cascade = 3\n" + NODE, "[cascade] must be a table"),
        ("serve = 3\n" + NODE, "[serve] must be a table, not 3"),
        ("[server]\nport = 1\n" + NODE, "unknown table 'server'"),
        ("[[nodes]]\nname = 'a'", "unknown table 'nodes'"),
        ("[cascade]\nkin = 'exits'\n" + NODE, "unknown key 'kin'"),
        (
            NODE + "cost_per_cal = 2",
            "[[node]] 1 ('a'): has an unknown key 'cost_per_cal'; did you mean",
        ),
        (NODE + "confidance = 'none'", "unknown key 'confidance'; did you mean 'confidence'"),
        (
            "[cascade]\norder = 'fixed'\n" + NODE,
            "unknown key 'order'; it may have name, k",
        ),
        ("[cascade]\nunit = 3\n" + NODE, "unit must be text, not 3"),
        ("[cascade]\nkind = 'some'\n" + NODE, 'it must be "models" or "exits"'),
        ("[cascade]\nkind = 1\n" + NODE, "kind is 1"),
        ("[cascade]\nkind = ['exits']\n" + NODE, "kind is ['exits']"),
        ("[cascade]\ntarget = 'first'\n" + NODE, '"label" or "last"'),
        ("[cascade]\nname = 3\n" + NODE, "name must be text"),
        ("[cascade]\nmistakes = 3\n" + NODE, "mistakes must be a table by label, not 3"),
        ("[cascade]\nmistakes = {x = 3}\n" + NODE, "mistakes.x: must be a table of costs"),
        (
            "[cascade]\nmistakes = {x = {y = -1}}\n" + NODE,
            "mistakes.x.y is -1.0; it must be finite",
        ),
        ("[cascade]\nmistakes = {x = {x = 1}}\n" + NODE, "mistakes.x.x: a right answer costs 0"),
        ("[cascade]\nmistakes = {x = {y = 1" + "0" * 400 + "}}\n" + NODE, "y must be a finite"),
        ("[cascade]\nmax_loss = 0\n" + NODE, "max_loss is 0; it must be above 0"),
        ("[cascade]\nmax_loss = nan\n" + NODE, "max_loss is nan"),
        ("[cascade]\nmax_loss = 2\nmistakes = {x = {y = 1}}\n" + NODE, "remove max_loss"),
        (NODE + NODE, "[[node]] 2: the name 'a' is taken by [[node]] 1"),
        ("[[node]]\nname = ''\ncost = 1", "at least one character"),
        ("[[node]]\nname = ' a'\ncost = 1", "no space at either end"),
        ('[[node]]\nname = "a\\n"\ncost = 1', "control"),
        ("[[node]]\nname = 1\ncost = 1", "name must be text, not 1"),
        ("[[node]]\ncost = 1", "[[node]] 1 lacks name"),
        ("[[node]]\nname = 'a'", "[[node]] 1 ('a') lacks cost"),
        ("[[node]]\nname = 'a'\ncost = -1", "[[node]] 1 ('a'): cost is -1.0"),
        ("[[node]]\nname = 'a'\ncost = nan", "cost is nan"),
        ("[[node]]\nname = 'a'\ncost = inf", "cost is inf"),
        ("[[node]]\nname = 'a'\ncost = '1'", "cost must be a number, not '1'"),
        ("[[node]]\nname = 'a'\ncost = true", "cost must be a number, not True"),
        ("[[node]]\nname = 'a'\ncost = 1" + "0" * 400, "finite"),
        (NODE + "after = 'b'", "after is 'b', and there is no such node"),
        (NODE + "after = 3", "after must name a node"),
        (NODE + "after = [3]", "after must name a node, or be a list of names, not [3]"),
        (NODE + "after = []", "after is an empty list"),
        (NODE + "after = ['b', 'b']", 'after names a node twice, ["b", "b"]'),
        (NODE + "after = ['b', 'c']", "after is 'b', and there is no such node"),
        (
            NODE + "after = ['b', 'c']\n[[node]]\nname = 'b'\ncost = 1\n"
            "[[node]]\nname = 'c'\ncost = 1\nafter = ['b', 'a']",
            "cyclic: a after c after a",
        ),
        (NODE + "after = 'a'", "cyclic: a after a"),
        (
            NODE + "after = 'b'\n[[node]]\nname = 'b'\ncost = 1\nafter = 'a'",
            "cyclic: a after b after a",
        ),
        (EXITS + NODE + "[[node]]\nname='b'\ncost=1\nafter='a'", 'has after = "a", which is for'),
        (EXITS + NODE + "verify_cost = 1", "has verify_cost = 1, which is for separate models"),
        (NODE + "reach = 1", "[[node]] 1 ('a'): has reach = 1.0, and only exits"),
        ("kind = 'exits'\n" + NODE, "kind belongs to a table: write it below a line [cascade]"),
        (EXITS + NODE + "reach = -1", "[[node]] 1 ('a'): reach is -1.0"),
        (EXITS + NODE + "reach = nan", "reach is nan; it must be finite"),
        (EXITS + NODE + "reach = '1'", "reach must be a number, not '1'"),
        (EXITS + NODE + "reach = 1" + "0" * 400, "('a'): reach must be a finite number"),
    ],
)
def test_what_is_wrong_is_reported_with_the_file_and_the_table(tmp_path, text, says):
    path = tmp_path / "cascade.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(CascadeError) as error:
        CascadeSpec.from_file(path)
    assert str(error.value).startswith(f"{path}: ")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(CascadeError, match="cannot be read"):
        CascadeSpec.from_file(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"name = '\xff'")
    with pytest.raises(CascadeError, match="UTF-8"):
        CascadeSpec.from_file(tmp_path / "latin.toml")
    with pytest.raises(CascadeError, match="must be a table"):
        from_tables([1])
    with pytest.raises(CascadeError, match="cost must be a number, not None"):
        from_tables({"node": [{"name": "a", "cost": None}]})


def test_a_cycle_further_down_is_found_too():
    nodes = [CascadeNode("a", 1, "b"), CascadeNode("b", 1, "c"), CascadeNode("c", 1, "b")]
    with pytest.raises(CascadeError, match="cyclic"):
        CascadeSpec(tuple(nodes))


def test_options_that_are_numbers_of_numpy_are_written_as_numbers():
    node = CascadeNode("a", 1.0, options={"timeout": np.float64(2.5), "retries": np.int64(3)})
    read = CascadeSpec.from_toml(CascadeSpec((node,)).to_toml())
    assert read.nodes[0].options == {"timeout": 2.5, "retries": 3}


def test_options_cannot_hide_a_cost():
    with pytest.raises(CascadeError, match="'cost' cannot stand among the options"):
        CascadeSpec((CascadeNode("a", 1, None, {"cost": 2}),))
    with pytest.raises(CascadeError, match="'reach' cannot stand among the options"):
        CascadeSpec((CascadeNode("a", 1, None, {"reach": 2}),))
    with pytest.raises(CascadeError, match="cannot be written as TOML"):
        CascadeSpec((CascadeNode("a", 1, None, {"key": object()}),)).to_toml()
    with pytest.raises(CascadeError, match="not well-formed"):
        CascadeSpec((CascadeNode("a", 1, None, {"key": "\ud800"}),)).to_toml()
    with pytest.raises(CascadeError, match="is not text"):
        CascadeSpec((CascadeNode("a", 1, None, {1: 2}),)).to_toml()


def test_a_serve_table_is_kept_as_it_stands():
    spec = CascadeSpec.from_toml("[serve]\nallow = ['budget']\nlimits = {body = 1}\n" + NODE)
    assert spec.serve == {"allow": ["budget"], "limits": {"body": 1}}
    assert CascadeSpec.from_toml(spec.to_toml()) == spec
    assert from_tables(to_tables(spec)) == spec
    assert spec.with_costs({"a": 9}).serve == spec.serve
    plain = CascadeSpec.from_toml(NODE)
    assert plain.serve == {}
    assert "serve" not in to_tables(plain)
    assert len({spec, plain}) == 2
    assert pickle.loads(pickle.dumps(spec)) == spec  # noqa: S301 - our own


def test_other_costs_and_names():
    spec = CascadeSpec.of({"a": 1, "b": np.float32(2)})
    assert spec.with_costs({"b": 5}).costs.tolist() == [1, 5]
    assert spec.index_of("b") == 1
    with pytest.raises(ArgumentError, match="no node 'c'; the nodes are a, b"):
        spec.with_costs({"c": 1})
    assert pickle.loads(pickle.dumps(spec)) == spec  # noqa: S301 - our own
    assert len({spec, CascadeSpec.of({"a": 1, "b": 2.0})}) == 1


def test_exits_that_may_be_passed():
    text = EXITS + NODE + "reach = 0.5\n[[node]]\nname = 'b'\ncost = 2\nkey = 1\n"
    spec = CascadeSpec.from_toml(text)
    assert spec.reach.tolist() == [0.5, 2.0]
    assert not spec.asks_each
    assert spec.nodes[1].options == {"key": 1}
    assert spec.with_costs({"a": 9}).reach.tolist() == [0.5, 2.0]
    same = CascadeSpec.of({"a": 1, "b": 2}, kind="exits", reach={"a": np.float32(0.5)})
    assert same.reach.tolist() == spec.reach.tolist()
    plain = CascadeSpec.of({"a": 1, "b": 2}, kind="exits")
    assert plain.reach.tolist() == [1.0, 2.0]
    assert plain.asks_each
    assert len({same, plain, from_tables(to_tables(same))}) == 2
    with pytest.raises(ArgumentError, match="reach names 'c', and costs does not"):
        CascadeSpec.of({"a": 1}, kind="exits", reach={"c": 1})


COSTS = {"a": 4.0, "b": 1.0, "c": 2.0}


@pytest.mark.parametrize(
    ("spec", "order", "answers", "full"),
    [
        (CascadeSpec.of(COSTS), (1, 2, 0), [4, 1, 2], 4.0),
        (CascadeSpec.of(COSTS, kind="exits"), (0, 1, 2), [4, 5, 7], 7.0),
        (
            CascadeSpec.of(COSTS, kind="exits", reach={"a": 0.5, "b": 0.25}),
            *((0, 1, 2), [4, 1.5, 2.75], 2.75),
        ),
        (CascadeSpec.of(dict.fromkeys("abc", 0.0)), (0, 1, 2), [0, 0, 0], 1.0),
        (
            CascadeSpec(
                (
                    CascadeNode("leaf", 1.0, after="root"),
                    CascadeNode("root", 3.0),
                    CascadeNode("alone", 2.0),
                )
            ),
            *((2, 1, 0), [4, 3, 2], 3.0),
        ),
    ],
)
def test_which_node_is_asked_when_and_at_what_cost(spec, order, answers, full):
    assert spec.asking_order() == order
    assert spec.answer_costs().tolist() == answers
    assert full_cost(Trace(spec, np.zeros((1, len(spec))))) == full
    other = np.array([3.0, 2.0, 1.0])
    assert spec.asking_order(other)[0] == (0 if spec.kind == "exits" else 2)
    assert (spec.answer_costs(other) >= other).all()
    for array in (spec.costs, spec.reach, spec.required):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 7


plain = st.one_of(
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.dates(),
    st.times(),
    st.datetimes(),
    st.datetimes(timezones=st.just(dt.UTC)),
)
values = st.recursive(
    plain,
    lambda inner: st.lists(inner) | st.dictionaries(st.text("ab é.\"'\n"), inner),
    max_leaves=8,
)
names = st.text(
    st.characters(exclude_categories=["C", "Z"]) | st.sampled_from("._- "), min_size=1
).filter(lambda name: name == name.strip() and name.isprintable())


@given(
    names=st.lists(names, min_size=1, max_size=4, unique=True),
    costs=st.lists(st.floats(0, allow_infinity=False), min_size=4, max_size=4),
    options=st.dictionaries(names.map("my {}".format), values),
    reach=st.lists(st.none() | st.floats(0, allow_infinity=False), min_size=4, max_size=4),
    kind=st.sampled_from(["models", "exits"]),
    target=st.sampled_from(["label", "last"]),
    tree=st.booleans(),
    name=st.none() | names,
    mistakes=st.just({}) | st.just({"x": {"*": 2.0, "y": 0.5}, "*": {"x": 3.0}}),
    max_loss=st.none() | st.floats(1e-9, 1e9),
    unit=st.sampled_from(["", "$ per 1,000"]),
)
def test_what_is_written_reads_back_equal(
    names, costs, options, reach, kind, target, tree, name, mistakes, max_loss, unit
):
    exits = kind == "exits"
    nodes = tuple(
        CascadeNode(
            n,
            cost,
            names[i - 1] if tree and i and not exits else None,
            options,
            past if exits else None,
        )
        for i, (n, cost, past) in enumerate(zip(names, costs, reach, strict=False))
    )
    most = None if mistakes else max_loss
    spec = CascadeSpec(nodes, kind, target, name, mistakes=mistakes, max_loss=most, unit=unit)
    assert CascadeSpec.from_toml(spec.to_toml()) == spec
    assert from_tables(to_tables(spec)) == spec


def test_to_file(tmp_path):
    spec = CascadeSpec.from_toml(TREE)
    spec.to_file(tmp_path / "copy.toml")
    assert CascadeSpec.from_file(tmp_path / "copy.toml") == spec
