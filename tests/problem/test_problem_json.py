"""``problem.json``: what is read, what is written, what is refused."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given

from support.examples import examples
from support.strategies import problems
from ttamer import Problem
from ttamer.errors import ProblemError

NODE = {"name": "a", "losses": [0.1, "inf"]}
EDGE = {"from": None, "to": "a", "cost": 1, "probabilities": [[0.25, 0.75]]}
WHOLE = {"moves": "walk", "nodes": [NODE], "edges": [EDGE]}


def numbers(problem):
    """Everything a problem was given, to compare without rounding."""
    nodes = [(node.name, node.losses.tolist()) for node in problem.nodes]
    edges = [(e.source, e.target, e.cost, e.probabilities.tolist()) for e in problem.edges]
    return problem.moves, nodes, edges


def node(**changes):
    return {**WHOLE, "nodes": [{**NODE, **changes}]}


def edge(**changes):
    return {**WHOLE, "edges": [{**EDGE, **changes}]}


def without(item, name):
    return {key: value for key, value in item.items() if key != name}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "problem.json"


@pytest.fixture
def refusal(path):
    """Tell what is said of a file of these bytes; it always begins with the path."""

    def read(content):
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(ProblemError) as caught:
            Problem.from_file(path)
        said = str(caught.value)
        assert said.startswith(f"{path}: ")
        assert said.count(str(path)) == 1
        assert "\n" not in said
        return said.removeprefix(f"{path}: ")

    return read


@examples(100)
@given(problems())
def test_a_problem_comes_back_exactly_from_its_dict_through_strict_json(problem):
    text = json.dumps(problem.to_dict(), allow_nan=False)
    assert numbers(Problem.from_dict(json.loads(text))) == numbers(problem)


def test_a_problem_comes_back_exactly_from_its_file(path):
    third = Problem.line(
        [1 / 3, math.inf, 5e-324, 0], [0.1 + 0.2], [[0.1, 0.2, 0.3, 0.4]], names=["é\n"]
    )
    third.to_file(path)
    assert numbers(Problem.from_file(str(path))) == numbers(third)
    assert path.read_bytes().endswith(b"}\n")


def test_the_form_is_the_documented_one():
    assert Problem.from_dict(WHOLE).to_dict() == WHOLE


def test_an_infinite_loss_is_written_inf():
    assert Problem.from_dict(WHOLE).nodes[0].losses.tolist() == [0.1, math.inf]


BAD_FORM = {
    "a list": ([WHOLE], "the problem must be an object with moves, nodes, edges"),
    "nothing": (None, "the problem must be an object"),
    "no moves": (without(WHOLE, "moves"), "the problem lacks 'moves'"),
    "no nodes": (without(WHOLE, "nodes"), "the problem lacks 'nodes'"),
    "no edges": (without(WHOLE, "edges"), "lacks 'edges'; it must have moves, nodes, edges"),
    "an unknown key": (
        {**WHOLE, "version": 1},
        "the problem has an unknown 'version'; it may have",
    ),
    "unknown moves": ({**WHOLE, "moves": "fly"}, "moves must be|not 'fly'"),
    "a number for moves": ({**WHOLE, "moves": 1}, "moves must be|not 1"),
    "nodes by name": ({**WHOLE, "nodes": {"a": [0.1]}}, "nodes must be a list"),
    "edges by name": ({**WHOLE, "edges": {}}, "edges must be a list"),
    "empty nodes": ({**WHOLE, "nodes": []}, "no nodes"),
    "empty edges": ({**WHOLE, "edges": []}, "no edge leaves the start"),
    "a name for a node": (
        {**WHOLE, "nodes": ["a"]},
        "nodes[0] must be an object with name, losses",
    ),
    "a node without name": ({**WHOLE, "nodes": [without(NODE, "name")]}, "nodes[0] lacks 'name'"),
    "a node without losses": ({**WHOLE, "nodes": [{"name": "a"}]}, "nodes[0] lacks 'losses'"),
    "a node with more": (node(cost=1), "nodes[0] has an unknown 'cost'; it may have name, losses"),
    "a number for a name": (node(name=3), "nodes[0]: name must be a string, not 3"),
    "no name": (node(name=None), "nodes[0]: name must be a string, not None"),
    "an empty name": (node(name=""), "name must be a non-empty string"),
    "one loss": (node(losses=0.1), "node 'a': losses must be a list"),
    "a word for losses": (node(losses="inf"), "node 'a': losses must be a list"),
    "a word for a loss": (node(losses=[0.1, "high"]), "node 'a'|must be numbers"),
    "minus infinity": (node(losses=[0.1, "-inf"]), "node 'a'|must be numbers"),
    "no loss": (node(losses=[0.1, None]), "node 'a'|must be numbers"),
    "a list for a loss": (node(losses=[0.1, [0.2]]), "node 'a': losses must be numbers"),
    "an object for a loss": (node(losses=[{}, 0.2]), "node 'a': losses must be numbers"),
    "a huge loss": (node(losses=[0.1, 10**400]), "node 'a': losses must be numbers"),
    "a name for an edge": ({**WHOLE, "edges": ["a"]}, "edges[0] must be an object with from, to"),
    "an edge without from": ({**WHOLE, "edges": [without(EDGE, "from")]}, "edges[0] lacks 'from'"),
    "an edge with more": (edge(price=1), "edges[0] has an unknown 'price'; it may have from, to"),
    "from a number": (edge(**{"from": 0}), "edges[0]: 'from' must name a node, not 0"),
    "to nowhere": (edge(to=None), "edges[0]: 'to' must name a node, not None"),
    "to an unknown node": (edge(to="b"), "no node 'b'; the nodes are a"),
    "a word for a cost": (edge(cost="1"), "edges[0]: cost must be a number|not '1'"),
    "a truth for a cost": (edge(cost=True), "edges[0]: cost must be a number|not True"),
    "no cost": (edge(cost=None), "cost must be a number|not None"),
    "a list of words for a cost": (edge(cost=["1"]), "cost must be a number|not ['1']"),
    "costs for another node": (edge(cost=[1, 2]), "the costs have shape (2,)"),
    "a huge cost": (edge(cost=10**400), "cost must be a number"),
    "a word for rows": (edge(probabilities="even"), "probabilities must be numbers"),
    "an object for rows": (edge(probabilities={"0": 1}), "probabilities must be numbers"),
    "no rows": (edge(probabilities=None), "-> 'a'"),
    "a null in a row": (edge(probabilities=[[None, 1]]), "-> 'a'"),
    "ragged rows": (edge(probabilities=[[1], [0.5, 0.5]]), "rows of equal length"),
    "a wrong sum": (edge(probabilities=[[0.25, 0.5]]), "-> 'a', row 0|sum to 0.75|normalise"),
}


@pytest.mark.parametrize(("data", "words"), BAD_FORM.values(), ids=BAD_FORM)
def test_a_wrong_form_is_refused_with_its_place(data, words, refusal):
    with pytest.raises(ProblemError) as caught:
        Problem.from_dict(data)
    assert refusal(json.dumps(data)) == str(caught.value)
    for part in words.split("|"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        edge(probabilities=[["0.25", "0.75"]]),
        edge(probabilities=[["0.25", 0.75]]),
        edge(probabilities=[[True, False]]),
        node(losses=[True, 0.5]),
    ],
)
def test_what_is_not_a_json_number_is_no_number(data):
    with pytest.raises(ProblemError):
        Problem.from_dict(data)


BAD_TEXT = {
    "nothing at all": ("", "is not JSON: line 1, column 1"),
    "a comma too many": ('{"moves": "walk",\n "nodes": [],,}', "is not JSON: line 2, column 14"),
    "half a file": (json.dumps(WHOLE)[:-9], "is not JSON: line 1"),
    "two problems": (json.dumps(WHOLE) * 2, "is not JSON|Extra data"),
    "single quotes": ("{'moves': 'walk'}", "is not JSON: line 1, column 2"),
    "a byte order mark": (b"\xef\xbb\xbf" + json.dumps(WHOLE).encode(), "is not JSON|BOM"),
    "latin letters": (json.dumps(WHOLE).encode().replace(b'"a"', b'"\xe9"'), "not text in UTF-8"),
    "UTF-16": (json.dumps(WHOLE).encode("utf-16"), "not text in UTF-8"),
    "a key twice": ('{"moves": "walk", "moves": "walk"}', "the key 'moves' stands twice|keep one"),
    "a key twice inside": (
        json.dumps(WHOLE).replace('"cost": 1', '"cost": 1, "cost": 2'),
        "the key 'cost' stands twice in one object",
    ),
    "a NaN loss": (json.dumps(WHOLE).replace("0.1", "NaN"), "node 'a', state 0: the loss is nan"),
    "a NaN cost": (json.dumps(edge(cost=math.nan)), "the cost is nan"),
    "an infinite cost": (json.dumps(edge(cost=math.inf)), "the cost is inf"),
    "a NaN probability": (json.dumps(WHOLE).replace("0.25", "NaN"), "the probability is nan"),
    "a loss below all": (json.dumps(WHOLE).replace("0.1", "-Infinity"), "the loss is -inf"),
    "endless digits": (json.dumps(WHOLE).replace("0.25", "9" * 5000), "is not a problem|digits"),
    "endless depth": ("[" * 100_000 + "]" * 100_000, "is not a problem|recursion"),
    "deep rows": (
        json.dumps(WHOLE).replace("0.25", "[" * 500 + "]" * 500),
        "-> 'a': probabilities",
    ),
    "a deep name": (json.dumps(WHOLE).replace('"a"', "[" * 300 + "]" * 300, 1), "nodes[0]: name"),
}


@pytest.mark.parametrize(("content", "words"), BAD_TEXT.values(), ids=BAD_TEXT)
def test_a_file_that_is_no_problem_is_refused_in_one_line(content, words, refusal):
    said = refusal(content)
    for part in words.split("|"):
        assert part in said


def test_a_missing_file_and_a_directory_cannot_be_read(tmp_path):
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(ProblemError) as caught:
            Problem.from_file(path)
        assert str(caught.value).startswith(f"{path}: cannot be read: ")
