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


def test_an_infinite_loss_is_written_inf_and_a_name_may_look_like_a_key(path):
    assert Problem.from_dict(WHOLE).nodes[0].losses.tolist() == [0.1, math.inf]
    path.write_text(json.dumps(WHOLE).replace('"a"', '"\\":"'))
    assert Problem.from_file(path).names == ('":',)


@pytest.mark.parametrize("cost", [math.nan, math.inf])
def test_values_that_json_does_not_have_are_refused_as_values(cost):
    with pytest.raises(ProblemError, match=f"the cost is {cost}"):
        Problem.from_dict(edge(cost=cost))


BAD_FORM = {
    "a list": ([WHOLE], "the problem: expected `object`|a problem has moves, nodes (name, losses"),
    "no moves": (without(WHOLE, "moves"), "the problem: object missing required field `moves`"),
    "an unknown key": ({**WHOLE, "version": 1}, "the problem: object|unknown field `version`"),
    "unknown moves": ({**WHOLE, "moves": "fly"}, "moves must be|not 'fly'"),
    "a number for moves": ({**WHOLE, "moves": 1}, "moves: expected `str`, got `int`"),
    "nodes by name": ({**WHOLE, "nodes": {"a": [0.1]}}, "nodes: expected `array`"),
    "empty nodes": ({**WHOLE, "nodes": []}, "no nodes"),
    "empty edges": ({**WHOLE, "edges": []}, "no edge leaves the start"),
    "a name for a node": ({**WHOLE, "nodes": ["a"]}, "nodes[0]: expected `object`, got `str`"),
    "a node without losses": ({**WHOLE, "nodes": [{"name": "a"}]}, "nodes[0]: object|`losses`"),
    "a node with more": (node(cost=1), "nodes[0]: object contains unknown field `cost`"),
    "no name": (node(name=None), "nodes[0].name: expected `str`, got `null`"),
    "an empty name": (node(name=""), "name must be a non-empty string"),
    "one loss": (node(losses=0.1), "nodes[0].losses: expected `array`"),
    "a word for a loss": (node(losses=[0.1, "high"]), "nodes[0].losses[1]|'high'"),
    "minus infinity": (node(losses=[0.1, "-inf"]), "nodes[0].losses[1]|'-inf'"),
    "a truth for a loss": (node(losses=[True, 0.5]), "nodes[0].losses[0]: expected `float | str`"),
    "a list for a loss": (node(losses=[0.1, [0.2]]), "nodes[0].losses[1]: expected `float | str`"),
    "a huge loss": (node(losses=[0.1, 10**400]), "nodes[0].losses[1]: number out of range"),
    "an edge without from": ({**WHOLE, "edges": [without(EDGE, "from")]}, "edges[0]: |`from`"),
    "an edge with more": (edge(price=1), "edges[0]: object contains unknown field `price`"),
    "from a number": (edge(**{"from": 0}), "edges[0].from: expected `str"),
    "from one name in a list": (edge(**{"from": ["a"]}), "edges[0].from: "),
    "to nowhere": (edge(to=None), "edges[0].to: expected `str`, got `null`"),
    "to an unknown node": (edge(to="b"), "no node 'b'; the nodes are a"),
    "a word for a cost": (edge(cost="1"), "edges[0].cost: expected `float | array`, got `str`"),
    "a truth for a cost": (edge(cost=True), "edges[0].cost: expected `float | array`, got `bool`"),
    "a list of words for a cost": (edge(cost=["1"]), "edge start -> 'a': cost must be a number"),
    "costs for another node": (edge(cost=[1, 2]), "the costs have shape (2,)"),
    "an object for rows": (
        edge(probabilities={"0": 1}),
        "edges[0].probabilities: expected `array`",
    ),
    "a null in a row": (edge(probabilities=[[None, 1]]), "-> 'a': probabilities must be numbers"),
    "words in a row": (edge(probabilities=[["0.25", 0.75]]), "-> 'a': probabilities must be"),
    "truths in a row": (edge(probabilities=[[True, False]]), "-> 'a': probabilities must be"),
    "ragged rows": (edge(probabilities=[[1], [0.5, 0.5]]), "rows of equal length"),
    "no numbers": (edge(probabilities=[[]]), "-> 'a'"),
    "a wrong sum": (edge(probabilities=[[0.25, 0.5]]), "-> 'a', row 0|sum to 0.75|normalise"),
}


@pytest.mark.parametrize(("data", "words"), BAD_FORM.values(), ids=BAD_FORM)
def test_a_wrong_form_is_refused_with_its_place(data, words, refusal):
    with pytest.raises(ProblemError) as caught:
        Problem.from_dict(data)
    assert refusal(json.dumps(data)) == str(caught.value)
    for part in words.split("|"):
        assert part in str(caught.value)


BAD_TEXT = {
    "nothing at all": ("", "is not JSON: line 1, column 1"),
    "a comma too many": ('{"moves": "walk",\n "nodes": [],,}', "is not JSON: line 2, column 14"),
    "half a file": (json.dumps(WHOLE)[:-9], "is not JSON: line 1|truncated"),
    "two problems": (json.dumps(WHOLE) * 2, "is not JSON|trailing"),
    "a byte order mark": (b"\xef\xbb\xbf" + json.dumps(WHOLE).encode(), "is not JSON: line 1"),
    "latin letters": (json.dumps(WHOLE).encode().replace(b'"a"', b'"\xe9"'), "not text in UTF-8"),
    "a key twice": (
        json.dumps(WHOLE).replace('"cost": 1', '"cost": 1, "cost": 2'),
        "the key 'cost' stands twice in one object|keep one",
    ),
    "a NaN loss": (json.dumps(WHOLE).replace("0.1", "NaN"), "is not JSON: line 1, column 54"),
    "endless digits": (json.dumps(WHOLE).replace("0.25", "9" * 5000), "probabilities[0][0]|range"),
    "endless depth": (
        json.dumps(WHOLE).replace("0.25", "[" * 100_000 + "]" * 100_000),
        "is not a problem: its lists are nested too deeply",
    ),
    "deep rows": (
        json.dumps(WHOLE).replace("0.25", "[" * 500 + "]" * 500),
        "edge start -> 'a': probabilities",
    ),
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
